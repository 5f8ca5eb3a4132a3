"""``torchcaps check``."""

import json

from torchcaps_lab.cli.plugins import add_import


def command(arguments: list[str]) -> None:
    """Check a folder of images: classes, formats, sizes, copies, broken files."""
    from torchcaps_lab.cli.parser import OptionParser
    from torchcaps_lab.data.check import check_folder
    from torchcaps_lab.data.manifest import count_of

    parser = OptionParser(
        prog="torchcaps check",
        description="Read every image of a folder as 'torchcaps train --data ImageFolder' would. The exit status is 1 "
        "if files cannot be read, or images of the same content are in several parts or classes.",
    )
    parser.add_argument(
        "folder", type=str, help="with a sub-folder for each class, or with train and test that hold these"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_import(parser)
    options = parser.parse_args(arguments)
    found = check_folder(options.folder)
    print(json.dumps(found.json()) if options.json else "\n".join(found.lines()))
    if found.problems:
        raise ValueError(f"{count_of(found.problems, 'problem')} in {options.folder}, see above")
