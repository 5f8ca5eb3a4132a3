"""Images: of class folders, with labels in a table, published, or made from others.

:mod:`torchcaps_lab.data` hands on the names that are imported here.
"""

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
from torchcaps_lab.kinds.images.sets.table import ImageTable

__all__: list[str] = []
