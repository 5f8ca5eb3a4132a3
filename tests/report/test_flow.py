"""Shares of the classes, handed down from layer to layer."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.report.small import matrix_net
from torchcaps import CapsConv2d, Capsules, create_routing
from torchcaps.models import CapsuleClassifier
from torchcaps.routing import Routed
from torchcaps_lab.evaluate import observe_layers
from torchcaps_lab.evaluate.layers import Layer
from torchcaps_lab.report import class_maps, class_shares, layer_extents


def far_from_uniform(**arguments: object) -> CapsuleClassifier:
    model = matrix_net(**arguments)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, CapsConv2d):
                module.weight.mul_(3)
    return model


IMAGES = torch.rand(2, 1, 23, 26, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("competition", ["image", "window"])
@pytest.mark.parametrize("routing", ["em", "dynamic"])
@torch.no_grad()
def test_shares_of_all_classes_add_up_to_one_through_the_layers(
    competition: str, routing: str
) -> None:
    layers = observe_layers(
        far_from_uniform(competition=competition, routing=create_routing(routing)),
        IMAGES,
    )
    shares = class_shares(layers)
    assert list(shares) == ["class_caps", "conv_caps2", "conv_caps1"]
    for name, part in shares.items():
        assert part.shape == (*layers[name].children.activation.shape, 3)
        assert part.min() >= 0
        total = part.sum(-1)
        if (
            name == "conv_caps1"
        ):  # a grid of 10 x 11: windows of 3 at a distance of 2 leave the last row out
            assert total.shape[1:3] == (10, 11)
            assert bool((total[:, 9] == 0).all())
            total = total[:, :9]
        torch.testing.assert_close(total, torch.ones_like(total))
    assert shares["conv_caps1"].std() > 1e-3


class Given(Routed):
    """A routing with an assignment made by hand, passed as the pose."""

    @property
    def assignment(self) -> Tensor:
        return self.pose


def by_hand(R: Tensor) -> tuple[Routed, ...]:
    return (Given(R, None, None, None),)


def test_two_layers_by_hand() -> None:
    # Three children in a row; windows of two; one type of parent a window; two classes.
    children = Capsules(torch.zeros(1, 1, 3, 1, 2), torch.ones(1, 1, 3, 1))
    parents = Capsules(
        torch.zeros(1, 1, 2, 1, 2), torch.tensor([0.5, 1.0]).view(1, 1, 2, 1)
    )
    conv = CapsConv2d(1, 1, 2, 2, (1, 2))
    to_parents = torch.tensor(
        [[[1.0], [0.4]], [[0.6], [1.0]]]
    )  # [windows, I, J]; the middle child is shared
    to_classes = torch.tensor([[[0.9, 0.1], [0.2, 0.8]]])  # [B, parents, classes]
    classes = Capsules(torch.zeros(1, 2, 2), torch.ones(1, 2))
    layers = {
        "conv": Layer("conv", conv, parents, children, by_hand(to_parents)),
        "classes": Layer(
            "classes", nn.Identity(), classes, parents, by_hand(to_classes)
        ),
    }
    shares = class_shares(layers)
    torch.testing.assert_close(shares["classes"].view(2, 2), to_classes[0])
    middle = (0.4 * 0.5 * 0.9 + 0.6 * 1.0 * 0.2) / (0.4 * 0.5 + 0.6 * 1.0)
    expected = torch.tensor([[0.9, 0.1], [middle, 1 - middle], [0.2, 0.8]])
    torch.testing.assert_close(shares["conv"].view(3, 2), expected)

    half = {
        **layers,
        "conv": Layer("conv", conv, parents, children, by_hand(to_parents / 2)),
    }  # half went nowhere
    torch.testing.assert_close(
        class_shares(half)["conv"].sum(-1).view(3), torch.full((3,), 0.5)
    )

    parents.activation.zero_()  # no parent is there: all count the same
    middle = 0.4 * 0.9 + 0.6 * 0.2
    torch.testing.assert_close(
        class_shares(layers)["conv"].view(3, 2)[1], torch.tensor([middle, 1 - middle])
    )
    torch.testing.assert_close(
        class_shares(half)["conv"].sum(-1).view(3), torch.full((3,), 0.5)
    )


@torch.no_grad()
def test_shares_equal_a_loop_over_windows() -> None:
    model = far_from_uniform()
    layers = observe_layers(model, IMAGES)
    shares = class_shares(layers)
    layer = layers["conv_caps1"]
    windows = layers["conv_caps1"].windows
    R = layer.assignment().double().numpy()  # [B, windows, I, J]
    a = layer.capsules.activation.double().numpy()  # [B, H', W', J]
    above = shares["conv_caps2"].double().numpy()  # [B, H', W', J, E]
    B, rows, columns, types = layer.children.activation.shape
    top = np.zeros((B, rows, columns, types, 3))
    bottom = np.zeros((B, rows, columns, types))
    total = 0
    for b in range(B):
        for y in range(windows.out[0]):
            for x in range(windows.out[1]):
                for dy in range(3):
                    for dx in range(3):
                        for t in range(types):
                            child = b, 2 * y + dy, 2 * x + dx, t
                            for j in range(3):
                                r = (
                                    R[
                                        b,
                                        y * windows.out[1] + x,
                                        (dy * 3 + dx) * types + t,
                                        j,
                                    ]
                                    * a[b, y, x, j]
                                )
                                top[child] += r * above[b, y, x, j]
                                bottom[child] += r
                                total += 1
    seen = bottom > 0
    np.testing.assert_allclose(
        shares["conv_caps1"].numpy()[seen], top[seen] / bottom[seen][:, None], rtol=1e-4
    )
    assert total > 1000


@torch.no_grad()
def test_what_nobody_sees_is_not_a_number() -> None:
    layers = observe_layers(far_from_uniform(), IMAGES)
    maps = class_maps(
        class_shares(layers)["conv_caps1"], layers["primary_caps"].capsules.activation
    )
    assert maps.shape == (2, 10, 11, 3)
    assert bool(maps[:, 9].isnan().all())
    assert bool(maps[:, :9].isfinite().all())


def test_a_changed_capsule_ends_the_chain() -> None:
    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = far_from_uniform()

        def forward(self, images: Tensor) -> Capsules:
            primary = self.net.layers_of(images)["conv_caps2"]
            return self.net.class_caps(
                Capsules(primary.pose * 1, primary.activation * 1)
            )

    assert list(class_shares(observe_layers(Changed(), IMAGES))) == ["net.class_caps"]


def test_misfits_are_named() -> None:
    with pytest.raises(ValueError, match="the last layer must route"):
        class_shares({})
    with pytest.raises(ValueError, match="shares must be"):
        class_maps(torch.rand(1, 4, 3), torch.rand(1, 4))


def test_convolutional_capsules_stand_at_the_centres_of_their_windows() -> None:
    # 5x5 at distance 2: primary capsule y sees pixels 2y..2y+4, centre 2y + 2.5, cells
    # of 2 from 1.5 on, 10 x 11. conv_caps1, 3x3 at distance 2: centre of window y at 2
    # (2y + 1) + 2.5 = 4y + 4.5, cells of 4, 4 x 5. conv_caps2, 3x3: centre at 4 (y + 1)
    # + 4.5, cells of 4, 2 x 3.
    extents = layer_extents(far_from_uniform(), IMAGES)
    assert extents["primary_caps"] == (1.5, 23.5, 21.5, 1.5)
    assert extents["conv_caps1"] == (2.5, 22.5, 18.5, 2.5)
    assert extents["conv_caps2"] == (6.5, 18.5, 14.5, 6.5)
    assert "class_caps" not in extents


def test_padding_moves_the_windows_out() -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.primary = far_from_uniform().primary_caps
            self.conv = CapsConv2d(2, 2, (2, 2), (2, 2), 3, padding=1)
            self.single = CapsConv2d(2, 2, (2, 2), (2, 2), (4, 6))

        def forward(self, images: Tensor) -> Capsules:
            return self.single(self.conv(self.primary(images.expand(-1, 4, -1, -1))))

    extents = layer_extents(Padded(), torch.zeros(1, 1, 4, 6))
    assert extents["primary"] == (0, 6, 4, 0)
    assert extents["conv"] == extents["primary"]  # the same grid
    assert extents["single"] == (0, 6, 4, 0)  # all it covers
