"""None of these: strangers told by what the winning class draws (Frosst et al. 2018;
Qin et al. 2020).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

import recipes.decoding_cnn  # noqa: F401  # registers the twin
from recipes.attacks import Attacker, Sample, Scores, draw_sample
from recipes.kit.base import Line, Picture, Recipe, Study, facts_of, register_recipe
from recipes.kit.charts import Cell, bars_upwards, image_grid
from recipes.kit.lab import Trained, at_random, data_of, facts_of_network
from recipes.kit.measures import percent
from recipes.kit.options import TrainingOptions
from recipes.reconstructive import reconstructive
from torchcaps.models import load_pretrained
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.data import Examples
from torchcaps_lab.data.handwriting import read_handwriting
from torchcaps_lab.report import new_figure, reconstruction_error, told_apart

TWIN = "CNN with a decoder for each class"
FACTS = facts_of("strangers")
PACKED: dict[str, tuple[str, float]] = FACTS["packed"]
"""Networks that are not trained here, with the share of the training images that were
put aside for validation.
"""

OTHER, NOISE, LETTERS, TURNED = (
    "other data",
    "uniform noise",
    "letters",
    "digits upside down",
)
ATTACKS = FGSM, BIM, KNOWING = "FGSM", "BIM", "the attack that knows"
KINDS = (OTHER, NOISE, LETTERS, TURNED)
UNDETECTED, BY_ACTIVATION = "undetected, {}", "undetected by the activation, {}"
ERROR, FALSE, AUC, AUC_ACTIVATION = (
    "test error",
    "false alarms",
    f"AUC, {OTHER}",
    f"AUC by the activation, {OTHER}",
)
FOOLED = "fooled, {}"
INK, INK_SQUARES = (
    "error and ink, rank correlation",
    "sum of squares and ink, rank correlation",
)
PLAIN = (AUC, AUC_ACTIVATION, INK, INK_SQUARES)
"""Measures that are no percentages."""

BETTER = {AUC: True, AUC_ACTIVATION: True, INK: None, INK_SQUARES: None}
"""Whether higher is better, of those for which lower is not."""

MEASURES = (
    *(ERROR, FALSE, *PLAIN),
    *(
        how.format(kind)
        for how in (UNDETECTED, BY_ACTIVATION)
        for kind in (*KINDS, *ATTACKS)
    ),
    *(FOOLED.format(attack) for attack in ATTACKS),
)


@dataclass(frozen=True, kw_only=True)
class StrangersSettings(TrainingOptions):
    """One preset.

    Attributes:
        strangers: a data set of other things.
        tested: known images and images of each kind of strangers at most; so many
            validation images, too.
        attacked: how many test images are attacked.
        epsilon: largest change of a pixel by an attack.
        steps: of the attacks.
        false_alarms: the share of validation images that lie above the threshold.
        resamples: of the bootstrap.
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
    """What a network says of images.

    Args:
        said: the most active class, (N,).
        doubt: 1 less its activation, (N,).
        error: of the reconstruction, (N,).
        ink: the energy of the image, (N,).
    """

    said: Tensor
    doubt: Tensor
    error: Tensor
    ink: Tensor


@torch.no_grad()
def see(classifier: Classifier, pixels: Tensor) -> tuple[Seen, Tensor]:
    """What a network says of unprepared images (N, C, H, W) in [0, 1], and what it
    reconstructs of them.
    """
    parts, drawn = [], []
    for part in pixels.split(200):
        view = classifier.preprocess.evaluate(part.to(classifier.device))
        found = classifier.network(view.images)
        assert found.reconstruction is not None
        top = found.activation.max(1)
        error = reconstruction_error(view.pictures, found.reconstruction)
        parts.append(
            (
                top.indices,
                1 - top.values,
                error,
                view.pictures.flatten(1).square().sum(1),
            )
        )
        drawn.append(found.reconstruction.cpu())
    return Seen(
        *(torch.cat(one).double().cpu() for one in zip(*parts, strict=True))
    ), torch.cat(drawn)


def letters(image_shape: tuple[int, int, int]) -> Tensor:
    """Capitals that look like no digit, in the fonts of Matplotlib, turned by up to 10
    degrees, uint8 (N, C, H, W).

    They are brought to size as MNIST was made,
    :func:`~torchcaps_lab.data.handwriting.read_handwriting`.
    """
    from matplotlib import get_data_path
    from PIL import Image, ImageDraw, ImageFont

    names = ("DejaVuSans*", "DejaVuSerif*", "STIXGeneral*", "cm[brst]*10")
    files = sorted(
        file
        for name in names
        for file in Path(get_data_path(), "fonts/ttf").glob(f"{name}.ttf")
    )
    drawn = []
    for file in (
        file
        for file in files
        if "Display" not in file.name and file.stem not in ("cmsy10",)
    ):
        font = ImageFont.truetype(str(file), 80)
        for letter in "ACEFHJKMNPRTUVWXY":
            for angle in (-10, 0, 10):
                picture = Image.new("L", (160, 160), 255)
                ImageDraw.Draw(picture).text(
                    (80, 80), letter, fill=0, font=font, anchor="mm"
                )
                picture = picture.rotate(angle, Image.Resampling.BICUBIC, fillcolor=255)
                drawn.append(read_handwriting(picture, image_shape).values)
    return torch.stack(drawn)


def strangers_of(test: Examples, settings: StrangersSettings) -> dict[str, Tensor]:
    """Images of each kind, at most as many as are tested, float (N, C, H, W) in [0,
    1].
    """
    generator = torch.Generator().manual_seed(0)
    count, shape = settings.tested, test.raw_image_shape
    turned = test.inputs[
        (test.labels[:, None] == torch.tensor([3, 4, 7])).any(1)
    ].rot90(2, (2, 3))
    kinds = {
        OTHER: data_of(settings.strangers).test.inputs,
        NOISE: torch.randint(
            0, 256, (count, *shape), generator=generator, dtype=torch.uint8
        ),
        LETTERS: letters(shape),
        TURNED: turned,
    }
    chosen = {
        kind: torch.randperm(len(one), generator=generator)[:count].sort().values
        for kind, one in kinds.items()
    }
    return {kind: one[chosen[kind]].float() / 255 for kind, one in kinds.items()}


def interval(
    known: Tensor, strange: Tensor, false_alarms: float, resamples: int
) -> list[float]:
    """95 % of the shares of undetected strangers, in percent, over bootstrap samples of
    both kinds of images.
    """
    generator = torch.Generator().manual_seed(0)

    def again(scores: Tensor) -> Tensor:
        return scores[torch.randint(len(scores), scores.shape, generator=generator)]

    shares = [
        percent(again(strange) <= again(known).quantile(1 - false_alarms))
        for _ in range(resamples)
    ]
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
        for measure in MEASURES
        for row in FACTS["rows"]
    )
    settings: ClassVar = StrangersSettings

    def train(self, study: Study, row: str, stop_at: float | None) -> Trained:
        """Trains the network of a row, or opens that of the package."""
        if row not in PACKED:
            return super().train(study, row, stop_at)
        name, _ = PACKED[row]
        network = load_pretrained(name).to(study.lab.device)
        facts = {**facts_of_network(network, 0.0), "hardware": "none, of the package"}
        return Trained(
            network, {"model": type(network).__name__, "epochs": 0, **facts}, Path(name)
        )

    def begin(self, study: Study) -> tuple[Examples, dict[str, Tensor]]:
        """Known test images, and strangers; an error before any training if the library
        of attacks is missing.
        """
        import art.attacks.evasion  # noqa: F401

        test = data_of(study.settings.data).test
        return at_random(test, study.settings.tested), strangers_of(
            test, study.settings
        )

    def measure(
        self, study: Study, row: str, given: tuple[Examples, dict[str, Tensor]]
    ) -> dict[str, float]:
        """Shares of the strangers that are not told, beside what the activation of the
        winning class tells.
        """
        settings, (test, strangers) = study.settings, given
        classifier = study.trained[row].classifier
        _, share = PACKED.get(row, ("", None))
        data = data_of(
            {**settings.data, **({} if share is None else {"validation": share})}
        )
        seen = {kind: see(classifier, images)[0] for kind, images in strangers.items()}
        known, own = (
            see(classifier, one.inputs.float() / 255)[0]
            for one in (at_random(data.validation, settings.tested), test)
        )
        sample, attacked = self._attacked(study, row, test)
        pictures = {
            attack: see(classifier, images)[0] for attack, images in attacked.items()
        }
        limit, doubt = (
            one.quantile(1 - settings.false_alarms).item()
            for one in (known.error, known.doubt)
        )
        figures = {
            ERROR: percent(own.said != test.labels),
            FALSE: percent(own.error > limit),
            AUC: told_apart(own.error, seen[OTHER].error, limit).auc,
            AUC_ACTIVATION: told_apart(own.doubt, seen[OTHER].doubt, doubt).auc,
            INK: rank_correlation(known.error, known.ink),
            INK_SQUARES: rank_correlation(known.error * known.ink, known.ink),
        }
        for kind, one in seen.items():
            figures[UNDETECTED.format(kind)] = percent(one.error <= limit)
            figures[BY_ACTIVATION.format(kind)] = percent(one.doubt <= doubt)
        for attack, one in pictures.items():
            wrong = one.said != sample.labels
            figures[FOOLED.format(attack)] = percent(wrong)
            figures[UNDETECTED.format(attack)] = percent(wrong & (one.error <= limit))
            figures[BY_ACTIVATION.format(attack)] = percent(
                wrong & (one.doubt <= doubt)
            )
        spread = partial(
            interval, false_alarms=settings.false_alarms, resamples=settings.resamples
        )
        study.curves[row] = {
            "threshold": limit,
            "validation images": len(known.error),
            "images": {
                kind: len(one.error) for kind, one in {**seen, **pictures}.items()
            },
            "undetected, 95 %": {
                kind: spread(known.error, one.error) for kind, one in seen.items()
            },
            "undetected by the activation, 95 %": {
                kind: spread(known.doubt, one.doubt) for kind, one in seen.items()
            },
        }
        if row != TWIN and "images" not in study.pictures:
            shown = {"known": test.inputs.float() / 255, **strangers, **attacked}
            caption = self.captions["images"].format(row=row, limit=limit)
            study.pictures["images"] = _images(classifier, shown, limit, caption)
        return figures

    def _attacked(
        self, study: Study, row: str, test: Examples
    ) -> tuple[Sample, dict[str, Tensor]]:
        """Test images, and what the attacks make of them."""
        settings, classifier = study.settings, study.trained[row].classifier
        network, device = classifier.network, study.lab.device
        sample = draw_sample(test, classifier.preprocess, settings.attacked)
        scores = Scores(network, classifier.preprocess)
        attacker = Attacker(
            scores, network.image_shape, network.classes, settings.steps, 100, device
        )
        epsilon, pixels, labels = settings.epsilon, sample.pixels, sample.labels
        images = {
            attack: attacker.attacked(attack, epsilon, pixels, labels, False)
            for attack in (FGSM, BIM)
        }
        found = reconstructive(
            scores, pixels.to(device), labels.to(device), epsilon, settings.steps
        )
        return sample, {**images, KNOWING: found.cpu()}

    def finish(self, study: Study, given: Any) -> None:
        """Bars of the undetected strangers, by the error and by the activation."""
        figure = new_figure(10.0, 6.4)
        upper, lower = figure.subplots(2, 1, sharey=True)
        kinds = (*KINDS, *ATTACKS)
        for axes, how, title in (
            (upper, UNDETECTED, "by the reconstruction error"),
            (lower, BY_ACTIVATION, "by the activation of the winning class"),
        ):
            series = {
                row: [study.figures[row, how.format(kind)] for kind in kinds]
                for row in study.trained
            }
            bars_upwards(
                axes,
                [kind.replace("attack that", "attack\nthat") for kind in kinds],
                series,
                digits=1,
            )
            axes.set_title(
                f"undetected {title}, at {study.settings.false_alarms:.0%} false "
                "alarms",
                fontsize=11,
            )
            axes.set_ylabel("% of the images")
        figure.legend(
            *upper.get_legend_handles_labels(),
            loc="outside lower center",
            ncols=4,
            frameon=False,
        )
        study.pictures["undetected"] = Picture(figure, self.caption)


def rank_correlation(one: Tensor, other: Tensor) -> float:
    """Spearman's."""
    from scipy.stats import spearmanr

    return float(spearmanr(one.numpy(), other.numpy()).statistic)


def _images(
    classifier: Classifier, kinds: Mapping[str, Tensor], limit: float, caption: str
) -> Picture:
    """An image of each kind, what the winning class draws, and the difference."""
    cells: dict[str, list[Cell]] = {"image": [], "reconstruction": [], "difference": []}
    for kind, images in kinds.items():
        seen, drawn = see(classifier, images[:1])
        error, picture = (
            seen.error.item(),
            classifier.preprocess.evaluate(images[:1]).pictures[0, 0],
        )
        told, colour = (
            ("known", "black") if error <= limit else ("none of these", "tab:red")
        )
        name = kind.replace("attack that", "attack\nthat").replace("upside", "\nupside")
        cells["image"].append(Cell(picture, name))
        said = classifier.classes[int(seen.said)]
        cells["reconstruction"].append(Cell(drawn[0, 0], f"as a {said}"))
        cells["difference"].append(
            Cell((picture - drawn[0, 0]).abs(), f"{error:.2f}: {told}", colour)
        )
    return Picture(image_grid(cells, 1.3), caption)
