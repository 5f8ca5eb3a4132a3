"""Files as of Pascal VOC: an .xml file of boxes for each image."""

from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from xml.etree import ElementTree

from torchcaps.whole import LARGEST_NOTE, read_bytes
from torchcaps_lab.kinds.scenes.noted import Noted, named_below
from torchcaps_lab.kinds.scenes.stated import stated_size
from torchcaps_lab.look import number_in


def voc_images(files: Sequence[Path], root: Path) -> list[Noted]:
    """Return the image of each file, with the boxes of its things that are not
    difficult.

    Args:
        files: the .xml files.
        root: the folder that all images must be in.

    Raises:
        ValueError: a file is not as of VOC, or names an image outside ``root``.
    """
    return [_noted(file, root) for file in files]


def _noted(file: Path, root: Path) -> Noted:
    content = read_bytes(file, LARGEST_NOTE)
    try:
        tree = ElementTree.fromstring(content)
        things = list(tree.iter("object"))
        labels = [_text(thing, "name") for thing in things]
        boxes = list(map(_box, things))
        clear = [not _is_difficult(thing) for thing in things]
        size = stated_size(
            *(_only_text(tree, f"size/{side}") for side in ("width", "height"))
        )
        name = _only_text(tree, "filename")
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise ValueError(f"annotations {file} are not as of VOC: {error}") from error
    return Noted(
        named_below(root, name, file),
        [*compress(labels, clear)],
        [*compress(boxes, clear)],
        file,
        size=size,
        aside=clear.count(False),
    )


def _is_difficult(thing: ElementTree.Element) -> bool:
    """Whether a thing is marked as difficult: VOC counts it neither as found nor as
    missed.
    """
    mark = _only_text(thing, "difficult") or "0"
    if mark not in ("0", "1"):
        raise ValueError(f"difficult must be 0 or 1 in {thing.tag}, got {mark!r}")
    return mark == "1"


def _box(thing: ElementTree.Element) -> tuple[float, float, float, float]:
    """The box of a thing, whose first pixel is 1 in VOC: left, top, right, bottom."""
    box = {}
    for side in ("xmin", "ymin", "xmax", "ymax"):
        text = _text(thing, f"bndbox/{side}")
        try:
            box[side] = number_in(text)
        except ValueError as error:
            raise ValueError(
                f"bndbox/{side} of {thing.findtext('name')!r}: {error}"
            ) from None
    return box["xmin"] - 1, box["ymin"] - 1, box["xmax"], box["ymax"]


def _text(element: ElementTree.Element, name: str) -> str:
    """The text of the one element of a name, which must be there."""
    text = _only_text(element, name)
    if not text:
        empty = "missing" if text is None else "empty"
        raise ValueError(f"{name} is {empty} in {element.tag}")
    return text


def _only_text(element: ElementTree.Element, name: str) -> str | None:
    """The text of the element of a name, of which there may be one; None without."""
    texts = [(inner.text or "").strip() for inner in element.findall(name)]
    if len(texts) > 1:
        raise ValueError(f"{name} must stand once in {element.tag}, got {texts}")
    return texts[0] if texts else None
