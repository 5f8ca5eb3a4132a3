"""Steps of routing at test time."""

import pytest
import torch
from torch import nn

from tests.small_networks import matrix_network
from torchcaps.routing import EMRouting, Routing
from torchcaps.routing.em import inverse_temperatures
from torchcaps_lab.evaluate.steps import routing_steps, stretched


class TestSteps:
    def test_temperatures_are_drawn_out_between_the_same_ends(self) -> None:
        assert stretched([1.0, 2.0, 3.0], 5) == pytest.approx([1, 1.5, 2, 2.5, 3])
        assert stretched([1.0, 2.0, 5.0], 5) == pytest.approx([1, 1.5, 2, 3.5, 5])
        assert stretched([1.0, 2.0, 3.0], 2) == [1, 3]
        assert stretched([1.0, 2.0, 3.0], 1) == [3]
        assert stretched([0.7], 4) == [0.7] * 4
        assert stretched([0.1, 0.5, 0.2, 0.9], 4) == pytest.approx([0.1, 0.5, 0.2, 0.9])

    @pytest.mark.parametrize("schedule", ["linear", "released"])
    def test_em_routing_keeps_its_ends(self, schedule: str) -> None:
        network = matrix_network(schedule=schedule, inverse_temperature=0.3)
        temperatures = inverse_temperatures(schedule, 3, 0.3)
        for steps in (1, 2, 3, 7):
            with routing_steps(network, steps):
                (routing, *_) = [
                    module
                    for module in network.modules()
                    if isinstance(module, EMRouting)
                ]
                used = inverse_temperatures(
                    routing.schedule, routing.steps, routing.inverse_temperature
                )
            assert len(used) == steps
            assert used[-1] == pytest.approx(temperatures[-1])
            assert steps == 1 or used[0] == pytest.approx(temperatures[0])

    @torch.no_grad()
    def test_a_network_is_changed_and_put_back(self) -> None:
        network = matrix_network()
        images = torch.rand(2, 1, 17, 17)
        routings = [
            module for module in network.modules() if isinstance(module, Routing)
        ]
        before = network(images).activation
        with routing_steps(network, 6):
            assert [routing.steps for routing in routings] == [6] * 3
            assert not torch.allclose(network(images).activation, before)
        assert [(routing.steps, routing.schedule) for routing in routings] == [
            (3, "linear")
        ] * 3
        assert torch.equal(network(images).activation, before)

    def test_a_failure_inside_leaves_the_network_as_it_was(self) -> None:
        network = matrix_network()
        with pytest.raises(ZeroDivisionError), routing_steps(network, 6):
            raise ZeroDivisionError
        assert [
            module.steps for module in network.modules() if isinstance(module, Routing)
        ] == [3] * 3

    @torch.no_grad()
    def test_as_many_steps_as_in_the_training_change_nothing(self) -> None:
        network = matrix_network(schedule="released", inverse_temperature=1.0)
        images = torch.rand(2, 1, 17, 17)
        before = network(images).activation
        with routing_steps(network, 3):
            assert torch.equal(network(images).activation, before)

    @torch.no_grad()
    @pytest.mark.parametrize(
        ("steps", "sharpness"),
        [(1, []), (2, [0.2]), (3, [0.1, 0.2]), (4, [0.1, 0.15, 0.2])],
    )
    def test_sharpness_is_stretched_too(
        self, steps: int, sharpness: list[float]
    ) -> None:
        network = matrix_network(sharpness=[0.1, 0.2])
        with routing_steps(network, steps):
            assert network(torch.rand(2, 1, 17, 17)).activation.isfinite().all()
            used = [
                module.sharpness
                for module in network.modules()
                if isinstance(module, EMRouting)
            ]
            assert used == [pytest.approx(sharpness)] * 3
        assert [
            module.sharpness
            for module in network.modules()
            if isinstance(module, EMRouting)
        ] == [[0.1, 0.2]] * 3

    def test_what_does_not_fit_is_told(self) -> None:
        class Stepless(Routing):
            def route(self, votes, activation):
                raise NotImplementedError

        with (
            pytest.raises(ValueError, match="steps must be at least 1, got 0"),
            routing_steps(matrix_network(), 0),
        ):
            pass
        with (
            pytest.raises(ValueError, match="Stepless does not"),
            routing_steps(nn.Sequential(Stepless()), 2),
        ):
            pass
        with (
            pytest.raises(ValueError, match="Linear has no routing"),
            routing_steps(nn.Linear(2, 2), 2),
        ):
            pass
        with (
            pytest.raises(ValueError, match="steps must be a whole number"),
            routing_steps(matrix_network(), 1.5),
        ):
            pass
