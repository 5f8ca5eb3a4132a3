"""Data sets, all with the same interface: images as bytes, in memory or memory-mapped,
in three splits.
"""

from typing import Any

from torchcaps_lab.data.augment import RandomShift, mixed_seed, random_integers
from torchcaps_lab.data.base import (
    DataSet,
    create_dataset,
    find_data_dir,
    list_datasets,
    register_dataset,
    stable_split,
    stratified_split,
)
from torchcaps_lab.data.boxes import class_boxes, ink_boxes
from torchcaps_lab.data.cifar10 import CIFAR10
from torchcaps_lab.data.digits import Digits
from torchcaps_lab.data.examples import Batch, Composition, Examples, Parts
from torchcaps_lab.data.folder import ImageFolder
from torchcaps_lab.data.hub import Hub
from torchcaps_lab.data.made import (
    Affine,
    AffineRanges,
    Few,
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
from torchcaps_lab.data.manifest import Changes, Entry, Manifest
from torchcaps_lab.data.map_style import MapStyle
from torchcaps_lab.data.mnist import MNIST, FashionMNIST, read_idx
from torchcaps_lab.data.picture import load_image
from torchcaps_lab.data.preprocess import (
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
from torchcaps_lab.data.smallnorb import SmallNORB, read_binary_matrix
from torchcaps_lab.data.strong import (
    RandAugment,
    RandomErasing,
    RandomRotation,
    RandomZoom,
)
from torchcaps_lab.data.view import Preprocess, View
from torchcaps_lab.kinds import public

__all__ = [
    "Affine",
    "AffineRanges",
    "Batch",
    "DataSet",
    "Digits",
    "Examples",
    "ImageFolder",
    "MapStyle",
    "Overlay",
    "Padded",
    "Pairs",
    "Preprocess",
    "Scenes",
    "SmallNORB",
    "apply_affine",
    "arrange",
    "bounding_box_overlap",
    "class_boxes",
    "find_data_dir",
    "fixed_pairs",
    "load_image",
    "register_dataset",
]


def __getattr__(name: str) -> Any:
    """Data sets of the kinds of input."""
    return public(name, __name__)
