"""Nuclei under a microscope, real pictures of which people marked every object: slots
that learn without labels, a threshold, and a U-Net that learns from masks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from PIL import Image
from sklearn.cluster import KMeans
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn.functional import one_hot

from recipes import placed_slots  # noqa: F401  # registers its network
from recipes.components import Components
from recipes.kit.base import Line, Picture, Recipe, Study, facts_of, register_recipe
from recipes.kit.charts import Cell, image_grid
from recipes.kit.lab import Trained, data_of, first_of
from recipes.kit.options import TrainingOptions
from recipes.object_discovery import PixelClusters
from recipes.published_objects import UNTRAINED, without_training
from torchcaps.models import ImageClassifier
from torchcaps.spec import settings
from torchcaps.whole import opened
from torchcaps_lab.data import DataSet, Examples, find_data_dir, register_dataset
from torchcaps_lab.evaluate import evaluating
from torchcaps_lab.kinds.objects.pictures import slot_of_pixels
from torchcaps_lab.kinds.objects.sets import ObjectSet, SlotCount, slot_names
from torchcaps_lab.kinds.pixels.mask_set import Cuts, MaskSet
from torchcaps_lab.tasks import create_task

FACTS = facts_of("nuclei")
UNET = "U-Net with masks, connected components"
ROWS: dict[str, Any] = {**FACTS["rows"], **dict.fromkeys(UNTRAINED)}
MEASURES = {
    "fg_ari": "FG-ARI",
    "ari": "ARI with the ground",
    "mbo": "mean best overlap",
}
ASSIGNED = {
    f"{key}_assigned": f"{name}, assigned pixels" for key, name in MEASURES.items()
}
"""Of the slots that ``torchcaps train`` makes, which ``predict`` answers with."""

COUNT = "error of the number of objects"

_WINDOW, _SIDE = 128, 64
_LEAST_NUCLEUS, _MOST_NUCLEI = 60, 8
"""Pixels of a nucleus in a window, and how many of them a window may have."""

_PLATES = 12
_SHOWN, _FITTED = 6, 100


class _Parts(NamedTuple):
    train: list[int]
    validation: list[int]
    test: list[int]


@register_dataset("nuclei")
@settings
class Nuclei(DataSet):
    """Crops of 128 x 128 pixels of the fluorescence images of the 2018 Data Science Bowl
    with one to eight nuclei, brought to 64 x 64.

    Pixels are the square root of the brightness between the darkest and the brightest
    pixel of a crop, so that dim nuclei count. Many images are of the same few plates, so
    images that look alike stay together: clusters of their median, deviation and
    brightest pixel. Every sixth is tested, and every sixth validates.

    Args:
        slots: how many slots networks get.

    Raises:
        FileNotFoundError: if there is no folder ``nuclei`` with ``images`` and ``masks``
            among the data sets.
    """

    task: ClassVar[str] = "objects"
    model = "slot_autoencoder"

    slots: SlotCount = 9

    def load_train(self) -> Examples:
        """Crops of most plates, mirrored and turned."""
        return replace(self._crops(self._parts.train), composition=Cuts(_SIDE))

    def load_validation(self) -> Examples:
        """Crops of other plates."""
        return self._crops(self._parts.validation)

    def load_test(self) -> Examples:
        """Crops of still other plates."""
        return self._crops(self._parts.test)

    @cached_property
    def _files(self) -> list[Path]:
        folder = find_data_dir(None) / "nuclei"
        files = sorted((folder / "images").glob("*.png"))
        if not files:
            raise FileNotFoundError(
                f"there are no images and masks of nuclei in {folder}"
            )
        return files

    @cached_property
    def _parts(self) -> _Parts:
        pixels = [_pixels(file) for file in self._files]
        looks = np.log1p(
            [[np.median(image), image.std(), image.max()] for image in pixels]
        )
        scaled = StandardScaler().fit_transform(looks)
        clusters = KMeans(_PLATES, n_init=10, random_state=0).fit(scaled)
        # By brightness, so that each part has dark and bright plates.
        rank = clusters.cluster_centers_.sum(1).argsort().argsort()
        turn = rank[clusters.labels_] % 6
        test, validation = turn == 1, turn == 4
        train = ~(test | validation)
        return _Parts(
            *(part.nonzero()[0].tolist() for part in (train, validation, test))
        )

    def _crops(self, places: Sequence[int]) -> ObjectSet:
        crops: list[Tensor] = []
        labels: list[Tensor] = []
        for place in places:
            file = self._files[place]
            objects = _pixels(file.parent.parent / "masks" / file.name)
            for top, left in product((0, _WINDOW), repeat=2):
                window = slice(top, top + _WINDOW), slice(left, left + _WINDOW)
                nuclei = _nuclei(objects[window])
                if nuclei is not None:
                    crops.append(_crop(_pixels(file)[window]))
                    labels.append(nuclei)
        pictures = torch.stack(crops)[:, None]
        return ObjectSet(pictures, torch.stack(labels), slot_names(self.slots))


def _pixels(file: Path) -> Any:
    with opened(file) as stream, Image.open(stream) as image:
        return np.asarray(image)


def _nuclei(window: Any) -> Tensor | None:
    """The nucleus of each pixel, uint8 (64, 64), 0 for none; None for a window with too
    few or too many nuclei.
    """
    names, counts = np.unique(window[window > 0], return_counts=True)
    names = names[counts >= _LEAST_NUCLEUS]
    if not 1 <= len(names) <= _MOST_NUCLEI:
        return None
    labels = np.zeros(window.shape, np.uint8)
    for number, name in enumerate(names, 1):
        labels[window == name] = number
    # The nearest pixel: labels have no mean.
    return torch.from_numpy(labels[::2, ::2].copy())


def _crop(window: Any) -> Tensor:
    """The square root of the stretched brightness, uint8 (64, 64)."""
    dark, bright = float(window.min()), float(window.max())
    stretched = (window - dark) / max(bright - dark, 16.0)
    small = stretched.reshape(_SIDE, 2, _SIDE, 2).mean((1, 3))
    return torch.from_numpy((255 * np.sqrt(small)).astype(np.uint8))


@register_dataset("object_pixels")
@settings
class ObjectPixels(DataSet):
    """The pictures of a data set of objects with two classes of pixels, for networks
    that learn from masks.

    Args:
        data: the data set.
    """

    task: ClassVar[str] = "segmentation"
    model = "unet"
    gives = "pixels"
    reads = "pixels"

    data: DataSet

    def load_train(self) -> Examples:
        """Its training images."""
        return _two_classes(self.data.train)

    def load_validation(self) -> Examples:
        """Its validation images."""
        return _two_classes(self.data.validation)

    def load_test(self) -> Examples:
        """Its test images."""
        return _two_classes(self.data.test)


def _two_classes(images: Examples) -> MaskSet:
    inside = (images.labels > 0).to(torch.uint8)
    names = ("ground", "nucleus")
    return MaskSet(images.inputs, inside, names, composition=images.composition)


class ByNetwork(Components):
    """Pixels that a network gives the second class are of objects.

    Args:
        network: its classes are the ground and the objects.
        slots: their number.
    """

    def __init__(self, network: ImageClassifier, slots: int) -> None:
        super().__init__(network.image_shape, slots)
        self.network: nn.Module = network

    def inside(self, images: Tensor) -> Tensor:
        """Which pixels are of an object, bool (B, H, W)."""
        inside: Tensor = self.network(images).activation.argmax(1) == 1
        return inside


_GROUND = ("slots", "slots from one start")
"""Rows whose pixels are assigned to slots."""


@register_recipe
class NucleiRecipe(Recipe[TrainingOptions]):
    """Slots on real pictures whose objects are known, beside a threshold, K-Means, a
    grid, and a U-Net that was shown the masks.
    """

    name: ClassVar = "nuclei"
    rows: ClassVar = ROWS
    lines: ClassVar = (
        *(
            Line(row, measure, unit="points", higher_is_better=True)
            for row, measure in product(ROWS, MEASURES.values())
        ),
        *(
            Line(row, measure, unit="points", higher_is_better=True)
            for row, measure in product(_GROUND, ASSIGNED.values())
        ),
        *(Line(row, COUNT, unit="") for row in ROWS),
    )
    settings: ClassVar = TrainingOptions
    grows: ClassVar = True

    def train(self, study: Study, row: str, stop_at: float | None) -> Trained:
        """Trains the network of a row; K-Means chooses its settings by the mean best
        overlap on validation images.
        """
        if row not in UNTRAINED:
            return super().train(study, row, stop_at)
        return without_training(row, data_of(study.settings.data), _FITTED, _best)

    def measure(self, study: Study, row: str, shared: Any) -> Mapping[str, float]:
        """How well the slots of test images match their nuclei, and how many too few or
        too many there are.
        """
        test = data_of(study.settings.data).test
        network = study.trained[row].network
        if row == UNET:
            network = ByNetwork(network, len(test.classes))
        if isinstance(network, PixelClusters):
            study.facts[row]["K-Means"] = network.how._asdict()
        study.curves[row] = {"slots": _slots_shown(network, test)}
        figures = _figures(network, test)
        names = {**MEASURES, **ASSIGNED} if row in _GROUND else MEASURES
        points = {name: 100 * figures[key] for key, name in names.items()}
        return {**points, COUNT: figures["count"]}

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """The first test images, and the slot of each pixel of the first seed."""
        test = data_of(studies[0].settings.data).test
        shown = first_of(test, _SHOWN)
        rows = {
            "crops": [Cell(_coloured(image)) for image in shown.inputs],
            "nuclei, marked by people": [Cell(_painted(mask)) for mask in shown.labels],
        }
        for row in self.rows:
            of_row = [study.curves[row] for study in studies if row in study.curves]
            if of_row:
                slots = torch.tensor(of_row[0]["slots"])
                rows[row] = [Cell(_painted(mask)) for mask in slots]
        return {"slots": Picture(image_grid(rows, height=1.1), self.caption)}


def _best(candidates: Sequence[PixelClusters], images: Examples) -> PixelClusters:
    return max(candidates, key=lambda network: _figures(network, images)["mbo"])


def _figures(network: ImageClassifier, images: Examples) -> dict[str, float]:
    """The figures of the task, and the mean error of the number of objects."""
    examined = create_task("objects").examine(network, images)
    counted = torch.tensor(examined.details["objects_of_images"])
    true = images.labels.flatten(1).amax(1)
    error = (counted - true).abs().mean().item()
    return {**examined.figures, "count": error}


def _slots_shown(network: ImageClassifier, images: Examples) -> list[list[list[int]]]:
    """The slots of the pixels of the first images, the one with the most pixels as 0."""
    with evaluating(network) as device:
        batch = next(iter(first_of(images, _SHOWN).to(device).batches(_SHOWN)))
        slots = slot_of_pixels(network(batch.inputs)).cpu()
    counts = one_hot(slots.flatten(1), network.classes).sum(1)
    rank = counts.argsort(1, descending=True).argsort(1)
    return rank.gather(1, slots.flatten(1)).view_as(slots).tolist()


def _coloured(image: Tensor) -> Tensor:
    """An image (C, H, W) of bytes as colours (H, W, 3) in [0, 1]."""
    return (image / 255).expand(3, -1, -1).movedim(0, -1)


def _painted(slots: Tensor) -> Tensor:
    """A colour for each slot, and black for the first, which is the ground, (H, W, 3)."""
    from matplotlib import colormaps

    colours = [(0.0, 0.0, 0.0), *(colormaps["tab10"](slot)[:3] for slot in range(10))]
    return torch.tensor(colours)[slots.long()]
