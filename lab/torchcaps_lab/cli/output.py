"""Lines of commands that go on when nobody reads them any more."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from torchcaps_lab.look import CONTROLS


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


@contextmanager
def harmless_output() -> Iterator[None]:
    """Escapes what is printed within and would command a terminal: names of files,
    columns and options may hold anything.
    """
    with redirect_stdout(_Escaped(sys.stdout)), redirect_stderr(_Escaped(sys.stderr)):
        yield


class _Escaped:
    """A stream that text is escaped for."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return int(self._stream.write(CONTROLS.sub(_escape, text)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _escape(match: re.Match[str]) -> str:
    # Lines, tables and lines that are rewritten in place are of our own.
    if match[0] in "\n\t\r":
        return match[0]
    return match[0].encode("unicode_escape").decode()
