"""An extension for Sphinx: the build warns of each file that a page links to and the
site does not have.
"""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sphinx.util import logging


class _Links(HTMLParser):
    """What ``href`` and ``src`` of a page name."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Takes the links of one tag."""
        self.links.update(
            value for name, value in attrs if name in ("href", "src") and value
        )


def missing(site: Path) -> Iterator[tuple[Path, str]]:
    """Each page of a site with each of its links, within the site, that leads to no
    file.
    """
    for page in sorted(site.rglob("*.html")):
        for link in sorted(_Links(page.read_text(encoding="utf-8")).links):
            scheme, host, path, *_ = urlsplit(link)
            if (
                path
                and not scheme
                and not host
                and not (page.parent / unquote(path)).exists()
            ):
                yield page.relative_to(site), link


def check(app: Any, error: Exception | None) -> None:
    """Warns after a build of HTML, which ``-W`` makes an error."""
    if error is None and app.builder.format == "html":
        for page, link in missing(Path(app.outdir)):
            logging.getLogger(__name__).warning(
                "%s links to %s, which is not in the site", page, link
            )


def setup(app: Any) -> None:
    """Connects the above."""
    app.connect("build-finished", check)
