"""Folders and tables as people have them: the command with which ``torchcaps check``
ends trains and predicts as it stands.
"""

import math
import random
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.kinds.shapes import COLOURS, picture
from tests.runs import status

WORDS = ("alpha", "beta", "gamma", "delta", "bank", "doctor", "match", "heart")


def text(row: int) -> str:
    chosen = random.Random(row)
    return f"{' '.join(chosen.choices(WORDS, k=6))} {row}"


def lines(rows: Sequence[Sequence[object]], sign: str = ",") -> str:
    return "\n".join(sign.join(map(str, row)) for row in rows)


def pictures(name: Callable[[int], str]) -> None:
    for row in range(24):
        picture(Path(name(row)), [*COLOURS][row % 2], row)


def windows_paths(folder: Path) -> Path:
    """Backslashes, another case of the suffix, an index, and a text for nothing."""
    pictures(lambda row: f"{folder}/Bilder/Foto {row}.JPG")
    head = ("", "Datei", "Notiz", "Klasse")
    rows = [
        (row, f"C:\\Bilder\\foto {row}.jpg", text(row), "ab"[row % 2])
        for row in range(24)
    ]
    path = folder / "liste.csv"
    path.write_text(lines([head, *rows], ";"), encoding="utf-16")
    return path


def addresses_and_flags(folder: Path) -> Path:
    """Addresses of pictures whose names others have, too, a column of 0.0 and 1.0 for
    each class, and gaps.
    """
    for holder in ("large", "thumbs"):
        pictures(lambda row, holder=holder: f"{folder}/{holder}/{row}.png")
    rows = [
        (
            f"https://example.org/a/thumbs/{row}.png?width=8",
            float(row % 2),
            float(row % 3 == 0),
        )
        for row in range(30)
    ]
    path = folder / "urls.csv"
    path.write_text(lines([("url", "sea", "sky"), *rows]) + "\n,,\n")
    return path


def people(folder: Path) -> Path:
    """A folder with a table beside the pictures, with ages and several of a person."""
    pictures(lambda row: f"{folder}/faces/img_{row:03}.png")
    rows = [
        (f"img_{row:03}", f"p{row // 2}", 20 + row, "fm"[row % 2]) for row in range(24)
    ]
    (folder / "info.csv").write_text(lines([("id", "person", "age", "sex"), *rows]))
    return folder


def damaged_folders(folder: Path) -> Path:
    """A class folder that is empty, a picture that is none, and a note."""
    pictures(lambda row: f"{folder}/{'gold' if row % 2 == 0 else 'navy'}/{row}.png")
    (folder / "old").mkdir()
    (folder / "gold" / "broken.png").write_text("no picture")
    (folder / "README.txt").write_text("from my camera")
    return folder


def multi_line_texts(folder: Path) -> Path:
    """Quoted texts of several lines, yes and no, in Windows-1252."""
    rows = [
        (f'"{text(row)},\n""café""  – 5 €"', ("yes", "no")[row % 2])
        for row in range(60)
    ]
    path = folder / "mails.csv"
    path.write_bytes(lines([("mail", "spam"), *rows]).encode("cp1252"))
    return path


def objects_with_lists(folder: Path) -> Path:
    """Objects, of which some have no labels and some another key."""
    topics = ('["sea"]', '["sea", "sky"]', "[]")
    rows = [
        f'{{"body": "{text(row)}", "topics": {topics[row % 3]}}}' for row in range(60)
    ]
    rows[7] = rows[7][:-1] + ', "score": 3}'
    path = folder / "posts.jsonl"
    path.write_text("\n".join(rows))
    return path


def sorted_texts(folder: Path) -> Path:
    """All of one class before the other, a comment, a title and missing labels."""
    rows = [(row, text(row), ("ham", "spam")[row > 1500]) for row in range(3000)]
    rows += [(row, text(row), "NA") for row in range(3000, 3005)]
    path = folder / "sorted.tsv"
    path.write_text("# exported\n" + lines([("Nr", "quote", "kind"), *rows], "\t"))
    return path


def shuffled_moments(folder: Path) -> Path:
    """Rows of series in any order, with a time, a person and decimal commas."""
    rows = [
        (
            k,
            k // 2,
            f"{moment / 2}".replace(".", ","),
            f"{math.sin(moment * (1 + k % 2)) + k / 50:.3f}".replace(".", ","),
            ("up", "down")[k % 2],
        )
        for k in range(24)
        for moment in range(12)
    ]
    random.Random(0).shuffle(rows)
    head = ("recording_id", "subject", "time", "Spannung", "state")
    path = folder / "strom.csv"
    path.write_text(lines([head, *rows], ";"), encoding="utf-8-sig")
    return path


def wide_rows(folder: Path) -> Path:
    """A row for each series, some of which end earlier."""
    rows = [
        (
            f"s{k}",
            ("up", "down")[k % 2],
            *(
                f"{math.cos(moment * (1 + k % 2)) + k / 50:.3f}"
                if moment < 8 + k % 3
                else ""
                for moment in range(10)
            ),
        )
        for k in range(40)
    ]
    head = ("name", "state", *(f"t{moment}" for moment in range(10)))
    path = folder / "wide.csv"
    path.write_text(lines([head, *rows]))
    return path


def marked_archive(folder: Path) -> Path:
    """A file of the UCR archive with a byte order mark."""
    head = "@problemName x\n@timeStamps false\n@univariate true\n@classLabel true grün rot\n@data"
    rows = [
        ",".join(
            f"{math.sin(moment * (1 + k % 2)) + k / 50:.3f}" for moment in range(12)
        )
        + ":"
        + ("grün", "rot")[k % 2]
        for k in range(30)
    ]
    path = folder / "x.ts"
    path.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8-sig")
    return path


QUICK = (objects_with_lists,)
MESSY = (
    *QUICK,
    windows_paths,
    shuffled_moments,
    addresses_and_flags,
    people,
    damaged_folders,
    multi_line_texts,
    sorted_texts,
    wide_rows,
    marked_archive,
)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, marks=() if make in QUICK else pytest.mark.thorough)
        for make in MESSY
    ],
    ids=lambda make: make.__name__,
)
def test_check_ends_in_a_command_that_trains(
    make: Callable[[Path], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "torchcaps.models.timm_package.imagenet_installed", lambda: False
    )
    (tmp_path / "data").mkdir()
    path = make(Path("data"))
    status("check", str(path))
    (command,) = [
        line.removeprefix("train on it: torchcaps ")
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("train on it: ")
    ]
    steps = ("--epochs", "1", "--trainer.extra", "{limit_train_batches: 1}")
    assert status(*shlex.split(command), *steps, "--report", "false") == 0
    (run,) = Path("runs").iterdir()
    capsys.readouterr()
    status("predict", str(run), str(path), "--csv", "--top", "1")
    assert len(capsys.readouterr().out.splitlines()) > 24
