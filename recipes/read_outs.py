"""What a pose tells: the place, colour, size and shape of each object, read out of the
pose of its slot, measured from the pixels of its slot, and read by a network that was
trained for it (Dittadi et al. 2022).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from recipes.components import OTSU, Otsu
from recipes.kit.base import Line, Recipe, Study, register_recipe
from recipes.kit.lab import Trained, at_random, data_of, first_of, untrained
from recipes.kit.measures import percent
from recipes.kit.options import TrainingOptions
from recipes.published_objects import with_slots
from torchcaps.layers import PositionCode
from torchcaps_lab.data import Examples
from torchcaps_lab.evaluate import evaluating
from torchcaps_lab.kinds.objects.measures import contingency
from torchcaps_lab.kinds.objects.pictures import slot_of_pixels
from torchcaps_lab.kinds.objects.published import fixed_tetrominoes
from torchcaps_lab.tasks import create_task

PLACE, COLOUR, SIZE, SHAPE = "places", "colours", "sizes", "shapes"
NUMBER = "error of the number"

_VALUES = {PLACE: slice(0, 2), COLOUR: slice(2, 5), SIZE: slice(5, 6)}
"""Where they are among the values of :class:`Objects`."""

_OUTPUTS = (6, len(fixed_tetrominoes()))
"""Numbers that are read of an object: its values, and logits of its shape."""

TETROMINOES, SPRITES, SCENES = "tetrominoes", "multi-dsprites", "scenes-3d"
PROPERTIES = {
    TETROMINOES: (PLACE, COLOUR, SHAPE),  # all have one size
    SPRITES: (PLACE, COLOUR, SIZE),
    SCENES: (PLACE, COLOUR, SIZE),
}
"""What is read of objects, by the recipe that has their slots."""

MORE = {SPRITES: {"least": 6, "most": 7}, SCENES: {"least": 7, "most": 8}}
"""What tests with more objects than in training change in their data."""

SLOTS, QUERIES = "slots", "convolutional network with queries"

MEASURED, TRAINED = "measured", "trained for it"
READERS = {"by a linear map": False, "by one hidden layer": True}
"""Readers of poses, or of values and outlines of regions, and whether they have a hidden
layer.
"""

WAYS = {
    SLOTS: (MEASURED, *READERS),
    OTSU: (MEASURED, *READERS),
    QUERIES: (TRAINED,),
}
"""How objects are read, by what a row has."""

LABELLED = (50, 500, 3000)
_OUTLINE = 16
"""Pixels along the side of an outline."""

_AT_ONCE = 100


def row_of(source: str, network: str) -> str:
    """The name of a row."""
    return f"{source}: {network}"


def measure_of(property: str, how: str, labelled: int | None, test: str) -> str:
    """The name of a figure of a test."""
    images = "" if labelled is None else f", {labelled} labelled images"
    return f"{property} {how}{images}{test}"


def tests_of(source: str) -> dict[str, Mapping[str, Any]]:
    """What the data of each test change, by the end of the names of its figures."""
    more = {", more objects": MORE[source]} if source in MORE else {}
    return {"": {}, **more}


def _lines() -> list[Line]:
    lines = []
    for source, network in product(PROPERTIES, WAYS):
        row = row_of(source, network)
        for how in WAYS[network]:
            labels = (None,) if how == MEASURED else LABELLED
            for labelled, test in product(labels, tests_of(source)):
                for property in PROPERTIES[source]:
                    # The shape of pixels has no name without labels.
                    if how != MEASURED or property != SHAPE:
                        name = measure_of(property, how, labelled, test)
                        lines.append(Line(row, name, higher_is_better=True))
                # A reader of one pose does not count.
                if how not in READERS:
                    name = measure_of(NUMBER, how, labelled, test)
                    lines.append(Line(row, name, unit=""))
    return lines


class Objects(NamedTuple):
    """What is known of objects.

    Args:
        values: the mean row and column of their pixels, from -1 to 1 at the edges of the
            picture, their mean colour in [0, 1], and the root of their share of the
            pixels, (..., 6).
        shape: int64 (...); -1 where it has no name.
        present: bool (...). Images with fewer objects than others have some that are
            not.
    """

    values: Tensor
    shape: Tensor
    present: Tensor

    def at(self, index: Any) -> Self:
        """Those of some."""
        return type(self)(*(values[index] for values in self))


def objects_of(images: Tensor, masks: Tensor) -> Objects:
    """The objects of images (N, C, H, W) in [0, 1], whose pixels are those of masks (N,
    K, H, W).
    """
    pixels = masks.sum((2, 3))
    weight = masks / pixels.clamp_min(1)[..., None, None]
    down, across = (torch.linspace(-1, 1, size) for size in masks.shape[2:])
    values = [
        weight.sum(3) @ down[:, None],
        weight.sum(2) @ across[:, None],
        torch.einsum("nkhw,nchw->nkc", weight, images),
        masks.mean((2, 3))[..., None].sqrt(),
    ]
    unnamed = torch.full(pixels.shape, -1)
    return Objects(torch.cat(values, -1), unnamed, pixels > 0)


def outlines_of(masks: Tensor) -> Tensor:
    """Masks (N, K, H, W) in a square whose corner is that of their pixels, (N, K, S S)."""
    rows, columns = (masks.amax(axis).argmax(2) for axis in (3, 2))
    padded = nn.functional.pad(masks, (0, _OUTLINE, 0, _OUTLINE))
    image, number = (torch.arange(size) for size in masks.shape[:2])
    return padded[
        image[:, None, None, None],
        number[:, None, None],
        rows[..., None, None] + torch.arange(_OUTLINE)[:, None],
        columns[..., None, None] + torch.arange(_OUTLINE),
    ].flatten(2)


def shapes_of(masks: Tensor) -> Tensor:
    """Which of the 17 shapes masks of tetrominoes (N, K, H, W) have, int64 (N, K)."""
    known = torch.cat(
        [outlines_of(shape[None, None].float()) for shape in fixed_tetrominoes()], 1
    )
    return (outlines_of(masks)[:, :, None] == known).all(3).byte().argmax(2)


class Queries(nn.Module):
    """A convolutional network that reads the objects of an image, in any order: a learned
    query for each object attends to the places of its last map, in one layer of the
    decoder of DETR (Carion et al. 2020).

    Args:
        queries: their number Q, the most objects that it reads.
        strides: those of the convolutions of 5 x 5.
    """

    def __init__(self, queries: int, strides: Sequence[int]) -> None:
        super().__init__()
        channels = 32
        layers: list[nn.Module] = []
        before = 3
        for stride in strides:
            layers += [nn.Conv2d(before, channels, 5, stride, 2), nn.ReLU()]
            before = channels
        self.features = nn.Sequential(*layers, PositionCode(channels))
        self.queries = nn.Parameter(torch.randn(queries, channels))
        self.decoder = nn.TransformerDecoderLayer(
            channels, 4, 2 * channels, dropout=0.0, batch_first=True
        )
        self.read = nn.Linear(channels, sum(_OUTPUTS) + 1)

    def forward(self, images: Tensor) -> Tensor:
        """What is read of each object, last the logit that there is one, (B, Q, outputs +
        1), of images (B, C, H, W).
        """
        rows = self.features(images).flatten(2).mT
        return self.read(self.decoder(self.queries.expand(len(images), -1, -1), rows))


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


def losses(read: Tensor, true: Objects) -> Tensor:
    """The squared distance of the values, and the cross-entropy of the shape if it
    has a name, of what was read (..., outputs).
    """
    values, logits = read.split(_OUTPUTS, -1)
    distance = (values - true.values).square().sum(-1)
    entropy = cross_entropy(
        logits.movedim(-1, 1), true.shape, reduction="none", ignore_index=-1
    )
    return distance + entropy


def in_order(read: Tensor, true: Objects) -> Tensor:
    """What was read (B, Q, outputs + 1), in the order of the objects (B, K) for which it
    loses least, and then the rest. There are no more objects than queries.
    """
    Q = read.shape[1]
    K = true.present.shape[1]
    # Each answer against each object, (B, K, Q).
    answers = read[:, None].expand(-1, K, -1, -1)
    objects = Objects(
        *(
            values[:, :, None].expand(-1, -1, Q, *values.shape[2:]).flatten(1, 2)
            for values in true
        )
    )
    cost = losses(answers[..., :-1].flatten(1, 2), objects).unflatten(1, (K, Q))
    # An object that is not there may have any of them.
    costs = (cost + softplus(-answers[..., -1])) * true.present[..., None]
    order = []
    for image in costs.detach().cpu():
        taken = linear_sum_assignment(image)[1]
        order.append([*taken, *np.setdiff1d(np.arange(Q), taken)])
    index = torch.tensor(np.array(order), device=read.device)[..., None]
    return read.gather(1, index.expand_as(read))


def loss_of(answers: Tensor, true: Objects) -> Tensor:
    """What a reader loses with what it reads of poses (M, outputs), or of images (B, Q,
    outputs + 1), where it also says which of its answers are objects.
    """
    if answers.ndim == 2:
        return losses(answers, true).mean()
    answers = in_order(answers, true)
    K = true.present.shape[1]
    of_objects = losses(answers[:, :K, :-1], true) * true.present
    there = nn.functional.pad(true.present, (0, answers.shape[1] - K))
    logits = answers[..., -1]
    of_presence = softplus(torch.where(there, -logits, logits))
    return (of_objects.sum() + of_presence.sum()) / len(answers)


class Known(NamedTuple):
    """Inputs of readers with what is to be read of each.

    Args:
        inputs: poses (M, D), or images (N, C, H, W).
        true: the object of each pose (M,), or the objects of each image (N, K).
    """

    inputs: Tensor
    true: Objects

    def at(self, rows: Any) -> Self:
        """Some of them."""
        return self._replace(inputs=self.inputs[rows], true=self.true.at(rows))

    def scaled(self, mean: Tensor, deviation: Tensor) -> Self:
        """The same with values in units of a deviation from a mean."""
        values = (self.true.values - mean) / deviation
        return self._replace(true=self.true._replace(values=values))


class Slots(NamedTuple):
    """What slots say of the objects of images, matched by the overlap of their pixels.

    Args:
        pose: that of the slot of each object, or the values and outline of a region that
            has none, (N, K, D).
        measured: the values of the pixels of this slot.
        number: how many slots draw an object, (N,).
        true: the objects, (N, K).
    """

    pose: Tensor
    measured: Objects
    number: Tensor
    true: Objects

    def of_images(self, count: int) -> Known:
        """The poses of the objects of the first images."""
        true = self.true.at(slice(count))
        return Known(self.pose[:count][true.present], true.at(true.present))


def true_objects(source: str, images: Examples) -> Objects:
    """The objects of images, (N, K)."""
    parts = []
    for start in range(0, len(images), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        # Objects begin at 1: 0 is the ground.
        numbers = torch.arange(1, len(images.classes))[:, None, None]
        masks = (images.labels[some, None] == numbers).float()
        objects = objects_of(images.inputs[some] / 255, masks)
        if SHAPE in PROPERTIES[source]:
            objects = objects._replace(shape=shapes_of(masks))
        parts.append(objects)
    return _joined(parts)


def _joined(parts: Sequence[Objects]) -> Objects:
    return Objects(*map(torch.cat, zip(*parts, strict=True)))


def slots_of(source: str, network: Any, images: Examples) -> Slots:
    """What the slots of a network, or regions, say of images."""
    network = with_slots(network, len(images.classes))
    poses, measured, numbers = [], [], []
    with evaluating(network) as device:
        for batch in images.to(device).batches(_AT_ONCE):
            prediction = network(batch.inputs)
            slots = slot_of_pixels(prediction)
            matched, present = _matched(batch.labels, slots, len(images.classes))
            masks = slots[:, None] == matched[..., None, None]
            objects = objects_of(batch.pictures.cpu(), masks.float().cpu())
            measured.append(objects._replace(present=present))
            answers = create_task("objects").answers(prediction, images.classes)
            # The first of the classes is the ground.
            numbers += [len(answer.classes) - 1 for answer in answers]
            if prediction.capsules is None:
                pose = torch.cat([objects.values, outlines_of(masks.float().cpu())], 2)
            else:
                pose = prediction.capsules.pose
                index = matched[..., None].expand(-1, -1, pose.shape[2])
                pose = pose.gather(1, index).cpu()
            poses.append(pose)
    true = true_objects(source, images)
    number = torch.tensor(numbers)
    return Slots(torch.cat(poses), _joined(measured), number, true)


def _matched(labels: Tensor, slots: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The slot of each object, (B, K), and whether they share pixels (B, H, W). The
    ground is no object, and the slot with the most pixels is that of the ground.
    """
    # One more image, so that every batch has so many objects and slots.
    all_of_them = torch.arange(count, device=labels.device)
    all_of_them = all_of_them.repeat(labels[0].numel())[: labels[0].numel()]
    last = all_of_them.view_as(labels[:1])
    counts = contingency(torch.cat([labels, last]), torch.cat([slots, last]))[:-1]
    ground = counts.sum(1, True).argmax(2, True).expand(-1, count, -1)
    union = counts.sum(2, True) + counts.sum(1, True) - counts
    overlap = (counts / union.clamp_min(1)).scatter(2, ground, 0)[:, 1:].cpu()
    order = [linear_sum_assignment(-image)[1] for image in overlap]
    matched = torch.from_numpy(np.stack(order))
    return matched.to(labels.device), overlap.gather(2, matched[..., None])[..., 0] > 0


@dataclass(frozen=True, kw_only=True)
class ReadOutSettings(TrainingOptions):
    """One preset.

    Attributes:
        sets: the data of each recipe whose slots are read.
        updates: those of a reader of poses.
        rates: its learning rates to choose from, on validation images.
        validation: the number of validation images.
        hidden: numbers of the hidden layer of a reader that has one.
        network_updates: updates of a network that reads images.
        network_rates: its learning rates to choose from.
        strides: those of its convolutions, by recipe.
    """

    sets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    updates: int = 600
    rates: tuple[float, ...] = (1e-3, 3e-3)
    validation: int = 500
    hidden: int = 64
    network_updates: int = 4_000
    network_rates: tuple[float, ...] = (1e-3,)
    strides: Mapping[str, Sequence[int]] = field(default_factory=dict)


def fit(
    network: nn.Module, known: Known, updates: int, batch_size: int, rate: float
) -> None:
    """Train a network to read, by Adam with a rate that falls to 0."""
    optimizer = torch.optim.Adam(network.parameters(), rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=updates)
    network.train()
    for _ in range(updates):
        drawn = known.at(torch.randint(len(known.inputs), (batch_size,)))
        loss = loss_of(network(drawn.inputs), drawn.true)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def read(network: nn.Module, inputs: Tensor) -> Tensor:
    """What a trained network reads, a few inputs at a time."""
    network.eval()
    return torch.cat([network(some) for some in inputs.split(_AT_ONCE)])


def best_reader(
    make: Callable[[], nn.Module],
    known: Known,
    validation: Known,
    rates: Sequence[float],
    updates: int,
    batch_size: int,
) -> nn.Module:
    """The network of the learning rate that loses least on validation images."""
    trials = []
    for rate in rates:
        network = make()
        fit(network, known, updates, batch_size, rate)
        answers = read(network, validation.inputs)
        trials.append((loss_of(answers, validation.true).item(), network))
    return min(trials, key=lambda trial: trial[0])[1]


def figures_of(
    values: Tensor, logits: Tensor | None, true: Objects
) -> dict[str, float]:
    """The share of the variance of values of objects (M, 6) that is read, and of shapes
    that are right, in percent.
    """
    figures = {}
    for name, columns in _VALUES.items():
        target = true.values[:, columns]
        error = (values[:, columns] - target).square().sum()
        variance = (target - target.mean(0)).square().sum()
        figures[name] = 100 * (1 - error / variance).item()
    if logits is not None:
        figures[SHAPE] = percent(logits.argmax(-1) == true.shape)
    return figures


@register_recipe
class ReadOuts(Recipe[ReadOutSettings]):
    """Reads the properties of objects from slots that no label was used for, and trains
    networks of about the same size for the same.
    """

    name: ClassVar = "read-outs"
    rows: ClassVar = {row_of(*pair): None for pair in product(PROPERTIES, WAYS)}
    lines: ClassVar = tuple(_lines())
    settings: ClassVar = ReadOutSettings
    grows: ClassVar = True
    borrowed: ClassVar = {
        row_of(source, SLOTS): (source, "slots") for source in PROPERTIES
    }

    def options(self, settings: ReadOutSettings, row: str) -> dict[str, Any]:
        """Options of a row, with the data that it reads."""
        data = settings.sets[row.split(": ")[0]]
        return super().options(settings, row) | {"data": data}

    def train(self, study: Study, row: str, stop_at: float | None) -> Trained:
        """Opens the network whose slots are read; a threshold needs no training, and
        networks that read images have one for each number of labelled ones.
        """
        if row in self.borrowed:
            return super().train(study, row, stop_at)
        source, network = row.split(": ")
        images = _test_of(study.settings, source, {})
        if network == OTSU:
            return untrained(Otsu(images.image_shape, len(images.classes)), row)
        queries: Any = _queries(study.settings, source)
        return untrained(queries, row)

    def measure(self, study: Study, row: str, shared: Any) -> Mapping[str, float]:
        """What is read of the objects of test images."""
        torch.manual_seed(study.lab.seed)
        source, network = row.split(": ")
        if network == QUERIES:
            return _of_images(study.settings, source)
        return _of_slots(study.settings, source, study.trained[row].network)


def _test_of(
    settings: ReadOutSettings, source: str, changes: Mapping[str, Any]
) -> Examples:
    return data_of({**settings.sets[source], **changes}).test


def _labelled_of(settings: ReadOutSettings, source: str) -> tuple[Examples, Examples]:
    """Images to train readers on, and others to choose one by."""
    data = data_of(settings.sets[source])
    return (
        at_random(data.train, max(LABELLED)),
        first_of(data.validation, settings.validation),
    )


def _queries(settings: ReadOutSettings, source: str) -> Queries:
    """A network with as many queries as any image of a test has objects."""
    tests = [
        _test_of(settings, source, changes) for changes in tests_of(source).values()
    ]
    most = max(len(images.classes) - 1 for images in tests)
    return Queries(most, settings.strides[source])


def _scale_of(true: Objects) -> tuple[Tensor, Tensor]:
    """Mean and deviation of the values of the objects."""
    values = true.values[true.present]
    # Tetrominoes have one size.
    return values.mean(0), values.std(0).clamp_min(1e-3)


def _of_slots(settings: ReadOutSettings, source: str, network: Any) -> dict[str, float]:
    """What is measured from the pixels of slots, and what readers read of poses."""
    tests = {
        test: slots_of(source, network, _test_of(settings, source, changes))
        for test, changes in tests_of(source).items()
    }
    figures = {}
    for test, slots in tests.items():
        there = slots.true.present
        true = slots.true.at(there)
        measured = slots.measured.at(there)
        # The mean for an object that was missed.
        values = measured.values.where(measured.present[:, None], true.values.mean(0))
        off = (slots.number - there.sum(1)).abs().float().mean().item()
        figures[measure_of(NUMBER, MEASURED, None, test)] = off
        for name, figure in figures_of(values, None, true).items():
            figures[measure_of(name, MEASURED, None, test)] = figure
    labelled, validation = (
        slots_of(source, network, images) for images in _labelled_of(settings, source)
    )
    for (how, hidden), count in product(READERS.items(), LABELLED):
        known = labelled.of_images(count)
        scale = _scale_of(known.true)
        reader = best_reader(
            partial(reader_of, known.inputs.shape[1], hidden * settings.hidden),
            known.scaled(*scale),
            validation.of_images(settings.validation).scaled(*scale),
            settings.rates,
            settings.updates,
            settings.batch_size,
        )
        for test, slots in tests.items():
            tested = slots.of_images(len(slots.pose)).scaled(*scale)
            values, logits = read(reader, tested.inputs).split(_OUTPUTS, -1)
            for name, figure in figures_of(values, logits, tested.true).items():
                figures[measure_of(name, how, count, test)] = figure
    return _lined(source, figures)


def _of_images(settings: ReadOutSettings, source: str) -> dict[str, float]:
    """What networks read that were trained on labelled images."""
    known, validation = (
        _pictures(source, images) for images in _labelled_of(settings, source)
    )
    tests = {
        test: _pictures(source, _test_of(settings, source, changes))
        for test, changes in tests_of(source).items()
    }
    figures = {}
    for count in LABELLED:
        some = known.at(slice(count))
        scale = _scale_of(some.true)
        reader = best_reader(
            partial(_queries, settings, source),
            some.scaled(*scale),
            validation.scaled(*scale),
            settings.network_rates,
            settings.network_updates,
            settings.batch_size,
        )
        for test, images in tests.items():
            true = images.scaled(*scale).true
            answers = read(reader, images.inputs)
            number = (answers[..., -1] > 0).sum(1)
            off = (number - true.present.sum(1)).abs().float().mean().item()
            figures[measure_of(NUMBER, TRAINED, count, test)] = off
            ordered = in_order(answers, true)[:, : true.present.shape[1], :-1]
            values, logits = ordered[true.present].split(_OUTPUTS, -1)
            objects = true.at(true.present)
            for name, figure in figures_of(values, logits, objects).items():
                figures[measure_of(name, TRAINED, count, test)] = figure
    return _lined(source, figures)


def _pictures(source: str, images: Examples) -> Known:
    return Known(images.inputs / 255, true_objects(source, images))


def _lined(source: str, figures: Mapping[str, float]) -> dict[str, float]:
    """The figures of what the objects of a recipe have."""
    names = (*PROPERTIES[source], NUMBER)
    return {name: value for name, value in figures.items() if name.startswith(names)}
