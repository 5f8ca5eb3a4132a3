"""Check a folder or a file: what 'torchcaps train' would do with it, and what is wrong
with it.
"""

import shlex
from itertools import chain
from json import dumps
from typing import TYPE_CHECKING, Any

from torchcaps_lab.cli.places import Existing
from torchcaps_lab.look import Guess, Place
from torchcaps_lab.options.guess import of_task, over, recognised
from torchcaps_lab.options.reading import merged

if TYPE_CHECKING:
    from torchcaps_lab.data.reader import Reader

_SKIPPING = {"data": {"skip_broken": True}}
"""Options of a training that leaves out what cannot be read."""


def command(
    folder: Existing,
    *,
    data: dict[str, Any] | str | None = None,
    task: str | None = None,
    json: bool = False,
) -> None:
    """Read every example of a folder or a file as 'torchcaps train' would.

    Args:
        folder: what to check, anything that 'torchcaps train' takes: a folder with a
            sub-folder of images for each class, images with a table of labels, with
            masks or with boxes, texts, series or sounds
        data: the data set that reads it, such as Series, and its options, as of
            'torchcaps train': --data.skip_broken true; default: what it looks like
        task: the task, as of 'torchcaps train'
        json: print JSON

    Raises:
        ValueError: if files cannot be read, or images of the same content are in
            several parts or classes.
    """
    from torchcaps_lab.look import counted

    place = Place(folder)
    arguments = {"name": data} if isinstance(data, str) else dict(data or {})
    given: dict[str, Any] = {"data": arguments} if arguments else {}
    if task is not None:
        given["task"] = task
    reader, guess = _recognised(place, given)
    if isinstance(guess, Guess):
        guess = guess._replace(options=over(guess, given)[0])
    report = reader.report(place, guess)
    if isinstance(guess, Guess) and guess.seen and not json:
        print("\n".join(["columns:", *guess.seen]))
    if json:
        print(dumps(report.json()))
    else:
        print("\n".join(report.lines()))
    skipping = merged(given, _SKIPPING)
    trained = guess if isinstance(guess, Guess) else _recognised(place, skipping)[1]
    if isinstance(trained, Guess) and not json:
        advised = report.advised(trained.options)
        print("\n".join(_advice(folder, trained, given, advised)))
    if report.problems:
        raise ValueError(
            f"{counted(len(report.problems), 'problems')} in {folder}, see above"
        )


def _recognised(
    place: Place, given: dict[str, Any]
) -> "tuple[type[Reader], Guess | ValueError]":
    """What reports about a path, and what is there: the data set that the user named,
    what the task takes, or what a reader recognises.
    """
    from torchcaps_lab.data.reader import Reader

    if "name" in given.get("data", {}):
        data = {**given["data"], "root": str(place.path)}
        return Reader, Guess({"data": data}, {})
    of_given = of_task(place.path, given)
    return recognised(place, given) if of_given is None else (Reader, of_given)


def _advice(
    folder: str, guess: Guess, given: dict[str, Any], advised: dict[str, str] | None
) -> list[str]:
    """What a training would choose, and the command that trains."""
    lines = over(guess, given)[1]
    if advised is None:
        return lines
    data = dict(given.get("data", {}))
    words = [folder]
    if "name" in data:
        words = ["--data", data.pop("name"), "--data.root", folder]
        advised = {**advised, "--run": f"runs/{Place(folder).path.stem.lower()}"}
    if "task" in given:
        words += ["--task", given["task"]]
    chosen = {f"--data.{name}": _typed(value) for name, value in data.items()}
    words += chain.from_iterable({**chosen, **advised}.items())
    return [*lines, f"train on it: {shlex.join(['torchcaps', 'train', *words])}"]


def _typed(value: Any) -> str:
    """The value of an option as it is typed."""
    if isinstance(value, str) and value.strip():
        return value
    return dumps(value, ensure_ascii=False)
