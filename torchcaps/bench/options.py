"""Types of the options of ``torchcaps bench``: numbers in a range, and a folder for results."""

import math
import os
import time
from argparse import ArgumentTypeError
from pathlib import Path


def positive(text: str) -> int:
    """A whole number, 1 or more."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """A whole number, 0 or more."""
    return _whole(text, 0)


def amount(text: str) -> float:
    """A finite number, 0 or more."""
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise ArgumentTypeError(f"must be a finite number, 0 or more, got {text}")
    return value


def rate(text: str) -> float:
    """A finite number above 0."""
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise ArgumentTypeError(f"must be a finite number above 0, got {text}")
    return value


def folder(text: str) -> Path:
    """A folder for results, which need not exist; checked before anything is measured."""
    path = Path(text)
    there = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    if not there.is_dir():
        raise ArgumentTypeError(f"must be a folder, and {there} is a file")
    if not os.access(there, os.W_OK):
        raise ArgumentTypeError(f"must be a folder to write into, and {there} is not writable")
    return path


def new_folder(part: str) -> Path:
    """The default folder for the results of a part."""
    return Path(f"runs/bench-{part}-{time.strftime('%Y%m%d-%H%M%S')}")


def _whole(text: str, least: int) -> int:
    value = int(text)
    if value < least:
        raise ArgumentTypeError(f"must be {least} or more, got {text}")
    return value
