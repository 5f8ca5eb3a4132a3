"""Data sets, all with the same interface: images as bytes, in memory or memory-mapped, in three splits."""

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
    stable_split,
    stratified_split,
)
from torchcaps.data.cifar10 import CIFAR10
from torchcaps.data.digits import Digits
from torchcaps.data.folder import ImageFolder
from torchcaps.data.hub import Hub
from torchcaps.data.made import (
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
from torchcaps.data.manifest import Changes, Entry, Manifest
from torchcaps.data.map_style import MapStyle
from torchcaps.data.mnist import MNIST, FashionMNIST, read_idx
from torchcaps.data.picture import load_image
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
from torchcaps.data.questions import MadeQuestions
from torchcaps.data.scenes import DigitScenes, Scenery, class_boxes, ink_boxes
from torchcaps.data.smallnorb import SmallNORB, read_binary_matrix
from torchcaps.data.strong import RandAugment, RandomErasing, RandomRotation
from torchcaps.data.text import Text
from torchcaps.data.text_set import TextSet, joined
from torchcaps.data.view import Preprocess, View
from torchcaps.data.words import Reading, Words

__all__ = [
    "CIFAR10",
    "MNIST",
    "Affine",
    "AffineRanges",
    "Batch",
    "Changes",
    "Composition",
    "DigitScenes",
    "Digits",
    "Entry",
    "FashionMNIST",
    "Few",
    "Hub",
    "ImageData",
    "ImageFolder",
    "ImageSet",
    "MadeQuestions",
    "Manifest",
    "MapStyle",
    "Overlaid",
    "Overlay",
    "Padded",
    "Pairs",
    "Parts",
    "Preprocess",
    "RandAugment",
    "RandomBrightness",
    "RandomContrast",
    "RandomCrop",
    "RandomErasing",
    "RandomFlip",
    "RandomRotation",
    "RandomShift",
    "Reading",
    "Scenery",
    "Scenes",
    "SmallNORB",
    "Text",
    "TextSet",
    "TurnedDigits",
    "View",
    "Words",
    "apply_affine",
    "arrange",
    "bounding_box_overlap",
    "centre_crop",
    "class_boxes",
    "create_dataset",
    "find_data_dir",
    "fixed_pairs",
    "ink_boxes",
    "joined",
    "list_datasets",
    "load_image",
    "mixed_seed",
    "normalise",
    "random_integers",
    "read_binary_matrix",
    "read_idx",
    "register_dataset",
    "rescale",
    "stable_split",
    "standardise",
    "stratified_split",
    "thirteen_crops",
]
