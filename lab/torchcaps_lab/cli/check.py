"""Check a folder or a file: what 'torchcaps train' would do with it, and what is wrong
with it.
"""

import shlex
from itertools import chain
from json import dumps
from typing import Any

from torchcaps_lab.cli.places import Existing
from torchcaps_lab.look import Guess, Place
from torchcaps_lab.options.guess import over, seen
from torchcaps_lab.options.reading import merged

_SKIPPING = {"data": {"skip_broken": True}}
"""Options of a training that leaves out what cannot be read."""


def command(
    folder: Existing, *, data: dict[str, Any] | None = None, json: bool = False
) -> None:
    """Read every example of a folder or a file as 'torchcaps train' would.

    Args:
        folder: what to check, anything that 'torchcaps train' takes: a folder with a
            sub-folder of images for each class, images with a table of labels, with
            masks or with boxes, texts, series or sounds
        data: options of the data set, as of 'torchcaps train': --data.skip_broken true
        json: print JSON

    Raises:
        ValueError: if `data` has a ``name``, files cannot be read, or images of the
            same content are in several parts or classes.
    """
    from torchcaps_lab.data.manifest import count_of

    if data and "name" in data:
        raise ValueError(f"{folder} and --data.name both name the data: give one")
    place = Place(folder)
    given = {"data": data} if data else {}
    reader, guess = seen(place, given)
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
    trained = guess if isinstance(guess, Guess) else seen(place, skipping)[1]
    if isinstance(trained, Guess) and not json:
        advised = report.advised(trained.options)
        chosen = {
            f"--data.{name}": _typed(value) for name, value in (data or {}).items()
        }
        advised = None if advised is None else {**chosen, **advised}
        print("\n".join(_advice(folder, trained, given, advised)))
    if report.problems:
        raise ValueError(
            f"{count_of(report.problems, 'problem')} in {folder}, see above"
        )


def _advice(
    folder: str,
    guess: Guess,
    given: dict[str, Any],
    advised: dict[str, str] | None,
) -> list[str]:
    """What a training would choose, and the command that trains."""
    lines = over(guess, given)[1]
    if advised is None:
        return lines
    words = chain.from_iterable(advised.items())
    command = shlex.join(["torchcaps", "train", folder, *words])
    return [*lines, f"train on it: {command}"]


def _typed(value: Any) -> str:
    """The value of an option as it is typed."""
    return value if isinstance(value, str) and value.strip() else dumps(value)
