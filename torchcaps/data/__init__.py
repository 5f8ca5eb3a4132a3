"""Data sets, all of one shape: bytes in memory, three splits, the test images read last."""

from torchcaps.data.augment import RandomShift, mixed_seed, random_integers
from torchcaps.data.base import (
    Batch,
    Composition,
    ImageData,
    ImageSet,
    Parts,
    create_dataset,
    find_data_dir,
    list_datasets,
    register_dataset,
    stratified_split,
)
from torchcaps.data.cifar10 import CIFAR10
from torchcaps.data.digits import Digits
from torchcaps.data.folder import ImageFolder, load_image
from torchcaps.data.made import (
    Affine,
    AffineRanges,
    Overlaid,
    Overlay,
    Padded,
    Pairs,
    Scenes,
    TurnedDigits,
    apply_affine,
    arrange,
    bounding_box_overlap,
    fixed_pairs,
)
from torchcaps.data.mnist import MNIST, FashionMNIST, read_idx
from torchcaps.data.preprocess import (
    RandomBrightness,
    RandomContrast,
    RandomCrop,
    RandomFlip,
    centre_crop,
    normalise,
    rescale,
    standardise,
    thirteen_crops,
)
from torchcaps.data.smallnorb import SmallNORB, read_binary_matrix
from torchcaps.data.view import Preprocess, View

__all__ = [
    "CIFAR10",
    "MNIST",
    "Affine",
    "AffineRanges",
    "Batch",
    "Composition",
    "Digits",
    "FashionMNIST",
    "ImageData",
    "ImageFolder",
    "ImageSet",
    "Overlaid",
    "Overlay",
    "Padded",
    "Pairs",
    "Parts",
    "Preprocess",
    "RandomBrightness",
    "RandomContrast",
    "RandomCrop",
    "RandomFlip",
    "RandomShift",
    "Scenes",
    "SmallNORB",
    "TurnedDigits",
    "View",
    "apply_affine",
    "arrange",
    "bounding_box_overlap",
    "centre_crop",
    "create_dataset",
    "find_data_dir",
    "fixed_pairs",
    "list_datasets",
    "load_image",
    "mixed_seed",
    "normalise",
    "random_integers",
    "read_binary_matrix",
    "read_idx",
    "register_dataset",
    "rescale",
    "standardise",
    "stratified_split",
    "thirteen_crops",
]
