"""EM routing against Procedure 1 of the paper with its variants, and against the
released code.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from by_the_book import em_routing, normal
from numpy.typing import NDArray
from torch import Tensor

from torchcaps.ops import Votes
from torchcaps.routing import (
    EM_PRESETS,
    EMRouting,
    create_routing,
)
from torchcaps.routing.em import inverse_temperatures
from torchcaps.routing.em_costs import Costs

BACKENDS = pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
STEPS = pytest.mark.parametrize("steps", [1, 2, 3, 5])
LAMBDAS = (0.05, 0.1, 0.15, 0.2, 0.25)


class Problem:
    """Children with 3 x 2 poses, 3 x 3 parents.

    Args:
        batch: B.
        children: I.
        parents: J.
        inactive: every third child has activation 0.
        lonely: all children but one have activation 0, so that all parents have the one
            child.
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
        self.__dict__ = {
            name: tensor.to(dtype) for name, tensor in self.__dict__.items()
        }
        return self

    def votes(self, backend: str | None = None) -> Votes:
        return Votes(self.children, self.transforms, self.coordinates, backend=backend)

    def arguments(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.activation, self.beta_u, self.beta_a


def book(
    V: Tensor,
    a: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    lambdas: Iterable[float],
    *,
    sharpness: float | Sequence[float] = 1.0,
    gradient: str = "all",
    variance_floor: float = 5e-4,
    mean_smoothing: float = 0.0,
    cost_scale: float = 1.0,
    activation_scale: float = 1.0,
    mass_scale: float | None = None,
    standardise: bool = False,
    cost_floor: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Hinton et al. 2018, Procedure 1, on stored votes (B, I, J, H), with the variants:
    poses, activations, the last R.

    The sharpness is the power of the likelihood in the E-step; under "last", Gaussians
    of earlier steps are constants.
    """
    _, I, J, _ = V.shape
    R = torch.full(V.shape[:3], 1 / J, dtype=V.dtype)
    mean = torch.zeros(V[:, 0].shape, dtype=V.dtype)
    variance = V
    log_a = V
    for step, inverse_temperature in enumerate(lambdas):
        if step > 0:
            if gradient == "last":
                mean = mean.detach()
                variance = variance.detach()
                log_a = log_a.detach()
            s = sharpness[step - 1] if isinstance(sharpness, list) else sharpness
            log_p = (
                -(
                    (V - mean[:, None]) ** 2 / variance[:, None]
                    + variance[:, None].log()
                ).sum(-1)
                / 2
            )
            R = (log_a[:, None] + s * log_p).softmax(-1)
        r = (R * a[..., None])[..., None]
        mean = mean_smoothing * mean + (1 - mean_smoothing) * (r * V).sum(1) / r.sum(1)
        variance = (r * (V - mean[:, None]) ** 2).sum(1) / r.sum(1) + variance_floor
        mass = r.sum(1) * (1 if mass_scale is None else mass_scale * J / I)
        cost = cost_scale * ((beta_u[:, None] + variance.log() / 2) * mass).sum(-1)
        if standardise:
            floor = cost_floor * cost.abs().mean(-1, keepdim=True)
            variance_of_cost = cost.var(-1, correction=0, keepdim=True)
            cost = (cost - cost.mean(-1, keepdim=True)) / (
                variance_of_cost + floor**2
            ).sqrt()
        log_a = torch.nn.functional.logsigmoid(
            inverse_temperature * (activation_scale * beta_a - cost)
        )
    return mean, log_a.exp(), R


def results(
    problem: Problem, votes: Votes, lambdas: Sequence[float], **settings: Any
) -> tuple[Tensor, ...]:
    """Of the library: poses, activations and the last R."""
    routed = em_routing(votes, *problem.arguments(), lambdas, **settings)
    return routed.pose, routed.activation, routed.assignment


def close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Relative to the largest number: elements that happen to be near 0 have no
    relative accuracy to ask for.
    """
    assert (actual.double() - expected).abs().max() <= tolerance * expected.abs().max()


def check(
    problem: Problem,
    backend: str | None,
    lambdas: Sequence[float],
    tolerance: float,
    **settings: Any,
) -> None:
    """Agreement with the book in float64, on the very votes that the library forms."""
    actual = results(problem, problem.votes(backend), lambdas, **settings)
    dense = problem.votes().dense().double()
    mean, active, R = book(
        dense, *(tensor.double() for tensor in problem.arguments()), lambdas, **settings
    )
    middle = mean.mean((1, 2), keepdim=True)  # votes far from zero: the distances count
    close(actual[0].double() - middle, mean - middle, tolerance)
    close(actual[1], active, tolerance)
    # A logit of float32 means, rounded at the size of the votes, is known to that over
    # sigma and no better.
    floor = settings.get("variance_floor", 5e-4)
    rounding = (
        float(torch.finfo(actual[0].dtype).eps) * float(mean.abs().max()) / floor**0.5
    )
    close(actual[2], R, tolerance + 10 * rounding)


PROBLEMS: dict[str, dict[str, Any]] = {
    "plain": {"inactive": False},
    "some-inactive": {},
    "far": {"far": 100.0},
    "tight": {"spread": 0.02},
    "far-and-tight": {"far": 100.0, "spread": 0.05},
    "one-child": {"children": 1, "inactive": False},
    "one-active-child": {"inactive": False, "lonely": True, "far": 100.0},
}


DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32], ids=["f64", "f32"]
)


@BACKENDS
@STEPS
@DTYPES
@pytest.mark.parametrize("kind", PROBLEMS)
def test_procedure_1(kind: str, dtype: torch.dtype, steps: int, backend: str) -> None:
    problem = Problem(**PROBLEMS[kind]).to(dtype)
    check(problem, backend, LAMBDAS[:steps], 1e-9 if dtype == torch.float64 else 1e-3)


SETTINGS: dict[str, dict[str, Any]] = {
    "mean_smoothing": {"mean_smoothing": 0.1},
    "strong_smoothing": {"mean_smoothing": 0.6},
    "cost_scale": {"cost_scale": 2.0},
    "activation_scale": {"activation_scale": 7.0},
    "mass_scale": {"mass_scale": 3.0},
    "standardise": {"standardise": True},
    "cost_floor": {"standardise": True, "cost_floor": 0.3},
    "floor": {"variance_floor": 0.3},
    "all": {
        "mean_smoothing": 0.2,
        "cost_scale": 0.5,
        "activation_scale": 3.0,
        "mass_scale": 20.0,
        "standardise": True,
        "variance_floor": 0.01,
    },
}
BESIDE: dict[str, dict[str, Any]] = {
    "no settings": {},
    "one sharpness": {"sharpness": 1 / 16},
    "a sharpness an E-step": {"sharpness": [0.1, 0.7, 0.3, 0.5]},
}


@BACKENDS
@STEPS
@pytest.mark.parametrize("gradient", ["all", "last"])
@pytest.mark.parametrize(
    "settings", [*SETTINGS.values(), *BESIDE.values()], ids=[*SETTINGS, *BESIDE]
)
def test_equations_and_their_gradients(
    settings: dict[str, Any], gradient: str, steps: int, backend: str
) -> None:
    problem = Problem()
    if isinstance(settings.get("sharpness"), list):
        settings = {"sharpness": settings["sharpness"][: steps - 1]}
    inputs = [
        tensor.requires_grad_()
        for tensor in (problem.children, problem.transforms, *problem.arguments())
    ]
    result = results(
        problem, problem.votes(backend), LAMBDAS[:steps], gradient=gradient, **settings
    )
    both = [
        book(
            problem.votes().dense(),
            *problem.arguments(),
            LAMBDAS[:steps],
            gradient=kind,
            **settings,
        )
        for kind in (gradient, "last" if gradient == "all" else "all")
    ]
    torch.testing.assert_close(result, both[0], rtol=1e-9, atol=1e-9)
    upstream = [normal(*output.shape, seed=5) for output in result[:2]]
    actual, expected, one_step_back = (
        torch.autograd.grad(seen[:2], inputs, upstream) for seen in (result, *both)
    )
    for value, right in zip(actual, expected, strict=True):
        close(value, right, 1e-7)
    assert torch.allclose(one_step_back[0], expected[0], rtol=1e-3) == (steps == 1)


class TestSettings:
    @pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
    def test_float32(self, settings: dict[str, Any]) -> None:
        check(Problem().to(torch.float32), None, LAMBDAS[:3], 1e-3, **settings)

    @pytest.mark.parametrize(
        "name", [name for name in SETTINGS if name != "strong_smoothing"]
    )
    def test_matters(self, name: str) -> None:
        """Or else the tests above compare nothing."""
        problem = Problem()
        plain, changed = (
            results(problem, problem.votes(), LAMBDAS[:3], **settings)[1]
            for settings in ({}, SETTINGS[name])
        )
        assert (plain - changed).abs().max() > 1e-3

    @BACKENDS
    def test_the_first_mean_is_smoothed_towards_0_and_the_variance_is_about_it(
        self, backend: str
    ) -> None:
        problem = Problem(far=100.0, inactive=False)
        problem.activation = torch.ones_like(problem.activation)
        settings = {"mean_smoothing": 0.1}
        routed = em_routing(
            problem.votes(backend), *problem.arguments(), [0.001], **settings
        )
        votes = problem.votes().dense()
        torch.testing.assert_close(routed.pose, 0.9 * votes.mean(1))
        # the mean is off by 10: the variance is 100 and more, and so the cost of every
        # unit is about log 10
        variance = (votes - routed.pose[:, None]).square().mean(1) + 5e-4
        assert (variance > 80).all()
        cost = ((problem.beta_u[:, None] + variance.log() / 2) * 11 / 4).sum(-1)
        torch.testing.assert_close(
            routed.activation, (0.001 * (problem.beta_a - cost)).sigmoid()
        )

    def test_with_scaled_mass_doubled_children_cost_the_same(self) -> None:
        problem = Problem()
        twice = Votes(
            problem.children.repeat(1, 2, 1, 1),
            problem.transforms.repeat(2, 1, 1, 1),
            problem.coordinates.repeat(2, 1),
        )
        settings = {"mass_scale": 10.0}
        activation, *betas = problem.arguments()
        expected = em_routing(
            problem.votes(), activation, *betas, LAMBDAS[:3], **settings
        )
        routed = em_routing(
            twice, activation.repeat(1, 2), *betas, LAMBDAS[:3], **settings
        )
        torch.testing.assert_close(routed.activation, expected.activation)
        plain = em_routing(twice, activation.repeat(1, 2), *betas, LAMBDAS[:3])
        assert not torch.allclose(plain.activation, expected.activation, rtol=1e-2)

    def test_scaled_mass_keeps_its_digits_beside_a_mask(self) -> None:
        problem = Problem()
        activation, *betas = problem.arguments()
        mask = torch.ones(activation.shape, dtype=torch.bool)
        mask[:, 7:] = False
        votes = Votes(
            problem.children, problem.transforms, problem.coordinates, mask=mask
        )
        fewer = Votes(
            problem.children[:, :7], problem.transforms[:7], problem.coordinates[:7]
        )
        settings = {"mass_scale": 10.0}
        routed = em_routing(votes, activation, *betas, LAMBDAS[:1], **settings)
        expected = em_routing(fewer, activation[:, :7], *betas, LAMBDAS[:1], **settings)
        torch.testing.assert_close(
            routed.activation, expected.activation, rtol=1e-13, atol=0
        )

    @pytest.mark.parametrize("parents", [1, 4])
    def test_standardised_costs_that_are_all_the_same(self, parents: int) -> None:
        """One parent, or no active child: nothing to divide by."""
        problem = Problem(parents=parents)
        activation = (
            torch.zeros_like(problem.activation) if parents > 1 else problem.activation
        )
        activation.requires_grad_()
        settings = {"standardise": True}
        routed = em_routing(
            problem.votes(),
            activation,
            problem.beta_u,
            problem.beta_a,
            [1.0] * 3,
            **settings,
        )
        torch.testing.assert_close(
            routed.activation, problem.beta_a.sigmoid().expand(2, parents)
        )
        (gradient,) = torch.autograd.grad(
            routed.activation.sum() + routed.pose.sum(), activation
        )
        assert gradient.isfinite().all()

    def test_standardised_costs_that_are_nearly_the_same(self) -> None:
        """As those of parents to which children are shared out evenly: what scales them
        all has no gradient.
        """
        mass = torch.full((3, 8), 50.0, requires_grad=True)
        variance = 5.5e-3 + 1e-7 * torch.rand(
            3, 8, 16, generator=torch.Generator().manual_seed(0)
        )
        beta = torch.zeros(8)
        costs = Costs.of(beta, beta, 16, EMRouting(standardise=True))
        logit, _ = costs.logits(mass, variance.log().sum(-1), 1.0, None)
        (gradient,) = torch.autograd.grad(logit[:, 0].sum(), mass)
        assert (gradient.sum(1).abs() < 1e-4 * gradient.abs().sum(1)).all()


Array = NDArray[np.float64]


def released(
    V: Array,
    activation: Array,
    inverse_temperatures: Sequence[float],
    sigma_bias: float,
    activation_bias: float,
) -> tuple[Array, Array]:
    """The code released with Hinton et al. 2018, for one example (I, J, H): centres and
    activations.
    """
    I, J, H = V.shape
    post = np.full((I, J), 1 / J)
    center = np.zeros((J, H))
    variance = np.zeros((J, H))
    logit = np.zeros(J)
    for t, lam in enumerate(inverse_temperatures):
        if t > 0:
            log_prob = np.zeros((I, J))
            for j in range(J):
                distance = ((V[:, j] - center[j]) ** 2 / variance[j]).sum(-1)
                log_prob[:, j] = (
                    -0.5 * distance
                    - 0.5 * np.log(variance[j]).sum()
                    - np.logaddexp(0, -logit[j])
                )
            post = np.exp(log_prob - log_prob.max(1, keepdims=True))
            post /= post.sum(1, keepdims=True)
        mass = np.zeros(J)
        new = np.zeros((J, H))
        variance = np.zeros((J, H))
        for j in range(J):
            for i in range(I):
                mass[j] += post[i, j] * activation[i]
                new[j] += post[i, j] * activation[i] * V[i, j]
            new[j] /= mass[j]
        center = 0.9 * new + 0.1 * center
        for j in range(J):
            for i in range(I):
                variance[j] += post[i, j] * activation[i] * (V[i, j] - center[j]) ** 2
            variance[j] = 5e-4 + variance[j] / mass[j]
        completeness = -np.log(variance).sum(1) - sigma_bias * H * (
            np.log(2 * np.pi) + 1
        )
        logit = lam * (mass * completeness - 5000 * activation_bias)
    return center, 1 / (1 + np.exp(-logit))


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
            center, activation = released(
                votes,
                problem.activation[b].numpy(),
                lambdas,
                sigma_bias,
                activation_bias,
            )
            np.testing.assert_allclose(routed.pose[b], center, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(
                routed.activation[b], activation, rtol=1e-5
            )  # the betas are made in float32

    @pytest.mark.parametrize("name", sorted(EM_PRESETS))
    def test_makes_what_the_table_says(self, name: str) -> None:
        routing = EMRouting.preset(name, steps=2)
        assert routing.config() == EMRouting(steps=2, **EM_PRESETS[name]).config()

    def test_arguments_go_over_those_of_the_preset(self) -> None:
        assert EMRouting.preset(
            "released", beta_a=3.0, mean_smoothing=0.5
        ).config() == {
            **EMRouting.preset("released").config(),
            "beta_a": 3.0,
            "mean_smoothing": 0.5,
        }

    def test_paper_is_the_default(self) -> None:
        assert EMRouting.preset("paper").config() == EMRouting().config()

    def test_unknown(self) -> None:
        with pytest.raises(
            ValueError, match=r"preset must be one of \['paper', .*got 'google'"
        ):
            EMRouting.preset("google")


def test_last_gradient_in_half_precision() -> None:
    """The cast to float32 happens where the graph is not recorded unless someone takes
    care.
    """
    children = torch.randn(2, 11, 3, 2, dtype=torch.bfloat16, requires_grad=True)
    transforms = torch.randn(11, 4, 2, 3, dtype=torch.bfloat16, requires_grad=True)
    for backend in ("naive", "chunked", "native"):
        betas = torch.zeros(2, 4, requires_grad=True)
        routed = em_routing(
            Votes(children, transforms, backend=backend),
            None,
            betas[0],
            betas[1],
            LAMBDAS[:3],
            gradient="last",
        )
        loss = routed.pose.sum() + routed.activation.sum()
        assert all(
            tensor.abs().sum() > 0
            for tensor in torch.autograd.grad(loss, (children, transforms, betas))
        )


@BACKENDS
def test_no_active_child_at_all(backend: str) -> None:
    """No mass, no cost: the activation is that of beta_a alone; everything is finite,
    gradients too.
    """
    problem = Problem()
    problem.children.requires_grad_()
    activation = torch.zeros_like(problem.activation, requires_grad=True)
    routed = em_routing(
        problem.votes(backend), activation, problem.beta_u, problem.beta_a, LAMBDAS[:3]
    )
    expected = (LAMBDAS[2] * problem.beta_a).sigmoid().expand(2, 4)
    torch.testing.assert_close(routed.activation, expected)
    gradients = torch.autograd.grad(
        routed.pose.sum() + routed.activation.sum(), (problem.children, activation)
    )
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_without_activations_all_children_are_active() -> None:
    problem = Problem()
    arguments = (problem.beta_u, problem.beta_a, LAMBDAS[:3])
    ones = em_routing(problem.votes(), torch.ones_like(problem.activation), *arguments)
    torch.testing.assert_close(
        em_routing(problem.votes(), None, *arguments).pose, ones.pose
    )


def test_parents_whose_votes_agree_are_more_active() -> None:
    children = torch.tensor([[[1.0], [1.01], [0.99]]])
    transforms = (
        torch.tensor([1.0, 1.0, 1.0, 3.0, -2.0, 5.0]).view(2, 3).T[..., None, None]
    )
    routed = em_routing(
        Votes(children, transforms),
        None,
        torch.zeros(2),
        torch.zeros(2),
        (1.0, 1.0, 1.0),
    )
    assert routed.activation[0, 0] > routed.activation[0, 1]


class TestSchedules:
    def test_released_code(self) -> None:
        assert inverse_temperatures("released", 3, 0.01) == pytest.approx(
            [0.01 * x for x in (0.05, 0.0975, 0.142625)]
        )
        assert inverse_temperatures("released", 1, 2.0) == pytest.approx([0.1])

    @pytest.mark.parametrize(
        ("steps", "expected"),
        [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (5, [1, 1.5, 2, 2.5, 3])],
        ids=str,
    )
    def test_linear(self, steps: int, expected: list[float]) -> None:
        assert inverse_temperatures("linear", steps, 1.0) == pytest.approx(expected)
        assert inverse_temperatures("linear", steps, 0.5) == pytest.approx(
            [x / 2 for x in expected]
        )

    def test_constant(self) -> None:
        assert inverse_temperatures("constant", 4, 0.3) == [0.3] * 4

    def test_function(self) -> None:
        assert inverse_temperatures(lambda step, steps: 10 * steps + step, 3, 2.0) == [
            60,
            62,
            64,
        ]

    def test_unknown(self) -> None:
        with pytest.raises(ValueError, match=r"schedule must be one of .*got 'fast'"):
            inverse_temperatures("fast", 3, 1.0)

    @pytest.mark.parametrize(
        "schedule",
        ["released", "linear", "constant", lambda step, steps: 1 / (steps - step)],
    )
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
        torch.testing.assert_close(
            bound(problem.votes(), problem.activation).activation, expected.activation
        )


class TestModule:
    def test_parameters(self) -> None:
        bound = EMRouting(beta_u=0.5, beta_a=-2.0).bind(5, 9)
        parameters = dict(bound.named_parameters())
        assert torch.equal(parameters["unit_cost"], torch.full((5,), 0.5))
        assert torch.equal(parameters["activation_cost"], torch.full((5,), -2.0))

    @pytest.mark.parametrize("name", SETTINGS)
    def test_settings_reach_the_function(self, name: str) -> None:
        problem = Problem()
        options = SETTINGS[name]
        bound = EMRouting(2, inverse_temperature=3.0, **options).bind(4, 9)
        bound.unit_cost.data = problem.beta_u
        bound.activation_cost.data = problem.beta_a
        expected = em_routing(
            problem.votes(), *problem.arguments(), (0.15, 0.2925), **options
        )
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
        collected = []
        for gradient in ("all", "last"):
            bound = EMRouting(gradient=gradient).bind(4, 9).double()
            collected.append(
                torch.autograd.grad(
                    bound(problem.votes(), problem.activation).pose.sum(),
                    problem.children,
                )[0]
            )
        assert not torch.allclose(*collected, rtol=1e-3)


def entropy(routing: EMRouting, votes: Votes) -> float:
    R = routing(votes).assignment
    return -torch.xlogy(R, R).sum(-1).mean().item()


def test_no_scale_of_the_votes_makes_assignments_softer_but_the_sharpness_does() -> (
    None
):
    children = normal(2, 30, 4, 4)
    transforms = normal(30, 5, 4, 4, seed=1)
    routing = (
        EMRouting.preset("standardised", variance_floor=1e-12).bind(5, 16).double()
    )
    soft = (
        EMRouting.preset("standardised", variance_floor=1e-12, sharpness="mean")
        .bind(5, 16)
        .double()
    )
    hard = entropy(routing, Votes(children, transforms))
    scaled = entropy(
        routing, Votes(children, 100 * transforms)
    )  # the cost of activations changes a little
    assert scaled == pytest.approx(hard, rel=0.01)
    assert hard < 0.5 < 1.3 < entropy(soft, Votes(children, transforms)) < 1.61  # log 5


class TestSharpness:
    def test_default_is_the_paper(self) -> None:
        assert EMRouting().bind(4, 9).sharpnesses() == [1.0, 1.0]

    def test_mean_is_one_by_the_size_of_the_pose(self) -> None:
        assert EMRouting(sharpness="mean").bind(4, 16).sharpnesses() == [1 / 16, 1 / 16]

    def test_one_an_e_step(self) -> None:
        assert EMRouting(sharpness=(0.1, 0.5)).bind(4, 16).sharpnesses() == [0.1, 0.5]

    @pytest.mark.parametrize("sharpness", ["mean", 0.25, [0.1, 0.5]])
    def test_config(self, sharpness: Any) -> None:
        config = EMRouting(sharpness=sharpness).config()
        assert create_routing("em", **config).config()["sharpness"] == sharpness

    @pytest.mark.parametrize(
        "sharpness", [[0.1], [0.1, -0.1], ["1", "2"], [0.1, math.nan]]
    )
    def test_wrong(self, sharpness: Any) -> None:
        with pytest.raises(ValueError, match=r"^sharpness must be"):
            EMRouting(sharpness=sharpness)


def test_a_sequence_has_a_sharpness_for_each_e_step() -> None:
    with pytest.raises(ValueError, match=r"sharpness must be one number or 2, .*got 1"):
        EMRouting(3, sharpness=[0.5])
