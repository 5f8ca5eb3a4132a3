"""The health of the routing: polarisation, and what the layers say."""

import pytest
import torch
from torch import Tensor, nn

from recipes.routing_health import at_steps, layer_health, layer_polarisation, polarisation
from tests.small_networks import matrix_network
from torchcaps import CapsConv2d, Capsules, create_model, create_routing
from torchcaps.routing import Routed
from torchcaps_lab.data import create_dataset
from torchcaps_lab.report import Layer, examine, layer_entropy, observe_layers, routing_steps


def test_one_step_is_uniform_in_every_layer() -> None:
    for network in (matrix_network(), create_model("sharedcapsnet", channels=(4, 4, 4, 4)).eval()):
        images = torch.rand(2, *network.image_shape)
        with routing_steps(network, 1):
            layers = [one for one in layer_health(network, images).values() if one.entropy is not None]
        assert layers
        for health in layers:
            assert health.entropy == pytest.approx(1, abs=1e-5)
            assert health.polarisation == pytest.approx(0, abs=1e-5)


class TestPolarisation:
    def test_by_hand(self) -> None:
        R = torch.tensor([[[1.0, 0, 0], [1 / 3, 1 / 3, 1 / 3]], [[0.5, 0.25, 0.25], [0.3, 0.1, 0.1]]])
        assert polarisation(R).tolist() == pytest.approx([0.5, ((0.5 - 1 / 3) + (0.6 - 1 / 3)) / 2 * 1.5])

    def test_ends(self) -> None:
        assert polarisation(torch.eye(4).unsqueeze(0)).item() == 1
        assert polarisation(torch.full((1, 5, 7), 1 / 7)).item() == pytest.approx(0, abs=1e-6)
        assert polarisation(torch.zeros(1, 5, 7)).item() == 0  # to no parent at all
        assert polarisation(torch.ones(1, 5, 1)).item() == 0  # nothing to choose

    @pytest.mark.parametrize("competition", ["image", "window", "position"])
    @pytest.mark.parametrize(("padding", "stride"), [(0, 1), (1, 2), (0, 4)])  # with stride 4 some children are unseen
    @torch.no_grad()
    def test_convolutions_child_by_child(self, competition: str, padding: int, stride: int) -> None:
        torch.manual_seed(0)
        layer = CapsConv2d(2, 3, 4, 4, 3, padding=padding, stride=stride, competition=competition,
                           routing=create_routing("dynamic", steps=3))  # fmt: skip
        children = Capsules(3 * torch.randn(2, 5, 8, 2, 4), torch.rand(2, 5, 8, 2))
        (seen,) = observe_layers(layer, children).values()
        torch.testing.assert_close(layer_polarisation(seen), child_by_child(seen, competition))
        if competition == "position" and stride == 4:  # one window sees a child: nobody competes for it
            assert (layer_polarisation(seen) == 0).all()
        else:
            assert layer_polarisation(seen).min() > 0.02

    @torch.no_grad()
    def test_layers_that_do_not_route_have_none(self) -> None:
        layers = observe_layers(matrix_network(), torch.rand(1, 1, 17, 17))
        first = next(iter(layers.values()))
        with pytest.raises(ValueError, match="routes nothing"):
            layer_polarisation(first)

    @torch.no_grad()
    def test_the_class_layer_is_the_plain_measure(self) -> None:
        network, images = matrix_network(), torch.rand(3, 1, 17, 17)
        layers = observe_layers(network, images)
        expected = polarisation(network.route(images).assignment)
        torch.testing.assert_close(layer_polarisation(layers["class_caps"]), expected)

    def test_groups_are_averaged(self) -> None:
        class Given(Routed):
            @property
            def assignment(self) -> Tensor:
                return self.pose

        hard, even = torch.eye(2).unsqueeze(0), torch.full((1, 2, 2), 0.5)
        routed = tuple(Given(R, *[None] * 3) for R in (hard, even))
        layer = Layer("two", nn.Identity(), Capsules(torch.zeros(1, 2, 1), torch.zeros(1, 2)), routed=routed)
        assert layer_polarisation(layer).item() == 0.5


def child_by_child(layer: Layer, competition: str) -> Tensor:
    """Polarisation of a convolution with loops and Python floats, from the equation."""
    windows, rows = layer.windows, layer.assignment()  # [B, windows, places x types, J]
    sites = windows.sites(torch.device("cpu"))
    (height, width), (top, left) = windows.size, windows.padding
    images = []
    for R in rows:
        values = []
        for y in range(height):
            for x in range(width):
                site = (y + top) * (width + 2 * left) + x + left
                places = [tuple(place) for place in (sites == site).nonzero().tolist()]
                for kind in range(2):
                    seen = [R[window, place * 2 + kind].tolist() for window, place in places]
                    if seen:
                        together = {
                            "image": [[share for one in seen for share in one]],
                            "window": seen,
                            "position": [list(of_one_type) for of_one_type in zip(*seen, strict=True)],
                        }[competition]
                        values.append(sum(map(one_child, together)) / len(together))
        images.append(sum(values) / len(values))
    return torch.tensor(images)


def one_child(shares: list[float]) -> float:
    even = 1 / len(shares)
    return 0.0 if even == 1 else (max(shares) / sum(shares) - even) / (1 - even)


def test_a_point_is_what_the_library_finds() -> None:
    network = matrix_network()
    test = create_dataset("digits", size=17).test.subset(torch.arange(20))
    with routing_steps(network, 2):
        expected = examine(network, test)
        with torch.no_grad():
            layers = observe_layers(network, test.__getitems__(list(range(18))).images)
    point = at_steps(network, test, 2, observed=18)
    assert point.accuracy == pytest.approx(100 * expected.accuracy)
    assert torch.equal(point.prediction, expected.prediction)
    assert list(point.layers) == list(layers)
    assert point.classes is point.layers["class_caps"]
    assert point.first is point.layers[next(iter(layers))]
    for name, layer in layers.items():
        if layer.routed:
            assert point.layers[name].entropy == pytest.approx(layer_entropy(layer).mean().item(), abs=1e-5)
    assert point.first.entropy is None
