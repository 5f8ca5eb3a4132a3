"""Test a trained network: accuracy, error, confusion matrix, or what its task measures."""

from json import dumps
from typing import Literal

from torchcaps.numerics import jsonable
from torchcaps_lab.cli.places import Trained
from torchcaps_lab.cli.runs import Split, open_run
from torchcaps_lab.data import ImageData


def command(
    run: Trained,
    *,
    data: ImageData | None = None,
    split: Split = "test",
    batch_size: int = 128,
    crops: Literal[1, 13] | None = None,
    json: bool = False,
    imported: list[str],
) -> None:
    """Test the network of a run.

    Args:
        run: folder of a run; with --data also of a saved network, or its name
        data: other images than those of the run, as in 'torchcaps train'
        split: which of the images; all: of --data
        batch_size: images at a time
        crops: crops of each image to average; default: as trained
        json: print JSON
    """
    classifier, images = open_run(run, data, split, imported)
    found = classifier.examine(images, batch_size, crops)
    if json:
        result = {
            "split": split,
            "images": len(images),
            "crops": crops or classifier.preprocess.crops,
            **found.figures,
            **found.details,
            "classes": list(images.classes),
            "warnings": list(found.warnings),
        }
        print(dumps(jsonable(result)))
        return
    print("\n".join([f"{split}: {found.lines[0]}", *found.lines[1:]]))
    for line in found.warnings:
        print(f"warning: {line}")
