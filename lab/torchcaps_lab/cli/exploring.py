"""Open a page in the browser to draw, move poses and watch routing, with a run or the
networks in the package.
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torchcaps.whole import RUN_FILE
from torchcaps_lab import explore
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.cli.runs import open_run
from torchcaps_lab.data import Examples


def shows(classifier: Classifier) -> tuple[bool, bool]:
    """Whether a network has a decoder, and whether its routing has steps: sorts
    networks by what they show.
    """
    network: Any = classifier.network
    routing = getattr(network, "routing", None)
    return getattr(network, "decoder", None) is not None, hasattr(routing, "steps")


def samples_of(name: str, classifier: Classifier) -> Callable[[], Examples | None]:
    """A function that reads images to try: the test images of a run, else data sets on
    this machine.
    """
    if (Path(name) / RUN_FILE).is_file():
        return partial(_test_images, name)
    return partial(explore.local_samples, name, classifier, note)


def _test_images(name: str) -> Examples | None:
    """The test images of a run; None, with a message, if they are no longer there."""
    try:
        return open_run(name)[1]
    except (OSError, ValueError, ModuleNotFoundError) as error:
        note(f"{name} is shown without its test images: {error}")
        return None


def note(line: str) -> None:
    """Prints a remark."""
    print(f"note: {line}", file=sys.stderr)


def has_screen() -> bool:
    """Whether a browser can open a window; without one, a text browser could take over
    the terminal.
    """
    return sys.platform in ("win32", "darwin") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
