"""What to do next, as far as it is the same for any task: commands about a run, and
what curves and counts advise.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from torchcaps_lab.data.examples import Examples
from torchcaps_lab.evaluate.findings import Metrics
from torchcaps_lab.look import counted

LISTED = 10
"""Classes, or pairs of them, that are named."""

GOOD = 0.97
"""A share with which nothing more is advised."""

_TITLES = {"iou": "IoU", "dice": "Dice", "box_iou": "IoU of boxes"}
_FEW = 30  # test examples with fewer of which small differences mean nothing
_WEAK = 0.5  # a class that is found less well is named
_TRAIN = ["torchcaps", "train"]


class Hint(NamedTuple):
    """One piece of advice.

    Args:
        fact: what was measured.
        advice: what to do about it.
        option: what to type; empty if there is nothing to type.

    Example:
        >>> from torchcaps_lab.evaluate.hints import Hint
        >>> Hint(
        ...     "10 images of a class", "add images", option="--preprocess.shift 2"
        ... ).option
        '--preprocess.shift 2'
    """

    fact: str
    advice: str
    option: str = ""


def titled(measure: str) -> str:
    """The name of a measure for people."""
    return _TITLES.get(measure, measure.replace("_", " "))


class Commands(NamedTuple):
    """Commands about a run that can be typed as they are printed.

    Args:
        run: the folder of the run.
        train: the words that trained it, with another folder to write.

    Example:
        >>> from torchcaps_lab.evaluate.hints import Commands
        >>> run = {"run": "my runs/cats", "command": "torchcaps train cats --run r"}
        >>> Commands.of(run).about("predict", "a cat.jpg")
        "torchcaps predict 'my runs/cats' 'a cat.jpg'"
        >>> Commands.of(run).training()
        'torchcaps train cats'
    """

    run: str
    train: tuple[str, ...]

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> "Commands":
        """Find the commands of a run.

        Args:
            summary: what the run says of itself; may be empty.
        """
        run = str(summary.get("run", "RUN"))
        typed = str(summary.get("command", ""))
        by_command = typed.startswith(" ".join(_TRAIN))
        words = shlex.split(typed) if by_command else _TRAIN
        if "--resume" in words or (typed and not by_command):
            words = [*_TRAIN, "--config", f"{run}/config.yaml"]
        train = list(_without(words, "--run"))
        names_no_path = len(train) > 2 and train[2].startswith("-")
        return cls(run, (*train, *(("--run", f"{run}-2") if names_no_path else ())))

    def about(self, name: str, *words: str) -> str:
        """A command that takes the folder of the run first, and these words."""
        return shlex.join(["torchcaps", name, self.run, *words])

    def training(self) -> str:
        """The command that trains the same once more, into another folder."""
        return shlex.join(self.train)

    @property
    def of_training(self) -> bool:
        """Whether it is known how the network was trained."""
        return list(self.train) != _TRAIN


def _without(words: Sequence[str], option: str) -> Iterator[str]:
    """The words of a command without an option and its value."""
    skipped = False
    for word in words:
        if skipped:
            skipped = False
        elif word == option:
            skipped = True
        elif not word.startswith(f"{option}="):
            yield word


class Remedies(NamedTuple):
    """Options that help a network of some kind.

    Args:
        overfitting: against learning the training examples by heart; may be empty.
        underfitting: takes a network that can learn more; may be empty.
        extra: what to install before the first.
    """

    overfitting: str = ""
    underfitting: str = ""
    extra: str = ""


def _column(metrics: Metrics, name: str) -> list[float]:
    """The figures of that name, of the epochs that have one."""
    return [row[name] for row in metrics if row.get(name) is not None]


class MeasureHistory(NamedTuple):
    """How a measure went, of which more is better.

    Args:
        name: the name of the measure, for people.
        examples: what the examples are, such as "images".
        train: on training examples, epoch by epoch; may be empty.
        validation: on validation examples; may be empty.
        tested: on those that the report is about.
        used_train: on training examples in the epoch that is used; empty if not known.
        used_validation: likewise on validation examples.
    """

    name: str
    examples: str
    train: Sequence[float]
    validation: Sequence[float]
    tested: float
    used_train: Sequence[float] = ()
    used_validation: Sequence[float] = ()

    @classmethod
    def of(
        cls,
        measure: str,
        metrics: Metrics,
        tested: float,
        examples: str,
        summary: Mapping[str, Any],
    ) -> "MeasureHistory":
        """Read the history from a row an epoch, with ``train_<measure>`` and
        ``val_<measure>``, and from the summary which epoch is used.
        """
        train = _column(metrics, f"train_{measure}")
        validation = _column(metrics, f"val_{measure}")
        used = summary.get("used_epoch", {}).get("epoch", len(metrics))
        return cls(
            titled(measure),
            examples,
            train,
            validation,
            tested,
            _column(metrics[:used], f"train_{measure}")[-1:],
            _column(metrics[:used], f"val_{measure}")[-1:],
        )

    @property
    def last(self) -> float:
        """The figure of the last epoch on examples that were not trained on."""
        return self.validation[-1] if self.validation else self.tested

    @property
    def _figures_of_used_epoch(self) -> tuple[float, float]:
        """The figures of the epoch that is used on training examples and on others."""
        of_train = self.used_train or self.train
        others = self.used_validation or self.validation or [self.tested]
        return of_train[-1], others[-1]

    def hints(self, remedies: Remedies) -> Iterator[Hint]:
        """Learned by heart, not learned to the end, or turned back.

        Args:
            remedies: what helps such a network.
        """
        if not self.train:
            return
        if self._rises():
            yield self._rising()
        elif self._overfits():
            yield self._overfitted(remedies)
        elif self.train[-1] < 0.9:
            yield self._unfinished(remedies)
        yield from self._turned_back()

    def _rises(self) -> bool:
        if len(self.validation) <= 3:
            return False
        gain = self.last - self.validation[-4]
        return self.last == max(self.validation) and gain > 0.01 and self.last < GOOD

    def _rising(self) -> Hint:
        epochs = len(self.validation)
        return Hint(
            f"in the last 3 of {epochs} epochs, the {self.name} on the validation "
            f"{self.examples} rose from {self.validation[-4]:.1%} to {self.last:.1%}",
            "it was still improving: train longer",
            _longer(epochs),
        )

    def _overfits(self) -> bool:
        # It has not learned its training examples yet.
        if self.train[-1] < _WEAK:
            return False
        train, other = self._figures_of_used_epoch
        gap = train - other
        return gap > 0.1 or (gap > 0.04 and 1 - other > 2 * (1 - train))

    def _overfitted(self, remedies: Remedies) -> Hint:
        train, other = self._figures_of_used_epoch
        stronger = "use stronger augmentation, or " if remedies.overfitting else ""
        extra = f" ({remedies.extra} first)" if remedies.extra else ""
        return Hint(
            f"the {self.name} is {train:.1%} on the training {self.examples} and "
            f"{other:.1%} on others",
            f"it overfits its training {self.examples}: {stronger}add {self.examples}{extra}",
            remedies.overfitting,
        )

    def _unfinished(self, remedies: Remedies) -> Hint:
        epochs = len(self.train)
        rising = epochs < 4 or self.train[-1] - self.train[-4] > 0.01
        fact = (
            f"after {counted(epochs, 'epochs')} the {self.name} is "
            f"{self.train[-1]:.1%} on the training {self.examples}"
        )
        if rising or not remedies.underfitting:
            reason = "it was still improving: " if rising else ""
            return Hint(fact, f"{reason}train longer", _longer(epochs))
        wider = remedies.underfitting.startswith("--model_args")
        kind = "wider" if wider else "stronger"
        return Hint(
            fact,
            f"and it does not improve: use a {kind} network",
            remedies.underfitting,
        )

    def _turned_back(self) -> Iterator[Hint]:
        best = max(self.validation, default=0.0)
        epochs = len(self.validation)
        if epochs <= 4 or best - self._figures_of_used_epoch[1] <= 0.02:
            return
        at = self.validation.index(best)
        if at < 0.8 * epochs:
            yield Hint(
                f"epoch {1 + at} had {best:.1%} {self.name} on the validation "
                f"{self.examples}, the last one {self.last:.1%}",
                "keep the best epoch, and stop when it no longer improves",
                "--keep best --patience 10",
            )


def falling_loss(metrics: Metrics) -> Iterator[Hint]:
    """Hint that a loss was still falling, where a task measures no share of what is
    right.

    Args:
        metrics: rows with ``val_loss`` or ``train_loss``; may be empty.
    """
    for name, of in (("val_loss", "validation"), ("train_loss", "training")):
        losses = _column(metrics, name)
        if len(losses) > 6:
            before = fmean(losses[-6:-3])
            last = fmean(losses[-3:])
            if 0 < last < 0.98 * before:
                yield Hint(
                    f"in the last 6 of {len(losses)} epochs, the {of} loss fell from "
                    f"{before:.3g} to {last:.3g}",
                    "it was still improving: train longer",
                    _longer(len(losses)),
                )
            return


def weak_classes(
    shares: Mapping[str, float | None], measure: str, examples: str
) -> Iterator[Hint]:
    """Classes that are never found, and the one that is found least well.

    Args:
        shares: of each class, IoU or recall; None or NaN for one that is nowhere.
        measure: the name of these, for people.
        examples: what the examples are, such as "images".
    """
    measured = {
        name: share
        for name, share in shares.items()
        if share is not None and share == share
    }
    lost = [repr(name) for name, share in measured.items() if not share]
    if lost:
        yield Hint(
            f"never found: {listed(lost, ', ')}",
            f"look whether their labels are right, and add {examples} that show them",
        )
    weak = {name: share for name, share in measured.items() if 0 < share < _WEAK}
    if weak:
        name = min(weak, key=lambda name: weak[name])
        yield Hint(
            f"the {measure} of {name!r} is {weak[name]:.1%}",
            f"look whether its labels are right, and add {examples} that show it",
        )


def few_tested(images: Examples) -> Iterator[Hint]:
    """Hint that small differences mean nothing where there are few to test on.

    Args:
        images: the images that were tested on.
    """
    if len(images) < _FEW:
        yield Hint(
            counted(len(images), f"test {images.what}"),
            f"do not trust small differences between trainings, and add {images.what}",
        )


def listed(parts: Sequence[str], between: str = "; ") -> str:
    """The first of them, and how many there are more."""
    more = f" and {len(parts) - LISTED} more" if len(parts) > LISTED else ""
    return between.join(parts[:LISTED]) + more


def _longer(epochs: int) -> str:
    return f"--epochs {max(20, 2 * epochs)}"
