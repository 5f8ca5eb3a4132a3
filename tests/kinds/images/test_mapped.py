"""More images than memory: decoded once into a file that is mapped, with the same
results.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.kinds.images.folders import make_root
from torchcaps_lab.data import ImageFolder
from torchcaps_lab.kinds.images.decoding.picture import BrokenImage
from torchcaps_lab.kinds.images.decoding.store import decode_images

STATUS = Path("/proc/self/status")


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache" / "decoded"


def files(cache: Path) -> dict[str, int]:
    return {
        path.name: path.stat().st_mtime_ns
        for path in cache.glob("*")
        if path.suffix != ".lock"
    }


def test_mapped_images_are_those_in_memory(tmp_path, cache):
    root = str(make_root(tmp_path / "images"))
    memory = ImageFolder(root, size=7)
    mapped = ImageFolder(root, size=7, memory=0)
    assert not cache.exists() or not files(cache)
    for part in ("train", "validation", "test"):
        first = getattr(memory, part)
        second = getattr(mapped, part)
        assert torch.equal(first.inputs, second.inputs)
        assert first.files == second.files
        rows = [2, 0, 1]
        for left, right in zip(
            first.__getitems__(rows)[:4], second.__getitems__(rows)[:4], strict=True
        ):
            assert torch.equal(left, right)
    assert memory.fingerprint() == mapped.fingerprint()
    assert len(files(cache)) == 3
    assert (
        sum(path.stat().st_size for path in cache.glob("*.npy")) == 60 * 7 * 7 + 3 * 128
    )


def test_images_are_decoded_once(tmp_path, cache, monkeypatch):
    root = str(make_root(tmp_path / "images"))
    first = ImageFolder(root, size=7, memory=0).train.inputs
    before = files(cache)
    monkeypatch.setattr(
        "torchcaps_lab.kinds.images.sets.listed.to_tensor", None
    )  # whoever decodes now fails
    assert torch.equal(ImageFolder(root, size=7, memory=0).train.inputs, first)
    assert files(cache) == before


@pytest.mark.parametrize(
    "change",
    [{"size": 6}, {"size": 7, "channels": 3}, {"size": (7, 9), "resize": "stretch"}],
)
def test_another_way_of_reading_is_another_file(tmp_path, cache, change):
    root = str(make_root(tmp_path / "images"))
    _ = ImageFolder(root, size=7, memory=0).train
    data = ImageFolder(root, memory=0, **change)
    assert torch.equal(data.train.inputs, ImageFolder(root, **change).train.inputs)
    assert len(files(cache)) == 6


@pytest.mark.parametrize("content", [b"", b"rubbish", None])
def test_a_damaged_file_is_written_anew(tmp_path, cache, content):
    root = str(make_root(tmp_path / "images"))
    first = ImageFolder(root, size=7, memory=0).test.inputs.clone()
    for path in cache.glob("*.npy"):
        path.write_bytes(path.read_bytes()[:-5] if content is None else content)
    assert torch.equal(ImageFolder(root, size=7, memory=0).test.inputs, first)


def test_broken_images_leave_no_file(tmp_path, cache):
    root = make_root(tmp_path / "images")
    (root / "a" / "broken.png").write_text("hello")
    with pytest.raises(ValueError, match="cannot read the image"):
        _ = ImageFolder(str(root), memory=0).train
    assert all(
        path.suffix == ".npy" for path in cache.glob("[!.]*") if path.suffix != ".lock"
    )
    data = ImageFolder(str(root), memory=0, skip_broken=True)
    assert torch.equal(
        data.train.inputs, ImageFolder(str(root), skip_broken=True).train.inputs
    )


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    root = str(make_root(tmp_path / "images"))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OSError,
        match=(
            r"GiB of decoded images cannot be written to .*No space "
            r"left.*TORCHCAPS_DATA"
        ),
    ):
        _ = ImageFolder(root, size=7, memory=0).train
    assert files(cache) == {}


def test_problems_have_the_indices_of_their_images(cache):
    def picture(index: int) -> torch.Tensor:
        if index % 3 == 1:
            raise BrokenImage(f"{index}", "made so")
        return torch.full((1, 2, 2), index % 256, dtype=torch.uint8)

    digests = [str(index) for index in range(700)]
    for mapped in (False, True):
        images, problems = decode_images(digests, picture, (1, 2, 2), "test", mapped)
        assert list(problems) == list(range(1, 700, 3))
        if not mapped:
            assert images[::3, 0, 0, 0].tolist() == [
                index % 256 for index in range(0, 700, 3)
            ]
    assert files(cache) == {}


def grown(root: Path, memory: float) -> tuple[int, int]:
    """By how many bytes a process of its own grows that reads all images, and the sum
    of their pixels.
    """
    code = """
import sys
from torchcaps_lab.data import ImageFolder

def own_bytes():
    (row,) = (line for line in open("/proc/self/status") if line.startswith("RssAnon"))
    return 1024 * int(row.split()[1])

before = own_bytes()
images = ImageFolder(sys.argv[1], size=512, memory=float(sys.argv[2])).train
total = sum(int(part.sum()) for part in images.inputs.split(8))
print(own_bytes() - before, total)
"""
    command = [sys.executable, "-c", code, str(root), str(memory)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    growth, total = map(int, output.split())
    return growth, total


@pytest.mark.thorough
@pytest.mark.skipif(
    not STATUS.exists(), reason="Linux tells how much memory is a process's own"
)
def test_memory_is_bounded(tmp_path, cache):
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(30):
            picture = Image.fromarray(
                random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            )
            picture.save(tmp_path / "images" / name / f"{number}.png")

    mapped, total = grown(tmp_path / "images", 0)
    in_memory, same = grown(tmp_path / "images", 1)
    assert same == total
    assert mapped < 0.4 * 60 * 3 * 512 * 512 < 0.8 * 60 * 3 * 512 * 512 < in_memory
