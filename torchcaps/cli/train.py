"""``torchcaps train``."""

import shlex
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcaps.cli.output import say
from torchcaps.cli.plugins import named_imports, without_imports

if TYPE_CHECKING:
    from torchcaps.training import RunFolder


def command(arguments: list[str]) -> None:
    """Train a network; write metrics, checkpoints, the network, a summary and a report into a folder."""
    from torchcaps import training

    given = again = shlex.join(["torchcaps", "train", *arguments])
    imports, arguments = named_imports(arguments), without_imports(arguments)
    allow_changes, arguments = "--allow_changes" in arguments, [one for one in arguments if one != "--allow_changes"]
    resumed = _resumed_run(arguments)
    parser = training.train_parser(imports)
    for file in _values(arguments, "--config") if resumed is None else [str(resumed[0].config)]:
        if Path(file).is_file():
            training.read_options(Path(file), training.option_hints(), imports)  # for a message, not the usage
    if resumed is None:
        config = parser.parse_args(arguments)
        folder = training.RunFolder(Path(config.run))
        if training.is_first_process():
            folder.unused()
        named = [part for module in imports for part in ("--import", module)]
        again = shlex.join(["torchcaps", "train", "--resume", str(folder.path), *named])
    else:
        folder, arguments = resumed
        config = parser.parse_args(["--config", str(folder.config), *arguments, "--run", str(folder.path)])
    config["import"] = imports
    training.quiet_lightning()
    terminal = sys.stdout.isatty()
    try:
        summary = training.train_parsed(
            folder,
            parser,
            config,
            command=given,
            progress_bar=terminal,
            allow_changes=allow_changes,
            show=None if terminal else say,
        )
    except (SystemExit, KeyboardInterrupt):
        if folder.config.exists():
            print(f"stopped; continue with: {again}", file=sys.stderr)
        raise
    if summary is not None:
        _print_summary(summary, notes=terminal)  # without a terminal they were printed at the start
        page = folder.path / "report" / "index.html"
        say(f"summary {folder.summary}" + (f", report {page}" if config.report and page.is_file() else ""))


def _print_summary(summary: Mapping[str, Any], notes: bool) -> None:
    """Prints the figures of a run, its warnings and, if wanted, its notes."""
    from torchcaps.tasks import as_task

    main = as_task(summary["task"]).main
    tested = summary.get(f"test_{main.name}")
    found = "" if tested is None else f"test {main.name} {main.text(tested)} "
    epochs = summary["epochs"]
    say(f"{found}after {epochs} epoch{'s' if epochs != 1 else ''}")
    if "test_balanced_accuracy" in summary:
        balanced = summary["test_balanced_accuracy"]
        say(f"balanced accuracy {100 * balanced:.2f} % (the mean over the classes, each counting alike)")
    for line in summary.get("warnings", []):
        say(f"warning: {line}")
    for line in summary.get("notes", []) if notes else ():
        say(f"note: {line}")


def _resumed_run(arguments: list[str]) -> "tuple[RunFolder, list[str]] | None":
    """The run that ``--resume`` names, and the other arguments."""
    from torchcaps.training import RunFolder

    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--resume":
            path = value if equals else "".join(arguments[place + 1 : place + 2])
            if not path:
                raise ValueError("--resume needs the folder of a run")
            others = arguments[:place] + arguments[place + (1 if equals else 2) :]
            if elsewhere := _values(others, "--run"):
                raise ValueError(f"--resume continues in {path} itself and takes no --run, got {elsewhere[0]}")
            return RunFolder(Path(path)).existing(), others
    return None


def _values(arguments: list[str], name: str) -> list[str]:
    """The values of an option, one for each time that it is given."""
    following = [after for option, after in pairwise(arguments) if option == name]
    return following + [one.partition("=")[2] for one in arguments if one.startswith(f"{name}=")]
