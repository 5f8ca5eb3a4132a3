"""All steps of routing by agreement at once: in C++ for vectors whose transforms are not
shared, and in Triton.

In a small batch, a call for each step would spend more time in Python than in the
kernels; on a GPU, in launches.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.numerics import full_precision
from torchcaps.ops import Competition, InnerProduct, Votes
from torchcaps.ops.derivatives import Tensors, gradients
from torchcaps.ops.fused import Call, passes
from torchcaps.ops.fused.call import Agreement, sizes_of
from torchcaps.ops.fused.deferred import NativeVotes, recorded
from torchcaps.ops.fused.operators import operator
from torchcaps.routing.base import Routed, fast
from torchcaps.routing.dynamic import DynamicRouting, route_by_agreement
from torchcaps.routing.fast import folded
from torchcaps.routing.fast.triton_fit import all_at_once, layers, like
from torchcaps.squashing import kind_of, length, squash_by

SETTINGS = ("steps", "bias", "accumulate", "leaky", "squash")


class _Problem(NamedTuple):
    """What the kernels route.

    Args:
        votes: under the competition of the routing.
        call: the votes, without weights and similarity.
        bias: added before each squash, (J, H), or None.
        agreement: the numbers.
    """

    votes: Votes
    call: Call
    bias: Tensor | None
    agreement: Agreement

    @classmethod
    def of(cls, routing: DynamicRouting, votes: Votes) -> "_Problem | None":
        """Make it; None where the kernels do not have these settings or votes."""
        competition = votes.competition
        if routing.squash == "learned" or not competition.is_softmax:
            return None
        constant = kind_of(routing.squash).constant
        if constant is None or votes.mask is not None:
            return None
        source = votes.source
        bias: Tensor | None = routing.offset
        if bias is not None:
            wider = torch.promote_types(bias.dtype, votes.dtype) != votes.dtype
            if wider or bias.shape != votes.shape[2:]:
                return None
            bias = bias.to(votes.dtype)
        if source.empty:
            return None
        if routing.leaky:
            votes = votes.restricted(leaky=True)
        leaky = votes.competition.leaky
        return cls(
            votes,
            Call(
                source.children,
                source.transforms,
                source.coordinates,
                sites=source.sites,
            ),
            bias,
            Agreement(routing.steps, constant, routing.accumulate, leaky),
        )

    def routed(self, pose: Tensor, alpha: Tensor | None) -> Routed:
        """The parents; ``alpha`` is what the last step compared the votes with."""
        similarity = None if alpha is None else InnerProduct(alpha)
        return Routed(pose, length(pose), self.votes, similarity)


def _reference(sites: Tensor | None, agreement: Agreement, *tensors: Any) -> Tensors:
    """Poses and the last alpha, if any, from stored votes: differentiable to any order.

    Args:
        sites: the sites of the call.
        agreement: the numbers.
        tensors: children, transforms, coordinates and bias.
    """
    children, transforms, coordinates, bias = tensors
    steps, constant, accumulate, leaky = agreement
    competition = Competition(leaky=leaky)
    routed = route_by_agreement(
        Votes(children, transforms, coordinates, competition, "naive", sites),
        steps=steps,
        bias=bias,
        accumulate=accumulate,
        squashed=partial(squash_by, constant),
    )
    similarity: Any = routed.similarity
    return routed.pose, None if similarity is None else similarity.alpha


# In C++.


@fast(DynamicRouting, "native", *SETTINGS, "evidence")
def agreement_in_cpp(
    routing: DynamicRouting, votes: Votes, activation: Tensor | None
) -> Routed | None:
    """Make all steps in one call: without votes where places share the transforms, else
    of vectors.
    """
    if votes.shares_transforms:
        routed = folded.agreement(routing, votes)
        if routed is not None:
            return routed
    if type(votes) is not Votes:
        return None
    with full_precision(votes.children):
        problem = _Problem.of(routing, votes)
        source = votes.source
        vectors = isinstance(source, NativeVotes) and source.adds_vectors
        if problem is None or not vectors:
            return None
        _, call, bias, agreement = problem
        tensors = (*call[:3], bias)
        differentiated = recorded(tensors)
        if differentiated is None:
            return None
        if differentiated:
            return problem.routed(*_Agree.apply(agreement, call.sites, *tensors))
        pose, alpha, *_ = passes.agreement_forward(
            *_contiguous(call.sites, tensors), agreement, differentiated=False
        )
        return problem.routed(pose, alpha)


def _contiguous(
    sites: Tensor | None, tensors: Sequence[Any]
) -> tuple[Call, Tensor | None]:
    """The call and the bias, as the kernels read them."""
    children, transforms, coordinates, bias = tensors
    call = Call(children, transforms, coordinates, sites=sites).readable()
    return call, None if bias is None else bias.contiguous()


class _Agree(torch.autograd.Function):
    """The poses after all steps, and what the last step compared the votes with."""

    @staticmethod
    def forward(
        ctx: Any, agreement: Agreement, sites: Tensor | None, *tensors: Tensor | None
    ) -> Any:
        pose, alpha, sums, alphas, votes = passes.agreement_forward(
            *_contiguous(sites, tensors), agreement, differentiated=True
        )
        ctx.agreement = agreement
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(sites, *tensors, sums, alphas, alpha, votes)
        return pose, alpha

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> Any:
        agreement = ctx.agreement
        wanted = ctx.needs_input_grad[2:]
        sites, *tensors, sums, alphas, alpha, votes = ctx.saved_tensors

        def work(tensors: Tensors, upstream: Tensors) -> Tensors:
            steps = passes.plain((sums, alphas, alpha, votes))
            call, bias = _contiguous(sites, passes.plain(tensors))
            return passes.agreement_backward(
                call, bias, agreement, steps, upstream, wanted
            )

        reference = partial(_reference, sites, agreement)
        return None, None, *gradients(work, reference, tensors, upstream)


# In Triton: an operator and its backward pass.

_SCHEMA = (
    "Tensor children, Tensor transforms, Tensor? coordinates, Tensor? sites, "
    "Tensor? bias, int steps, float constant, bool accumulate, bool leaky"
)


_MANY = 2**28
"""Votes of more numbers are not formed where places share the transforms: steps without
votes take a tenth of the arithmetic, but twice as many launches.
"""


@fast(DynamicRouting, "triton", *SETTINGS)
def agreement_in_triton(
    routing: DynamicRouting, votes: Votes, activation: Tensor | None
) -> Routed | None:
    """Make all steps in few launches."""
    with full_precision(votes.children):
        many = votes.shares_transforms and math.prod(votes.shape) > _MANY
        if many and votes.folded_on_triton() is not None:
            return None
        problem = _Problem.of(routing, votes)
        if problem is None or not all_at_once(votes.source):
            return None
        _, call, bias, agreement = problem
        pose, alphas, _ = _run_agree(*call[:3], call.sites, bias, *agreement)
        return problem.routed(pose, alphas[-1].mT if agreement.steps > 1 else None)


def _opened(arguments: Sequence[Any]) -> tuple[Call, Tensor | None, Agreement]:
    """Call, bias and numbers from the arguments as the schema lists them."""
    children, transforms, coordinates, sites, bias, *numbers = arguments
    call = Call(children, transforms, coordinates, sites=sites)
    return call, bias, Agreement(*numbers)


def _agree(*arguments: Any) -> tuple[Tensor, ...]:
    call, bias, settings = _opened(arguments)
    bias = None if bias is None else bias.contiguous()
    return tuple(layers().agreement(call.readable(), bias, settings))


def _agree_shapes(*arguments: Any) -> tuple[Tensor, ...]:
    call, _, (steps, *_) = _opened(arguments)
    B, _, J, M, _, D = sizes_of(call)
    field = (B, M * D, J)
    new = call.children.new_empty
    return new((B, J, M * D)), new((steps - 1, *field)), new((steps, *field))


def _agree_context(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.numbers = inputs[5:]
    ctx.save_for_backward(*inputs[:5], *output)


def _agree_backward(*arguments: Any) -> list[Tensor]:
    *inputs, pose, alphas, sums, grad_pose, grad_alpha = arguments
    call, bias, settings = _opened(inputs)
    if grad_pose is None:
        grad_pose = torch.zeros_like(pose)
    kernels = layers()
    grads = kernels.agreement_backward(
        call.readable(),
        bias,
        settings,
        kernels.Agreed(pose, alphas, sums),
        grad_pose.contiguous(),
        None if grad_alpha is None else grad_alpha.mT.contiguous(),
    )
    return [tensor for tensor in grads if tensor is not None]


def _agree_gradient(ctx: Any, *upstream: Any) -> Any:
    children, transforms, coordinates, sites, bias, *steps = ctx.saved_tensors
    numbers = ctx.numbers

    def work(tensors: Tensors, upstream: Tensors) -> Tensors:
        *votes, bias = tensors
        grads = iter(
            _run_agree_backward(*votes, sites, bias, *numbers, *steps, *upstream)
        )
        return [None if tensor is None else next(grads) for tensor in tensors]

    grad_pose, grad_alphas, _ = upstream
    grad_alpha = None
    if grad_alphas is not None and len(grad_alphas):
        grad_alpha = grad_alphas[-1].mT
    *of_votes, of_bias = gradients(
        work,
        partial(_reference, sites, Agreement(*numbers)),
        (children, transforms, coordinates, bias),
        (grad_pose, grad_alpha),
    )
    return *of_votes, None, of_bias, *(None for _ in numbers)


_run_agree_backward = operator(
    "agree_backward",
    f"({_SCHEMA}, Tensor pose, Tensor alphas, Tensor sums, Tensor? grad_pose, Tensor? "
    "grad_alpha) -> Tensor[]",
    _agree_backward,
    like((0, 1, 2, 4)),
)
_run_agree: Callable[..., Any] = operator(
    "agree",
    f"({_SCHEMA}) -> (Tensor, Tensor, Tensor)",
    _agree,
    _agree_shapes,
    _agree_gradient,
    _agree_context,
)
