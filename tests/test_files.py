"""What is opened passes one door, and what is written replaces what had its name:
pipes, devices, sockets, folders and links where a file should be.
"""

import ast
import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchcaps.models import create_model, load_pretrained
from torchcaps.whole import (
    nearest,
    opened,
    owned,
    read_bytes,
    read_json,
    read_text,
    resolved,
    write_whole,
    written_whole,
)
from torchcaps_lab.cli import main
from torchcaps_lab.conversion import convert
from torchcaps_lab.data import Manifest, load_image
from torchcaps_lab.data.tables import Table
from torchcaps_lab.kinds.images.sets.mnist import read_idx
from torchcaps_lab.kinds.images.sets.smallnorb import read_binary_matrix
from torchcaps_lab.kinds.series.files import read_sound
from torchcaps_lab.kinds.series.sound import Sound
from torchcaps_lab.kinds.texts.word_vectors import read_vectors
from torchcaps_lab.kinds.texts.words import Words
from torchcaps_lab.look import Place, lines_in
from torchcaps_lab.options.guess import recognised
from torchcaps_lab.options.reading import read_options
from torchcaps_lab.report import write_page
from torchcaps_lab.training.checkpoints import checkpoint_to_resume, newest_checkpoint

ROOT = Path(__file__).parents[1]
WAITING, COMPUTING = 300, 60
"""Seconds after which a test hangs: on the clock, and of the processor."""


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    """Fails a test that waits for a pipe or reads a device for ever."""

    def give_up(number: int, frame: Any) -> None:
        raise RuntimeError("it hangs")

    timers = {
        signal.SIGALRM: (signal.ITIMER_REAL, WAITING),
        signal.SIGPROF: (signal.ITIMER_PROF, COMPUTING),
    }
    before = {number: signal.signal(number, give_up) for number in timers}
    for timer, seconds in timers.values():
        signal.setitimer(timer, seconds)
    yield
    for number, (timer, _) in timers.items():
        signal.setitimer(timer, 0)
        signal.signal(number, before[number])


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        # Its address is short, and the folder of a test is not.
        here = Path.cwd()
        os.chdir(path.parent)
        try:
            listening.bind(path.name)
        finally:
            os.chdir(here)


SPECIAL: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "socket": _socket,
    "folder": Path.mkdir,
    "loop": lambda path: path.symlink_to(path.name),
    "loop of two": lambda path: (
        path.with_name("other").symlink_to(path.name),
        path.symlink_to("other"),
    ),
    "nowhere": lambda path: path.symlink_to("nothing"),
    "below a file": lambda path: path.symlink_to("/etc/hostname/x"),
}
"""What else than a file may have a name."""


def _network(path: Path) -> object:
    """Opens a saved network with one of its files in that place."""
    folder = path.parent / "saved"
    create_model("capsnet_digits").save_pretrained(folder)
    for name in ("config.json", "model.safetensors"):
        aside = (folder / name).rename(folder / "aside")
        path.rename(folder / name) if not path.is_symlink() else (
            folder / name
        ).symlink_to(path)
        try:
            with pytest.raises((ValueError, OSError)):
                load_pretrained(folder)
        finally:
            if not path.is_symlink():
                (folder / name).rename(path)
            else:
                (folder / name).unlink()
            aside.rename(folder / name)
    raise ValueError("both were refused")


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "bytes": ("a", lambda path: read_bytes(path, 100)),
    "text": ("a", lambda path: read_text(path, 100)),
    "json": ("a.json", lambda path: read_json(path, 100)),
    "options": ("config.yaml", read_options),
    "manifest": ("data.json", Manifest.read),
    "table": ("a.csv", Table),
    "objects": ("a.jsonl", Table),
    "lines": ("a.txt", lines_in),
    "image": ("a.png", lambda path: load_image(path, (1, 8, 8))),
    "array": ("a.npy", lambda path: load_image(path, (1, 8, 8))),
    "tiff": ("a.tif", lambda path: load_image(path, (1, 8, 8))),
    "sound": ("a.wav", lambda path: read_sound(path, Sound())),
    "digits": ("a.gz", read_idx),
    "matrix": ("a.mat", read_binary_matrix),
    "vectors": ("a.vec", lambda path: read_vectors(path, Words(("a",)))),
    "weights of others": ("a.pt", lambda path: convert(path, path.with_name("new"))),
    "network": ("network", _network),
    "links": ("a", lambda path: owned(path.parent, "a", "b").read_bytes()),
}


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused_at_once(
    reader: str, special: str, tmp_path: Path
) -> None:
    name, read = READERS[reader]
    SPECIAL[special](tmp_path / name)
    with pytest.raises((ValueError, OSError)):
        read(tmp_path / name)


@pytest.mark.parametrize("special", SPECIAL)
def test_a_checkpoint_that_is_no_file_is_none(special: str, tmp_path: Path) -> None:
    SPECIAL[special](tmp_path / "epoch00000.ckpt")
    assert newest_checkpoint(tmp_path) is None
    if special == "folder":
        assert checkpoint_to_resume(tmp_path) is None
        assert (tmp_path / "epoch00000.ckpt").is_dir()
    else:
        with pytest.raises((ValueError, OSError), match=str(tmp_path)):
            checkpoint_to_resume(tmp_path)


@pytest.mark.parametrize("special", ["pipe", "device", "socket"])
def test_data_that_are_no_file_are_called_so(special: str, tmp_path: Path) -> None:
    SPECIAL[special](tmp_path / "data")
    with pytest.raises(ValueError, match="data is not a regular file"):
        recognised(Place(tmp_path / "data"), {})


def test_what_has_the_very_name_is_not_what_was_meant(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "options.yaml")
    assert nearest(tmp_path / "options.yaml") is None
    assert nearest(tmp_path / "option.yaml") == tmp_path / "options.yaml"


def test_a_file_that_grows_or_becomes_another_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_text("abc")
    with opened(path) as file:
        assert file.read() == b"abc"
    with pytest.raises(ValueError, match="3 bytes, at most 2"):
        read_bytes(path, 2)
    sizes = iter((2, 2))
    real = os.fstat

    def before_it_grew(handle: int) -> Any:
        facts = list(real(handle))
        facts[6] = next(sizes)
        return os.stat_result(facts)

    with monkeypatch.context() as patched:
        patched.setattr("torchcaps.whole.os.fstat", before_it_grew)
        with pytest.raises(ValueError, match="grows"):
            read_bytes(path, 10)
    # Between the look at the path and the opening, a pipe takes the name.
    monkeypatch.setattr("torchcaps.whole.check_file", lambda path, most: path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match="not a regular file"):
        read_bytes(path, 10)


def test_errors_of_reading_and_writing_name_the_file(tmp_path: Path) -> None:
    def fails() -> None:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    (tmp_path / "a").write_text("abc")
    with pytest.raises(OSError, match=r"File too large.*/a'"), opened(tmp_path / "a"):
        fails()
    with (
        pytest.raises(OSError, match=r"File too large.*/b'"),
        written_whole(tmp_path / "b"),
    ):
        fails()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def _hard_link(path: Path) -> None:
    os.link(path.parent.parent / "precious", path)


def _link(path: Path) -> None:
    path.symlink_to(path.parent.parent / "precious")


@pytest.mark.parametrize("name", ["a", "a.unfinished"])
@pytest.mark.parametrize(
    "place", [_hard_link, _link, os.mkfifo, *(SPECIAL[name] for name in ("loop",))]
)
def test_what_is_written_replaces_what_has_the_name(
    place: Callable[[Path], object], name: str, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    place(folder / name)
    write_whole(folder / "a", "new")
    assert (folder / "a").read_text() == "new"
    assert not (folder / "a").is_symlink()
    assert [path.name for path in folder.iterdir()] == ["a"]
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("name", ["index.html", "exhibits.json"])
@pytest.mark.parametrize("place", [_hard_link, os.mkfifo])
def test_a_report_replaces_its_files(
    place: Callable[[Path], object], name: str, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "report").mkdir()
    (tmp_path / "run").mkdir()
    report = tmp_path / "run" / "report"
    report.mkdir()
    place(tmp_path / "report" / name)
    (tmp_path / "report" / name).rename(report / name)
    write_page(tmp_path / "run", [])
    assert "html" in (report / "index.html").read_text()
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_loop_of_links_is_told(tmp_path: Path) -> None:
    (tmp_path / "report").symlink_to("report")
    with pytest.raises(ValueError, match="report is a link that leads back to itself"):
        write_page(tmp_path, [])
    with pytest.raises(ValueError, match="leads back to itself"):
        resolved(tmp_path / "report" / "index.html")
    with pytest.raises(SystemExit):
        main(["check", str(tmp_path / "report")])


class TestTables:
    """Time and memory are in proportion to the file."""

    @pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
    def test_many_columns(self, suffix: str, tmp_path: Path) -> None:
        names = [f"column {number}" for number in range(100_000)]
        path = tmp_path / f"wide{suffix}"
        if suffix == ".csv":
            lines = [",".join(names), *[",".join("x" for _ in names)] * 3]
        else:
            pairs = ", ".join(f'"{name}": "x"' for name in names)
            lines = [f"{{{pairs}}}"] * 3
        path.write_text("\n".join(lines))
        table = Table(path)
        table.check_once(table.columns)
        row, *_ = table.rows(names)
        assert row.misfit == ""
        assert row.values == dict.fromkeys(names, "x")
        cells = table.cells()
        assert {*map(tuple, map(cells.column, names))} == {("x",) * 3}

    def test_short_rows_below_many_columns(self, tmp_path: Path) -> None:
        path = tmp_path / "wide.csv"
        names = ",".join(f"column {number}" for number in range(100_000))
        path.write_text(names + "\n1" * 10_000)
        with pytest.raises(ValueError, match="10,000 rows have not as many cells"):
            Table(path).cells()

    def test_objects_that_lack_nearly_everything(self, tmp_path: Path) -> None:
        pairs = ", ".join(f'"c{number}": 1' for number in range(10_000))
        path = tmp_path / "sparse.jsonl"
        path.write_text("\n".join([f"{{{pairs}}}", *["{}"] * 100_000]))
        with pytest.raises(ValueError, match=r"sparse.jsonl, line .*10,000 columns"):
            list(Table(path).rows([]))
        path.write_text("\n".join([f"{{{pairs}}}", *['{"c9999": 2}'] * 100]))
        last = [row.values["c9999"] for row in Table(path).rows(["c9999"])]
        assert last == ["1", *["2"] * 100]


@pytest.mark.thorough
def test_texts_are_cut_before_they_are_read() -> None:
    words = Words(("a",), longest=4)
    short, long = words.read(["b a " * 3, "b a " * 10**6])
    assert short.length == 6
    assert long.numbers.tolist() == short.numbers.tolist()
    # Of a million letters.
    assert long.length == 2**19
    assert len(words.split("b a " * 10**6)) == 2**19
    # One letter, of which the normal form has four words.
    (wide,) = words.read(["\ufdfa" * 10**6])
    assert wide.length <= 2**20 // 3
    many = words.read(["a"] * 5 + ["a " * 2_000] * 600)
    assert [reading.length for reading in many] == [1] * 5 + [2_000] * 600


@pytest.mark.parametrize(
    "shape", [(0, 2**32 - 1, 2**32 - 1), (2**32 - 1, 0, 2**32 - 1, 2**32 - 1)]
)
def test_a_shape_that_no_tensor_has(shape: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "digits"
    sides = b"".join(side.to_bytes(4, "big") for side in shape)
    path.write_bytes(bytes([0, 0, 8, len(shape)]) + sides)
    with pytest.raises(ValueError, match="digits states the shape"):
        read_idx(path)
    path.write_bytes(bytes([0, 0, 8, 3]) + (0).to_bytes(4, "big") * 3)
    assert read_idx(path).shape == (0, 0, 0)


OF_THE_MACHINE = (
    "torchcaps/whole.py",
    "torchcaps/models/timm_package.py",
    "torchcaps/ops/fused/library.py",
    "lab/torchcaps_lab/training/memory.py",
    "lab/torchcaps_lab/data/published.py",
)
"""The door itself, and readers of installed packages, of what the system tells, of the
user's cache and of what is being downloaded.
"""

LIBRARIES = {
    "Image.open",
    "SoundFile",
    "TiffFile",
    "ZipFile",
    "h5py.File",
    "load_file",
    "np.load",
    "np.loadtxt",
    "safe_open",
    "soundfile.SoundFile",
    "tarfile.open",
    "tifffile.TiffFile",
    "torch.load",
}
"""What opens a path in a library: beside it, the path is checked, or opened before."""

CALLED_BY_THE_DOOR = ("is_tiff", "_opens_tiff", "read_tiff")
"""Functions whose caller has checked the path."""


METHODS = ("open", "read_text", "read_bytes", "write_text", "write_bytes")
OWNERS = ("part", "Classifier", "gzip", "webbrowser", "os")
"""Those whose ``open`` is another, and what :func:`written_whole` gives to write."""


def _openings(function: ast.AST) -> Iterator[str]:
    """The calls in a function that open or write a path past the door."""
    if getattr(function, "name", "") in CALLED_BY_THE_DOOR:
        return
    text = ast.unparse(function)
    checked = "opened(" in text.replace("_opened(", "") or "check_file(" in text
    for call in ast.walk(function):
        if not isinstance(call, ast.Call):
            continue
        called = ast.unparse(call.func)
        owner, _, method = called.rpartition(".")
        if called in LIBRARIES:
            if not checked:
                yield called
            continue
        if called == "open" or (owner and method in METHODS and owner not in OWNERS):
            yield called
        if method in ("savefig", "print_png") and ast.unparse(call.args[0]) != "part":
            yield called


@pytest.mark.parametrize("package", ["torchcaps", "lab/torchcaps_lab", "recipes"])
def test_everything_passes_the_door(package: str) -> None:
    past: list[str] = []
    for path in sorted((ROOT / package).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name in OF_THE_MACHINE:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            parts = node.body if isinstance(node, ast.ClassDef) else [node]
            past += [
                f"{name}: {called}" for part in parts for called in _openings(part)
            ]
    assert past == []
