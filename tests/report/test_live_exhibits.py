"""Poses that people move, shapes that are measured, routing step by step and in other
ways.
"""

import json
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.report.small import digits_net, images_for, look, matrix_net
from torchcaps import create_model, create_routing
from torchcaps.models import CapsuleClassifier
from torchcaps.routing import Routing
from torchcaps.routing.base import ROUTINGS
from torchcaps_lab import evaluate
from torchcaps_lab.evaluate import (
    draw_poses,
    exchangeable_routings,
    observe_steps,
    other_routing,
    pose_tells,
    shape_moments,
)
from torchcaps_lab.report import Observation
from torchcaps_lab.report.pictures import (
    ClassActivations,
    ClassPose,
    PoseSwap,
    RoutingSteps,
)


def net(**arguments: object) -> CapsuleClassifier:
    return digits_net(**{"decoder_hidden": (16,), **arguments}).eval()


def seen_by(model: CapsuleClassifier, count: int = 1) -> Observation:
    return look(model, images_for(model, count))


class TestAsked:
    def test_about_another_class_nothing_runs_again(self) -> None:
        seen = seen_by(net(), 2)
        _ = seen.extents
        first = seen.reconstructions
        model = seen.model
        model.features = None  # so that running it would fail
        second = seen.asked(1 - seen.target.clamp(max=1))
        assert second.activation is seen.activation
        assert second.extents == seen.extents
        assert not torch.equal(second.reconstructions, first)


class TestDecodePose:
    def test_of_the_network_itself(self) -> None:
        seen = seen_by(net(), 3)
        poses = seen.classes.pose[torch.arange(3), seen.target]
        assert torch.equal(seen.draw(poses, seen.target), seen.reconstructions)

    def test_moved_is_perturbed(self) -> None:
        seen = seen_by(net())
        target = torch.tensor([2])
        with torch.no_grad():
            grid = evaluate.perturb(
                seen.model, seen.classes, target, torch.tensor([0.25])
            )
            moved = seen.classes.pose[:, 2] + 0.25 * torch.eye(4)
            torch.testing.assert_close(
                draw_poses(seen.model, moved, target.expand(4)), grid[0, :, 0]
            )

    def test_what_does_not_fit(self) -> None:
        with pytest.raises(ValueError, match=r"poses must be \(B, 4\)"):
            draw_poses(net(), torch.zeros(1, 5), torch.tensor([0]))
        with pytest.raises(ValueError, match="target"):
            draw_poses(net(), torch.zeros(1, 4), torch.tensor([3]))


def ellipse(
    width: float = 3.0,
    height: float = 6.0,
    slant: float = 0.0,
    x: float = 14.0,
    y: float = 14.0,
) -> Tensor:
    """A soft figure (1, 28, 28) of these deviations, sheared by so many degrees."""
    down, right = torch.meshgrid(
        torch.arange(28.0) + 0.5 - y, torch.arange(28.0) + 0.5 - x, indexing="ij"
    )
    right = right + math.tan(math.radians(slant)) * down
    return torch.exp(-((right / width) ** 2 + (down / height) ** 2) * 2)[None]


class TestShapes:
    def test_of_ellipses(self) -> None:
        straight, slanted = shape_moments(torch.stack([ellipse(), ellipse(slant=20.0)]))
        torch.testing.assert_close(
            straight[:3], torch.tensor([0.0, 1.5, 3.0]).double(), atol=1e-2, rtol=0
        )
        torch.testing.assert_close(
            slanted[0], torch.tensor(20.0).double(), atol=0.3, rtol=0
        )
        torch.testing.assert_close(
            slanted[1:3], straight[1:3], atol=2e-2, rtol=0
        )  # shearing keeps both
        torch.testing.assert_close(straight[4:], torch.tensor([0.5, 0.5]).double())

    def test_of_nothing(self) -> None:
        assert shape_moments(torch.zeros(1, 1, 8, 8)).isnan().all()
        with pytest.raises(ValueError, match="images must be"):
            shape_moments(torch.zeros(8, 8))

    def test_words(self) -> None:
        sweep = torch.stack(
            [
                torch.stack([ellipse(slant=slant) for slant in (-10.0, 0.0, 10.0)]),
                torch.stack([ellipse(height=height) for height in (6.0, 5.5, 5.0)]),
                torch.stack([ellipse(x=x) for x in (12.0, 14.0, 16.0)]),
                torch.stack([ellipse() for _ in range(3)]),
                torch.stack(
                    [ellipse(slant=slant) for slant in (0.0, 20.0, 10.0)]
                ),  # there and back
                torch.zeros(3, 1, 28, 28),
            ]
        )
        assert pose_tells(sweep) == (
            "slant +20°",
            "height -18%",
            "left-right +14%",
            "",
            "",
            "",
        )


@pytest.mark.parametrize(
    "name",
    ["dynamic", "kmeans", "euclidean", "em", "attention", "kernel_density", "max_min"],
)
class TestSteps:
    def test_the_last_is_the_routing(self, name: str) -> None:
        model = net(routing=create_routing(name, steps=3))
        children = model.children_of(torch.rand(2, 1, 8, 8))
        with torch.no_grad():
            steps = observe_steps(model, children)
            routed = model.class_caps.route(children)
        assert len(steps) == 3
        assert model.routing.steps == 3
        torch.testing.assert_close(steps[-1].assignment, routed.assignment)
        torch.testing.assert_close(steps[-1].parents.pose, routed.pose)
        assert not torch.allclose(
            steps[0].parents.pose, steps[1].parents.pose, rtol=1e-9, atol=0
        )

    def test_agreement_is_a_cosine(self, name: str) -> None:
        model = net(routing=create_routing(name, steps=2))
        children = model.children_of(torch.rand(1, 1, 8, 8))
        with torch.no_grad():
            step = observe_steps(model, children)[-1]
            votes = model.class_caps.votes(children).dense()
        expected = F.cosine_similarity(votes[0, 5, 1], step.parents.pose[0, 1], dim=0)
        torch.testing.assert_close(step.agreement[0, 5, 1], expected)


def test_em_keeps_the_temperatures_of_its_whole_way() -> None:
    """A step of EM is that of the routing as trained, not of a shorter one, whose
    temperatures rise faster.
    """
    model = net(
        routing=create_routing("em", steps=3, schedule="linear", sharpness=[0.1, 0.2])
    )
    children = model.children_of(torch.rand(1, 1, 8, 8))
    short = net(
        routing=create_routing(
            "em", steps=2, schedule=lambda step, _: (1.0, 2.0)[step], sharpness=[0.1]
        )
    )
    with torch.no_grad():
        second = observe_steps(model, children)[1].parents.activation
        torch.testing.assert_close(second, short.class_caps.route(children).activation)
    assert (model.routing.schedule, model.routing.sharpness) == ("linear", [0.1, 0.2])


class TestOtherRouting:
    def test_those_that_learn_nothing(self) -> None:
        names = exchangeable_routings(net())
        assert {"dynamic", "kmeans", "mean", "hard_kmeans"} <= set(names)
        assert not {"em", "attention", "heinsen_2022", "self_attention"} & set(names)

    def test_those_that_go_on_from_the_parents_of_a_round_before(self) -> None:
        """Seven of ten that were offered failed."""
        torch.manual_seed(0)
        small = {"channels": (8, 16), "blocks": (1, 1), "types": 4, "classes": 3}
        model = create_model("attentioncapsnet", image_shape=(1, 16, 16), **small)
        images = torch.rand(1, 1, 16, 16)
        names = exchangeable_routings(model)
        assert "kmeans" in names
        for name in names:
            with torch.no_grad(), other_routing(model, name):
                assert model(images).activation.shape == (1, 3)
        layer_by_layer = create_model(
            "attentioncapsnet", image_shape=(1, 16, 16), rounds=1, **small
        )
        assert "mean" in exchangeable_routings(layer_by_layer)
        assert "mean" not in names

    def test_a_plug_in_that_needs_arguments_is_none_of_them(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Sharp(Routing):
            def __init__(self, sharpness: float) -> None:
                super().__init__()

        names = exchangeable_routings(net())
        monkeypatch.setitem(ROUTINGS, "sharp", Sharp)
        assert exchangeable_routings(net()) == names

    def test_is_the_network_built_with_it(self) -> None:
        model = net()
        images = torch.rand(2, 1, 8, 8)
        second = net(routing=create_routing("kmeans", steps=2))
        second.load_state_dict(model.state_dict())
        with torch.no_grad():
            before = model(images).activation
            with other_routing(model, "kmeans", 2):
                torch.testing.assert_close(
                    model(images).activation, second(images).activation
                )
            with other_routing(model, steps=1):
                assert not torch.equal(model(images).activation, before)
            assert torch.equal(model(images).activation, before)

    def test_on_matrix_capsules(self) -> None:
        model = matrix_net()
        with torch.no_grad(), other_routing(model, "euclidean", 2):
            assert model(torch.rand(1, *model.image_shape)).activation.shape == (1, 3)

    def test_own_comes_back_after_an_error(self) -> None:
        model = net()
        routing = model.routing
        with pytest.raises(RuntimeError, match="stop"), other_routing(model, "mean"):
            raise RuntimeError("stop")
        assert model.routing is routing


class TestExhibits:
    @pytest.mark.parametrize("make", [net, matrix_net])
    def test_routing_steps(self, make: Callable[[], CapsuleClassifier]) -> None:
        model = make()
        seen = seen_by(model)
        exhibit = RoutingSteps.of(seen)
        assert exhibit is not None
        json.dumps(exhibit.to_json(), allow_nan=False)
        assert len(exhibit.steps) == model.routing.steps
        for step in exhibit.steps:
            assert step.maps is not None
            torch.testing.assert_close(
                step.maps.sum(-1), torch.ones(step.maps.shape[:2])
            )
        last = exhibit.steps[-1]
        torch.testing.assert_close(last.maps, next(iter(seen.maps.values()))[0])
        torch.testing.assert_close(last.activation, seen.activation[0])
        goes = last.assignment.argmax(-1)
        assert torch.equal(goes, goes.sort().values)  # rows of one class are together

    def test_pose(self) -> None:
        seen = seen_by(net())
        exhibit = ClassPose.of(seen)
        assert exhibit is not None
        json.dumps(exhibit.to_json(), allow_nan=False)
        torch.testing.assert_close(exhibit.reconstruction, seen.reconstructions[0])
        torch.testing.assert_close(
            exhibit.in_classes[exhibit.target], exhibit.reconstruction
        )
        assert exhibit.changes.shape == (4,)
        assert (exhibit.changes > 0).any()
        assert ClassPose.of(seen_by(net(decoder_hidden=None))) is None

    def test_swap(self) -> None:
        seen = seen_by(net())
        model = net()
        first = seen.asked(torch.tensor([0]))
        second = seen_by(model, 2).asked(torch.tensor([2, 2]))
        exhibit = PoseSwap.of(first, second)
        assert exhibit is not None
        with torch.no_grad():
            expected = draw_poses(model, first.classes.pose[:, 0], torch.tensor([2]))
        torch.testing.assert_close(exhibit.swapped[:1], expected)
        torch.testing.assert_close(exhibit.reconstructions[:1], first.reconstructions)

    def test_activations(self) -> None:
        seen = seen_by(net())
        assert ClassActivations.of(seen).predicted == int(seen.activation.argmax())
