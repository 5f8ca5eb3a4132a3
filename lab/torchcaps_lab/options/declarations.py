"""The options of a training, declared once without torch: names, types, defaults and
their description.

:mod:`torchcaps_lab.training.options` derives classes from these, which do what the
options say. A type in quotes waits for torch: it is a name in that module.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

from torchcaps.spec import BETWEEN_0_AND_1, Size, Within, check, check_fields

if TYPE_CHECKING:
    from torchcaps.losses import ActivationLoss
    from torchcaps.routing import Routing
    from torchcaps_lab.data import DataSet, Preprocess
    from torchcaps_lab.tasks import Task

    OptimizerFactory = Any
    SchedulerFactory = Any

SamplerName = Literal["shuffled", "balanced"]
CompileMode = Literal[
    "off", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"
]

_SEED = Within(-(2**63), 2**64 - 1, words="in -2^63..2^64 - 1")

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
"""Arguments of Trainer that a training sets, with the options that they come from."""


def later(module: str, name: str) -> Callable[[], Any]:
    """Return a function that makes a default of a class that waits for torch."""

    def make() -> Any:
        return getattr(import_module(module), name)()

    make.__name__ = name
    return make


@dataclass(kw_only=True)
class SubjectOptions:
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
        start: a run to start from, or a saved network, or the name of one in the
            package: the network, size and preparation are those of the run where you
            name no other, and all weights that fit are kept, those of a class by its
            name; None starts from random weights, or those of 'model_args.weights'.
        preprocess: the preparation of images, at random in training; it is saved with
            the network.
    """

    data: "DataSet"
    task: "Task | str | None" = None
    model: str | None = None
    model_args: dict[str, Any] | None = None
    routing: "Routing | None" = None
    start: str | None = None
    preprocess: "Preprocess" = field(
        default_factory=later("torchcaps_lab.data", "Preprocess")
    )


@dataclass(kw_only=True)
class OptimisationOptions:
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
    """

    loss: "ActivationLoss" = field(
        default_factory=later("torchcaps.losses", "MarginLoss")
    )
    reconstruction: float = 0.0005
    optimizer: "OptimizerFactory"
    lr: float | Literal["find"] | None = None
    scheduler: "SchedulerFactory | None" = None
    scheduler_interval: Literal["epoch", "step"] = "epoch"
    class_weights: (
        Literal["balanced"] | Mapping[str, float] | tuple[float, ...] | None
    ) = None
    ramp: Mapping[str, tuple[float, float]] | None = None
    shard_optimizer: bool = False


@dataclass(kw_only=True)
class Schedule:
    """How long a training is, how large its steps are, and its random numbers.

    Attributes:
        epochs: number of passes over the training images.
        frozen_epochs: number of epochs before the others, in which only the layers on
            top of a pretrained backbone are trained, on features of a few views of each
            image that are computed once; they take seconds; the learning rate falls
            from the optimizer's own to 0; 0 trains all layers from the start.
        batch_size: number of images in a step, over all processes together, each of
            which takes the same number.
        seed: the seed of the initial weights, the order of the images and their random
            changes.
        sampler: 'shuffled' takes each training image once in an epoch; 'balanced' takes
            images of each class equally often, and repeats those of rare classes with
            the same random changes in one epoch.
        stop_at: end after the first epoch in which the task's measure on the validation
            images reaches this value, for a classification the accuracy from 0 to 1;
            None trains all epochs.
        patience: end when the task's measure on the validation images has not improved
            for so many epochs; None trains all epochs.
        keep: the epoch that is tested and saved: the "last", or the "best" by the
            task's measure on the validation images, the first of equal ones.

    Raises:
        ValueError: if ``epochs``, ``batch_size`` or ``patience`` is less than 1,
            ``frozen_epochs`` negative, or ``seed`` not in -2^63..2^64 - 1.

    Example:
        >>> from torchcaps_lab.options.declarations import Schedule
        >>> Schedule(epochs=20, batch_size=64).seed
        0
    """

    epochs: Size = 20
    frozen_epochs: Annotated[int, Within(0)] = 0
    batch_size: Size = 128
    seed: Annotated[int, _SEED] = 0
    sampler: SamplerName = "shuffled"
    stop_at: float | None = None
    patience: Size | None = None
    keep: Literal["last", "best"] = "last"

    def __post_init__(self) -> None:
        check_fields(self)


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
        sync_batchnorm: batch normalisation over all processes, on GPUs; not that of
            poses.
        average: keep an exponential moving average of the weights and of running
            statistics, with this decay in each step, such as 0.999, and less in the
            first ones (:func:`~torchcaps_lab.training.options.moving_average`). The
            average is validated, tested and saved. None keeps none.
        extra: other arguments of the Trainer.

    Raises:
        ValueError: if ``average`` is not between 0 and 1, ``gradient_clip_val`` is
            negative or not finite, or ``extra`` has an argument that the Trainer does
            not take, or that torchcaps sets itself, or accumulates no batch.

    Example:
        >>> from torchcaps_lab.options.declarations import TrainerOptions
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
    gradient_clip_val: Annotated[float, Within(0)] | None = None
    sync_batchnorm: bool = False
    average: Annotated[float, BETWEEN_0_AND_1] | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        accumulate = self.extra.get("accumulate_grad_batches")
        if accumulate is not None:
            check(Size, accumulate, "accumulate_grad_batches")
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


@dataclass(frozen=True)
class SpeedOptions:
    """Options that make a training faster, besides the trainer's ``precision``.

    On by default is ``resident``. Steps of Adam, AdamW and SGD run in one kernel, see
    :meth:`~torchcaps_lab.training.speed.Speed.fuse`.

    Attributes:
        channels_last: store images and the weights of convolutions with the channels
            innermost. The results are the same up to rounding.
        compile: compile the training step's network with ``torch.compile`` in this
            mode; ``reduce-overhead`` replays CUDA graphs, ``off`` does not compile. The
            same up to rounding. None replays CUDA graphs on a GPU, if the training is
            long enough to pay for compiling.
        resident: data sets of up to this many GiB are copied to the GPU once instead of
            batch by batch. Nothing else changes.

    Raises:
        ValueError: if an option is of another type, or ``resident`` is negative.
    """

    channels_last: bool = False
    compile: CompileMode | None = None
    resident: Annotated[float, Within(0)] = 4.0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(kw_only=True)
class RunningOptions:
    """Where and how a training runs.

    Attributes:
        trainer: where and how the training runs.
        speed: options that make the training faster.
        report: whether to write the report at the end.

    Example:
        >>> from torchcaps_lab.options.declarations import RunningOptions
        >>> RunningOptions(report=False).trainer.accelerator
        'auto'
    """

    trainer: TrainerOptions = field(default_factory=TrainerOptions)
    speed: SpeedOptions = field(default_factory=SpeedOptions)
    report: bool = True


GROUPS = (SubjectOptions, OptimisationOptions, Schedule, RunningOptions)
"""The groups of options, which are on one level on the command line and in YAML."""
