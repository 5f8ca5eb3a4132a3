"""The health of the routing: what the layers say."""

import pytest
import torch

from recipes.routing_health import at_steps, layer_health
from tests.small_networks import matrix_network
from torchcaps import create_model
from torchcaps_lab.data import create_dataset
from torchcaps_lab.report import examine, layer_entropy, observe_layers, routing_steps


def test_one_step_is_uniform_in_every_layer() -> None:
    for network in (matrix_network(), create_model("sharedcapsnet", channels=(4, 4, 4, 4)).eval()):
        images = torch.rand(2, *network.image_shape)
        with routing_steps(network, 1):
            layers = [one for one in layer_health(network, images).values() if one.entropy is not None]
        assert layers
        for health in layers:
            assert health.entropy == pytest.approx(1, abs=1e-5)


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
