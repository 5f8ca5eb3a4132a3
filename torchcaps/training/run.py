"""A run: one training in a folder of its own, from the configuration to the report."""

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning import Trainer

import torchcaps
from torchcaps.data import ImageData, Preprocess
from torchcaps.explain import examine, write_report
from torchcaps.losses import ActivationLoss, ReconstructionLoss
from torchcaps.models import create_model, load_pretrained
from torchcaps.routing import Routing
from torchcaps.training.fit import Classification, fit
from torchcaps.training.folder import RunFolder
from torchcaps.training.options import OptimizerFactory, SchedulerFactory, TrainerOptions
from torchcaps.training.speed import Speed

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


def train(
    folder: RunFolder,
    *,
    data: ImageData,
    model: str = "capsnet",
    model_args: dict[str, Any] | None = None,
    routing: Routing | None = None,
    loss: ActivationLoss,
    reconstruction: float = 0.0005,
    optimizer: OptimizerFactory,
    scheduler: SchedulerFactory | None = None,
    scheduler_interval: Literal["epoch", "step"] = "epoch",
    preprocess: Preprocess,
    epochs: int = 20,
    batch_size: int = 128,
    seed: int = 0,
    stop_at: float | None = None,
    trainer: TrainerOptions,
    speed: Speed,
    report: bool = True,
    config: str = "",
    command: str = "",
    progress_bar: bool = False,
    show: Callable[[str], None] | None = None,
) -> dict[str, Any] | None:
    """Trains a network on images, tests the last epoch and writes the report.

    The test images are read once, after the training. Continues from the newest checkpoint if the folder has one.

    Args:
        folder: of the run.
        data: the images: Digits, MNIST, FashionMNIST, ImageFolder, or any other ImageData.
        model: a network by name; 'torchcaps models' lists them.
        model_args: arguments of the network, over those of its name.
        routing: of the class capsules; default: the network's own.
        loss: on the activations of the class capsules.
        reconstruction: weight of the sum of squared errors of the reconstruction.
        optimizer: from the parameters.
        scheduler: of the learning rate.
        scheduler_interval: whether the scheduler steps each epoch or each step.
        preprocess: how the images are prepared, at random in training; the network sees, and keeps, the result.
        epochs: how many times the training images are gone through.
        batch_size: over all processes together.
        seed: of the initial weights, the order of the images and their random changes.
        stop_at: end after the first epoch with this validation accuracy, from 0 to 1; None trains all epochs.
        trainer: where and how it runs.
        speed: what makes it faster.
        report: whether to draw the pictures at the end.
        config: YAML of these options, kept in a new folder.
        command: how this was started, for the summary.
        progress_bar: whether to show one.
        show: takes lines of text.

    Returns:
        The summary, on the first process; None on the others.

    Raises:
        ValueError: if arguments do not fit each other or a checkpoint does not fit them.
        TrainingDiverged: if the loss is not finite.
    """
    for name, value in (("epochs", epochs), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if routing is not None and not routing.trainable:
        raise ValueError(f"routing must have gradients to train with, got {type(routing).__name__}")
    image_shape = preprocess.image_shape(data.image_shape)
    torch.manual_seed(seed)
    arguments = {"image_shape": image_shape, "classes": len(data.classes), **(model_args or {})}
    network = create_model(model, **arguments, **({} if routing is None else {"routing": routing}))
    task = Classification(
        network,
        loss,
        ReconstructionLoss(reconstruction),
        optimizer,
        scheduler,
        scheduler_interval,
        preprocess,
        seed,
        speed,
    )
    if is_first_process() and not folder.config.exists():
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.config.write_text(config)
    runner, metrics = fit(
        task,
        data.train,
        data.validation.prepared(preprocess),
        folder.path,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        options=trainer,
        stop_at=stop_at,
        progress_bar=progress_bar,
        show=show,
    )
    if not runner.is_global_zero:
        return None
    network.save_pretrained(
        folder.model,
        classes=list(data.classes),
        preprocess=preprocess.config(),
        raw_image_shape=list(data.image_shape),
    )
    network = load_pretrained(folder.model)  # what the summary speaks of is what was saved
    test = data.test.prepared(preprocess)
    findings = examine(network, test, batch_size=batch_size)
    summary = {
        "model": model,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "data": type(data).__name__,
        "images": {"train": len(data.train), "validation": len(data.validation), "test": len(test)},
        "epochs": len(metrics),
        "seed": seed,
        "preprocess": preprocess.config(),
        "test_accuracy": findings.accuracy,
        "test_error_percent": round(100 * (1 - findings.accuracy), 4),
        "last_epoch": metrics[-1] if metrics else {},
        **circumstances(runner, metrics),
        "command": command,
    }
    folder.write_summary(summary)
    if report:
        write_report(folder.path, network, test, summary, metrics)
    return summary


def train_parser() -> "ArgumentParser":
    """The options of :func:`train` on the command line and in YAML, and the folder of the run as ``run``."""
    from jsonargparse import ActionConfigFile, ArgumentParser

    parser = ArgumentParser(
        prog="torchcaps train",
        description="Train a network on images. '--resume RUN' instead of '--run RUN' continues an interrupted run.",
    )
    parser.add_argument("--config", action=ActionConfigFile, help="YAML file with any of these options")
    parser.add_argument("--run", type=str, required=True, help="folder to write; must be new or empty")
    parser.add_function_arguments(train, skip={"folder", "config", "command", "progress_bar", "show"})
    parser.set_defaults(
        {
            "loss": {"class_path": "torchcaps.losses.MarginLoss"},
            "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 1e-3}},
        }
    )
    return parser


def train_parsed(folder: RunFolder, parser: "ArgumentParser", config: Any, **how: Any) -> dict[str, Any] | None:
    """Trains with options that :func:`train_parser` has read.

    Args:
        folder: of the run.
        parser: the one that read them.
        config: what it read.
        how: ``command``, ``progress_bar`` and ``show`` of :func:`train`.

    Returns:
        What :func:`train` returns; raises what it raises.
    """
    ready = parser.instantiate(config)
    options = {name: value for name, value in vars(ready).items() if name not in ("config", "run")}
    return train(folder, **options, config=parser.dump(config), **how)


def is_first_process() -> bool:
    """Whether this is not one of the processes that Lightning or torchrun started beside the first."""
    return int(os.environ.get("RANK", 0)) == 0 and int(os.environ.get("LOCAL_RANK", 0)) == 0


def circumstances(trainer: Trainer, metrics: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """How long a training took, on what, and with which versions: for its summary."""
    return {
        "training_seconds": round(sum(row["seconds"] for row in metrics), 1),
        "hardware": _hardware(trainer.strategy.root_device, trainer.world_size),
        "versions": {
            "torchcaps": torchcaps.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def _hardware(device: torch.device, processes: int) -> str:
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{device.type} ({platform.machine()}), {torch.get_num_threads()} threads"
    return f"{processes} x {name}"
