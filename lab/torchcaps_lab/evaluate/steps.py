"""The routing to the classes, step by step; and what another routing would have made of
the same children.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.capsules import Capsules
from torchcaps.layers import CapsLinear
from torchcaps.models.base import CapsuleNetwork
from torchcaps.numerics import check_size
from torchcaps.routing import EMRouting, LayerShape, Routed, Routing
from torchcaps.routing.base import ROUTINGS
from torchcaps.routing.em import inverse_temperatures
from torchcaps.spec import MISSING, declared


class Step(NamedTuple):
    """The routing to the classes after one of its steps.

    Args:
        assignment: R that the step made, (B, I, J).
        agreement: the cosine between each vote and the parent that the step made of
            them, (B, I, J); 0 where either has no length.
        parents: poses (B, J, H) and activations (B, J).

    Example:
        >>> from torchcaps_lab.evaluate import observe_steps
        >>> network = tc.create_model("capsnet_digits").eval()
        >>> steps = observe_steps(network, network.children_of(torch.rand(1, 1, 8, 8)))
        >>> len(steps), steps[0].assignment.shape
        (3, torch.Size([1, 128, 10]))
    """

    assignment: Tensor
    agreement: Tensor
    parents: Capsules


def observe_steps(model: CapsuleNetwork, children: Capsules) -> list[Step]:
    """Routes children to the classes and shows each step; a routing without steps has
    one.

    Step n of S shows what the routing has found by then, not what a routing of n steps
    finds: EM routing keeps the temperatures of its first n steps. The children are
    routed once for each step.

    Args:
        model: as it stands: in its mode, with gradients if they are on.
        children: the children of its
            :meth:`~torchcaps.models.CapsuleNetwork.children_of`.

    Raises:
        ValueError: if the class capsules have no routing whose votes can be seen.
    """
    layer = model.class_caps
    if not routes_votes(model):
        raise ValueError(
            f"{type(model).__name__} must route votes to its classes, got "
            f"{type(layer).__name__}"
        )
    steps = getattr(layer.routing, "steps", 1)
    steps_of_layer = []
    for count in range(1, steps + 1):
        with _put_back([layer.routing]):
            _stop_after(layer.routing, count)
            steps_of_layer.append(_step(layer.route(children)))
    return steps_of_layer


def routes_votes(model: nn.Module) -> bool:
    """Whether the classes of a network are found by routing votes, which can be
    seen.
    """
    layer = getattr(model, "class_caps", None)
    routing = getattr(layer, "routing", None)
    return (
        hasattr(layer, "route")
        and isinstance(routing, Routing)
        and not routing.own_transforms
    )


def _step(routed: Routed) -> Step:
    agreement = F.cosine_similarity(routed.votes.dense(), routed.pose[:, None], dim=-1)
    return Step(routed.assignment, agreement, Capsules(routed.pose, routed.activation))


def _stop_after(routing: Any, count: int) -> None:
    """Makes a routing end after its first ``count`` steps, each as among all its
    steps.
    """
    if isinstance(routing, EMRouting):
        schedule = inverse_temperatures(
            routing.schedule, routing.steps, 1.0
        )  # its own scale is multiplied with it
        routing.schedule = lambda step, _: schedule[step]
        if isinstance(routing.sharpness, list):
            routing.sharpness = routing.sharpness[: count - 1]
    if "steps" in vars(routing):
        routing.steps = count


@contextmanager
def _put_back(routings: Sequence[Any]) -> Iterator[None]:
    """After the ``with`` block all that says how many steps routings make, and how, is
    as it was before.
    """
    names = ("steps", "schedule", "sharpness", "evidence")
    before = []
    for routing in routings:
        attributes = vars(routing)
        before.append({name: attributes[name] for name in names if name in attributes})
    try:
        yield
    finally:
        for routing, settings in zip(routings, before, strict=True):
            vars(routing).update(settings)


def exchangeable_routings(model: CapsuleNetwork) -> list[str]:
    """The names of the routings that the class layer of a trained network can do with
    in place of its own.

    These need no arguments and learn nothing: a routing with parameters would be
    untrained. Where the network routes in several rounds, they go on from parents of
    the round before.
    """
    if not routes_votes(model):
        return []
    shape = _layer_shape(model)
    goes_on = getattr(model, "rounds", 1) > 1  # concurrent routing
    names = []
    for name, kind in sorted(ROUTINGS.items()):
        if any(
            argument.default is MISSING
            for argument in declared(kind).arguments.values()
        ):
            continue
        routing = _with_steps(kind, None)
        if routing.own_transforms or (goes_on and not routing.resumable):
            continue
        if not list(routing.bind(shape).parameters()):
            names.append(name)
    return names


@contextmanager
def other_routing(
    model: CapsuleNetwork, name: str | None = None, steps: int | None = None
) -> Iterator[None]:
    """Inside the ``with`` block the class layer of a network routes in another way, or
    in another number of steps.

    Args:
        model: a network with trained transforms, which stay.
        name: one of :func:`exchangeable_routings`; None for its own.
        steps: how many; None for as many as it takes by itself.

    Raises:
        ValueError: if there is no such routing, or it has no steps.
    """
    layer: Any = model.class_caps
    if name is None:
        with nullcontext() if steps is None else routing_steps(layer, steps):
            yield
        return
    if name not in exchangeable_routings(model):
        raise ValueError(
            f"routing must be one of {exchangeable_routings(model)}, got {name!r}"
        )
    trained_routing = layer.routing
    layer.routing = _with_steps(ROUTINGS[name], steps).bind(_layer_shape(model)).eval()
    try:
        yield
    finally:
        layer.routing = trained_routing


def _with_steps(kind: type[Routing], steps: int | None) -> Routing:
    """A routing of a kind with its default arguments, or with this number of steps."""
    if steps is None:
        return kind()
    if "steps" not in declared(kind).arguments:
        raise ValueError(f"{kind.__name__} has no steps, got steps={steps}")
    return kind(steps=steps)


def _layer_shape(model: CapsuleNetwork) -> LayerShape:
    layer = model.class_caps
    children = layer.in_capsules if isinstance(layer, CapsLinear) else None
    return LayerShape(children, model.classes, layer.in_pose, layer.out_pose)


def stretched(temperatures: Sequence[float], steps: int) -> list[float]:
    r"""The inverse temperatures of a training, interpolated to another number of steps.

    With :math:`\lambda_0 \dots \lambda_{S-1}` those of the training, joined by straight
    lines, and n steps:

    .. math::
        \lambda'_k = \lambda\Big(\frac{k (S - 1)}{n - 1}\Big), \quad k = 0 \dots n - 1

    They begin and end as in the training; a single step has the last. The activations
    of the parents are then made at the temperature that the network knows, and only the
    assignment differs.

    Args:
        temperatures: the temperatures of each step of the training.
        steps: n.
    """
    last = len(temperatures) - 1
    if steps > 1:
        places = [step * last / (steps - 1) for step in range(steps)]
    else:
        places = [last]
    return np.interp(places, range(len(temperatures)), temperatures).tolist()


@contextmanager
def routing_steps(network: nn.Module, steps: int) -> Iterator[None]:
    """Use this number of steps in all routings of a network inside the ``with`` block;
    1 is uniform without evidence.

    EM routing keeps the first and the last inverse temperature of its training, and so
    its sharpness where that changes from step to step: see :func:`stretched`.

    Args:
        network: any network of torchcaps layers.
        steps: at least 1.

    Raises:
        ValueError: if ``steps`` is no whole number, or less than 1, if nothing in the
            network routes, or a routing has no number of steps.
    """
    check_size(steps=steps)
    routings: list[Any] = [
        module for module in network.modules() if isinstance(module, Routing)
    ]
    if not routings:
        raise ValueError(
            f"network must route, but {type(network).__name__} has no routing"
        )
    without = [
        type(routing).__name__ for routing in routings if "steps" not in vars(routing)
    ]
    if without:
        raise ValueError(
            f"network must route in steps, but {', '.join(without)} does not"
        )
    with _put_back(routings):
        for routing in routings:
            if isinstance(routing, EMRouting) and steps != routing.steps:
                routing.schedule = _stretched_schedule(routing, steps)
                if isinstance(routing.sharpness, list) and routing.sharpness:
                    routing.sharpness = stretched(routing.sharpness, steps - 1)[
                        : steps - 1
                    ]  # one each E-step
            routing.steps = steps
        yield


@contextmanager
def even_assignments(network: nn.Module) -> Iterator[None]:
    """Split every child evenly in all routings of a network inside the ``with`` block:
    one step, and no evidence.

    Args:
        network: any network of torchcaps layers.

    Raises:
        ValueError: what :func:`routing_steps` raises.
    """
    with routing_steps(network, 1):
        for module in network.modules():
            if isinstance(module, Routing) and module.evidence:
                module.evidence = False
        yield


def _stretched_schedule(routing: EMRouting, steps: int) -> Callable[[int, int], float]:
    """A schedule of EM routing over another number of steps."""
    trained = inverse_temperatures(
        routing.schedule, routing.steps, 1.0
    )  # the routing multiplies its own scale on
    temperatures = stretched(trained, steps)
    return lambda step, steps: temperatures[step]
