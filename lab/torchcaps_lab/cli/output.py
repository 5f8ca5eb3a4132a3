"""Lines of commands that go on when nobody reads them any more."""

import os
import sys


def say(line: str) -> None:
    """Prints a line at once. Once the reader has gone, as with ``| head``, lines are discarded: work is not lost."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """Has the rest of the output discarded, also what is buffered: it would fail again when Python exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
