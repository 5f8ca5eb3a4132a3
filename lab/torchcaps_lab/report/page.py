"""A web page about a trained network: what it gets right and wrong, and what its
capsules learned.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
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
    sections: list[_Section] = []
    data: list[dict[str, Any]] = []
    drawn: set[str] = set()
    marks: dict[str, str] = {}
    for exhibit in exhibits:
        sections.append(_drawn(exhibit, report, drawn, marks))
        data.append(exhibit.to_json())
    shown = json.dumps({"format": 1, "exhibits": data}, allow_nan=False)
    write_whole(report / _DATA, shown + "\n")
    index = report / "index.html"
    write_whole(index, _page(sections).encode(errors="backslashreplace"))
    return named / index.name


class _Section(NamedTuple):
    """An exhibit on the page, its pictures, and the words by the marks that stand for
    them in these.
    """

    exhibit: Exhibit
    pictures: list[dict[str, str]]
    marks: dict[str, str]


def _drawn(
    exhibit: Exhibit, report: Path, drawn: set[str], marks: dict[str, str]
) -> _Section:
    """Saves the pictures of an exhibit, beside those drawn before; ``marks`` are those
    of the page so far, by word.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    pictures = []
    used: dict[str, str] = {}
    for file, description, figure in exhibit.draw():
        if file in drawn:
            raise ValueError(f"pictures must have names of their own, got {file} twice")
        drawn.add(file)
        used |= make_legible(figure, marks)
        with written_whole(report / file) as part:
            # savefig would go through it twice, to the same bytes.
            FigureCanvasAgg(figure).print_png(part)
        pictures.append({"file": file, "description": description})
    return _Section(exhibit, pictures, used)


def _page(sections: Sequence[_Section]) -> str:
    """The page, from ``page.html.jinja`` beside this file."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "has_long_words": _has_long_words,
        "has_sentences": _has_sentences,
        "with_commands": lambda text: Markup(_with_commands(text)),
        "with_options": lambda text: Markup(_with_options(text)),
    }
    template = environment.get_template("page.html.jinja")
    return template.render(sections=sections, data=_DATA)


def _with_commands(text: str) -> str:
    """A text, with what is to be typed, between backticks, as code whose options are
    not broken behind their hyphens.
    """

    def code(typed: re.Match[str]) -> str:
        command = _OPTION.sub(r'<span class="option">\g<0></span>', typed[1])
        return f"<code>{command}</code>"

    return re.sub(r"`([^`]+)`", code, escape(text))


def _with_options(text: str) -> str:
    """A cell, with options to type as code: they are not broken behind their hyphens."""
    return _OPTION.sub(r"<code>\g<0></code>", escape(text))


def _has_long_words(text: str) -> bool:
    return max(map(len, text.split()), default=0) > _LONGEST


def _has_sentences(table: Table) -> bool:
    """Whether the cells of a row need a line each where a screen is narrow."""
    lengths = [sum(map(len, row)) for row in table.rows]
    return table.header is not None and max(lengths, default=0) > _NARROW
