"""``torchcaps explore``."""

import errno
import os
import sys
import webbrowser
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcaps.models.pretrained import list_pretrained
from torchcaps_lab.cli.plugins import add_import, named_imports
from torchcaps_lab.cli.runs import look_parser, open_classifier, open_run

if TYPE_CHECKING:
    from torchcaps_lab.classifier import Classifier
    from torchcaps_lab.data import ImageSet


def command(arguments: list[str]) -> None:
    """Open a page in the browser to draw, move poses and watch routing, with a run or the networks in the package."""
    from torchcaps_lab.cli.parser import OptionParser
    from torchcaps_lab.explore import Explorer, serve

    parser = OptionParser(prog="torchcaps explore", description="Explore trained networks in the browser.")
    add = parser.add_argument
    add("networks", type=str, nargs="*", help="runs, saved networks or names; default: those in the package")
    add("--host", type=str, default="127.0.0.1", help="address to listen on; 0.0.0.0 lets in those who know a token")
    add("--port", type=int, default=8765, help="port to listen on; 0: any free one")
    add("--open", type=bool, default=True, help="open the page in the browser of this machine")
    add("--device", type=str, default="cpu", help="where to compute: cpu, cuda, cuda:1, ...")
    add_import(parser)
    options = parser.parse_args(arguments)
    if not 0 <= options.port < 2**16:
        raise ValueError(f"--port must be 0 to 65535, got {options.port}")
    classifiers = {name: open_classifier(name, options.device) for name in options.networks or list_pretrained()}
    if not options.networks:
        classifiers = dict(sorted(_with_capsules(classifiers), key=lambda item: _shows(item[1]), reverse=True))
    explorer = Explorer(classifiers, {name: _samples(name, one, arguments) for name, one in classifiers.items()})

    def ready(address: str) -> None:
        print(f"torchcaps explore: {address} (Ctrl-C ends it)", flush=True)
        if options.open and _has_screen():
            webbrowser.open(address)

    try:
        serve(explorer, options.host, options.port, ready)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise OSError(f"port {options.port} of {options.host} is taken: --port 0 takes a free one") from error


def _with_capsules(classifiers: "dict[str, Classifier]") -> "list[tuple[str, Classifier]]":
    """The networks with capsules to explore."""
    from torchcaps_lab.explore.explorer import has_capsules

    return [(name, one) for name, one in classifiers.items() if has_capsules(one)]


def _shows(classifier: "Classifier") -> tuple[bool, bool]:
    """Whether a network has a decoder, and whether its routing has steps: sorts networks by what they show."""
    network: Any = classifier.network
    return getattr(network, "decoder", None) is not None, hasattr(network.routing, "steps")


def _samples(name: str, classifier: "Classifier", arguments: list[str]) -> "Callable[[], ImageSet | None]":
    """A function that reads images to try: the test images of a run, else data sets on this machine."""
    from torchcaps_lab.explore import local_samples

    if (Path(name) / "config.yaml").is_file():
        return partial(_test_images, name, arguments)
    return partial(local_samples, name, classifier, _note)


def _test_images(name: str, arguments: list[str]) -> "ImageSet | None":
    """The test images of a run; None, with a message, if they are no longer there."""
    parser = look_parser("explore", "")
    try:
        named = [part for module in named_imports(arguments) for part in ("--import", module)]
        return open_run(parser, parser.parse_args([name, *named]))[1]
    except (OSError, ValueError) as error:
        _note(f"{name} is explored without its test images: {error}")
        return None


def _note(line: str) -> None:
    print(f"note: {line}", file=sys.stderr)


def _has_screen() -> bool:
    """Whether a browser can open a window; without one, a text browser could take over the terminal."""
    return sys.platform in ("win32", "darwin") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
