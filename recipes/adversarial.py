"""Adversarial images: capsules against a CNN of the same clean accuracy (Hinton, Sabour
& Frosst 2018, section 6).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import torch

from recipes import attacks
from recipes.kit.base import (
    Line,
    Picture,
    Recipe,
    Study,
    facts_of,
    get_recipe,
    register_recipe,
)
from recipes.kit.charts import Cell, image_grid
from recipes.kit.lab import Job, data_of
from recipes.kit.options import TrainingOptions
from recipes.smallnorb import BASE
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.report.canvas import shorten

CAPSULES, CNN = "matrix capsules", "convolutional network"
IN_TABLE: dict[str, tuple[float, ...]] = {"FGSM": (0.01, 0.1), "BIM": (0.01,)}
"""The attacks, and each epsilon that is in the table: one that they share, and one as
large as the paper's.
"""

CLEAN, NOISE, ZEROS = (
    "accuracy, no attack",
    "accuracy, random signs 0.1",
    "zeros in the gradient, no attack",
)


def measured(network: str) -> Iterator[tuple[str, attacks.Key, float]]:
    """The figures in the table of the attacks on a network: the measure, the curve it
    is read from, the epsilon.
    """
    goals = (attacks.UNTARGETED, "accuracy"), (attacks.TARGETED, "taken for the target")
    for attack, (goal, what), box in product(
        IN_TABLE, goals, (attacks.WHITE, attacks.BLACK)
    ):
        for epsilon in IN_TABLE[attack]:
            yield (
                f"{what}, {attack} {epsilon:g}, {goal}, {box}",
                attacks.Key(network, attack, goal, box),
                epsilon,
            )


@dataclass(frozen=True, kw_only=True)
class AdversarialSettings(TrainingOptions):
    """One preset. An epoch of the convolutional network is a share of the images:
    within one of all of them it would overshoot the accuracy of the capsules, which it
    should end close to.

    Attributes:
        images: how many test images are attacked.
        epsilons: of each attack, in units of the pixels' range.
        steps: of BIM.
        attack_batch: how many images are attacked at a time.

    Raises:
        ValueError: if an attack lacks an epsilon that is in the table.
    """

    images: int = 1000
    epsilons: Mapping[str, tuple[float, ...]]
    steps: int = 10
    attack_batch: int = 100

    def __post_init__(self) -> None:
        for attack, needed in IN_TABLE.items():
            given = self.epsilons.get(attack, ())
            if not set(needed) <= set(given):
                raise ValueError(
                    f"epsilons of {attack} must hold {needed}, got {given}"
                )


_RECALLED = facts_of("adversarial")["recalled"]
"""What is known of the published curves of untargeted white-box FGSM; shown beside the
largest epsilon.
"""


def _lines(network: str) -> Iterator[Line]:
    yield from (
        Line(network, measure, higher_is_better=True) for measure in (CLEAN, NOISE)
    )
    for measure, key, epsilon in measured(network):
        shown = (
            key == attacks.Key(network, "FGSM", attacks.UNTARGETED, attacks.WHITE)
            and epsilon == 0.1
        )
        source = _RECALLED[network] if shown else ""
        yield Line(
            network,
            measure,
            None,
            source,
            higher_is_better=key.goal == attacks.UNTARGETED,
        )
    yield Line(network, ZEROS, higher_is_better=None)


@register_recipe
class Adversarial(Recipe[AdversarialSettings]):
    """Attacks a matrix capsule network and a convolutional one of the same accuracy
    with images made on either.
    """

    name: ClassVar = "adversarial"
    twins: ClassVar = {CNN: CAPSULES}
    lines: ClassVar = tuple(
        line for network in (CAPSULES, CNN) for line in _lines(network)
    )
    settings: ClassVar = AdversarialSettings

    def job(
        self, settings: AdversarialSettings, row: str, stop_at: float | None = None
    ) -> Job:
        """The capsule network is that of ``smallnorb-em`` if the options are those of
        one of its presets.
        """
        own = super().job(settings, row, stop_at)
        smallnorb = get_recipe("smallnorb-em")
        shared = (smallnorb.job(preset, BASE) for preset in smallnorb.presets.values())
        return next((job for job in shared if job[1] == own[1]), own)

    def begin(self, study: Study) -> None:
        """Raises an error before any training if the library of attacks is missing."""
        import art.attacks.evasion  # noqa: F401

    def measure(self, study: Study, row: str, given: None) -> dict[str, float]:
        """Nothing yet: the attacks need both networks, see :meth:`finish`."""
        return {}

    def finish(self, study: Study, given: None) -> None:
        """Attacks both networks with images made on itself (white box) and on the other
        (black box).
        """
        settings = study.settings
        test, epsilons = data_of(settings.data).test, settings.epsilons["FGSM"]
        sample = attacks.draw_sample(
            test, study.trained[CAPSULES].classifier.preprocess, settings.images
        )
        attackers = {
            row: _attacker(one.classifier, study) for row, one in study.trained.items()
        }
        start = time.perf_counter()
        curves = attacks.attack_all(attackers, sample, settings.epsilons)
        noise = {
            row: attacks.random_signs(one, sample, epsilons)
            for row, one in attackers.items()
        }
        for row, attacker in attackers.items():
            zeros = attacker.zero_gradients(sample.pixels, sample.labels)
            study.note(row, {**_figures(row, curves, noise[row]), ZEROS: zeros})
        seconds, images = round(time.perf_counter() - start, 1), len(sample.labels)
        for row, one in study.trained.items():
            tested = {
                "test_accuracy": one.summary["test_accuracy"],
                "attacked_images": images,
            }
            study.facts[row] |= {**tested, "seconds_of_all_attacks": seconds}
        study.curves |= {
            ", ".join(key): curve._asdict() for key, curve in curves.items()
        }
        study.curves |= {
            f"{network}, random signs": curve._asdict()
            for network, curve in noise.items()
        }
        drawn = attacks.attack_curves(curves, noise, 100 / len(test.classes))
        study.pictures["curves"] = Picture(drawn, self.captions["curves"])
        study.pictures["images"] = _images(
            attackers, sample, epsilons, test.classes, self.captions["images"]
        )


def _attacker(classifier: Classifier, study: Study) -> attacks.Attacker:
    network, settings = classifier.network, study.settings
    scores, how = (
        attacks.Scores(network, classifier.preprocess),
        (settings.steps, settings.attack_batch),
    )
    return attacks.Attacker(
        scores, network.image_shape, network.classes, *how, study.lab.device
    )


def _figures(
    network: str, curves: Mapping[attacks.Key, attacks.Curve], noise: attacks.Curve
) -> dict[str, float]:
    """The values of a network's lines, by measure."""
    figures = {
        CLEAN: noise.accuracy[0],
        NOISE: noise.accuracy[noise.epsilon.index(0.1)],
    }
    for measure, key, epsilon in measured(network):
        curve = curves[key]
        figures[measure] = attacks.judged_by(curve, key.goal)[
            curve.epsilon.index(epsilon)
        ]
    return figures


def _images(
    attackers: Mapping[str, attacks.Attacker],
    sample: attacks.Sample,
    epsilons: Sequence[float],
    classes: Sequence[str],
    caption: str,
) -> Picture:
    """Two test images under FGSM with growing epsilon, and the class that each attacked
    network predicts.
    """

    def cell(attacker: attacks.Attacker, place: int, epsilon: float) -> Cell:
        pixels, label = (
            sample.pixels[place : place + 1],
            sample.labels[place : place + 1],
        )
        image = attacker.attacked("FGSM", epsilon, pixels, label, targeted=False)
        said = int(attacker.answers(image))
        colour = "black" if said == int(label) else "tab:red"
        return Cell(image[0, 0], f"ε {epsilon:g}\n{shorten(classes[said], 12)}", colour)

    rows = {
        f"{name.replace(' ', chr(10))}\n{number}": [
            cell(attacker, place, epsilon) for epsilon in (0.0, *epsilons)
        ]
        for number, place in enumerate(_two_images(attackers, sample), 1)
        for name, attacker in attackers.items()
    }
    return Picture(image_grid(rows), caption)


def _two_images(
    attackers: Mapping[str, attacks.Attacker], sample: attacks.Sample
) -> list[int]:
    """Indices of the first image that all networks classify correctly, and of the first
    such image of another class.
    """
    known = torch.stack(
        [one.answers(sample.pixels) == sample.labels for one in attackers.values()]
    ).all(0)
    first = int(known.int().argmax())
    other = (sample.labels != sample.labels[first]) & (
        known if bool(known.any()) else True
    )
    return [first, int(other.int().argmax())]
