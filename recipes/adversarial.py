"""Adversarial images: capsules against a CNN of the same clean accuracy (Hinton, Sabour
& Frosst 2018, section 6).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

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
from torchcaps_lab.report import shorten

CAPSULES, CNN = "matrix capsules", "convolutional network"
IN_TABLE: dict[str, tuple[float, ...]] = {"FGSM": (0.01, 0.1), "BIM": (0.01,)}
"""The attacks, and each epsilon that is in the table: one that they share, and one as
large as the paper's.
"""

CLEAN = "accuracy, no attack"
NOISE = "accuracy, random signs 0.1"
ZEROS = "zeros in the gradient, no attack"


def measured(network: str) -> Iterator[tuple[str, attacks.Key, float]]:
    """The figures in the table of the attacks on a network: the measure, the curve it
    is read from, the epsilon.
    """
    goals = {attacks.UNTARGETED: "accuracy", attacks.TARGETED: "taken for the target"}
    for attack, goal, box in product(IN_TABLE, goals, (attacks.WHITE, attacks.BLACK)):
        for epsilon in IN_TABLE[attack]:
            measure = f"{goals[goal]}, {attack} {epsilon:g}, {goal}, {box}"
            yield measure, attacks.Key(network, attack, goal, box), epsilon


@dataclass(frozen=True, kw_only=True)
class AdversarialSettings(TrainingOptions):
    """One preset. An epoch of the convolutional network is a share of the images:
    within one of all of them it would overshoot the accuracy of the capsules, which it
    should end close to.

    Attributes:
        images: the number of test images that are attacked.
        epsilons: the epsilons of each attack, in units of the pixels' range.
        steps: the number of steps of BIM.
        attack_batch: the number of images that are attacked at a time.

    Raises:
        ValueError: if an attack lacks an epsilon that is in the table.
    """

    images: int = 1000
    epsilons: Mapping[str, tuple[float, ...]]
    steps: int = 10
    attack_batch: int = 100

    def __post_init__(self) -> None:
        for attack, in_table in IN_TABLE.items():
            epsilons = self.epsilons.get(attack, ())
            if not set(in_table) <= set(epsilons):
                raise ValueError(
                    f"epsilons of {attack} must hold {in_table}, got {epsilons}"
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
    lines: ClassVar = (*_lines(CAPSULES), *_lines(CNN))
    settings: ClassVar = AdversarialSettings

    def job(
        self,
        settings: AdversarialSettings,
        row: str,
        stop_at: float | None = None,
    ) -> Job:
        """The capsule network is that of ``smallnorb-em`` if the options are those of
        one of its presets.
        """
        name, options = super().job(settings, row, stop_at)
        smallnorb = get_recipe("smallnorb-em")
        for preset in smallnorb.presets.values():
            shared_name, shared_options = smallnorb.job(preset, BASE)
            if shared_options == options:
                return shared_name, options
        return name, options

    def begin(self, study: Study) -> None:
        """Raises an error before any training if the library of attacks is missing."""
        import art.attacks.evasion  # noqa: F401

    def measure(
        self,
        study: Study,
        row: str,
        shared: None,
    ) -> dict[str, float]:
        """Nothing yet: the attacks need both networks, see :meth:`finish`."""
        return {}

    def finish(self, study: Study, shared: None) -> None:
        """Attacks both networks with images made on itself (white box) and on the other
        (black box).
        """
        settings = study.settings
        test = data_of(settings.data).test
        epsilons = settings.epsilons["FGSM"]
        preprocess = study.trained[CAPSULES].classifier.preprocess
        sample = attacks.draw_sample(test, preprocess, settings.images)
        attackers = {
            row: _attacker(trained.classifier, study)
            for row, trained in study.trained.items()
        }
        start = time.perf_counter()
        curves = attacks.attack_all(attackers, sample, settings.epsilons)
        noise = {
            row: attacks.random_signs(attacker, sample, epsilons)
            for row, attacker in attackers.items()
        }
        for row, attacker in attackers.items():
            zeros = attacker.zero_gradients(sample.pixels, sample.labels)
            study.note(row, {**_figures(row, curves, noise[row]), ZEROS: zeros})
        seconds = round(time.perf_counter() - start, 1)
        for row, trained in study.trained.items():
            study.facts[row] |= {
                "test_accuracy": trained.summary["test_accuracy"],
                "attacked_images": len(sample.labels),
                "seconds_of_all_attacks": seconds,
            }
        for key, curve in curves.items():
            study.curves[", ".join(key)] = curve._asdict()
        for network, curve in noise.items():
            study.curves[f"{network}, random signs"] = curve._asdict()
        drawn = attacks.attack_curves(curves, noise, 100 / len(test.classes))
        study.pictures["curves"] = Picture(drawn, self.captions["curves"])
        study.pictures["images"] = _images(
            attackers, sample, epsilons, test.classes, self.captions["images"]
        )


def _attacker(classifier: Classifier, study: Study) -> attacks.Attacker:
    network: Any = classifier.network
    settings = study.settings
    return attacks.Attacker(
        attacks.Scores(network, classifier.preprocess),
        network.image_shape,
        network.classes,
        settings.steps,
        settings.attack_batch,
        study.lab.device,
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
        place = curve.epsilon.index(epsilon)
        figures[measure] = attacks.judged_by(curve, key.goal)[place]
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
        pixels = sample.pixels[place : place + 1]
        label = sample.labels[place : place + 1]
        image = attacker.attacked("FGSM", epsilon, pixels, label, targeted=False)
        predicted = int(attacker.answers(image))
        title = f"ε {epsilon:g}\n{shorten(classes[predicted], 12)}"
        colour = "black" if predicted == int(label) else "tab:red"
        return Cell(image[0, 0], title, colour)

    rows = {}
    for number, place in enumerate(_two_images(attackers, sample), 1):
        for name, attacker in attackers.items():
            words = name.replace(" ", "\n")
            cells = [cell(attacker, place, epsilon) for epsilon in (0.0, *epsilons)]
            rows[f"{words}\n{number}"] = cells
    return Picture(image_grid(rows), caption)


def _two_images(
    attackers: Mapping[str, attacks.Attacker], sample: attacks.Sample
) -> list[int]:
    """Indices of the first image that all networks classify correctly, and of the first
    such image of another class.
    """
    answers = [attacker.answers(sample.pixels) for attacker in attackers.values()]
    correct = (torch.stack(answers) == sample.labels).all(0)
    first = int(correct.int().argmax())
    candidates = sample.labels != sample.labels[first]
    if bool(correct.any()):
        candidates &= correct
    return [first, int(candidates.int().argmax())]
