"""The base of every routing algorithm: some steps of soft clustering of the votes."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.numerics import as_constants, check_series, check_size
from torchcaps.ops import EvidentVotes, Similarity, Votes
from torchcaps.spec import (
    Registry,
    SuggestsNames,
    Within,
    argument_value,
    check_field,
    declared,
    refused,
    repr_of,
)

Gradient = Literal["all", "last"]

MOST_STEPS = 10_000
"""Larger numbers are refused as a likely typo. Training uses a few steps, and hundreds
converge.
"""

Steps = Annotated[int, Within(1, MOST_STEPS)]


class Routed(NamedTuple):
    """The parents that a routing returns.

    Args:
        pose: the parents' poses, flattened, (B, J, H).
        activation: the parents' activations, (B, J).
        votes: the votes with the competition that the algorithm used.
        similarity: what the last assignment was made with; None where it was uniform.
        logit: what the activation is the sigmoid of, (B, J), for activations that round
            to 0 or 1; None where the activation is not a sigmoid.

    Example:
        >>> votes = tc.Votes(torch.randn(4, 32, 8), torch.randn(32, 10, 8, 16))
        >>> routed = tc.create_routing("dynamic").bind(10, 16)(votes)
        >>> routed.pose.shape, routed.activation.shape
        (torch.Size([4, 10, 16]), torch.Size([4, 10]))
        >>> routed.assignment.sum(2).allclose(
        ...     torch.ones(4, 32)
        ... )  # each child is shared out
        True
    """

    pose: Tensor
    activation: Tensor
    votes: Votes
    similarity: Similarity | None
    logit: Tensor | None = None

    @property
    def assignment(self) -> Tensor:
        """Return the assignment probabilities of the last step, (B, I, J). They are
        formed when read, with gradients unless ``torch.no_grad`` is on then.
        """
        return self.votes.assignment(self.similarity)


@dataclass(frozen=True)
class LayerShape:
    """The shape that a layer passes to its routing: who votes for whom, and the size of
    poses.

    Args:
        children: I, for a convolution those of one window; None for any number.
        parents: J, for a convolution those of one window.
        in_pose: child pose, (M, P); (P,) of vector capsules is kept as (1, P).
        out_pose: parent pose, (M, D); (D,) of vector capsules is kept as (1, D).
        types: how many of the children have parameters of their own, where places share
            them: child i has those of type i % types. None for all of them, or 1 for
            any number of children.
        alike: whether a child's votes are the same for all parents.

    Raises:
        ValueError: if an argument is not a size, or the children are not a multiple of
            the types; names it.

    Example:
        >>> shape = tc.routing.LayerShape(
        ...     children=32, parents=10, in_pose=(8,), out_pose=(16,)
        ... )
        >>> shape.size  # numbers of a parent's pose
        16
    """

    children: int | None
    parents: int
    in_pose: tuple[int, ...]
    out_pose: tuple[int, ...]
    types: int | None = field(default=None, compare=False)
    alike: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        check_size(parents=self.parents)
        if self.children is not None:
            check_size(children=self.children)
        if self.types is not None:
            check_size(types=self.types)
            if self.children is not None and self.children % self.types:
                raise ValueError(
                    f"types must divide the {self.children} children, got {self.types}"
                )
        for name in ("in_pose", "out_pose"):
            pose = getattr(self, name)
            check_series(**{name: pose})
            if len(pose) > 2:
                raise ValueError(
                    f"{name} must be one size, of vectors, or two, of matrices, got "
                    f"{pose!r}"
                )
            object.__setattr__(self, name, (1, *pose)[-2:])

    @property
    def size(self) -> int:
        """Return H = M * D, the numbers of a flattened vote."""
        return math.prod(self.out_pose)


def shape_of(shape: LayerShape | int, size: int | None) -> LayerShape:
    """Return the shape of a layer, or of one with any number of children as vectors of
    the size of its parents.

    Raises:
        TypeError: if there is a number of parents without a size.
    """
    if isinstance(shape, LayerShape):
        return shape
    if size is None:
        raise TypeError(
            "bind takes a LayerShape, or the number of parents and the size of their "
            "poses"
        )
    return LayerShape(None, shape, (size,), (size,))


def of_settings(flag: Callable[[Any], bool]) -> Any:
    """Return a flag of a routing that follows from its settings, whenever these are
    set.

    Args:
        flag: from the routing to the flag.
    """
    return property(flag)


class Routing(SuggestsNames, nn.Module, ABC):
    """A routing algorithm with its settings and its learned parameters, if any.

    An algorithm implements :meth:`route`; one with parameters of its own also
    :meth:`make_parameters`. Constructor arguments are kept as attributes of the same
    names, so that :meth:`config` can give them back. A layer calls :meth:`bind` and so
    gets a copy of its own: one routing can be passed to many layers.

    The routings here declare their settings as fields
    (:func:`~torchcaps.spec.settings`): a ``ValueError`` names one that is out of its
    range. A declared setting may be set anew at any time, within the same range.

    Example:
        >>> class Mean(tc.routing.Routing):
        ...     def route(self, votes, activation):
        ...         pose = votes.moments(weights=activation).mean
        ...         return tc.routing.Routed(pose, tc.length(pose), votes, None)
        >>> layer = tc.CapsLinear(32, 10, 8, 16, routing=Mean())
        >>> layer(tc.Capsules(torch.randn(4, 32, 8), torch.rand(4, 32))).pose.shape
        torch.Size([4, 10, 16])
    """

    trainable: ClassVar[bool] = True
    """Whether gradients flow through this routing."""

    exact_gradients: bool = True
    """Whether its gradients are the derivatives of what it computes: those of a
    straight-through estimator are not.
    """

    separate_examples: bool = True
    """Whether the parents of an example do not depend on the other examples of its
    batch, but for statistics of batch normalisation in training.
    """

    resumable: bool = False
    """Whether :meth:`route` takes the parents of an earlier call, ``initial``, and goes
    on from them.
    """

    masks_pairs: ClassVar[bool] = False
    """Whether :meth:`route` takes a mask of pairs, ``pairs``, (B, I, J), and keeps the
    masked ones apart.
    """

    within_window: bool = False
    """Whether parents can compete only within one window of a convolution, as by an
    argmax or an assignment map.
    """

    hard: bool = False
    """Whether a child goes to its most similar parent alone: parents with the same votes
    would be told apart by rounding.
    """

    evidence: bool = False
    """Whether :meth:`prepared` gets the votes before :meth:`route` does: if children
    have evidence of their own.
    """

    uses_activation: ClassVar[bool] = True
    """Whether the activations of the children matter. If not,
    :class:`~torchcaps.layers.CapsLinear` passes None for those of poses alone, which
    would be their lengths. It is not inherited with another ``route``.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Another ``route`` may use the activations: it gets them unless its class says
        that it does not.
        """
        super().__init_subclass__(**kwargs)
        if "route" in vars(cls) and "uses_activation" not in vars(cls):
            cls.uses_activation = True

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a declared setting is checked first."""
        check_field(type(self), name, value)
        super().__setattr__(name, value)

    def bind(self, shape: LayerShape | int, size: int | None = None) -> "Routing":
        """Return a copy of this routing with fresh parameters.

        Args:
            shape: the shape of the layer; or only its number of parents, J.
            size: with J, the numbers of a parent's pose, H. The children are then any
                number of vectors of that size.

        Raises:
            TypeError: if there is a number of parents without a size.
        """
        bound = copy.deepcopy(self)
        bound.make_parameters(shape_of(shape, size))
        return bound

    def make_parameters(self, shape: LayerShape) -> None:
        """Create the parameters, shaped for the layer; nothing by default."""

    def prepared(self, votes: Votes) -> Votes:
        """Return the votes for :meth:`route`, with ``evidence``; by default unchanged."""
        return votes

    @property
    def own_transforms(self) -> bool:
        """Return whether this routing transforms the children itself, so that its layer
        has no transforms.
        """
        return False

    @abstractmethod
    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Cluster the votes.

        Args:
            votes: the votes of I children for J parents.
            activation: the child activations, (N, G) as in
                :class:`~torchcaps.ops.Votes`, which is (B, I) but in a convolution;
                None when the children have none.
        """

    def forward(
        self,
        votes: Votes,
        activation: Tensor | None = None,
        *,
        initial: Routed | None = None,
        pairs: Tensor | None = None,
    ) -> Routed:
        """Cluster the votes: :meth:`route`.

        Args:
            votes: the votes of I children for J parents.
            activation: the child activations, as in :meth:`route`.
            initial: the parents of an earlier call, to go on from instead of from a
                uniform assignment. With the same votes, m steps and then n more give
                what m + n steps give; with votes of children that have changed since,
                this is concurrent routing.
            pairs: bool (B, I, J), False where a child must not vote for a parent. None
                allows all pairs.

        Raises:
            TypeError: if the votes are not :class:`~torchcaps.ops.Votes`, ``initial`` is
                not what :meth:`route` returned, or that is not a :class:`Routed`.
            ValueError: if there are not as many activations as children; if this routing
                is not ``resumable``, or ``initial`` has parents of another shape; if it
                does not mask pairs, or ``pairs`` is not bool (B, I, J).

        Source: concurrent routing: Tsai et al. 2020, "Capsules with Inverted
        Dot-Product Attention Routing".
        """
        if not isinstance(votes, Votes):
            raise TypeError(
                "votes must be torchcaps.Votes(children, transforms), got "
                f"{type(votes).__name__}"
            )
        # Kernels read as many activations as there are children.
        if activation is not None and activation.shape != votes.children.shape[:2]:
            raise ValueError(
                "activation must have a number for each child, "
                f"{tuple(votes.children.shape[:2])}, got {tuple(activation.shape)}"
            )
        # The arguments of ``route`` that only some routings take.
        more: dict[str, Any] = {}
        if initial is not None:
            self._check_initial(initial, votes)
            more["initial"] = initial
        if pairs is not None:
            self._check_pairs(pairs, votes)
            more["pairs"] = pairs
        if self.evidence:
            votes = self.prepared(votes)
        if not more:
            routed = self._at_once(votes, activation)
            if routed is not None:
                return routed
        routed = self.route(votes, activation, **more)
        if not isinstance(routed, Routed):
            raise TypeError(
                f"{type(self).__name__}.route must return a Routed, got "
                f"{type(routed).__name__}"
            )
        return routed

    def _check_initial(self, initial: Any, votes: Votes) -> None:
        if not isinstance(initial, Routed):
            raise TypeError(
                "initial must be what route() of the same layer returned, got "
                f"{type(initial).__name__}: write initial=layer.route(inputs)"
            )
        B, _, J, H = votes.shape
        if not self.resumable:
            raise ValueError(
                f"{type(self).__name__} cannot go on from earlier parents: initial "
                "must be None"
            )
        if initial.pose.shape != (B, J, H):
            raise ValueError(
                f"initial must have poses {(B, J, H)}, got {tuple(initial.pose.shape)}"
            )

    def _check_pairs(self, pairs: Tensor, votes: Votes) -> None:
        pairs_shape = votes.shape[:3]
        if not self.masks_pairs:
            raise ValueError(
                f"{type(self).__name__} cannot leave out pairs: mask must be one value "
                "for each child"
            )
        if pairs.dtype != torch.bool or pairs.shape != pairs_shape:
            raise ValueError(
                f"pairs must be bool {pairs_shape}, got {pairs.dtype} "
                f"{tuple(pairs.shape)}"
            )

    def _at_once(self, votes: Votes, activation: Tensor | None) -> Routed | None:
        """The parents by a function in :data:`FAST`; None if there is none for this
        class, its settings, and these votes.
        """
        # Exact types: a subclass of either may change any step.
        evident = type(votes) is EvidentVotes
        if not evident and type(votes) is not Votes:
            return None
        path = FAST.get((type(self), votes.plan.choice.backend))
        if path is None or (evident and "evidence" in path.defaults):
            return None
        for name, default in path.defaults.items():
            if getattr(self, name) != default:
                return None
        return path.make(self, votes, activation)

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments.

        Raises:
            ValueError: if one is not kept as an attribute of the same name.
        """
        return {
            name: argument_value(self, name) for name in declared(type(self)).arguments
        }

    def extra_repr(self) -> str:
        """Return the constructor's arguments, as far as they are kept."""
        arguments = declared(type(self)).arguments
        return repr_of(self, *(name for name in arguments if hasattr(self, name)))


class FastPath(NamedTuple):
    """A function that makes all steps of a routing at once.

    Args:
        make: from the routing, votes and child activations to the parents; or None for
            votes that it cannot do.
        defaults: those of the settings that it does not know: if one differs, the
            routing goes step by step.
    """

    make: Callable[[Any, Votes, Tensor | None], Routed | None]
    defaults: dict[str, Any]


FAST: dict[tuple[type[Routing], str], FastPath] = {}
"""Where a backend makes all steps of a routing at once, by the class of the routing and
the name of the backend. :meth:`Routing.forward` looks here before it routes step by step.
"""


def fast(
    routing: type[Routing], backend: str, *reads: str
) -> Callable[[Callable[..., Routed | None]], Callable[..., Routed | None]]:
    """Function decorator: enters a function in :data:`FAST`.

    Args:
        routing: the class of the routing, without those derived from it.
        backend: the name of the backend.
        reads: the settings of the routing that the function knows. If another one is
            not at its default, the routing goes step by step.
    """

    def enter(make: Callable[..., Routed | None]) -> Callable[..., Routed | None]:
        defaults = {
            name: argument.default
            for name, argument in declared(routing).arguments.items()
            if name not in reads
        }
        FAST[routing, backend] = FastPath(make, defaults)
        return make

    return enter


ROUTINGS = Registry("routing", Routing)
"""The routings that :func:`create_routing` knows."""

register_routing = ROUTINGS.register
"""Class decorator: makes a routing known to :func:`create_routing` and to the command
line.
"""


def list_routings() -> list[str]:
    """List the names that :func:`create_routing` accepts."""
    return sorted(ROUTINGS)


def create_routing(name: str, **arguments: Any) -> Routing:
    """Create a routing by name.

    Args:
        name: the name of the routing, one of :func:`list_routings`.
        **arguments: arguments of its class, such as ``steps``. Those that are left out
            have their defaults.

    Raises:
        ValueError: if there is no routing of that name.
        TypeError: if it does not take these arguments.

    Example:
        >>> routing = tc.create_routing("kmeans", steps=2)
        >>> type(routing).__name__, routing.steps
        ('InnerProductKMeansRouting', 2)
        >>> layer = tc.CapsLinear(32, 10, in_pose=8, out_pose=16, routing=routing)
    """
    cls: Any = ROUTINGS.find(name)
    if why := refused(name, cls, list(arguments)):
        raise TypeError(why)
    return cls(**arguments)


def routing_of(shape: LayerShape, routing: Any, default: Routing) -> Routing:
    """Return the routing of a layer, with parameters for it; arguments and errors as of
    :func:`given_routing`.
    """
    return given_routing(routing, default).bind(shape)


def given_routing(routing: Any, default: Routing) -> Routing:
    """Return the routing that was given, by name or as an object, or the default for
    None.

    Raises:
        TypeError: if what was given is not a routing.
        ValueError: if there is no routing of that name.
    """
    if isinstance(routing, str):
        routing = create_routing(routing)
    if routing is not None and not isinstance(routing, Routing):
        example = f"{type(default).__name__}(), or the name of one"
        raise TypeError(
            f"routing must be a Routing, such as {example}, got {routing!r}"
        )
    return routing or default


def gradient_context(
    gradient: Gradient, step: int, steps: int
) -> AbstractContextManager[object]:
    """Return the context of a step: without gradients for all but the last step where
    only that has them.

    The last step then takes what the earlier ones found as a fixed point: its gradient
    is the first term of the gradient of the fixed point, and memory does not grow with
    the steps.

    Source: Chang, Griffiths & Levine 2022, "Object Representations as Fixed Points:
    Training Iterative Refinement Algorithms with Implicit Differentiation".
    """
    frozen = gradient == "last" and step < steps - 1
    return as_constants() if frozen else nullcontext()


def check_parents(
    routing: Routing, parameter: Tensor | None, votes: Votes, axis: int = 0
) -> None:
    """Check that a routing has a parameter for each parent of the votes, along that
    axis of it.

    Raises:
        RuntimeError: if it has none yet.
        ValueError: if it has one for other parents.
    """
    if parameter is None:
        raise unbound(routing)
    parents = parameter.shape[axis]
    if votes.shape[2] != parents:
        raise ValueError(
            f"this {type(routing).__name__} has parameters for {parents} parents, got "
            f"votes for {votes.parents}"
        )


def unbound(routing: Routing) -> RuntimeError:
    """Return the error for a routing that is called before it has its parameters."""
    return RuntimeError(
        f"this {type(routing).__name__} has no parameters yet: give it to a layer, or "
        "call bind(parents, size)"
    )


def as_capsules(routed: Routed, pose_shape: tuple[int, ...], dtype: Any) -> Capsules:
    """Return the parents as capsules with poses of that shape, in that dtype.

    Raises:
        ValueError: if poses have another size, or activations are not one a parent.
    """
    pose = routed.pose
    activation = routed.activation
    if pose.shape != (*activation.shape, math.prod(pose_shape)):
        raise ValueError(
            f"a routing must return poses (B, J, {math.prod(pose_shape)}) and "
            f"activations (B, J), got {tuple(pose.shape)} and {tuple(activation.shape)}"
        )
    pose = pose.unflatten(-1, pose_shape) if len(pose_shape) > 1 else pose
    # ``to`` takes its time even where there is nothing to do.
    if pose.dtype != dtype or activation.dtype != dtype:
        pose = pose.to(dtype)
        activation = activation.to(dtype)
    return Capsules(pose, activation)
