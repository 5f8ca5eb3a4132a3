"""Folded routing in C++: all steps of a routing in one call, or one step;
:mod:`torchcaps.ops.folded` has the equations.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from torchcaps.numerics import any_batched
from torchcaps.ops import folded
from torchcaps.ops.derivatives import Tensors, gradients
from torchcaps.ops.folded import Folded, FoldedSteps
from torchcaps.ops.fused.deferred import Token, recorded
from torchcaps.ops.fused.library import library
from torchcaps.ops.fused.passes import Record, plain

_INPUTS = ("children", "places", "weights")
_FIELDS = ("transforms", "place_transforms", "evidence", "place_evidence")
_PARENTS = ("bias", "gain", "shift")
_NAMES = (*_INPUTS, *_FIELDS, *_PARENTS)
_UPSTREAM = ("grad_pose", "grad_alpha", "grad_length")
_GRADIENTS = tuple(f"grad_{name}" for name in _NAMES if name != "places")
_ADDED_TO = ("weights", "gain", "shift")
"""The tensors whose gradients the kernels add to what is there."""
_POOLED = (*_INPUTS, "queries", "place_queries")
STEPS = Record(
    "B N T M P J D E steps leaky threads rule accumulate constant scale epsilon",
    *_NAMES,
    "pose alpha length kept",
    *_UPSTREAM,
    *_GRADIENTS,
    reals=("constant", "scale", "epsilon"),
)
PASS = Record(
    "B N T J Q E leaky threads adds epsilon",
    *_POOLED,
    "sums place_sums partition grad_sums grad_place_sums",
    "grad_children grad_weights grad_queries grad_place_queries",
    reals=("epsilon",),
)
_RULES = ("agreement", "directions", "normalised")
_WORTH_A_THREAD = 1 << 20
"""Multiply-adds that take longer, a tenth of a millisecond, than to wake a thread."""
_NO_MEMORY = 3


def route(
    children: Folded,
    settings: FoldedSteps,
    bias: Tensor | None = None,
    gain: Tensor | None = None,
    shift: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor] | None:
    """All steps, as :func:`torchcaps.ops.folded.route`; None where that cannot be in
    C++: :func:`~torchcaps.ops.fused.deferred.recorded`.
    """
    _, *fields, _ = children
    tensors = (*fields, bias, gain, shift)
    differentiated = recorded(tensors)
    if differentiated is None:
        return None
    if differentiated:
        routed: tuple[Tensor, Tensor | None, Tensor]
        routed = _Route.apply(settings, *tensors)
        return routed
    pose, alpha, length, _ = _forward(plain(tensors), settings, False)
    return pose, alpha, length


def _sizes(tensors: Sequence[Any], settings: FoldedSteps) -> tuple[float, ...]:
    children, places, _, transforms, *_ = tensors
    B, N, T, M, P = children.shape
    _, J, _, D = transforms.shape
    E = 0 if places is None else len(places)
    threads = _threads(2 * settings.steps * children.numel() * J)
    constant = -1.0 if settings.constant is None else settings.constant
    sizes = (B, N, T, M, P, J, D, E)
    steps = (settings.steps, settings.leaky, threads)
    rule = (_RULES.index(settings.rule), settings.accumulate, constant)
    return (*sizes, *steps, *rule, settings.scale, settings.epsilon)


def _threads(products: int) -> int:
    """How many threads so many multiply-adds are worth."""
    return min(torch.get_num_threads(), 1 + products // _WORTH_A_THREAD)


@lru_cache(maxsize=64)
def _kept_numbers(sizes: tuple[float, ...], evident: bool, wide: bool) -> int:
    """How many numbers are kept for the pass back."""
    record = STEPS.pack(sizes, [("evidence", int(evident))])
    numbers: int = library().torchcaps_folded_kept(record, wide)
    return numbers


def _forward(
    tensors: Sequence[Any], settings: FoldedSteps, keeps: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    children, _, _, transforms, _, evidence, place_evidence, *_ = tensors
    B, _, _, M, _ = children.shape
    _, J, _, D = transforms.shape
    pose = children.new_empty(B, J, M * D)
    alpha = torch.empty_like(pose) if settings.steps > 1 else None
    length = children.new_empty(B, J)
    sizes = _sizes(tensors, settings)
    wide = children.dtype == torch.float64
    kept = None
    if keeps:
        evident = evidence is not None or place_evidence is not None
        kept = children.new_empty(_kept_numbers(sizes, evident, wide))
    results = {"pose": pose, "alpha": alpha, "length": length, "kept": kept}
    record = STEPS.pack(sizes, zip(_NAMES, tensors, strict=True), results.items())
    _checked(library().torchcaps_folded_routing(record, False, wide))
    return pose, alpha, length, kept


def _checked(outcome: int) -> None:
    if outcome == _NO_MEMORY:
        raise MemoryError("no memory for the native kernels of folded routing")


class _Route(torch.autograd.Function):
    """The poses after all steps, what the last step compared with, and the lengths of
    the poses.
    """

    @staticmethod
    def forward(ctx: Any, settings: FoldedSteps, *tensors: Tensor | None) -> Any:
        pose, alpha, length, kept = _forward(plain(tensors), settings, True)
        ctx.settings = settings
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, alpha, kept)
        return pose, alpha, length

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> Any:
        *tensors, alpha, kept = ctx.saved_tensors
        settings = ctx.settings
        wanted = ctx.needs_input_grad[1:]

        def work(tensors: Tensors, upstream: Tensors) -> Tensors:
            children, *_ = given = plain(tensors)
            slopes: dict[str, Tensor | None] = {}
            for name, tensor, want in zip(_NAMES, given, wanted, strict=True):
                # Those that the kernels add to begin with 0.
                empty = torch.zeros_like if name in _ADDED_TO else torch.empty_like
                slopes[f"grad_{name}"] = empty(tensor) if want else None
            flows = plain(upstream)  # which must live until the call
            record = STEPS.pack(
                _sizes(given, settings),
                zip(_NAMES, given, strict=True),
                (("alpha", alpha), ("kept", kept)),
                zip(_UPSTREAM, flows, strict=True),
                slopes.items(),
            )
            wide = children.dtype == torch.float64
            _checked(library().torchcaps_folded_routing(record, True, wide))
            return list(slopes.values())

        def function(*tensors: Any) -> Tensors:
            *fields, bias, gain, shift = tensors
            _, _, _, transforms, *_ = fields
            children = Folded(transforms.shape[1], *fields)
            return folded.route(children, settings, bias, gain, shift)

        return None, *gradients(work, function, tensors, upstream)


class SharedPoses:
    """The poses of several steps, whose gradients are added up in one tensor, and passed
    on once.

    Args:
        poses: the poses.
    """

    def __init__(self, poses: Tensor) -> None:
        self.sums: dict[int, Tensor] = {}
        self.token: Tensor | None = None
        if recorded((poses,)):
            self.token = Token.apply(self.sums, lambda total, _: (total,), poses)


def pooled(
    *tensors: Tensor | None,
    leaky: bool = False,
    epsilon: float | None = None,
    shared: SharedPoses | None = None,
) -> tuple[Tensor, Tensor | None]:
    """One step, as :func:`torchcaps.ops.folded.pooled`.

    Args:
        tensors: the tensors.
        leaky: one more candidate with logit 0.
        epsilon: poses are standardised with it.
        shared: the poses, if several steps have the same ones.
    """
    differentiated = recorded(tensors)
    if differentiated is None:
        plainly: Any = folded.pooled
        result: tuple[Tensor, Tensor | None]
        result = plainly(*tensors, leaky=leaky, epsilon=epsilon)
        return result
    if not differentiated:
        return _pooled(plain(tensors), leaky, epsilon, False)[:2]
    sums = token = None
    if shared is not None:
        sums, token = shared.sums, shared.token
    result = _Pooled.apply(sums, token, leaky, epsilon, *tensors)
    return result


def moments(
    children: Folded, alpha: Tensor | None, leaky: bool = False
) -> tuple[Tensor, Tensor]:
    """Mass and sum of one step, as :func:`torchcaps.ops.folded.moments`."""
    J, poses, places, weights, transforms, place_transforms, *_, epsilon = children
    even = alpha is None and not children.evident
    many = folded.by_matrix_products(J, poses.shape[3] * poses.shape[4])
    tensors = (poses, weights, transforms, place_transforms, alpha)
    if even or many or recorded(tensors) is None:
        return folded.moments(children, alpha, leaky)
    query, place_query = folded.queries(children, alpha)
    query = query.expand(poses.shape[0], -1, -1, -1)
    if places is None:  # the mass is the sum of 1
        places = poses.new_ones(1, poses.shape[1])
    if place_query is None:
        place_query = query.new_zeros(*query.shape[:3], len(places))
    pose_sums, at_places = pooled(
        poses.flatten(3),
        places,
        weights,
        query,
        place_query.expand(poses.shape[0], -1, -1, -1),
        leaky=leaky,
        epsilon=epsilon,
    )
    assert at_places is not None
    mass = at_places[..., 0].sum(1)
    return mass, folded.sums(children, pose_sums, at_places)


def _pass(
    tensors: Sequence[Any],
    leaky: bool,
    epsilon: float | None,
    back: bool,
    *named: Any,
    adds: bool = False,
) -> None:
    poses, places, _, query, _ = tensors
    B, N, T, Q = poses.shape
    J = query.shape[2]
    E = 0 if places is None else len(places)
    threads = _threads(2 * poses.numel() * J)
    # Below 0: the poses as they are.
    epsilon = -1.0 if epsilon is None else epsilon
    sizes = (B, N, T, J, Q, E, leaky, threads, adds, epsilon)
    record = PASS.pack(sizes, zip(_POOLED, tensors, strict=True), *named)
    wide = poses.dtype == torch.float64
    _checked(library().torchcaps_folded(record, back, wide))


def _pooled(
    tensors: Sequence[Any], leaky: bool, epsilon: float | None, keeps: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    poses, _, _, query, place_query = tensors
    B, N, T, _ = poses.shape
    sums, at_places = torch.empty_like(query), None
    if place_query is not None:
        at_places = torch.empty_like(place_query)
    partition = None
    if keeps:
        lanes = library().vector_bytes // poses.dtype.itemsize
        partition = poses.new_empty(B, T, -(-N // lanes), 2, lanes)
    results = zip(
        ("sums", "place_sums", "partition"), (sums, at_places, partition), strict=True
    )
    _pass(tensors, leaky, epsilon, False, results)
    return sums, at_places, partition


class _Pooled(torch.autograd.Function):
    """The sums of one step."""

    @staticmethod
    def forward(
        ctx: Any,
        sums: dict[int, Tensor] | None,
        token: Tensor | None,
        leaky: bool,
        epsilon: float | None,
        *tensors: Tensor | None,
    ) -> Any:
        pose_sums, at_places, partition = _pooled(plain(tensors), leaky, epsilon, True)
        ctx.settings = leaky, epsilon
        ctx.sums = None if token is None else sums
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, partition)
        return pose_sums, at_places

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> Any:
        *tensors, partition = ctx.saved_tensors
        leaky, epsilon = ctx.settings
        poses_need, _, weights_need, *_ = ctx.needs_input_grad[4:]
        sums: dict[int, Tensor] | None = ctx.sums
        # What may be differentiated again is not added up.
        if torch.is_grad_enabled() or any_batched(upstream):
            sums = None
        elif sums is not None:
            # The functions of the tensors among the arguments: the token first.
            token_node, _ = ctx.next_functions[0]
            poses_need = torch._C._will_engine_execute_node(token_node)

        def work(tensors: Tensors, upstream: Tensors) -> Tensors:
            poses, _, weights, query, place_query = given = plain(tensors)
            flows = [
                torch.zeros_like(field) if flow is None and field is not None else flow
                for flow, field in zip(
                    plain(upstream), (query, place_query), strict=True
                )
            ]
            grad_poses, adds = None, False
            if poses_need and sums is not None:
                number = torch._C._current_graph_task_id()
                adds = number in sums
                grad_poses = sums.setdefault(number, torch.empty_like(poses))
            elif poses_need:
                grad_poses = torch.empty_like(poses)
            slopes = (
                grad_poses,
                torch.zeros_like(weights) if weights_need else None,
                torch.empty_like(query),
                None if place_query is None else torch.empty_like(place_query),
            )
            names = ("children", "weights", "queries", "place_queries")
            _pass(
                given,
                leaky,
                epsilon,
                True,
                (("partition", partition),),
                zip(("grad_sums", "grad_place_sums"), flows, strict=True),
                zip((f"grad_{name}" for name in names), slopes, strict=True),
                adds=adds,
            )
            return None if sums is not None else grad_poses, None, *slopes[1:]

        def function(*tensors: Any) -> Tensors:
            return folded.pooled(*tensors, leaky=leaky, epsilon=epsilon)

        return None, None, None, None, *gradients(work, function, tensors, upstream)
