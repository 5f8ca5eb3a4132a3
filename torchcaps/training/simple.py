"""A training in one line of Python, with the defaults of the command line."""

import inspect
from argparse import ArgumentError
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import torchcaps.data
from torchcaps.classifier import Classifier
from torchcaps.data import Preprocess
from torchcaps.routing import Routing
from torchcaps.training.command_line import GROUPS, train_parser
from torchcaps.training.fitting import quiet_lightning
from torchcaps.training.folder import RunFolder
from torchcaps.training.parser import routing_path
from torchcaps.training.run import train_parsed


def train(
    data: str | Path, *, run: str | Path | None = None, show: Callable[[str], None] | None = None, **options: Any
) -> Classifier:
    """Trains a network as ``torchcaps train`` does, with the same defaults, and opens it.

        classifier = tc.train("photos", size=64, model="capsnet_small", epochs=30)
        classifier("new.jpg").classes, classifier.summary["test_accuracy"], classifier.run

    Args:
        data: a folder with one sub-folder of images for each class, or the name of a data set, such as "Digits".
        run: folder to write, new or empty; default: ``runs`` and the name of the data.
        show: takes a line of text for each epoch, such as ``print``; None for silence.
        options: of ``torchcaps train``, by name, nested ones as a dict: ``preprocess={"flip": True}``; a class by its
            name, or with arguments as ``{"class_path": ..., "init_args": {...}}``; a routing also as
            :func:`~torchcaps.create_routing` names or makes it. All others are arguments of the data set: ``size``,
            ``channels``, ``resize``, ...

    Returns:
        The trained network with its ``run`` and ``summary``. The report is ``classifier.run / "report/index.html"``.

    Raises:
        FileExistsError: if there is something in the folder of the run.
        ValueError: if there is no such data set, or options are unknown, do not fit, or are objects that a file of
            options cannot hold; the run saves its options in such a file, to be resumed from it.
    """
    parser = train_parser()
    parser.exit_on_error = False
    folder = RunFolder(Path(run) if run is not None else Path("runs") / Path(data).name, "run").unused()
    known = {field.name for group in GROUPS for field in fields(cast(Any, group))} - {"data"}
    own = {name: _written(name, value) for name, value in options.items() if name in known}
    rest = {name: value for name, value in options.items() if name not in known}
    try:
        config = parser.parse_object({"data": _data(data, rest, known), "run": str(folder.path), **own})
    except ArgumentError as error:
        raise ValueError(str(error)) from error
    quiet_lightning()
    train_parsed(folder, parser, config, command=_call(data, run, options), show=show)
    return Classifier.open(folder.path)


def _data(data: str | Path, arguments: dict[str, Any], options: set[str]) -> dict[str, Any]:
    """The option ``data``."""
    folder = Path(data).is_dir()
    kind = torchcaps.data.ImageFolder if folder else getattr(torchcaps.data, str(data), None)
    if not (inspect.isclass(kind) and issubclass(kind, torchcaps.data.ImageData)):
        raise ValueError(f"data must be a folder or the name of a data set, got {str(data)!r}")
    taken = list(inspect.signature(kind).parameters)
    unknown = sorted(set(arguments) - set(taken))
    if unknown:
        raise ValueError(
            f"unknown options {', '.join(unknown)}: a training takes {', '.join(sorted(options))}, "
            f"and {kind.__name__} {', '.join(taken)}"
        )
    init = {"root": str(data), **arguments} if folder else arguments
    return {"class_path": f"torchcaps.data.{kind.__name__}", "init_args": init}


def _written(name: str, value: Any) -> Any:
    """An option as in a file of options."""
    if isinstance(value, Routing):
        kind = type(value)
        return {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": _written(name, value.config())}
    if isinstance(value, Preprocess):
        return value.config()
    if isinstance(value, str):
        return routing_path(value) if name in ("routing", "routing.class_path") else value
    if isinstance(value, Mapping):
        return {key: _written(f"{name}.{key}", one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_written(name, one) for one in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Path):
        return str(value)
    raise ValueError(
        f"{name} must be a name, a number, or a dict of options, as {{'class_path': ..., 'init_args': {{...}}}} for a "
        f"class: what a file of options can hold, got {value!r}"
    )


def _call(data: str | Path, run: str | Path | None, options: dict[str, Any]) -> str:
    """The call, about as it was written, for the summary."""
    named = {**({} if run is None else {"run": str(run)}), **options}
    return f"torchcaps.train({', '.join([repr(str(data)), *(f'{name}={value!r}' for name, value in named.items())])})"
