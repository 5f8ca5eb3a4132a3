"""The command line: ``torchcaps train | evaluate | predict | explain | models | run | recipes | bench``."""

import csv
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

import torchcaps
from torchcaps.models import ImageClassifier, describe_models, list_models, load_pretrained
from torchcaps.routing import list_routings
from torchcaps.routing.base import ROUTINGS

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from torchcaps.data import ImageData, ImageSet, Preprocess
    from torchcaps.training import RunFolder

SPLITS = ("test", "validation", "train")
PREDICT_BATCH = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status: 0, 1 for an error, 2 for wrong usage."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments == ["--version"]:
        print(torchcaps.__version__)
        return 0
    if arguments in (["-h"], ["--help"]):
        print(_usage())
        return 0
    if not arguments or arguments[0] not in COMMANDS:
        print(_usage(), file=sys.stderr)
        return 2
    name, *rest = arguments
    try:
        COMMANDS[name](rest)
    except (ValueError, OSError, FloatingPointError) as error:
        if os.environ.get("TORCHCAPS_TRACEBACK"):
            raise
        print(f"torchcaps {name}: error: {error}", file=sys.stderr)
        return 1
    return 0


def _usage() -> str:
    rows = [f"  {name:10}{(command.__doc__ or '').splitlines()[0]}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: torchcaps COMMAND ...",
            "",
            *rows,
            "",
            "'torchcaps COMMAND --help' lists the options of a command.",
            "TORCHCAPS_TRACEBACK=1 shows where an error came from.",
        ]
    )


def train_command(arguments: list[str]) -> None:
    """Train a network; writes a folder with metrics, checkpoints, the model, a summary and a report."""
    from torchcaps import training

    parser = training.train_parser()
    resumed = _resumed_run(arguments)
    if resumed is None:
        config = parser.parse_args(arguments)
        folder = training.RunFolder(Path(config.run))
        if training.is_first_process():
            folder.unused()
    else:
        folder, arguments = resumed
        config = parser.parse_args(["--config", str(folder.config), *arguments, "--run", str(folder.path)])
    training.quiet_lightning()
    terminal = sys.stdout.isatty()
    try:
        summary = training.train_parsed(
            folder,
            parser,
            config,
            command=shlex.join(["torchcaps", "train", *sys.argv[2:]]),
            progress_bar=terminal,
            show=None if terminal else partial(print, flush=True),
        )
    except SystemExit:  # Lightning's answer to Ctrl-C
        print(f"stopped; continue with: torchcaps train --resume {folder.path}", file=sys.stderr)
        raise
    if summary is not None:
        print(f"test accuracy {100 * summary['test_accuracy']:.2f} % after {summary['epochs']} epochs")
        print(f"summary {folder.summary}, report {folder.path / 'report' / 'index.html'}")


def _resumed_run(arguments: list[str]) -> "tuple[RunFolder, list[str]] | None":
    """The run that ``--resume`` names, and the other arguments."""
    from torchcaps.training import RunFolder

    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--resume":
            path = value if equals else "".join(arguments[place + 1 : place + 2])
            if not path:
                raise ValueError("--resume needs the folder of a run")
            return RunFolder(Path(path)).existing(), arguments[:place] + arguments[place + (1 if equals else 2) :]
    return None


def evaluate_command(arguments: list[str]) -> None:
    """Test a trained network: accuracy, error, confusion matrix."""
    from torchcaps.explain import examine

    parser = _look_parser("evaluate", "Test the network of a run.")
    parser.add_argument("--crops", type=Literal[1, 13], help="of each image; default: what the run was trained with")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    network, images = _open(parser, options)
    if options.crops is not None:
        images = images.prepared(replace(images.preprocess, crops=options.crops))
    findings = examine(network, images, batch_size=options.batch_size)
    result = {
        "split": options.split,
        "images": len(images),
        "crops": images.preprocess.crops,
        "accuracy": findings.accuracy,
        "error_percent": 100 * (1 - findings.accuracy),
        "confusion": findings.confusion.tolist(),
        "classes": list(images.classes),
    }
    if options.json:
        print(json.dumps(result))
        return
    print(f"{options.split}: {findings.accuracy:.2%} of {len(images)} images right")
    for name, row in zip(images.classes, findings.confusion.tolist(), strict=True):
        print(f"  {name}: {' '.join(f'{count:5}' for count in row)}")


def explain_command(arguments: list[str]) -> None:
    """Draw the report of a trained network: reconstructions, perturbations, mistakes, assignment maps."""
    from torchcaps.explain import write_report
    from torchcaps.training import RunFolder, read_summary

    parser = _look_parser("explain", "Draw the report of a run.")
    parser.add_argument(
        "--out",
        type=str,
        help="folder to write 'report/' into; default: the run, or 'explain-SPLIT' in it for other images",
    )
    options = parser.parse_args(arguments)
    network, images = _open(parser, options)
    folder = RunFolder(Path(options.run))
    own = options.split == "test" and options.data is None
    summary = read_summary(folder) if folder.summary.is_file() else {}
    metrics = _read_metrics(folder.metrics) if folder.metrics.is_file() else []
    out = Path(options.out) if options.out else folder.path if own else folder.path / f"explain-{options.split}"
    out.mkdir(parents=True, exist_ok=True)
    print(write_report(out, network, images, summary, metrics))


def _look_parser(command: str, description: str) -> "ArgumentParser":
    from jsonargparse import ArgumentParser

    from torchcaps.data import ImageData

    parser = ArgumentParser(prog=f"torchcaps {command}", description=description)
    parser.add_argument("run", type=str, help="folder of a run")
    parser.add_argument("--data", type=ImageData | None, help="other images than those of the run")
    parser.add_argument("--split", type=str, choices=SPLITS, default="test", help="which images")
    parser.add_argument("--batch_size", type=int, default=128, help="images at a time")
    return parser


def _open(parser: "ArgumentParser", options: Any) -> "tuple[ImageClassifier, ImageSet]":
    """The network of a run and the images that the options name."""
    from torchcaps.training import RunFolder

    folder = RunFolder(Path(options.run)).existing()
    network = load_pretrained(folder.model)
    if options.data is None:
        import yaml

        recorded = yaml.safe_load(folder.config.read_text())["data"]
        options = parser.parse_object({"run": options.run, "split": options.split, "data": recorded})
    data: ImageData = parser.instantiate(options).data
    images: ImageSet = getattr(data, options.split)
    preprocess, image_shape = _preparation(network)
    if images.image_shape != image_shape:
        raise ValueError(f"the images are {images.image_shape}, the network takes {image_shape}")
    if len(images.classes) != network.classes:
        raise ValueError(f"the images have {len(images.classes)} classes, the network has {network.classes}")
    if not len(images):
        raise ValueError(f"the {options.split} split is empty")
    return network, images.prepared(preprocess)


def _preparation(network: ImageClassifier) -> "tuple[Preprocess, tuple[int, int, int]]":
    """How the network's images are prepared, and their shape before that; a network may have been saved without."""
    from torchcaps.data import Preprocess

    channels, height, width = network.extra.get("raw_image_shape", network.image_shape)
    return Preprocess.from_config(network.extra.get("preprocess", {})), (channels, height, width)


def _read_metrics(path: Path) -> list[dict[str, float]]:
    with path.open(newline="") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def predict_command(arguments: list[str]) -> None:
    """Classify image files: class, length of its capsule and, as JSON, all lengths and poses."""
    from jsonargparse import ArgumentParser

    from torchcaps.data import load_image

    parser = ArgumentParser(prog="torchcaps predict", description="Classify image files with the network of a run.")
    parser.add_argument("run", type=str, help="folder of a run, or of a saved network")
    parser.add_argument("images", type=str, nargs="+", help="image files")
    parser.add_argument("--resize", type=str, choices=("pad", "crop", "stretch"), default="pad", help="to fit")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, with the poses")
    options = parser.parse_args(arguments)
    path = Path(options.run)
    network = load_pretrained(path / "model" if (path / "model").is_dir() else path)
    names = network.extra.get("classes") or [str(label) for label in range(network.classes)]
    preprocess, image_shape = _preparation(network)
    if image_shape[0] not in (1, 3):
        raise ValueError(f"image files have 1 or 3 channels, the network takes {image_shape[0]}")
    pixels = [load_image(name, image_shape, options.resize) for name in options.images]  # all, before any output
    size = PREDICT_BATCH // preprocess.crops
    for start in range(0, len(pixels), size):
        files = options.images[start : start + size]
        batch = torch.stack(pixels[start : start + size]).float() / 255
        for row in _predict(network, files, preprocess.evaluate_crops(batch), names):
            print(json.dumps(row) if options.json else f"{row['file']}: {row['class']} ({row['length']:.3f})")


@torch.no_grad()
def _predict(network: ImageClassifier, files: list[str], crops: torch.Tensor, names: list[str]) -> list[dict[str, Any]]:
    """A row for each file, of its crops (B, K, C, H, W): their mean activations, and the poses in the first."""
    prediction = network(crops.flatten(0, 1))
    activations = prediction.activation.unflatten(0, crops.shape[:2]).mean(1)
    rows = []
    for place, (file, activation) in enumerate(zip(files, activations, strict=True)):
        best = int(activation.argmax())
        row = {
            "file": file,
            "class": names[best],
            "length": float(activation[best]),
            "lengths": dict(zip(names, activation.tolist(), strict=True)),
        }
        if prediction.capsules is not None:
            row["poses"] = dict(zip(names, prediction.capsules.pose[place * crops.shape[1]].tolist(), strict=True))
        rows.append(row)
    return rows


def models_command(arguments: list[str]) -> None:
    """List the networks and the routing algorithms."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(prog="torchcaps models", description="List the networks and the routing algorithms.")
    parser.add_argument("pattern", type=str, nargs="?", default="*", help="shell pattern of network names")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    rows = describe_models(list_models(options.pattern))
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        shape = "x".join(str(extent) for extent in row["image_shape"])
        print(f"{row['name']:20} {row['parameters']:>10,} parameters at {shape:9} {row['source']}")
    print("\nroutings: " + ", ".join(f"{name} ({ROUTINGS[name].__name__})" for name in list_routings()))


def run_command(arguments: list[str]) -> None:
    """Run a published experiment by name; writes its result, pictures and the table of all of them."""
    from jsonargparse import ArgumentParser

    from torchcaps import recipes
    from torchcaps.training import quiet_lightning

    parser = ArgumentParser(prog="torchcaps run", description="Run a recipe; 'torchcaps recipes' lists them.")
    add = parser.add_argument
    add("recipe", type=str, choices=list(recipes.RECIPES), help="its name")
    add("--preset", type=str, choices=recipes.PRESETS, default="quick", help="paper: as published, for a GPU; quick: "
        "two cores of a CPU, an hour at most; smoke: seconds")  # fmt: skip
    add("--seeds", type=int, nargs="+", default=[0], help="one run for each")
    add("--runs", type=str, default=str(recipes.RUNS), help="folder for the trained networks; run again to go on")
    add("--results", type=str, default=str(recipes.results_folder()), help="folder for the result file and the table")
    add("--trainer", type=dict[str, Any], default={}, help="as in 'torchcaps train': --trainer.accelerator cpu")
    options = parser.parse_args(arguments)
    quiet_lightning()
    result = recipes.run_recipe(
        options.recipe,
        options.preset,
        options.seeds,
        runs=Path(options.runs),
        results=Path(options.results),
        trainer=options.trainer,
        command=shlex.join(["torchcaps", "run", *arguments]),
        show=partial(print, flush=True),
    )
    print(recipes.describe(recipes.get_recipe(options.recipe), {options.preset: result}))
    print(f"result {recipes.result_path(Path(options.results), options.recipe, options.preset)}")


def recipes_command(arguments: list[str]) -> None:
    """List the published experiments with the published figures beside ours."""
    from jsonargparse import ArgumentParser

    from torchcaps import recipes

    parser = ArgumentParser(prog="torchcaps recipes", description="List the recipes, published figures beside ours.")
    parser.add_argument("names", type=str, nargs="*", help="recipes; default: all")
    parser.add_argument("--results", type=str, default=str(recipes.results_folder()), help="folder of the result files")
    parser.add_argument("--check", action="store_true", help="run the smoke presets; name results of older code")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    chosen = [recipes.get_recipe(name) for name in options.names or recipes.RECIPES]
    if options.check:
        from torchcaps.training import quiet_lightning

        quiet_lightning()
        failed = recipes.check([one.name for one in chosen], Path(options.results), partial(print, flush=True))
        if failed:
            raise ValueError(f"the smoke presets of {', '.join(failed)} fail")
        return
    results = recipes.read_results(Path(options.results))
    found = {one.name: {preset: r for (name, preset), r in results.items() if name == one.name} for one in chosen}
    if options.json:
        print(json.dumps([recipes.as_json(one, found[one.name]) for one in chosen], ensure_ascii=False))
        return
    short = not options.names
    print("\n\n".join(recipes.describe(one, found[one.name], short) for one in chosen))


def bench_command(arguments: list[str]) -> None:
    """Measure speed and memory beside the physical limit, with every backend."""
    from torchcaps.bench import command

    command.main(arguments, partial(print, flush=True))


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "train": train_command,
    "evaluate": evaluate_command,
    "predict": predict_command,
    "explain": explain_command,
    "models": models_command,
    "run": run_command,
    "recipes": recipes_command,
    "bench": bench_command,
}
