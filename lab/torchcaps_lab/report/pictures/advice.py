"""What to do next, from what was measured."""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from torchcaps_lab.data.image_set import ImageSet
from torchcaps_lab.data.picture import opened
from torchcaps_lab.report.exhibit import Exhibit, Table, register_exhibit
from torchcaps_lab.report.findings import Findings, confused_pairs
from torchcaps_lab.report.observe import Metrics, Tested

_PAIRS = 3
_MOST = 8
_GOOD = 0.97
_KORNIA = ("rotate", "randaugment", "erase")
_FORGET = "--model_args.dropout 0.7 --model_args.hidden_words 0.1"
_LOOKED_AT = 50  # files whose size is looked up


class Hint(NamedTuple):
    """One piece of advice.

    Args:
        fact: what was measured.
        advice: what to do about it.
        option: what to type; empty if there is nothing to type.

    Example:
        >>> from torchcaps_lab.report.pictures.advice import Hint
        >>> Hint("10 images of a class", "add images", option="--preprocess.shift 2").option
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
        >>> Advice(title="What to do", text="", hints=(Hint("few images", "augment"),)).hints[0].fact
        'few images'
    """

    hints: tuple[Hint, ...]

    @classmethod
    def of(cls, findings: Findings, images: ImageSet, summary: Mapping[str, Any], metrics: Metrics) -> "Advice":
        """Of images of one class each.

        Args:
            findings: about these images.
            images: that were tested on.
            summary: what the run says of itself; may be empty.
            metrics: rows with ``train_accuracy``, ``val_accuracy`` and the losses; may be empty.
        """
        found = chain(
            _majority(findings, images),
            _curves(findings, images, summary, metrics),
            _balance(findings, images),
            _confused(findings, images),
            _few(findings, images),
            _small(findings, images),
        )
        hints = tuple(found)[:_MOST] or tuple(_more(findings, images, summary, metrics))
        text = (
            "What was measured, what to do about it, and what to add to 'torchcaps train', the most pressing first. "
            "Try one thing at a time, and compare the accuracy on validation images: test images are for the end."
            if hints
            else "Nothing stands out: the network is good, its classes are balanced and it does not know its training "
            "images by heart. Use it: 'torchcaps predict RUN new.jpg'."
        )
        return cls(title="What to do next", text=text, hints=hints)

    @classmethod
    def of_test(cls, tested: Tested) -> "Iterator[Advice]":
        """Of what a classifier was tested on."""
        yield cls.of(tested.findings, tested.images, tested.summary, tested.metrics)

    def table(self) -> Table | None:
        """A row for each hint."""
        return Table([list(hint) for hint in self.hints], ["measured", "what to do", "type"]) if self.hints else None


def _majority(findings: Findings, images: ImageSet) -> Iterator[Hint]:
    label, share = findings.majority
    if share < 1 and findings.accuracy <= share + min(0.01, (1 - share) / 2):  # of images of one class it tells nothing
        yield Hint(
            f"{findings.accuracy:.1%} are right; saying {images.classes[label]!r} every time gets {share:.1%} right",
            "the network has learned nothing of use yet: train longer, with another learning rate",
            "--epochs 50 --optimizer.lr 3e-4",
        )


def _curves(findings: Findings, images: ImageSet, summary: Mapping[str, Any], metrics: Metrics) -> Iterator[Hint]:
    """Learned by heart, not learned to the end, or turned back."""
    train = [row["train_accuracy"] for row in metrics if "train_accuracy" in row]
    validation = [row["val_accuracy"] for row in metrics if "val_accuracy" in row]
    if not train:
        return
    seen = validation[-1] if validation else findings.accuracy
    gap = train[-1] - seen
    if len(validation) > 3 and seen == max(validation) and seen - validation[-4] > 0.01 and seen < _GOOD:
        yield Hint(
            f"in the last 3 of {len(validation)} epochs {validation[-4]:.1%} became {seen:.1%} of the validation "
            f"{images.what} right",
            "it was still getting better: train longer",
            f"--epochs {max(20, 2 * len(validation))}",
        )
    elif gap > 0.1 or (gap > 0.04 and 1 - seen > 2 * (1 - train[-1])):
        options = _augmentation(summary.get("preprocess", {})) if images.what == "images" else _FORGET
        extra = any(f".{name} " in options for name in _KORNIA)
        yield Hint(
            f"{train[-1]:.1%} of the training {images.what} are right, {seen:.1%} of others",
            f"it learns its {images.what} by heart: "
            + ("change them more, or " if options else "")
            + f"add {images.what}"
            + (" (pip install 'torchcaps-lab[augment]' first)" if extra else ""),
            options,
        )
    elif train[-1] < 0.9:
        yield _unfinished(train, images, summary)
    best = max(validation, default=0.0)
    if len(validation) > 4 and best - validation[-1] > 0.02 and validation.index(best) < 0.8 * len(validation):
        yield Hint(
            f"epoch {1 + validation.index(best)} had {best:.1%} of the validation {images.what} right, "
            f"the last {seen:.1%}",
            "keep the best epoch, and stop when it gets no better",
            "--keep best --stop early",
        )


def _augmentation(preprocess: Mapping[str, Any]) -> str:
    """Options that change images and are not used yet."""
    options = {"flip": "true", "shift": "2", "rotate": "15", "randaugment": "2", "erase": "0.25"}
    new = [f"--preprocess.{name} {value}" for name, value in options.items() if not preprocess.get(name)]
    return " ".join(new[:3])


def _more(findings: Findings, images: ImageSet, summary: Mapping[str, Any], metrics: Metrics) -> Iterator[Hint]:
    """Where nothing stands out, but not all is right."""
    if findings.accuracy >= _GOOD:
        return
    epochs = max(20, 2 * len(metrics))
    yield Hint(
        f"{findings.accuracy:.1%} are right, and no single reason stands out for the others",
        "look at the worst mistakes below; then train longer, with a larger network",
        f"--epochs {epochs} " + _larger(images, summary),
    )


def _larger(images: ImageSet, summary: Mapping[str, Any]) -> str:
    """The option that takes a network that can learn more."""
    model = summary.get("model", "")
    if model.startswith("capsnet_on_backbone"):
        return "--model_args.widths [64,128,256]"
    if model == "text_pooled":
        return "--model_args.types 30"
    return "--model " + ("capsnet_on_backbone" if images.what == "images" else "text_pooled")


def _unfinished(train: list[float], images: ImageSet, summary: Mapping[str, Any]) -> Hint:
    rising = len(train) < 4 or train[-1] - train[-4] > 0.01
    fact = f"after {len(train)} epoch{'s' * (len(train) > 1)} {train[-1]:.1%} of the training {images.what} are right"
    if rising:
        return Hint(fact, "it was still getting better: train longer", f"--epochs {max(20, 2 * len(train))}")
    option = _larger(images, summary)
    kind = "wider" if option.startswith("--model_args") else "stronger"
    return Hint(fact, f"and it gets no better: take a {kind} network", option)


def _balance(findings: Findings, images: ImageSet) -> Iterator[Hint]:
    counts = torch.bincount(findings.labels, minlength=len(images.classes))
    most, least = int(counts.argmax()), int(counts.where(counts > 0, len(findings.labels)).argmin())
    if missing := int((counts == 0).sum()):
        yield Hint(
            f"{missing} of {len(counts)} classes without test {images.what}",
            f"how good it is at them is not known: add {images.what} of each class",
        )
    if counts[most] > 3 * counts[least]:
        rare = f"{images.classes[least]!r} {int(counts[least])}"
        yield Hint(
            f"{images.classes[most]!r} has {int(counts[most])} {images.what}, {rare}",
            "rare classes count too little: weigh them, or show them more often",
            "--class_weights balanced",
        )


def _confused(findings: Findings, images: ImageSet) -> Iterator[Hint]:
    """The pairs of classes that are confused most often, of images enough to tell."""
    totals = torch.bincount(findings.labels, minlength=len(images.classes)).tolist()
    for true, said, count in confused_pairs(findings.confusion, _PAIRS):
        total = totals[true]
        if count >= 2 and count > 0.05 * total:
            names = repr(images.classes[true]), repr(images.classes[said])
            yield Hint(
                f"{count} of {total} {images.what} of {names[0]} were taken for {names[1]}",
                f"look at these mistakes for wrong labels; add {images.what} of {names[0]} and {names[1]} that show "
                "what is different",
            )


def _few(findings: Findings, images: ImageSet) -> Iterator[Hint]:
    number = len(findings.labels)
    spread = findings.interval
    if spread > 0.03:
        yield Hint(
            f"{number} test {images.what}: the accuracy is {findings.accuracy:.1%} give or take {spread:.1%}",
            f"do not trust smaller differences; add {images.what}",
        )


def _small(findings: Findings, images: ImageSet) -> Iterator[Hint]:
    """Photos that were made much smaller than they are, where there are mistakes to explain."""
    if images.files is None or findings.accuracy > 0.95:
        return
    side = min(images.image_shape[1:])
    sides = [size for file in images.files[:_LOOKED_AT] if (size := _smaller_side(file))]
    if sides and median(sides) > 2 * side and side <= 64:
        yield Hint(
            f"photos of {median(sides):.0f} pixels on the smaller side are made {side}: small things are blurred",
            "show the network larger images, for as many times the time",
            f"--data.size {2 * side}",
        )


def _smaller_side(file: str) -> int | None:
    """Of an image file, from its header alone; None if it is not there any more, or no image."""
    try:
        with opened(Path(file)) as image:
            return min(image.size)
    except (OSError, ValueError):
        return None
