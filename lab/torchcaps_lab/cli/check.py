"""Check a folder of images: classes, formats, sizes, copies, broken files."""

import shlex
from json import dumps

from torchcaps_lab.cli.places import Existing
from torchcaps_lab.data.check import FolderReport, check_folder
from torchcaps_lab.data.doubts import range_option
from torchcaps_lab.data.manifest import count_of
from torchcaps_lab.training.guess import guess


def command(folder: Existing, *, json: bool = False) -> None:
    """Read every image of a folder as 'torchcaps train --data ImageFolder' would.

    Args:
        folder: with a sub-folder for each class, or with train and test that hold these
        json: print JSON

    Raises:
        ValueError: if files cannot be read, or images of the same content are in
            several parts or classes.
    """
    found = check_folder(folder)
    print(
        dumps(found.json())
        if json
        else "\n".join([*found.lines(), *_next(folder, found)])
    )
    if found.problems:
        raise ValueError(
            f"{count_of(found.problems, 'problem')} in {folder}, see above"
        )


def _next(folder: str, found: FolderReport) -> list[str]:
    """The command that trains on the folder as it is; none while its folders forbid
    that.
    """
    if found.folders or not found.sizes:
        return []
    size = guess(folder).options["data"].get("size")
    given = {
        "--data.size": size and str(size),
        "--data.range": found.range and range_option(found.range),
        "--data.skip_broken": "true" if found.broken else None,
    }
    options = [word for name, value in given.items() if value for word in (name, value)]
    return [f"train on it: {shlex.join(['torchcaps', 'train', folder, *options])}"]
