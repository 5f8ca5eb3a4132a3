"""Open a page in the browser to draw, move poses and watch routing, with a run or the
networks in the package.
"""

import errno
import webbrowser
from typing import Annotated

from torchcaps.spec import Within

Port = Annotated[int, Within(0, 65535)]


def command(
    networks: list[str] = [],  # noqa: B006
    *,
    host: str = "127.0.0.1",
    port: Port = 8765,
    open: bool = True,
    device: str = "cpu",
) -> None:
    """Explore trained networks in the browser.

    Args:
        networks: runs, saved networks or names; default: those in the package
        host: address to listen on; 0.0.0.0 lets in those who know a token
        port: port to listen on; 0: any free one
        open: open the page in the browser of this machine
        device: where to compute: cpu, cuda, cuda:1, ...
    """
    from torchcaps.models.pretrained import list_pretrained
    from torchcaps_lab import explore
    from torchcaps_lab.cli import exploring
    from torchcaps_lab.cli.runs import open_classifier
    from torchcaps_lab.explore.explorer import why_unexplored

    classifiers = {
        name: open_classifier(name, device) for name in networks or list_pretrained()
    }
    unexplored = {
        name: why
        for name, classifier in classifiers.items()
        if (why := why_unexplored(name, classifier))
    }
    if len(unexplored) == len(classifiers):
        raise ValueError("\n  ".join(unexplored.values()))
    for name, why in unexplored.items():
        del classifiers[name]
        if networks:
            exploring.note(f"{why}. It is left out")
    if not networks:
        shown = sorted(
            classifiers.items(), key=lambda item: exploring.shows(item[1]), reverse=True
        )
        classifiers = dict(shown)
    explorer = explore.Explorer(
        classifiers,
        {
            name: exploring.samples_of(name, classifier)
            for name, classifier in classifiers.items()
        },
    )

    def ready(address: str) -> None:
        print(f"torchcaps explore: {address} (Ctrl-C ends it)", flush=True)
        if open and exploring.has_screen():
            webbrowser.open(address)

    try:
        explore.serve(explorer, host, port, ready)
    except OSError as error:
        reason = f"{error.strerror}; choose another --host or --port"
        if error.errno == errno.EADDRINUSE:
            reason = "it is in use; --port 0 takes a free one"
        raise OSError(f"port {port} of {host}: {reason}") from error
