"""``check``, ``train``, ``predict`` and ``explain`` read a path in the same way, for
data in every shape that people have them in.
"""

import json
import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

from tests.kinds.shapes import SHAPES, Shape, picture
from tests.runs import status


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs go into an empty folder; ImageNet's weights would take minutes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "torchcaps.models.timm_package.imagenet_installed", lambda: False
    )


QUICK = ("class folders", "a table of texts")
ANY_SHAPE = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough)
        for name in SHAPES
    ],
)


@ANY_SHAPE
def test_check_says_what_train_does(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The classes and the number of examples are those of the data themselves, and a
    few steps of training with the guessed options go through.
    """
    shape = SHAPES[name]
    path = str(shape.make(tmp_path).relative_to(tmp_path))
    assert status("check", path) == 0
    checked = capsys.readouterr().out
    for label in shape.classes:
        assert f"  {label}: " in checked
    assert f"train on it: torchcaps train {path}" in checked
    assert shape.main in checked
    steps = ("--epochs", "1", "--trainer.extra", "{limit_train_batches: 2}")
    assert status("train", path, *steps, "--report", "false") == 0
    printed = capsys.readouterr().out
    guessed = [line for line in printed.splitlines() if line.startswith("guessed: ")]
    own = ("guessed: run", "guessed: epochs")
    shared = [line for line in guessed if not line.startswith(own)]
    assert len(shared) > 1
    assert not {*shared} - {*checked.splitlines()}
    assert "guessed: batch_size" in printed
    run = next(line for line in guessed if line.startswith("guessed: run "))
    _agrees(shape, path, run.removeprefix("guessed: run "), capsys)


def _agrees(
    shape: Shape, path: str, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = json.loads(Path(run, "summary.json").read_text())
    assert sum(summary["examples"].values()) == shape.count
    assert status("predict", run, path, "--csv", "--top", "1") == 0
    rows = capsys.readouterr().out.strip().splitlines()[1:]
    assert len(rows) == shape.inputs
    moved = str(Path(run).rename("my run"))
    assert status("explain", moved, "--data", path, "--out", "again") == 0
    page = Path(capsys.readouterr().out.strip()).read_text()
    assert all(label in page for label in shape.classes)
    _says_what_to_do_next(moved, capsys)


def _says_what_to_do_next(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command of the report can be typed as it is printed, and its options go
    with the command that trained the run.
    """
    exhibits = json.loads(Path("again/report/exhibits.json").read_text())["exhibits"]
    (advice,) = [
        exhibit for exhibit in exhibits if exhibit["title"] == "What to do next"
    ]
    typed = re.findall(r"`torchcaps ([^`]+)`", advice["text"])
    assert shlex.split(typed[-1])[:2] == ["predict", run]
    training = [words for words in typed if words.startswith("train ")]
    for hint in advice["hints"]:
        option = hint["option"].removeprefix("torchcaps ")
        typed += [f"{training[0]} {option}" if option[:2] == "--" else option]
    for words in filter(None, typed):
        dry = ["--print_config"] if words.startswith("train ") else []
        assert status(*shlex.split(words), *dry) == 0, words
        capsys.readouterr()


def _written_run(folder: Path) -> None:
    """A run with files of every kind, as training in the folder of the data leaves."""
    run = folder / "runs" / "first"
    (run / "report").mkdir(parents=True)
    for name in ("config.yaml", "metrics.csv", "summary.json", "data.json"):
        (run / name).write_text("{}")
    (run / "report" / "index.html").write_text("")
    picture(run / "report" / "curves.png", "gold", 99)
    for name in ("words.txt", "rows.csv", "box.xml", "exhibits.json", "tone.wav"):
        (run / "report" / name).write_text('{"annotations": [], "categories": []}')


@ANY_SHAPE
def test_an_earlier_run_in_the_folder_is_no_data(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Texts beside the report of a run were taken for images without classes."""
    place = SHAPES[name].make(tmp_path)
    folder = place if place.is_dir() else place.parent
    monkeypatch.chdir(folder)
    named = "." if place.is_dir() else place.name
    assert status("check", named) == 0
    before = capsys.readouterr().out
    _written_run(folder)
    assert status("check", named) == 0
    assert capsys.readouterr().out == before


def test_one_image_is_nothing_to_train_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(picture(tmp_path / "one.png", "gold", 0))
    for command in ("check", "train"):
        assert status(command, path) == 1
        assert "must be a folder, a table" in capsys.readouterr().err


def test_a_folder_of_one_class_is_refused_by_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(4):
        picture(tmp_path / "photos" / "gold" / f"{number}.png", "gold", number)
    for command in ("check", "train"):
        assert status(command, "photos") == 1
        out, err = capsys.readouterr()
        assert "two or more classes" in out + err


@pytest.mark.thorough
def test_check_prints_the_command_that_trains_in_spite_of_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It printed none, and the option that leaves out what is broken did not help with
    empty class folders.
    """
    photos = SHAPES["class folders"].make(tmp_path)
    (photos / "empty").mkdir()
    (photos / "gold" / "broken.png").write_text("no image")
    assert status("check", "photos") == 1
    out, _ = capsys.readouterr()
    (line,) = [line for line in out.splitlines() if line.startswith("train on it: ")]
    assert line.endswith("torchcaps train photos --data.skip_broken true")
    words = shlex.split(line.removeprefix("train on it: torchcaps "))
    steps = ("--epochs", "1", "--trainer.extra", "{limit_train_batches: 1}")
    assert status(*words, *steps, "--report", "false") == 0


def test_one_thing_is_in_the_singular(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ "1 images of 1 classes"."""
    picture(tmp_path / "photos" / "gold" / "0.png", "gold", 0)
    assert status("check", "photos") == 1
    out, _ = capsys.readouterr()
    assert out.startswith("all: 1 image of 1 class\n")
    plural = r"\b1 (images|classes|texts|files|epochs|steps|problems|examples)\b"
    assert not re.search(plural, out)


@pytest.mark.parametrize(
    ("sign", "encoding"), [(";", "latin-1"), ("\t", "utf-16"), (",", "utf-8-sig")]
)
def test_tables_as_other_programs_write_them(
    sign: str, encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table with semicolons had one column, "review;stars"."""
    words = ("größer", "übel")
    rows = [sign.join((f"{words[k % 2]} {k}", str(k % 2))) for k in range(40)]
    text = "\r\n".join([sign.join(("review", "stars")), *rows])
    (tmp_path / "films.csv").write_bytes(text.encode(encoding))
    assert status("check", "films.csv") == 0
    out = capsys.readouterr().out
    assert "guessed: data.text review" in out
    assert "guessed: data.label stars" in out


def test_a_table_of_numbers_is_no_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The column with the most digits was read as texts."""
    rows = [f"{k},{k / 7},nan,{k % 2}" for k in range(40)]
    (tmp_path / "features.csv").write_text("\n".join(["a,b,c,label", *rows]))
    for command in ("check", "train"):
        assert status(command, "features.csv") == 1
        out, err = capsys.readouterr()
        assert "holds numbers and no texts" in out + err
        assert "train on it" not in out


@pytest.mark.parametrize(
    ("named", "hint"),
    [
        ("photos.zip", "unpack this archive"),
        ("https://example.com/photos", "addresses are not opened"),
    ],
)
def test_what_is_no_folder_yet_is_said(
    named: str, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photos.zip").write_bytes(b"PK")
    assert status("train", named) == 1
    assert hint in capsys.readouterr().err


def test_check_says_why_a_table_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said that the table is no folder, or that there are no folders of classes."""
    (tmp_path / "photos").mkdir()
    for number in range(8):
        image = Image.new("L", (20, 20), 20 * number)
        image.save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "photos" / "t.csv").write_text("file,label\n", encoding="utf-16-le")
    for named in ("photos", "photos/t.csv"):
        for command in ("train", "check"):
            assert status(command, named) == 1
            printed = capsys.readouterr()
            assert "t.csv is not text in UTF-8" in printed.out + printed.err


def test_plain_words_stay_texts_beside_a_table_of_other_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table is one of images only if its cells name images that are there."""
    rows = [f"{k}.png,{'good' if k % 2 else 'bad'}" for k in range(20)]
    (tmp_path / "names.csv").write_text("\n".join(["text,label", *rows]))
    assert status("check", "names.csv") == 0
    assert "Text, the texts in names.csv" in capsys.readouterr().out
