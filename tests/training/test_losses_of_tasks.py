"""Options of tasks, losses and networks with each other: any two meet in a step of a
training.
"""

import copy
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import torchcaps as tc
from torchcaps import create_model
from torchcaps.losses import ActivationLoss, NegativeLogLikelihood, ReconstructionLoss
from torchcaps.models import ClassifierNetwork
from torchcaps.testing.options import Row, check_together, options_of
from torchcaps_lab.data import AnnotatedSet, Examples, MaskSet, Preprocess
from torchcaps_lab.kinds.objects.sets import ObjectSet
from torchcaps_lab.tasks import Criteria, list_tasks
from torchcaps_lab.tasks.base import TASKS, Task
from torchcaps_lab.training.options import Optimisation
from torchcaps_lab.training.speed import predict

CLASSES = ("a", "b", "c")
COUNT = 6
LOSSES: tuple[type[ActivationLoss], ...] = (
    tc.MarginLoss,
    tc.LengthCrossEntropy,
    NegativeLogLikelihood,
    tc.SpreadLoss,
)


def pixels(side: int, channels: int = 1) -> Tensor:
    return torch.randint(0, 256, (COUNT, channels, side, side), dtype=torch.uint8)


def shown() -> Tensor:
    return torch.tensor([[1, 0, 0], [0, 1, 1], [1, 1, 0]] * 2, dtype=torch.bool)


def labels() -> Examples:
    return Examples(pixels(8), torch.arange(COUNT) % 3, CLASSES)


def several() -> Examples:
    return Examples(pixels(8), shown(), CLASSES)


def boxes() -> Examples:
    things = torch.tensor([[0, 0], [1, 2], [0, 1]] * 2)
    single = [[2, 2, 9, 9], [0, 0, 0, 0]]
    pair = [[1, 3, 8, 12], [9, 9, 20, 20]]
    corners = torch.tensor([single, pair, pair] * 2)
    return AnnotatedSet(pixels(24), shown(), CLASSES, things=things, boxes=corners)


def masks() -> Examples:
    labels = torch.randint(0, 3, (COUNT, 8, 8), dtype=torch.uint8)
    labels[:, 0] = 255
    return MaskSet(pixels(8), labels, CLASSES)


def pictures() -> Examples:
    nothing = torch.zeros(COUNT, 8, 8, dtype=torch.uint8)
    return ObjectSet(pixels(8, 3), nothing, CLASSES)


class Case(NamedTuple):
    """Data for a task, and a small network with some options of its own."""

    examples: Callable[[], Examples]
    network: str
    arguments: Mapping[str, Any]
    options: Mapping[str, list[Any]] = {}


CAPSULES = Case(
    labels,
    "capsnet_digits",
    {"channels": 4, "types": 2, "pose_dim": 4},
    {
        "decoder_hidden": [(6,), None],
        "decoder_input": ["masked", "pose"],
        "pose_noise": [0.0, 0.1],
    },
)
CASES = {
    "classification": CAPSULES,
    "several_labels": CAPSULES._replace(examples=several),
    "detection": Case(
        boxes,
        "scene_capsnet",
        {"image_shape": (1, 24, 24), "channels": (4, 4, 8)},
        {"boxes": [True, False]},
    ),
    "segmentation": Case(
        masks,
        "segcaps",
        {"image_shape": (1, 8, 8), "channels": (4,), "types": (2, 3)},
        {"decoder": [(), (4,)]},
    ),
    "objects": Case(
        pictures,
        "slot_autoencoder",
        {"image_shape": (3, 8, 8), "channels": 4, "dim": 6},
    ),
}


def of_names(prefix: str, row: Row) -> Row:
    """The options whose names have this prefix, without it."""
    start = f"{prefix}."
    return {k.removeprefix(start): row[k] for k in row if k.startswith(start)}


@cache
def examples_for(name: str) -> Examples:
    torch.manual_seed(0)
    return CASES[name].examples()


@cache
def network_for(name: str, options: tuple[tuple[str, Any], ...]) -> ClassifierNetwork:
    torch.manual_seed(0)
    case = CASES[name]
    arguments = {**case.arguments, **dict(options)}
    network = create_model(case.network, classes=len(CLASSES), **arguments)
    assert isinstance(network, ClassifierNetwork)
    return network


class Step:
    """What a row of options describes: a task, its losses, and a network."""

    def __init__(self, name: str, kind: type[ActivationLoss], row: Row) -> None:
        self.task: Task = TASKS[name](**of_names("task", row))
        self.examples = examples_for(name)
        self.task.check(self.examples)
        loss = kind(**of_names("loss", row))
        optimizer = torch.optim.SGD
        weights = row.get("class_weights")
        how = Optimisation(loss=loss, optimizer=optimizer, class_weights=weights)
        how.weigh(self.examples)
        if self.examples.labels.ndim < 3:
            loss(torch.rand(COUNT, len(CLASSES)), self.examples.labels)
        self.criteria = Criteria(loss, ReconstructionLoss())
        self.network = network_for(name, tuple(of_names("network", row).items()))

    def loss(self, places: list[int], dtype: torch.dtype) -> Tensor:
        torch.manual_seed(0)
        drawn = self.examples.__getitems__(places)
        batch = drawn.prepared(
            lambda images: Preprocess().train(images, drawn.indices, 0, 0)
        )
        batch = batch._replace(inputs=batch.inputs.to(dtype))

        def forward(images: Tensor, target: Tensor) -> Any:
            return predict(self.network, images, target)

        prediction, parts = self.task.loss(self.network, forward, batch, self.criteria)
        for measure in self.task.measure(prediction, batch).values():
            assert not measure.isinf().any()
        return torch.stack(list(parts.values())).sum()


@pytest.mark.parametrize(
    "loss",
    [
        LOSSES[0],
        *(pytest.param(loss, marks=pytest.mark.thorough) for loss in LOSSES[1:]),
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("classification", "detection")
        else pytest.param(name, marks=pytest.mark.thorough)
        for name in CASES
    ],
)
def test_options_of_a_step_with_each_other(
    name: str, loss: type[ActivationLoss]
) -> None:
    """A step has finite gradients; the order of a batch changes no loss."""

    def check(row: Row) -> None:
        step = Step(name, loss, row)
        step.network = copy.deepcopy(step.network)
        step.loss([*range(COUNT)], torch.float32).backward()
        gradients = [w.grad for w in step.network.parameters() if w.grad is not None]
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert any(gradient.any() for gradient in gradients)
        step.network.eval().double()
        orders = [*range(COUNT)], [4, 2, 0, 5, 1, 3]
        with torch.no_grad():
            losses = [step.loss(order, torch.float64) for order in orders]
        torch.testing.assert_close(*losses)

    options: dict[str, list[Any]] = {
        "loss": [loss],
        "class_weights": [None, "balanced"],
    }
    options |= {f"task.{k}": v for k, v in options_of(TASKS[name]).items()}
    options |= {f"loss.{k}": v for k, v in options_of(loss).items()}
    options |= {f"network.{k}": v for k, v in CASES[name].options.items()}
    check_together(options, partial(Step, name, loss), check)


def test_every_task_of_the_package_is_tried() -> None:
    ours = [
        name
        for name in list_tasks()
        if TASKS[name].__module__.startswith("torchcaps_lab")
    ]
    assert {*ours} == {*CASES}
