"""EM routing (Hinton, Sabour & Frosst 2018): parents are Gaussians, routing fits the
mixture.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from torchcaps.numerics import (
    Finite,
    Floor,
    NotNegative,
    Positive,
    Share,
    check_choice,
    infinite_if_negligible,
)
from torchcaps.ops import Gaussian, Votes
from torchcaps.routing.base import (
    Gradient,
    LayerShape,
    Routed,
    Steps,
    check_parents,
    gradient_context,
    of_settings,
    register_routing,
)
from torchcaps.routing.em_costs import Costs, Rounding
from torchcaps.routing.evidence import AgreementRouting
from torchcaps.spec import settings

Schedule = Literal["released", "linear", "constant"]
SCHEDULES = list(get_args(Schedule))


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
layer. Its function ``update_conv_routing_fast`` has the competition of a convolution
here; under ``update_conv_routing``, parents of different types do not compete. Masses
there are 1e-7 larger (1e-5 in the class layer). ``standardised``: the cost standardised
over the parents, for any layer size; ``soft``: the same, with the likelihood in the
E-step a mean over the dimensions of a pose and not a sum, so that it can be learned
through several steps; ``mass_scaled``: Gritzman 2019.
"""


@register_routing("em")
@settings
class EMRouting(AgreementRouting):
    r"""Route by expectation maximisation: an M-step, then E-steps, each with an M-step.

    .. math::
        \mu_j = \frac{S_j}{N_j}, \quad \sigma_j^2 = \frac{Q_j}{N_j} + \text{floor}, \quad
        \text{cost}_{jh} = (\beta_u + \log \sigma_{jh}) N_j, \quad
        a_j = \operatorname{sigmoid}\Big(\lambda \big(\beta_a - \sum_h \text{cost}_{jh}\big)\Big)

    with the moments N, S and Q of the votes (:class:`~torchcaps.ops.Moments`), and with
    learned :math:`\beta_u` and :math:`\beta_a` for each parent. The defaults are
    Procedure 1, but for the floor; the other settings are where implementations differ.

    Args:
        steps: how many M-steps.
        schedule: the schedule of the inverse temperature lambda: ``released``,
            ``linear``, ``constant``, or a function of (step, steps); see
            :func:`inverse_temperatures`.
        inverse_temperature: its scale.
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
            :func:`~torchcaps.routing.em_costs.standardised`.
        beta_u: initial value of minus the cost of describing one number of a vote
            without this parent.
        beta_a: initial value of minus the cost of switching the parent on.
        gradient: through ``"all"`` steps, as in the released code, or only through the
            ``"last"``, which then takes the Gaussians of the step before as constants.
            With standardised costs nearly all of the gradient comes through the earlier
            steps, in bursts hundreds of times as long as usual; what ``"last"`` leaves
            is far smaller and steadier, and no longer the gradient of the loss.
        sharpness: the sharpness s of the E-steps, above 0; with 1, as published, they
            are all but hard, see :meth:`~torchcaps.ops.Gaussian.likelihood`;
            ``"mean"`` is 1 / H, for likelihoods that are means over the H dimensions of
            a pose; a sequence has one number an E-step, for a sharpness that rises over
            the steps.
        evidence: learn where each child belongs by itself, and start from that: see
            :class:`~torchcaps.routing.AgreementRouting`.
        cost_floor: c, a floor under the deviation that standardised costs are divided
            by, as a share of their mean size: :math:`\sqrt{\operatorname{var} + (c
            \operatorname{mean}|\text{cost}|)^2}`. Above 0, parents of nearly the same
            cost get nearly the same activation. Float32 loses the digits in which votes
            agree, with every backend: gradients are within 2e-5 of float64's where votes
            differ by their size, and 12 % off where all differ by a thousandth of it.

    Source: Hinton, Sabour & Frosst 2018, "Matrix capsules with EM routing", Procedure
    1; the code released with it; Gritzman 2019, "Avoiding implementation pitfalls of
    matrix capsules with EM routing".

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
    variance_floor: Floor = 5e-4
    mean_smoothing: Share = 0.0
    cost_scale: Finite = 1.0
    activation_scale: Finite = 1.0
    mass_scale: Positive | None = None
    standardise: bool = False
    beta_u: Finite = 0.0
    beta_a: Finite = 0.0
    gradient: Gradient = "all"
    sharpness: Literal["mean"] | Positive | Sequence[Positive] = 1.0
    cost_floor: NotNegative = 0.0

    exact_gradients = of_settings(lambda routing: routing.gradient == "all")

    def __post_init__(self) -> None:
        if isinstance(self.sharpness, list | tuple):
            self.sharpness = list(self.sharpness)
        self._size = 1
        self.sharpnesses()  # checks their number
        self.register_parameter("unit_cost", None)
        self.register_parameter("activation_cost", None)

    @classmethod
    def preset(cls, name: str, **arguments: Any) -> "EMRouting":
        """Create one of :data:`EM_PRESETS`, with these arguments instead of its own.

        Raises:
            ValueError: if there is no such preset.
        """
        check_choice("preset", name, tuple(EM_PRESETS))
        return cls(**{**EM_PRESETS[name], **arguments})

    def make_parameters(self, shape: LayerShape) -> None:
        """Create ``beta_u`` and ``beta_a``, one of each for each parent."""
        self._size = shape.size
        self.unit_cost = nn.Parameter(torch.full((shape.parents,), float(self.beta_u)))
        self.activation_cost = nn.Parameter(
            torch.full((shape.parents,), float(self.beta_a))
        )

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Route the votes; children are weighted by their activations."""
        check_parents(self, self.unit_cost, votes)
        steps = self.steps
        lambdas = self.inverse_temperatures()
        sharpness = self.sharpnesses()
        costs = Costs.of(self.unit_cost, self.activation_cost, votes.shape[3], self)
        mean: Tensor | None = None
        similarity: Gaussian | None = None
        rounding: Rounding | None = None
        for step, inverse_temperature in enumerate(lambdas):
            with gradient_context(self.gradient, step, steps):
                # The E-step, uniform at first, and the sums of the M-step.
                moments = votes.moments(similarity, activation, scatter=True)
                # The M-step.
                mass, total, scatter = moments
                assert scatter is not None
                divisor = infinite_if_negligible(mass)[..., None]
                mean, variance = self._smoothed(
                    total / divisor, scatter / divisor, mean
                )
                variance = variance + self.variance_floor
                log_determinant = variance.log().sum(-1)
                if self.mass_scale is not None:
                    # In this order: the quotient of two integers would be float32.
                    mass = mass * (self.mass_scale * votes.parents) / votes.count
                logit, rounding = costs.logits(
                    mass, log_determinant, inverse_temperature, rounding
                )
            if step < steps - 1:
                prior = logsigmoid(logit)
                similarity = Gaussian.likelihood(
                    mean, variance, prior, sharpness[step], log_determinant
                )
        assert mean is not None
        return Routed(mean, logit.sigmoid(), votes, similarity, logit)

    def _smoothed(
        self, mean: Tensor, variance: Tensor, previous: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The mean, smoothed, and the variance about it; the first mean is smoothed
        towards 0.
        """
        if not self.mean_smoothing:
            return mean, variance
        old = torch.zeros_like(mean) if previous is None else previous
        smooth = mean + self.mean_smoothing * (old - mean)
        return smooth, variance + (mean - smooth).square()

    def inverse_temperatures(self) -> list[float]:
        """Return lambda of each step."""
        return inverse_temperatures(self.schedule, self.steps, self.inverse_temperature)

    def sharpnesses(self) -> list[float]:
        """Return the sharpness of each E-step.

        Raises:
            ValueError: if there is another number of them than of E-steps.
        """
        if self.sharpness == "mean":
            return [1 / self._size] * (self.steps - 1)
        if isinstance(self.sharpness, Sequence):
            if len(self.sharpness) != self.steps - 1:
                raise ValueError(
                    f"sharpness must be one number or {self.steps - 1}, one an E-step, "
                    f"got {len(self.sharpness)}"
                )
            return [float(number) for number in self.sharpness]
        return [self.sharpness] * (self.steps - 1)


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
