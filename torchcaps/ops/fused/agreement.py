"""All steps of routing by agreement in one call of the kernels.

In a small batch, a call for each step would spend more time in Python than in the kernels.
"""

from typing import Any

import torch
from torch import Tensor

from torchcaps.ops.agreement import step_by_step
from torchcaps.ops.backend import Agreement, Rule
from torchcaps.ops.derivatives import Tensors, gradients
from torchcaps.ops.fused import passes
from torchcaps.ops.fused.call import Call
from torchcaps.ops.naive import NaiveVotes
from torchcaps.ops.windows import in_windows


def agree(call: Call, bias: Tensor | None, settings: Agreement) -> tuple[Tensor, Tensor | None]:
    """The poses (B, J, H) after all steps, and what the last step compared the votes with; None if it was the first.

    Args:
        call: of the votes, without similarity, weights and log_partition.
        bias: added before each squash, (J, H), or None.
        settings: of the algorithm.
    """
    tensors = (*call[:3], bias)
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors):
        found: tuple[Tensor, Tensor | None] = _Agree.apply(settings, call.sites, *tensors)
        return found
    return passes.agreement(call.readable(), _whole(bias), settings)


def _whole(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.contiguous()


def _call(sites: Tensor | None, children: Any, transforms: Any, coordinates: Tensor | None) -> Call:
    return Call(children, transforms, coordinates, None, None, sites, ()).readable()


class _Agree(torch.autograd.Function):
    """The poses, and what the last step compared with."""

    @staticmethod
    def forward(ctx: Any, settings: Agreement, sites: Tensor | None, *tensors: Tensor | None) -> Any:
        *votes, bias = tensors
        call = _call(sites, *votes)
        kept = passes.Kept(call.children, call.transforms)
        pose, alpha, sums, alphas = passes.agreement_forward(call, _whole(bias), settings, kept)
        ctx.settings = settings
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(sites, *tensors, sums, alphas, alpha, kept.votes)
        return pose, alpha

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> Any:
        settings = ctx.settings
        sites, *tensors, sums, alphas, alpha, votes = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:]

        def work(tensors: Tensors, upstream: Tensors) -> Tensors:
            *fields, bias = tensors
            call, steps = _call(sites, *fields), passes.read_back((sums, alphas, alpha, votes))
            return passes.agreement_backward(call, _whole(bias), settings, steps, upstream, wanted)

        def function(children: Any, *others: Any) -> Tensors:
            *fields, bias = others
            votes = NaiveVotes(in_windows(children, sites), *fields)
            return step_by_step(lambda one: votes.moments(one, None, Rule(settings.orphan), False).sum, settings, bias)

        return None, None, *gradients(work, function, tensors, upstream)
