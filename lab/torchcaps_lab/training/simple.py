"""A training in one line of Python, with the defaults of the command line."""

from collections.abc import Callable, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchcaps.numerics import check_choice
from torchcaps.spec import Given, argument_value, declared, plain, refused
from torchcaps.whole import expanded
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.data.base import DATASETS, DataSet
from torchcaps_lab.data.pairs import is_two_arrays
from torchcaps_lab.data.reader import READERS, Reader
from torchcaps_lab.look import Guess
from torchcaps_lab.options.guess import guess, of_task, over, unused_run
from torchcaps_lab.options.reading import meant_option, merged, read_options
from torchcaps_lab.run_folder import RunFolder, is_first_process
from torchcaps_lab.training.command_line import option_arguments, training_options
from torchcaps_lab.training.fitting import quiet_lightning
from torchcaps_lab.training.progress import can_rewrite
from torchcaps_lab.training.run import train_with


# Off: a notebook may have it on for all of its cells.
@torch.inference_mode(False)
def train(
    data: Any,
    labels: Any = None,
    *,
    kind: str | None = None,
    run: str | Path | None = None,
    resume: bool = False,
    allow_changes: bool = False,
    show: Callable[[str], None] | None = print,
    **options: Any,
) -> Classifier:
    """Train a network as ``torchcaps train`` does, with the same defaults, and open it.

        classifier = tc.train("photos", size=64, model="capsnet_small", epochs=30)
        classifier("new.jpg").classes, classifier.summary["test_accuracy"]
        classifier = tc.train(images, labels, model="capsnet_small", epochs=30)

    Args:
        data: what the command takes first, which guesses the other options from it: a
            folder with one sub-folder of images for each class, or a table of texts. Or
            what a program has, from which they are guessed as well:

            - pairs of an image and a label, or a list of labels: a list, a data set of
              torchvision, any ``Dataset``, which is read as
              :class:`~torchcaps_lab.data.MapStyle` reads it;
            - two arrays or tensors, ``(images, labels)``, images (N, H, W), (N, H, W,
              C) or (N, C, H, W) in bytes or floating point in [0, 1];
            - arrays (N, C, L) or a list of arrays (C, L), and labels beside them, with
              ``kind="series"``;
            - a list of texts, and labels beside them;
            - with ``task="objects"``, pictures alone, in an array or a list.

            Or a data set of torchcaps, for which nothing is guessed: its name, such as
            "Digits", its class, or an object, ``Digits(size=12)``.

            No file of options can hold pairs, arrays and pictures: everything else is
            saved with the run, and to go on with it they are given again.
        labels: the labels, where ``data`` are the images in one array or tensor, or a
            list: N whole numbers or names; N lists of them; or (N, E) of 0 and 1, a
            column for each class.
        kind: what examples in Python are; default: texts if they are texts that name no
            files, else images.
        run: folder to write, new or empty; default: ``runs`` and the name of the data,
            with a number if it is taken.
        resume: go on with the run in that folder, with its options and those given
            here.
        allow_changes: whether those given here may differ from its own.
        show: takes a line of text for each epoch; ``print`` is told first what was
            guessed, what is trained and how long it will take, and in a terminal or a
            notebook another line says how far it is. None for silence.
        options: the options of ``torchcaps train``, by name, nested ones as a dict:
            ``preprocess={"flip": True}``; a class by its name, or with arguments as
            ``{"name": "Adam", "lr": 0.01}``; a routing, a task or a loss also as an
            object. All others are arguments of the data set: ``size``, ``channels``,
            ``resize``, ... Messages name options as a command has them:
            ``--data.size 64`` is ``size=64`` here, and ``--from`` is ``start``.

    Returns:
        The trained network with its ``run`` and ``summary``. The report is
        ``classifier.run / "report/index.html"``. In several processes, which each run
        the script, all but the first end here.

    Raises:
        FileExistsError: if there is something in the folder of the run.
        FileNotFoundError: if there is no run to resume, no such folder and no such data
            set.
        ValueError: if the data has no length or no items; if the order of the axes of
            arrays is not clear; if options are unknown, do not fit, or are objects that
            a file of options cannot hold; the run saves its options in such a file, to
            be resumed from it.
    """
    if isinstance(data, DataSet):
        options = {**_arguments_of(data), **options}
        data = type(data)
    if data is None:
        raise ValueError(
            "data must be the path of a folder or a file, the name of a data set, "
            "pairs of an image and a label, or images with labels beside them, got "
            "None"
        )
    if kind is not None:
        check_choice("kind", kind, tuple(_readers()))
    data = _unboxed(data)
    if labels is not None and isinstance(data, str | Path | type):
        raise ValueError(
            "labels are for examples in an array, a tensor or a list, "
            f"{_name_of(data)} has its own"
        )
    named = _name_of(data, labels)
    if isinstance(model := options.get("model"), nn.Module):
        raise ValueError(
            "model must be the name of a network, which a training makes, got a "
            f"{type(model).__name__}: save_pretrained(folder) and start=folder keep the "
            "weights of one"
        )
    option_names = option_arguments().keys() - {"data"}
    values = {
        name: plain(_by_text(value), name)
        for name, value in options.items()
        if name in option_names
    }
    data_options = {
        name: _data_argument(name, value)
        for name, value in options.items()
        if name not in option_names
    }
    if run is not None or resume:
        place = run or Path("runs") / Path(named).name.lower()
        values["run"] = str(expanded(place))
    before: dict[str, Any] = {}
    if resume:
        before = read_options(RunFolder(Path(values["run"]), "run").existing().config)
    chosen, guessed = _over_guesses(
        data, labels, kind, {**values, "data": data_options}, before
    )
    data_set = DATASETS.find(chosen["data"]["name"])
    for wrong in data_options:
        if not refused(data_set.__name__, data_set, [wrong]):
            continue
        names = ["run", *option_arguments(), "trainer", *declared(data_set).arguments]
        near = meant_option(wrong, names)
        taken = ", ".join(declared(data_set).arguments)
        raise ValueError(
            f"there is no option {wrong}{near.replace('mean data.', 'mean ')}\n"
            f"  A training takes {', '.join(option_arguments())}\n"
            f"  {data_set.__name__} takes {taken}"
        )
    folder = RunFolder(Path(chosen["run"]), "run")
    if resume:
        folder = folder.existing()
    elif is_first_process():
        folder.unused()
    checked = training_options(merged(before, chosen))
    quiet_lightning()
    how = {
        "header": show is print,
        "progress_bar": show is print and can_rewrite(),
        "allow_changes": allow_changes,
    }
    if show is not None and how["header"] and is_first_process():
        for line in guessed:
            show(line)
    command = _call(named, run, options)
    if train_with(folder, checked, command=command, show=show, **how) is None:
        # A process beside the first one, which runs the same script to train. What
        # follows in the script is for the first alone, which has the network.
        raise SystemExit(0)
    return Classifier.open(folder.path)


def _over_guesses(
    data: Any,
    labels: Any,
    kind: str | None,
    options: dict[str, Any],
    before: Mapping[str, Any],
) -> tuple[dict[str, Any], list[str]]:
    """The options over those that the data suggest, and what was guessed; a run that
    goes on has its own.

    Args:
        data: what was given.
        labels: the labels beside it.
        kind: what examples in Python are.
        options: the options that were given beside it.
        before: the options of the run that goes on; none for a new one.
    """
    if isinstance(data, str | Path):
        guessed = guess(data, options)
    else:
        examples = data if labels is None else (data, labels)
        of_data = of_task(examples, {**before, **options})
        guessed = of_data or _in_python(data, labels, kind, merged(before, options))
        run = unused_run(_name_of(data, labels))
        guessed = guessed._replace(options={"run": run, **guessed.options})
    if not before:
        return over(guessed, options)
    source = {
        name: value
        for name, value in guessed.options["data"].items()
        if name in ("name", "root") or isinstance(value, Given)
    }
    return merged({"data": source}, options), []


def _in_python(
    data: Any, labels: Any, kind: str | None, given: Mapping[str, Any]
) -> Guess:
    """The options of what a program has: the class of a data set, or examples that a
    reader recognises.

    Args:
        data: what was given.
        labels: the labels beside it.
        kind: what examples are.
        given: the options that were given beside it, over those of the run that goes
            on.

    Raises:
        ValueError: there is no such kind of examples, or labels are missing.
    """
    if isinstance(data, type):
        return Guess({"data": {"name": DATASETS.name_of(data)}}, {})
    if hasattr(data, "columns") or hasattr(data, "column_names"):
        # Of pandas, of polars, or of Hugging Face, which may have splits.
        table = "data['train']" if isinstance(data, dict) else "data"
        raise ValueError(
            f"a table must be given by its columns, as in torchcaps.train({table}['text'], "
            f"{table}['label']), or as a file, as in torchcaps.train('table.csv'), got a "
            f"{type(data).__name__}"
        )
    readers = _readers()
    if kind is None:
        seen = [name for name in readers if readers[name].recognises(data, labels)]
        kind = seen[0] if seen else DataSet.reads
    return readers[kind].of_program(data, labels, given)


def _readers() -> dict[str, type[Reader]]:
    """The readers of what a program has, by the names of their kinds."""
    return {name: reader for name, reader in READERS.items() if reader.in_program}


def _unboxed(data: Any) -> Any:
    """Texts, or arrays of several shapes, in an array of NumPy or a column of pandas as
    a list; anything else as it is.
    """
    kind = getattr(getattr(data, "dtype", None), "kind", None)
    return data.tolist() if kind in ("O", "T", "U") and data.ndim == 1 else data


def _arguments_of(data: DataSet) -> dict[str, Any]:
    """The arguments that a data set was made with; those that no file of options can
    hold as they are.
    """
    kind: Any = type(data)
    arguments: dict[str, Any] = {}
    for name in declared(kind).arguments:
        value = argument_value(data, name)
        try:
            arguments[name] = plain(value, name)
        except ValueError:
            arguments[name] = Given(value)
    return arguments


def _name_of(data: Any, labels: Any = None) -> str:
    """A name for the data, of which that of the run is made."""
    if isinstance(data, str | Path):
        return str(data)
    if isinstance(data, type):
        return data.__name__
    given = data[:2] if isinstance(data, tuple) and labels is None else (data, labels)
    return "arrays" if is_two_arrays(given) else type(data).__name__


def _by_text(value: Any) -> Any:
    """A mapping by whole numbers, such as weights of classes, by their text, as files
    of options have it.
    """
    if not isinstance(value, Mapping):
        return value
    return {
        str(key) if isinstance(key, Integral) else key: inner
        for key, inner in value.items()
    }


def _data_argument(name: str, value: Any) -> Any:
    """An argument of the data set for the options."""
    if isinstance(value, Given):
        return value
    if name in ("test_data", "validation_data"):
        return Given(value)
    return plain(value, name)


def _call(data: str, run: str | Path | None, options: dict[str, Any]) -> str:
    """The call, about as it was written, for the summary."""
    named = {**({} if run is None else {"run": str(run)}), **options}
    return f"torchcaps.train({', '.join([repr(data), *(f'{name}={value!r}' for name, value in named.items())])})"
