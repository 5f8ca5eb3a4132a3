"""EM routing against Procedure 1 of the paper, and against each variant's own formula, in loops over the equations."""

from typing import Any

import numpy as np
import pytest
import textbook
import torch

from torchcaps.ops import Moments, Votes
from torchcaps.routing import EM_PRESETS, EMRouting, EMSettings, Routed, em_routing
from torchcaps.routing.em import em_m_step, inverse_temperatures

BACKENDS = pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
STEPS = pytest.mark.parametrize("steps", [1, 2, 3, 5])
LAMBDAS = (0.05, 0.1, 0.15, 0.2, 0.25)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 100)


class Problem:
    """Children with 3 x 2 poses, 3 x 3 parents.

    Args:
        batch: B.
        children: I.
        parents: J.
        inactive: every third child has activation 0.
        lonely: all children but one have activation 0, so that all parents have the one child.
        far: added to all votes.
        spread: of the votes about that.
    """

    def __init__(
        self,
        batch: int = 2,
        children: int = 11,
        parents: int = 4,
        inactive: bool = True,
        lonely: bool = False,
        far: float = 0.0,
        spread: float = 1.0,
    ) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.children = spread * normal(batch, children, 3, 2)
        self.transforms = normal(children, parents, 2, 3)
        self.coordinates = far + spread * normal(children, 9)
        self.activation = normal(batch, children).sigmoid()
        if inactive:
            self.activation[:, ::3] = 0
        if lonely:
            self.activation[:, 1:] = 0
        self.beta_u, self.beta_a = normal(parents), normal(parents)

    def to(self, dtype: torch.dtype) -> "Problem":
        self.__dict__ = {name: tensor.to(dtype) for name, tensor in self.__dict__.items()}
        return self

    def votes(self, backend: str | None = None) -> Votes:
        return Votes(self.children, self.transforms, self.coordinates, backend=backend)

    def arguments(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.activation, self.beta_u, self.beta_a


def close(actual: torch.Tensor, expected: np.ndarray, tolerance: float) -> None:
    """Relative to the largest number: elements that happen to be near 0 have no relative accuracy to ask for."""
    error = np.abs(actual.double().numpy() - expected).max()
    assert error <= tolerance * np.abs(expected).max(), error


def check(problem: Problem, routed: Routed, lambdas: tuple[float, ...], tolerance: float, **settings: Any) -> None:
    """Agreement with the textbook, on the very votes that the library forms."""
    dense = problem.votes().dense().double().numpy()
    activation, beta_u, beta_a = (tensor.double().numpy() for tensor in problem.arguments())
    for b, votes in enumerate(dense):
        mean, active, assignment = textbook.em(votes, activation[b], beta_u, beta_a, lambdas, **settings)
        middle = mean.mean()  # votes far from zero: the distances count
        close(routed.pose[b].double() - middle, mean - middle, tolerance)
        close(routed.activation[b], active, tolerance)
        # A logit of float32 means, rounded at the size of the votes, is known to that over sigma and no better.
        rounding = float(torch.finfo(routed.pose.dtype).eps) * np.abs(mean).max() / np.sqrt(settings.get("floor", 5e-4))
        close(routed.assignment[b], assignment, tolerance + 10 * rounding)


PROBLEMS: dict[str, dict[str, Any]] = {
    "plain": {"inactive": False},
    "some-inactive": {},
    "far": {"far": 100.0},
    "tight": {"spread": 0.02},
    "far-and-tight": {"far": 100.0, "spread": 0.05},
    "one-child": {"children": 1, "inactive": False},
    "one-active-child": {"inactive": False, "lonely": True, "far": 100.0},
}


@BACKENDS
@STEPS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("kind", PROBLEMS)
def test_procedure_1(kind: str, dtype: torch.dtype, steps: int, backend: str) -> None:
    problem = Problem(**PROBLEMS[kind]).to(dtype)
    routed = em_routing(problem.votes(backend), *problem.arguments(), LAMBDAS[:steps])
    check(problem, routed, LAMBDAS[:steps], 1e-6 if dtype == torch.float64 else 1e-3)


@BACKENDS
def test_one_child(backend: str) -> None:
    """The variance is 0: the floor keeps the cost finite, and the pose is the vote."""
    problem = Problem(children=1, inactive=False)
    routed = em_routing(problem.votes(backend), *problem.arguments(), LAMBDAS[:3])
    torch.testing.assert_close(routed.pose, problem.votes().dense()[:, 0], rtol=1e-9, atol=1e-12)
    assert routed.activation.isfinite().all()


SETTINGS: dict[str, dict[str, Any]] = {
    "mean_smoothing": {"mean_smoothing": 0.1},
    "strong_smoothing": {"mean_smoothing": 0.6},
    "cost_scale": {"cost_scale": 2.0},
    "activation_scale": {"activation_scale": 7.0},
    "mass_scale": {"mass_scale": 3.0},
    "standardise": {"standardise": True},
    "floor": {"floor": 0.3},
    "all": {
        "mean_smoothing": 0.2,
        "cost_scale": 0.5,
        "activation_scale": 3.0,
        "mass_scale": 20.0,
        "standardise": True,
        "floor": 0.01,
    },
}


def library_names(settings: dict[str, Any]) -> dict[str, Any]:
    return {"variance_floor" if name == "floor" else name: value for name, value in settings.items()}


class TestSettings:
    @BACKENDS
    @STEPS
    @pytest.mark.parametrize("name", SETTINGS)
    def test_textbook(self, name: str, steps: int, backend: str) -> None:
        problem = Problem()
        settings = EMSettings(**library_names(SETTINGS[name]))
        routed = em_routing(problem.votes(backend), *problem.arguments(), LAMBDAS[:steps], settings)
        check(problem, routed, LAMBDAS[:steps], 1e-6, **SETTINGS[name])

    @pytest.mark.parametrize("name", SETTINGS)
    def test_float32(self, name: str) -> None:
        problem = Problem().to(torch.float32)
        settings = EMSettings(**library_names(SETTINGS[name]))
        routed = em_routing(problem.votes(), *problem.arguments(), LAMBDAS[:3], settings)
        check(problem, routed, LAMBDAS[:3], 1e-3, **SETTINGS[name])

    @pytest.mark.parametrize("name", [name for name in SETTINGS if name != "strong_smoothing"])
    def test_matters(self, name: str) -> None:
        """Or else the tests above compare nothing."""
        problem = Problem()
        plain = em_routing(problem.votes(), *problem.arguments(), LAMBDAS[:3])
        routed = em_routing(
            problem.votes(), *problem.arguments(), LAMBDAS[:3], EMSettings(**library_names(SETTINGS[name]))
        )
        assert (plain.activation - routed.activation).abs().max() > 1e-3

    @BACKENDS
    def test_the_first_mean_is_smoothed_towards_0_and_the_variance_is_about_it(self, backend: str) -> None:
        problem = Problem(far=100.0, inactive=False)
        problem.activation = torch.ones_like(problem.activation)
        settings = EMSettings(mean_smoothing=0.1)
        one = em_routing(problem.votes(backend), *problem.arguments(), [0.001], settings)
        votes = problem.votes().dense()
        torch.testing.assert_close(one.pose, 0.9 * votes.mean(1))
        # the mean is off by 10: the variance is 100 and more, and so the cost of every unit is about log 10
        variance = (votes - one.pose[:, None]).square().mean(1) + 5e-4
        assert (variance > 80).all()
        cost = ((problem.beta_u[:, None] + variance.log() / 2) * 11 / 4).sum(-1)
        torch.testing.assert_close(one.activation, (0.001 * (problem.beta_a - cost)).sigmoid())

    def test_with_scaled_mass_doubled_children_cost_the_same(self) -> None:
        problem = Problem()
        twice = Votes(
            problem.children.repeat(1, 2, 1, 1), problem.transforms.repeat(2, 1, 1, 1), problem.coordinates.repeat(2, 1)
        )
        settings = EMSettings(mass_scale=10.0)
        activation, *betas = problem.arguments()
        expected = em_routing(problem.votes(), activation, *betas, LAMBDAS[:3], settings)
        routed = em_routing(twice, activation.repeat(1, 2), *betas, LAMBDAS[:3], settings)
        torch.testing.assert_close(routed.activation, expected.activation)
        plain = em_routing(twice, activation.repeat(1, 2), *betas, LAMBDAS[:3])
        assert not torch.allclose(plain.activation, expected.activation, rtol=1e-2)

    def test_scaled_mass_keeps_its_digits_beside_a_mask(self) -> None:
        problem = Problem()
        activation, *betas = problem.arguments()
        mask = torch.ones(activation.shape, dtype=torch.bool)
        mask[:, 7:] = False
        votes = Votes(problem.children, problem.transforms, problem.coordinates, mask=mask)
        fewer = Votes(problem.children[:, :7], problem.transforms[:7], problem.coordinates[:7])
        settings = EMSettings(mass_scale=10.0)
        routed = em_routing(votes, activation, *betas, LAMBDAS[:1], settings)
        expected = em_routing(fewer, activation[:, :7], *betas, LAMBDAS[:1], settings)
        torch.testing.assert_close(routed.activation, expected.activation, rtol=1e-13, atol=0)

    @pytest.mark.parametrize("parents", [1, 4])
    def test_standardised_costs_that_are_all_the_same(self, parents: int) -> None:
        """One parent, or no active child: nothing to divide by."""
        problem = Problem(parents=parents)
        activation = torch.zeros_like(problem.activation) if parents > 1 else problem.activation
        activation.requires_grad_()
        settings = EMSettings(standardise=True)
        routed = em_routing(problem.votes(), activation, problem.beta_u, problem.beta_a, [1.0] * 3, settings)
        torch.testing.assert_close(routed.activation, problem.beta_a.sigmoid().expand(2, parents))
        (gradient,) = torch.autograd.grad(routed.activation.sum() + routed.pose.sum(), activation)
        assert gradient.isfinite().all()

    def test_standardised_costs_that_are_nearly_the_same(self) -> None:
        """As those of parents to which children are shared out evenly: what scales them all has no gradient."""
        mass = torch.full((3, 8), 50.0, requires_grad=True)
        variance = 5e-3 + 1e-7 * torch.rand(3, 8, 16, generator=torch.Generator().manual_seed(0))
        moments = Moments(mass, torch.zeros(3, 8, 16), 50 * variance)
        votes, beta = Votes(torch.zeros(3, 2, 4, 4), torch.zeros(2, 8, 4, 4)), torch.zeros(8)
        logit = em_m_step(votes, moments, beta, beta, 1.0, EMSettings(standardise=True)).logit
        (gradient,) = torch.autograd.grad(logit[:, 0].sum(), mass)
        assert (gradient.sum(1).abs() < 1e-4 * gradient.abs().sum(1)).all()


class TestPresets:
    @BACKENDS
    @STEPS
    @pytest.mark.parametrize(
        ("name", "sigma_bias", "activation_bias", "final"),
        [("released", 0.5, 0.5, 0.01), ("released_class", 2.0, 1.0, 0.01 / 4)],
    )
    @pytest.mark.parametrize("spread", [1.0, 0.1])
    def test_released(
        self,
        name: str,
        sigma_bias: float,
        activation_bias: float,
        final: float,
        steps: int,
        backend: str,
        spread: float,
    ) -> None:
        problem = Problem(spread=spread)
        bound = EMRouting.preset(name, steps=steps).bind(4, 9).double()
        with torch.no_grad():
            routed = bound(problem.votes(backend), problem.activation)
        lambdas = tuple(final * (1 - 0.95 ** (t + 1)) for t in range(steps))
        for b, votes in enumerate(problem.votes().dense().numpy()):
            center, activation = textbook.em_released(
                votes, problem.activation[b].numpy(), lambdas, sigma_bias, activation_bias
            )
            np.testing.assert_allclose(routed.pose[b], center, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(routed.activation[b], activation, rtol=1e-5)  # the betas are made in float32

    @pytest.mark.parametrize("name", sorted(EM_PRESETS))
    def test_makes_what_the_table_says(self, name: str) -> None:
        routing = EMRouting.preset(name, steps=2)
        assert routing.config() == EMRouting(steps=2, **EM_PRESETS[name]).config()

    def test_arguments_go_over_those_of_the_preset(self) -> None:
        assert EMRouting.preset("released", beta_a=3.0, mean_smoothing=0.5).config() == {
            **EMRouting.preset("released").config(),
            "beta_a": 3.0,
            "mean_smoothing": 0.5,
        }

    def test_paper_is_the_default(self) -> None:
        assert EMRouting.preset("paper").config() == EMRouting().config()

    def test_unknown(self) -> None:
        with pytest.raises(ValueError, match=r"preset must be one of \['paper', .*got 'google'"):
            EMRouting.preset("google")


def unrolled(problem: Problem, steps: int, gradient: str) -> torch.Tensor:
    """Means and activations, (B, J, H + 1), by Procedure 1 on whole tensors, in which autograd finds the gradient."""
    V = problem.votes().dense()  # [B, I, J, H]
    R = torch.full(V.shape[:3], 1 / V.shape[2], dtype=V.dtype)
    for inverse_temperature in LAMBDAS[:steps]:
        r = (R * problem.activation[..., None])[..., None]
        mean = (r * V).sum(1) / r.sum(1)
        variance = (r * (V - mean[:, None]).square()).sum(1) / r.sum(1) + 5e-4
        cost = ((problem.beta_u[:, None] + variance.log() / 2) * r.sum(1)).sum(-1)
        active = (inverse_temperature * (problem.beta_a - cost)).sigmoid()
        found = torch.cat([mean, active[..., None]], -1)
        if gradient == "last":
            mean, variance, active = mean.detach(), variance.detach(), active.detach()
        distance = ((V - mean[:, None]).square() / variance[:, None] + variance.log()[:, None]).sum(-1)
        R = (active.log()[:, None] - distance / 2).softmax(-1)
    return found


@BACKENDS
@STEPS
@pytest.mark.parametrize("gradient", ["all", "last"])
def test_gradient_through_all_steps_and_through_the_last(backend: str, steps: int, gradient: str) -> None:
    problem = Problem()
    inputs = [problem.children, problem.transforms, *problem.arguments()]
    for tensor in inputs:
        tensor.requires_grad_()
    routed = em_routing(problem.votes(backend), *problem.arguments(), LAMBDAS[:steps], gradient=gradient)
    found = torch.cat([routed.pose, routed.activation[..., None]], -1)
    expected = unrolled(problem, steps, gradient)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = torch.autograd.grad(expected, inputs, upstream)
    for actual, right in zip(torch.autograd.grad(found, inputs, upstream), wanted, strict=True):
        torch.testing.assert_close(actual, right, rtol=1e-7, atol=1e-7 * float(right.abs().max()))
    other = unrolled(problem, steps, "last" if gradient == "all" else "all")
    same = torch.allclose(torch.autograd.grad(other, problem.children, upstream)[0], wanted[0], rtol=1e-3)
    assert same == (steps == 1)


def test_last_gradient_in_half_precision() -> None:
    """The cast to float32 happens where the graph is not recorded unless someone takes care."""
    children = torch.randn(2, 11, 3, 2, dtype=torch.bfloat16, requires_grad=True)
    transforms = torch.randn(11, 4, 2, 3, dtype=torch.bfloat16, requires_grad=True)
    for backend in ("naive", "chunked", "native"):
        betas = torch.zeros(2, 4, requires_grad=True)
        routed = em_routing(
            Votes(children, transforms, backend=backend), None, betas[0], betas[1], LAMBDAS[:3], gradient="last"
        )
        loss = routed.pose.sum() + routed.activation.sum()
        assert all(one.abs().sum() > 0 for one in torch.autograd.grad(loss, (children, transforms, betas)))


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
    expected = (LAMBDAS[2] * problem.beta_a).sigmoid().expand(2, 4)
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


class TestSchedules:
    def test_released_code(self) -> None:
        assert inverse_temperatures("released", 3, 0.01) == pytest.approx([0.01 * x for x in (0.05, 0.0975, 0.142625)])
        assert inverse_temperatures("released", 1, 2.0) == pytest.approx([0.1])

    @pytest.mark.parametrize(
        ("steps", "expected"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (5, [1, 1.5, 2, 2.5, 3])], ids=str
    )
    def test_linear(self, steps: int, expected: list[float]) -> None:
        assert inverse_temperatures("linear", steps, 1.0) == pytest.approx(expected)
        assert inverse_temperatures("linear", steps, 0.5) == pytest.approx([x / 2 for x in expected])

    def test_constant(self) -> None:
        assert inverse_temperatures("constant", 4, 0.3) == [0.3] * 4

    def test_function(self) -> None:
        assert inverse_temperatures(lambda step, steps: 10 * steps + step, 3, 2.0) == [60, 62, 64]

    def test_unknown(self) -> None:
        with pytest.raises(ValueError, match=r"schedule must be one of .*got 'fast'"):
            inverse_temperatures("fast", 3, 1.0)

    @pytest.mark.parametrize("schedule", ["released", "linear", "constant", lambda step, steps: 1 / (steps - step)])
    def test_reaches_the_module(self, schedule: Any) -> None:
        problem = Problem()
        bound = EMRouting(3, schedule, 0.7).bind(4, 9).double()
        expected = em_routing(
            problem.votes(),
            problem.activation,
            bound.unit_cost,
            bound.activation_cost,
            inverse_temperatures(schedule, 3, 0.7),
        )
        torch.testing.assert_close(bound(problem.votes(), problem.activation).activation, expected.activation)


class TestModule:
    def test_parameters(self) -> None:
        bound = EMRouting(beta_u=0.5, beta_a=-2.0).bind(5, 9)
        parameters = dict(bound.named_parameters())
        assert torch.equal(parameters["unit_cost"], torch.full((5,), 0.5))
        assert torch.equal(parameters["activation_cost"], torch.full((5,), -2.0))

    @pytest.mark.parametrize("name", SETTINGS)
    def test_settings_reach_the_function(self, name: str) -> None:
        problem = Problem()
        options = library_names(SETTINGS[name])
        bound = EMRouting(2, inverse_temperature=3.0, **options).bind(4, 9)
        bound.unit_cost.data, bound.activation_cost.data = problem.beta_u, problem.beta_a
        expected = em_routing(problem.votes(), *problem.arguments(), (0.15, 0.2925), EMSettings(**options))
        routed = bound(problem.votes(), problem.activation)
        torch.testing.assert_close(routed.pose, expected.pose)
        torch.testing.assert_close(routed.activation, expected.activation)

    @pytest.mark.parametrize("preset", sorted(EM_PRESETS))
    def test_betas_learn(self, preset: str) -> None:
        problem = Problem()
        bound = EMRouting.preset(preset).bind(4, 9).double()
        routed = bound(problem.votes(), problem.activation)
        (routed.activation * torch.arange(4)).sum().backward()
        assert (bound.unit_cost.grad != 0).all()
        assert (bound.activation_cost.grad != 0).all()

    def test_gradient_reaches_the_function(self) -> None:
        problem = Problem()
        problem.children.requires_grad_()
        found = []
        for gradient in ("all", "last"):
            bound = EMRouting(gradient=gradient).bind(4, 9).double()
            found.append(
                torch.autograd.grad(bound(problem.votes(), problem.activation).pose.sum(), problem.children)[0]
            )
        assert not torch.allclose(*found, rtol=1e-3)
