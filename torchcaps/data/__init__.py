"""Data sets, all of one shape: bytes in memory, three splits, the test images read last."""

from torchcaps.data.augment import RandomShift
from torchcaps.data.base import (
    Batch,
    ImageData,
    ImageSet,
    create_dataset,
    find_data_dir,
    list_datasets,
    register_dataset,
    stratified_split,
)
from torchcaps.data.digits import Digits
from torchcaps.data.folder import ImageFolder, load_image
from torchcaps.data.mnist import MNIST, FashionMNIST, read_idx

__all__ = [
    "MNIST",
    "Batch",
    "Digits",
    "FashionMNIST",
    "ImageData",
    "ImageFolder",
    "ImageSet",
    "RandomShift",
    "create_dataset",
    "find_data_dir",
    "list_datasets",
    "load_image",
    "read_idx",
    "register_dataset",
    "stratified_split",
]
