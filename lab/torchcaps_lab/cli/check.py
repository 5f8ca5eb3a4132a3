"""Check a folder of images: classes, formats, sizes, copies, broken files."""

from json import dumps

from torchcaps_lab.cli.places import Existing
from torchcaps_lab.data.check import check_folder
from torchcaps_lab.data.manifest import count_of


def command(folder: Existing, *, json: bool = False) -> None:
    """Read every image of a folder as 'torchcaps train --data ImageFolder' would.

    Args:
        folder: with a sub-folder for each class, or with train and test that hold these
        json: print JSON

    Raises:
        ValueError: if files cannot be read, or images of the same content are in several parts or classes.
    """
    found = check_folder(folder)
    print(dumps(found.json()) if json else "\n".join(found.lines()))
    if found.problems:
        raise ValueError(f"{count_of(found.problems, 'problem')} in {folder}, see above")
