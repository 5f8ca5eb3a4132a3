"""MNIST, Fashion-MNIST and the idx files that they come in."""

import math
import struct
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from torchcaps_lab.data.base import register_dataset
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.published import PublishedData
from torchcaps_lab.data.streams import as_tensor, read_entries, unpacked


def read_idx(path: str | Path) -> Tensor:
    """Read an idx file of bytes, plain or compressed with gzip.

    Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits",
    file formats. The
    file is: two zero bytes, the type of the entries (8: uint8), the number of
    dimensions, each dimension as a big-endian uint32, the entries.

    Returns:
        A uint8 tensor of the shape that the file states.

    Raises:
        ValueError: the file is broken, is longer or shorter than it states, or holds
            another type.
    """
    path = Path(path)
    with unpacked(path) as file:
        start = file.read(4)
        if len(start) < 4 or start[:3] != b"\x00\x00\x08" or start[3] == 0:
            file.read(1 << 20)  # a broken gzip file says so itself
            raise ValueError(
                f"{path} is not an idx file of bytes: expected it to start with 00 00 "
                "08 and the number of "
                f"dimensions, got {start.hex(' ') or 'an empty file'}"
            )
        header = 4 + 4 * start[3]
        sizes = file.read(header - 4)
        if len(sizes) < header - 4:
            raise ValueError(
                f"{path} ends in its header: expected at least {header} bytes, got "
                f"{4 + len(sizes)}"
            )
        shape = struct.unpack(f">{start[3]}I", sizes)
        expected = math.prod(shape)
        entries, got = read_entries(file, path, expected)
    if got != expected:
        raise ValueError(
            f"{path} states the shape {shape}: expected {header + expected} bytes, "
            f"got {header + got} (uncompressed)"
        )
    return as_tensor(entries, shape, torch.uint8, path)


@register_dataset("mnist")
class MNIST(PublishedData):
    """70,000 handwritten digits of 28 x 28 pixels, 10,000 of them the test set.

    The four original files are looked for in the folder `mnist` inside `data_dir` and
    in `data_dir` itself, compressed (.gz, then their SHA-256 is checked) or not. Those
    that are missing are downloaded to the former.

    Source: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, "Gradient-based learning applied
    to document recognition", Proceedings of the IEEE 86(11), 1998.

    Example:
        >>> from torchcaps_lab.data import MNIST
        >>> data = MNIST(validation=0.1)  # nothing is read or downloaded yet
        >>> data.train.inputs.shape, data.test.inputs.shape  # doctest: +SKIP
        (torch.Size([54000, 1, 28, 28]), torch.Size([10000, 1, 28, 28]))
    """

    folders: ClassVar[tuple[str, ...]] = ("mnist",)
    most: ClassVar[int] = 1 << 26
    class_names: ClassVar[tuple[str, ...]] = tuple(map(str, range(10)))
    mirrors: ClassVar[tuple[str, ...]] = (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    )
    digests: ClassVar[dict[str, str]] = {
        "train-images-idx3-ubyte.gz": "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    }

    def load_train(self) -> Examples:
        """Read the training images.

        Raises:
            FileNotFoundError: a file is missing and `download` is False.
            ConnectionError: a file is missing and no mirror served it intact.
            ValueError: a file is broken, or is not the one that was published.
        """
        return self._load("train")

    def load_test(self) -> Examples:
        """Read the test images; raises what `load_train` does."""
        return self._load("t10k")

    def _load(self, part: str) -> Examples:
        names = (f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz")
        paths = {name: self._find(name, name.removesuffix(".gz")) for name in names}
        missing = [
            f"{name} (or without .gz)" for name, path in paths.items() if path is None
        ]
        images_path, labels_path = (
            path or self._download(name, missing) for name, path in paths.items()
        )
        images = self._read_idx_file(images_path, ndim=3)
        labels = self._read_idx_file(labels_path, ndim=1)
        if len(images) != len(labels):
            raise ValueError(
                f"{images_path} holds {len(images)} images but {labels_path} holds "
                f"{len(labels)} labels"
            )
        return Examples(images.unsqueeze(1), labels.to(torch.int64), self.class_names)

    def _read_idx_file(self, path: Path, ndim: int) -> Tensor:
        data = read_idx(self._check(path))
        if data.ndim != ndim:
            raise ValueError(
                f"{path} must hold {ndim} dimensions, got the shape {tuple(data.shape)}"
            )
        return data


@register_dataset("fashion_mnist")
class FashionMNIST(MNIST):
    """70,000 pictures of clothes of 28 x 28 pixels in ten classes, 10,000 of them the
    test set.

    The files have the names of MNIST's and are found the same way, in the folder
    `fashion-mnist` inside `data_dir` and in `data_dir` itself.

    Source: H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a novel image dataset for
    benchmarking machine learning algorithms", arXiv:1708.07747, 2017.

    Example:
        >>> from torchcaps_lab.data import FashionMNIST
        >>> data = FashionMNIST(validation=0.1)  # nothing is read or downloaded yet
        >>> data.test.inputs.shape  # doctest: +SKIP
        torch.Size([10000, 1, 28, 28])
    """

    folders: ClassVar[tuple[str, ...]] = ("fashion-mnist",)
    class_names: ClassVar[tuple[str, ...]] = (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    )
    mirrors: ClassVar[tuple[str, ...]] = (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    )
    digests: ClassVar[dict[str, str]] = {
        "train-images-idx3-ubyte.gz": "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz": "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte.gz": "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz": "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    }
