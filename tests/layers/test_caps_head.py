"""Capsules on the features of any network: maps, tokens and vectors of any size,
without arithmetic.
"""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

import torchcaps as tc


@pytest.mark.parametrize("shape", [(3, 20, 5, 7), (3, 11, 20), (3, 20)])
def test_features_of_any_shape(shape: tuple[int, ...]) -> None:
    head = tc.CapsHead(4, types=6, dim=5, pose_dim=8)
    features = torch.randn(shape, requires_grad=True)
    parents = head(features)
    assert parents.pose.shape == (3, 4, 8)
    assert parents.activation.shape == (3, 4)
    parents.activation.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in head.parameters())
    assert features.grad is not None


def test_maps_are_tokens() -> None:
    head = tc.CapsHead(4)
    maps = torch.randn(2, 20, 3, 3)
    assert torch.allclose(head(maps).pose, head(maps.flatten(2).mT).pose, atol=1e-6)


def test_as_the_last_layer_of_a_network_it_learns() -> None:
    torch.manual_seed(0)
    images = torch.randn(64, 1, 6, 6)
    target = (images[:, 0, :3].mean((1, 2)) > images[:, 0, 3:].mean((1, 2))).long()
    network = nn.Sequential(nn.Flatten(), tc.CapsHead(2))
    network(images)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(30):
        loss = tc.margin_loss(network(images).activation, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (network(images).activation.argmax(1) == target).all()


def test_weights_are_loaded_before_the_first_batch() -> None:
    trained = tc.CapsHead(3, routing=tc.create_routing("em"))
    features = torch.randn(2, 9)
    expected = trained(features)
    again = tc.CapsHead(3, routing=tc.create_routing("em"))
    again.load_state_dict(copy.deepcopy(trained.state_dict()))
    assert torch.equal(again(features).pose, expected.pose)
    assert trained.route(features).assignment.shape == (2, 32, 3)
    moved = tc.CapsHead(3, routing=tc.create_routing("em"))
    moved.class_caps.load_state_dict(trained.class_caps.state_dict())
    moved(torch.randn(2, 7))
    assert torch.equal(moved.class_caps.weight, trained.class_caps.weight)


def test_weights_that_do_not_fit_leave_a_head_that_starts() -> None:
    trained, head = tc.CapsHead(3), tc.CapsHead(4)
    trained(torch.randn(2, 9))
    with pytest.raises(RuntimeError, match="size mismatch"):
        head.load_state_dict(trained.state_dict(), strict=False)
    assert (head(torch.randn(2, 9)).activation > 0).all()


def test_what_does_not_fit_is_said() -> None:
    head = tc.CapsHead(3)
    with pytest.raises(TypeError, match="features must be a tensor, got list"):
        head([1.0])
    with pytest.raises(ValueError, match="features must be maps"):
        head(torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="features must have 2 channels or more"):
        head(torch.zeros(2, 1, 5, 5))
    with pytest.raises(ValueError, match="classes must be at least 1, got 0"):
        tc.CapsHead(0)


@pytest.mark.parametrize("layer", [tc.CapsHead(3), tc.Slots(3, dim=4)])
def test_other_channels_than_in_the_first_batch_are_said(layer: nn.Module) -> None:
    layer(torch.zeros(2, 5, 9))
    with pytest.raises(ValueError, match=r"must have 9 channels, .* batch, got 8"):
        layer(torch.zeros(2, 5, 8))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")  # of the operators
def test_quantized_layers_around_it_work() -> None:
    """Quantizing the linear layers replaces their weights by functions."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 20), tc.CapsHead(3))
    images = torch.rand(4, 1, 6, 6)
    exact = network(images).activation
    smaller = torch.ao.quantization.quantize_dynamic(network.eval(), {nn.Linear})
    torch.testing.assert_close(smaller(images).activation, exact, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("layer", [tc.CapsHead(3, types=2), tc.layers.Slots(3)])
def test_a_first_batch_in_inference_mode_leaves_weights_that_train(
    layer: nn.Module,
) -> None:
    features = torch.randn(2, 4, 9)
    with torch.inference_mode():
        layer(features)
    layer(features).pose.square().sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_the_sizes_of_a_head_on_the_meta_device_are_those_of_a_head_with_values() -> (
    None
):
    with torch.device("meta"):
        shapes = tc.CapsHead(3)
        assert shapes(torch.randn(2, 9)).activation.shape == (2, 3)
    head = tc.CapsHead(3)
    head(torch.randn(2, 9))
    filled = shapes.to_empty(device="cpu")
    filled.load_state_dict(head.state_dict())
    features = torch.randn(2, 9)
    assert torch.equal(filled(features).pose, head(features).pose)


PARAMETRIZATIONS = [
    parametrizations.weight_norm,
    parametrizations.spectral_norm,
    parametrizations.orthogonal,
]


@pytest.mark.parametrize("change", [*PARAMETRIZATIONS, prune.identity])
def test_transforms_are_not_parametrized_before_they_are_drawn(
    change: Callable[..., nn.Module],
) -> None:
    head = tc.CapsHead(3, types=2)
    change(head.class_caps, "weight")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"the first batch draws class_caps\.w"):
            head(torch.randn(4, 9))


@pytest.mark.parametrize("change", PARAMETRIZATIONS)
def test_parametrized_transforms_are_loaded_before_the_first_batch(
    change: Callable[..., nn.Module],
) -> None:
    features = torch.randn(4, 9)
    trained, again = (tc.CapsHead(3, types=2).eval() for _ in range(2))
    trained(features)
    for head in (trained, again):
        change(head.class_caps, "weight")
    again.load_state_dict(trained.state_dict())
    assert trained(features).pose.any()
    assert torch.equal(again(features).pose, trained(features).pose)


def test_a_first_batch_without_numbers_sets_sizes_alone() -> None:
    head = tc.CapsHead(3)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(torch.randn(2, 9))
        assert head(fake).pose.shape == (2, 3, 16)
    assert not head.class_caps.weight.any()
    assert (head(torch.randn(2, 9)).activation > 0).all()


def test_a_first_batch_in_a_checkpoint_has_its_gradients() -> None:
    head = tc.CapsHead(3)
    features = torch.randn(2, 9, requires_grad=True)

    def gradient(lengths: Tensor) -> Tensor:
        return torch.autograd.grad(lengths.square().sum(), features)[0]

    lengths = checkpoint(lambda x: head(x).activation, features, use_reentrant=False)
    first = gradient(lengths)
    assert torch.equal(first, gradient(head(features).activation))


@pytest.mark.parametrize("layer", [tc.CapsHead(3), tc.layers.Slots(3)])
def test_a_first_batch_in_a_transform_is_refused(layer: nn.Module) -> None:
    def objective(features: Tensor) -> Tensor:
        return layer(features).pose.sum()

    with pytest.raises(RuntimeError, match=r"before a transform of torch\.func"):
        torch.func.grad(objective)(torch.randn(2, 4, 9))


@pytest.mark.thorough
@torch.no_grad()
def test_a_first_batch_of_a_compiled_head_is_not_traced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scaling calls the layer dozens of times."""
    compiling = []

    def scaled(*_: object) -> float:
        compiling.append(torch.compiler.is_compiling())
        return 1.0

    monkeypatch.setattr("torchcaps.layers.head.start_length", scaled)
    torch.compiler.reset()
    head = tc.CapsHead(3, types=2, routing="mean")
    compiled = torch.compile(head, backend="eager")
    features = torch.randn(4, 9)
    torch.testing.assert_close(compiled(features), head(features))
    assert compiling == [False]
