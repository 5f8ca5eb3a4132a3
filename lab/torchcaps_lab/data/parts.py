"""The names of the splits of a data set."""

import re

PART_NAMES = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev", "publictest"),
    "test": ("test", "testing", "privatetest"),
}
"""The names of each split, in lower case; Kaggle has a public and a private test."""


_KIND = re.compile(r"[ _-]*(set|data|images|split)$")
"""What may follow the name of a split."""


def part_called(name: str) -> str | None:
    """The split that a name, in upper or lower case, stands for; None if there is
    none.

    Example:
        >>> from torchcaps_lab.data.parts import part_called
        >>> part_called("Val"), part_called("Training Set"), part_called("train_7")
        ('validation', 'train', None)
    """
    plain = _KIND.sub("", name.strip().lower())
    for part, names in PART_NAMES.items():
        if plain in names:
            return part
    return None
