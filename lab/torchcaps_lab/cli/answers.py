"""Classify images, series or texts: class, probability, length of its capsule; as text,
CSV or JSON.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from csv import writer
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import Any

from torchcaps.whole import check_writable, write_whole, written_whole
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.data.manifest import readable
from torchcaps_lab.data.reader import beginning
from torchcaps_lab.look import Fit
from torchcaps_lab.tasks import Answer


@contextmanager
def said_plainly() -> Iterator[None]:
    """Prints warnings as one line each."""

    def show(message: Any, *where: Any, **more: Any) -> None:
        print(f"torchcaps predict: warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def check_folder(option: str, path: Path) -> None:
    """Raise a ValueError unless a folder is new or empty, and can be written."""
    if path.exists() and (path.is_file() or any(path.iterdir())):
        state = "exists already, and is a file"
        if path.is_dir():
            state = "exists already and is not empty"
        raise ValueError(f"--{option} {path} {state}: choose another folder")
    check_writable(path, f"choose another --{option}")


def check_resize(classifier: Classifier, resize: Fit | None) -> None:
    """Raise a ValueError if the network does not take images fitted like that."""
    try:
        classifier.reader.check_fit(classifier.network, resize)
    except ValueError as error:
        raise ValueError(f"--{error}".replace("resize 'keep'", "resize keep")) from None


def check_drawn(
    classifier: Classifier, option: str, what: str, drawn: Callable[[Answer], Any]
) -> None:
    """Raise a ValueError unless the network predicts what an option draws, for a
    made-up input.

    Args:
        classifier: the classifier.
        option: the option, such as ``--boxes``.
        what: what the network must predict, in words.
        drawn: that part of an answer; None where the network does not predict it.
    """
    if drawn(classifier.trial()) is None:
        raise ValueError(
            f"{option}: a {type(classifier.network).__name__} does not predict {what}"
        )


Show = Callable[[str, Answer], None]
"""Prints the answer about a file."""


def draw_boxes(classifier: Classifier, folder: Path, resize: Any) -> Show:
    """Draws boxes of answers: ``photo.png`` for ``photo.jpg``, ``photo-2.png`` for a
    second file of that name.
    """
    from torchcaps_lab.report.boxes import Boxed, boxed_image

    written: Counter[str] = Counter()

    def draw(file: str, answer: Answer) -> None:
        assert answer.things is not None
        boxes = []
        for name, things in answer.things.items():
            boxes += [(name, thing.box.tolist()) for thing in things]
        pixels = classifier.pixels(file, resize)
        # As the network saw it: a crop moves boxes.
        picture = classifier.preprocess.evaluate(pixels[None]).pictures[0]
        boxed = Boxed(picture, boxes)
        figure = boxed_image(boxed, classifier.classes)
        with written_whole(_file_in(folder, file, written)) as part:
            figure.savefig(part, format="png")

    return draw


def draw_masks(classifier: Classifier, folder: Path, resize: Any) -> Show:
    """Writes ``photo.png``, the number of the class of each pixel, and
    ``photo.overlay.png`` for ``photo.jpg``.
    """
    written: Counter[str] = Counter()

    def draw(file: str, answer: Answer) -> None:
        path = _file_in(folder, file, written)
        assert answer.mask is not None
        mask, picture = classifier.reader.at_its_size(answer.mask, file, resize)
        large = replace(answer, mask=mask)
        drawings = classifier.task.drawings(large, picture, classifier.classes)
        for end, content in drawings.items():
            write_whole(path.with_suffix(end), content)

    return draw


def _file_in(folder: Path, file: str, written: Counter[str]) -> Path:
    """Where the picture for a file goes: no other one is there, nor what is laid over
    another one.
    """
    stem = Path(file).stem
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        written[stem] += 1
        name = stem if written[stem] == 1 else f"{stem}-{written[stem]}"
        path = folder / f"{name}.png"
        if not (path.exists() or path.with_suffix(".overlay.png").exists()):
            return path


def _probability(classifier: Classifier) -> str:
    """A description of the probabilities."""
    if classifier.calibration is not None:
        return f"probability of the class: calibrated, {classifier.calibration}"
    return f"{classifier.task.probability}, not calibrated"


def _probabilities(answer: Answer) -> Any:
    return answer.probabilities if answer.calibrated is None else answer.calibrated


def _names_of(answer: Answer, top: int | None) -> tuple[str, ...]:
    return answer.classes if top is None else answer.top(top)


def _place(name: str) -> str:
    """Where a text was found; empty if it was on the command line."""
    return getattr(name, "place", "").removesuffix(": ")


def _short(name: str) -> str:
    """The name of a file, or the beginning of a text after the place where it was
    found.
    """
    return f"{name.place}{beginning(name, 80)}" if hasattr(name, "place") else name


def as_text(classifier: Classifier, top: int | None) -> Show:
    """Print a line of text for each answer."""
    print(f"# %: {_probability(classifier)}")
    print(f"# length: {classifier.task.length}")
    for doubt in classifier.doubts.values():
        print(f"# {doubt.says}: {doubt}")

    def show(file: str, answer: Answer) -> None:
        shares = _probabilities(answer)
        names = [
            f"{answer.counted(name)} ({shares[name]:.1%}, length "
            f"{answer.lengths[name]:.3f})"
            for name in _names_of(answer, top)
        ]
        line = readable(
            f"{_short(file)}: {answer.doubted(', '.join(names) or 'nothing')}"
        )
        strange = ""
        if answer.known is False:
            examples = classifier.reader.items
            strange = (
                f"stranger than {answer.strangeness:.1%} of the validation {examples}"
            )
        notes = "; ".join(filter(None, [strange, answer.seen]))
        print(line + (f"  # {notes}" if notes else ""))

    return show


def as_csv(classifier: Classifier, top: int | None) -> Show:
    """Print a table with a line for each predicted class."""
    probability = "calibrated_probability"
    if classifier.calibration is None:
        probability = "probability"
    table = writer(sys.stdout, lineterminator="\n")
    more = ["known", "strangeness"] if classifier.doubts else []
    table.writerow(
        ["file", "rank", "class", "predicted", probability, "length", "place", *more]
    )

    def show(file: str, answer: Answer) -> None:
        shares = _probabilities(answer)
        names = _names_of(answer, top)
        # One line for each answer, also where a text has several.
        name_or_text = " ".join(file.splitlines())
        rest = [_place(file)]
        if more and answer.known is not None:
            rest += [str(int(answer.known)), f"{answer.strangeness:.6g}"]
        for rank, name in enumerate(names, 1):
            predicted = int(name in answer.classes)
            table.writerow(
                [
                    name_or_text,
                    rank,
                    name,
                    predicted,
                    f"{shares[name]:.6g}",
                    f"{answer.lengths[name]:.6g}",
                    *rest,
                ]
            )
        if not names:
            table.writerow([name_or_text, "", "", 0, "", "", *rest])

    return show


def as_json(classifier: Classifier, top: int | None) -> Show:
    """Print a JSON object for each answer."""
    method = None if classifier.calibration is None else str(classifier.calibration)

    def show(file: str, answer: Answer) -> None:
        place = {"place": _place(file)} if _place(file) else {}
        row = {"file": file, **place, **answer.json()}
        if top is not None:
            row["top"] = list(answer.top(top))
        print(dumps({**row, "calibration": method}))

    return show
