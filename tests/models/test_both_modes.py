"""After few steps of training a network knows in evaluation mode what it knows in
training mode.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from tests.small_networks import SMALLER, shipped
from torchcaps import create_model
from torchcaps.layers.pose_norm import PoseMagnitude, PoseNorm
from torchcaps.models import ClassifierNetwork
from torchcaps.models.registry import MODELS
from torchcaps.routing.batch_norm import EarlyBatchNorm2d

SMALLEST: dict[str, dict[str, Any]] = {
    "capsnet_on_backbone": {"widths": (4, 6), "blocks": 1},
    "capsnet_on_backbone_cnn": {"widths": (4, 6), "blocks": 1},
    "deepcaps": {
        "image_shape": (1, 16, 16),
        "channels": 16,
        "types": 4,
        "dims": (2, 4, 4),
        "pose_dim": 6,
    },
    "efficient_capsnet": {"channels": (8, 8, 8, 16)},
    "efficient_capsnet_multimnist": {"channels": (8, 8, 8, 16)},
    "scene_capsnet": {"image_shape": (1, 24, 24), "channels": (8, 8, 16)},
    "scene_cnn": {"image_shape": (1, 24, 24), "channels": (8, 8, 16)},
}
QUICK = ("byerly", "series_capsnet", "unet")
"""One of each way of normalising: a thorough run tries all."""

STEPS = 10
IMAGES = 64


def small(name: str) -> ClassifierNetwork | None:
    torch.manual_seed(0)
    arguments = {**SMALLER.get(name, {}), **SMALLEST.get(name, {})}
    network = create_model(name, **arguments)
    return network if isinstance(network, ClassifierNetwork) else None


def follows(network: nn.Module) -> bool:
    """Whether it has running values that follow its batches: a frozen backbone's do
    not.
    """
    kinds = (_NormBase, PoseNorm, PoseMagnitude)
    return any(isinstance(m, kinds) and m.training for m in network.modules())


def examples(network: ClassifierNetwork, classes: int) -> tuple[Tensor, Tensor]:
    """Patterns of the classes under noise, and their classes."""
    noise = network.examples(IMAGES)
    labels = torch.arange(IMAGES) % classes
    patterns = noise[:classes]
    return 0.6 * patterns[labels] + 0.4 * noise, labels


def activations(network: nn.Module, inputs: Tensor) -> Tensor:
    """Of the classes of each example, (B, E): means over its pixels, if it has many."""
    activation = network(inputs).activation
    return activation.flatten(2).mean(2) if activation.ndim > 2 else activation


def deviation(difference: Tensor) -> float:
    return difference.square().mean().sqrt().item()


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough)
        for name in shipped()
        # Those of recipes and examples that another test imported are not shipped.
        if MODELS[name].network.__module__.startswith("torchcaps")
    ],
)
def test_both_modes_agree(name: str) -> None:
    network = small(name)
    if network is None or not follows(network):
        return
    inputs, labels = examples(network, min(network.classes, 10))
    target = nn.functional.one_hot(labels, network.classes)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    for _ in range(STEPS):
        loss = (activations(network, inputs) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    network.eval()
    with torch.no_grad():
        evaluated = activations(network, inputs)
        network.train()
        for module in network.modules():
            if isinstance(module, _DropoutNd):
                module.eval()
        trained = activations(network, inputs)
    right = [(a.argmax(1) == labels).double().mean() for a in (evaluated, trained)]
    losses = [(a - target).square().mean() for a in (evaluated, trained)]
    assert abs(right[0] - right[1]) < 0.1
    torch.testing.assert_close(*losses, rtol=0.05, atol=0)
    # In shares of how much the outputs differ from example to example.
    assert deviation(evaluated - trained) < 0.6 * deviation(trained - trained.mean(0))


class TestEarlyBatchNorm2d:
    def test_the_first_batch_replaces_the_start(self) -> None:
        maps = 5 + 3 * torch.randn(8, 4, 6, 6)
        norm = EarlyBatchNorm2d(4, momentum=0.01)
        torch.testing.assert_close(norm(maps), nn.BatchNorm2d(4)(maps))
        torch.testing.assert_close(norm.running_mean, maps.mean((0, 2, 3)))
        torch.testing.assert_close(norm.running_var, maps.var((0, 2, 3)))

    def test_after_a_long_training_it_is_torchs(self) -> None:
        early = EarlyBatchNorm2d(4, momentum=0.01)
        late = nn.BatchNorm2d(4, momentum=0.01)
        state = early.state_dict()
        state["num_batches_tracked"] += 1000
        early.load_state_dict(state)
        for _ in range(3):
            maps = 5 + 3 * torch.randn(8, 4, 6, 6)
            torch.testing.assert_close(early(maps), late(maps))
        torch.testing.assert_close(early.running_mean, late.running_mean)
        torch.testing.assert_close(early.running_var, late.running_var)
        torch.testing.assert_close(early.eval()(maps), late.eval()(maps))

    def test_the_share_falls_to_the_momentum(self) -> None:
        norm = EarlyBatchNorm2d(1, momentum=0.1).double()
        mean = torch.zeros(1).double()
        for batch in range(1, 121):
            maps = torch.randn(2, 1, 2, 2).double()
            norm(maps)
            mean.lerp_(maps.mean(), max(0.1, 10 / (9 + batch)))
        torch.testing.assert_close(norm.running_mean, mean)
        assert norm.num_batches_tracked == 120

    def test_an_empty_batch_counts_for_nothing(self) -> None:
        norm = EarlyBatchNorm2d(2)
        norm(torch.randn(4, 2, 3, 3))
        before = {name: value.clone() for name, value in norm.state_dict().items()}
        empty = torch.zeros(0, 2, 3, 3, requires_grad=True)
        norm(empty).sum().backward()
        for name, value in norm.state_dict().items():
            assert torch.equal(value, before[name]), name

    def test_it_forgets_what_a_training_began_with(self) -> None:
        norm = EarlyBatchNorm2d(1, momentum=0.01)
        for step in range(200):
            norm(torch.randn(16, 1, 4, 4) + (10.0 if step < 100 else 0.0))
        assert norm.running_mean.abs() < 0.1

    def test_other_buffers_have_their_own_count(self) -> None:
        """The count was the module's, whatever buffers were in its place."""
        norm, fresh = EarlyBatchNorm2d(1, momentum=0.1), EarlyBatchNorm2d(1)
        weights = dict(norm.named_parameters())
        maps = 5 + torch.randn(8, 1, 6, 6)
        buffers = dict(fresh.named_buffers())
        for _ in range(120):
            functional_call(norm, weights | buffers, (torch.randn(8, 1, 6, 6),))
        norm(maps)
        torch.testing.assert_close(norm.running_mean, maps.mean((0, 2, 3)))
        fresh.reset_running_stats()
        functional_call(norm, weights | buffers, (maps,))
        torch.testing.assert_close(fresh.running_mean, maps.mean((0, 2, 3)))
        assert norm.num_batches_tracked == fresh.num_batches_tracked == 1

    def test_the_count_goes_where_the_buffers_go(self) -> None:
        norm = EarlyBatchNorm2d(1)
        for _ in range(3):
            norm(torch.randn(8, 1, 6, 6))
        assert copy.deepcopy(norm).to("meta").batches_followed == 3
        loaded = EarlyBatchNorm2d(1)
        loaded.load_state_dict(norm.state_dict())
        assert loaded.batches_followed == 3
        norm.reset_running_stats()
        assert norm.batches_followed == 0
