"""A web page about a trained network: what it gets right and wrong, and what its
capsules learned.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import starmap, zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from torchcaps.models.base import ClassifierNetwork
from torchcaps.whole import owned, write_whole, written_whole
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.evaluate.findings import Findings, Metrics
from torchcaps_lab.report.canvas import make_legible
from torchcaps_lab.report.exhibit import EXHIBITS, Exhibit, Table
from torchcaps_lab.report.observe import Observation, Tested

_STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --line: #ddd; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --paper: #14181d; --line: #39424d; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
body { max-width: 1100px; margin: 2em auto; padding: 0 1em; }
h1, h2 { line-height: 1.2; overflow-wrap: anywhere; } h2 { margin-top: 2em; border-bottom: 1px solid var(--line); }
p { max-width: 46em; } img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
table { border-collapse: collapse; } td, th { padding: .2em 1em .2em 0; text-align: left; vertical-align: top; }
tr { border-bottom: 1px solid var(--line); } td.number { text-align: right; font-variant-numeric: tabular-nums; }
summary { margin-top: 2em; cursor: pointer; } summary h2 { display: inline; border: 0; }
.option { display: inline-block; max-width: 100%; overflow-wrap: anywhere; }
td code { white-space: nowrap; font: inherit; } td.long { overflow-wrap: anywhere; } .table { overflow-x: auto; }
@media (max-width: 600px) {
  td, th { padding-right: .6em; font-size: 14px; overflow-wrap: anywhere; }
  td code { white-space: normal; overflow-wrap: anywhere; }
  .sentences tr { display: block; padding: .4em 0; } .sentences th, .sentences td:empty { display: none; }
  .sentences td { display: block; padding: 0; } .sentences td::before { content: attr(data-name) ": "; opacity: .7; }
}
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(420px, 100%), 1fr)); gap: 1em; }
"""
_DATA = "exhibits.json"
_OPTION = re.compile(r"(?<!\S)--\S+")

_LONGEST = 24
"""Letters of a word that a cell of a table does not break: a narrow column would break
the short ones, too.
"""

_NARROW = 60
"""Letters that a row of a table may have on a narrow screen."""


def exhibits_of(
    observation: Observation, examples: Observation | None = None
) -> Iterator[Exhibit]:
    """What a network has to show of the images of an observation, each made when it is
    asked for.

    No labels are needed, so this serves every task; what else a task has to show, it
    adds before or after. These are the registered exhibits with a place that define
    :meth:`~torchcaps_lab.report.Exhibit.of_images`.

    Args:
        observation: the observation of the images to show.
        examples: of the images whose poses are moved, one of each class; default: the
            images to show.
    """
    for kind in _placed():
        exhibit = kind.of_images(observation, examples or observation)
        if exhibit is not None:
            yield exhibit


def exhibits_of_classifier(
    model: ClassifierNetwork,
    image_set: Examples,
    findings: Findings,
    summary: Mapping[str, Any],
    metrics: Metrics,
) -> Iterator[Exhibit]:
    """Return the exhibits of a network for images of one class each, in the order of a
    report.

    These are the registered exhibits with a place.

    Args:
        model: any network.
        image_set: the images.
        findings: the findings of :func:`~torchcaps_lab.evaluate.examine`, about these
            images.
        summary: what the run says of itself; may be empty.
        metrics: rows for :class:`~torchcaps_lab.report.pictures.LearningCurves`; may be
            empty.
    """
    tested = Tested(model, image_set, findings, summary, metrics)
    for kind in _placed():
        exhibits: list[Exhibit | None] = []
        if isinstance(image_set, kind.examples):
            exhibits += kind.of_test(tested)
        if tested.shown is not None and tested.examples is not None:
            exhibits.append(kind.of_images(tested.shown, tested.examples))
        yield from (exhibit for exhibit in exhibits if exhibit is not None)


def _placed() -> list[type[Exhibit]]:
    """The exhibits with a place, in their order.

    Those of the kinds of input that no reader, data set or task needed are not loaded:
    they have nothing to show of other inputs.
    """
    kinds = [kind for kind in EXHIBITS.loaded().values() if kind.place is not None]
    return sorted(kinds, key=attrgetter("place"))


def write_page(folder: str | Path, exhibits: Iterable[Exhibit]) -> Path:
    """Write ``report/index.html`` with a section for each exhibit, its pictures, and
    ``report/exhibits.json``.

    ``exhibits.json`` holds ``{"format": 1, "exhibits": [...]}``, with what
    :meth:`~torchcaps_lab.report.Exhibit.to_json` gives of each: all that a page of
    another kind needs to show the same.

    Args:
        folder: where ``report`` is made; pictures of an earlier report in there are
            replaced.
        exhibits: in the order of the page; the title of the first is that of the page,
            also in the browser.

    Returns:
        The path of ``index.html``.

    Raises:
        ValueError: if two pictures have the same name, or ``report``, or a file in it,
            is a link that leads out of the folder: nothing is written then.
    """
    named = Path(folder) / "report"
    report = owned(Path(folder), "report")
    report.mkdir(parents=True, exist_ok=True)
    for kind in EXHIBITS.loaded().values():
        for old in report.glob(kind.drawings) if kind.drawings else ():
            old.unlink()
    body: list[str] = []
    data: list[dict[str, Any]] = []
    titles: list[str] = []
    drawn: set[str] = set()
    marks: dict[str, str] = {}
    for exhibit in exhibits:
        pictures = list(_draw(exhibit, report, drawn, marks))
        body.append(_section(exhibit, pictures, "h2" if body else "h1"))
        titles.append(exhibit.title)
        data.append(exhibit.to_json())
    shown = json.dumps({"format": 1, "exhibits": data}, allow_nan=False)
    write_whole(report / _DATA, shown + "\n")
    body.append(f'<p>What this page shows, as data: <a href="{_DATA}">{_DATA}</a></p>')
    index = report / "index.html"
    page = _page(" · ".join([*titles[:1], "torchcaps"]), "\n".join(body))
    write_whole(index, page.encode(errors="backslashreplace"))
    return named / index.name


class _Drawn(NamedTuple):
    """A picture on the page: its file, its description, and the words by the marks that
    stand for them in it.
    """

    file: str
    description: str
    marks: dict[str, str]


def _draw(
    exhibit: Exhibit, report: Path, drawn: set[str], marks: dict[str, str]
) -> Iterator[_Drawn]:
    """Saves the pictures of an exhibit, beside those drawn before; ``marks`` are those
    of the page so far, by word.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for file, description, figure in exhibit.draw():
        if file in drawn:
            raise ValueError(f"pictures must have names of their own, got {file} twice")
        drawn.add(file)
        used = make_legible(figure, marks)
        with written_whole(report / file) as part:
            # savefig would go through it twice, to the same bytes.
            FigureCanvasAgg(figure).print_png(part)
        yield _Drawn(file, description, used)


def _section(exhibit: Exhibit, pictures: Sequence[_Drawn], heading: str) -> str:
    table = exhibit.table()
    title = f"<{heading}>{escape(exhibit.title)}</{heading}>"
    folded = exhibit.folded and heading != "h1"
    marks: dict[str, str] = {}
    for picture in pictures:
        marks |= picture.marks
    parts = (
        f"<details><summary>{title}</summary>" if folded else title,
        f"<p>{_with_commands(exhibit.text)}</p>",
        _gallery(pictures),
        _explained(marks),
        exhibit.html() or "",
        "" if table is None else _table(table),
        "</details>" if folded else "",
    )
    return "\n".join(filter(None, parts))


def _explained(marks: dict[str, str]) -> str:
    """What the marks in pictures stand for: words in scripts that no font of this
    machine could draw.
    """
    words = ", ".join(
        f"{mark} <bdi>{escape(word)}</bdi>" for mark, word in marks.items()
    )
    return f"<p>In the pictures: {words}</p>" if words else ""


def _gallery(pictures: Sequence[_Drawn]) -> str:
    named = [
        (escape(picture.file), escape(picture.description)) for picture in pictures
    ]
    shown = [
        f'<a href="{file}"><img src="{file}" alt="{text}"></a>' for file, text in named
    ]
    return "\n".join(
        ['<div class="gallery">', *shown, "</div>"] if len(shown) > 1 else shown
    )


def _with_commands(text: str) -> str:
    """A text, with what is to be typed, between backticks, as code."""
    return re.sub(
        r"`([^`]+)`", lambda typed: f"<code>{_unbroken(typed[1])}</code>", escape(text)
    )


def _unbroken(command: str) -> str:
    """A command whose options are not broken behind their hyphens."""
    return _OPTION.sub(r'<span class="option">\g<0></span>', command)


def _table(table: Table) -> str:
    names = table.header or []
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    wide = _has_sentences(table)
    rows = [f"<tr>{_cells(row, names if wide else ())}</tr>" for row in table.rows]
    kind = "table sentences" if wide else "table"
    return "\n".join(
        [
            f'<div class="{kind}"><table>',
            *([f"<tr>{head}</tr>"] if head else []),
            *rows,
            "</table></div>",
        ]
    )


def _cells(row: Sequence[str], names: Sequence[str]) -> str:
    return "".join(starmap(_cell, zip_longest(row, names, fillvalue="")))


def _cell(text: str, name: str) -> str:
    """A cell; the name of its column is for screens without room for columns."""
    longest = max(map(len, text.split()), default=0)
    kind = ' class="long"' if longest > _LONGEST else ""
    column = f' data-name="{escape(name)}"' if name else ""
    # Options to type are not broken behind their hyphens.
    shown = _OPTION.sub(r"<code>\g<0></code>", escape(text))
    return f"<td{kind}{column}>{shown}</td>"


def _has_sentences(table: Table) -> bool:
    """Whether the cells of a row need a line each where a screen is narrow."""
    lengths = [sum(map(len, row)) for row in table.rows]
    return table.header is not None and max(lengths, default=0) > _NARROW


def _page(title: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )
