"""EM routing (Hinton, Sabour & Frosst 2018): parents are Gaussians, routing fits the
mixture.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from torchcaps.numerics import (
    Costs,
    Finite,
    Floor,
    FloorOrNone,
    NotNegative,
    Positive,
    Share,
    as_constants,
    check_choice,
    positive,
)
from torchcaps.ops import Gaussian, Gaussians, Moments, Votes
from torchcaps.ops.backend import EMState, Mixture, mean_of, variance_of
from torchcaps.routing.base import (
    GRADIENTS,
    Gradient,
    LayerShape,
    Routed,
    Steps,
    check_parents,
    register_routing,
)
from torchcaps.routing.evidence import AgreementRouting
from torchcaps.spec import check_fields, settings

Schedule = Literal["released", "linear", "constant"]
SCHEDULES = list(get_args(Schedule))
Sharpness = float | Tensor | Sequence[float | Tensor]
Learned = Literal["layer", "parent"]


@dataclass(frozen=True)
class EMSettings:
    r"""Where implementations of the M-step differ; the defaults are Procedure 1, but
    for the floor.

    Args:
        variance_floor: added to the variances, 1.1e-19 or more: a parent with one child
            would have variance 0, a cost of minus infinity, and gradients of NaN.
        mean_smoothing: share of the previous mean in the new one (0.1 in the released
            code, where the first mean is smoothed towards 0).
        cost_scale: factor of the cost (2 in the released code, which adds up the
            logarithms of variances and not of deviations).
        activation_scale: factor of ``beta_a`` (5000 in the released code).
        mass_scale: the masses in the cost are divided by the mean number of children a
            parent, I / J, and multiplied by this (Gritzman 2019: 100), so that one
            inverse temperature fits layers of any size. None leaves them.
        standardise: the cost is standardised over the parents, to mean 0 and deviation
            1, before ``beta_a`` is added. Two parents then always get -1 and 1, and one
            parent 0: use another setting for fewer than three. Costs that differ by
            little more than float32 resolves get a smaller deviation than 1: see
            :func:`~torchcaps.numerics.standardised`.
        relative_floor: above 0, in place of ``variance_floor``: the floor is this share
            of :func:`votes_variance`, and costs count variances in that unit, as if the
            votes of each example had variance 1. No scale of the votes then changes
            assignments and activations; in float32 gradients need deviations of the
            votes between about 1e-7 and 1e10.
        cost_floor: c, a floor under the deviation that standardised costs are divided
            by, as a share of their mean size: :math:`\sqrt{\operatorname{var} + (c
            \operatorname{mean}|\text{cost}|)^2}`. Above 0, parents of nearly the same
            cost get nearly the same activation.

    Raises:
        ValueError: if one is no finite number, or outside of these bounds; floors must
            have finite squares and inverse squares in float32, whatever the dtype of
            the votes.

    Example:
        >>> tc.routing.EMSettings(standardise=True).variance_floor
        0.0005
    """

    variance_floor: Floor = 5e-4
    mean_smoothing: Share = 0.0
    cost_scale: Finite = 1.0
    activation_scale: Finite = 1.0
    mass_scale: Positive | None = None
    standardise: bool = False
    relative_floor: FloorOrNone = 0.0
    cost_floor: NotNegative = 0.0

    def __post_init__(self) -> None:
        check_fields(self)


def votes_variance(moments: Moments, windows: int = 1) -> Tensor:
    r"""The variance of all votes of an example about the means of their parents, (B, 1,
    1).

    .. math:: \sigma_n^2 = \frac{\sum_{wjh} Q_{nwjh}}{H \sum_{wj} N_{nwj}}

    One number for all windows, parents and dimensions of an example, whatever else is
    in the batch: a window of few active children has hardly a variance of its own, and
    different floors would have parents of different places compete by different rules.
    An example whose votes all agree, but for rounding, gets 1.

    Args:
        moments: the moments of the first step, with the scatter.
        windows: W, how many successive rows of the batch belong to one example.
    """
    assert moments.scatter is not None
    rounding = (
        16 * torch.finfo(moments.sum.dtype).eps * moments.sum
    ).square() / positive(moments.mass)[..., None]
    sums = (
        moments.scatter.sum((1, 2)),
        moments.mass.sum(1) * moments.sum.shape[-1],
        rounding.detach().sum((1, 2)),
    )
    scatter, count, least = (
        torch.stack(sums).unflatten(1, (-1, windows)).sum(-1)
    )  # [N] each
    agree = scatter <= least  # NaN is not: it comes through
    variance = torch.where(agree, 1.0, scatter / torch.where(agree, 1.0, count))
    return variance.repeat_interleave(windows)[:, None, None]


def em_m_step(
    votes: Votes,
    moments: Moments,
    beta_u: Tensor,
    beta_a: Tensor,
    inverse_temperature: float,
    settings: "EMSettings | EMRouting" = EMSettings(),
    *,
    previous: EMState | None = None,
    unit: Tensor | None = None,
) -> EMState:
    r"""The M-step of Procedure 1.

    .. math::
        \mu_j = \frac{S_j}{N_j}, \quad \sigma_j^2 = \frac{Q_j}{N_j} + \text{floor}, \quad
        \text{cost}_{jh} = (\beta_u + \log \sigma_{jh}) N_j, \quad
        a_j = \operatorname{sigmoid}\Big(\lambda \big(\beta_a - \sum_h \text{cost}_{jh}\big)\Big)

    Args:
        votes: the votes of I children for J parents.
        moments: the moments of the votes, with the scatter.
        beta_u: minus the cost of describing one number of a vote without this parent,
            (J,).
        beta_a: minus the cost of switching the parent on, (J,).
        inverse_temperature: lambda.
        settings: where implementations differ.
        previous: the parents before, for ``mean_smoothing``; None before the first
            step.
        unit: the unit of variances, (B, 1, 1), for ``relative_floor``; None counts them
            as they are.
    """
    factor = _mass_factor(votes, settings)
    costs = Costs.of(beta_u, beta_a, votes.shape[3], settings, factor)
    return _m_step(votes, moments, costs, inverse_temperature, settings, previous, unit)


def _m_step(
    votes: Votes,
    moments: Moments,
    costs: Costs,
    inverse_temperature: float,
    settings: "EMSettings | EMRouting",
    previous: EMState | None,
    unit: Tensor | None,
) -> EMState:
    """:func:`em_m_step` with costs that are the same in all steps."""
    gaussians = _smoothed(moments, settings, previous, unit)
    parents, size = gaussians.mean.shape[1:]
    mass = moments.mass
    log_determinant = gaussians.log_determinant
    if unit is not None:
        log_determinant = log_determinant - size * unit.log().squeeze(-1)
    if settings.mass_scale is not None and votes.mask is not None:
        mass = (
            mass * (settings.mass_scale * parents) / votes.count
        )  # in this order: the quotient would be float32
    before = None if previous is None else previous.rounding
    logit, rounding = costs.logits(mass, log_determinant, inverse_temperature, before)
    return EMState(gaussians, logit, rounding)


def _mass_factor(votes: Votes, settings: "EMSettings | EMRouting") -> float:
    """The factor of all masses in the cost; 1 with a mask, where each row has its own,
    see :func:`_m_step`.
    """
    if settings.mass_scale is None or votes.mask is not None or not votes.shape[1]:
        return 1.0
    return settings.mass_scale * votes.parents / votes.shape[1]


def _smoothed(
    moments: Moments,
    settings: "EMSettings | EMRouting",
    previous: EMState | None,
    unit: Tensor | None,
) -> Gaussians:
    """Means, smoothed or not, and variances about them with their floor."""
    mean = mean_of(moments)
    variance = variance_of(moments)
    if settings.mean_smoothing:
        old = torch.zeros_like(mean) if previous is None else previous.gaussians.mean
        smooth = mean + settings.mean_smoothing * (old - mean)
        mean, variance = smooth, variance + (mean - smooth).square()
    return Gaussians.of(
        mean,
        variance
        + (settings.variance_floor if unit is None else settings.relative_floor * unit),
    )


def em_similarity(state: EMState, sharpness: float | Tensor = 1.0) -> Gaussian:
    r"""The E-step's similarity, :math:`\log a_j + s_j \log \mathcal N(V_{ij}; \mu_j,
    \sigma_j^2)`, but for a constant.

    The logarithm adds up H dimensions, and it does not change when all votes are
    scaled: unlike under an inner product, no weight can learn how sharp the assignment
    is. With s = 1, as published, one M-step leaves it all but hard; with s = 1 / H it
    is the mean over the dimensions that counts.

    Args:
        state: the parents.
        sharpness: s, an inverse temperature of the likelihood alone: a number, or one a
            parent, (J,).
    """
    mean, _, precision, log_determinant = state.gaussians
    likelihood = Gaussian(mean, precision, log_determinant)
    if isinstance(sharpness, Tensor) or sharpness != 1:
        likelihood = likelihood.sharpened(sharpness)
    log_weight = torch.add(logsigmoid(state.logit), likelihood.log_weight, alpha=-0.5)
    return replace(likelihood, log_weight=log_weight)


def _at_once(
    votes: Votes,
    weights: Tensor | None,
    costs: tuple[Tensor, Tensor],
    temperatures: Sequence[float],
    settings: "EMSettings | EMRouting",
    sharpness: Sequence[float | Tensor],
) -> Routed | None:
    """All steps by a backend that makes them at once; None where it has not these
    settings.
    """
    if settings.mean_smoothing or settings.relative_floor:
        return None
    if any(isinstance(number, Tensor) for number in sharpness):
        return None
    mixture = Mixture(
        tuple(map(float, temperatures)),
        tuple(map(float, sharpness)),
        settings.variance_floor,
        settings.cost_scale * _mass_factor(votes, settings),
        settings.activation_scale,
        settings.standardise,
        settings.cost_floor,
    )
    fitted = votes.mixture(mixture, weights, *costs)
    if fitted is None:
        return None
    mean, logit, similarity = fitted
    return Routed(mean, logit.sigmoid(), votes, similarity, logit)


def inverse_temperatures(
    schedule: Schedule | Callable[[int, int], float], steps: int, final: float
) -> list[float]:
    """Lambda of each step.

    Args:
        schedule: ``"released"``: final * (1 - 0.95^(step + 1)), as in the released
            code; ``"linear"``: from 1 to min(steps, 3), times final, as in most ports;
            ``"constant"``: final; or a function of (step, steps), times final.
        steps: how many.
        final: the scale.
    """
    if callable(schedule):
        return [final * schedule(step, steps) for step in range(steps)]
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {SCHEDULES}, got {schedule!r}")
    rise = (min(steps, 3) - 1) / max(steps - 1, 1)
    temperatures = [final] * steps
    for step in range(steps):
        if schedule == "released":
            temperatures[step] *= 1 - 0.95 ** (step + 1)
        elif schedule == "linear":
            temperatures[step] *= 1 + rise * step
    return temperatures


def em_routing(
    votes: Votes,
    weights: Tensor | None,
    beta_u: Tensor,
    beta_a: Tensor,
    inverse_temperatures: Sequence[float],
    settings: "EMSettings | EMRouting" = EMSettings(),
    gradient: Gradient = "all",
    sharpness: Sharpness = 1.0,
) -> Routed:
    """Route by expectation maximisation: an M-step for each inverse temperature, and an
    E-step between any two.

    Args:
        votes: the votes of I children for J parents.
        weights: child activations, (N, G), or None for ones.
        beta_u: (J,).
        beta_a: (J,).
        inverse_temperatures: lambda of each step.
        settings: where implementations of the M-step differ; or a routing that has
            them.
        gradient: through ``"all"`` steps, as in the released code, or only through the
            ``"last"``, which then takes the Gaussians of the step before as constants.
            With standardised costs nearly all of the gradient comes through the earlier
            steps, in bursts hundreds of times as long as usual; what ``"last"`` leaves
            is far smaller and steadier, and no longer the gradient of the loss.
        sharpness: the sharpness of the E-steps, see :func:`em_similarity`: a number,
            one a parent (J,), or a sequence with one of these for each E-step.

    Raises:
        ValueError: if there are no inverse temperatures, another number of sharpnesses
            than of E-steps, or no such gradient.

    Source: Hinton, Sabour & Frosst 2018, "Matrix capsules with EM routing", Procedure
    1; the code released with it; Gritzman 2019, "Avoiding implementation pitfalls of
    matrix capsules with EM routing".
    """
    steps = len(inverse_temperatures)
    if not steps:
        raise ValueError("steps must be at least 1, got 0 inverse_temperatures")
    if gradient not in GRADIENTS:
        raise ValueError(f"gradient must be one of {[*GRADIENTS]}, got {gradient!r}")
    if not isinstance(sharpness, Sequence):
        sharpness = [sharpness] * (steps - 1)
    if len(sharpness) != steps - 1:
        raise _miscounted(sharpness, steps - 1)
    source = votes.source_on(votes.plan.choice.backend)
    if source.mixes and gradient == "all":
        fitted = _at_once(
            votes, weights, (beta_u, beta_a), inverse_temperatures, settings, sharpness
        )
        if fitted is not None:
            return fitted
    scaled = settings.mass_scale is not None
    factor = _mass_factor(votes, settings) if scaled else 1.0
    costs = Costs.of(beta_u, beta_a, votes.shape[3], settings, factor)
    smoothed = bool(settings.mean_smoothing or settings.relative_floor)
    as_in_procedure = not smoothed and (not scaled or votes.mask is None)
    similarity: Gaussian | None = None
    state: EMState | None = None
    unit: Tensor | None = None
    for step, inverse_temperature in enumerate(inverse_temperatures):
        frozen = gradient == "last" and step < steps - 1
        with as_constants() if frozen else nullcontext():
            if state is None:
                similarity = None
            else:
                similarity = em_similarity(state, sharpness[step - 1])
            moments = votes.moments(similarity, weights, scatter=True)
            if settings.relative_floor and state is None:
                unit = votes_variance(
                    moments, 1 if votes.sites is None else len(votes.sites)
                )
            if as_in_procedure:
                before = None if state is None else state.rounding
                floor = settings.variance_floor
                state = votes.m_step(moments, costs, inverse_temperature, floor, before)
            else:
                state = _m_step(
                    votes, moments, costs, inverse_temperature, settings, state, unit
                )
    assert state is not None
    return Routed(
        state.gaussians.mean, state.logit.sigmoid(), votes, similarity, state.logit
    )


def _miscounted(sharpness: Sequence[Any], count: int) -> ValueError:
    """The error to raise where there is not one sharpness for each E-step."""
    return ValueError(
        f"sharpness must be one number or {count}, one an E-step, got {len(sharpness)}"
    )


# beta_u of the released code is sigma_bias * (1 + log 2 pi) / 2, beta_a is minus its
# activation bias.
_RELEASED_UNIT = (1 + math.log(2 * math.pi)) / 2

EM_PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "released": {
        "mean_smoothing": 0.1,
        "cost_scale": 2.0,
        "activation_scale": 5000.0,
        "beta_u": 0.5 * _RELEASED_UNIT,
        "beta_a": -0.5,
    },
    "released_class": {
        "mean_smoothing": 0.1,
        "cost_scale": 2.0,
        "activation_scale": 5000.0,
        "beta_u": 2.0 * _RELEASED_UNIT,
        "beta_a": -1.0,
        "inverse_temperature": 0.01 / 4,
    },
    "standardised": {
        "standardise": True,
        "schedule": "linear",
        "inverse_temperature": 1.0,
    },
    "soft": {
        "standardise": True,
        "schedule": "linear",
        "inverse_temperature": 1.0,
        "sharpness": "mean",
    },
    "mass_scaled": {"mass_scale": 100.0},
}
"""Arguments of :class:`EMRouting` by name.

``paper``: Procedure 1 with the inverse temperature that its authors gave; ``released``:
the released code, in its convolutional layers and (``released_class``) in its class
layer. In those convolutions parents of different types do not compete, as under
``competition="position"`` of the layer, with three differences: the first step there
assigns each child evenly to the types of every window (1 / J), with a stride of 2 the
code looks up most children's normalisers at wrong places, and masses are 1e-7 larger
(1e-5 in the class layer). ``standardised``: the cost standardised over the parents, for
any layer size; ``soft``: the same, with the likelihood in the E-step a mean over the
dimensions of a pose and not a sum, so that it can be learned through several steps;
``mass_scaled``: Gritzman 2019.
"""


@register_routing("em")
@settings
class EMRouting(AgreementRouting):
    """Module form of :func:`em_routing`, with ``beta_u`` and ``beta_a`` for each
    parent.

    Args:
        steps: how many M-steps.
        schedule: the schedule of the inverse temperature: ``released``, ``linear``,
            ``constant``, or a function of (step, steps).
        inverse_temperature: its scale.
        variance_floor: added to the variances, above 0.
        mean_smoothing: share of the previous mean in the new one.
        cost_scale: factor of the cost.
        activation_scale: factor of beta_a.
        mass_scale: scale the masses in the cost to this many children a parent; None
            leaves them.
        standardise: standardise the cost over the parents, of which there should then
            be three or more.
        beta_u: initial value.
        beta_a: initial value.
        gradient: through all steps, or only the last.
        sharpness: the sharpness of the E-steps, above 0; ``"mean"`` is 1 / H, for
            likelihoods that are means over the H dimensions of a pose; a sequence has
            one number an E-step, for a sharpness that rises over the steps.
        learn_sharpness: learn a factor of it, kept positive: one for the ``"layer"``,
            or one a ``"parent"``; None learns none.
        relative_floor: above 0, in place of ``variance_floor``: a share of the variance
            of the votes, in whose unit costs are then counted too, so that no scale of
            the votes changes assignments and activations; in float32 gradients need
            deviations of the votes between about 1e-7 and 1e10.
        evidence: learn where each child belongs by itself, and start from that: see
            :class:`~torchcaps.routing.AgreementRouting`.
        cost_floor: under the deviation of standardised costs, as a share of their mean
            size; 0 for none.

    In float32 a parent whose children give it a mass of 1.1e-19 or less in all counts
    as one without children: pose 0 and no gradient, see
    :attr:`~torchcaps.ops.Moments.mean`. Sharp E-steps get there, as with many
    dimensions, large votes, or strong ``evidence``: of a layer's 31 parents up to 17
    did, which float64 still tells apart (from 1.5e-154 on). Nothing of a child goes
    through such a parent, but its pose is 0 and not the mean of its votes. Softer
    E-steps, as of ``sharpness="mean"``, or float64 avoid it.

    Example:
        >>> layer = tc.CapsLinear(
        ...     32,
        ...     10,
        ...     (4, 4),
        ...     (4, 4),
        ...     routing=tc.routing.EMRouting.preset("soft", steps=2),
        ... )
        >>> parents = layer(tc.Capsules(torch.randn(4, 32, 4, 4), torch.rand(4, 32)))
        >>> parents.pose.shape, parents.activation.shape
        (torch.Size([4, 10, 4, 4]), torch.Size([4, 10]))
    """

    gaussian = True

    steps: Steps = 3
    schedule: Schedule | Callable[[int, int], float] = "released"
    inverse_temperature: Finite = 0.01
    variance_floor: Floor = EMSettings.variance_floor
    mean_smoothing: Share = EMSettings.mean_smoothing
    cost_scale: Finite = EMSettings.cost_scale
    activation_scale: Finite = EMSettings.activation_scale
    mass_scale: Positive | None = EMSettings.mass_scale
    standardise: bool = EMSettings.standardise
    beta_u: Finite = 0.0
    beta_a: Finite = 0.0
    gradient: Gradient = "all"
    sharpness: Literal["mean"] | Positive | Sequence[Positive] = 1.0
    learn_sharpness: Learned | None = None
    relative_floor: FloorOrNone = EMSettings.relative_floor
    cost_floor: NotNegative = EMSettings.cost_floor

    def __post_init__(self) -> None:
        if isinstance(self.sharpness, list | tuple):
            self.sharpness = list(self.sharpness)
            if len(self.sharpness) != self.steps - 1:
                raise _miscounted(self.sharpness, self.steps - 1)
        self._size = 1
        self.exact_gradients = self.gradient == "all"
        self.register_parameter("unit_cost", None)
        self.register_parameter("activation_cost", None)
        self.register_parameter("log_sharpness", None)

    @classmethod
    def preset(cls, name: str, **arguments: Any) -> "EMRouting":
        """Create one of :data:`EM_PRESETS`, with these arguments instead of its own.

        Raises:
            ValueError: if there is no such preset.
        """
        check_choice("preset", name, tuple(EM_PRESETS))
        return cls(**{**EM_PRESETS[name], **arguments})

    def make_parameters(self, shape: LayerShape) -> None:
        """Create ``beta_u`` and ``beta_a``, one of each for each parent, and the
        logarithm of the learned factor of the sharpness.
        """
        self._size = shape.size
        if self.learn_sharpness is not None:
            self.log_sharpness = nn.Parameter(
                torch.zeros(shape.parents if self.learn_sharpness == "parent" else ())
            )
        self.unit_cost = nn.Parameter(torch.full((shape.parents,), float(self.beta_u)))
        self.activation_cost = nn.Parameter(
            torch.full((shape.parents,), float(self.beta_a))
        )

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Route the votes; children are weighted by their activations."""
        check_parents(self, self.unit_cost, votes)
        temperatures = inverse_temperatures(
            self.schedule, self.steps, self.inverse_temperature
        )
        return em_routing(
            votes,
            activation,
            self.unit_cost,
            self.activation_cost,
            temperatures,
            self,
            self.gradient,
            self.sharpnesses(),
        )

    def sharpnesses(self) -> list[float | Tensor]:
        """Return the current sharpness of each E-step; one for each parent, (J,), if
        each learns its own.
        """
        if isinstance(self.sharpness, list):
            start = list(self.sharpness)
        else:
            number = 1 / self._size if self.sharpness == "mean" else self.sharpness
            start = [number] * (self.steps - 1)
        if self.log_sharpness is None:
            return start
        factor = self.log_sharpness.exp()
        return [fixed * factor for fixed in start]
