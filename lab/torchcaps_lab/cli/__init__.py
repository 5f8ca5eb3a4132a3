"""The command line of torchcaps, with one file for each command, which is imported when
it is called.
"""

import codecs
import difflib
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from io import TextIOWrapper

from torchcaps_lab.cli.output import harmless_output, shortened, until_unread
from torchcaps_lab.cli.parser import OptionParser, WrongUsage, parser_of
from torchcaps_lab.cli.plugins import import_plugins, importing

__all__ = ["OptionParser"]


def _run(name: str, arguments: list[str]) -> None:
    """Calls the function of a command with its arguments; help and wrong ones end it
    before it is imported.
    """
    parser = parser_of(name)
    with importing():
        options = vars(parser.parse_args(arguments))
        command = _imported(name)
    del options["help"], options["import"]
    try:
        command(**options)
    except WrongUsage as error:
        parser.error(str(error))


def _train(arguments: list[str]) -> None:
    _imported("train")(arguments)


def _imported(name: str) -> Callable[..., None]:
    return import_module(f"{__name__}.{name}").command


NAMES = (
    "check",
    "evaluate",
    "predict",
    "explain",
    "explore",
    "transfer",
    "models",
    "convert",
    "export",
)

COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "train": _train,
    **{name: partial(_run, name) for name in NAMES},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status.

    It is 0 for success, 1 for an error, 2 for wrong usage, 130 after Ctrl-C, 141 for a
    broken pipe. What trains goes on without a reader of its output
    (:func:`torchcaps_lab.cli.output.say`), and ends with 0.
    """
    _open_closed_streams()
    _escape_what_cannot_be_shown()
    words = list(sys.argv[1:] if arguments is None else arguments)
    with harmless_output():
        return until_unread(partial(_main, words))


def _main(arguments: list[str]) -> int:
    asks = arguments[:1] in (["--version"], ["-h"], ["--help"])
    if not arguments or (arguments[0] not in COMMANDS and not asks):
        print(_unknown(arguments[0]) if arguments else _usage(), file=sys.stderr)
        return 2
    name, *words = arguments
    try:
        if asks:
            print(_version() if name == "--version" else _usage())
        else:
            with importing():
                import_plugins()
                OptionParser.import_from(words)
            COMMANDS[name](words)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        print(f"torchcaps {name}: stopped", file=sys.stderr)
        return 128 + 2
    except (ValueError, OSError, FloatingPointError, ModuleNotFoundError) as error:
        text = str(error)
        is_fault = isinstance(error, ModuleNotFoundError) and "pip install" not in text
        if is_fault or os.environ.get("TORCHCAPS_TRACEBACK"):
            raise
        print(f"torchcaps {name}: error: {shortened(text)}", file=sys.stderr)
        return 1
    return 0


def _open_closed_streams() -> None:
    """Discards what is written to outputs that were closed before the start, as daemons
    do.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(
                sys,
                name,
                os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"),
            )


def _escape_what_cannot_be_shown() -> None:
    """Has letters that the output's encoding lacks, in names of classes and files,
    printed as ``\\u4e2d``.

    They would end the command with an error, a training after its last epoch. The
    output of a POSIX locale still writes names of files byte by byte.
    """
    if not isinstance(sys.stdout, TextIOWrapper):
        return
    if sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    elif sys.stdout.errors == "surrogateescape":
        codecs.register_error("torchcaps.bytes_or_escape", _bytes_or_escape)
        sys.stdout.reconfigure(errors="torchcaps.bytes_or_escape")


def _bytes_or_escape(error: UnicodeError) -> tuple[str | bytes, int]:
    """The bytes that stand for a part of a name that is no text, or an escape."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeEncodeError:
        return codecs.lookup_error("backslashreplace")(error)


def _version() -> str:
    from torchcaps import __version__

    return __version__


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, [*COMMANDS, "--version", "--help"], 1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return (
        f"torchcaps: error: unknown command {name!r}{meant}\n'torchcaps --help' "
        "lists the commands."
    )


def _usage() -> str:
    modules = {name: import_module(f"{__name__}.{name}") for name in COMMANDS}
    rows = [
        textwrap.fill(
            f"{name:10}{' '.join(str(module.__doc__).split())}",
            initial_indent="  ",
            subsequent_indent=12 * " ",
            width=88,
        )
        for name, module in modules.items()
    ]
    return "\n".join(
        [
            "usage: torchcaps COMMAND ...",
            "",
            *rows,
            "",
            "'torchcaps COMMAND --help' lists the options of a command.",
            "'--import my_module' (or a .py file) executes your own module first. "
            "Its routings, networks,",
            "data sets, tasks and similarities can then be named in any command.",
            "TORCHCAPS_TRACEBACK=1 shows the full traceback of an error.",
        ]
    )
