"""What a pose tells: the place, colour and shape of each object, read out of the pose
of its slot, and by networks that were trained for it (Dittadi et al. 2022).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from recipes.kit.base import Line, Recipe, Study, register_recipe
from recipes.kit.lab import Trained, at_random, data_of, first_of, untrained
from recipes.kit.measures import percent
from recipes.kit.options import TrainingOptions
from torchcaps.layers import PositionCode
from torchcaps_lab.data import DataSet, Examples
from torchcaps_lab.evaluate import evaluating
from torchcaps_lab.kinds.objects.measures import contingency
from torchcaps_lab.kinds.objects.published import fixed_tetrominoes

SOURCES = ("slots without a ground", "Slot MLP")
"""Rows of the recipe ``tetrominoes`` whose poses are read."""

LINE, HIDDEN = "by a linear map", "by one hidden layer"
READ = {
    f"{source}, {reader}": (source, reader)
    for source, reader in product(SOURCES, (LINE, HIDDEN))
}
VECTOR = "convolutional network, trained for it: one vector"
QUERIES = "convolutional network, trained for it: queries with attention"
ROWS = (*READ, VECTOR, QUERIES)

PLACE, COLOUR, SHAPE = "variance of places", "colours", "shapes"
LABELLED = (50, 500, 5000)

_OUTPUTS = (2, 6, len(fixed_tetrominoes()))
"""Numbers that are read of an object: row and column, and logits of its colour and its
shape.
"""

_BLOCK = 5
_AT_ONCE = 100


def measure_of(property: str, labelled: int) -> str:
    """The name of a measure of so many labelled images."""
    return f"{property}, {labelled} labelled images"


class Properties(NamedTuple):
    """What is to be read of objects.

    Args:
        place: the mean row and column of their pixels, from -1 to 1 at the edges of the
            picture, (..., 2).
        colour: int64 (...).
        shape: int64 (...).
    """

    place: Tensor
    colour: Tensor
    shape: Tensor

    def at(self, index: Any) -> "Properties":
        """Those of some objects."""
        return Properties(*(values[index] for values in self))


def properties_of(images: Examples) -> Properties:
    """Those of the tetrominoes of images (N, K), in the order of their labels."""
    rows, columns = images.labels.shape[1:]
    numbers = range(1, int(images.labels.amax()) + 1)
    # (N, K, H, W)
    masks = torch.stack([images.labels == number for number in numbers], 1)
    down, across = masks.any(3).float(), masks.any(2).float()
    corner = torch.stack([down.argmax(2), across.argmax(2)], -1)
    weight = masks / masks.sum((2, 3), keepdim=True)
    place = torch.stack(
        [
            weight.sum(3) @ torch.linspace(-1, 1, rows),
            weight.sum(2) @ torch.linspace(-1, 1, columns),
        ],
        -1,
    )
    first = masks.flatten(2).byte().argmax(2)
    pixels = images.inputs.flatten(2).mT
    of_image = torch.arange(len(pixels))[:, None]
    # One of the six colours whose channels are 0 or 255, but neither black nor white.
    channels = (pixels[of_image, first] > 127).long()
    colour = channels @ torch.tensor([1, 2, 4]) - 1
    return Properties(place, colour, _shape_of(masks, corner))


def _shape_of(masks: Tensor, corner: Tensor) -> Tensor:
    """Which of the 17 shapes masks (N, K, H, W) have, by the blocks right and below of
    the corner, (N, K).
    """
    reach = 2 * _BLOCK + 1
    padded = nn.functional.pad(masks.byte(), (0, reach, 0, reach))
    known = torch.stack(
        [
            nn.functional.pad(
                shape.byte(), (0, reach + 4 - shape.shape[1], 0, reach + 4 - len(shape))
            )[:reach:_BLOCK, :reach:_BLOCK]
            for shape in fixed_tetrominoes()
        ]
    )
    offsets = torch.arange(0, reach, _BLOCK)
    image, number = (torch.arange(size) for size in masks.shape[:2])
    blocks = padded[
        image[:, None, None, None],
        number[:, None, None],
        corner[..., 0, None, None] + offsets[:, None],
        corner[..., 1, None, None] + offsets,
    ]
    same = (blocks[:, :, None] == known).flatten(3).all(3)
    return same.byte().argmax(2)


class Vector(nn.Module):
    """Features of a map as one vector, of which an MLP makes one for each object."""

    def __init__(self, channels: int, objects: int, shape: tuple[int, int]) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * shape[0] * shape[1], channels),
            nn.ReLU(),
            nn.Linear(channels, objects * channels),
            nn.ReLU(),
            nn.Unflatten(1, (objects, channels)),
        )

    def forward(self, maps: Tensor) -> Tensor:
        """Vectors of objects (B, K, C) of maps (B, C, H, W)."""
        return self.mlp(maps)


class Queries(nn.Module):
    """A learned query for each object, which attends to the places of a map: one layer
    of the decoder of DETR (Carion et al. 2020).
    """

    def __init__(self, channels: int, objects: int, shape: tuple[int, int]) -> None:
        super().__init__()
        self.place = PositionCode(channels)
        self.queries = nn.Parameter(torch.randn(objects, channels))
        self.decoder = nn.TransformerDecoderLayer(
            channels, 4, 2 * channels, dropout=0.0, batch_first=True
        )

    def forward(self, maps: Tensor) -> Tensor:
        """Vectors of objects (B, K, C) of maps (B, C, H, W)."""
        rows = self.place(maps).flatten(2).mT
        return self.decoder(self.queries.expand(len(maps), -1, -1), rows)


class TrainedForIt(nn.Module):
    """A convolutional network that reads the objects of an image, in any order.

    Args:
        head: the class of what makes a vector of each object.
        image_shape: (C, H, W).
        objects: their number K.
        channels: those of the convolutions.
    """

    def __init__(
        self,
        head: Callable[..., nn.Module],
        image_shape: tuple[int, int, int],
        objects: int,
        channels: int = 32,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = image_shape[0]
        for stride in (2, 1, 1):
            layers += [nn.Conv2d(before, channels, 5, stride, 2), nn.ReLU()]
            before = channels
        layers += [nn.Conv2d(channels, channels, 3, 2, 1), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        with torch.no_grad():
            maps = self.features(torch.zeros(1, *image_shape))
        self.head = head(channels, objects, tuple(maps.shape[2:]))
        self.read = nn.Linear(channels, sum(_OUTPUTS))

    def forward(self, images: Tensor) -> Tensor:
        """What is read of each object (B, K, outputs), of images (B, C, H, W)."""
        return self.read(self.head(self.features(images)))


HEADS: dict[str, Callable[..., nn.Module]] = {VECTOR: Vector, QUERIES: Queries}


def make_network(row: str) -> Any:
    """The network of a row that is trained for it, on images of tetrominoes."""
    return TrainedForIt(HEADS[row], (3, 35, 35), 3)


def reader_of(dim: int, hidden: int) -> nn.Module:
    """A network that reads one object from one pose: a linear map, or with a hidden
    layer.
    """
    outputs = sum(_OUTPUTS)
    norm = nn.BatchNorm1d(dim, affine=False)
    if not hidden:
        return nn.Sequential(norm, nn.Linear(dim, outputs))
    return nn.Sequential(
        norm, nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


def losses(read: Tensor, true: Properties) -> Tensor:
    """The squared distance of the place, and the cross-entropies of colour and shape,
    of what was read (..., outputs).
    """
    place, colour, shape = read.split(_OUTPUTS, -1)
    distance = (place - true.place).square().mean(-1)
    entropies = [
        cross_entropy(logits.movedim(-1, 1), labels, reduction="none")
        for logits, labels in ((colour, true.colour), (shape, true.shape))
    ]
    return distance + sum(entropies)


def in_order(read: Tensor, true: Properties) -> Tensor:
    """What was read (B, K, outputs), in the order of the objects for which it loses
    least.
    """
    B, K, _ = read.shape
    # Each answer against each object, (B, K, K).
    answers = read[:, :, None].expand(-1, -1, K, -1).flatten(0, 1)
    objects = Properties(
        *(
            values[:, None].expand(-1, K, *values.shape[1:]).flatten(0, 1)
            for values in true
        )
    )
    costs = losses(answers, objects).unflatten(0, (B, K)).detach().cpu()
    order = [torch.from_numpy(linear_sum_assignment(cost.T)[1]) for cost in costs]
    picked = torch.stack(order).to(read.device)[..., None]
    return read.gather(1, picked.expand(-1, -1, read.shape[-1]))


class Known(NamedTuple):
    """Inputs of networks with what is to be read of each.

    Args:
        inputs: poses (N, D), or images (N, C, H, W).
        true: the properties of the object of each pose (N,), or of the objects of each
            image (N, K).
    """

    inputs: Tensor
    true: Properties

    def at(self, rows: Tensor) -> "Known":
        """Some of them."""
        return Known(self.inputs[rows], self.true.at(rows))


@dataclass(frozen=True, kw_only=True)
class ReadOutSettings(TrainingOptions):
    """One preset.

    Attributes:
        updates: those of each reader.
        rates: the learning rates to choose from, on validation images.
        decays: the weight decays to choose from.
        validation: the number of validation images.
        hidden: numbers of the hidden layer of readers that have one.
    """

    updates: int = 1500
    rates: tuple[float, ...] = (1e-3, 3e-3)
    decays: tuple[float, ...] = (0.0, 0.1)
    validation: int = 500
    hidden: int = 64


def read(network: nn.Module, known: Known) -> Tensor:
    """What a network reads, in the order of the objects."""
    answers: Tensor = network(known.inputs)
    # Poses were matched by masks. Answers to whole images have no order.
    return in_order(answers, known.true) if answers.ndim == 3 else answers


def fit(
    network: nn.Module,
    known: Known,
    settings: ReadOutSettings,
    rate: float,
    decay: float,
) -> None:
    """Train a network to read, by AdamW with a rate that falls to 0."""
    optimizer = torch.optim.AdamW(network.parameters(), rate, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=settings.updates
    )
    network.train()
    for _ in range(settings.updates):
        rows = torch.randint(len(known.inputs), (settings.batch_size,))
        drawn = known.at(rows)
        loss = losses(read(network, drawn), drawn.true).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def read_all(network: nn.Module, known: Known) -> Tensor:
    """What a trained network reads, a few inputs at a time."""
    network.eval()
    rows = torch.arange(len(known.inputs)).split(_AT_ONCE)
    return torch.cat([read(network, known.at(some)) for some in rows])


def best_reader(
    make: Callable[[], nn.Module],
    known: Known,
    validation: Known,
    settings: ReadOutSettings,
) -> nn.Module:
    """The network of the learning rate and weight decay that lose least on validation
    images.
    """
    trials = []
    for rate, decay in product(settings.rates, settings.decays):
        network = make()
        fit(network, known, settings, rate, decay)
        loss = losses(read_all(network, validation), validation.true).mean().item()
        trials.append((loss, network))
    return min(trials, key=lambda trial: trial[0])[1]


def figures_of(answers: Tensor, true: Properties) -> dict[str, float]:
    """How much of the variance of places is read, and the percentages of colours and
    shapes that are right.
    """
    place, colour, shape = answers.split(_OUTPUTS, -1)
    target = true.place.flatten(0, -2)
    error = (place.flatten(0, -2) - target).square().sum()
    variance = (target - target.mean(0)).square().sum()
    return {
        PLACE: 100 * (1 - error / variance).item(),
        COLOUR: percent(colour.argmax(-1) == true.colour),
        SHAPE: percent(shape.argmax(-1) == true.shape),
    }


def poses_of(network: Any, images: Examples) -> Known:
    """The pose of the slot of each object, which are matched by the overlap of masks."""
    poses = []
    with evaluating(network) as device:
        for batch in images.to(device).batches(_AT_ONCE):
            prediction = network(batch.inputs)
            counts = contingency(batch.labels.long(), prediction.masks.argmax(1))
            union = counts.sum(2, True) + counts.sum(1, True) - counts
            # Objects begin at 1: 0 is the ground.
            overlap = (counts / union.clamp_min(1))[:, 1:].cpu()
            order = [linear_sum_assignment(-image)[1] for image in overlap]
            index = torch.from_numpy(np.stack(order)).to(device)[..., None]
            pose = prediction.capsules.pose
            poses.append(pose.gather(1, index.expand(-1, -1, pose.shape[2])))
    true = properties_of(images)
    return Known(
        torch.cat(poses).flatten(0, 1),
        Properties(*(values.flatten(0, 1) for values in true)),
    )


def pictures_of(images: Examples) -> Known:
    """Images in [0, 1], with the properties of their objects."""
    return Known(images.inputs.float() / 255, properties_of(images))


@register_recipe
class ReadOuts(Recipe[ReadOutSettings]):
    """Reads the properties of objects from poses that no label was used for, and
    trains networks of the same size for the same.
    """

    name: ClassVar = "read-outs"
    rows: ClassVar = dict.fromkeys(ROWS)
    lines: ClassVar = tuple(
        Line(row, measure_of(property, labelled), unit="%", higher_is_better=True)
        for row, labelled, property in product(ROWS, LABELLED, (PLACE, COLOUR, SHAPE))
    )
    settings: ClassVar = ReadOutSettings
    grows: ClassVar = True
    borrowed: ClassVar = {
        row: ("tetrominoes", source) for row, (source, _) in READ.items()
    }

    def begin(self, study: Study) -> DataSet:
        """The data, the same as that of the slots."""
        return data_of(study.settings.data)

    def train(self, study: Study, row: str, stop_at: float | None) -> Trained:
        """Opens the network whose poses are read; others are made for each number of
        labelled images.
        """
        if row in READ:
            return super().train(study, row, stop_at)
        return untrained(make_network(row), row)

    def measure(self, study: Study, row: str, shared: Any) -> Mapping[str, float]:
        """What is read of test images, by the number of labelled ones."""
        settings = study.settings
        torch.manual_seed(study.lab.seed)
        network: Any = study.trained[row].network
        make: Callable[[], nn.Module]
        known_of: Callable[[Examples], Known]
        if row in READ:
            hidden = settings.hidden if READ[row][1] == HIDDEN else 0
            make = partial(reader_of, network.dim, hidden)
            known_of = partial(poses_of, network)
        else:
            make = partial(make_network, row)
            known_of = pictures_of
        # The images for validation are those that slots were chosen by, too.
        validation = known_of(first_of(shared.validation, settings.validation))
        test = known_of(shared.test)
        figures: dict[str, float] = {}
        for labelled in LABELLED:
            known = known_of(at_random(shared.train, labelled))
            reader = best_reader(make, known, validation, settings)
            measured = figures_of(read_all(reader, test), test.true)
            figures |= {
                measure_of(name, labelled): value for name, value in measured.items()
            }
        return figures
