"""Train a network; write metrics, checkpoints, the network, a summary and a report into
a folder.
"""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcaps.spec import meant
from torchcaps.whole import seen_from
from torchcaps_lab.cli.output import say
from torchcaps_lab.cli.parser import OptionParser, lacks_name
from torchcaps_lab.cli.plugins import importing, named_imports
from torchcaps_lab.look import Guess, counted, name_in, value_of
from torchcaps_lab.options.declarations import GROUPS
from torchcaps_lab.options.guess import guess, listed, over
from torchcaps_lab.options.reading import as_yaml, merged, read_options
from torchcaps_lab.run_folder import RunFolder, is_first_process

if TYPE_CHECKING:
    from torchcaps_lab.training.command_line import TrainingOptions

_OF_THE_COMMAND = "resume", "config", "allow_changes", "print_config"


def command(arguments: list[str]) -> None:
    """Trains as the options say, or goes on with a run."""
    parser = train_parser()
    tree = parser.tree(arguments)
    place = tree.pop("folder", None)
    _check_model(parser, tree.get("model"))
    parser.check_simple(tree)
    if place is None and not tree.keys() & {"data", "config", "resume"}:
        parser.error(
            "the data are missing: 'torchcaps train FOLDER', or the name of a data set"
        )
    _check_names(parser, tree)
    _check_data(parser, tree.get("data"))
    resume = tree.get("resume")
    files = [Path(file) for file in tree.get("config", [])]
    options = {
        name: value for name, value in tree.items() if name not in _OF_THE_COMMAND
    }
    if imports := named_imports(arguments):
        options["import"] = imports
    if resume is not None:
        if "run" in options:
            raise ValueError(
                f"--resume continues in {resume} itself and takes no --run, got "
                f"{options['run']}"
            )
        folder = RunFolder(Path(resume)).existing()
        files, options["run"] = [folder.config, *files], str(folder.path)
    options_so_far = merged(_of_files(files), options)
    guessed = list[str]()
    if place is not None:
        option = "--resume" if resume is not None else "--data"
        data = options_so_far.get("data")
        if resume is not None or (data is not None and not lacks_name(data)):
            parser.error(f"{place} and {option} both name the data: give one")
        options_so_far, guessed = over(guess(place, options_so_far), options_so_far)
    elif "start" in options_so_far and resume is None:
        named = Guess({"data": options_so_far.get("data")}, {})
        options_so_far, _ = over(named, options_so_far)
    try:
        with importing():
            from torchcaps_lab.training.command_line import training_options

            chosen = training_options(options_so_far)
    except ValueError as error:
        parser.error(
            f"{error}\n  read from {', '.join(map(str, files))}"
            if files
            else str(error)
        )
    if "print_config" in tree:
        say(as_yaml(chosen.plain()))
        return
    if chosen.run is None:
        parser.error(
            "--run is missing: the folder to write; 'torchcaps train FOLDER' chooses "
            "one"
        )
    if resume is None:
        folder = RunFolder(Path(chosen.run))
        if is_first_process():
            folder.unused()
    for line in guessed if is_first_process() else ():
        say(line)
    _train(
        folder,
        chosen,
        shlex.join(["torchcaps", "train", *arguments]),
        resume is not None,
        "allow_changes" in tree,
    )


def _check_model(parser: OptionParser, model: Any) -> None:
    """Refuses arguments of a network beside its name: they are an option of their own."""
    model = value_of(model)
    if isinstance(model, Mapping):
        parser.error(
            f"there is no option model.{next(iter(model), '')}: --model names a "
            "network, and --model_args has its arguments"
        )


def _check_names(parser: OptionParser, tree: Mapping[str, Any]) -> None:
    """Names of networks and routings; where a module of one's own was imported, the
    registries know, and come later.
    """
    rooms = {"model": ("models", "networks"), "routing": ("routing", "routings")}
    for option, (room, kind) in rooms.items():
        name = name_in(tree.get(option))
        if name is None or "." in name or f"torchcaps.{room}" in sys.modules:
            continue
        registered = listed(kind)
        if name not in {*registered, *registered.values()}:
            near = meant(name, [*registered, *registered.values()])
            parser.error(
                f"{option} must be the name of a {kind.removesuffix('s')}, got "
                f"{name!r}{near}\n  To use your own, import its module with --import "
                f"my_module\n  The names: {', '.join(sorted(registered))}"
            )


def _check_data(parser: OptionParser, data: Any) -> None:
    """Refuses arguments that no data set takes; whether this one takes the others is
    seen once torch is there.
    """
    data = value_of(data)
    if not isinstance(data, Mapping) or "torchcaps_lab.data" in sys.modules:
        return
    arguments = {"name", *listed("data_arguments")}
    for name in data:
        if name not in arguments:
            if name in parser.hints:
                near = f"; did you mean --{name}?"
            else:
                near = meant(name, sorted(arguments))
            parser.error(
                f"there is no option data.{name}{near}\n  No data set takes it"
            )


def _train(
    folder: RunFolder,
    chosen: "TrainingOptions",
    typed: str,
    resumed: bool,
    allow_changes: bool,
) -> None:
    """Trains, and prints what came of it; or after an interruption how to go on."""
    with importing():
        from torchcaps_lab.training.fitting import quiet_lightning
        from torchcaps_lab.training.progress import can_rewrite
        from torchcaps_lab.training.run import train_with

        quiet_lightning()
    try:
        summary = train_with(
            folder,
            chosen,
            command=typed,
            show=say,
            header=True,
            progress_bar=can_rewrite(),
            allow_changes=allow_changes,
        )
    except (SystemExit, KeyboardInterrupt):
        if folder.config.exists():
            named: list[str] = []
            for module in chosen.imported:
                named += ["--import", module]
            again = shlex.join(
                ["torchcaps", "train", "--resume", str(folder.path), *named]
            )
            print(
                f"stopped; continue with: {typed if resumed else again}",
                file=sys.stderr,
            )
        raise
    if summary is not None:
        _print_summary(summary)
        page = folder.path / "report" / "index.html"
        drawn = chosen.plain()["report"] and page.is_file()
        say(f"summary {folder.summary}" + (f", report {page}" if drawn else ""))


def train_parser() -> OptionParser:
    """The options of ``torchcaps train``."""
    description = (
        "Train a network. With a folder, a file or the name of a data set, it chooses "
        "and prints the options that you leave out. '--resume RUN' instead of "
        "'--run RUN' continues an interrupted run.\n\n"
        "'--routing em --help', '--preprocess Preprocess --help' and the like also list "
        "the options of what they name."
    )
    parser = OptionParser("torchcaps train", description)
    parser.add_argument(
        "folder",
        nargs="?",
        help="what to train on: a folder with a sub-folder of images for each class, "
        "anything else that 'torchcaps check' takes, or the name of a data set",
    )
    parser.add_argument(
        "--config",
        action="append",
        metavar="FILE",
        help="YAML file with any of these options",
    )
    parser.add_argument(
        "--run", metavar="FOLDER", help="folder to write; must be new or empty"
    )
    parser.add_argument(
        "--resume", metavar="RUN", help="folder of an interrupted run to continue"
    )
    parser.add_argument(
        "--allow_changes",
        action="store_true",
        help="resume with other options or images",
    )
    parser.add_argument(
        "--print_config",
        action="store_true",
        help="print all options, as a file for --config",
    )
    parser.take_imports()
    for group in GROUPS:
        parser.take(group, "torchcaps_lab.training.options", partly=True)
    return parser


def _of_files(files: list[Path]) -> dict[str, Any]:
    """The options in files, those of later ones over those of earlier ones."""
    options: dict[str, Any] = {}
    for file in files:
        if not file.is_file():
            raise ValueError(f"--config: there is no file {file}{seen_from(file)}")
        options = merged(options, read_options(file))
    return options


def _print_summary(summary: Mapping[str, Any]) -> None:
    """Prints the figures of a run and its warnings; its notes were printed at the
    start.
    """
    from torchcaps_lab.tasks import as_task

    main = as_task(summary["task"]).main
    tested = summary.get(f"test_{main.name}")
    result = "" if tested is None else f"test {main.name} {main.text(tested)} "
    used = summary["used_epoch"]
    when = counted(summary["epochs"], "epochs")
    if used["epoch"] != summary["epochs"]:
        when = f"epoch {used['epoch']} of {summary['epochs']} ({used['by']})"
    say(f"{result}after {when}")
    if "test_balanced_accuracy" in summary:
        balanced = summary["test_balanced_accuracy"]
        say(f"balanced accuracy {100 * balanced:.2f} % (the mean over the classes)")
    for line in summary.get("warnings", []):
        say(f"warning: {line}")
