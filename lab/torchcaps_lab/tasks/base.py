"""The interface of a task, which training, resuming, testing and predicting use."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from torchcaps.losses import ActivationLoss, ReconstructionLoss
from torchcaps.models import ClassifierNetwork, Prediction, Thing
from torchcaps.numerics import Progress
from torchcaps.spec import jsonable, package_of, plain
from torchcaps_lab.data import Batch, Examples
from torchcaps_lab.evaluate.calibration import Calibration
from torchcaps_lab.evaluate.findings import Metrics
from torchcaps_lab.kinds import SharedRegistry
from torchcaps_lab.report.cards import answer_card
from torchcaps_lab.report.exhibit import Exhibit
from torchcaps_lab.report.page import write_page

Forward = Callable[[Tensor, Tensor | None], Prediction]
"""A network in a training step: takes images and the classes to reconstruct, labels
(B,) or a mask (B, E), or None.
"""

Losses = tuple[Prediction, dict[str, Tensor]]
"""The prediction for a batch, and the parts of its loss by name, scalars, to be summed.
"""


class Criteria(NamedTuple):
    """The chosen losses.

    Attributes:
        loss: the loss of the class activations and their targets.
        reconstruction: of reconstructions and the original images.

    Example:
        >>> from torchcaps_lab.tasks import Criteria
        >>> criteria = Criteria(tc.MarginLoss(), tc.ReconstructionLoss(0.0005))
        >>> criteria.loss(torch.rand(4, 10), torch.tensor([3, 1, 4, 1])).shape
        torch.Size([])
    """

    loss: ActivationLoss
    reconstruction: ReconstructionLoss


@dataclass(frozen=True)
class Measure:
    """A measure of each image, such as the accuracy, which is averaged.

    Attributes:
        name: in lower case.
        higher_is_better: whether larger values are better.
        bounds: the range of its values; the worst of them cannot be an aim.
        percent: whether it is shown in percent.

    Example:
        >>> from torchcaps_lab.tasks import Measure
        >>> accuracy = Measure("accuracy")
        >>> accuracy.text(0.9912), accuracy.reached(0.9912, aim=0.99)
        ('99.12 %', True)
    """

    name: str = "accuracy"
    higher_is_better: bool = True
    bounds: tuple[float, float] = (0.0, 1.0)
    percent: bool = True

    def check_aim(self, aim: float) -> None:
        """Raises a `ValueError` unless a training can stop at this value of the
        measure.
        """
        low, high = self.bounds
        fits = low < aim <= high if self.higher_is_better else low <= aim < high
        if not fits:
            if self.higher_is_better:
                allowed = f"({low:g}, {high:g}]"
            else:
                allowed = f"[{low:g}, {high:g})"
            article = "an" if self.name[0] in "aeiou" else "a"
            raise ValueError(
                f"stop_at must be {article} {self.name} in {allowed}, got {aim}"
            )

    def reached(self, value: float, aim: float) -> bool:
        """Whether the value is as good as the aim, to the rounding of float32: 9 of 10
        are 0.9.
        """
        if math.isclose(value, aim, rel_tol=1e-6):
            return True
        return value > aim if self.higher_is_better else value < aim

    def text(self, value: float) -> str:
        """The value as text."""
        return f"{100 * value:.2f} %" if self.percent else f"{value:.4g}"


@dataclass(frozen=True, eq=False)
class Examination:
    """The results of testing a network on a set of images.

    Attributes:
        figures: numbers by name, those of the task's measures among them; kept in the
            summary of a run.
        details: other results, ready for JSON, by name.
        lines: the same for people, the most important one first.
        warnings: why the figures may not mean what they seem to.

    Example:
        >>> from torchcaps_lab.tasks import Classification
        >>> from torchcaps_lab.data import Digits
        >>> examination = Classification().examine(
        ...     tc.create_model("capsnet_digits"), Digits().test
        ... )
        >>> sorted(examination.figures)[:1]
        ['accuracy']
    """

    figures: Mapping[str, float]
    details: Mapping[str, Any] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class Answer:
    """The answer of a network for one image.

    Attributes:
        classes: the predicted ones, the most active first; exactly one in a
            classification.
        probabilities: the probabilities of all classes, by name, computed from the
            lengths and not calibrated: see :meth:`Task.answers`.
        lengths: the activation of each class: for capsules, the length or the
            activation from the routing.
        poses: the poses of each class capsule, (*pose); None for a network without
            capsules.
        calibrated: probabilities of all classes, by name, fitted on validation images
            to say how often the network is right, see
            :class:`~torchcaps_lab.evaluate.Calibration`; None if nothing was fitted.
        seen: how the picture was prepared, if that depends on the picture, as for
            handwriting; else empty.
        things: what is where of each of ``classes``, by name, as
            :class:`~torchcaps.models.Thing`: several of a class from networks with a
            capsule for each; boxes are left, top, right, bottom in pixels of the image
            as the network saw it. None if the network predicts no boxes.
        picture: the image as the network takes it, (C, H, W) in [0, 1]; None for a
            text.
        known: whether the image is of one of the classes at all, see
            :class:`~torchcaps_lab.tasks.doubt.Doubt`; None if nothing was fitted.
        strangeness: the share of the validation images that are less strange, from 0 to
            1; None as before.
        error: what the doubt goes by, such as
            :func:`~torchcaps_lab.report.reconstruction_error`; None as before.
        mask: the class of each pixel, int64 (H, W); None from networks that do not say.

    A notebook shows the picture, and a bar for each of the likeliest classes.

    Example:
        >>> from torchcaps_lab.tasks import Answer
        >>> answer = Answer(
        ...     ("cat",),
        ...     probabilities={"cat": 0.9, "dog": 0.1},
        ...     lengths={"cat": 0.8, "dog": 0.1},
        ... )
        >>> print(answer)
        cat (0.800)
        >>> answer.top(2)
        ('cat', 'dog')
    """

    classes: tuple[str, ...]
    probabilities: Mapping[str, float]
    lengths: Mapping[str, float]
    poses: Mapping[str, Tensor] | None = None
    calibrated: Mapping[str, float] | None = None
    seen: str = ""
    things: Mapping[str, Sequence[Thing]] | None = None
    picture: Tensor | None = None
    known: bool | None = None
    strangeness: float | None = None
    error: float | None = None
    mask: Tensor | None = None

    def top(self, count: int) -> tuple[str, ...]:
        """The names of the ``count`` most active classes, the most active first."""
        return tuple(sorted(self.lengths, key=lambda name: -self.lengths[name])[:count])

    def json(self) -> dict[str, Any]:
        """The answer, ready for JSON; with ``class`` and ``length`` if exactly one
        class is predicted.

        Numbers that are not finite are None.
        """
        if len(self.classes) == 1:
            only = {"class": self.classes[0], "length": self.lengths[self.classes[0]]}
        else:
            only = {}
        row = {**only, "classes": list(self.classes), "lengths": dict(self.lengths)}
        row["probabilities"] = dict(self.probabilities)
        if self.calibrated is not None:
            row["calibrated"] = dict(self.calibrated)
        if self.known is not None:
            row |= {
                "known": self.known,
                "strangeness": self.strangeness,
                "error": self.error,
            }
        if self.seen:
            row["seen"] = self.seen
        if self.poses is not None:
            row["poses"] = {name: pose.tolist() for name, pose in self.poses.items()}
        if self.things is not None:
            row["things"] = {
                name: list(map(_thing_row, things))
                for name, things in self.things.items()
            }
        return jsonable(row)

    def counted(self, name: str) -> str:
        """The name of a class, and how many things of it there are, if it is more than
        one: ``2 x cat``.
        """
        count = 1 if self.things is None else len(self.things.get(name, ()))
        return f"{count} x {name}" if count > 1 else name

    def __str__(self) -> str:
        names = [
            f"{self.counted(name)} ({self.lengths[name]:.3f})" for name in self.classes
        ]
        return self.doubted(", ".join(names) or "nothing")

    def doubted(self, statement: str) -> str:
        """What is said of an image; of one that is not known, that it is none of
        these.
        """
        if self.known is False:
            return f"none of these, at best {statement}"
        return statement

    def __repr__(self) -> str:
        return f"<Answer: {self}>"

    def _repr_html_(self) -> str:
        shares = self.probabilities
        description = "not calibrated"
        if self.calibrated is not None:
            shares = self.calibrated
            description = "calibrated probabilities"
        return answer_card(str(self), shares, description, self.picture, self.seen)


def _thing_row(thing: Thing) -> dict[str, Any]:
    pose = {} if thing.pose is None else {"pose": thing.pose.tolist()}
    return {"length": thing.activation, "box": thing.box.tolist(), **pose}


class Task(ABC):
    """The purpose of a network: its targets, loss, measures, evaluation and answers.

    A new task is one file: a subclass under ``@register_task(name)`` that implements

    - :meth:`check`: which targets it takes,
    - :meth:`loss`: the prediction for a batch, and the parts of the loss,
    - :attr:`measures` and :meth:`measure`: what is measured for each image and logged
      beside the loss; the first measure, on validation images, judges a training, and
      ``--stop_at`` refers to it,
    - :meth:`examine`: the evaluation of a trained network,
    - :meth:`answers`: predictions for people,
    - :meth:`exhibits`: what its report shows, if it has one,
    - :meth:`drawings`: what is written beside an answer, if there is anything to draw.

    Keep constructor arguments as attributes of the same names: :meth:`config` saves
    them with a network.

    Example:
        >>> from torchcaps_lab.tasks import Classification, Measure, Task
        >>> class Cautious(Classification):
        ...     measures = (Measure("accuracy"),)
        >>> isinstance(Cautious(), Task), Cautious().main.name
        (True, 'accuracy')
    """

    name: ClassVar[str]
    """Set by :func:`register_task`."""

    measures: ClassVar[tuple[Measure, ...]] = (Measure(),)

    probability: ClassVar[str] = "computed by the task from the activation of the class"
    """The meaning of :attr:`Answer.probabilities`, in a few words."""

    length: ClassVar[str] = (
        "of its capsule, near 0 if the class is absent and near 1 if it is present, "
        "whatever the other classes are; not a probability"
    )
    """The meaning of :attr:`Answer.lengths`, in a few words."""

    doubts: ClassVar[tuple[str, ...]] = ()
    """The registered names of the :class:`~torchcaps_lab.tasks.doubt.Doubt` that suit
    its answers.
    """

    explores: ClassVar[bool] = False
    """Whether ``torchcaps explore`` shows what :meth:`explored` makes of an image, in
    place of classes.
    """

    @property
    def main(self) -> Measure:
        """Return the measure that judges a training."""
        return self.measures[0]

    def advance(self, progress: Progress) -> None:  # noqa: B027
        """Told how far a training has come, before each epoch; most tasks ignore it."""

    @classmethod
    def guess(cls, data: Any, given: Mapping[str, Any]) -> Any:
        """Options of a training on these data for this task, a ``Guess``; None, as here,
        if what they hold decides.

        Args:
            data: the path of a file or a folder; or what a program has.
            given: options that were given beside it.
        """
        return None

    @abstractmethod
    def check(self, images: Examples) -> None:
        """Raise a `ValueError` if the targets of these images do not suit the task."""

    @abstractmethod
    def loss(
        self,
        network: ClassifierNetwork,
        forward: Forward,
        batch: Batch,
        criteria: Criteria,
    ) -> Losses:
        """Return the prediction for a batch, and its loss.

        Args:
            network: for what ``forward`` does not return; in training mode or not.
            forward: runs the network, compiled if that was chosen.
            batch: the batch of prepared images.
            criteria: the losses that were chosen.

        Returns:
            The prediction, and the parts of the loss by name, scalars, to be summed.
        """

    @abstractmethod
    def measure(self, prediction: Prediction, batch: Batch) -> dict[str, Tensor]:
        """Return the :attr:`measures` of each image by name, each (B,); the log has
        their mean over an epoch.
        """

    @abstractmethod
    def examine(
        self, network: ClassifierNetwork, images: Examples, batch_size: int = 128
    ) -> Examination:
        """Test a network on images, ``batch_size`` at a time; its training mode is
        restored.

        Raises:
            ValueError: if there are no images, or they do not fit the network or the
                task.
        """

    @abstractmethod
    def answers(self, prediction: Prediction, classes: Sequence[str]) -> list[Answer]:
        """Return the answer for each image of a prediction; the docstring defines the
        probabilities.
        """

    def drawings(
        self, answer: Answer, picture: Tensor, classes: Sequence[str]
    ) -> dict[str, bytes]:
        """What is written beside an answer: files by the ends of their names.

        Args:
            answer: the answer for one input.
            picture: the input as a picture, (C, H, W) in [0, 1].
            classes: the names of all classes.

        Returns:
            Nothing, as here, if the task has nothing to draw.
        """
        return {}

    def explored(
        self, network: ClassifierNetwork, image: Tensor, picture: Tensor
    ) -> Exhibit:
        """Return what the page of ``torchcaps explore`` shows of an image, if the task
        :attr:`explores`.

        Args:
            network: in training mode or not.
            image: prepared for it, (1, C, H, W).
            picture: the image to show, (C, H, W) in [0, 1].
        """
        raise NotImplementedError(f"task {self.name!r} shows classes")

    def calibrate(
        self, network: ClassifierNetwork, images: Examples
    ) -> Calibration | None:
        """Fit the map from activations to probabilities, on images that the network was
        not trained on.

        It is saved with the network; predictions and the report use it. None, as here,
        if the task has no calibration, or there are too few images.
        """
        return None

    def report(
        self,
        folder: Path,
        network: ClassifierNetwork,
        images: Examples,
        summary: dict[str, Any],
        metrics: Sequence[dict[str, float]],
    ) -> Path | None:
        """Write a page of the :meth:`exhibits` into ``folder / "report"`` and return its
        path; None if the task has none.
        """
        exhibits = self.exhibits(network, images, summary, metrics)
        return None if exhibits is None else write_page(folder, filter(None, exhibits))

    def exhibits(
        self,
        network: ClassifierNetwork,
        images: Examples,
        summary: Mapping[str, Any],
        metrics: Metrics,
    ) -> Iterable[Exhibit | None] | None:
        """Return what the report of a run shows, in its order.

        Args:
            network: the trained network.
            images: the examples to test it on, prepared for it.
            summary: what the run says of itself.
            metrics: the rows of the log, for learning curves.

        Returns:
            Exhibits, with None for what there is nothing to show of; None, as here, if
            the task has no report.
        """
        return None

    def config(self) -> dict[str, Any]:
        """Return the name and the constructor's arguments, ready for JSON;
        :func:`as_task` takes them back.
        """
        return {**plain(self), "name": self.name}

    def saved(self) -> dict[str, Any]:
        """The :meth:`config` and, for a task from outside this package, the module that
        defines it, as ``import``.
        """
        module = type(self).__module__
        importable = package_of(module) in (package_of(__name__), "__main__")
        return self.config() if importable else {**self.config(), "import": module}


TASKS = SharedRegistry("task", Task)
"""The tasks that :func:`create_task` knows."""


register_task = TASKS.register
"""Register a task for :func:`create_task`, as a class decorator; a `ValueError` if the
name is taken.
"""


def list_tasks() -> list[str]:
    """The names that :func:`create_task` knows."""
    return sorted(TASKS)


def create_task(name: str, **arguments: Any) -> Task:
    """A task by name.

    Raises:
        ValueError: if there is no task of that name.
        TypeError: if it does not take these arguments.
    """
    return TASKS.find(name)(**arguments)


def as_task(task: "Task | str | Mapping[str, Any]") -> Task:
    """A task, its name, or its name and arguments, as a task.

    Raises:
        ValueError: if there is no task of that name.
        TypeError: if it does not take these arguments.
    """
    if isinstance(task, Task):
        return task
    arguments = {"name": task} if isinstance(task, str) else dict(task)
    name = arguments.pop("name")
    module = arguments.pop("import", None)
    if name not in TASKS and module is not None:
        raise ValueError(
            f"task {name!r} is not known: import the module that defines it "
            f"({module}) first, on the command line with "
            f"--import {module}; known are {', '.join(list_tasks())}"
        )
    return create_task(name, **arguments)
