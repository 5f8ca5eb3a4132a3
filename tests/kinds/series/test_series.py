"""Series from the user's files, and what is wrong with them."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchcaps.spec import fit
from torchcaps_lab.data import (
    DataSet,
    MadeSeries,
    Scale,
    Series,
    SeriesArrays,
    SeriesSet,
)
from torchcaps_lab.data.transforms.preprocess import Preprocess
from torchcaps_lab.kinds.series.files import read_sound, series_in
from torchcaps_lab.kinds.series.reader import SeriesReader
from torchcaps_lab.kinds.series.sound import Sound
from torchcaps_lab.kinds.series.table import SeriesForm
from torchcaps_lab.look import Place
from torchcaps_lab.options.guess import guess, recognised
from torchcaps_lab.testing import check_dataset

soundfile = pytest.importorskip("soundfile", reason="it is in the extra series")


def tone(
    path: Path, hertz: float, seconds: float = 0.2, rate: int = 8000, loud: float = 0.5
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    moments = np.arange(round(seconds * rate)) / rate
    soundfile.write(path, loud * np.sin(2 * math.pi * hertz * moments), rate)
    return path


def sounds(root: Path) -> Path:
    """Low and high tones of four speakers, of several lengths."""
    for place, speaker in enumerate("abcd"):
        for label, hertz in (("low", 300), ("high", 2000)):
            for number in range(2):
                tone(
                    root / f"{label}_{speaker}_{number}.wav",
                    hertz + 20 * place,
                    0.1 + 0.05 * number,
                )
            (root / f"._{label}_{speaker}_0.wav").touch()
    return root


def table(path: Path, rows: list[str], header: str = "series,label,who,x,y") -> Path:
    path.write_text("\n".join([header, *rows]))
    return path


def walks(path: Path, series: int = 12) -> Path:
    rows = [
        f"{number},{'up' if number % 2 else 'down'},{number // 4},{moment * (1 if number % 2 else -1)},{number}"
        for number in range(series)
        for moment in range(3 + number)
    ]
    return table(path, rows)


def speakers(series: object) -> set[str]:
    assert isinstance(series, SeriesSet)
    return {Path(name).name.split("_")[1] for name in series.files or ()}


def test_what_every_data_set_keeps() -> None:
    check_dataset(MadeSeries)


def test_speakers_who_are_tested_are_in_no_other_part(tmp_path: Path) -> None:
    data = Series(str(sounds(tmp_path)), test=0.25, validation=0.4)
    parts = [speakers(part) for part in (data.train, data.validation, data.test)]
    assert sorted(map(len, parts)) == [1, 1, 2]
    assert set.union(*parts) == set("abcd")
    named = Series(str(tmp_path), test_groups=("c",), validation_groups=("a",))
    assert [speakers(part) for part in (named.train, named.validation, named.test)] == [
        {"b", "d"},
        {"a"},
        {"c"},
    ]
    with pytest.raises(
        ValueError, match=r"must be among \['a', 'b', 'c', 'd'\], got \['e'\]"
    ):
        Series(str(tmp_path), test_groups=("e",))


def test_a_run_keeps_its_speakers_when_others_come(tmp_path: Path) -> None:
    kept = Series(str(sounds(tmp_path))).manifest()
    tone(tmp_path / "low_new_0.wav", 310)
    again = Series(str(tmp_path))
    assert again.follow(kept).added == ("low_new_0.wav",)
    assert again.manifest().digest() == kept.digest()


def test_folders_of_classes_and_speakers(tmp_path: Path) -> None:
    for label, hertz in (("low", 300), ("high", 2000)):
        for speaker in "ab":
            tone(tmp_path / label / speaker / "1.wav", hertz)
    data = Series(str(tmp_path), test=0.5, validation=0.0)
    assert data.classes == ("high", "low")
    assert len({Path(name).parent.name for name in data.test.files or ()}) == 1


def test_tables_have_series_of_any_length_and_groups(tmp_path: Path) -> None:
    data = Series(
        str(walks(tmp_path / "walks.csv")),
        group="who",
        validation=0.0,
        test_groups=("0",),
    )
    assert (data.classes, data.image_shape, len(data.test)) == (
        ("down", "up"),
        (2, 1, 1),
        4,
    )
    test = data.test
    assert isinstance(test, SeriesSet)
    assert torch.equal(test.row(1), torch.tensor([[0.0, 1, 2, 3], [1, 1, 1, 1]]))
    batch = test.__getitems__([0, 1])
    assert batch.inputs.shape == (2, 3, 4)
    assert batch.inputs[0, :, 3].tolist() == [0, 0, 0]


def test_moments_with_units_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """They were one channel, in the order of the columns."""
    rows = [f"{('a', 'b')[k % 2]},1,0,2,3" for k in range(20)]
    table = tmp_path / "wide.csv"
    table.write_text("\n".join(["label,u 1 (V),u 0 (V),i 0 (A),i 1 (A)", *rows]))
    data = Series(str(table), wide=True)
    assert data.train.row(0)[:2].tolist() == [[2, 3], [0, 1]]
    assert data.manifest().parts["train"][0].name.startswith("wide.csv:row ")


@pytest.mark.parametrize("wide", [False, True], ids=["long", "wide"])
def test_channels_are_told_by_their_names(tmp_path: Path, wide: bool) -> None:
    # Every x is 1, and every y is 5.
    for part, order in (("train", "xy"), ("test", "yx")):
        cells = ",".join("1" if name == "x" else "5" for name in order)
        header = f"series,label,{','.join(order)}"
        rows = [f"{k},{'ab'[k % 2]},{cells}" for k in range(12) for _ in range(3)]
        if wide:
            header = "label," + ",".join(
                f"{channel}{n}" for channel in order for n in range(3)
            )
            cells = ",".join("111" if name == "x" else "555" for name in order)
            rows = [
                "ab"[k % 2] + "," + ",".join(cells.replace(",", "")) for k in range(12)
            ]
        table(tmp_path / f"{part}.csv", rows, header)
    data = Series(str(tmp_path), wide=wide)
    for part in (data.train, data.test):
        assert part.inputs[0, :2].tolist() == [[1.0, 1, 1], [5, 5, 5]]


def test_other_series_have_the_channels_of_the_network(tmp_path: Path) -> None:
    rows = [f"{k},{'ab'[k % 2]},1,5" for k in range(12) for _ in range(3)]
    trained = Series(str(table(tmp_path / "a.csv", rows, "series,label,x,y")))
    other = str(table(tmp_path / "b.csv", rows, "series,label,y,x"))
    reader = SeriesReader.of_data(trained, Preprocess())
    with pytest.raises(ValueError, match="takes the channels x, y, these are y, x"):
        reader.fitted(Series(other).test)
    arguments: dict[str, Any] = {"root": other, "values": ()}
    reader.complete(arguments)
    assert reader.fitted(Series(**arguments).test).inputs[0, 0, 0] == 5


def test_rows_of_other_tables_may_be_longer_or_shorter(tmp_path: Path) -> None:
    """They were cut to the moments of the training's table, or refused."""

    def wide(name: str, moments: int) -> Path:
        cells = "," + ",".join("15"[m < moments] for m in range(2 * moments))
        header = ",".join(f"{channel}{m}" for channel in "xy" for m in range(moments))
        rows = ["ab"[k % 2] + cells for k in range(12)]
        return table(tmp_path / name, rows, f"label,{header}")

    train, *others = (wide(f"{moments}.csv", moments) for moments in (9, 4, 20))
    every = Series(str(train), wide=True)
    reader = SeriesReader.of_data(every, Preprocess())
    reader = SeriesReader.from_config(reader.config())
    for path, moments in zip(others, (4, 20), strict=True):
        first, *_ = reader.named([str(path)])
        assert first.values.shape == (2, moments)
        arguments: dict[str, Any] = {"root": path, "values": (), "wide": True}
        reader.complete(arguments)
        assert Series(**arguments).test.inputs.shape[1:] == (3, moments)
    # Moments that were chosen stay those.
    chosen = Series(str(train), wide=True, values=["x0", "x1", "x2"])
    first, *_ = SeriesReader.of_data(chosen, Preprocess()).named([str(others[1])])
    assert first.values.shape == (1, 3)
    lacking = table(tmp_path / "z.csv", ["a,1,2"], "label,z0,z1")
    with pytest.raises(ValueError, match="no columns with the numbers of x and y"):
        series_in(lacking, reader.scale.form)


def test_moments_that_no_series_reaches_do_not_fix_the_others(tmp_path: Path) -> None:
    """The moments were listed by name, and tables with fewer of them refused."""
    header = ",".join(f"t{moment}" for moment in range(20))
    rows = [
        ",".join(["ab"[k % 2], *map(str, range(k, k + 12)), *8 * [""]])
        for k in range(12)
    ]
    train = table(tmp_path / "train.csv", rows, f"label,{header}")
    data = guess(train, {"data": {"wide": True, "label": "label"}}).options["data"]
    assert data["values"] == header.split(",")
    del data["name"]
    reader = SeriesReader.of_data(Series(**data), Preprocess())
    short = table(tmp_path / "new.csv", ["1,2,3,4,5"], "t0,t1,t2,t3,t4")
    first, *_ = reader.named([str(short)])
    assert first.values.shape == (1, 5)


def test_training_series_have_mean_0_and_deviation_1(tmp_path: Path) -> None:
    for how in ("data", "each"):
        train = Series(
            str(walks(tmp_path / "walks.csv")), group="who", standardise=how
        ).train
        assert isinstance(train, SeriesSet)
        rows = [train.scale(train.row(index)) for index in range(len(train))]
        for row in [torch.cat(rows, 1)] if how == "data" else rows:
            torch.testing.assert_close(
                row[0].mean(), torch.tensor(0.0), atol=1e-5, rtol=0
            )
            torch.testing.assert_close(
                row[0].std(correction=0), torch.tensor(1.0), atol=1e-5, rtol=0
            )
    assert rows[0][1].abs().max() == 0  # it is constant
    assert Scale.from_config(train.scale.config()) == train.scale


@pytest.mark.parametrize("unit", [1e-30, 5e-6, 1e20])
@pytest.mark.parametrize("each", [True, False])
def test_the_unit_of_a_series_does_not_matter(unit: float, each: bool) -> None:
    """Volts of an EEG became 0."""
    row = torch.stack([torch.randn(30), torch.full((30,), 3.0)])
    answers = []
    for factor in (1.0, unit):
        scale = Scale() if each else Scale.of([row * factor])
        answers.append(scale(row * factor))
    torch.testing.assert_close(answers[1], answers[0], rtol=1e-4, atol=1e-5)
    assert not answers[0][1].any()


def test_a_tone_has_its_band_and_its_power_at_any_rate() -> None:
    sound = Sound(bands=20)
    middles = torch.linspace(0, 2595 * math.log10(1 + 4000 / 700), 22)[1:-1]
    wanted = int((middles - 2595 * math.log10(1 + 1000 / 700)).abs().argmin())
    for rate in (8000, 11025, 44100):
        wave = torch.sin(2 * math.pi * 1000 * torch.arange(rate // 2) / rate)
        frames = sound.frames(wave, rate)
        assert frames.shape[1] == 51
        assert frames[:, 25].argmax() == wanted
        assert frames[:, 25].exp().sum() == pytest.approx(1 / 2, rel=0.01)


@pytest.mark.parametrize("right", [-1.0, -0.999])
def test_channels_of_opposite_phase_are_refused(tmp_path: Path, right: float) -> None:
    """Their mean is rounding, which would be heard as a sound."""
    path = tmp_path / "a_b_c.wav"
    left = 0.5 * np.sin(2 * math.pi * 300 * np.arange(2000) / 8000)
    soundfile.write(path, np.stack([left, right * left], 1), 8000)
    with pytest.raises(ValueError, match="its channels are of opposite phase"):
        read_sound(path, Sound())
    soundfile.write(path, np.stack([left, 0.1 * right * left], 1), 8000)
    other = np.cos(2 * math.pi * 500 * np.arange(2000) / 8000)
    assert read_sound(path, Sound()).std() > 0.1
    soundfile.write(path, np.stack([left, other], 1), 8000)
    assert read_sound(path, Sound()).std() > 0.1


def test_a_constant_that_was_rounded_is_silent() -> None:
    samples = torch.full((4000,), 0.3)
    samples[::3] = samples[::3].nextafter(torch.tensor(1.0))
    with pytest.raises(ValueError, match="silent"):
        Sound().frames(samples, 8000)


def test_a_series_with_a_gap_does_not_stop_the_others(tmp_path: Path) -> None:
    """The whole table was refused, also where broken series are to be left out."""
    path = walks(tmp_path / "walks.csv")
    lines = path.read_text().split("\n")
    lines[2] = lines[2].rpartition(",")[0] + ","
    path.write_text("\n".join([*lines, "12,up,3,1,1"]))
    with pytest.raises(ValueError, match=r"2 series cannot be read: .* skip_broken"):
        Series(str(path))
    data = Series(str(path), skip_broken=True)
    assert len(data.listed.items) == 11
    assert sorted(data.listed.left_out) == ["walks.csv:0", "walks.csv:12"]
    reader = SeriesReader.of_data(data, Preprocess())
    gap, *others = reader.named([str(path)])
    assert re.search(r"walks\.csv:0: line 3: .*'' in y", str(gap.error))
    assert [*map(str, others)] == [f"{path}:{number}" for number in (12, *range(1, 12))]


BROKEN: list[tuple[str, Callable[[Path], object], str]] = [
    (
        "empty.csv",
        lambda path: path.write_text(""),
        r"series must be a column of .*empty.csv, got 'series'; there are none",
    ),
    ("none.csv", lambda path: table(path, []), "none.csv holds no series"),
    (
        "one.csv",
        lambda path: table(path, ["0,up,a,1,2"]),
        r"one.csv:0: it must have .* two or more moments, got \(2, 1\)",
    ),
    (
        "class.csv",
        lambda path: table(path, ["0,up,a,1,2"] * 2),
        "class.csv must hold series of two or more classes",
    ),
    (
        "nan.csv",
        lambda path: table(path, ["0,up,a,1,2", "0,up,a,nan,2"]),
        "nan.csv:0: line 3: every channel must be a number, got .*x",
    ),
    (
        "gap.csv",
        lambda path: table(path, ["0,up,a,1,2", "0,up,a,,2"]),
        "gap.csv:0: line 3: every channel must be a number",
    ),
    (
        "short.csv",
        lambda path: table(path, ["0,up,a,1,2", "0,up,a,1"]),
        "short.csv:0: line 3: every channel must be a number",
    ),
    (
        "unnamed.csv",
        lambda path: table(path, ["0,up,a,1,2", ",up,a,3,2"]),
        "unnamed.csv:3: every row must name its series, got .* column 'series'",
    ),
    (
        "both.csv",
        lambda path: table(path, ["0,up,a,1,2", "0,down,a,1,2"]),
        "both.csv:3: series 0 is",
    ),
    (
        "a_b_c.wav",
        lambda path: path.write_text(""),
        "a_b_c.wav: it is no sound that can be read: it is empty",
    ),
    (
        "a_b_g.wav",
        lambda path: tone(path, 300, 0.005),
        "a_b_g.wav: it is too short: it has 40 samples, at least 80 are needed",
    ),
    (
        "a_b_d.wav",
        lambda path: tone(path, 300, loud=0.0),
        "a_b_d.wav: it is silent: all samples are equal",
    ),
    ("a_b_e.wav", lambda path: tone(path, 300, 1 / 8000), "a_b_e.wav: it is silent"),
    (
        "a_b_f.wav",
        lambda path: tone(path, 300, rate=4000),
        "a_b_f.wav: it has 4000 samples a second",
    ),
    (
        "a.wav",
        lambda path: tone(path, 300),
        "a.wav must be named LABEL_SPEAKER_NUMBER.wav",
    ),
    (
        "a_b_c_d.wav",
        lambda path: tone(path, 300),
        "a_b_c_d.wav must be named LABEL_SPEAKER_NUMBER.wav",
    ),
    (
        "other.csv",
        lambda path: table(path, ["0,up,a,1,2"], "series,class,who,x,y"),
        "label must be a column of .*other.csv",
    ),
]


@pytest.mark.parametrize(
    ("name", "write", "message"), BROKEN, ids=[name for name, *_ in BROKEN]
)
def test_what_is_wrong_is_said_of_the_file(
    name: str, write: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    write(tmp_path / name)
    with pytest.raises(ValueError, match=message):
        Series(str(tmp_path if name.endswith(".wav") else tmp_path / name), group="who")


@pytest.mark.parametrize("wide", [False, True], ids=["long", "wide"])
def test_a_cell_without_a_number_does_not_make_texts_of_a_column(
    tmp_path: Path, wide: bool
) -> None:
    rows = [
        f"{k},{'ab'[k % 2]}," + ",".join(str(k * m + 0.5) for m in range(9))
        for k in range(24)
        for _ in range(1 if wide else 3)
    ]
    rows[1] = rows[1].rpartition(",")[0] + ",?"
    header = "series,label," + ",".join(
        f"t{m}" if wide else "uvwxyzopq"[m] for m in range(9)
    )
    options = guess(table(tmp_path / "a.csv", rows, header)).options["data"]
    assert options.pop("name") == "Series"
    with pytest.raises(ValueError, match=r"must be a number, got .*'[?]'"):
        Series(**options)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="root nowhere does not exist"):
        Series("nowhere")
    walks(tmp_path / "train.csv")
    with pytest.raises(
        ValueError, match=r"must hold files for train and test, got train\.csv"
    ):
        Series(str(tmp_path))


class TestArchives:
    """Files of the UEA and UCR archives."""

    @pytest.fixture(autouse=True)
    def aeon(self) -> None:
        """Reads them."""
        self.module = pytest.importorskip(
            "aeon", reason="it is in the extra series, and holds NumPy below 2.4"
        )

    def test_published_splits_are_kept(self) -> None:
        root = Path(self.module.__file__).with_name("datasets") / "data"
        data = Series(str(root / "JapaneseVowels"))
        assert (len(data.train) + len(data.validation), len(data.test)) == (270, 370)
        assert (data.image_shape, len(data.classes)) == ((12, 1, 1), 9)
        assert len(Series(str(root / "GunPoint" / "GunPoint_TRAIN.arff")).test) == 10

    def test_broken_files(self, tmp_path: Path) -> None:
        (tmp_path / "empty.ts").write_text("")
        with pytest.raises(ValueError, match=r"empty\.ts holds no series"):
            Series(str(tmp_path / "empty.ts"))
        head = (
            "@problemName x\n@timeStamps false\n@missing true\n@univariate "
            "false\n@dimension 2\n@equalLength true\n"
        )
        rows = "1,2,3:4,5,6:a\n1,?,3:4,5,6:b\n"
        (tmp_path / "gap.ts").write_text(
            f"{head}@seriesLength 3\n@classLabel true a b\n@data\n{rows}"
        )
        with pytest.raises(
            ValueError,
            match=(
                r"gap\.ts:2: it holds NaN or infinite numbers, first in channel 0 at "
                r"moment 1"
            ),
        ):
            Series(str(tmp_path / "gap.ts"))

    def test_classes_that_differ_in_case_alone(self, tmp_path: Path) -> None:
        """They were merged: aeon reads labels in lower case."""
        write_ts(tmp_path / "x.ts", "true A a b", ":A", ":a")
        with pytest.raises(ValueError, match="'A' and 'a', which differ in case"):
            Series(str(tmp_path / "x.ts"))

    @pytest.mark.parametrize(("classes", "label"), [("false", ""), ("true a b", ":?")])
    def test_series_without_labels(
        self, tmp_path: Path, classes: str, label: str
    ) -> None:
        """They can be answered, and not trained on."""
        path = tmp_path / "x.ts"
        write_ts(path, classes, label, label)
        items = series_in(path, SeriesForm())
        assert [getattr(item, "category", None) for item in items] == ["", ""]
        with pytest.raises(ValueError, match=r"x\.ts:1 has no label"):
            Series(str(path))

    def test_labels_of_arff_have_no_quotes(self, tmp_path: Path) -> None:
        path = tmp_path / "x.arff"
        path.write_text(
            "@relation x\n@attribute a numeric\n@attribute b numeric\n"
            "@attribute target {'class a','class b'}\n@data\n"
            "1,2,'class a'\n2,3,'class b'\n"
        )
        labels = [
            getattr(item, "category", None) for item in series_in(path, SeriesForm())
        ]
        assert labels == ["class a", "class b"]


def write_ts(path: Path, classes: str, *labels: str) -> None:
    """A file of series of three moments with these ends."""
    rows = "".join(f"1,2,{3 + row}{label}\n" for row, label in enumerate(labels))
    path.write_text(
        "@problemName x\n@timeStamps false\n@univariate true\n@equalLength true\n"
        f"@seriesLength 3\n@classLabel {classes}\n@data\n{rows}"
    )


def test_numbers_of_classes_in_ucr_are_written_in_one_way(tmp_path: Path) -> None:
    for part, label in (("TRAIN", "{}.000000e+00"), ("TEST", "{}")):
        rows = (
            "\t".join([label.format(row % 2), *(f"0.{row}{k}" for k in range(9))])
            for row in range(8)
        )
        (tmp_path / f"x_{part}.tsv").write_text("\n".join(rows))
    assert Series(str(tmp_path)).classes == ("0", "1")


@pytest.mark.parametrize("rate", [16_000, 44_100])
@pytest.mark.parametrize("mode", ["CONSTANT", "VARIABLE"])
def test_an_mp3_without_its_length_is_refused_unless_all_frames_have_one_bitrate(
    tmp_path: Path, mode: str, rate: int
) -> None:
    """The length was estimated from the first frames, and the rest cut off."""
    if "MP3" not in soundfile.available_formats():
        pytest.skip("this libsndfile writes no MP3")
    path = tmp_path / "x.mp3"
    noise = np.random.default_rng(0).normal(size=2 * rate) * np.linspace(
        0, 0.2, 2 * rate
    )
    soundfile.write(path, noise, rate, compression_level=0.5, bitrate_mode=mode)
    content = path.read_bytes()
    whole = read_sound(path, Sound())
    assert whole.shape[1] > 100
    tag = b"ID3\x04\x00\x00\x00\x00\x02\x00" + bytes(256)
    path.write_bytes(tag + content)
    assert read_sound(path, Sound()).shape == whole.shape
    second = content.find(content[:2], 4)
    path.write_bytes(tag + content[second:] + b"TAG" + bytes(125))
    if mode == "CONSTANT":
        # Encoders write a few frames more, which the first frame tells to leave out.
        more = read_sound(path, Sound()).shape[1] - whole.shape[1]
        assert 0 <= more <= 12
        return
    with pytest.raises(ValueError, match=r"x\.mp3: it is an MP3 that does not state"):
        read_sound(path, Sound())


class InMemory(Series):
    """Series of two classes and of four people, that are in memory."""

    def __init__(self) -> None:
        super().__init__("", test_groups=("d",), validation=0.25)

    def list_series(self) -> Any:
        """The series, later ones first."""
        rows = []
        for number in range(15, -1, -1):
            values = torch.full((1, 5), float(number)) + torch.arange(5)
            label = "ab"[number % 2]
            person = "abcd"[number // 4]
            rows.append((f"{number:02}", label, values, person))
        return self.listed_of(rows)


def test_series_in_memory_may_run_backwards_through_it() -> None:
    series, labels = np.random.default_rng(0).normal(size=(20, 3, 50)), ["a", "b"] * 10
    backwards = SeriesArrays(series[..., ::-1], labels).train.inputs
    assert torch.equal(
        backwards, SeriesArrays(series[..., ::-1].copy(), labels).train.inputs
    )


def test_series_in_memory_are_divided_by_their_groups() -> None:
    data = InMemory()
    assert data.test.files == ("15", "14", "13", "12")
    assert data.test.labels.tolist() == [1, 0, 1, 0]
    assert len(data.train) == 8


@pytest.mark.parametrize("row", ["{},{}.5", "2020-01-01 00:00:{:02},{}", "{};0,{}"])
def test_a_table_for_each_series_is_told_where_to_go(tmp_path: Path, row: str) -> None:
    """It was taken for a folder of texts."""
    for number in range(12):
        folder = tmp_path / ["slow", "fast"][number % 2]
        folder.mkdir(exist_ok=True)
        sign = ";" if ";" in row else ","
        rows = [row.format(moment, moment * number) for moment in range(30)]
        text = "\n".join([f"time{sign}x", *rows])
        (folder / f"{number}.csv").write_text(text)
    (tmp_path / "slow" / ".DS_Store").write_text("")
    reader, error = recognised(Place(tmp_path), {})
    assert reader.name == "series"
    assert isinstance(error, ValueError)
    assert "one .csv file with a row for each moment" in str(error)


def test_the_highest_frequency_follows_the_sampling_rate(tmp_path: Path) -> None:
    """Sounds of 4 kHz could not be read until --data.highest was given."""
    for number in range(6):
        for name, hertz in (("hum", 100), ("beep", 800)):
            path = tmp_path / name / f"{number}.wav"
            tone(path, hertz + number, rate=4000)
    guessed = guess(tmp_path)
    assert guessed.options["data"]["highest"] == 2000
    assert "4,000 samples" in guessed.why["data.highest"]
    assert len(fit(DataSet, guessed.options["data"], "data").make().test)


def test_times_are_sorted_however_they_are_written(tmp_path: Path) -> None:
    """They were guessed as times, and then refused."""
    written = {
        "day first": ("31/12/2023 23:00", "01/01/2024 08:00", "13/01/2024 08:00"),
        "month first": (
            "12/31/23, 8:00:00 PM",
            "1/1/24, 12:30:00 AM",
            "1/1/24, 1:00 PM",
        ),
        "dashes": ("09-01-2024", "10-01-2024", "13-01-2024"),
        "points": ("30.01.24 8:00", "01.02.24 8:00", "02.02.24 7:00"),
        "slashes": ("2024/1/9", "2024/1/10", "2024/1/10 0:01"),
        "names": ("Tue, 30 Jan 2024 08:00:00 GMT", "1 Feb 2024", "March 1, 2024"),
        "zones": ("2024-01-01 08:00:00 +0200", "2024-01-01 07:00 UTC", "2024-01-02"),
        "clock": ("9:00 AM", "12:00 PM", "1:00 PM"),
    }
    for name, times in written.items():
        rows = [
            f's{number},{"ab"[number % 2]},x,"{times[moment]}",{moment}'
            for number in range(8)
            for moment in (2, 0, 1)
        ]
        path = table(tmp_path / f"{name}.csv", rows, "series,label,who,when,height")
        options = guess(path, {}).options["data"]
        assert options["time"] == "when", name
        series = fit(DataSet, options, "data").make()
        assert series.train.inputs[0][0].tolist() == [0, 1, 2], name


def test_times_that_may_begin_with_the_day_or_the_month_are_not_guessed(
    tmp_path: Path,
) -> None:
    def of(*times: str) -> Path:
        rows = [
            f"s{number},{'ab'[number % 2]},x,{time},{moment}"
            for number in range(8)
            for moment, time in enumerate(times)
        ]
        return table(tmp_path / "days.csv", rows, "series,label,who,when,height")

    with pytest.raises(ValueError, match=r"'when' of .* the day or with the month"):
        Series(of("01/02/2024", "02/01/2024"), time="when", values=("height",))
    with pytest.raises(ValueError, match="must all begin with the day"):
        Series(of("01/13/2024", "13/01/2024"), time="when", values=("height",))
    # Both readings order the rows alike.
    one_day = of("01/02/2024 08:00", "01/02/2024 09:00")
    assert len(Series(one_day, time="when", values=("height",)).train) > 1
