"""Builds the guide: ``python -m docs.guide``, from the root of the repository.

Runs the ``python`` blocks of every chapter in order. What a block prints has to be the
``text`` block that follows it.
"""

import argparse
import re
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from docs.guide import style

GUIDE = Path(__file__).parent
BLOCKS = re.compile(
    r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE
)


def chapters() -> list[Path]:
    """All chapters, in order."""
    return sorted(GUIDE.glob("[0-9]*.md"))


def run(chapter: Path, accept: bool = False) -> None:
    """Executes a chapter.

    Args:
        chapter: the document.
        accept: write what the blocks print into the document, where a ``text`` block
            follows them.

    Raises:
        AssertionError: if a block prints something else than the text that follows it.
    """
    document = chapter.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": chapter.stem}
    accepted = document
    for block in BLOCKS.finditer(document):
        line = document.count("\n", 0, block.start(1))
        with redirect_stdout(StringIO()) as printed:
            exec(compile("\n" * line + block[1], chapter.name, "exec"), names)
        actual = printed.getvalue()
        expected = block[2] or ""
        if accept and block[2] is not None:
            new = block[0].removesuffix(f"{block[2]}```\n") + f"{actual}```\n"
            accepted = accepted.replace(block[0], new)
        elif actual.split() != expected.split():
            raise AssertionError(
                f"{chapter.name}, line {line + 1} prints\n{actual}\nand not\n{expected}"
            )
    if accepted != document:
        chapter.write_text(accepted, encoding="utf-8")


def main() -> None:
    """Builds all chapters, or those named."""
    parser = argparse.ArgumentParser(prog="python -m docs.guide", description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of file names, such as 05")
    parser.add_argument(
        "--pictures", type=Path, default=style.PICTURES, help="where pictures go"
    )
    parser.add_argument(
        "--accept",
        action="store_true",
        help="write what the blocks print into the chapters",
    )
    arguments = parser.parse_args()
    style.PICTURES = arguments.pictures
    for chapter in chapters():
        if not arguments.names or chapter.name.startswith(tuple(arguments.names)):
            run(chapter, arguments.accept)
            sys.stdout.write(f"{chapter.name}\n")


if __name__ == "__main__":
    main()
