"""The options of ``torchcaps train``: what is trained, how it is optimised, for how
long, and where.
"""

import copy
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, SequentialLR

from torchcaps.losses import ActivationLoss, MarginLoss
from torchcaps.models import ClassifierNetwork, create_model, list_models
from torchcaps.models.registry import MODELS
from torchcaps.numerics import check_finite, check_size
from torchcaps.routing import Routing
from torchcaps.spec import Registry, Within
from torchcaps_lab.data import DataSet, Examples, Preprocess
from torchcaps_lab.data.classes import places_of
from torchcaps_lab.tasks import Task, as_task
from torchcaps_lab.training.speed import Speed

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback

OURS = {
    "max_epochs": "epochs",
    "limit_val_batches": "data.validation",
    **dict.fromkeys(
        (
            "callbacks",
            "logger",
            "plugins",
            "enable_progress_bar",
            "enable_model_summary",
            "inference_mode",
            "num_sanity_val_steps",
            "use_distributed_sampler",
            "enable_checkpointing",
        ),
        "",
    ),
}
"""Arguments of Lightning's Trainer that :func:`torchcaps_lab.training.fit` sets, and
the options they come from.
"""

OPTIMIZERS = Registry("optimizer", torch.optim.Optimizer, factory=True)
SCHEDULERS = Registry("scheduler", LRScheduler, factory=True)

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
SamplerName = Literal["shuffled", "balanced"]
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
class Subject:
    """The network, its data and its task.

    Attributes:
        data: the data set: Digits, MNIST, FashionMNIST, ImageFolder, or any other
            DataSet.
        task: the task of the network: Classification, SeveralLabels, any other Task, or
            its name; default: that of the data set.
        model: the name of a network, listed by 'torchcaps models'; default: that of the
            data set, and capsnet for images.
        model_args: arguments of the network that replace its defaults.
        routing: the routing of the class capsules; default: the network's own.
        preprocess: the preparation of images, at random in training; it is saved with
            the network.

    Example:
        >>> from torchcaps_lab.data import Digits
        >>> from torchcaps_lab.training.options import Subject
        >>> subject = Subject(data=Digits(), model="capsnet_digits")
        >>> subject.network(seed=0)(torch.rand(2, 1, 8, 8)).activation.shape
        torch.Size([2, 10])
    """

    data: DataSet
    task: Task | str | None = None
    model: str | None = None
    model_args: dict[str, Any] | None = None
    routing: Routing | None = None
    preprocess: Preprocess = field(default_factory=Preprocess)

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

    def network(self, seed: int, trained: bool = False) -> ClassifierNetwork:
        """The network, with initial weights that depend only on the seed.

        Args:
            seed: the seed of the weights.
            trained: whether all weights come from a checkpoint: files of first ones
                need not be there any more.

        Raises:
            ValueError: if arguments do not fit each other or the images.
        """
        arguments = self._arguments(trained)
        torch.manual_seed(seed)
        network = create_model(self.architecture, **arguments)
        if not trained:
            self.data.begin(network)
        return network

    def outline(self, **arguments: Any) -> ClassifierNetwork | None:
        """The network on the device ``meta``, where it takes no memory: the shapes of
        its weights.

        Args:
            arguments: the arguments of the network, in place of the chosen ones.

        Returns:
            The network; None for one whose constructor looks at numbers, which are
            nowhere there.

        Raises:
            ValueError: if arguments do not fit each other or the images.
        """
        chosen = copy.deepcopy({**self._arguments(trained=True), **arguments})
        try:
            with torch.device("meta"):
                return create_model(self.architecture, **chosen)
        except (NotImplementedError, RuntimeError):
            return None

    def _arguments(self, trained: bool) -> dict[str, Any]:
        """The arguments of the network; a `ValueError` if it or its routing does not
        fit.
        """
        if self.routing is not None and not self.routing.trainable:
            raise ValueError(
                "routing must have gradients to train with, got "
                f"{type(self.routing).__name__}"
            )
        fitting = list_models(takes=self.data.gives)
        gives = self.data.gives
        if self.architecture in list_models() and self.architecture not in fitting:
            raise ValueError(
                f"{self.architecture} takes no {gives}; model must be one of "
                f"{', '.join(fitting)}"
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
class Optimisation:
    """The losses, the optimizer and the schedule of its learning rate.

    Attributes:
        loss: the loss of the activations of the class capsules.
        reconstruction: weight of the reconstruction loss, the sum of squared errors.
        optimizer: the class of the optimizer, such as Adam, and its arguments.
        lr: the learning rate of the optimizer, and the start or peak of a scheduler;
            "find" tries 100 steps on a network that is then discarded, takes a tenth of
            the rate with the lowest loss, and records it as an option of the run;
            default: that of the optimizer.
        scheduler: the scheduler of the learning rate; one that takes ``total_steps``
            and was not given any, such as OneCycleLR with only ``max_lr``, spans all
            steps of the training.
        scheduler_interval: whether the scheduler steps each epoch or each step;
            ReduceLROnPlateau monitors the loss on the validation images after each
            epoch, or on the training images if there are no validation images.
        class_weights: 'balanced' weights each image in the loss by N / (E N_c), with N
            training images, E classes and N_c images in its class; numbers weight the
            classes in their order, or by name or number, {"cat": 2}, where all others
            have 1; None weights all alike.
        ramp: settings of the routing that change evenly over the epochs, each with its
            first and its last value: {"sharpness": (0.5, 4.0)}; the network is saved
            with the value of the epoch that is kept.
        shard_optimizer: shard the optimizer's state over several processes; the steps
            are the same (ZeRO, stage 1: Rajbhandari et al. 2020).

    Raises:
        ValueError: if ``reconstruction`` is negative or not finite, or ``lr`` is not
            above 0.

    Example:
        >>> from torchcaps_lab.training.options import Optimisation
        >>> type(Optimisation(optimizer=torch.optim.Adam).loss).__name__
        'MarginLoss'
    """

    loss: ActivationLoss = field(default_factory=MarginLoss)
    reconstruction: float = 0.0005
    optimizer: OptimizerFactory
    lr: float | Literal["find"] | None = None
    scheduler: SchedulerFactory | None = None
    scheduler_interval: Literal["epoch", "step"] = "epoch"
    class_weights: (
        Literal["balanced"] | Mapping[str, float] | tuple[float, ...] | None
    ) = None
    ramp: Mapping[str, tuple[float, float]] | None = None
    shard_optimizer: bool = False

    def __post_init__(self) -> None:
        check_finite(0, reconstruction=self.reconstruction)
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
        self,
        optimizer: torch.optim.Optimizer,
        steps: float,
        epochs: int,
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


@dataclass(kw_only=True)
class Schedule:
    """How long a training is, how large its steps are, and its random numbers.

    Attributes:
        epochs: number of passes over the training images.
        frozen_epochs: number of epochs before the others, in which only the layers on
            top of a pretrained backbone are trained, on features of a few views of each
            image that are computed once; they take seconds; the learning rate falls
            from the optimizer's own to 0; 0 trains all layers from the start.
        batch_size: number of images in a step, over all processes together.
        seed: the seed of the initial weights, the order of the images and their random
            changes.
        sampler: 'shuffled' takes each training image once in an epoch; 'balanced' takes
            images of each class equally often, and repeats those of rare classes with
            the same random changes in one epoch.
        stop_at: end after the first epoch in which the task's measure on the validation
            images reaches this value, for a classification the accuracy from 0 to 1;
            None trains all epochs.
        stop: "early" ends the training when the task's measure on the validation images
            has not improved for ``patience`` epochs; None trains all epochs.
        patience: number of epochs without improvement before ``stop`` ends the
            training.
        keep: the epoch that is tested and saved: the "last", or the "best" by the
            task's measure on the validation images, the first of equal ones.

    Raises:
        ValueError: if ``epochs``, ``batch_size`` or ``patience`` is less than 1,
            ``frozen_epochs`` negative, or ``seed`` not in -2^63..2^64 - 1.

    Example:
        >>> from torchcaps_lab.training.options import Schedule
        >>> Schedule(epochs=20, batch_size=64).seed
        0
    """

    epochs: int = 20
    frozen_epochs: int = 0
    batch_size: int = 128
    seed: int = 0
    sampler: SamplerName = "shuffled"
    stop_at: float | None = None
    stop: Literal["early"] | None = None
    patience: int = 10
    keep: Literal["last", "best"] = "last"

    def __post_init__(self) -> None:
        check_size(
            epochs=self.epochs, batch_size=self.batch_size, patience=self.patience
        )
        check_size(0, frozen_epochs=self.frozen_epochs)
        check_size(-(2**63), seed=self.seed)
        if self.seed >= 2**64:
            raise ValueError(f"seed must be less than 2^64, got {self.seed}")


def trainer_arguments() -> Collection[str]:
    """What Lightning's Trainer takes. Lightning takes seconds to import, which help and
    wrong options need not wait.
    """
    from lightning import Trainer

    return inspect.signature(Trainer).parameters


@dataclass
class TrainerOptions:
    """Where and how the training runs; see the documentation of Lightning's Trainer.

    Attributes:
        accelerator: "auto", "cpu", "gpu", ...
        devices: how many devices; on a CPU, how many processes.
        num_nodes: how many machines.
        strategy: "auto", "ddp", ...
        precision: "32-true", "bf16-mixed", "16-mixed", "64-true", ...
        deterministic: use deterministic algorithms only.
        gradient_clip_val: clip the gradients to this norm; None does not clip.
        sync_batchnorm: batch normalisation over all processes.
        average: keep an exponential moving average of the weights and of running
            statistics, with this decay in each step, such as 0.999, and less in the
            first ones, :func:`moving_average`; the average is validated, tested and
            saved. None keeps none.
        extra: other arguments of the Trainer.

    Raises:
        ValueError: if ``average`` is not between 0 and 1, ``gradient_clip_val`` is
            negative or not finite, or ``extra`` has an argument that the Trainer does
            not take, or that torchcaps sets itself, or accumulates no batch.

    Example:
        >>> from torchcaps_lab.training.options import TrainerOptions
        >>> TrainerOptions(accelerator="cpu", precision="bf16-mixed").arguments()[
        ...     "precision"
        ... ]
        'bf16-mixed'
    """

    accelerator: str = "auto"
    devices: int | str | list[int] = "auto"
    num_nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    deterministic: bool = False
    gradient_clip_val: float | None = None
    sync_batchnorm: bool = False
    average: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.average is not None and not 0 < self.average < 1:
            raise ValueError(
                f"average must be a share between 0 and 1, got {self.average}"
            )
        if self.gradient_clip_val is not None:
            check_finite(0, gradient_clip_val=self.gradient_clip_val)
        accumulate = self.extra.get("accumulate_grad_batches")
        if accumulate is not None:
            check_size(accumulate_grad_batches=accumulate)
        options = {**OURS, **{name: f"trainer.{name}" for name in vars(self)}}
        for name in self.extra:
            if name in options:
                source = options[name] and f", from {options[name]}"
                raise ValueError(
                    f"extra takes other arguments of Lightning's Trainer: {name} is "
                    f"set by torchcaps itself{source}"
                )
            if name not in trainer_arguments():
                raise ValueError(
                    f"extra takes arguments of Lightning's Trainer, which has no {name}"
                )

    def callbacks(self) -> "list[Callback]":
        """Callbacks that the options need: the averaging of the weights."""
        if self.average is None:
            return []
        from lightning.pytorch.callbacks import WeightAveraging

        return [WeightAveraging(avg_fn=moving_average(self.average))]

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for the Trainer. On a CPU, the default is one device."""
        named = {
            name: value
            for name, value in vars(self).items()
            if name not in ("average", "extra")
        }
        if self.devices == "auto" and self.accelerator == "cpu":
            named["devices"] = 1
        return {**named, **self.extra}


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
class Running:
    """Where and how a training runs.

    Attributes:
        trainer: where and how the training runs.
        speed: options that make the training faster.
        report: whether to write the report at the end.

    Example:
        >>> from torchcaps_lab.training.options import Running
        >>> Running(report=False).trainer.accelerator
        'auto'
    """

    trainer: TrainerOptions = field(default_factory=TrainerOptions)
    speed: Speed = field(default_factory=Speed)
    report: bool = True


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
