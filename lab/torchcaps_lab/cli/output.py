"""Lines of commands that go on when nobody reads them any more."""

import os
import sys
from collections.abc import Callable


def say(line: str) -> None:
    """Prints a line at once. Once the reader has gone, as with ``| head``, lines are
    discarded: work is not lost.
    """
    try:
        print(line, flush=True)
    except BrokenPipeError:
        discard_output()


def until_unread(command: Callable[[], int]) -> int:
    """Runs a command and returns its exit status: that of a broken pipe, 141, once
    nobody reads its output any more, as with ``| head``, which is no error.
    """
    try:
        try:
            return command()
        finally:
            print(end="", flush=True)
    except BrokenPipeError:
        discard_output()
        return 128 + 13


def discard_output() -> None:
    """Has the rest of the output discarded, also what is buffered: it would fail again
    when Python exits.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


MOST_LETTERS = 4_000
"""Of an error: 50 lines. Longer ones repeat what a file or a value holds, which may be
megabytes.
"""


def shortened(message: str) -> str:
    """Return the text of an error, without its middle if it has more than
    :data:`MOST_LETTERS` letters.

    Its beginning names what is wrong, its end what to do.
    """
    if len(message) <= MOST_LETTERS:
        return message
    half = MOST_LETTERS // 2
    return (
        f"{message[:half]} ... ({len(message) - 2 * half:,} letters left out) ... "
        f"{message[-half:]}"
    )
