"""A run: one training in its own folder, from the configuration to the report."""

import platform
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from lightning.pytorch.callbacks import LambdaCallback

import torchcaps
from torchcaps.models import ClassifierNetwork
from torchcaps.whole import owned, write_whole
from torchcaps_lab.card import Card
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.evaluate.verdict import judge
from torchcaps_lab.look import counted
from torchcaps_lab.options.declarations import Schedule
from torchcaps_lab.options.reading import as_yaml, read_options
from torchcaps_lab.run_folder import RunFolder, is_first_process
from torchcaps_lab.tasks import Examination, Task
from torchcaps_lab.tasks.doubt import DOUBTS, Doubt
from torchcaps_lab.training.checkpoints import network_changes, newest_checkpoint
from torchcaps_lab.training.command_line import TrainingOptions
from torchcaps_lab.training.fitting import Fitting, rehearse
from torchcaps_lab.training.learner import Learner
from torchcaps_lab.training.memory import check_device, check_memory
from torchcaps_lab.training.options import Caller, Optimisation, Running, Subject
from torchcaps_lab.training.rate import find_rate
from torchcaps_lab.training.record import follow_record, write_record

MOST_NAMED = 8
"""Classes that the header counts one by one."""


def train_with(
    folder: RunFolder, options: TrainingOptions, **how: Any
) -> dict[str, Any] | None:
    """Train a network, test the last epoch, or the best if that is kept, and write the
    report.

    The test images are read once, after the training. Continues from the newest
    checkpoint if the folder has one. Everything that can be checked is checked before
    anything is written, so that a refused start can be repeated.

    Args:
        folder: the folder of the run.
        options: the options of the training, which
            :func:`~torchcaps_lab.training.training_options` has checked.
        how: what else :class:`Caller` takes: ``command``, ``progress_bar``, ``show``,
            ``callbacks``, ...

    Returns:
        The summary, on the first process; None on the others.

    Raises:
        ValueError: if arguments do not fit each other, the images or the machine, or a
            checkpoint does not fit them.
        BlockingIOError: if another process trains in the folder.
        TrainingDiverged: if the loss is not finite.
    """
    try:
        parts = options.make()
    except FileNotFoundError as error:
        if not folder.config.is_file():
            raise
        raise FileNotFoundError(
            f"{error}; if the data have moved, name their new place with --data.root"
        ) from error
    if folder.config.is_file():
        _check_network(folder, parts.subject, options, how.get("allow_changes", False))
    caller = Caller(options=options.plain(), **how)
    if parts.optimisation.lr == "find":
        lr = find_rate(*parts)
        parts = parts._replace(optimisation=replace(parts.optimisation, lr=lr))
        caller = replace(caller, options={**caller.options, "lr": lr})
        if caller.show is not None and is_first_process():
            caller.show(f"lr {lr} was found")
    return _train(folder, *parts, caller)


def _train(
    folder: RunFolder,
    subject: Subject,
    optimisation: Optimisation,
    schedule: Schedule,
    running: Running,
    caller: Caller,
) -> dict[str, Any] | None:
    """The training on the objects that its options describe."""
    changes = follow_record(folder, subject.data)
    task = subject.purpose()
    data = subject.data
    untested = []
    if not len(data.test):
        untested.append(
            f"there are no test {data.train.what}: nothing is tested, and no report is "
            "written"
        )
    resumed = folder.config.exists()
    trained = resumed and newest_checkpoint(folder.checkpoints) is not None
    need = check_memory(subject, optimisation.optimizer, schedule, running)
    starts: list[str] = []
    network = subject.network(schedule.seed, trained, starts)
    learner = Learner(
        network, optimisation, task, subject.preprocess, schedule.seed, running.speed
    )
    validation = data.validation.prepared(subject.preprocess)
    config = as_yaml(caller.options)
    if resumed and is_first_process():
        # Once the checkpoint is taken: options that it refuses are not kept, and the
        # next resume after a kill goes on with these. There may be no epoch to begin.
        def keep(*_: Any) -> None:
            write_whole(folder.config, config)

        keeper = LambdaCallback(on_train_epoch_start=keep, on_train_end=keep)
        caller = replace(caller, callbacks=(*caller.callbacks, keeper))
    fitting = Fitting(
        learner, data.train, validation, folder.path, schedule, running.trainer, caller
    )
    if not trained and owned(folder.path, folder.summary.name).exists():
        raise ValueError(
            f"{folder.checkpoints} holds no whole checkpoint to continue from, and a "
            f"new start would overwrite the trained network in {folder.model}: train "
            f"in another folder, with start={folder.path} (--from {folder.path}) to "
            "begin with its weights"
        )
    check_device(need, fitting.trainer, subject, schedule)
    rehearse(learner, data.train, fitting.steps, schedule.epochs)
    notes = list(
        dict.fromkeys([*starts, *changes, *data.notes(), *untested, *fitting.notes()])
    )
    alone = folder.opened(config, resumed, partial(write_record, folder, data))
    with alone if is_first_process() else nullcontext():
        if is_first_process() and caller.show is not None:
            head = _header(subject, network, fitting) if caller.header else []
            for line in [*head, *(f"note: {note}" for note in notes)]:
                caller.show(line)
        runner, metrics = fitting.run()
        if not runner.is_global_zero:
            return None
        used = fitting.take_best()
        network.float()  # whatever the precision of the training
        save(network.eval(), folder, subject, task)
        test = data.test.in_classes(
            data.classes, f"the test {data.train.what}"
        ).prepared(subject.preprocess)
        results: dict[str, Any] = {}
        if len(test):
            results = _findings(task.examine(network, test, schedule.batch_size))
            results |= _verdict(network, test)
        summary = {
            "run": str(folder.path),
            **_described(subject, task, network),
            "epochs": len(metrics),
            "used_epoch": used,
            "seed": schedule.seed,
            **results,
            **({"notes": notes} if notes else {}),
            "last_epoch": metrics[-1] if metrics else {},
            "training_seconds": round(sum(row["seconds"] for row in metrics), 1),
            **machine(runner.strategy.root_device, runner.world_size),
            "command": caller.command,
        }
        folder.write_summary(summary)
        if running.report and len(test):
            task.report(folder.path, network, test, summary, metrics)
    return summary


def _header(
    subject: Subject, network: ClassifierNetwork, fitting: Fitting
) -> list[str]:
    """Say before the training: images, classes, network, device and steps."""
    data = subject.data
    device = fitting.trainer.strategy.root_device
    sizes = ", ".join(
        f"{len(getattr(data, part)):,} {part}"
        for part in ("train", "validation", "test")
    )
    shape = data.train.shape_in_words()
    parameters = sum(map(torch.Tensor.numel, network.parameters()))
    return [
        f"{type(data).__name__}: {sizes} {data.train.what}{shape and f' of {shape}'}, "
        f"{counted(len(data.classes), data.train.groups)}{_by_class(data.train)}",
        f"{subject.architecture}: {parameters:,} parameters, on {device}; "
        f"{counted(fitting.steps, 'steps')} in at most "
        f"{counted(fitting.trainer.max_epochs or 0, 'epochs')}",
    ]


def _described(
    subject: Subject, task: Task, network: ClassifierNetwork
) -> dict[str, Any]:
    """Network, data and task, for the summary."""
    data = subject.data
    counts = _per_class(data.train)
    return {
        "model": subject.architecture,
        "parameters": sum(map(torch.Tensor.numel, network.parameters())),
        "data": type(data).__name__,
        "source": data.called,
        "task": task.name,
        "examples": {
            "train": len(data.train),
            "validation": len(data.validation),
            "test": len(data.test),
        },
        **({"train_per_class": counts} if counts else {}),
        "preprocess": subject.preprocess.config(),
    }


def _per_class(images: Examples) -> dict[str, int]:
    """How many images there are of each class; nothing for images of several classes."""
    return images.counts() if images[0].labels.ndim == 1 else {}


def _by_class(images: Examples) -> str:
    """The same for people, in short."""
    counts = _per_class(images)
    if not counts:
        return ""
    if len(counts) <= MOST_NAMED:
        listed = [f"{name} {count:,}" for name, count in counts.items()]
        return f" ({', '.join(listed)})"
    return f" of {min(counts.values()):,} to {max(counts.values()):,} each"


def _findings(examination: Examination) -> dict[str, Any]:
    """The results of the test, for the summary."""
    results: dict[str, Any] = {
        f"test_{name}": round(figure, 4) if name.endswith("_percent") else figure
        for name, figure in examination.figures.items()
    }
    if "per_class" in examination.details:
        results["test_per_class"] = examination.details["per_class"]
    if examination.warnings:
        results["warnings"] = list(examination.warnings)
    return results


def _verdict(network: ClassifierNetwork, test: Examples) -> dict[str, Any]:
    """Whether routing and decoder of a network with capsules do anything, for the
    summary.
    """
    verdict = judge(network, test)
    if verdict is None or verdict.entropy is None:
        return {}
    return {"routing": verdict.of_routing, "verdict": asdict(verdict)}


def save(
    network: ClassifierNetwork, folder: RunFolder, subject: Subject, task: Task
) -> None:
    """Saves a network with everything needed to use it, which becomes its ``extra``: the
    names of the classes, the preprocessing, the task.

    It also gets a calibration of its probabilities on the validation images, and the
    doubts of the task, if there are enough of these.
    """
    validation = subject.data.validation.prepared(subject.preprocess)
    calibration = task.calibrate(network, validation)
    doubts = {}
    for name in task.doubts:
        kind: type[Doubt] = DOUBTS.find(name)
        doubt = kind.fit(network, validation)
        if doubt is not None:
            doubts[name] = doubt
    card = Card.of_training(subject.data, subject.preprocess, task)
    card = replace(card, calibration=calibration, doubts=doubts)
    network.extra = card.saved()
    network.save_pretrained(folder.model, **network.extra)


def _check_network(
    folder: RunFolder, subject: Subject, options: TrainingOptions, allow_changes: bool
) -> None:
    """Raises a ValueError if another network is to go on with a run."""
    recorded = read_options(folder.config)
    was = recorded.get("model") or subject.data.default_model()
    now = subject.architecture
    changes = [] if allow_changes else network_changes(recorded, options.plain())
    if now != was:
        changes = [f"model was {was}, is {now}"]
    if changes:
        raise ValueError(
            f"{folder.path} was trained with something else, and a resumed run keeps "
            f"its network: {'; '.join(changes)}. Leave that out, or train a new run"
        )


def machine(device: torch.device, processes: int = 1) -> dict[str, Any]:
    """Return the hardware and the versions of a training, as its summary names them.

    Args:
        device: the device of the training.
        processes: the number of processes that train together.

    Example:
        >>> from torchcaps_lab.training.run import machine
        >>> sorted(machine(torch.device("cpu"))["versions"])
        ['python', 'torch', 'torchcaps']
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        threads = counted(torch.get_num_threads(), "threads")
        name = f"{device.type} ({platform.machine()}), {threads}"
    versions = {
        "torchcaps": torchcaps.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    return {"hardware": f"{processes} x {name}", "versions": versions}
