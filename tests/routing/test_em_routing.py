"""EM routing against Procedure 1 of the paper, written with densities instead of logarithms."""

import numpy as np
import pytest
import textbook
import torch

from torchcaps.ops import Votes
from torchcaps.routing import EMRouting, em_routing
from torchcaps.routing.em import inverse_temperature_schedule

BACKENDS = pytest.mark.parametrize("backend", ["naive", "chunked"])
LAMBDAS = (0.05, 0.1, 0.15, 0.2)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchcaps.ops.chunked.CPU_TILE", 100)


class Problem:
    """Children with 3 x 2 poses, 3 x 3 parents, activations of which some are 0."""

    def __init__(self, batch: int = 3, children: int = 11, parents: int = 4, inactive: bool = True) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.children = normal(batch, children, 3, 2)
        self.transforms = normal(children, parents, 2, 3)
        self.coordinates = normal(children, 9)
        self.activation = normal(batch, children).sigmoid()
        if inactive:
            self.activation[:, ::3] = 0
        self.beta_u, self.beta_a = normal(parents), normal(parents)

    def votes(self, backend: str | None = None) -> Votes:
        return Votes(self.children, self.transforms, self.coordinates, backend=backend)


@BACKENDS
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("inactive", [False, True], ids=["active", "some-inactive"])
def test_procedure_1(backend: str, steps: int, inactive: bool) -> None:
    problem = Problem(inactive=inactive)
    arguments = (problem.activation, problem.beta_u, problem.beta_a)
    routed = em_routing(problem.votes(backend), *arguments, LAMBDAS[:steps], variance_floor=0.05)
    for b, votes in enumerate(problem.votes().dense().numpy()):
        mean, activation, assignment = textbook.em(
            votes,
            problem.activation[b].numpy(),
            problem.beta_u.numpy(),
            problem.beta_a.numpy(),
            LAMBDAS[:steps],
            floor=0.05,
        )
        np.testing.assert_allclose(routed.pose[b], mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(routed.activation[b], activation, rtol=1e-9)
        np.testing.assert_allclose(routed.assignment[b], assignment, rtol=1e-9, atol=1e-12)


@BACKENDS
def test_one_child(backend: str) -> None:
    """The variance is 0: the floor keeps the cost finite."""
    problem = Problem(children=1, inactive=False)
    routed = em_routing(problem.votes(backend), problem.activation, problem.beta_u, problem.beta_a, LAMBDAS[:3])
    votes = problem.votes().dense()
    torch.testing.assert_close(routed.pose, votes[:, 0], rtol=1e-9, atol=1e-12)
    for b in range(3):
        expected = textbook.em(
            votes[b].numpy(),
            problem.activation[b].numpy(),
            problem.beta_u.numpy(),
            problem.beta_a.numpy(),
            LAMBDAS[:3],
        )
        np.testing.assert_allclose(routed.activation[b], expected[1], rtol=1e-9)


@BACKENDS
def test_inactive_children_might_as_well_not_be_there(backend: str) -> None:
    problem = Problem()
    arguments = (problem.beta_u, problem.beta_a, LAMBDAS[:3])
    routed = em_routing(problem.votes(backend), problem.activation, *arguments)
    active = problem.activation[0] > 0
    fewer = Votes(problem.children[:, active], problem.transforms[active], problem.coordinates[active])
    expected = em_routing(fewer, problem.activation[:, active], *arguments)
    torch.testing.assert_close(routed.pose, expected.pose)
    torch.testing.assert_close(routed.activation, expected.activation)


@BACKENDS
def test_no_active_child_at_all(backend: str) -> None:
    """No mass, no cost: the activation is that of beta_a alone; everything is finite, gradients too."""
    problem = Problem()
    problem.children.requires_grad_()
    activation = torch.zeros_like(problem.activation, requires_grad=True)
    routed = em_routing(problem.votes(backend), activation, problem.beta_u, problem.beta_a, LAMBDAS[:3])
    expected = (LAMBDAS[2] * problem.beta_a).sigmoid().expand(3, 4)
    torch.testing.assert_close(routed.activation, expected)
    gradients = torch.autograd.grad(routed.pose.sum() + routed.activation.sum(), (problem.children, activation))
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_without_activations_all_children_are_active() -> None:
    problem = Problem()
    arguments = (problem.beta_u, problem.beta_a, LAMBDAS[:3])
    ones = em_routing(problem.votes(), torch.ones_like(problem.activation), *arguments)
    torch.testing.assert_close(em_routing(problem.votes(), None, *arguments).pose, ones.pose)


def test_parents_whose_votes_agree_are_more_active() -> None:
    children = torch.tensor([[[1.0], [1.01], [0.99]]])
    transforms = torch.tensor([1.0, 1.0, 1.0, 3.0, -2.0, 5.0]).view(2, 3).T[..., None, None]
    routed = em_routing(Votes(children, transforms), None, torch.zeros(2), torch.zeros(2), (1.0, 1.0, 1.0))
    assert routed.activation[0, 0] > routed.activation[0, 1]


def test_schedule_of_the_released_code() -> None:
    assert inverse_temperature_schedule(3) == pytest.approx([0.01 * 0.05, 0.01 * 0.0975, 0.01 * 0.142625])
    assert inverse_temperature_schedule(1, final=2.0) == pytest.approx([0.1])


class TestModule:
    def test_parameters(self) -> None:
        bound = EMRouting().bind(5, 9)
        assert {name: tuple(p.shape) for name, p in bound.named_parameters()} == {"beta_u": (5,), "beta_a": (5,)}

    def test_settings_reach_the_function(self) -> None:
        problem = Problem()
        bound = EMRouting(2, variance_floor=0.1, final_inverse_temperature=3.0).bind(4, 9)
        bound.beta_u.data, bound.beta_a.data = problem.beta_u, problem.beta_a
        expected = em_routing(
            problem.votes(), problem.activation, problem.beta_u, problem.beta_a, (0.15, 0.2925), variance_floor=0.1
        )
        routed = bound(problem.votes(), problem.activation)
        torch.testing.assert_close(routed.pose, expected.pose)
        torch.testing.assert_close(routed.activation, expected.activation)

    def test_betas_learn(self) -> None:
        problem = Problem()
        bound = EMRouting().bind(4, 9)
        bound(problem.votes(), problem.activation).activation.sum().backward()
        assert (bound.beta_u.grad != 0).all()
        assert (bound.beta_a.grad != 0).all()

    def test_unbound(self) -> None:
        with pytest.raises(RuntimeError, match=r"no parameters yet.*\.bind"):
            EMRouting()(Problem().votes())


def test_wrong_arguments() -> None:
    problem = Problem()
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        em_routing(problem.votes(), None, problem.beta_u, problem.beta_a, ())
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        EMRouting(steps=0)
