"""The interface of data sets and readers: examples in memory or memory-mapped, in three
splits, and how images are prepared for a network.

The data sets themselves live with their kind of input. They are known here by their
names, and are imported when they are asked for.
"""

from typing import TYPE_CHECKING, Any

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
from torchcaps_lab.data.examples import Batch, Composition, Examples, Parts
from torchcaps_lab.data.manifest import Changes, Entry, Manifest
from torchcaps_lab.data.transforms.changes import (
    RandomBrightness,
    RandomContrast,
    RandomCrop,
    RandomFlip,
    RandomShift,
)
from torchcaps_lab.data.transforms.draws import mixed_seed, random_integers
from torchcaps_lab.data.transforms.preprocess import Preprocess, View
from torchcaps_lab.data.transforms.steps import (
    centre_crop,
    normalise,
    rescale,
    standardise,
    thirteen_crops,
)
from torchcaps_lab.data.transforms.strong import (
    RandAugment,
    RandomErasing,
    RandomRotation,
    RandomZoom,
)
from torchcaps_lab.kinds import public

if TYPE_CHECKING:
    from torchcaps_lab.kinds.images.decoding.picture import load_image
    from torchcaps_lab.kinds.images.made import (
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
    from torchcaps_lab.kinds.images.sets.cifar10 import CIFAR10
    from torchcaps_lab.kinds.images.sets.digits import Digits
    from torchcaps_lab.kinds.images.sets.folder import ImageFolder
    from torchcaps_lab.kinds.images.sets.hub import Hub
    from torchcaps_lab.kinds.images.sets.map_style import MapStyle
    from torchcaps_lab.kinds.images.sets.mnist import MNIST, FashionMNIST, read_idx
    from torchcaps_lab.kinds.images.sets.smallnorb import SmallNORB, read_binary_matrix

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
    """Return what the kinds of input export under a name."""
    return public(name, __name__)


def __dir__() -> list[str]:
    """Name what is public, too, before it is asked for."""
    return sorted({*globals(), *__all__})
