"""The names of the splits of a data set."""

PART_NAMES = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev", "publictest"),
    "test": ("test", "testing", "privatetest"),
}
"""The names of each split, in lower case; Kaggle has a public and a private test."""


def part_called(name: str) -> str | None:
    """The split that a name, in upper or lower case, stands for; None if there is
    none.
    """
    return next(
        (part for part, names in PART_NAMES.items() if name.lower() in names), None
    )
