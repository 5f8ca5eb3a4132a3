"""Heads on one backbone, trained on single digits: where does routing pay?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import recipes.pooled_maps  # noqa: F401  # registers the networks
from recipes.attacks import Attacker, Sample, Scores, draw_sample, with_signs
from recipes.kit.base import (
    Line,
    Picture,
    Recipe,
    Study,
    facts_of,
    lines_of,
    mean_over,
    register_recipe,
)
from recipes.kit.charts import bars_under_images
from recipes.kit.lab import data_of
from recipes.kit.measures import activations_of, all_found, by_groups, percent
from recipes.kit.options import TrainingOptions
from torchcaps.models import ImageClassifier
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.data import (
    AffineRanges,
    Examples,
    Overlay,
    Scenes,
    apply_affine,
    arrange,
    fixed_pairs,
)
from torchcaps_lab.evaluate import ask

HEADS: dict[str, dict[str, Any]] = facts_of("digit-heads")["heads"]

SINGLE = "single digits"
ABOVE = "two, one above the other"
BESIDE = "two, side by side"
OVERLAPPING = "two that overlap"
AFFINE = "affine transforms"
HIDDEN = "a square hidden"
ATTACKED, NOISY = "FGSM 0.1, white box", "random signs 0.1"
PAIRS = {ABOVE: "one above the other", BESIDE: "side by side"}
"""The layouts of the tests of two digits that do not overlap."""

TESTS = (SINGLE, ABOVE, BESIDE, OVERLAPPING, AFFINE, HIDDEN, ATTACKED, NOISY)
"""The measures, errors in percent: of the single digits, the most active class; of two,
the two most active ones.
"""

ENTROPY = "entropy of the couplings"

DRAWN = (
    "convolutional twin, pooled, batch norm",
    "class maps, batch norm",
    "largest values of class maps, batch norm",
    "class queries with attention, batch norm",
    "K-Means, 1 step, batch norm",
    "K-Means, 3 steps, batch norm",
    "K-Means with evidence, batch norm",
)
"""The heads in the picture, as far as they were measured."""


class Shown(NamedTuple):
    """Images to test on.

    Args:
        images: the images, uint8 (N, C, H, W).
        present: the classes in each image, bool (N, E).
    """

    images: Tensor
    present: Tensor

    def wrong(self, network: ImageClassifier) -> Tensor:
        """Whether the most active classes, as many as there are, are others than those
        present: (N,).
        """
        return ~all_found(activations_of(network, self.images), self.present)


@dataclass(frozen=True, kw_only=True)
class DigitHeadsSettings(TrainingOptions):
    """One preset.

    Attributes:
        pairs: the number of images of two digits, of each kind.
        attacked: the number of test images that are attacked.
        overlap: the height and width of images of digits that overlap, in pixels.
        shift: the largest shift of each of these digits, in pixels.
        hidden: the side of the square that is hidden, in pixels.
    """

    pairs: int = 5000
    attacked: int = 2000
    overlap: int = 32
    shift: int = 2
    hidden: int = 10


class Tests(NamedTuple):
    """What all rows are tested on."""

    shown: Mapping[str, Shown]
    sample: Sample
    test: Examples


def hide(images: Tensor, side: int) -> Tensor:
    """Images (N, C, H, W) with a black square in each, anywhere within the image."""
    generator = torch.Generator().manual_seed(0)
    height, width = images.shape[-2:]
    top, left = (
        torch.randint(
            extent - side + 1,
            (len(images), 1),
            generator=generator,
        )
        for extent in (height, width)
    )
    rows = torch.arange(height)
    columns = torch.arange(width)
    in_rows = (rows >= top) & (rows < top + side)
    in_columns = (columns >= left) & (columns < left + side)
    inside = in_rows[:, :, None] & in_columns[:, None]
    return images.masked_fill(inside[:, None], 0)


@register_recipe
class DigitHeads(Recipe[DigitHeadsSettings]):
    """Heads trained alike on single digits: what do they know of others?"""

    name: ClassVar = "digit-heads"
    rows: ClassVar = HEADS
    lines: ClassVar = (
        *lines_of(product(HEADS, TESTS), {}),
        *(
            Line(head, ENTROPY, unit="", higher_is_better=None)
            for head, options in HEADS.items()
            if "routing" in options
        ),
    )
    settings: ClassVar = DigitHeadsSettings
    grows: ClassVar = True

    def begin(self, study: Study) -> Tests:
        """Test digits: alone, two of them, transformed, hidden in part. The same for
        all heads and seeds.
        """
        settings = study.settings
        test = data_of(study.settings.data).test
        single = F.one_hot(test.labels, len(test.classes)).bool()
        shown = {SINGLE: Shown(test.inputs, single)}
        for name, layout in PAIRS.items():
            pairs = arrange(test, Scenes.layouts()[layout], settings.pairs)
            shown[name] = Shown(*pairs)
        overlay = Overlay(test, settings.overlap, settings.shift)
        overlaid = fixed_pairs(overlay, settings.pairs, seed=0)
        both = F.one_hot(overlaid.labels, len(test.classes)).sum(1).bool()
        shown[OVERLAPPING] = Shown(overlaid.images, both)
        moved = apply_affine(test.inputs, AffineRanges().draw(test.inputs))
        shown[AFFINE] = Shown(moved, single)
        shown[HIDDEN] = Shown(hide(test.inputs, settings.hidden), single)
        sample = draw_sample(test, test.preprocess, settings.attacked)
        return Tests(shown, sample, test)

    def measure(
        self,
        study: Study,
        row: str,
        tests: Tests,
    ) -> dict[str, float]:
        """The errors, and how many images of each group were wrong, for intervals."""
        network = study.trained[row].network
        classifier = study.trained[row].classifier
        wrong = {name: shown.wrong(network) for name, shown in tests.shown.items()}
        wrong |= _attacked(classifier, tests.sample)
        study.curves[row] = by_groups(wrong)
        figures = {name: percent(mask) for name, mask in wrong.items()}
        test = replace(tests.test, preprocess=classifier.preprocess)
        entropy = ask(network, test).entropy
        if entropy is not None:
            figures[ENTROPY] = entropy
        return figures

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """Bars of the accuracy on single digits and on two, mean of the seeds, with an
        example of each above them.
        """
        bars = {}
        for head in DRAWN:
            seeds = [
                study.figures for study in studies if (head, SINGLE) in study.figures
            ]
            if seeds:
                errors = [mean_over(seeds, (head, name)) for name in (SINGLE, *PAIRS)]
                bars[head] = [100 - error for error in errors]
        if not bars:
            return {}
        test = data_of(studies[0].settings.data).test
        examples = {"single digits": test.inputs[0].amax(0)}
        for layout in PAIRS.values():
            examples[layout] = (
                arrange(test, Scenes.layouts()[layout], 1).images[0].amax(0)
            )
        figure = bars_under_images(examples, bars, "all digits found, % of images")
        return {"pairs": Picture(figure, self.caption)}


def _attacked(classifier: Classifier, sample: Sample) -> dict[str, Tensor]:
    """Which images are wrong where each pixel went up or down by 0.1: against the
    network, and at random.
    """
    network: Any = classifier.network
    pixels, labels, _ = sample
    channels, height, width = pixels.shape[1:]
    scores = Scores(network, classifier.preprocess)
    attacker = Attacker(scores, (channels, height, width), network.classes)
    attacked = attacker.attacked("FGSM", 0.1, pixels, labels, targeted=False)
    noisy = with_signs(pixels, 0.1)
    return {
        ATTACKED: attacker.answers(attacked) != labels,
        NOISY: attacker.answers(noisy) != labels,
    }
