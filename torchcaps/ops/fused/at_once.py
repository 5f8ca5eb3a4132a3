"""All steps of a routing in one operator: what a GPU's backend does in few launches.

``torch.compile``, ``torch.export`` and autocast see one node for a layer, and one for
its gradients; gradients that may be differentiated again are those of stored votes.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.numerics import transformed
from torchcaps.ops import naive
from torchcaps.ops.agreement import step_by_step
from torchcaps.ops.backend import Agreement, Mixture, Rule
from torchcaps.ops.derivatives import Tensors, gradients
from torchcaps.ops.fused.call import Call, FusedVotes, Mixed, sizes_of, stored_mixture
from torchcaps.ops.fused.operators import operator
from torchcaps.ops.similarity import Gaussian, InnerProduct
from torchcaps.ops.windows import in_windows
from torchcaps.squashing import kind_of, squash_by

_VOTES = "Tensor children, Tensor transforms, Tensor? coordinates"
_AGREE = (
    f"{_VOTES}, Tensor? sites, Tensor? bias, int steps, float constant, bool "
    "accumulate, bool orphan"
)
_MIX = (
    f"{_VOTES}, Tensor? weights, Tensor? sites, Tensor? seen, Tensor beta_u, Tensor "
    "beta_a, float[] temperatures, float[] sharpness, float floor, float scale, float "
    "activation_scale, bool standardise, float cost_floor"
)


def _layers() -> Any:
    return import_module("torchcaps.ops.fused.triton_layers")


class _Agreeing(NamedTuple):
    """The arguments of the operator ``agree``."""

    call: Call
    bias: Tensor | None
    options: dict[str, Any]

    @classmethod
    def of(cls, arguments: Sequence[Any]) -> "_Agreeing":
        """Make one from the arguments as the schema lists them."""
        children, transforms, coordinates, sites, bias, *numbers = arguments
        call = Call(children, transforms, coordinates, None, None, sites, ())
        names = ("steps", "constant", "accumulate", "orphan")
        return cls(call, bias, dict(zip(names, numbers, strict=True)))


def _agree(*arguments: Any) -> tuple[Tensor, ...]:
    call, bias, options = _Agreeing.of(arguments)
    bias = None if bias is None else bias.contiguous()
    return tuple(_layers().agreement(call.readable(), bias, **options))


def _agree_shapes(*arguments: Any) -> tuple[Tensor, ...]:
    call, _, options = _Agreeing.of(arguments)
    B, _, J, M, _, D = sizes_of(call)
    field = (B, M * D, J)
    steps = options["steps"]
    new = call.children.new_empty
    return new((B, J, M * D)), new((steps - 1, *field)), new((steps, *field))


def _agree_context(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.numbers = inputs[5:]
    ctx.save_for_backward(*inputs[:5], *output)


def _agree_backward(*arguments: Any) -> list[Tensor]:
    *inputs, pose, alphas, sums, grad_pose, grad_alpha = arguments
    call, bias, options = _Agreeing.of(inputs)
    del options["steps"]
    if grad_pose is None:
        grad_pose = torch.zeros_like(pose)
    layers = _layers()
    gradients_of_fields = layers.agreement_backward(
        call.readable(),
        bias,
        layers.Agreed(pose, alphas, sums),
        grad_pose.contiguous(),
        None if grad_alpha is None else grad_alpha.mT.contiguous(),
        **options,
    )
    return [tensor for tensor in gradients_of_fields if tensor is not None]


def _like(places: Sequence[int]) -> Callable[..., list[Tensor]]:
    """The shapes of the gradients of these arguments."""

    def shapes(*arguments: Any) -> list[Tensor]:
        present = [arguments[place] for place in places if arguments[place] is not None]
        return [tensor.new_empty(tensor.shape) for tensor in present]

    return shapes


def _agree_gradient(ctx: Any, *upstream: Any) -> Any:
    *tensors, pose, alphas, sums = ctx.saved_tensors
    children, transforms, coordinates, sites, bias = tensors
    settings = _Agreeing.of((*tensors, *ctx.numbers)).options

    def work(tensors: Tensors, upstream: Tensors) -> Tensors:
        grad_pose, grad_alpha = upstream
        found_gradients = iter(
            _run_agree_backward(
                *(*tensors[:3], sites, tensors[3], *ctx.numbers, pose, alphas, sums),
                *(grad_pose, grad_alpha),
            )
        )
        return [None if tensor is None else next(found_gradients) for tensor in tensors]

    def function(children: Any, *others: Any) -> Tensors:
        *fields, bias = others
        votes = naive.NaiveVotes(in_windows(children, sites), *fields)
        agreement = Agreement(
            settings["steps"], "none", settings["accumulate"], settings["orphan"]
        )

        def total(similarity: InnerProduct | None) -> Tensor:
            rule = Rule(settings["orphan"])
            return votes.moments(similarity, None, rule, False).sum

        def squashed(pose: Tensor) -> Tensor:
            return squash_by(settings["constant"], pose)

        return step_by_step(total, agreement, bias, squashed=squashed)

    grad_pose, grad_alphas, _ = upstream
    grad_alpha = None
    if grad_alphas is not None and len(grad_alphas):
        grad_alpha = grad_alphas[-1].mT
    found_gradients = gradients(
        work,
        function,
        (children, transforms, coordinates, bias),
        (grad_pose, grad_alpha),
    )
    return *found_gradients[:3], None, found_gradients[3], *(None for _ in ctx.numbers)


_run_agree_backward = operator(
    "agree_backward",
    f"({_AGREE}, Tensor pose, Tensor alphas, Tensor sums, Tensor? grad_pose, Tensor? "
    "grad_alpha) -> Tensor[]",
    _agree_backward,
    _like((0, 1, 2, 4)),
)
_run_agree = operator(
    "agree",
    f"({_AGREE}) -> (Tensor, Tensor, Tensor)",
    _agree,
    _agree_shapes,
    _agree_gradient,
    _agree_context,
)


def _as_called(field: Tensor) -> Tensor:
    """A field as callers have it, (B, H, J) to (B, J, H)."""
    return field.mT if field.ndim == 3 else field


class _Mixing(NamedTuple):
    """The arguments of the operator ``mix``."""

    call: Call
    seen: Tensor | None
    beta_u: Tensor
    beta_a: Tensor
    settings: Mixture

    @classmethod
    def of(cls, arguments: Sequence[Any]) -> "_Mixing":
        """Make one from the arguments as the schema lists them."""
        children, transforms, coordinates, weights, sites = arguments[:5]
        seen, beta_u, beta_a, temperatures, sharpness, *numbers = arguments[5:]
        settings = Mixture(tuple(temperatures), tuple(sharpness), *numbers)
        call = Call(children, transforms, coordinates, weights, None, sites, ())
        return cls(call, seen, beta_u, beta_a, settings)


def _mix(*arguments: Any) -> tuple[Tensor, ...]:
    call, seen, *costs, settings = _Mixing.of(arguments)
    costs = [cost.contiguous() for cost in costs]
    return tuple(_layers().mixture(call.readable(), seen, *costs, settings))


def _mix_shapes(*arguments: Any) -> tuple[Tensor, ...]:
    call, seen, _, _, settings = _Mixing.of(arguments)
    return tuple(Mixed.empty(call, seen, len(settings.temperatures)))


def _mix_context(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.numbers = inputs[8:]
    ctx.save_for_backward(*inputs[:8], *output)


def _mix_backward(*arguments: Any) -> list[Tensor]:
    inputs, (mixed, *upstream) = arguments[:_MIXING], arguments[_MIXING:]
    call, seen, beta_u, _, settings = _Mixing.of(inputs)
    upstream = [
        None if gradient is None else gradient.contiguous() for gradient in upstream
    ]
    gradients = _layers().mixture_backward(
        call.readable(), seen, beta_u.contiguous(), Mixed(*mixed), upstream, settings
    )
    return [tensor for tensor in gradients if tensor is not None]


_MIXING = _MIX.count(",") + 1
"""The arguments of the operator ``mix``."""


def _mix_gradient(ctx: Any, *upstream: Any) -> Any:
    inputs = ctx.saved_tensors[:8]
    saved = list(ctx.saved_tensors[8:])
    sites, seen = inputs[4:6]
    settings = _Mixing.of((*inputs, *ctx.numbers)).settings
    grad_mean, grad_logit, *fields = upstream[:5]
    last = []
    if len(settings.sharpness):
        for field, place in zip(fields, (-2, -2, -1), strict=True):
            last.append(None if field is None else _as_called(field[place]))

    def work(tensors: Tensors, upstream: Tensors) -> Tensors:
        arguments = *tensors[:4], sites, seen, *tensors[4:], *ctx.numbers
        upstream = (*upstream, None, None, None)[:5]  # one step compares with nothing
        grads = iter(_run_mix_backward(*arguments, saved, *upstream))
        return [None if tensor is None else next(grads) for tensor in tensors]

    def function(*tensors: Any) -> Tensors:
        return stored_mixture(tensors, sites, seen, settings)

    tensors = [*inputs[:4], *inputs[6:]]
    grads = gradients(work, function, tensors, (grad_mean, grad_logit, *last))
    return *grads[:4], None, None, *grads[4:], *(None for _ in ctx.numbers)


_run_mix_backward = operator(
    "mix_backward",
    f"({_MIX}, Tensor[] found, Tensor? grad_mean, Tensor? grad_logit, Tensor? "
    "grad_centre, Tensor? grad_precision, Tensor? grad_log_weight) -> Tensor[]",
    _mix_backward,
    _like((0, 1, 2, 3, 6, 7)),
)
_run_mix = operator(
    "mix",
    f"({_MIX}) -> ({', '.join(['Tensor'] * len(Mixed._fields))})",
    _mix,
    _mix_shapes,
    _mix_gradient,
    _mix_context,
)

_WHOLE = 2**11
"""Numbers of the parents of one row, powers of two, for which one tile holds them all in
every kernel: only then are all steps made at once.
"""


class TritonVotes(FusedVotes):
    """Votes in Triton, on a GPU, or on a CPU under Triton's interpreter.

    Example:
        >>> from torchcaps.ops import InnerProduct, Rule
        >>> tc.ops.fused.TritonVotes.supports(
        ...     InnerProduct(torch.randn(2, 3, 5)), Rule()
        ... )  # no reason against it
        ''
    """

    backend = "triton"
    mixes = True

    @property
    def _at_once(self) -> bool:
        """Whether all steps of a routing can be made at once."""
        if self.empty or transformed():
            return False
        numbers = 1
        for size in (self.children.shape[2], *self.transforms.shape[1::2]):
            numbers *= 1 << (size - 1).bit_length()
        return numbers <= _WHOLE

    def agree(
        self, agreement: Agreement, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None] | None:
        """All steps of routing by agreement, for squashes n² / (c + n²)."""
        constant = kind_of(agreement.squash).constant
        if constant is None or not self._at_once:
            return None
        settings = (
            agreement.steps,
            constant,
            agreement.accumulate,
            agreement.orphan,
        )
        votes = self.children, self.transforms, self.coordinates, self.sites
        pose, alphas, _ = _run_agree(*votes, bias, *settings)
        return pose, alphas[-1].mT if agreement.steps > 1 else None

    def mixture(
        self,
        mixture: Mixture,
        weights: Tensor | None,
        costs: tuple[Tensor, Tensor],
        seen: Tensor | None,
    ) -> tuple[Tensor, Tensor, Gaussian | None] | None:
        """All steps of EM routing."""
        if not self._at_once:
            return None
        votes = self.children, self.transforms, self.coordinates
        tensors = *votes, weights, self.sites, seen, *costs
        temperatures, sharpness, *numbers = mixture
        mixed = Mixed(
            *_run_mix(*tensors, list(temperatures), list(sharpness), *numbers)
        )
        last = None
        if len(temperatures) > 1:
            mean = mixed.means[-2].mT
            precision = mixed.precisions[-2].mT
            last = Gaussian(mean, precision, mixed.log_weights[-1])
        return mixed.mean, mixed.logit, last
