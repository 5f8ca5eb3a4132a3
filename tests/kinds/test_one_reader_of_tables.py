"""A table is read in the right way, or refused with the column's name: the same by
check, train and tc.train.
"""

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image

import torchcaps as tc
from tests.runs import status
from torchcaps.spec import fit
from torchcaps_lab.data import DataSet, ImageFolder, MapStyle, Series, Text
from torchcaps_lab.data.columns import UnclearColumns
from torchcaps_lab.options.guess import guess

WORDS = ["alpha", "beta", "gamma", "delta", "bank", "doctor", "match", "heart"]


def text(row: int) -> str:
    return f"{WORDS[row % 8]} {WORDS[row % 5]} story {row}"


Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a table, in an empty working folder."""
    monkeypatch.chdir(tmp_path)

    def table(
        name: str,
        header: Sequence[str],
        row: Callable[[int], Sequence[object]],
        count: int = 60,
    ) -> str:
        sign = "\t" if name.endswith("tsv") else ","
        rows = [header, *map(row, range(count))]
        Path(name).write_text("\n".join(sign.join(map(str, row)) for row in rows))
        return name

    return table


def refused(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What check, train and tc.train say of a table that none of them takes."""
    errors = []
    for command in ("check", "train"):
        assert status(command, name) == 1
        out, err = capsys.readouterr()
        assert "train on it" not in out
        errors.append(out + err)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        tc.train(name, show=None)
    message = str(error.value)
    assert all(message in output for output in errors)
    assert not Path("runs").exists()
    return message


def trained(name: str) -> tc.Classifier:
    return tc.train(name, epochs=1, report=False, show=None)


def test_columns_of_0_and_1_are_several_labels(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write(
        "heads.tsv",
        ("headline", "sport", "money", "health"),
        lambda k: (text(k), k % 2, int(k % 3 == 0), int(k % 5 == 0)),
    )
    assert status("check", name) == 0
    out = capsys.readouterr().out
    assert "headline  text" in out
    assert "data.label sport, money, health" in out
    classifier = trained(name)
    assert classifier.classes == ("health", "money", "sport")
    assert classifier.summary["task"] == "several_labels"
    data = Text(name, text="headline", label=("sport", "money", "health"))
    assert data.train.labels.dtype == torch.bool
    numbers = [int(file.rsplit(" ", 1)[1]) - 1 for file in data.train.files]
    wanted = [[k % 5 == 0, k % 3 == 0, k % 2 == 1] for k in numbers]
    assert data.train.labels.tolist() == wanted
    assert any("without a label" in note for note in data.notes())


@pytest.mark.parametrize("sign", ["|", ";", " "])
def test_several_labels_in_a_cell(write: Write, sign: str) -> None:
    topics = ("sport", "money", f"sport{sign}money")
    classifier = trained(
        write("cells.csv", ("headline", "topic"), lambda k: (text(k), topics[k % 3]))
    )
    assert classifier.classes == ("money", "sport")
    assert classifier.summary["task"] == "several_labels"


def test_a_table_of_numbers_names_where_they_are_classified(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write(
        "iris.csv",
        ("sepal", "petal", "species"),
        lambda k: (
            f"{k % 17 / 7:.2f}",
            f"{k % 23 / 9:.2f}",
            ("setosa", "virginica")[k % 2],
        ),
    )
    message = refused(name, capsys)
    assert "sepal (number)" in message
    assert "torchcaps.sklearn" in message


@pytest.mark.parametrize("label", ["price", "label"])
@pytest.mark.parametrize("form", ["{:.2f}", "{:.0f}"])
def test_prices_are_no_classes(
    write: Write, label: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write(
        "prices.csv", ("ad", label), lambda k: (text(k), form.format(17.0 + 12.7 * k))
    )
    message = refused(name, capsys)
    assert label in message
    assert "look like measurements" in message
    with pytest.raises(ValueError, match="look like measurements"):
        Text(name, text="ad", label=label)


def test_a_measurement_called_as_labels_are_hides_no_column_of_classes(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write(
        "ads.csv",
        ("ad", "y", "mood"),
        lambda k: (text(k), f"{17.0 + 12.7 * k:.2f}", ("sad", "happy")[k % 2]),
    )
    message = refused(name, capsys)
    assert "'y'" in message
    assert "name it with --data.label: mood" in message


def test_measurements_are_no_classes_in_python() -> None:
    images = torch.rand(40, 8, 8)
    with pytest.raises(ValueError, match="look like measurements"):
        _ = MapStyle((images, [f"{3.7 * k:.1f}" for k in range(40)])).classes


def test_one_text_of_each_class_cannot_be_tested(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write("two.csv", ("text", "label"), lambda k: (text(k), "ab"[k]), count=2)
    assert "each class has one text" in refused(name, capsys)


def test_two_columns_that_may_be_the_labels_are_asked_for(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write(
        "both.csv",
        ("quote", "city", "mood"),
        lambda k: (text(k), "ab"[k % 2], "xyz"[k % 3]),
    )
    message = refused(name, capsys)
    assert "city" in message
    assert "mood" in message
    assert "--data.label city" in message
    assert status("check", name, "--data.label", "city") == 0
    assert "train both.csv --data.label city" in capsys.readouterr().out


def test_columns_that_are_not_used_are_named(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write(
        "reviews.csv",
        ("id", "review", "stars", "city"),
        lambda k: (k, text(k), k % 5, "ab"[k % 2]),
    )
    assert status("check", name) == 0
    assert "not used: id (identifier), city (label)" in capsys.readouterr().out


def test_a_column_of_splits_is_followed(write: Write) -> None:
    parts = ("train", "train", "test", "train")
    classifier = trained(
        write(
            "split.csv",
            ("quote", "who", "part of"),
            lambda k: (text(k), "ab"[k % 2], parts[k % 4]),
        )
    )
    assert classifier.summary["examples"]["test"] == 15


@pytest.fixture
def pictures(tmp_path: Path) -> None:
    """Pictures that tables name."""
    for number in range(24):
        Image.new("L", (16, 16), 10 * number).save(tmp_path / f"{number}.png")


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize(
    ("header", "row", "pattern"),
    [
        (("img", "price"), lambda k: (k, 17.3 + 3 * k), "price.*measurements"),
        (("img", "target"), lambda k: (k, 17.3 + 3 * k), "target.*measurements"),
        (
            ("img", "city", "mood"),
            lambda k: (f"{k}.png", "ab"[k % 2], "xyz"[k % 3]),
            "city.*mood.*--data.label city",
        ),
        (("img", "shot"), lambda k: (k, f"2024-01-{k + 1:02d}"), "shot is date"),
    ],
)
def test_pictures_whose_labels_are_not_clear(
    write: Write,
    header: Sequence[str],
    row: Callable[[int], Sequence[object]],
    pattern: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = write("photos.csv", header, row, count=24)
    assert re.search(pattern, refused(name, capsys))


@pytest.mark.usefixtures("pictures")
def test_pictures_with_flags_a_split_and_columns_for_nothing(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write(
        "photos.csv",
        ("made", "sea", "img", "sky", "use"),
        lambda k: (
            "2024-01-01",
            k % 2,
            k,
            int(k % 3 == 0),
            ("train", "test")[k % 4 == 0],
        ),
        count=24,
    )
    guessed = guess(name)
    assert guessed.options["data"]["label"] == ["sea", "sky"]
    assert guessed.options["data"]["split"] == "use"
    assert status("check", name) == 0
    out = capsys.readouterr().out
    assert "not used: made (constant)" in out
    assert "sea   flag" in out


@pytest.mark.parametrize("marks", ["label", "labels"])
def test_a_text_column_is_known_by_its_name_or_its_cells(
    write: Write, marks: str
) -> None:
    name = write(
        "t.csv", ("a", "who", marks), lambda k: (k, text(k), "ab"[k % 2]), count=30
    )
    data = guess(name).options["data"]
    assert (data["text"], data.get("label", "label")) == ("who", marks)


@pytest.mark.usefixtures("pictures")
def test_flags_beside_pictures_called_0_and_1_are_no_names_of_pictures(
    write: Write,
) -> None:
    name = write("t.csv", ("a", "b", "c"), lambda k: (text(k), k % 2, int(k % 3 == 0)))
    data = guess(name).options["data"]
    assert (data["name"], data["text"], data["label"]) == ("Text", "a", ["b", "c"])


@pytest.mark.parametrize(
    ("typed", "classes"),
    [
        ('" "', ("bad", "good", "very")),
        ("null", ("bad", "good", "very bad", "very good")),
    ],
)
def test_a_sign_that_may_stand_between_labels_is_asked_for(
    typed: str,
    classes: tuple[str, ...],
    write: Write,
    capsys: pytest.CaptureFixture[str],
) -> None:
    verdicts = ("good", "bad", "very good", "very bad")
    name = write("v.csv", ("text", "verdict"), lambda k: (text(k), verdicts[k % 4]))
    message = refused(name, capsys)
    assert "'verdict'" in message
    assert f"--data.delimiter {shlex.quote(typed)}" in message
    status("check", name, "--data.delimiter", typed)
    out = capsys.readouterr().out
    assert all(f"  {label}: " in out for label in classes)
    assert f"--data.delimiter {shlex.quote(typed)}" in out


def test_numbered_columns_name_the_command_that_reads_them_as_series(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    head = ("id", "kind", *(f"f{moment}" for moment in range(9)))
    name = write(
        "wide.csv",
        head,
        lambda k: (f"s{k}", "ab"[k % 2], *(k % 7 + m * (k % 2) for m in range(9))),
    )
    command = re.search("torchcaps (train .* true)[.]", refused(name, capsys))
    assert command is not None
    steps = ("--epochs", "1", "--report", "false")
    assert status(*shlex.split(command[1]), *steps) == 0
    assert tc.Classifier.open("runs/wide").classes == ("a", "b")


def test_rows_of_one_time_are_not_read_as_moments(write: Write) -> None:
    """Two sensors in one column would become one channel."""
    name = write(
        "tidy.csv",
        ("id", "time", "sensor", "value", "kind"),
        lambda k: (k // 12, k // 2 % 6, "uv"[k % 2], k % 5, "ab"[k // 12 % 2]),
        count=480,
    )
    options = guess(name, {"data": {"series": "id", "label": "kind"}}).options["data"]
    with pytest.raises(ValueError, match="several rows of one time"):
        fit(DataSet, options, "data").make()


def test_a_bar_is_typed_as_it_is(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    """YAML reads it as an empty text, so that each cell was one class."""
    name = write("v.csv", ("text", "topic"), lambda k: (text(k), ("a|b", "c|d")[k % 2]))
    assert "--data.delimiter '|'" in refused(name, capsys)
    assert status("check", name, "--data.delimiter", "|") == 0
    out = capsys.readouterr().out
    assert all(f"  {label}: " in out for label in "abcd")
    assert out.rstrip().endswith("--data.delimiter '|'")


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("is_train", lambda k: int(k % 4 > 0)),
        ("in_test", lambda k: k % 4 == 0),
        ("Usage", lambda k: "PrivateTest" if k % 4 == 0 else "Training"),
    ],
)
def test_a_flag_or_usage_says_the_split(
    write: Write, column: str, cell: Callable[[int], object]
) -> None:
    """These columns were used for nothing, so that test rows were trained on."""
    name = write(
        "t.csv", ("text", "kind", column), lambda k: (text(k), "ab"[k % 2], cell(k))
    )
    data = fit(DataSet, guess(name).options["data"], "data").make()
    tested = {int(file.rsplit(" ", 1)[1]) - 1 for file in data.test.files}
    assert tested == {*range(0, 60, 4)}


def test_two_flags_of_splits_are_asked_about(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    header = ("text", "kind", "is_train", "is_val")
    name = write(
        "t.csv", header, lambda k: (text(k), "ab"[k % 2], int(k % 3 == 0), k % 2)
    )
    assert "--data.split is_train" in refused(name, capsys)


def test_splits_without_one_to_train_on_are_asked_about(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    """The column was used for nothing, so that test rows were trained on."""
    header = ("text", "kind", "split")
    name = write(
        "t.csv", header, lambda k: (text(k), "ab"[k % 2], ("val", "test")[k % 3 > 0])
    )
    assert "no rows to train on" in refused(name, capsys)
    assert guess(name, {"data": {"split": None}})


def walk(k: int) -> tuple[object, ...]:
    person, trial, moment = k // 60, k // 12 % 5, k % 12
    return (f"p{person}", trial, moment, (trial % 2) * moment, "uv"[trial % 2])


def test_two_columns_tell_series_apart(write: Write) -> None:
    header = ("person", "trial", "t", "height", "activity")
    data = guess(write("walks.csv", header, walk, count=360)).options["data"]
    assert (data["series"], data["group"]) == (["person", "trial"], "person")
    series = fit(DataSet, data, "data").make()
    assert len(series.train) + len(series.validation) + len(series.test) == 30
    assert series.classes == ("u", "v")


def test_the_time_is_a_channel_only_if_it_is_named_so(write: Write) -> None:
    header = ("person", "series", "t", "height", "label")
    name = write("walks.csv", header, walk, count=60)
    with pytest.raises(ValueError, match=r"'t'.*--data\.time t"):
        Series(name, group="person")
    shape = Series(name, values=("t", "height")).image_shape
    assert shape == (2, 1, 1)


def test_a_column_that_counts_the_rows_of_each_series_may_be_the_time(
    write: Write,
) -> None:
    """Times under a name of another language were a channel."""
    header = ("Versuch", "Zeit [s]", "Kraft [N]", "Klasse")
    name = write(
        "kraft.csv",
        header,
        lambda k: (k // 12, 0.1 * (k % 12), k * k % 17, "ab"[k // 12 % 2]),
        count=240,
    )
    named = {"series": "Versuch", "label": "Klasse"}
    with pytest.raises(ValueError, match=r"'Zeit \[s\]'.*--data\.time"):
        Series(name, **named)
    assert Series(name, time="Zeit [s]", **named).image_shape[0] == 1
    both = Series(name, values=("Zeit [s]", "Kraft [N]"), **named)
    assert both.image_shape[0] == 2


def test_moments_of_one_value_are_moments(write: Write) -> None:
    header = ("Probe", *(f"t={t} min" for t in range(5)), "Ergebnis")
    name = write(
        "wide.csv",
        header,
        lambda k: (f"P{k}", 0, *(k * t % 7 + 0.5 for t in range(1, 5)), "ab"[k % 2]),
        count=24,
    )
    given = {"data": {"wide": True, "label": "Ergebnis"}}
    assert len(guess(name, given).options["data"]["values"]) == 5


@pytest.mark.parametrize(("yes", "no"), [("ja", "nein"), ("oui", "non")])
def test_flags_of_other_languages(write: Write, yes: str, no: str) -> None:
    header = ("Text", "rund", "blau")
    name = write(
        "flags.csv",
        header,
        lambda k: (f"ein Wort {k} hier", (yes, no)[k % 2], (yes, no)[k % 3 == 0]),
    )
    data = fit(DataSet, guess(name).options["data"], "data").make()
    assert data.classes == ("blau", "rund")


def test_columns_of_classes_say_yes_or_no(write: Write) -> None:
    """A cell that was neither counted as no."""
    name = write(
        "counts.csv", ("text", "a", "b"), lambda k: (f"a word {k}", k % 3, k % 2)
    )
    given = {"data": {"label": ["a", "b"]}}
    with pytest.raises(ValueError, match=r"row 3: column 'a'.*got '2'"):
        fit(DataSet, guess(name, given).options["data"], "data").make()


def test_series_of_any_names_are_asked_for_by_the_whole_command(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    header = ("Messung", "Zeitpunkt", "Druck", "Zustand")
    name = write(
        "werte.csv",
        header,
        lambda k: (
            f"M{k // 12}",
            f"{1 + k % 12}.03.2024 7:00",
            f"{k % 5}.{k % 7}",
            "uv"[k // 12 % 2],
        ),
        count=240,
    )
    command = re.search("torchcaps (train .*)", refused(name, capsys))
    assert command is not None
    assert status(*shlex.split(command[1]), "--epochs", "1", "--report", "false") == 0
    assert tc.Classifier.open("runs/werte").classes == ("u", "v")


@pytest.mark.parametrize("ends", [(["NaN"],) * 8, ([], ["NaN"]) * 4])
def test_tables_of_the_ucr_archive_have_no_header(
    tmp_path: Path, ends: tuple[list[str], ...]
) -> None:
    for part in ("TRAIN", "TEST"):
        lines = [
            # The first one is as long as the others, or not.
            "\t".join(["-1" if k % 2 else "1", *map(str, range(k, k + 9)), *ends[k]])
            for k in range(8)
        ]
        (tmp_path / f"Name_{part}.tsv").write_text("\n".join(lines))
    data = guess(tmp_path).options["data"]
    series = fit(DataSet, data, "data").make()
    assert series.classes == ("-1", "1")
    assert len(series.test) == 8
    assert series.test.inputs.shape[2] == 9
    other = (tmp_path / "Name_TRAIN.tsv").rename(tmp_path / "features.tsv")
    with pytest.raises(ValueError, match=r"first line of .*features\.tsv|texts"):
        guess(other)


def test_a_spreadsheet_is_to_be_saved_as_a_table(tmp_path: Path) -> None:
    (tmp_path / "marks.xlsx").write_bytes(b"PK\x03\x04")
    with pytest.raises(ValueError, match=r"save this spreadsheet as \.csv"):
        guess(tmp_path / "marks.xlsx")


@pytest.mark.parametrize("how", ["name", "task"])
def test_check_takes_a_data_set_or_a_task(
    write: Write, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its command trains as it stands."""
    if how == "name":
        header = ("series", "label", "height")
        name = write(
            "long.csv", header, lambda k: (k // 6, "uv"[k // 6 % 2], k % 6 * k)
        )
        words = ["check", name, "--data", "Series"]
    else:
        Path("pictures").mkdir()
        for number in range(12):
            picture = Image.new("L", (16, 16), 10 * number)
            picture.save(f"pictures/{number}.png")
        words = ["check", "pictures", "--task", "objects"]
    assert status(*words) == 0
    command = re.search("train on it: torchcaps (train .*)", capsys.readouterr().out)
    assert command is not None
    steps = ("--epochs", "1", "--report", "false")
    assert status(*shlex.split(command[1]), *steps) == 0


@pytest.mark.parametrize(
    "parts", [("Training Set", "Test Set"), ("seg_train", "seg_test")]
)
def test_folders_of_splits_are_no_classes(
    parts: tuple[str, str], tmp_path: Path
) -> None:
    """They were read as two classes."""
    for part in parts:
        for name in ("ant", "bee"):
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            for number in range(5):
                picture = Image.new("L", (16, 16), 10 * number + 3 * len(part))
                picture.save(folder / f"{number}.png")
    data = fit(DataSet, guess(tmp_path).options["data"], "data").make()
    assert data.classes == ("ant", "bee")
    assert len(data.test) == 10


def test_a_column_of_one_remark_holds_no_labels(write: Write) -> None:
    name = write(
        "t.csv",
        ("text", "kind", "remark"),
        lambda k: (text(k), "ab"[k % 2], "" if k % 3 else "blurred"),
    )
    assert guess(name).options["data"]["label"] == "kind"


def test_folders_that_hold_the_same_folders_are_asked_about(tmp_path: Path) -> None:
    """Places with the classes in each were read as classes, with a note alone."""
    places = ("field 1", "field 2")
    for place in places:
        for name in ("frog", "bird"):
            folder = tmp_path / place / name
            folder.mkdir(parents=True)
            for number in range(5):
                shade = 20 * number + ord(place[-1]) + ord(name[0])
                picture = Image.new("L", (16, 16), shade)
                picture.save(folder / f"{number}.png")
    for read in (lambda: guess(tmp_path), lambda: ImageFolder(tmp_path)):
        with pytest.raises(ValueError, match="class_folders"):
            read()
    assert ImageFolder(tmp_path, class_folders="outer").classes == places
    data = ImageFolder(tmp_path, class_folders="inner")
    assert data.classes == ("bird", "frog")
    assert {entry.category for entry in data.manifest().parts["test"]} <= {
        *data.classes
    }
    inner = {"data": {"class_folders": "inner"}}
    assert guess(tmp_path, inner).why["data"].startswith("ImageFolder, 20 files of 2")
    assert status("check", str(tmp_path), "--data.class_folders", "inner") == 0


@pytest.mark.parametrize("cell", ["{}", "{:05}.jpg"])
def test_a_table_that_names_no_image_beside_folders(cell: str, tmp_path: Path) -> None:
    """The folders of two cameras were the classes."""
    for number in range(12):
        folder = tmp_path / f"camera {number % 2}"
        folder.mkdir(exist_ok=True)
        picture = Image.new("L", (16, 16), 10 * number)
        picture.save(folder / f"{number:05}.png")
    rows = [f"{cell.format(number)},{'ab'[number // 6]}" for number in range(12)]
    (tmp_path / "labels.csv").write_text("\n".join(["id,label", *rows]))
    with pytest.raises(UnclearColumns, match=f"looked for is '{cell.format(0)}'"):
        guess(tmp_path)
    by_folder = guess(tmp_path, {"data": {"class_folders": "outer"}})
    assert by_folder.options["data"]["name"] == "ImageFolder"
    # The names of the classes may be in a table.
    (tmp_path / "labels.csv").write_text("id,label\n0,camera 0\n1,camera 1")
    assert guess(tmp_path).options["data"]["name"] == "ImageFolder"
