"""A network for another number of classes: what does not depend on the number stays
what it is.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import torchcaps as tc
from tests.small_networks import SMALLER, one_of_each, shipped
from torchcaps.layers import balanced_length
from torchcaps.models import (
    CapsuleClassifier,
    ImageClassifier,
    create_model,
    load_pretrained,
)
from torchcaps.models.differences import take_differences
from torchcaps.models.registry import MODELS


def small(name: str, **arguments: Any) -> ImageClassifier:
    torch.manual_seed(0)
    return create_model(name, **SMALLER.get(name, {}), **arguments)


def worked_on(network: nn.Module, ran: list[str]) -> None:
    """What a user does to a network that no state_dict holds."""
    network.requires_grad_(False)
    for number, (name, module) in enumerate(network.named_modules()):
        module.training = bool(number % 2)
        module.note = name
        module.register_forward_hook(
            lambda module, given, answer: ran.append(module.note)
        )


@pytest.mark.parametrize(
    "name",
    one_of_each(
        name
        for name in shipped()
        if MODELS[name].network.__module__.startswith("torchcaps")
    ),
)
def test_all_that_does_not_depend_on_it_stays(name: str, tmp_path: Path) -> None:
    network = small(name)
    ran = list[str]()
    worked_on(network, ran)
    wanted = network.classes + 3
    fresh = small(name, classes=wanted)
    config = network.config()
    modules = {
        path: (module, module.training)
        for path, module in network.named_modules(remove_duplicate=False)
    }
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    held = {path: tensor.clone() for path, tensor in tensors.items()}
    network.reset_classifier(wanted)

    assert network.config() == {**config, "classes": wanted}
    for path, module in network.named_modules(remove_duplicate=False):
        assert (module, module.training) == modules[path]
        assert len(module._forward_hooks) == 1
    unchanged = 0
    learns = {path: weight.requires_grad for path, weight in fresh.named_parameters()}
    for path, tensor in {
        **dict(network.named_parameters()),
        **dict(network.named_buffers()),
    }.items():
        if tensor.shape == held[path].shape:
            unchanged += 1
            assert tensor is tensors[path]
            assert not tensor.requires_grad
            assert torch.equal(tensor, held[path])
        else:
            assert tensor.requires_grad == learns.get(path, False)
    assert 0 < unchanged < len(held)

    shapes = [
        (path, tensor.shape, tensor.dtype)
        for path, tensor in fresh.state_dict().items()
    ]
    assert [
        (path, tensor.shape, tensor.dtype)
        for path, tensor in network.state_dict().items()
    ] == shapes
    assert repr(network) == repr(fresh)
    network.eval()
    inputs = network.examples(2)
    answer = network(inputs).activation
    assert answer.shape[:2] == (2, wanted)
    assert len(ran) > 1
    fresh.load_state_dict(network.state_dict())
    # Its settings are those of a new one, too. Slots with hooks are rounded otherwise.
    unhooked = fresh.eval()(inputs).activation
    torch.testing.assert_close(unhooked, answer, rtol=1e-6, atol=1e-7)
    network.save_pretrained(tmp_path)
    assert torch.equal(load_pretrained(tmp_path)(inputs).activation, unhooked)


class WithLazySizes(CapsuleClassifier):
    """A head of capsules on features whose number the first batch tells."""

    decoder = None

    def __init__(self, classes: int = 5) -> None:
        super().__init__((1, 8, 8), classes)
        self.features = nn.Sequential(nn.LazyConv2d(6, 3), nn.LazyBatchNorm2d())
        self.class_caps = tc.CapsHead(classes, types=4)

    def children_of(self, images: Tensor) -> Tensor:
        return self.features(images)


def test_layers_whose_sizes_came_with_a_batch(tmp_path: Path) -> None:
    images = torch.rand(8, 1, 8, 8)
    network = WithLazySizes()
    network(images)
    network.save_pretrained(tmp_path)
    loaded = load_pretrained(tmp_path)
    network.eval()
    assert torch.equal(loaded(images).activation, network(images).activation)
    sized = dict(
        network.features.named_parameters(), w=network.class_caps.primary.weight
    )
    network.reset_classifier(3)
    kept = dict(
        network.features.named_parameters(), w=network.class_caps.primary.weight
    )
    assert all(kept[name] is parameter for name, parameter in sized.items())
    mean = float(network(images).activation.detach().mean())
    assert mean == pytest.approx(balanced_length(3), rel=0.5)


@pytest.mark.parametrize("name", ["capsnet_digits", "capsnet_on_backbone", "unet"])
def test_with_the_number_that_it_has_nothing_changes(name: str) -> None:
    network = small(name)
    network.extra = {"classes": ["a"]}
    before = [
        (path, id(tensor), tensor.clone())
        for path, tensor in network.named_parameters()
    ]
    network.reset_classifier(network.classes)
    for (path, same, number), (now, tensor) in zip(
        before, network.named_parameters(), strict=True
    ):
        assert (path, same) == (now, id(tensor))
        assert torch.equal(number, tensor)
    assert network.extra == {"classes": ["a"]}


def test_an_optimizer_of_the_features_goes_on() -> None:
    network = tc.create_model("capsnet_digits", decoder_hidden=None)
    optimizer = torch.optim.SGD(network.conv.parameters(), 0.1)
    network.reset_classifier(4)
    before = network.conv.weight.clone()
    network(network.examples(2)).activation.sum().backward()
    optimizer.step()
    assert not torch.equal(network.conv.weight, before)


def test_each_layer_keeps_its_precision() -> None:
    network = tc.create_model("capsnet_digits")
    network.decoder.double()
    network.reset_classifier(4)
    kinds = {path: weight.dtype for path, weight in network.named_parameters()}
    assert {kind for path, kind in kinds.items() if path.startswith("decoder")} == {
        torch.float64
    }
    assert {kind for path, kind in kinds.items() if not path.startswith("decoder")} == {
        torch.float32
    }


def test_layers_that_were_made_another_kind() -> None:
    network = small("capsnet_cnn")
    convolution = next(
        part for part in network.modules() if isinstance(part, nn.Conv2d)
    )
    head = [
        path for path, part in network.named_modules() if isinstance(part, nn.Linear)
    ][-1]
    parametrizations.spectral_norm(convolution)
    parametrizations.weight_norm(network.get_submodule(head))
    network.reset_classifier(4)
    assert hasattr(convolution, "parametrizations")
    assert any(part is convolution for part in network.modules())
    assert type(network.get_submodule(head)) is nn.Linear  # a new one
    assert network(network.examples(2)).activation.shape == (2, 4)


def test_what_was_removed_stays_removed() -> None:
    network = tc.create_model("capsnet_digits")
    network.decoder = None
    network.reset_classifier(4)
    assert network.decoder is None
    assert network(network.examples(2)).activation.shape == (2, 4)


def test_two_classes_of_matrix_capsules_can_be_learned() -> None:
    network = tc.create_model("matrixcapsnet_small", pretrained="mnist", classes=2)
    activation = network.train()(network.examples(4)).activation
    activation[:, 0].sum().backward()
    assert network.class_caps.weight.grad.abs().max() > 1e-3
    assert len(activation.detach().unique(dim=0)) == 4


def test_a_number_that_is_none_changes_nothing() -> None:
    network = tc.create_model("capsnet_digits")
    before = repr(network)
    with pytest.raises(ValueError, match="classes"):
        network.reset_classifier(0)
    assert (repr(network), network.classes) == (before, 10)


def test_what_holds_for_the_old_classes_only_is_not_saved_with_the_new(
    tmp_path: Path,
) -> None:
    network = tc.create_model("capsnet_digits", pretrained=True)
    prepared = {
        name: value for name, value in network.extra.items() if name != "classes"
    }
    assert "reader" in prepared
    network = tc.create_model("capsnet_digits", pretrained=True, classes=3)
    assert "classes" not in network.extra
    assert network.extra["reader"] == prepared["reader"]
    assert len(tc.Classifier(network).classes) == 3


class TestDifferences:
    """Networks that are like none of the package's."""

    class Odd(nn.Module):
        """A head for each class, one of them in two places, a lazy layer, a setting in
        a closure.
        """

        def __init__(self, classes: int) -> None:
            super().__init__()
            self.heads = nn.ModuleList(nn.Linear(2, 1) for _ in range(classes))
            self.again = self.heads[0]
            self.shared = nn.Linear(2, classes)
            self.twice = nn.Sequential(self.shared, nn.ReLU())
            self.tied = nn.Linear(2, classes)
            self.tied.weight = self.shared.weight
            self.lazy = nn.LazyLinear(classes)
            self.register_buffer("seen", torch.zeros(classes), persistent=False)
            self.scale = lambda: 1 / classes
            self.kind = nn.Sigmoid() if classes == 2 else nn.Softmax(-1)

    @pytest.mark.parametrize(("was", "now"), [(2, 5), (5, 2)])
    def test_parts(self, was: int, now: int) -> None:
        network = self.Odd(was)
        network.lazy(torch.rand(1, 7))
        heads = list(network.heads[:2])
        shared = network.shared
        relu = network.twice[1]
        take_differences(network, self.Odd(was), self.Odd(now))
        assert len(network.heads) == now
        assert list(network.heads[:2]) == heads
        assert network.again is heads[0]
        assert network.shared is shared is network.twice[0]
        assert network.twice[1] is relu
        assert shared.weight.shape == (now, 2)
        assert network.tied.weight is shared.weight
        assert network.lazy(torch.rand(1, 3)).shape == (1, now)
        assert network.seen.shape == (now,)
        assert "seen" not in network.state_dict()
        assert network.scale() == 1 / now
        assert type(network.kind) is type(self.Odd(now).kind)
