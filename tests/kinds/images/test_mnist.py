import gzip
import hashlib
import math
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from tests.kinds.images.folders import write
from tests.kinds.images.servers import Server
from torchcaps_lab.data import MNIST, FashionMNIST, read_idx

TRAIN, TEST = 40, 10


def idx(shape: tuple[int, ...], values: bytes, kind: int = 8) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, kind, len(shape), *shape) + values


def pixels(count: int) -> bytes:
    return bytes(i % 251 for i in range(count * 4 * 5))


FILES = {
    "train-images-idx3-ubyte.gz": gzip.compress(
        idx((TRAIN, 4, 5), pixels(TRAIN)), mtime=0
    ),
    "train-labels-idx1-ubyte.gz": gzip.compress(
        idx((TRAIN,), bytes(i % 10 for i in range(TRAIN))), mtime=0
    ),
    "t10k-images-idx3-ubyte.gz": gzip.compress(
        idx((TEST, 4, 5), pixels(TEST)), mtime=0
    ),
    "t10k-labels-idx1-ubyte.gz": gzip.compress(
        idx((TEST,), bytes(range(TEST))), mtime=0
    ),
}
IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


class Tiny(MNIST):
    """MNIST with the files above for the published ones, and no mirror."""

    mirrors = ()
    digests: ClassVar = {
        name: f"sha256:{hashlib.sha256(content).hexdigest()}"
        for name, content in FILES.items()
    }


# The format


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("shape", [(6,), (2, 3), (2, 3, 4), (0, 3)])
def test_read_idx(
    tmp_path: Path, compress: Callable[[bytes], bytes], shape: tuple[int, ...]
) -> None:
    values = bytes(range(250, 250 - math.prod(shape), -1))
    path = tmp_path / "file"
    path.write_bytes(compress(idx(shape, values)))
    data = read_idx(path)
    assert data.dtype == torch.uint8
    assert data.shape == shape
    assert data.flatten().tolist() == list(values)


GOOD = idx((2, 3), bytes(6))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "not an idx file .* got an empty file", id="empty"),
        pytest.param(
            gzip.compress(b""),
            "not an idx file .* got an empty file",
            id="empty inside",
        ),
        pytest.param(GOOD[:3], "not an idx file .* got 00 00 08", id="no dimensions"),
        pytest.param(
            b"\x89PNG....", "not an idx file .* got 89 50 4e 47", id="another format"
        ),
        pytest.param(
            idx((2,), bytes(8), kind=0x0D),
            "not an idx file .* got 00 00 0d 01",
            id="floats",
        ),
        pytest.param(
            idx((), b"x"), "not an idx file .* got 00 00 08 00", id="a scalar"
        ),
        pytest.param(
            GOOD[:9],
            "ends in its header: expected at least 12 bytes, got 9",
            id="half a header",
        ),
        pytest.param(
            GOOD[:-1], r"shape \(2, 3\): expected 18 bytes, got 17", id="too short"
        ),
        pytest.param(
            GOOD + b"x", r"shape \(2, 3\): expected 18 bytes, got 19", id="too long"
        ),
        pytest.param(gzip.compress(GOOD)[:-9], "broken gzip", id="truncated gzip"),
        pytest.param(gzip.compress(GOOD) + b"x", "broken gzip", id="bytes after gzip"),
        pytest.param(
            gzip.compress(GOOD)[:12] + b"\xff" * 20, "broken gzip", id="damaged gzip"
        ),
    ],
)
def test_read_idx_names_the_broken_file(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "broken.idx"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"broken.idx.*{message}"):
        read_idx(path)


def test_a_header_that_lies_is_found_out_before_anything_is_inflated(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lie.gz"
    path.write_bytes(gzip.compress(idx((2**32 - 1, 2**32 - 1), bytes(1 << 10))))
    with pytest.raises(
        ValueError, match=r"states 18,446[\d,]+ bytes of entries, more than .* can hold"
    ):
        read_idx(path)


@pytest.mark.parametrize("stated", [10, 20_000_000])
def test_a_gzip_bomb_is_inflated_no_further_than_it_states(
    tmp_path: Path, stated: int
) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(idx((stated,), bytes(96 << 20)), 1))
    tracemalloc.start()
    with pytest.raises(ValueError, match=rf"expected {stated + 8} bytes, got \d+"):
        read_idx(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 70 << 20


# Files that are there


def check_splits(data: MNIST) -> None:
    assert data.train.labels.bincount().tolist() == [3] * 10
    assert data.validation.labels.bincount().tolist() == [1] * 10
    assert data.test.labels.tolist() == list(range(TEST))
    assert data.test.inputs.flatten().tolist() == list(pixels(TEST))
    assert data.image_shape == (1, 4, 5)


@pytest.mark.parametrize("folder", [".", "mnist"])
@pytest.mark.parametrize("compressed", [True, False])
def test_files_are_found_in_both_folders_and_both_forms(
    tmp_path: Path, folder: str, compressed: bool
) -> None:
    plain = {
        name.removesuffix(".gz"): gzip.decompress(content)
        for name, content in FILES.items()
    }
    write(tmp_path / folder, FILES if compressed else plain)
    check_splits(Tiny(str(tmp_path), download=False, validation=0.25))


def test_files_are_found_by_the_environment_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHCAPS_DATA", str(write(tmp_path / "data", FILES)))
    check_splits(Tiny(download=False, validation=0.25))


def test_fashion_mnist_has_its_own_folder_and_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FashionMNIST, "digests", Tiny.digests)
    write(tmp_path / "fashion-mnist", FILES)
    data = FashionMNIST(str(tmp_path), download=False)
    assert len(data.classes) == 10
    assert (data.classes[0], data.classes[9]) == ("T-shirt/top", "Ankle boot")


def test_the_test_files_are_not_needed_to_train(tmp_path: Path) -> None:
    write(tmp_path, {name: FILES[name] for name in (IMAGES, LABELS)})
    data = Tiny(str(tmp_path), download=False)
    assert len(data.train) == 30
    with pytest.raises(FileNotFoundError, match=r"t10k-images.* and t10k-labels"):
        _ = data.test


def test_another_data_set_under_the_same_name_is_refused(tmp_path: Path) -> None:
    second = gzip.compress(idx((TRAIN, 4, 5), bytes(TRAIN * 20)))
    write(tmp_path, FILES | {IMAGES: second})
    with pytest.raises(ValueError, match="published file of Tiny") as caught:
        _ = Tiny(str(tmp_path)).train
    for part in (
        str(tmp_path / IMAGES),
        hashlib.sha256(second).hexdigest(),
        Tiny.digests[IMAGES].removeprefix("sha256:"),
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "train-labels-idx1-ubyte",
            idx((3,), bytes(3)),
            "holds 40 images but .*labels-.* holds 3 labels",
        ),
        (
            "train-labels-idx1-ubyte",
            idx((TRAIN, 1), bytes(TRAIN)),
            r"must hold 1 dimensions.*\(40, 1\)",
        ),
        (
            "train-images-idx3-ubyte",
            idx((TRAIN, 3), bytes(TRAIN * 3)),
            r"must hold 3 dimensions.*\(40, 3\)",
        ),
        (
            "train-images-idx3-ubyte",
            idx((TRAIN, 0, 5), b""),
            r"pixels in each image, got .*\(40, 1, 0, 5\)",
        ),
        (
            "train-labels-idx1-ubyte",
            idx((TRAIN,), bytes([10] * TRAIN)),
            "labels must lie in 0..9",
        ),
    ],
    ids=["counts", "labels", "images", "pixels", "range"],
)
def test_files_that_do_not_fit_together(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    plain = {
        name.removesuffix(".gz"): gzip.decompress(content)
        for name, content in FILES.items()
    }
    write(tmp_path, plain | {name: content})
    with pytest.raises(ValueError, match=message):
        _ = Tiny(str(tmp_path)).train


def test_missing_files_without_download(tmp_path: Path) -> None:
    write(tmp_path, {IMAGES: FILES[IMAGES]})
    with pytest.raises(FileNotFoundError) as caught:
        _ = Tiny(str(tmp_path), download=False).train
    message = str(caught.value)
    for part in (
        LABELS,
        str(tmp_path / "mnist"),
        "download is False",
        "data_dir",
        "TORCHCAPS_DATA",
    ):
        assert part in message
    assert IMAGES not in message


# Files that are downloaded


def serve(server: Server, folder: str, files: dict[str, bytes] = FILES) -> str:
    server.pages |= {f"/{folder}/{name}": content for name, content in files.items()}
    return server.url(folder)


def tiny(folder: Path, *mirrors: str) -> MNIST:
    data = Tiny(str(folder), validation=0.25)
    data.mirrors = mirrors
    return data


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_missing_files_are_downloaded_once(tmp_path: Path, server: Server) -> None:
    mirror = serve(server, "mirror")
    check_splits(tiny(tmp_path, mirror))
    assert files_in(tmp_path / "mnist") == files_in(tmp_path) == sorted(FILES)
    check_splits(tiny(tmp_path, mirror))
    assert len(server.requests) == 4


def test_only_what_is_missing_is_downloaded(tmp_path: Path, server: Server) -> None:
    write(tmp_path, {IMAGES: FILES[IMAGES]})
    assert len(tiny(tmp_path, serve(server, "mirror")).train) == 30
    assert server.requests == [f"/mirror/{LABELS}"]


@pytest.mark.parametrize(
    "first", [{}, dict.fromkeys(FILES, b"another file")], ids=["404", "wrong hash"]
)
def test_the_next_mirror_is_tried(
    tmp_path: Path, server: Server, first: dict[str, bytes]
) -> None:
    check_splits(tiny(tmp_path, serve(server, "first", first), serve(server, "second")))
    assert len([path for path in server.requests if path.startswith("/first/")]) == 4
    assert files_in(tmp_path) == sorted(FILES)


def test_a_wrong_download_is_not_kept(tmp_path: Path, server: Server) -> None:
    mirror = serve(server, "mirror", dict.fromkeys(FILES, b"another file"))
    with pytest.raises(ConnectionError, match=f"{IMAGES}.*hash") as caught:
        _ = tiny(tmp_path, mirror).train
    assert Tiny.digests[IMAGES].removeprefix("sha256:") in str(caught.value)
    assert hashlib.sha256(b"another file").hexdigest() in str(caught.value)
    assert files_in(tmp_path) == []


def test_a_download_cut_short_is_not_kept(tmp_path: Path, server: Server) -> None:
    mirror = serve(server, "mirror")
    server.cut = 7
    with pytest.raises(ConnectionError, match=mirror + IMAGES):
        _ = tiny(tmp_path, mirror).train
    assert files_in(tmp_path) == []


def test_a_download_that_drips_is_given_up(tmp_path: Path, server: Server) -> None:
    mirror = serve(server, "mirror")
    server.slow = 0.1
    data = tiny(tmp_path, mirror)
    data.seconds = 0.3
    start = time.monotonic()
    with pytest.raises(ConnectionError, match="bytes in 0 seconds, then given up"):
        _ = data.train
    assert time.monotonic() - start < 0.1 * len(FILES[IMAGES]) / 2
    assert files_in(tmp_path) == []


def test_a_download_without_end_is_given_up(tmp_path: Path, server: Server) -> None:
    data = tiny(tmp_path, serve(server, "mirror", dict.fromkeys(FILES, bytes(300_000))))
    data.most = 100_000
    with pytest.raises(ConnectionError, match="more than 100,000 bytes were served"):
        _ = data.train
    assert files_in(tmp_path) == []


def test_nobody_answers(tmp_path: Path, server: Server) -> None:
    with Server() as closed:
        silent = closed.url("silent")
    with pytest.raises(ConnectionError) as caught:
        _ = tiny(tmp_path, silent, server.url("empty")).train
    message = str(caught.value)
    for part in (
        IMAGES,
        LABELS,
        str(tmp_path),
        silent,
        server.url("empty"),
        "data_dir",
        "TORCHCAPS_DATA",
    ):
        assert part in message
    assert files_in(tmp_path) == []
