"""Open a page in the browser to draw, move poses and watch routing, with a run or the
networks in the package.
"""

import errno
import os
import sys
import webbrowser
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torchcaps.models.pretrained import list_pretrained
from torchcaps_lab import explore
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.cli.runs import open_classifier, open_run
from torchcaps_lab.data import Examples
from torchcaps_lab.explore.explorer import has_capsules


def command(
    networks: list[str] = [],  # noqa: B006
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    open: bool = True,
    device: str = "cpu",
    imported: list[str],
) -> None:
    """Explore trained networks in the browser.

    Args:
        networks: runs, saved networks or names; default: those in the package
        host: address to listen on; 0.0.0.0 lets in those who know a token
        port: port to listen on; 0: any free one
        open: open the page in the browser of this machine
        device: where to compute: cpu, cuda, cuda:1, ...
    """
    if not 0 <= port < 2**16:
        raise ValueError(f"--port must be 0 to 65535, got {port}")
    classifiers = {
        name: open_classifier(name, device) for name in networks or list_pretrained()
    }
    if not networks:
        shown = [
            (name, classifier)
            for name, classifier in classifiers.items()
            if has_capsules(classifier)
        ]
        classifiers = dict(
            sorted(shown, key=lambda item: _shows(item[1]), reverse=True)
        )
    explorer = explore.Explorer(
        classifiers,
        {
            name: _samples(name, classifier, imported)
            for name, classifier in classifiers.items()
        },
    )

    def ready(address: str) -> None:
        print(f"torchcaps explore: {address} (Ctrl-C ends it)", flush=True)
        if open and _has_screen():
            webbrowser.open(address)

    try:
        explore.serve(explorer, host, port, ready)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise OSError(
            f"port {port} of {host} is in use: --port 0 takes a free one"
        ) from error


def _shows(classifier: Classifier) -> tuple[bool, bool]:
    """Whether a network has a decoder, and whether its routing has steps: sorts
    networks by what they show.
    """
    network: Any = classifier.network
    routing = getattr(network, "routing", None)
    return getattr(network, "decoder", None) is not None, hasattr(routing, "steps")


def _samples(
    name: str, classifier: Classifier, imported: list[str]
) -> Callable[[], Examples | None]:
    """A function that reads images to try: the test images of a run, else data sets on
    this machine.
    """
    if (Path(name) / "config.yaml").is_file():
        return partial(_test_images, name, imported)
    return partial(explore.local_samples, name, classifier, _note)


def _test_images(name: str, imported: list[str]) -> Examples | None:
    """The test images of a run; None, with a message, if they are no longer there."""
    try:
        return open_run(name, imported=imported)[1]
    except (OSError, ValueError) as error:
        _note(f"{name} is shown without its test images: {error}")
        return None


def _note(line: str) -> None:
    print(f"note: {line}", file=sys.stderr)


def _has_screen() -> bool:
    """Whether a browser can open a window; without one, a text browser could take over
    the terminal.
    """
    return sys.platform in ("win32", "darwin") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
