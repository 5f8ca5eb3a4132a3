"""smallNORB and the binary matrix files that it comes in."""

import math
import struct
from functools import cached_property
from io import BufferedIOBase
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.numerics import Size, check_choice
from torchcaps.spec import argument, settings
from torchcaps_lab.data.base import register_dataset, stratified_split
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.published import PublishedData
from torchcaps_lab.data.streams import as_tensor, read_entries, unpacked

Cameras = Literal["both_as_channels", "both_as_images", "first"]
Viewpoints = Literal["all", "azimuth", "elevation"]
HeldOut = Literal["pairs", "toys"]
TestViewpoints = Literal["novel", "familiar", "novel_of_same_toys"]
Split = Literal["train", "validation", "test"]

_SIDE = 96  # pixels of the published images
_DTYPES = {
    0x1E3D4C51: torch.float32,
    0x1E3D4C53: torch.float64,
    0x1E3D4C54: torch.int32,
    0x1E3D4C55: torch.uint8,
    0x1E3D4C56: torch.int16,
}
_PACKED = 0x1E3D4C52


def read_binary_matrix(path: str | Path) -> Tensor:
    """Read a binary matrix file, plain or compressed with gzip.

    Source: F. J. Huang, Y. LeCun, "The small NORB dataset, v1.0", file format. The file
    is, all of it little-endian: a magic number that names the type of the entries, the
    number of dimensions and each dimension as an int32, the entries. At least three
    dimensions are stored; those beyond the stated number mean nothing.

    Returns:
        A tensor of the shape and type that the file states: uint8, int16, int32,
            float32 or float64.

    Raises:
        ValueError: the file is broken, is longer or shorter than it states, or holds
            another type.
    """
    path = Path(path)
    with unpacked(path) as file:
        return _read_matrix(file, path)


def _read_matrix(file: BufferedIOBase, path: Path) -> Tensor:
    dtype = _read_dtype(file, path)
    (ndim,) = _read_integers(file, path, 1)
    if not 1 <= ndim <= 8:
        raise ValueError(f"{path} states {ndim} dimensions, expected 1 to 8")
    stored = _read_integers(file, path, max(ndim, 3))
    shape = stored[:ndim]
    if min(shape) < 0:
        raise ValueError(
            f"{path} states the shape {shape}, which has a negative dimension"
        )
    expected = math.prod(shape) * dtype.itemsize
    entries, got = read_entries(file, path, expected)
    if got != expected:
        raise ValueError(
            f"{path} states the shape {shape} of {dtype}: expected {expected} bytes "
            f"of entries, got {got}"
            f"{' or more' if got > expected else ''} (uncompressed)"
        )
    return as_tensor(entries, shape, dtype, path)


def _read_dtype(file: BufferedIOBase, path: Path) -> torch.dtype:
    start = file.read(4)
    magic = int.from_bytes(start, "little") if len(start) == 4 else None
    if magic == _PACKED:
        raise ValueError(
            f"{path} is a binary matrix file of packed entries ({_PACKED:08X}), which "
            "cannot be read"
        )
    if magic not in _DTYPES:
        raise ValueError(
            f"{path} is not a binary matrix file: expected it to start with one of "
            "the little-endian magic "
            f"numbers {', '.join(f'{number:08X}' for number in _DTYPES)}, "
            f"got the bytes {start.hex(' ') or 'of an empty file'}"
        )
    return _DTYPES[magic]


def _read_integers(file: BufferedIOBase, path: Path, count: int) -> tuple[int, ...]:
    data = file.read(4 * count)
    if len(data) < 4 * count:
        raise ValueError(f"{path} ends in its header")
    return struct.unpack(f"<{count}i", data)


class _Half(NamedTuple):
    """Facts about the stereo pairs in one half of the data set, known without reading
    their images.
    """

    dat: Path
    pairs: int  # in that file
    rows: Tensor  # int64 (M,), the pairs that are used
    labels: Tensor  # int64 (M,)
    info: Tensor  # int64 (M, 4)


@register_dataset("smallnorb")
@settings
class SmallNORB(PublishedData):
    """24,300 + 24,300 stereo pairs of toys in five classes, seen from 162 viewpoints in
    six lights.

    Each class has ten toys: five are in the training half and the other five in the
    test half. The two cameras of a pair are two channels here unless `cameras` says
    otherwise. The original images have 96 x 96 pixels; each pixel here is the mean of a
    square of them, rounded. (The code released with the EM paper takes every second
    pixel, as TensorFlow 1's `resize_images` does.)

    The six original files, smallnorb-5x46789x9x18x6x2x96x96-training-{dat,cat,info}.mat
    and smallnorb-5x01235x9x18x6x2x96x96-testing-{dat,cat,info}.mat, are looked for in
    the folder `smallnorb` inside `data_dir` and in `data_dir` itself, compressed (.gz)
    or not. They are not downloaded: get them from
    https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/ (for research use only).

    For the experiment on novel viewpoints, `viewpoints` names the angle of which only a
    third is trained on: the pairs from the six frontal azimuths (300, 320, 340, 0, 20,
    40 degrees) or from the three lowest elevations (30, 35, 40 degrees), and `test`
    holds the others (azimuths 60 to 280 degrees, elevations 45 to 70 degrees) or, for
    comparison, the same ones.

    Sources: Y. LeCun, F. J. Huang, L. Bottou, "Learning methods for generic object
    recognition with invariance to pose and lighting", CVPR 2004. G. Hinton, S. Sabour,
    N. Frosst, "Matrix capsules with EM routing", ICLR 2018 (48 x 48 pixels; novel
    viewpoints; their released code makes the two cameras channels).

    Args:
        size: height and width of the images, a divisor of 96.
        cameras: `both_as_channels` makes a pair one image of two channels,
            `both_as_images` two images of one channel that follow each other (never
            divided between training and validation), `first` leaves the second camera
            out.
        viewpoints: `all`, or train on a third of the `azimuth`s or of the `elevation`s
            only.
        test_viewpoints: test on the viewpoints that are `novel`, on those `familiar`
            from training, both of other toys, or on the novel ones of the toys of the
            training half; not used where `viewpoints` is `all`.
        held_out: what is put aside for validation: `pairs`, of toys that are trained
            on, or whole `toys`, the number nearest to the share, at least one, in each
            class; like the test, they are other toys than those trained on.

    Raises:
        ValueError: an argument is not one of the above.

    Example:
        >>> from torchcaps_lab.data import SmallNORB
        >>> data = SmallNORB(size=48, viewpoints="azimuth")  # nothing is read yet
        >>> data.train.inputs.shape  # doctest: +SKIP
        torch.Size([7290, 2, 48, 48])
    """

    info_columns: ClassVar[tuple[str, ...]] = (
        "instance",
        "elevation",
        "azimuth",
        "lighting",
    )
    class_names: ClassVar[tuple[str, ...]] = (
        "animal",
        "human",
        "airplane",
        "truck",
        "car",
    )
    folders: ClassVar[tuple[str, ...]] = ("smallnorb",)
    url: ClassVar[str] = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/"
    stems: ClassVar[dict[str, str]] = {
        "train": "smallnorb-5x46789x9x18x6x2x96x96-training",
        "test": "smallnorb-5x01235x9x18x6x2x96x96-testing",
    }

    download: bool = argument(default=False, init=False)
    size: Size = 48
    cameras: Cameras = "both_as_channels"
    viewpoints: Viewpoints = "all"
    test_viewpoints: TestViewpoints = "novel"
    held_out: HeldOut = "pairs"

    def __post_init__(self) -> None:
        super().__post_init__()
        if _SIDE % self.size:
            raise ValueError(f"size must be a divisor of {_SIDE}, got {self.size}")

    def load_train(self) -> Examples:
        """Read the training images, those for validation included.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: a file is broken, or does not fit the others.
        """
        return self._load(self._train_half)

    def load_test(self) -> Examples:
        """Read the test images; raises what `load_train` does."""
        return self._load(self._test_half)

    def info(self, split: Split) -> Tensor:
        """Toy and viewpoint of each image of a split, in their order, without reading
        the images.

        Returns:
            int64 (N, 4): the toy (0..9 in its class), the elevation (0..8: 30 to 70
                degrees in steps of 5),
            the azimuth (0, 2, .. 34: tens of degrees) and the lighting (0..5).
                `info_columns` names them.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: `split` is none of train, validation and test; a file is broken.
        """
        check_choice("split", split, get_args(Split))
        if split == "test":
            return self._per_image(self._test_half.info)
        train_rows, held_out = self._split_indices
        return self._per_image(self._train_half.info)[
            train_rows if split == "train" else held_out
        ]

    @cached_property
    def _train_and_validation(self) -> tuple[Examples, Examples]:
        images = self.load_train()
        train_rows, held_out = self._split_indices
        return images.subset(train_rows), images.subset(held_out)

    @cached_property
    def _split_indices(self) -> tuple[Tensor, Tensor]:
        """Indices of the training and the validation images; the two images of a pair
        stay together.
        """
        half = self._train_half
        if self.held_out == "toys":
            parts = _split_toys(
                half.labels, half.info[:, 0], self.validation_share, self.seed
            )
        else:
            parts = stratified_split(half.labels, self.validation_share, self.seed)
        if self.cameras != "both_as_images":
            return parts
        train_rows, held_out = (
            torch.stack([2 * part, 2 * part + 1], dim=1).flatten() for part in parts
        )
        return train_rows, held_out

    @cached_property
    def _train_half(self) -> _Half:
        return self._read_facts("train", familiar=True)

    @cached_property
    def _test_half(self) -> _Half:
        same = self.viewpoints != "all" and self.test_viewpoints == "novel_of_same_toys"
        return self._read_facts(
            "train" if same else "test", familiar=self.test_viewpoints == "familiar"
        )

    def _read_facts(self, half: Literal["train", "test"], familiar: bool) -> _Half:
        dat, cat, info = self._files(half)
        labels = _read_part(cat, torch.int32, ()).to(torch.int64)
        facts = _read_part(info, torch.int32, (4,)).to(torch.int64)
        if len(labels) != len(facts):
            raise ValueError(
                f"{cat} holds {len(labels)} labels but {info} holds {len(facts)} rows"
            )
        if ((labels < 0) | (labels >= len(self.class_names))).any():
            last = len(self.class_names) - 1
            bounds = f"{int(labels.min())} to {int(labels.max())}"
            raise ValueError(
                f"{cat} must hold labels in 0..{last}, got labels from {bounds}"
            )
        if ((facts < 0) | (facts > torch.tensor([9, 8, 34, 5]))).any():
            raise ValueError(
                f"{info} must hold the columns {', '.join(self.info_columns)}, up to "
                "9, 8, 34 and 5, "
                f"got {facts.amin(0).tolist()} to {facts.amax(0).tolist()}"
            )
        rows = torch.arange(len(facts))
        if self.viewpoints != "all":
            rows = rows[_is_familiar(facts, self.viewpoints) == familiar]
        return _Half(dat, len(facts), rows, labels[rows], facts[rows])

    def _files(self, half: str) -> list[Path]:
        names = [f"{self.stems[half]}-{part}.mat" for part in ("dat", "cat", "info")]
        paths = {name: self._find(f"{name}.gz", name) for name in names}
        missing = [
            f"{name} (or {name}.gz)" for name, path in paths.items() if path is None
        ]
        if missing:
            raise FileNotFoundError(
                f"{' and '.join(missing)} not found in "
                f"{' and '.join(map(str, self._places))}. Get the files from "
                f"{self.url} and name the folder that holds them with data_dir or the "
                "environment variable "
                "TORCHCAPS_DATA."
            )
        return [path for path in paths.values() if path is not None]

    def _load(self, half: _Half) -> Examples:
        pairs = _read_part(half.dat, torch.uint8, (2, _SIDE, _SIDE))
        if len(pairs) != half.pairs:
            raise ValueError(
                f"{half.dat} holds {len(pairs)} pairs of images but there are "
                f"{half.pairs} labels"
            )
        images = _shrink(
            pairs, half.rows, self.size, cameras=1 if self.cameras == "first" else 2
        )
        if self.cameras == "both_as_images":
            images = images.flatten(0, 1).unsqueeze(1)
        return Examples(images, self._per_image(half.labels), self.class_names)

    def _per_image(self, values: Tensor) -> Tensor:
        if self.cameras == "both_as_images":
            return values.repeat_interleave(2, dim=0)
        return values


def _split_toys(
    labels: Tensor,
    toys: Tensor,
    share: float,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """The rows of the toys that are kept and of those held out, the same number of toys
    in every class.
    """
    rows = torch.stack([labels, toys], 1)
    toys_of_labels, toy_of_row = rows.unique(dim=0, return_inverse=True)
    kept, held_out = stratified_split(toys_of_labels[:, 0], share, seed)
    train_rows, held_out_rows = (
        torch.isin(toy_of_row, part).nonzero().squeeze(1) for part in (kept, held_out)
    )
    return train_rows, held_out_rows


def _is_familiar(info: Tensor, viewpoints: Viewpoints) -> Tensor:
    """Which rows of `info` show a viewpoint that the experiment trains on."""
    if viewpoints == "elevation":
        return info[:, 1] < 3
    return torch.isin(info[:, 2], torch.tensor([30, 32, 34, 0, 2, 4]))


def _shrink(pairs: Tensor, rows: Tensor, size: int, cameras: int) -> Tensor:
    """The first `cameras` images of the pairs at `rows`, uint8 (M, cameras, size,
    size).
    """
    factor = _SIDE // size
    area = factor * factor
    images = torch.empty((len(rows), cameras, size, size), dtype=torch.uint8)
    for place, row in zip(images.split(256), rows.split(256), strict=True):
        sums = F.avg_pool2d(
            pairs[row, :cameras].to(torch.float32), factor, divisor_override=1
        )
        # The sums are exact and halves round up: every machine gives the same bytes.
        place.copy_((sums.to(torch.int32) + area // 2) // area)
    return images


def _read_part(path: Path, dtype: torch.dtype, entry: tuple[int, ...]) -> Tensor:
    data = read_binary_matrix(path)
    if data.dtype != dtype or data.shape[1:] != entry:
        shape = ", ".join(str(extent) for extent in ("N", *entry))
        raise ValueError(
            f"{path} must hold {dtype} ({shape}), got {data.dtype} {tuple(data.shape)}"
        )
    return data
