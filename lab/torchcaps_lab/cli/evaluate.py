"""``torchcaps evaluate``."""

import json
from typing import Literal

from torchcaps.numerics import jsonable
from torchcaps_lab.cli.runs import look_parser, open_run


def command(arguments: list[str]) -> None:
    """Test a trained network: accuracy, error, confusion matrix, or what its task measures."""
    parser = look_parser("evaluate", "Test the network of a run.")
    parser.add_argument("--batch_size", type=int, default=128, help="images at a time")
    parser.add_argument("--crops", type=Literal[1, 13], help="crops of each image to average; default: as trained")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    classifier, images = open_run(parser, options)
    found = classifier.examine(images, options.batch_size, options.crops)
    if options.json:
        result = {
            "split": options.split,
            "images": len(images),
            "crops": options.crops or classifier.preprocess.crops,
            **found.figures,
            **found.details,
            "classes": list(images.classes),
            "warnings": list(found.warnings),
        }
        print(json.dumps(jsonable(result)))
        return
    print("\n".join([f"{options.split}: {found.lines[0]}", *found.lines[1:]]))
    for line in found.warnings:
        print(f"warning: {line}")
