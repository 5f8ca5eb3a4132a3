import gzip
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kinds.images.folders import write
from torchcaps_lab.data import Preprocess, SmallNORB, read_binary_matrix

UINT8, INT32, PACKED = 0x1E3D4C55, 0x1E3D4C54, 0x1E3D4C52
TRAIN, TEST = (
    "smallnorb-5x46789x9x18x6x2x96x96-training",
    "smallnorb-5x01235x9x18x6x2x96x96-testing",
)


def matrix(shape: tuple[int, ...], values: bytes, magic: int = UINT8) -> bytes:
    stored = shape + (1,) * (3 - len(shape))
    return struct.pack(f"<Ii{len(stored)}i", magic, len(shape), *stored) + values


def int32(values: Tensor) -> bytes:
    return matrix(
        tuple(values.shape),
        struct.pack(f"<{values.numel()}i", *values.flatten().tolist()),
        INT32,
    )


# Every class is seen in two lights from 3 of the 18 azimuths and 3 of the 9 elevations.
LABELS, INFO = (
    torch.tensor(rows)
    for rows in zip(
        *(
            (label, (4, elevation, azimuth, lighting))
            for azimuth in (34, 4, 6)
            for elevation in (0, 2, 3)
            for lighting in (0, 5)
            for label in range(5)
        ),
        strict=True,
    )
)
COUNT = len(LABELS)  # 90 pairs


def pairs(first: int) -> bytes:
    """The image of camera c in pair i is filled with first + i + 100 c."""
    return b"".join(
        bytes([first + i + 100 * camera]) * 96 * 96
        for i in range(COUNT)
        for camera in range(2)
    )


FILES = {
    f"{TRAIN}-dat.mat": matrix((COUNT, 2, 96, 96), pairs(0)),
    f"{TRAIN}-cat.mat": int32(LABELS),
    f"{TRAIN}-info.mat": int32(INFO),
    f"{TEST}-dat.mat": matrix((COUNT, 2, 96, 96), pairs(50)),
    f"{TEST}-cat.mat": int32(LABELS),
    f"{TEST}-info.mat": int32(INFO),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write(tmp_path_factory.mktemp("data"), FILES))


def values(images: Tensor) -> list[int]:
    """What each image is filled with, its first camera's number if it has both."""
    assert torch.equal(images, images[:, :, :1, :1].expand_as(images))
    return images[:, 0, 0, 0].tolist()


# The format


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("shape", [(6,), (2, 3), (2, 3, 4), (2, 1, 3, 2), (0, 3)])
def test_read_binary_matrix(
    tmp_path: Path, compress: Callable[[bytes], bytes], shape: tuple[int, ...]
) -> None:
    content = bytes(range(250, 250 - math.prod(shape), -1))
    path = tmp_path / "file"
    path.write_bytes(compress(matrix(shape, content)))
    data = read_binary_matrix(path)
    assert data.dtype == torch.uint8
    assert data.shape == shape
    assert data.flatten().tolist() == list(content)


@pytest.mark.parametrize(
    ("magic", "code", "dtype", "numbers"),
    [
        (0x1E3D4C51, "f", torch.float32, [0.5, -3.25]),
        (0x1E3D4C53, "d", torch.float64, [0.1, -1e300]),
        (0x1E3D4C54, "i", torch.int32, [-2, 2**31 - 1]),
        (0x1E3D4C55, "B", torch.uint8, [0, 255]),
        (0x1E3D4C56, "h", torch.int16, [-(2**15), 513]),
    ],
)
def test_types(
    tmp_path: Path, magic: int, code: str, dtype: torch.dtype, numbers: list[Any]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(matrix((2,), struct.pack(f"<2{code}", *numbers), magic))
    data = read_binary_matrix(str(path))
    assert data.dtype == dtype
    assert data.tolist() == numbers


def test_dimensions_beyond_the_stated_number_mean_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(struct.pack("<Ii3i", UINT8, 1, 2, 7, 0) + b"ab")
    assert read_binary_matrix(path).tolist() == [97, 98]


GOOD = matrix((2, 3), bytes(6))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "not a binary matrix file: .* of an empty file", id="empty"),
        pytest.param(
            gzip.compress(b""),
            "not a binary matrix file: .* of an empty file",
            id="empty inside",
        ),
        pytest.param(
            GOOD[:3], "not a binary matrix file: .* 55 4c 3d", id="half a magic number"
        ),
        pytest.param(
            b"MATLAB 5.0",
            "not a binary matrix file: .* 1E3D4C55.* 4d 41 54 4c",
            id="another format",
        ),
        pytest.param(
            struct.pack(">I", UINT8) + GOOD[4:],
            "not a binary matrix file: .* 1e 3d 4c 55",
            id="big-endian",
        ),
        pytest.param(
            matrix((2,), b"a", PACKED),
            "packed entries .1E3D4C52., which cannot be read",
            id="packed",
        ),
        pytest.param(GOOD[:6], "ends in its header", id="no dimensions"),
        pytest.param(GOOD[:19], "ends in its header", id="two dimensions stored"),
        pytest.param(
            struct.pack("<Ii3i", UINT8, 0, 1, 1, 1) + b"a",
            "states 0 dimensions",
            id="a scalar",
        ),
        pytest.param(
            struct.pack("<Ii3i", UINT8, -1, 1, 1, 1),
            "states -1 dimensions",
            id="negative count",
        ),
        pytest.param(
            struct.pack("<Ii3i", UINT8, 2, 3, -1, 1),
            r"\(3, -1\), which has a negative",
            id="negative",
        ),
        pytest.param(
            GOOD[:-1],
            r"shape \(2, 3\) of torch.uint8: expected 6 bytes .* got 5 \(",
            id="too short",
        ),
        pytest.param(
            GOOD + b"x",
            r"shape \(2, 3\) of torch.uint8: expected 6 bytes .* got 7 or more",
            id="too long",
        ),
        pytest.param(
            matrix((2**30, 2**20, 64), b"abc"),
            "expected 7205759403792793\\d* bytes .* got 3",
            id="huge",
        ),
        pytest.param(
            int32(torch.arange(3))[:-4],
            "torch.int32: expected 12 bytes of entries, got 8",
            id="int32",
        ),
        pytest.param(
            gzip.compress(GOOD[:-1]), "expected 6 bytes .* got 5", id="too short inside"
        ),
        pytest.param(
            gzip.compress(GOOD + b"x"),
            "expected 6 bytes .* got 7",
            id="too long inside",
        ),
        pytest.param(gzip.compress(GOOD)[:-9], "broken gzip", id="truncated gzip"),
        pytest.param(gzip.compress(GOOD) + b"x", "broken gzip", id="bytes after gzip"),
        pytest.param(
            gzip.compress(GOOD)[:-8] + bytes(8), "broken gzip.* CRC", id="damaged gzip"
        ),
    ],
)
def test_read_binary_matrix_names_the_broken_file(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "broken.mat"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"broken.mat.*{message}"):
        read_binary_matrix(path)


# Images, labels and what they show


@pytest.mark.parametrize("place", [".", "smallnorb"])
@pytest.mark.parametrize("compressed", [True, False])
def test_files_are_found_in_both_folders_and_both_forms(
    tmp_path: Path, place: str, compressed: bool
) -> None:
    packed = {
        f"{name}.gz": gzip.compress(content, 1) for name, content in FILES.items()
    }
    write(tmp_path / place, packed if compressed else FILES)
    data = SmallNORB(str(tmp_path), validation=0.2)
    assert data.image_shape == (2, 48, 48)
    assert data.classes == ("animal", "human", "airplane", "truck", "car")
    assert sorted(values(data.train.inputs) + values(data.validation.inputs)) == list(
        range(COUNT)
    )
    assert values(data.test.inputs) == list(range(50, 50 + COUNT))
    assert torch.equal(data.test.labels, LABELS)


@pytest.mark.parametrize("cameras", ["both_as_channels", "both_as_images", "first"])
@pytest.mark.parametrize("validation", [0, 0.2])
def test_labels_and_info_belong_to_the_images(
    folder: str, cameras: Any, validation: float
) -> None:
    data = SmallNORB(folder, cameras=cameras, validation=validation, seed=3)
    for split, first in (("train", 0), ("validation", 0), ("test", 50)):
        images = getattr(data, split)
        pair = torch.tensor(values(images.inputs), dtype=torch.int64) - first
        if cameras == "both_as_images":
            assert pair[1::2].tolist() == (pair[::2] + 100).tolist()
            pair[1::2] -= 100
        info = data.info(split)
        assert torch.equal(images.labels, LABELS[pair])
        assert info.dtype == torch.int64
        assert torch.equal(info, INFO[pair])
        if split == "validation":
            per_pair = 2 if cameras == "both_as_images" else 1
            assert (
                images.labels.bincount(minlength=5).tolist()
                == [round(validation * 18) * per_pair] * 5
            )


@pytest.mark.parametrize(
    ("cameras", "fill"), [("both_as_channels", [7, 107]), ("first", [7])]
)
def test_cameras_are_channels(folder: str, cameras: Any, fill: list[int]) -> None:
    data = SmallNORB(folder, cameras=cameras, validation=0)
    assert data.train.inputs.shape == (COUNT, len(fill), 48, 48)
    assert data.train.inputs[7, :, 20, 30].tolist() == fill


def test_cameras_are_images_that_stay_together(folder: str) -> None:
    data = SmallNORB(folder, cameras="both_as_images", validation=0.3)
    assert data.image_shape == (1, 48, 48)
    held_out = values(data.validation.inputs)
    test = values(data.test.inputs)
    assert len(held_out) == 2 * 5 * 5
    assert {value % 100 for value in held_out}.isdisjoint(
        value % 100 for value in values(data.train.inputs)
    )
    assert test[:4] == [50, 150, 51, 151]


def test_info_is_read_without_the_images(tmp_path: Path) -> None:
    write(tmp_path, FILES | {f"{TRAIN}-dat.mat": b"", f"{TEST}-dat.mat": b""})
    data = SmallNORB(str(tmp_path), validation=0)
    assert torch.equal(data.info("train"), INFO)
    assert data.info("validation").shape == (0, 4)
    assert torch.equal(data.info("test"), INFO)
    assert data.info_columns == ("instance", "elevation", "azimuth", "lighting")


@pytest.mark.parametrize("size", [96, 48, 32, 16, 1])
def test_pixels_are_means_of_squares(tmp_path: Path, size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (3, 2, 96, 96), generator=generator)
    images[2] = 255
    write(
        tmp_path,
        {
            f"{TEST}-dat.mat": matrix((3, 2, 96, 96), bytes(images.flatten().tolist())),
            f"{TEST}-cat.mat": int32(torch.tensor([0, 4, 2])),
            f"{TEST}-info.mat": int32(INFO[:3]),
        },
    )
    result = SmallNORB(str(tmp_path), size=size).test.inputs
    factor = 96 // size
    for row, column in {(0, 0), (size // 3, size // 2), (size - 1, size - 1)}:
        square = images[
            :,
            :,
            factor * row : factor * (row + 1),
            factor * column : factor * (column + 1),
        ]
        mean = square.flatten(2).double().mean(2)
        # Halves round up, so that no mean is more than a half above what it became.
        assert torch.equal(result[:, :, row, column].double(), (mean + 0.5).floor())
    assert (result[2] == 255).all()


# Novel viewpoints


@pytest.mark.parametrize(
    ("viewpoints", "column", "familiar", "novel"),
    [("azimuth", 2, {34, 4}, {6}), ("elevation", 1, {0, 2}, {3})],
)
def test_novel_viewpoints(
    folder: str, viewpoints: Any, column: int, familiar: set[int], novel: set[int]
) -> None:
    data = SmallNORB(folder, viewpoints=viewpoints, validation=0.25)
    assert (len(data.train), len(data.validation), len(data.test)) == (45, 15, 30)
    assert set(data.info("train")[:, column].tolist()) == familiar
    assert set(data.info("test")[:, column].tolist()) == novel
    same = SmallNORB(
        folder, viewpoints=viewpoints, test_viewpoints="familiar", validation=0.25
    )
    assert values(same.train.inputs) == values(data.train.inputs)
    assert set(same.info("test")[:, column].tolist()) == familiar
    assert sorted(values(same.test.inputs) + values(data.test.inputs)) == list(
        range(50, 50 + COUNT)
    )
    toys = SmallNORB(
        folder,
        viewpoints=viewpoints,
        test_viewpoints="novel_of_same_toys",
        validation=0.25,
    )
    assert set(toys.info("test")[:, column].tolist()) == novel
    trained = values(data.train.inputs) + values(data.validation.inputs)
    assert sorted(values(toys.test.inputs) + trained) == list(range(COUNT))
    for images, info in (
        (data.validation, data.info("validation")),
        (same.test, same.info("test")),
    ):
        pair = torch.tensor(values(images.inputs)) - (50 if images is same.test else 0)
        assert torch.equal(info, INFO[pair])
        assert torch.equal(images.labels, LABELS[pair])


@pytest.mark.parametrize(
    ("viewpoints", "column", "count", "degrees"),
    [("azimuth", 2, 18, {300, 320, 340, 0, 20, 40}), ("elevation", 1, 9, {30, 35, 40})],
)
def test_a_third_of_the_viewpoints_is_familiar(
    tmp_path: Path, viewpoints: Any, column: int, count: int, degrees: set[int]
) -> None:
    info = torch.zeros(count, 4, dtype=torch.int64)
    info[:, column] = torch.arange(count) * (2 if column == 2 else 1)
    files = {
        f"{name}-{part}.mat": content
        for name in (TRAIN, TEST)
        for part, content in (
            ("dat", b""),
            ("cat", int32(torch.zeros(count, dtype=torch.int64))),
            ("info", int32(info)),
        )
    }
    write(tmp_path, files)
    data = SmallNORB(str(tmp_path), viewpoints=viewpoints, validation=0)

    def shown(split: Any) -> list[int]:
        return [
            10 * value if column == 2 else 30 + 5 * value
            for value in data.info(split)[:, column].tolist()
        ]

    assert set(shown("train")) == degrees
    assert len(shown("test")) == 2 * len(shown("train")) == count * 2 // 3
    assert degrees.isdisjoint(shown("test"))


def test_test_viewpoints_make_no_difference_to_the_whole(folder: str) -> None:
    for choice in ("novel", "familiar", "novel_of_same_toys"):
        assert len(SmallNORB(folder, test_viewpoints=choice).info("test")) == COUNT


# Errors


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "dat",
            matrix((COUNT, 96, 96), bytes(COUNT * 96 * 96)),
            r"dat.mat must hold torch.uint8 \(N, 2, 96, 96\), got",
        ),
        (
            "dat",
            matrix((3, 2, 96, 96), bytes(6 * 96 * 96)),
            "dat.mat holds 3 pairs .* there are 90 labels",
        ),
        (
            "cat",
            matrix((COUNT,), bytes(COUNT)),
            r"cat.mat must hold torch.int32 \(N\), got torch.uint8 \(90,\)",
        ),
        (
            "cat",
            int32(LABELS[:, None]),
            r"cat.mat must hold torch.int32 \(N\), got torch.int32 \(90, 1\)",
        ),
        (
            "cat",
            int32(LABELS[1:]),
            "cat.mat holds 89 labels but .*info.mat holds 90 rows",
        ),
        (
            "cat",
            int32(LABELS + 1),
            r"training-cat.mat must hold labels in 0..4, got labels from 1 to 5",
        ),
        (
            "info",
            int32(INFO[:, :3]),
            r"info.mat must hold torch.int32 \(N, 4\), got torch.int32 \(90, 3\)",
        ),
        (
            "info",
            int32(INFO.flip(1)),
            r"info.mat must hold the columns instance, .* got \[0, 4, 0, 4\] to \[5, "
            r"34",
        ),
        ("info", int32(INFO - 1), "info.mat must hold the columns"),
    ],
)
def test_files_that_do_not_fit_together(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    write(tmp_path, FILES | {f"{TRAIN}-{name}.mat": content})
    with pytest.raises(ValueError, match=message):
        _ = SmallNORB(str(tmp_path)).train


def test_missing_files(tmp_path: Path) -> None:
    write(
        tmp_path,
        {name: FILES[name] for name in (f"{TRAIN}-dat.mat", f"{TRAIN}-cat.mat")},
    )
    with pytest.raises(FileNotFoundError) as caught:
        _ = SmallNORB(str(tmp_path)).train
    message = str(caught.value)
    places = (f"{TRAIN}-info.mat", ".gz", str(tmp_path), str(tmp_path / "smallnorb"))
    for part in (*places, SmallNORB.url, "data_dir", "TORCHCAPS_DATA"):
        assert part in message
    assert f"{TRAIN}-dat.mat" not in message


def test_the_test_files_are_not_needed_to_train(tmp_path: Path) -> None:
    write(
        tmp_path,
        {name: content for name, content in FILES.items() if name.startswith(TRAIN)},
    )
    data = SmallNORB(str(tmp_path))
    assert len(data.train) == 80
    with pytest.raises(
        FileNotFoundError, match=f"{TEST}-dat.mat .* and {TEST}-info.mat"
    ):
        _ = data.test


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 40}, "size must be a divisor of 96, got 40"),
        ({"size": 192}, "size must be a divisor of 96, got 192"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SmallNORB(**arguments)


def test_splits_are_named(folder: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"split must be one of \['train', 'validation', 'test'\], got 'val'",
    ):
        SmallNORB(folder).info("val")


def test_pairs_prepared_as_in_the_paper(folder: str) -> None:
    images = SmallNORB(folder).test.prepared(
        Preprocess(crop=32, standardise=True, crops=13)
    )
    assert images.image_shape == (2, 32, 32)
    crops = images.crops([0, 30])
    assert crops.shape == (2, 13, 2, 32, 32)
    # The second camera is 100 brighter than the first, all over: one standard deviation
    # on each side of the mean.
    torch.testing.assert_close(
        crops,
        torch.tensor([-1.0, 1.0])[:, None, None].expand_as(crops),
        atol=1e-5,
        rtol=0,
    )
    pixels = torch.tensor([50, 150]) / 255
    assert torch.equal(
        images[0].pictures, pixels[None, :, None, None].expand(1, 2, 32, 32)
    )


@pytest.mark.parametrize("cameras", ["both_as_channels", "both_as_images"])
def test_whole_toys_are_held_out(tmp_path: Path, cameras: Any) -> None:
    """As many in every class, and none of them in the training images."""
    info = INFO.clone()
    info[:, 0] = (
        torch.arange(COUNT) // 5 % 5 + LABELS % 2
    )  # toys 0..4 of some classes, 1..5 of the others
    files = {**FILES, f"{TRAIN}-info.mat": int32(info)}
    data = SmallNORB(
        str(write(tmp_path, files)),
        cameras=cameras,
        held_out="toys",
        validation=0.4,
        seed=1,
    )
    kept, held_out = (
        set(zip(images.labels.tolist(), data.info(split)[:, 0].tolist(), strict=True))
        for images, split in ((data.train, "train"), (data.validation, "validation"))
    )
    assert not kept & held_out
    for label in range(5):
        assert sum(category == label for category, _ in held_out) == 2
        assert sum(category == label for category, _ in kept) == 3
    assert len(data.train) + len(data.validation) == COUNT * (
        2 if cameras == "both_as_images" else 1
    )


@pytest.mark.parametrize(("share", "count"), [(0, 0), (0.01, 1), (0.4, 1), (0.9, 2)])
def test_one_toy_at_least_is_held_out_and_one_is_kept(
    tmp_path: Path, share: float, count: int
) -> None:
    info = INFO.clone()
    info[:, 0] = (
        torch.arange(COUNT) // 5 % 3
    )  # three toys of each class, in as many pairs
    folder = write(tmp_path, {**FILES, f"{TRAIN}-info.mat": int32(info)})
    data = SmallNORB(str(folder), held_out="toys", validation=share)
    assert len(data.validation) == count * COUNT // 3
