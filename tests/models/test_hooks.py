"""No module of a network or layer is gone round: the hooks of each run. Norms have both
parameters or neither.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import torchcaps as tc
from tests.small_networks import SMALLER, one_of_each, shipped
from torchcaps import create_model, create_routing, list_routings
from torchcaps.layers import SlotCaps

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList)
"""Modules that hold others and are never called."""


def modules_that_ran(module: nn.Module, *inputs: object) -> set[str]:
    ran: set[str] = set()
    handles = [
        part.register_forward_hook(lambda *_, name=name: ran.add(name))
        for name, part in module.named_modules()
    ]
    module(*inputs)
    for handle in handles:
        handle.remove()
    return ran


def modules_to_run(module: nn.Module) -> set[str]:
    return {
        name
        for name, part in module.named_modules()
        if not isinstance(part, CONTAINERS)
    }


def small_network(name: str) -> nn.Module:
    torch.manual_seed(0)
    return create_model(name, **SMALLER.get(name, {}))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", one_of_each(shipped()))
def test_every_module_of_a_network_is_called(name: str, training: bool) -> None:
    network = small_network(name).train(training)
    assert modules_that_ran(network, network.examples(3)) == modules_to_run(network)


ROUTINGS: dict[str, dict[str, Any]] = {
    "attention": {"readout": True},
    "dynamic": {"squash": "learned", "evidence": True},
    "kmeans": {"squash": "learned", "evidence": True},
    "euclidean": {"evidence": True},
    "em": {"evidence": True},
    "slots": {"bias": True},
}
"""Settings by which a routing has all the modules that it can have."""


@pytest.mark.parametrize("name", list_routings())
def test_every_module_of_a_routing_is_called(name: str) -> None:
    layer = tc.CapsLinear(
        5, 3, (2, 4), (2, 4), routing=create_routing(name, **ROUTINGS.get(name, {}))
    )
    layer.train(layer.routing.trainable)
    children = tc.Capsules(torch.randn(3, 5, 2, 4), torch.rand(3, 5))
    assert modules_that_ran(layer, children) == modules_to_run(layer)


def test_every_module_of_slots_and_of_a_head_is_called() -> None:
    words = torch.randn(2, 7, 32)
    for layer in (SlotCaps(features=32, slots=9, intents=3), tc.CapsHead(4)):
        layer(words)  # lazy modules are there
        unused = {
            "slot_caps.routing"
        }  # has no parameters: the steps of slots are the layer's own
        assert modules_that_ran(layer, words) == modules_to_run(layer) - unused


def test_a_hook_of_a_depthwise_convolution_may_change_its_output() -> None:
    network = small_network("efficient_capsnet").eval()
    images = network.examples(2)
    before = network(images).activation
    with network.primary_caps.conv.register_forward_hook(
        lambda module, inputs, output: 0 * output
    ):
        after = network(images).activation
    assert not torch.allclose(before, after)


def test_a_hook_of_slots_may_change_what_is_drawn() -> None:
    network = small_network("slot_autoencoder").eval()
    images = network.examples(2)
    with network.slots.register_forward_hook(
        lambda module, inputs, output: (0 * output.pose, output.activation)
    ):
        hooked = network(images)
    nothing = torch.zeros(2, network.classes, network.dim)
    expected = network.drawn(nothing, network.ground_colour(images)).reconstruction
    torch.testing.assert_close(hooked.reconstruction, expected)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", ["slots", "slot_mixture"])
def test_a_hook_of_a_projection_of_slots_changes_all_votes(
    name: str, bias: bool
) -> None:
    """Doubling what a linear map gives is doubling its weight and its bias."""
    more = {"bias": bias} if name == "slots" else {}
    slots = tc.Slots(3, dim=4, features=6, routing=create_routing(name, **more))
    projection: Any = slots.routing.get_submodule(
        "to_key_value" if name == "slots" else "to_value"
    )
    features = torch.randn(2, 5, 6)
    with projection.register_forward_hook(lambda module, inputs, output: 2 * output):
        hooked = slots(features)
    with torch.no_grad():
        for parameter in projection.parameters():
            parameter.mul_(2)
    torch.testing.assert_close(hooked, slots(features))


@pytest.mark.parametrize("groups", [6, 1])
@pytest.mark.parametrize("extent", [5, 6, 7])
def test_a_convolution_to_one_place_is_that_of_torch(extent: int, groups: int) -> None:
    """Kernel 5 and stride 2: one place from 5 and 6 pixels, two from 7."""
    primary = tc.PrimaryCaps(
        6, types=2, dim=3, kernel_size=5, stride=2, groups=groups
    ).double()
    maps = torch.rand(2, 6, extent, extent, dtype=torch.float64)
    expected = nn.functional.conv2d(
        maps, primary.conv.weight, primary.conv.bias, 2, groups=groups
    )
    torch.testing.assert_close(primary.conv(maps), expected)


class Norms(TorchFunctionMode):
    """Notes for each normalisation that runs whether it has a weight and whether it has
    a bias.
    """

    KINDS = ("batch_norm", "group_norm", "instance_norm", "layer_norm")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, bool, bool]] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if (
            name in self.KINDS
            and getattr(function, "__module__", "") == "torch.nn.functional"
        ):
            place = 2 if name in ("group_norm", "layer_norm") else 3
            padded = (*args, *[None] * 5)
            weight = kwargs.get("weight", padded[place])
            bias = kwargs.get("bias", padded[place + 1])
            self.seen.append((name, weight is not None, bias is not None))
        return function(*args, **kwargs)


def norms_of(module: nn.Module) -> Iterator[tuple[str, Tensor | None, Tensor | None]]:
    kinds = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
    for name, part in module.named_modules():
        if isinstance(part, kinds):
            yield name, part.weight, part.bias


@pytest.mark.parametrize("name", one_of_each(shipped()))
def test_norms_have_weight_and_bias_or_neither(name: str) -> None:
    """CUDA's backward pass of a batch normalisation with one of them fails: tensor does
    not have a device.
    """
    network = small_network(name)
    assert [
        place
        for place, weight, bias in norms_of(network)
        if (weight is None) != (bias is None)
    ] == []
    with Norms() as norms:
        network(network.examples(3))
    assert [kind for kind, weight, bias in norms.seen if weight != bias] == []


def test_a_norm_without_a_weight_is_noticed() -> None:
    norm = nn.BatchNorm2d(2)
    norm.weight = None
    with Norms() as norms:
        norm(torch.rand(3, 2, 4, 4))
    assert norms.seen == [("batch_norm", False, True)]
    assert [
        name
        for name, weight, bias in norms_of(norm)
        if (weight is None) != (bias is None)
    ] == [""]
