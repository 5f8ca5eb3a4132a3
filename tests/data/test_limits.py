"""Small files that state much, and files that never end: a clear error that names them,
at once, in little memory.
"""

import gzip
import json
import os
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from torchcaps.whole import check_file, parsed_json, read_json, read_text
from torchcaps_lab.data import Examples, Manifest, Series, Text, read_idx
from torchcaps_lab.data.base import stable_split
from torchcaps_lab.data.listed import Listed
from torchcaps_lab.data.plain_text import decoded
from torchcaps_lab.kinds.images.sets.smallnorb import read_binary_matrix
from torchcaps_lab.kinds.scenes.noted import named_below
from torchcaps_lab.kinds.series.files import read_sound, series_in
from torchcaps_lab.kinds.series.sound import Sound
from torchcaps_lab.kinds.series.table import SeriesForm, series_of_table
from torchcaps_lab.kinds.texts.word_vectors import read_vectors
from torchcaps_lab.kinds.texts.words import Words

MIB = 2**20


@pytest.fixture
def little() -> Any:
    """At most 64 MiB of Python's memory, NumPy's included, besides what torch takes."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * MIB


def wav(path: Path, rate: int, samples: int = 4000, channels: int = 1) -> Path:
    """A tone in 16 bits, whose header states any rate."""
    wave = (10_000 * torch.sin(torch.arange(samples) / 3)).to(torch.int16)
    content = wave[:, None].expand(-1, channels).contiguous().numpy().tobytes()
    form = struct.pack(
        "<HHIIHH",
        1,
        channels,
        rate,
        min(2 * channels * rate, 2**32 - 1),
        2 * channels,
        16,
    )
    path.write_bytes(
        b"RIFF"
        + struct.pack("<I", 36 + len(content))
        + b"WAVEfmt "
        + struct.pack("<I", 16)
        + form
        + b"data"
        + struct.pack("<I", len(content))
        + content
    )
    return path


def flac(path: Path, stated: int, samples: int = 4000) -> Path:
    """A tone, whose header states any number of samples, of 36 bits."""
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(path, torch.sin(torch.arange(samples) / 3).numpy(), 8000)
    content = bytearray(path.read_bytes())
    assert content[:4] == b"fLaC"
    content[21] = content[21] & 0xF0 | stated >> 32
    content[22:26] = struct.pack(">I", stated & 0xFFFFFFFF)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("rate", [1_000_001, 100_000_000, 2**31 - 1])
def test_a_rate_of_no_sound(tmp_path: Path, rate: int, little: None) -> None:
    with pytest.raises(
        ValueError,
        match=(
            rf"a\.wav: it states {rate:,} samples a second, at most 1,000,000 are "
            r"read"
        ),
    ):
        read_sound(wav(tmp_path / "a.wav", rate), Sound())


def test_rates_of_sounds_are_read(tmp_path: Path) -> None:
    for rate in (8000, 48_000, 192_000, 384_000, 1_000_000):
        assert read_sound(wav(tmp_path / "a.wav", rate, rate // 10), Sound()).shape == (
            40,
            11,
        )


@pytest.mark.parametrize(("rate", "highest"), [(8, 2.0), (60, 20.0)])
def test_a_rate_without_a_sample_in_each_frame(
    tmp_path: Path, rate: int, highest: float
) -> None:
    with pytest.raises(ValueError, match=rf"a\.wav: it has {rate} samples a second"):
        read_sound(wav(tmp_path / "a.wav", rate), Sound(highest=highest))


@pytest.mark.parametrize("stated", [2**36 - 1, 2**35, 2**30, 4001])
def test_samples_that_are_not_there(tmp_path: Path, stated: int, little: None) -> None:
    with pytest.raises(
        ValueError,
        match=(
            rf"a\.flac.*(states {stated:,} samples|states or holds {stated:,} "
            r"samples)"
        ),
    ):
        read_sound(flac(tmp_path / "a.flac", stated), Sound())


def test_a_flac_that_states_no_number_of_samples_is_read(tmp_path: Path) -> None:
    assert read_sound(flac(tmp_path / "a.flac", 0), Sound()).shape == (40, 51)


def test_silence_that_takes_no_bytes(tmp_path: Path, little: None) -> None:
    soundfile = pytest.importorskip("soundfile")
    with soundfile.SoundFile(tmp_path / "a.flac", "w", 8000, 1) as file:
        for _ in range(32):
            file.write(torch.zeros(MIB).numpy())
    with pytest.raises(
        ValueError,
        match=(
            r"a\.flac: it states or holds 33,554,432 samples, of [\d,]+ bytes at "
            r"most"
        ),
    ):
        read_sound(tmp_path / "a.flac", Sound())


@pytest.mark.thorough
def test_frames_of_pieces_are_those_of_the_whole() -> None:
    chance = torch.Generator().manual_seed(0)
    samples = torch.randn(48_000 * 45, generator=chance)  # more than one block
    sound = Sound(bands=4)
    assert torch.equal(
        sound.frames(samples, 48_000), sound.frames_of(samples.split(77_777), 48_000)
    )
    part = sound.frames(samples[: 48_000 * 2], 48_000)
    assert torch.equal(sound.frames(samples, 48_000)[:, :190], part[:, :190])


@pytest.mark.thorough
def test_an_hour_at_48_khz_takes_little_memory(tmp_path: Path, little: None) -> None:
    soundfile = pytest.importorskip("soundfile")
    with soundfile.SoundFile(tmp_path / "a.wav", "w", 48_000, 1, "PCM_16") as file:
        for minute in range(60):
            file.write(
                torch.sin(torch.arange(60 * 48_000) * (0.01 + minute / 1000)).numpy()
            )
    assert read_sound(tmp_path / "a.wav", Sound()).shape == (40, 360_001)


def test_bands_beyond_what_a_window_tells_apart() -> None:
    with pytest.raises(ValueError, match="bands must be at most 1024"):
        Sound(bands=10**9)


def labelled(path: Path) -> list[Any]:
    """The series of a table with the usual columns."""
    return series_of_table(path, SeriesForm(), Listed())["all"]


def test_an_error_about_a_long_cell_is_short(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("series,label,height\n1,up," + "x" * 100_000 + "\n")
    (broken,) = labelled(tmp_path / "t.csv")
    assert "every channel must be a number" in str(broken)
    assert len(str(broken)) < 1000


def test_columns_are_named_whole(tmp_path: Path) -> None:
    """A list of many was cut within a name."""
    columns = [f"measured_at_place_{number}" for number in range(50)]
    (tmp_path / "t.csv").write_text(",".join(columns) + "\n")
    with pytest.raises(ValueError, match=r"place_19 and 30 more: --data.series"):
        labelled(tmp_path / "t.csv")


def test_a_wide_table_is_read(tmp_path: Path) -> None:
    wide = 5_000
    rows = ["series,label," + ",".join(f"c{channel}" for channel in range(wide))]
    rows += [f"{series},up," + ",".join(["0.5"] * wide) for series in (0, 0, 1, 1)]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    assert [example.values.shape for example in labelled(tmp_path / "t.csv")] == [
        (wide, 2)
    ] * 2


def test_a_row_with_more_cells_than_columns(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("series,label,height\n1,up,2\n1,up,3,,\n")
    assert labelled(tmp_path / "t.csv")[0].values.shape == (1, 2)
    (tmp_path / "t.csv").write_text("series,label,height\n1,up,2\n1,up,3,4\n")
    with pytest.raises(ValueError, match=r"t\.csv:3 .* not as many cells as .* 3"):
        labelled(tmp_path / "t.csv")


def test_a_table_that_is_no_text_names_itself(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"series,label,height\n\0")
    with pytest.raises(ValueError, match=r"t\.csv"):
        labelled(tmp_path / "t.csv")


HEAD = "@problemName x\n@timeStamps false\n@univariate false\n"
ROWS = "@data\n1,2,3:4,5,6:a\n1,2,3:4,5,6:b\n"


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (
            "@dimension 3\n@classLabel true a b",
            "has 2 channels, the header of the file states 3",
        ),
        (
            "@dimensions 1\n@classLabel true a b",
            "has 2 channels, the header of the file states 1",
        ),
        (
            "@equalLength true\n@seriesLength 4\n@classLabel true a b",
            "has 3 moments, the header of the file states 4",
        ),
        (
            "@classLabel true a c",
            r"2 is of class 'b', the header of the file states \['a', 'c'\]",
        ),
    ],
)
def test_the_header_of_an_archive_is_held_to(
    tmp_path: Path, head: str, why: str
) -> None:
    pytest.importorskip("aeon")
    (tmp_path / "x.ts").write_text(f"{HEAD}{head}\n{ROWS}")
    with pytest.raises(ValueError, match=rf"x\.ts:\d? ?.*{why}"):
        series_in(tmp_path / "x.ts", SeriesForm())


@pytest.mark.parametrize(
    "head",
    [
        "@dimension 2\n@equalLength true\n@seriesLength 3\n@classLabel true A B C",
        "@dimensions 2\n@classLabel true b a",
        "@equalLength false\n@seriesLength 9\n@classLabel true a b",
        "@seriesLength 0\n@classLabel true a b",
    ],
)
def test_what_an_archive_states_rightly_is_read(tmp_path: Path, head: str) -> None:
    pytest.importorskip("aeon")
    (tmp_path / "x.ts").write_text(f"{HEAD}{head}\n{ROWS}")
    assert [
        series.category for series in series_in(tmp_path / "x.ts", SeriesForm())
    ] == [
        "a",
        "b",
    ]


def vectors(path: Path, text: str) -> Any:
    path.write_text(text)
    return read_vectors(path, Words(("cat", "dog")))


def test_stated_sizes_of_word_vectors(tmp_path: Path) -> None:
    assert vectors(tmp_path / "v", "2 3\ncat 1 2 3\nelk 4 5 6\n").vectors.tolist() == [
        [1, 2, 3]
    ]
    with pytest.raises(ValueError, match=r"v: line 2 must be a word and 4 numbers"):
        vectors(tmp_path / "v", "2 4\ncat 1 2 3\n")
    with pytest.warns(
        UserWarning, match=r"v states 1,000 words and has 1: it was cut off"
    ):
        vectors(tmp_path / "v", "1000 3\ncat 1 2 3\n")
    with pytest.raises(ValueError, match=r"v: line 2 has more than 1,048,576 letters"):
        vectors(tmp_path / "v", "cat 1 2 3\ndog" + " 1" * MIB + "\n")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"a":' * 200_000,
        "[1]",
        "3",
        "",
        "\0",
        "{",
        f'{{"a": {"9" * 5000}}}',
    ],
)
def test_json_that_is_no_file_of_ours(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x\.json is damaged: "):
        read_json(path, MIB)
    with pytest.raises(ValueError, match=r"x\.json is damaged: "):
        Manifest.read(path)


@pytest.mark.parametrize(
    "content",
    [[], {"parts": 3}, {"parts": {"train": [3]}}, {"classes": [], "left_out": 3}],
)
def test_manifests_of_another_form(tmp_path: Path, content: Any) -> None:
    (tmp_path / "data.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"data\.json is damaged"):
        Manifest.read(tmp_path / "data.json")


@pytest.mark.parametrize("body", [b"[" * 100_000, b"{}", b"\xff", b""])
def test_json_of_a_request(body: bytes) -> None:
    with pytest.raises(
        ValueError, match=r"nested too deep|must hold a list|utf-8|Expecting value"
    ):
        parsed_json(body, list)


READERS: dict[str, Callable[[Path], object]] = {
    "check_file": lambda path: check_file(path, MIB),
    "read_text": lambda path: read_text(path, MIB),
    "read_json": lambda path: read_json(path, MIB),
    "sound": lambda path: read_sound(path, Sound()),
    "text": decoded,
    "table": labelled,
    "archive": lambda path: series_in(path.with_suffix(".ts"), SeriesForm()),
    "texts": lambda path: Text(path).train,
    "series": lambda path: Series(path).train,
    "idx": read_idx,
    "matrix": read_binary_matrix,
    "vectors": lambda path: read_vectors(path, Words(("a",))),
    "manifest": Manifest.read,
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
@pytest.mark.parametrize("name", READERS)
def test_no_reader_waits_for_a_pipe_or_a_device(tmp_path: Path, name: str) -> None:
    pytest.importorskip("aeon")
    for suffix in (".csv", ".ts"):
        (tmp_path / f"endless{suffix}").symlink_to("/dev/zero")
        os.mkfifo(tmp_path / f"pipe{suffix}")
    for path in (tmp_path / "endless.csv", tmp_path / "pipe.csv"):
        with pytest.raises((ValueError, OSError), match=r"endless|pipe"):
            READERS[name](path)


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path, little: None) -> None:
    with (tmp_path / "large.txt").open("wb") as file:
        file.truncate(2**33)  # on the disk there is nothing of it
    with pytest.raises(
        ValueError,
        match=r"large\.txt has 8,589,934,592 bytes, at most 4,294,967,296 are read",
    ):
        decoded(tmp_path / "large.txt")


def test_gzip_of_nothing_is_not_inflated(tmp_path: Path, little: None) -> None:
    content = (
        gzip.compress(bytes(MIB)) * 100
    )  # members one after the other, 1,000 times as large
    head = gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 100 * MIB))
    (tmp_path / "zeros.gz").write_bytes(head + content)
    with pytest.raises(
        ValueError, match=r"zeros\.gz states 104,857,600 bytes of entries, more than"
    ):
        read_idx(tmp_path / "zeros.gz")


@pytest.mark.parametrize("name", ["a", "sub/a", "./a", "sub/./a", "link", "out/b"])
def test_names_below_a_folder(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    for path in (root / "a", root / "sub" / "a", tmp_path / "b"):
        path.write_text("x")
    (root / "link").symlink_to(tmp_path / "b")
    (root / "out").symlink_to(tmp_path)
    assert named_below(root, name, "the list").read_text() == "x"
    with pytest.raises(
        FileNotFoundError,
        match=r"the image .*gone does not exist, which the list names",
    ):
        named_below(root, "gone", "the list")


def test_a_label_for_each_example_is_no_class() -> None:
    images = torch.zeros(10_001, 1, 1, 1, dtype=torch.uint8)
    names = tuple(map(str, range(10_001)))
    with pytest.raises(
        ValueError, match=r"at most 10,000 classes, got 10,001 for 10,001 examples"
    ):
        Examples(images, torch.arange(10_001), names)


def test_many_classes_are_split_in_a_moment() -> None:
    labels = torch.arange(20_000)
    digests = [str(number) for number in range(20_000)]
    begun = time.process_time()
    kept, aside = stable_split(labels.repeat(2), digests * 2, 0.2, seed=0)
    assert (len(kept), len(aside)) == (20_000, 20_000)
    assert time.process_time() - begun < 5
