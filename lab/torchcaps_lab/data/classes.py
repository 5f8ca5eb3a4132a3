"""Matches the classes of two sources by their names: splits, other images,
annotations.
"""

from collections.abc import Sequence

from torchcaps.spec import meant
from torchcaps_lab.data.manifest import some


def places_of(names: Sequence[str], classes: Sequence[str], where: str) -> list[int]:
    """Find the place of each name among the classes; not all of these need a name.

    Args:
        names: the names of classes, in any order.
        classes: those that are known, in the order of their labels.
        where: what has the names, for the message.

    Returns:
        The label of each name.

    Raises:
        ValueError: a name is none of the classes; names all of these.

    Example:
        >>> from torchcaps_lab.data.classes import places_of
        >>> places_of(("dog", "cat"), ("bird", "cat", "dog"), "the test images")
        [2, 1]
    """
    label_of = {name: label for label, name in enumerate(classes)}
    extra = [name for name in names if name not in label_of]
    if extra:
        near = meant(extra[0], classes) if len(extra) == 1 else ""
        verb = "is" if len(extra) == 1 else "are"
        raise ValueError(
            f"{where}: {some(extra)} {verb} none of the classes {some(classes)}{near}"
        )
    return [label_of[name] for name in names]
