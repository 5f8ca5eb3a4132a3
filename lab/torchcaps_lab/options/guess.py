"""Options of a training that are guessed from what was named alone: a folder, a file,
or a data set.
"""

import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torchcaps_lab
from torchcaps.spec import meant
from torchcaps.whole import LARGEST_NOTE, check_file, read_json, resolved, seen_from
from torchcaps_lab.look import Guess, Place, name_in
from torchcaps_lab.options.reading import merged
from torchcaps_lab.options.start import with_start

if TYPE_CHECKING:
    from torchcaps_lab.data.reader import Reader


def over(guess: Guess, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the options with those of the run that they start from, if they do, and
    with those that were given over them.

    Args:
        guess: the guessed options.
        given: the options that the user gave.

    Returns:
        The options, and for people a line for each that was guessed and not given.
    """
    started = with_start(given, guess.options)
    of_start = {
        name
        for name, value in started.items()
        if name != "data" and value != guess.options.get(name)
    }
    of_start |= {
        f"data.{name}"
        for name, value in values_of_data(started).items()
        if value != values_of_data(guess.options).get(name)
    }
    named = {*given} - {"data"} | {
        f"{option}.{argument}"
        for option, values in given.items()
        if isinstance(values, Mapping)
        for argument in values
    }
    lines = [
        f"guessed: {name} {why}"
        for name, why in guess.why.items()
        if {name, name.partition(".")[0]}.isdisjoint(of_start) and name not in named
    ]
    taken = sorted(of_start - named)
    if taken:
        lines.append(f"from the run that this one starts from: {', '.join(taken)}")
    # A schedule holds a learning rate too: whoever names an optimizer means the rate of
    # that.
    options = {
        name: value
        for name, value in started.items()
        if name != "scheduler" or "optimizer" not in given
    }
    return merged(options, given), lines


def values_of_data(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of the data set that the user gave."""
    data = given.get("data")
    return data if isinstance(data, Mapping) else {}


def recognised(
    place: Place, given: Mapping[str, Any]
) -> "tuple[type[Reader], Guess | ValueError]":
    """Ask every reader what a path holds, and return the first that recognises it.

    Args:
        place: the file or the folder.
        given: the options that the user gave.

    Returns:
        The reader, and what it saw: options, or why there can be no training.

    Raises:
        ValueError: no reader recognises it, or it is a device, a pipe or a socket.
    """
    if place.path.exists() and not place.path.is_dir():
        check_file(place.path)
    from torchcaps_lab.data import DataSet  # waits for torch
    from torchcaps_lab.data.reader import READERS
    from torchcaps_lab.kinds import KINDS

    # Readers of plug-ins are imported, and asked first. The others are when asked.
    plugged_in = [name for name in READERS.loaded() if name not in KINDS]
    for name in (*plugged_in, *KINDS):
        reader: type[Reader] = READERS.find(name)
        try:
            guess = reader.sees(place, given)
        except ValueError as error:
            return reader, error
        if guess is not None:
            return reader, guess._replace(reader=reader.name)
    usual: Any = READERS.find(DataSet.reads)
    raise ValueError(usual.missing(place))


def guess(named: str | Path, given: Mapping[str, Any] | None = None) -> Guess:
    """Return options for what lies at a path, or for a data set.

    Args:
        named: the folder, the file or the name of the data set.
        given: options that were given beside it; those of another network go with other
            ones.

    Raises:
        FileNotFoundError: if there is nothing of that name.
        ValueError: if no kind of input recognises it, or it cannot be trained on.
    """
    place = Place(named)
    path = place.path
    if path.exists():
        guessed = of_task(path, given or {}) or recognised(place, given or {})[1]
        if isinstance(guessed, ValueError):
            raise guessed
    else:
        guessed = _by_name(str(named))
    run = unused_run(path.stem if path.is_file() else resolved(path).name)
    return guessed._replace(
        options={**guessed.options, "run": run}, why={**guessed.why, "run": run}
    )


def of_task(data: Any, given: Mapping[str, Any]) -> Guess | None:
    """Return options of the task that was given, if it has its own for such data.

    Args:
        data: the path of a file or a folder; or what a program has.
        given: the options that the user gave.
    """
    name = name_in(given.get("task"))
    if name is None:
        return None
    from torchcaps_lab.tasks.base import TASKS, list_tasks  # waits for torch

    if name not in list_tasks():
        return None
    kind: Any = TASKS.find(name)
    guessed: Guess | None = kind.guess(data, given)
    return guessed


def _by_name(name: str) -> Guess:
    sets = listed("datasets")
    if "torchcaps_lab.data" in sys.modules or name in {*sets, *sets.values()}:
        from torchcaps_lab.data.base import DATASETS

        sets |= {set_name: kind.__name__ for set_name, kind in DATASETS.items()}
        try:
            kind = DATASETS.find(name, "data")
            return Guess(
                {"data": {"name": DATASETS.name_of(kind)}},
                {"data": f"{kind.__name__}, the data set of that name"},
            )
        except ValueError:
            pass
    place, separator, near = seen_from(name).partition("; ")
    meant_set = meant(name, list(sets.values()))
    raise FileNotFoundError(
        f"there is no folder {name}{place}, and no data set of that name"
        f"{separator + near or meant_set}"
    )


LISTED = Path(torchcaps_lab.__file__).parent / "cli" / "models.json"
"""What is registered, by name, generated: importing torch to say that there is none of
a name would take seconds.
"""


def listed(kind: str) -> dict[str, str]:
    """Return the registered names of the two packages with their classes.

    Args:
        kind: ``networks``, ``routings``, ``tasks`` or ``datasets``;
            ``data_arguments``, the arguments of all data sets, each with the class of
            the first that takes it.
    """
    rows = read_json(LISTED, LARGEST_NOTE)[kind]
    if kind == "networks":
        return {row["name"]: row["network"] for row in rows}
    return dict(rows)


def unused_run(of_data: str) -> str:
    """Return the folder of a run, with a number after its name if something is there
    already.

    Args:
        of_data: the name of the data.
    """
    folder = name = Path("runs") / of_data.lower()
    for number in count(2):
        if not name.exists() or not any(name.iterdir()):
            break
        name = folder.with_name(f"{folder.name}-{number}")
    return str(name)
