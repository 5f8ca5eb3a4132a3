"""``torchcaps predict``."""

import json
from pathlib import Path

from torchcaps.cli.plugins import add_import
from torchcaps.cli.runs import open_classifier


def command(arguments: list[str]) -> None:
    """Classify image files: class, length of its capsule and, as JSON, all lengths and poses."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(prog="torchcaps predict", description="Classify image files with the network of a run.")
    parser.add_argument("run", type=str, help="folder of a run, or of a saved network")
    parser.add_argument("images", type=str, nargs="+", help="image files")
    parser.add_argument("--resize", type=str, choices=("pad", "crop", "stretch"), default="pad", help="to fit")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, with the poses")
    add_import(parser)
    options = parser.parse_args(arguments)
    classifier = open_classifier(options.run)
    answers = classifier.predict([Path(file) for file in options.images], options.resize)
    assert isinstance(answers, list)
    for file, answer in zip(options.images, answers, strict=True):
        print(json.dumps({"file": file, **answer.json()}) if options.json else f"{file}: {answer}")
