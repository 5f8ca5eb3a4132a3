"""The recipe routing-health: what the layers say, steps at test time, and what the
table says of networks.
"""

from types import SimpleNamespace

import pytest
import torch

from recipes import get_recipe
from recipes import routing_health as recipe
from recipes.kit.lab import at_random
from recipes.routing_health import (
    SOURCES,
    AtSteps,
    Health,
    StepsWorth,
    at_steps,
    differences,
    findings,
    layer_health,
)
from tests.small_networks import matrix_network
from torchcaps import create_model
from torchcaps_lab.data import Preprocess, create_dataset
from torchcaps_lab.evaluate import examine, layer_entropy, observe_layers, routing_steps


def test_one_step_is_uniform_in_every_layer() -> None:
    for network in (
        matrix_network(),
        create_model("sharedcapsnet", channels=(4, 4, 4, 4)).eval(),
    ):
        images = torch.rand(2, *network.image_shape)
        with routing_steps(network, 1):
            layers = [
                health
                for health in layer_health(network, images).values()
                if health.entropy is not None
            ]
        assert layers
        for health in layers:
            assert health.entropy == pytest.approx(1, abs=1e-5)


def test_a_point_is_what_the_library_finds() -> None:
    network = matrix_network()
    test = create_dataset("digits", size=17).test.subset(torch.arange(20))
    with routing_steps(network, 2):
        expected = examine(network, test)
        with torch.no_grad():
            layers = observe_layers(network, test.__getitems__(list(range(18))).inputs)
    point = at_steps(network, test, 2, observed=18)
    assert point.accuracy == pytest.approx(100 * expected.accuracy)
    assert torch.equal(point.prediction, expected.prediction)
    assert list(point.layers) == list(layers)
    assert point.classes is point.layers["class_caps"]
    assert point.first is point.layers[next(iter(layers))]
    for name, layer in layers.items():
        if layer.routed:
            assert point.layers[name].entropy == pytest.approx(
                layer_entropy(layer).mean().item(), abs=1e-5
            )
    assert point.first.entropy is None


class TestMeasurements:
    def test_images_are_the_same_for_all_and_prepared(self) -> None:
        test = create_dataset("digits", size=14).test
        first, second = (
            at_random(test, 30).prepared(Preprocess(crop=size)) for size in (14, 10)
        )
        assert torch.equal(first.labels, second.labels)
        assert len(first) == 30
        assert second.image_shape == (1, 10, 10)
        assert len(first.labels.unique()) > 5  # from all over the set
        assert len(at_random(test, 10**6)) == len(test)

    def test_lines_of_a_network(self) -> None:
        def point(accuracy: float, prediction: list[int], entropy: float) -> AtSteps:
            layers = {"primary": Health(None, 0.25), "class_caps": Health(entropy, 0.1)}
            return AtSteps(accuracy, torch.tensor(prediction), layers)

        points = {
            1: point(50, [0, 1, 2, 3], 1),
            3: point(75, [0, 1, 2, 2], 0.5),
            10: point(25, [0] * 4, 0.125),
        }
        assert findings(points, 3) == {
            recipe.TRAINED: 75,
            recipe.UNIFORM: 50,
            recipe.CHANGED: 25,
            recipe.MANY: 25,
            recipe.ENTROPY: 0.5,
            recipe.DEAD_CLASSES: pytest.approx(10),
            recipe.DEAD_FIRST: 25,
        }
        assert not findings(points, 1).keys() & {recipe.UNIFORM, recipe.CHANGED}

    def test_differences_are_of_networks_that_are_there(self) -> None:
        source = next(
            candidate for candidate in SOURCES if candidate.label == "smallNORB"
        )
        accuracies = {"1 step": 90.0, "2 steps": 92.5}
        networks = {
            f"smallNORB: {row}": SimpleNamespace(test_accuracy=accuracy)
            for row, accuracy in accuracies.items()
        }
        assert differences(source, networks) == {
            ("smallNORB: 2 steps, against 1 step", recipe.WORTH): 2.5
        }

    @pytest.mark.parametrize("preset", StepsWorth.presets)
    @pytest.mark.parametrize(
        "source", SOURCES, ids=[source.label for source in SOURCES]
    )
    def test_sources_say_what_their_jobs_say(
        self, source: recipe.Source, preset: str
    ) -> None:
        trained = get_recipe(source.recipe)
        options = {
            row: trained.job(trained.presets[preset], row)[1] for row in source.steps
        }
        for row, steps in source.steps.items():
            assert options[row]["routing"]["steps"] == steps
        for row, uniform in source.pairs.items():
            assert source.steps[row] > source.steps[uniform] == 1
            routed, plain = (
                {k: v for k, v in options[row_name].items() if k != "routing"}
                for row_name in (row, uniform)
            )
            assert routed == plain
            arguments = [
                {**options[row_name]["routing"], "steps": 0}
                for row_name in (row, uniform)
            ]
            assert arguments[0] == arguments[1]
        assert {1, 10} <= set(StepsWorth.presets[preset].steps)
