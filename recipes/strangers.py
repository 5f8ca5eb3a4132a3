"""None of these: strangers told by what the winning class draws (Frosst et al. 2018;
Qin et al. 2020).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

import recipes.decoding_cnn  # noqa: F401  # registers the twin
from recipes.attacks import Attacker, Sample, Scores, draw_sample
from recipes.kit.base import Line, Picture, Recipe, Study, facts_of, register_recipe
from recipes.kit.charts import Cell, bars_upwards, image_grid
from recipes.kit.lab import Trained, at_random, data_of, untrained
from recipes.kit.measures import percent
from recipes.kit.options import TrainingOptions
from recipes.reconstructive import reconstructive
from torchcaps.models import load_pretrained
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.data import Examples, load_image
from torchcaps_lab.report import new_figure, reconstruction_error, told_apart

TWIN = "CNN with a decoder for each class"
FACTS = facts_of("strangers")
PACKED: dict[str, tuple[str, float]] = FACTS["packed"]
"""Networks that are not trained here, with the share of the training images that were
put aside for validation.
"""

OTHER = "other data"
NOISE = "uniform noise"
LETTERS = "letters"
TURNED = "digits upside down"
ATTACKS = FGSM, BIM, KNOWING = "FGSM", "BIM", "the attack that knows"
KINDS = (OTHER, NOISE, LETTERS, TURNED)
UNDETECTED, BY_ACTIVATION = "undetected, {}", "undetected by the activation, {}"
ERROR = "test error"
FALSE = "false alarms"
AUC = f"AUC, {OTHER}"
AUC_ACTIVATION = f"AUC by the activation, {OTHER}"
FOOLED = "fooled, {}"
INK, INK_SQUARES = (
    "error and ink, rank correlation",
    "sum of squares and ink, rank correlation",
)
PLAIN = (AUC, AUC_ACTIVATION, INK, INK_SQUARES)
"""Measures that are no percentages."""

BETTER = {
    AUC: True,
    AUC_ACTIVATION: True,
    INK: None,
    INK_SQUARES: None,
}
"""Whether higher is better, of those for which lower is not."""

MEASURES = (
    *(ERROR, FALSE, *PLAIN),
    *(UNDETECTED.format(kind) for kind in (*KINDS, *ATTACKS)),
    *(BY_ACTIVATION.format(kind) for kind in (*KINDS, *ATTACKS)),
    *(FOOLED.format(attack) for attack in ATTACKS),
)


@dataclass(frozen=True, kw_only=True)
class StrangersSettings(TrainingOptions):
    """One preset.

    Attributes:
        strangers: a data set of other things.
        tested: the largest number of known images, of images of each kind of strangers
            and of validation images.
        attacked: the number of test images that are attacked.
        epsilon: the largest change of a pixel by an attack.
        steps: the number of steps of the attacks.
        false_alarms: the share of validation images that lie above the threshold.
        resamples: the number of samples of the bootstrap.
    """

    strangers: Mapping[str, Any] = field(
        default_factory=lambda: {"name": "FashionMNIST"}
    )
    tested: int = 2000
    attacked: int = 200
    epsilon: float = 0.2
    steps: int = 20
    false_alarms: float = 0.05
    resamples: int = 1000


class Seen(NamedTuple):
    """What a network predicts for images, and how well it reconstructs them.

    Args:
        predicted: the most active class, (N,).
        doubt: 1 less the activation of that class, (N,).
        error: the error of the reconstruction, (N,).
        ink: the energy of the image, (N,).
    """

    predicted: Tensor
    doubt: Tensor
    error: Tensor
    ink: Tensor


@torch.no_grad()
def see(classifier: Classifier, pixels: Tensor) -> tuple[Seen, Tensor]:
    """What a network predicts for unprepared images (N, C, H, W) in [0, 1], and what it
    reconstructs of them.
    """
    parts, drawn = [], []
    for part in pixels.split(200):
        view = classifier.preprocess.evaluate(part.to(classifier.device))
        prediction = classifier.network(view.images)
        assert prediction.reconstruction is not None
        top = prediction.activation.max(1)
        error = reconstruction_error(view.pictures, prediction.reconstruction)
        ink = view.pictures.flatten(1).square().sum(1)
        parts.append((top.indices, 1 - top.values, error, ink))
        drawn.append(prediction.reconstruction.cpu())
    columns = zip(*parts, strict=True)
    seen = Seen(*(torch.cat(column).double().cpu() for column in columns))
    return seen, torch.cat(drawn)


def letters(image_shape: tuple[int, int, int]) -> Tensor:
    """Capitals that look like no digit, in the fonts of Matplotlib, turned by up to 10
    degrees, uint8 (N, C, H, W).

    They are brought to size as MNIST was made, see
    :func:`~torchcaps_lab.data.load_image`.
    """
    from matplotlib import get_data_path
    from PIL import Image, ImageDraw, ImageFont

    folder = Path(get_data_path(), "fonts/ttf")
    files: list[Path] = []
    for name in ("DejaVuSans*", "DejaVuSerif*", "STIXGeneral*", "cm[brst]*10"):
        files += folder.glob(f"{name}.ttf")
    drawn = []
    for file in sorted(files):
        if "Display" in file.name or file.stem == "cmsy10":
            continue
        font = ImageFont.truetype(str(file), 80)
        for letter, angle in product("ACEFHJKMNPRTUVWXY", (-10, 0, 10)):
            picture = Image.new("L", (160, 160), 255)
            canvas = ImageDraw.Draw(picture)
            canvas.text(
                (80, 80),
                letter,
                fill=0,
                font=font,
                anchor="mm",
            )
            picture = picture.rotate(angle, Image.Resampling.BICUBIC, fillcolor=255)
            drawn.append(load_image(picture, image_shape, resize="handwriting"))
    return torch.stack(drawn)


def strangers_of(test: Examples, settings: StrangersSettings) -> dict[str, Tensor]:
    """Images of each kind, at most as many as are tested, float (N, C, H, W) in [0,
    1].
    """
    generator = torch.Generator().manual_seed(0)
    count = settings.tested
    shape = test.raw_image_shape
    without_symmetry = torch.isin(test.labels, torch.tensor([3, 4, 7]))
    turned = test.inputs[without_symmetry].rot90(2, (2, 3))
    noise = torch.randint(
        0, 256, (count, *shape), generator=generator, dtype=torch.uint8
    )
    kinds = {
        OTHER: data_of(settings.strangers).test.inputs,
        NOISE: noise,
        LETTERS: letters(shape),
        TURNED: turned,
    }
    chosen = {}
    for kind, images in kinds.items():
        order = torch.randperm(len(images), generator=generator)
        places = order[:count].sort().values
        chosen[kind] = images[places].float() / 255
    return chosen


def interval(
    of_known: Tensor,
    of_strangers: Tensor,
    false_alarms: float,
    resamples: int,
) -> list[float]:
    """95 % of the shares of undetected strangers, in percent, over bootstrap samples of
    both kinds of images.
    """
    generator = torch.Generator().manual_seed(0)

    def resampled(scores: Tensor) -> Tensor:
        return scores[
            torch.randint(
                len(scores),
                scores.shape,
                generator=generator,
            )
        ]

    shares = []
    for _ in range(resamples):
        strangers = resampled(of_strangers)
        known_images = resampled(of_known)
        threshold = known_images.quantile(1 - false_alarms)
        shares.append(percent(strangers <= threshold))
    return torch.tensor(shares).quantile(torch.tensor([0.025, 0.975])).tolist()


@register_recipe
class Strangers(Recipe[StrangersSettings]):
    """How many strangers pass for known, at a rate of false alarms that validation
    images set.
    """

    name: ClassVar = "strangers"
    lines: ClassVar = tuple(
        Line(
            row,
            measure,
            unit="" if measure in PLAIN else "%",
            higher_is_better=BETTER.get(measure, False),
        )
        for measure, row in product(MEASURES, FACTS["rows"])
    )
    settings: ClassVar = StrangersSettings

    def train(
        self,
        study: Study,
        row: str,
        stop_at: float | None,
    ) -> Trained:
        """Trains the network of a row, or opens that of the package."""
        if row not in PACKED:
            return super().train(study, row, stop_at)
        name, _ = PACKED[row]
        network = load_pretrained(name).to(study.lab.device)
        return untrained(network, name)

    def begin(self, study: Study) -> tuple[Examples, dict[str, Tensor]]:
        """Known test images, and strangers; an error before any training if the library
        of attacks is missing.
        """
        import art.attacks.evasion  # noqa: F401

        test = data_of(study.settings.data).test
        tested = at_random(test, study.settings.tested)
        return tested, strangers_of(test, study.settings)

    def measure(
        self,
        study: Study,
        row: str,
        images: tuple[Examples, dict[str, Tensor]],
    ) -> dict[str, float]:
        """Shares of the strangers that are not detected, beside what the activation of
        the winning class detects.
        """
        settings, (test, strangers) = study.settings, images
        classifier = study.trained[row].classifier
        validation = at_random(_validation(settings, row), settings.tested)
        of_validation, _ = see(classifier, validation.inputs.float() / 255)
        of_test, _ = see(classifier, test.inputs.float() / 255)
        of_strangers = {
            kind: see(classifier, pixels)[0] for kind, pixels in strangers.items()
        }
        sample, attacked = self._attacked(study, row, test)
        of_attacks = {
            attack: see(classifier, pixels)[0] for attack, pixels in attacked.items()
        }
        limit, doubt_limit = (
            scores.quantile(1 - settings.false_alarms).item()
            for scores in (of_validation.error, of_validation.doubt)
        )
        other = of_strangers[OTHER]
        by_error = told_apart(of_test.error, other.error, limit)
        by_doubt = told_apart(of_test.doubt, other.doubt, doubt_limit)
        error = of_validation.error
        ink = of_validation.ink
        figures = {
            ERROR: percent(of_test.predicted != test.labels),
            FALSE: percent(of_test.error > limit),
            AUC: by_error.auc,
            AUC_ACTIVATION: by_doubt.auc,
            INK: rank_correlation(error, ink),
            INK_SQUARES: rank_correlation(error * ink, ink),
        }
        for kind, seen in of_strangers.items():
            figures[UNDETECTED.format(kind)] = percent(seen.error <= limit)
            figures[BY_ACTIVATION.format(kind)] = percent(seen.doubt <= doubt_limit)
        for attack, seen in of_attacks.items():
            wrong = seen.predicted != sample.labels
            undetected = wrong & (seen.error <= limit)
            by_activation = wrong & (seen.doubt <= doubt_limit)
            figures[FOOLED.format(attack)] = percent(wrong)
            figures[UNDETECTED.format(attack)] = percent(undetected)
            figures[BY_ACTIVATION.format(attack)] = percent(by_activation)
        spread = partial(
            interval, false_alarms=settings.false_alarms, resamples=settings.resamples
        )
        study.curves[row] = {
            "threshold": limit,
            "validation images": len(of_validation.error),
            "images": {
                kind: len(seen.error)
                for kind, seen in {**of_strangers, **of_attacks}.items()
            },
            "undetected, 95 %": {
                kind: spread(of_validation.error, seen.error)
                for kind, seen in of_strangers.items()
            },
            "undetected by the activation, 95 %": {
                kind: spread(of_validation.doubt, seen.doubt)
                for kind, seen in of_strangers.items()
            },
        }
        capsules = [name for name in study.trained if name != TWIN]
        if capsules == [row]:  # the first of them
            shown = {
                "known": test.inputs.float() / 255,
                **strangers,
                **attacked,
            }
            caption = self.captions["images"].format(row=row, limit=limit)
            study.pictures["images"] = _images(classifier, shown, limit, caption)
        return figures

    def _attacked(
        self,
        study: Study,
        row: str,
        test: Examples,
    ) -> tuple[Sample, dict[str, Tensor]]:
        """Test images, and what the attacks make of them."""
        settings = study.settings
        classifier = study.trained[row].classifier
        network: Any = classifier.network
        device = study.lab.device
        sample = draw_sample(test, classifier.preprocess, settings.attacked)
        scores = Scores(network, classifier.preprocess)
        attacker = Attacker(
            scores, network.image_shape, network.classes, settings.steps, 100, device
        )
        epsilon = settings.epsilon
        pixels = sample.pixels
        labels = sample.labels
        images = {
            attack: attacker.attacked(attack, epsilon, pixels, labels, False)
            for attack in (FGSM, BIM)
        }
        knowing = reconstructive(
            scores, pixels.to(device), labels.to(device), epsilon, settings.steps
        )
        return sample, {**images, KNOWING: knowing.cpu()}

    def finish(self, study: Study, images: Any) -> None:
        """Bars of the undetected strangers, by the error and by the activation."""
        figure = new_figure(10.0, 6.4)
        upper, lower = figure.subplots(2, 1, sharey=True)
        kinds = (*KINDS, *ATTACKS)
        labels = [kind.replace("attack that", "attack\nthat") for kind in kinds]
        alarms = f"at {study.settings.false_alarms:.0%} false alarms"
        for axes, measure, detector in (
            (upper, UNDETECTED, "the reconstruction error"),
            (lower, BY_ACTIVATION, "the activation of the winning class"),
        ):
            measures = [measure.format(kind) for kind in kinds]
            series = {
                row: [study.figures[row, name] for name in measures]
                for row in study.trained
            }
            bars_upwards(axes, labels, series, digits=1)
            axes.set_title(f"undetected by {detector}, {alarms}", fontsize=11)
            axes.set_ylabel("% of the images")
        figure.legend(
            *upper.get_legend_handles_labels(),
            loc="outside lower center",
            ncols=4,
            frameon=False,
        )
        study.pictures["undetected"] = Picture(figure, self.caption)


def _validation(settings: StrangersSettings, row: str) -> Examples:
    """The validation images of a network: those that were put aside in its training."""
    options = dict(settings.data)
    if row in PACKED:
        _, options["validation"] = PACKED[row]
    return data_of(options).validation


def rank_correlation(x: Tensor, y: Tensor) -> float:
    """Spearman's."""
    from scipy.stats import spearmanr

    return float(spearmanr(x.numpy(), y.numpy()).statistic)


def _images(
    classifier: Classifier,
    kinds: Mapping[str, Tensor],
    limit: float,
    caption: str,
) -> Picture:
    """An image of each kind, what the winning class draws, and the difference."""
    cells: dict[str, list[Cell]] = {
        "image": [],
        "reconstruction": [],
        "difference": [],
    }
    for kind, images in kinds.items():
        seen, drawn = see(classifier, images[:1])
        error = seen.error.item()
        picture = classifier.preprocess.evaluate(images[:1]).pictures[0, 0]
        verdict, colour = "known", "black"
        if error > limit:
            verdict, colour = "none of these", "tab:red"
        name = kind.replace("attack that", "attack\nthat").replace("upside", "\nupside")
        predicted = classifier.classes[int(seen.predicted)]
        difference = (picture - drawn[0, 0]).abs()
        cells["image"].append(Cell(picture, name))
        cells["reconstruction"].append(Cell(drawn[0, 0], f"as a {predicted}"))
        cells["difference"].append(Cell(difference, f"{error:.2f}: {verdict}", colour))
    return Picture(image_grid(cells, 1.3), caption)
