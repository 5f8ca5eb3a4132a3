import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from tests.kinds.images.folders import write
from tests.kinds.images.servers import Server
from torchcaps_lab.data import CIFAR10

FOLDER = "cifar-10-batches-bin"
ARCHIVE = "cifar-10-binary.tar.gz"


def records(start: int, count: int) -> bytes:
    """Records whose image is filled with its number (red), the number + 1 (green) and +
    2 (blue).
    """
    return b"".join(
        bytes([number % 10])
        + b"".join(bytes([number + plane]) * 1024 for plane in range(3))
        for number in range(start, start + count)
    )


TRAIN = {
    f"data_batch_{batch}.bin": records(20 * (batch - 1), 20) for batch in range(1, 6)
}
TEST = {"test_batch.bin": records(200, 10)}
META = {
    "batches.meta.txt": "\n".join(CIFAR10.class_names).encode() + b"\n\n"
}  # as published, with an empty line
FILES = TRAIN | TEST | META


def pack(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


# As in the published archive, the batches are in no order; the first two are not to be
# read.
PACKED = pack(
    {"../outside.bin": b"x", "other/test_batch.bin": b"y"}
    | {f"{FOLDER}/{name}": FILES[name] for name in sorted(FILES, reverse=True)}
)


class Tiny(CIFAR10):
    """CIFAR-10 with the archive above for the published one, and nowhere to get it
    from.
    """

    digests: ClassVar = {ARCHIVE: f"md5:{hashlib.md5(PACKED).hexdigest()}"}
    mirrors: ClassVar = ("http://127.0.0.1:9/",)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def check_splits(data: CIFAR10) -> None:
    assert (len(data.train), len(data.validation), len(data.test)) == (80, 20, 10)
    assert data.validation.labels.bincount().tolist() == [2] * 10
    assert data.image_shape == (3, 32, 32)
    assert (data.classes[0], data.classes[9]) == ("airplane", "truck")
    numbers = []
    for part in (data.train, data.validation, data.test):
        number = part.inputs[:, 0, 0, 0].long()
        assert torch.equal(part.labels, number % 10)
        expected = number[:, None] + torch.arange(3)
        assert torch.equal(
            part.inputs.long(), expected[:, :, None, None].expand(-1, 3, 32, 32)
        )
        numbers += number.tolist()
    assert sorted(numbers) == [*range(100), *range(200, 210)]
    assert numbers[:80] == sorted(numbers[:80])  # The batches follow each other.


# Files that are there


@pytest.mark.parametrize("folder", [".", "cifar10", f"cifar10/{FOLDER}", FOLDER])
def test_files_are_found_in_four_folders(tmp_path: Path, folder: str) -> None:
    write(tmp_path / folder, FILES)
    check_splits(Tiny(str(tmp_path), download=False, validation=0.2))


@pytest.mark.parametrize("folder", [".", "cifar10"])
def test_the_archive_is_read_where_it_is(tmp_path: Path, folder: str) -> None:
    write(tmp_path / "data" / folder, {ARCHIVE: PACKED})
    check_splits(Tiny(str(tmp_path / "data"), download=False, validation=0.2))
    assert files_in(tmp_path) == [
        ARCHIVE
    ]  # Nothing is unpacked, inside the folder or outside.


def test_pixels_are_rows_of_planes(tmp_path: Path) -> None:
    image = bytes(
        (5 * plane + 3 * row + column) % 256
        for plane in range(3)
        for row in range(32)
        for column in range(32)
    )
    write(tmp_path, {"test_batch.bin": b"\x07" + image})
    data = Tiny(str(tmp_path), download=False).test
    assert data.labels.tolist() == [7]
    plane, row, column = torch.meshgrid(
        torch.arange(3), torch.arange(32), torch.arange(32), indexing="ij"
    )
    assert torch.equal(data.inputs[0].long(), 5 * plane + 3 * row + column)


def test_the_test_file_is_not_needed_to_train_nor_the_names(tmp_path: Path) -> None:
    write(tmp_path, TRAIN)
    data = Tiny(str(tmp_path), download=False)
    assert len(data.train) == 90
    with pytest.raises(FileNotFoundError, match=r"test_batch.bin or .* not found"):
        _ = data.test


@pytest.mark.parametrize("name", ["data_batch_3.bin", "test_batch.bin"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            lambda content: b"", "records of 3073 bytes, .* got 0 bytes", id="empty"
        ),
        pytest.param(
            lambda content: content[:-1],
            r"records of 3073 bytes, .* got \d+ bytes",
            id="too short",
        ),
        pytest.param(
            lambda content: content + b"x",
            r"records of 3073 bytes, .* got \d+ bytes",
            id="too long",
        ),
        pytest.param(
            lambda content: b"\x0a" + content[1:],
            "labels from 0 to 9, got 10",
            id="label",
        ),
    ],
)
def test_broken_files_are_named(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes], message: str
) -> None:
    write(tmp_path, FILES | {name: change(FILES[name])})
    data = Tiny(str(tmp_path), download=False)
    with pytest.raises(ValueError, match=f"{name} must hold {message}"):
        _ = data.test if name in TEST else data.train


def test_other_classes_are_refused(tmp_path: Path) -> None:
    write(tmp_path, FILES | {"batches.meta.txt": b"apple\nbear\n"})
    with pytest.raises(
        ValueError,
        match=r"batches.meta.txt must name the classes .*, got \('apple', 'bear'\)",
    ):
        _ = Tiny(str(tmp_path), download=False).train


def test_another_archive_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {ARCHIVE: PACKED + b"x"})
    with pytest.raises(
        ValueError, match=f"{ARCHIVE} is not the published file of Tiny"
    ) as caught:
        _ = Tiny(str(tmp_path), download=False).train
    for part in (
        hashlib.md5(PACKED + b"x").hexdigest(),
        Tiny.digests[ARCHIVE].removeprefix("md5:"),
    ):
        assert part in str(caught.value)


def test_missing_files_without_download(tmp_path: Path) -> None:
    write(tmp_path, TRAIN)
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(FileNotFoundError) as caught:
        _ = Tiny(str(tmp_path), download=False).train
    message = str(caught.value)
    expected = (
        "data_batch_4.bin",
        ARCHIVE,
        str(tmp_path / "cifar10"),
        str(tmp_path / FOLDER),
        "download is False",
    )
    for part in (*expected, "data_dir", "TORCHCAPS_DATA"):
        assert part in message
    assert "data_batch_1.bin" not in message


# The archive that is downloaded


@pytest.fixture
def mirror(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(Tiny, "mirrors", (server.url("mirror"),))
    return f"/mirror/{ARCHIVE}"


def test_the_archive_is_downloaded_once(
    tmp_path: Path, server: Server, mirror: str
) -> None:
    server.pages[mirror] = PACKED
    check_splits(Tiny(str(tmp_path), validation=0.2))
    check_splits(Tiny(str(tmp_path), validation=0.2))
    assert files_in(tmp_path) == files_in(tmp_path / "cifar10") == [ARCHIVE]
    assert server.requests == [mirror]


@pytest.mark.parametrize("page", [None, b"another file"], ids=["404", "wrong hash"])
def test_a_failed_download_is_not_kept(
    tmp_path: Path, server: Server, mirror: str, page: bytes | None
) -> None:
    server.pages |= {} if page is None else {mirror: page}
    with pytest.raises(ConnectionError) as caught:
        _ = Tiny(str(tmp_path)).train
    for part in (
        "data_batch_1.bin",
        ARCHIVE,
        str(tmp_path),
        Tiny.mirrors[0] + ARCHIVE,
        "data_dir",
        "TORCHCAPS_DATA",
    ):
        assert part in str(caught.value)
    assert files_in(tmp_path) == []
