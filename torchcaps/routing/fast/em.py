"""All steps of EM routing at once, in Triton.

``torch.compile``, ``torch.export`` and autocast see one node for a layer, and one for
its gradients; gradients that may be differentiated again are those of stored votes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.numerics import full_precision
from torchcaps.ops import (
    PARENTS,
    Competition,
    Gaussian,
    GridWide,
    Similarity,
    Votes,
    VoteSource,
)
from torchcaps.ops.derivatives import Tensors, gradients
from torchcaps.ops.fused.call import Call, EMOptions, EMSteps
from torchcaps.ops.fused.operators import operator
from torchcaps.ops.vote_checks import check_child_field
from torchcaps.routing.base import Routed, fast
from torchcaps.routing.em import EMRouting
from torchcaps.routing.fast.triton_fit import all_at_once, layers, like


@fast(
    EMRouting,
    "triton",
    "steps",
    "schedule",
    "inverse_temperature",
    "sharpness",
    "variance_floor",
    "cost_scale",
    "activation_scale",
    "mass_scale",
    "standardise",
    "cost_floor",
    "beta_u",
    "beta_a",
)
def em_in_triton(
    routing: EMRouting, votes: Votes, activation: Tensor | None
) -> Routed | None:
    """All steps in few launches."""
    competition = votes.competition
    if votes.mask is not None or type(competition) not in (Competition, GridWide):
        return None
    if competition.leaky or competition.hard:
        return None
    seen = None
    if isinstance(competition, GridWide):
        seen = competition.seen(votes.children.device)
    beta_u, beta_a = routing.unit_cost, routing.activation_cost
    if beta_u is None or beta_u.shape != votes.shape[2:3]:
        return None
    with full_precision(votes.children):
        source = votes.source
        if not all_at_once(source):
            return None
        if activation is not None:
            check_child_field("weights", activation, votes.children)
            activation = activation.to(votes.dtype)
        scale = routing.cost_scale
        if routing.mass_scale is not None:
            scale = scale * routing.mass_scale * votes.parents / max(votes.shape[1], 1)
        results = EMSteps(
            *_run_em(
                source.children,
                source.transforms,
                source.coordinates,
                activation,
                source.sites,
                seen,
                beta_u.to(votes.dtype),
                beta_a.to(votes.dtype),
                [float(number) for number in routing.inverse_temperatures()],
                [float(number) for number in routing.sharpnesses()],
                routing.variance_floor,
                scale,
                routing.activation_scale,
                routing.standardise,
                routing.cost_floor,
            )
        )
        similarity = None
        if routing.steps > 1:
            mean, precision = results.means[-2].mT, results.precisions[-2].mT
            similarity = Gaussian(mean, precision, results.log_weights[-1])
        logit = results.logit
        return Routed(results.mean, logit.sigmoid(), votes, similarity, logit)


_SCHEMA = (
    "Tensor children, Tensor transforms, Tensor? coordinates, Tensor? weights, "
    "Tensor? sites, Tensor? seen, Tensor beta_u, Tensor beta_a, "
    "float[] inverse_temperatures, float[] sharpness, float floor, float scale, "
    "float activation_scale, bool standardise, float cost_floor"
)
_ARGUMENTS = _SCHEMA.count(",") + 1
_TENSORS = _SCHEMA.count("Tensor")


class _Opened(NamedTuple):
    """The arguments of the operator."""

    call: Call
    seen: Tensor | None
    beta_u: Tensor
    beta_a: Tensor
    options: EMOptions

    @classmethod
    def of(cls, arguments: Sequence[Any]) -> "_Opened":
        """Make it from the arguments as the schema lists them."""
        children, transforms, coordinates, weights, sites, *others = arguments
        seen, beta_u, beta_a, inverse_temperatures, sharpness, *numbers = others
        options = EMOptions(tuple(inverse_temperatures), tuple(sharpness), *numbers)
        call = Call(children, transforms, coordinates, weights, sites=sites)
        return cls(call, seen, beta_u, beta_a, options)


def _em(*arguments: Any) -> tuple[Tensor, ...]:
    call, seen, *betas, options = _Opened.of(arguments)
    betas = [beta.contiguous() for beta in betas]
    return tuple(layers().mixture(call.readable(), seen, *betas, options))


def _em_shapes(*arguments: Any) -> tuple[Tensor, ...]:
    call, seen, _, _, options = _Opened.of(arguments)
    return tuple(EMSteps.empty(call, seen, len(options.inverse_temperatures)))


def _em_context(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.numbers = inputs[_TENSORS:]
    ctx.save_for_backward(*inputs[:_TENSORS], *output)


def _em_backward(*arguments: Any) -> list[Tensor]:
    inputs, (results, *upstream) = arguments[:_ARGUMENTS], arguments[_ARGUMENTS:]
    call, seen, beta_u, _, options = _Opened.of(inputs)
    upstream = [None if grad is None else grad.contiguous() for grad in upstream]
    grads = layers().mixture_backward(
        call.readable(), seen, beta_u.contiguous(), EMSteps(*results), upstream, options
    )
    return [tensor for tensor in grads if tensor is not None]


def _em_gradient(ctx: Any, *upstream: Any) -> Any:
    # Read once: a checkpoint gives them out only once.
    saved = ctx.saved_tensors
    inputs, results = saved[:_TENSORS], list(saved[_TENSORS:])
    numbers = ctx.numbers
    call, seen, beta_u, beta_a, options = _Opened.of((*inputs, *numbers))
    flows = EMSteps._make(upstream)
    last = []
    if options.sharpness:
        # The similarity of the last step: from means and precisions of the step before
        # the last, and the last of the weights, which are one fewer.
        fields = (flows.means, -2), (flows.precisions, -2), (flows.log_weights, -1)
        for field, step in fields:
            last.append(None if field is None else _as_called(field[step]))

    def work(tensors: Tensors, upstream: Tensors) -> Tensors:
        *fields, beta_u, beta_a = tensors
        # One step compares with nothing.
        upstream = (*upstream, None, None, None)[:5]
        grads = iter(
            _run_em_backward(
                *fields, call.sites, seen, beta_u, beta_a, *numbers, results, *upstream
            )
        )
        return [None if tensor is None else next(grads) for tensor in tensors]

    *grads, grad_u, grad_a = gradients(
        work,
        partial(_reference, call.sites, seen, options),
        (
            call.children,
            call.transforms,
            call.coordinates,
            call.weights,
            beta_u,
            beta_a,
        ),
        (flows.mean, flows.logit, *last),
    )
    return *grads, None, None, grad_u, grad_a, *(None for _ in numbers)


def _as_called(field: Tensor) -> Tensor:
    """A field as callers have it, (B, H, J) to (B, J, H)."""
    return field.mT if field.ndim == 3 else field


def _reference(
    sites: Tensor | None, seen: Tensor | None, options: EMOptions, *tensors: Any
) -> Tensors:
    """Means, logits, and the tensors of what the last step compared with, from stored
    votes: differentiable to any order.

    Args:
        sites: the sites of the call.
        seen: where each child is in the windows, or None.
        options: the numbers of the steps.
        tensors: children, transforms, coordinates, weights, beta_u and beta_a.
    """
    children, transforms, coordinates, weights, beta_u, beta_a = tensors
    competition: Competition = PARENTS
    if seen is not None:
        competition = _Combined(partial(_over_windows, seen, len(children)))
    lambdas = options.inverse_temperatures
    routing = EMRouting(
        len(lambdas),
        lambda step, steps: lambdas[step],
        1.0,
        options.floor,
        cost_scale=options.cost_scale,
        activation_scale=options.activation_scale,
        standardise=options.standardise,
        sharpness=options.sharpness,
        cost_floor=options.cost_floor,
    )
    votes = Votes(children, transforms, coordinates, competition, "naive", sites)
    betas = {"unit_cost": beta_u, "activation_cost": beta_a}
    routed = torch.func.functional_call(routing, betas, (votes, weights))
    last = () if routed.similarity is None else routed.similarity.tensors
    return routed.pose, routed.logit, *last


@dataclass(frozen=True, eq=False)
class _Combined(Competition):
    """:class:`~torchcaps.ops.GridWide` by a function of the log-partitions of windows."""

    combine: Callable[[Tensor], Tensor]

    def log_partition(
        self, source: VoteSource, similarity: Similarity | None
    ) -> Tensor:
        """The log-partition over the windows that see a child, (N, G)."""
        return self.combine(source.log_partition(similarity, leaky=False))


def _over_windows(seen: Tensor, images: int, of_windows: Tensor) -> Tensor:
    """Combine the log-partitions of windows, (N * W, I), to those over all windows that
    see a child, (N, G); 0 for a child that none sees.
    """
    present = seen >= 0
    # [N, G, places]
    table = of_windows.reshape(images, -1)[:, seen.clamp(min=0).long()]
    table = table.masked_fill(~present, -math.inf)
    unseen = ~present.any(1)
    # Twice, so that the branch that is not taken has no logarithm of 0.
    table = torch.where(unseen[:, None], 0.0, table)
    return torch.where(unseen, 0.0, table.logsumexp(-1))


_run_em_backward = operator(
    "em_backward",
    f"({_SCHEMA}, Tensor[] results, Tensor? grad_mean, Tensor? grad_logit, Tensor? "
    "grad_centre, Tensor? grad_precision, Tensor? grad_log_weight) -> Tensor[]",
    _em_backward,
    like((0, 1, 2, 3, 6, 7)),
)
_run_em: Callable[..., Any] = operator(
    "em",
    f"({_SCHEMA}) -> ({', '.join(['Tensor'] * len(EMSteps._fields))})",
    _em,
    _em_shapes,
    _em_gradient,
    _em_context,
)
