"""What to do next about a classifier, from what was measured."""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import torch

from torchcaps.models.backbone import TIMM
from torchcaps.models.base import ClassifierNetwork
from torchcaps_lab.data.base import DataSet
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.reader import READERS
from torchcaps_lab.evaluate.findings import Findings, Metrics, confused_pairs
from torchcaps_lab.evaluate.hints import (
    GOOD,
    Commands,
    Hint,
    MeasureHistory,
    Remedies,
    listed,
)
from torchcaps_lab.look import counted

_FOLDERS = 3  # folders in a command
_TOO_FEW = 10  # training images of a class
# Likewise: from scratch, 5,000 of each of five classes reach what 100 do on ImageNet's
# features
_PHOTOS = 1000
_KORNIA = ("rotate", "zoom", "randaugment")
_LOOKED_AT = 50  # files whose size is looked up


def classifier_hints(
    findings: Findings,
    images: Examples,
    summary: Mapping[str, Any],
    metrics: Metrics,
    model: ClassifierNetwork | None,
) -> tuple[Hint, ...]:
    """Return advice about a classifier, the most pressing first.

    Args:
        findings: the findings about the images.
        images: the images that were tested on, of one class each.
        summary: the summary of the run, with ``train_per_class``, the number of images
            of each class; may be empty.
        metrics: rows with ``train_accuracy``, ``val_accuracy`` and the losses; may be
            empty.
        model: the network; None where it is not known.
    """
    commands = Commands.of(summary)
    timm = str(getattr(model, "backbone", "")).startswith(TIMM)
    history = MeasureHistory.of(
        "accuracy", metrics, findings.accuracy, images.what, summary
    )
    hints = chain(
        _majority(findings, images),
        _pretrained(findings, images, summary, timm),
        history.hints(_remedies(images, summary)),
        _confused(findings, images, commands),
        _balance(findings, images, summary),
        _few(findings, images),
        _small(findings, images),
    )
    return tuple(hints) or tuple(_no_single_cause(findings, images, summary, metrics))


def _majority(findings: Findings, images: Examples) -> Iterator[Hint]:
    label, share = findings.majority
    # Of images of one class it tells nothing.
    if share < 1 and findings.accuracy <= share + min(0.01, (1 - share) / 2):
        yield Hint(
            f"{findings.accuracy:.1%} are right, while answering "
            f"{images.classes[label]!r} every time gets {share:.1%} right",
            "the network has learned nothing useful yet: train longer, with another "
            "learning rate",
            "--epochs 50 --optimizer.lr 3e-4",
        )


def _remedies(images: Examples, summary: Mapping[str, Any]) -> Remedies:
    """Options for a classifier of such images."""
    options = images.against_overfitting(summary.get("preprocess", {}))
    needs_kornia = any(f".{name} " in options for name in _KORNIA)
    extra = "pip install 'torchcaps-lab[augment]'" if needs_kornia else ""
    return Remedies(options, _larger(images, summary), extra)


def _no_single_cause(
    findings: Findings, images: Examples, summary: Mapping[str, Any], metrics: Metrics
) -> Iterator[Hint]:
    """Where nothing stands out, but not all is right."""
    if findings.accuracy >= GOOD:
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


def _pretrained(
    findings: Findings, images: Examples, summary: Mapping[str, Any], timm: bool
) -> Iterator[Hint]:
    """Photos that are too few to learn from them alone what photos look like."""
    counts = summary.get("train_per_class", {}).values()
    options = images.pretrained()
    if not counts or timm or not options or findings.accuracy >= GOOD:
        return
    each = sum(counts) / len(counts)
    if each < _PHOTOS:
        yield Hint(
            f"{each:.0f} training photos in each class on average, and a network "
            "without pretraining",
            "start from a backbone trained on millions of photos (pip install "
            "'torchcaps[photos]' first): 'torchcaps train FOLDER' chooses one with "
            "all its settings, or",
            options,
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
    few = {name: count for name, count in counts.items() if count < _TOO_FEW}
    if few:
        (name, count), *others = few.items()
        more = [f"{other!r} {fewer}" for other, fewer in others]
        yield Hint(
            listed([f"{name!r} has {count} training {images.what}", *more], ", "),
            "too few to learn a class, whatever their weight: collect at least "
            f"{_TOO_FEW}, better 50",
        )
    enough = [(count, name) for name, count in counts.items() if count >= _TOO_FEW]
    if enough:
        (least, rare), (most, common) = min(enough), max(enough)
        if most > 3 * least:
            yield Hint(
                f"{common!r} has {most:,} training {images.what}, {rare!r} {least:,}",
                "rare classes count too little: weight them, or show them more often",
                "--class_weights balanced",
            )


def _confused(
    findings: Findings, images: Examples, commands: Commands
) -> Iterator[Hint]:
    """Classes that are never recognised, and all that are often confused, of images
    enough to tell.
    """
    totals = findings.confusion.sum(1).tolist()
    right = findings.confusion.diag().tolist()
    lost = [label for label, total in enumerate(totals) if total and not right[label]]
    if lost:
        yield Hint(
            "none right: "
            f"{listed([f'{images.classes[label]!r} 0 of {totals[label]}' for label in lost])}",
            f"look at the predicted classes of these, and add {images.what} of them",
            _showing(findings, images, lost, commands),
        )
    main = [
        (true, predicted, count)
        for true, predicted, count in confused_pairs(
            findings.confusion, len(totals) ** 2
        )
        if count >= 2 and count > 0.05 * totals[true]
    ]
    if main:
        names = images.classes
        confusions = [
            f"{count} of {totals[true]} of {names[true]!r} for {names[predicted]!r}"
            for true, predicted, count in main
        ]
        yield Hint(
            f"confused with each other: {listed(confusions)}",
            f"check these mistakes for wrong labels, and add {images.what} that show "
            "the difference",
            _showing(findings, images, [true for true, *_ in main], commands),
        )


def _showing(
    findings: Findings, images: Examples, labels: list[int], commands: Commands
) -> str:
    """The command that shows what images of some classes were taken for."""
    first = [
        int((findings.labels == label).nonzero()[0]) for label in dict.fromkeys(labels)
    ]
    folders = images.folders(first)
    if not folders:
        return commands.about("explain", "--split", "validation")
    return commands.about("predict", *folders[:_FOLDERS])


def _few(findings: Findings, images: Examples) -> Iterator[Hint]:
    number = len(findings.labels)
    spread = findings.interval
    if spread > 0.03:
        yield Hint(
            f"{counted(number, f'test {images.what}')}: the accuracy is {findings.accuracy:.1%} ± "
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
    usual: Any = READERS.find(DataSet.reads)
    looked_at = map(usual.smaller_side, map(Path, images.files[:_LOOKED_AT]))
    sides = [pixels for pixels in looked_at if pixels]
    if sides and median(sides) > 2 * side and side <= 64:
        yield Hint(
            f"photos with {median(sides):.0f} pixels on the smaller side are reduced "
            f"to {side}: small things are blurred",
            "show the network larger images, which takes longer in proportion",
            f"--data.size {2 * side}",
        )
