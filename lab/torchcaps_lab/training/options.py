"""The options of ``torchcaps train``: what is trained, how it is optimised, for how
long, and where.
"""

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, SequentialLR

# The names of ActivationLoss, Routing, DataSet and Preprocess give the hints of the
# declared options their meaning: dataclass looks them up in this module.
from torchcaps.losses import ActivationLoss  # noqa: F401
from torchcaps.models import ClassifierNetwork, create_model, list_models
from torchcaps.models.outline import outlined
from torchcaps.models.registry import MODELS, taken_by
from torchcaps.numerics import NotNegative
from torchcaps.routing import Routing  # noqa: F401
from torchcaps.spec import Registry, Within, check
from torchcaps_lab.data import DataSet, Examples, Preprocess  # noqa: F401
from torchcaps_lab.data.classes import places_of
from torchcaps_lab.options import declarations
from torchcaps_lab.options.declarations import TrainerOptions
from torchcaps_lab.tasks import Task, as_task
from torchcaps_lab.training.speed import Speed
from torchcaps_lab.training.start import start_from

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback

OPTIMIZERS = Registry("optimizer", torch.optim.Optimizer, factory=True)
SCHEDULERS = Registry("scheduler", LRScheduler, factory=True)

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
SchedulerFactory = Callable[
    [torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler
]


def one_class_each(images: Examples, option: str) -> Tensor:
    """The labels of images, int64 (N,); a `ValueError` that names the option if they
    are masks.
    """
    if images.labels.ndim != 1:
        raise ValueError(
            f"{option} cannot be balanced where images have several classes: leave it "
            "at its default"
        )
    return images.labels


def weights_of(
    by_class: Mapping[str, float] | Sequence[float], classes: Sequence[str]
) -> Tensor:
    """Return the weight of each class.

    Args:
        by_class: numbers in the order of the classes; or by the names of classes, or by
            their numbers from 0 where these are no names; classes that are not named
            have the weight 1.
        classes: their names.

    Returns:
        float32 (E,).

    Raises:
        ValueError: a class is unknown or named twice, there is not one number for each,
            or a weight is negative, not finite, or all of them are 0.

    Example:
        >>> from torchcaps_lab.training.options import weights_of
        >>> weights_of({"dog": 3}, ("cat", "dog")), weights_of({"1": 3}, ("cat", "dog"))
        (tensor([1., 3.]), tensor([1., 3.]))
    """
    if not isinstance(by_class, Mapping):
        if len(by_class) != len(classes):
            raise ValueError(
                f"class_weights must be {len(classes)} numbers, one a class, got "
                f"{len(by_class)}"
            )
        by_class = dict(zip(classes, by_class, strict=True))
    numbers = {str(number): name for number, name in enumerate(classes)}
    named = [
        key if key in classes else numbers.get(key, key) for key in map(str, by_class)
    ]
    places = places_of(named, classes, "class_weights")
    if len({*places}) < len(places):
        raise ValueError(
            f"class_weights must have one number a class, got {dict(by_class)}"
        )
    weights = torch.ones(len(classes))
    weights[places] = torch.tensor([*by_class.values()], dtype=torch.float32)
    if not weights.isfinite().all() or (weights < 0).any() or not weights.any():
        raise ValueError(
            f"class_weights must be 0 or more, finite, and not all 0, got {dict(by_class)}"
        )
    return weights


@dataclass(kw_only=True)
class Subject(declarations.SubjectOptions):
    """The network, its data and its task, as objects.

    Example:
        >>> from torchcaps_lab.data import Digits
        >>> from torchcaps_lab.training.options import Subject
        >>> subject = Subject(data=Digits(), model="capsnet_digits")
        >>> subject.network(seed=0)(torch.rand(2, 1, 8, 8)).activation.shape
        torch.Size([2, 10])
    """

    def purpose(self) -> Task:
        """The chosen task, or that of the data set.

        Raises:
            ValueError: if there is no such task, or the images do not have its targets.
        """
        task = as_task(self.data.default_task() if self.task is None else self.task)
        task.check(self.data.train)
        return task

    @property
    def architecture(self) -> str:
        """The name of the chosen network, or of the default of the data set."""
        return self.data.default_model() if self.model is None else self.model

    def network(
        self, seed: int, trained: bool = False, notes: list[str] | None = None
    ) -> ClassifierNetwork:
        """The network, with initial weights that depend only on the seed, and on what it
        starts from.

        Args:
            seed: the seed of the weights.
            trained: whether all weights come from a checkpoint: files of first ones
                need not be there any more.
            notes: takes a line on the weights that it starts from.

        Raises:
            ValueError: if arguments do not fit each other or the images.
        """
        arguments = self._arguments(trained)
        torch.manual_seed(seed)
        network = create_model(self.architecture, **arguments)
        if trained:
            return network
        self.data.begin(network)
        if self.start is not None:

            def one_more(argument: str) -> ClassifierNetwork:
                return self.outline(**{argument: getattr(network, argument) + 1})

            line = start_from(network, self.start, self.data.named_rows, one_more)
            if notes is not None:
                notes.append(line)
        return network

    def outline(self, **arguments: Any) -> ClassifierNetwork:
        """The network without memory for its numbers: the shapes of its weights.

        Args:
            arguments: the arguments of the network, in place of the chosen ones.

        Raises:
            ValueError: if arguments do not fit each other or the images.
        """
        chosen = copy.deepcopy({**self._arguments(trained=True), **arguments})
        return outlined(partial(create_model, self.architecture, **chosen))

    def _arguments(self, trained: bool) -> dict[str, Any]:
        """The arguments of the network; a `ValueError` if it or its routing does not
        fit.
        """
        if self.routing is not None and not self.routing.trainable:
            raise ValueError(
                "routing must have gradients to train with, got "
                f"{type(self.routing).__name__}"
            )
        gives = self.data.gives
        if taken_by(self.architecture) != gives:
            raise ValueError(
                f"{self.architecture} takes no {gives}; model must be one of "
                f"{', '.join(list_models(takes=gives))}"
            )
        classes = len(self.data.classes)
        chosen = {**(self.model_args or {})}
        for name in ("classes", "num_classes"):
            if chosen.setdefault(name, classes) != classes:
                raise ValueError(
                    f"model_args.{name} must be {classes}, as many as the data have, "
                    f"got {chosen[name]!r}: leave it out"
                )
        del chosen["num_classes"]
        arguments = {**self.data.arguments(self.preprocess), **chosen}
        if self.routing is not None:
            arguments["routing"] = self.routing
        if trained and self.architecture in MODELS:
            arguments |= dict.fromkeys(
                arguments.keys() & set(MODELS[self.architecture].network.outside)
            )
        return arguments


@dataclass(kw_only=True)
class Optimisation(declarations.OptimisationOptions):
    """The losses, the optimizer and the schedule of its learning rate, as objects.

    Raises:
        ValueError: if ``reconstruction`` is negative or not finite, or ``lr`` is not
            above 0.

    Example:
        >>> from torchcaps_lab.training.options import Optimisation
        >>> type(Optimisation(optimizer=torch.optim.Adam).loss).__name__
        'MarginLoss'
    """

    def __post_init__(self) -> None:
        check(NotNegative, self.reconstruction, "reconstruction")
        if self.lr in (None, "find"):
            return
        Within(0, open=True).check("lr", self.lr)
        self.optimizer = partial(cast(Any, self.optimizer), lr=self.lr)
        if "max_lr" in getattr(self.scheduler, "keywords", {}):
            self.scheduler = partial(cast(Any, self.scheduler), max_lr=self.lr)

    def weigh(self, images: Examples) -> None:
        """Gives the loss the weights of the classes in the training images, if
        ``class_weights`` is set.

        Raises:
            ValueError: if the loss takes no weights, or the images have masks of
                several classes.
        """
        if self.class_weights is None:
            return
        counts = torch.bincount(
            one_class_each(images, "class_weights").cpu(), minlength=len(images.classes)
        )
        if self.class_weights == "balanced":
            weights = len(images) / (int((counts > 0).sum()) * counts.clamp_min(1))
        else:
            weights = weights_of(self.class_weights, images.classes)
        self.loss.weigh(weights.where(counts > 0, 0.0))

    @property
    def spans_all_steps(self) -> bool:
        """Whether the scheduler needs the number of steps."""
        arguments = getattr(self.scheduler, "keywords", {})
        return (
            "total_steps" in arguments
            and arguments["total_steps"] is None
            and arguments.get("epochs") is None
        )

    def scheduled(
        self, optimizer: torch.optim.Optimizer, steps: float, epochs: int
    ) -> dict[str, Any]:
        """The scheduler of a training, and whether it steps each epoch or each step, as
        Lightning takes them.

        Args:
            optimizer: the optimizer whose learning rate it sets.
            steps: the number of steps of the training.
            epochs: the number of epochs of the training.

        Raises:
            ValueError: if it ends before the training does.
        """
        if self.spans_all_steps:
            return {
                "scheduler": cast(Any, self.scheduler)(
                    optimizer, total_steps=int(steps)
                ),
                "interval": "step",
            }
        scheduler = cast(SchedulerFactory, self.scheduler)(optimizer)
        if self.scheduler_interval == "step":
            each, wanted = ("", steps)
        else:
            each, wanted = (", one an epoch", epochs)
        total = _last_step(scheduler)
        if total is not None and total < wanted:
            more = (
                f"its total_steps must be {wanted} or more; left out, it spans "
                "all steps of the training"
            )
            raise ValueError(
                f"scheduler {type(scheduler).__name__} ends after {total} "
                f"steps{each}, and the training has {wanted}: "
                f"{more if hasattr(scheduler, 'total_steps') else 'its parts must take more'}"
            )
        return {"scheduler": scheduler, "interval": self.scheduler_interval}


def _last_step(scheduler: Any) -> int | None:
    """The step after which a scheduler, or one that it is made of, raises an error;
    None if there is none.
    """
    # Each part takes the steps from one milestone to the next.
    if isinstance(scheduler, SequentialLR):
        milestones = scheduler._milestones
        parts = zip(
            scheduler._schedulers,
            [0, *milestones],
            [*milestones, math.inf],
            strict=True,
        )
    elif isinstance(scheduler, ChainedScheduler):
        parts = zip(scheduler._schedulers, repeat(0), repeat(math.inf))
    else:
        return getattr(scheduler, "total_steps", None)
    ends = ((_last_step(part), begin, end) for part, begin, end in parts)
    return min(
        (
            begin + last
            for last, begin, end in ends
            if last is not None and begin + last + 1 < end
        ),
        default=None,
    )


def averaging(options: TrainerOptions) -> "list[Callback]":
    """The callback that averages the weights, if the options want it."""
    if options.average is None:
        return []
    from lightning.pytorch.callbacks import WeightAveraging

    return [WeightAveraging(avg_fn=moving_average(options.average))]


def moving_average(decay: float) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    r"""An exponential moving average that soon forgets where it began.

    .. math:: m_n = d_n m_{n-1} + (1 - d_n) x_n, \qquad d_n = \min\big(d, \tfrac{1 + n}{10 + n}\big)

    With d alone, running variances would keep a share :math:`d^n` of their first value,
    1, which may be larger than all that comes after it.

    Args:
        decay: d, between 0 and 1.

    Returns:
        A function of the average so far, the new value and n, as
        :class:`torch.optim.swa_utils.AveragedModel` takes.

    Source: ``tf.train.ExponentialMovingAverage`` of TensorFlow, with its
    ``num_updates``.
    """
    return lambda average, new, n: (
        average + (new - average) * (9 / (10 + n)).clamp_min(1 - decay)
    )


@dataclass(kw_only=True)
class Running(declarations.RunningOptions):
    """Where and how a training runs, as objects."""

    speed: Speed = field(default_factory=Speed)


@dataclass(frozen=True, kw_only=True)
class Caller:
    """How the training was started, and what it shows.

    Attributes:
        options: the options of the training by name, as plain values: kept in a new
            folder, and in checkpoints.
        command: how this was started, for the summary.
        progress_bar: whether a line, rewritten in place, says how far it is: for
            terminals and notebooks.
        show: takes lines of text; None for silence.
        header: whether it is told what is trained, before the first epoch, and how long
            that will take.
        allow_changes: whether a run may be resumed with other options or images than it
            was started with.
        callbacks: the callbacks of Lightning, besides those of the training.

    Example:
        >>> from torchcaps_lab.training.options import Caller
        >>> Caller(show=print).progress_bar
        False
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    progress_bar: bool = False
    show: Callable[[str], None] | None = None
    header: bool = False
    allow_changes: bool = False
    callbacks: "Sequence[Callback]" = ()
