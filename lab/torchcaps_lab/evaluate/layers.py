"""A network seen layer by layer: its capsules, their routing, and whether both are
healthy.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules, from_pair
from torchcaps.layers.conv import CapsConvNd
from torchcaps.models.base import CapsuleNetwork
from torchcaps.ops.windows import Windows
from torchcaps.routing import Routed, Routing
from torchcaps.squashing import length


@dataclass(frozen=True, eq=False)
class Layer:
    """What one layer of capsules did with a batch of images.

    Attributes:
        name: the name of the module in the network.
        module: the layer itself.
        capsules: what it returned.
        children: what it took; None for a layer that makes capsules of something else,
            such as primary capsules.
        routed: what its routings returned; empty where nothing was routed.

    Example:
        >>> from torchcaps_lab.evaluate import observe_layers
        >>> layers = observe_layers(
        ...     tc.create_model("capsnet_digits"), torch.rand(2, 1, 8, 8)
        ... )
        >>> list(layers)
        ['primary_caps', 'class_caps']
    """

    name: str
    module: nn.Module
    capsules: Capsules
    children: Capsules | None = None
    routed: tuple[Routed, ...] = ()

    @cached_property
    def windows(self) -> Windows | None:
        """The windows of a convolutional layer; None where every child votes for every
        parent.
        """
        if not isinstance(self.module, CapsConvNd) or self.children is None:
            return None
        return self.module.windows(self.children)

    @property
    def competition(self) -> str:
        """Which parents compete for a child: of :class:`~torchcaps.CapsConv2d`, else
        those of its one window.
        """
        return getattr(self.module, "competition", "window")

    @property
    def decides(self) -> bool:
        """Whether it routes, and children have more than one parent to go to."""
        wide = self.windows is not None and self.competition != "window"
        return any(wide or routed.assignment.shape[-1] > 1 for routed in self.routed)

    def assignment(self, group: int = 0) -> Tensor:
        r"""The last assignment probabilities R, by windows, with what each child gives
        away adding up to 1 at most.

        Args:
            group: which of its routings.

        Returns:
            (B, windows, I, J): I children in a window (places x types), J parents at
            its position; one window with all children where the layer has none. Where
            every window routes for itself (``competition="window"``), R is divided by
            the number of windows that see the child: each of them speaks for an equal
            part of it.
        """
        R = self.routed[group].assignment
        if self.windows is None:
            return R.unsqueeze(1)
        R = R.unflatten(0, (-1, math.prod(self.windows.out)))
        if self.competition == "window":
            R = R / self.gather(self.scatter(torch.ones_like(R[..., :1]))).clamp(min=1)
        return R

    def scatter(self, field: Tensor) -> Tensor:
        """Adds up what the windows say of each child, (B, windows, I, ...) to (B,
        children, ...), in float32 at least.

        The children of a convolution lie on the padded grid, row by row, with their
        types last.
        """
        field = field.to(torch.promote_types(field.dtype, torch.float32))
        if self.windows is None:
            return field.squeeze(1)
        sites = self.windows.sites(field.device)
        places = sites.shape[1]
        types = field.shape[2] // places
        flat = field.unflatten(2, (places, types)).flatten(
            1, 2
        )  # [B, windows * places, types, ...]
        total = flat.new_zeros(len(flat), self.windows.padded, *flat.shape[2:])
        return total.index_add(1, sites.flatten(), flat).flatten(1, 2)

    def gather(self, field: Tensor) -> Tensor:
        """What each window sees of a value of each child: (B, children, ...) to (B,
        windows, I, ...).
        """
        if self.windows is None:
            return field.unsqueeze(1)
        grid = field.unflatten(1, (self.windows.padded, -1))  # [B, padded, types, ...]
        seen = grid[
            :, self.windows.sites(field.device)
        ]  # [B, windows, places, types, ...]
        return seen.flatten(2, 3)

    def inside(self, field: Tensor) -> Tensor:
        """Without the padding, and on the children's sites: (B, children, ...) to (B,
        *sites, ...).
        """
        assert self.children is not None
        if self.windows is None:
            return field.unflatten(1, self.children.activation.shape[1:])
        grid = field.unflatten(1, (*self.windows.extent, -1))
        for axis, (size, padding) in enumerate(
            zip(self.windows.size, self.windows.padding, strict=True), 1
        ):
            grid = grid.narrow(axis, padding, size)
        return grid


def observe_layers(model: nn.Module, images: Tensor) -> dict[str, Layer]:
    """Run a network once and keep what every layer of capsules did.

    A layer is any module that returns :class:`~torchcaps.Capsules`; a module around it
    that passes the same capsules on is not counted again. Its routing is what the
    :class:`~torchcaps.routing.Routing` modules inside it returned. Of concurrent
    routing the last round is seen. The class capsules are those that a
    :class:`~torchcaps.models.CapsuleNetwork` gives, whatever it makes of its layer's
    activations. The network runs as it stands: in its mode, with gradients if they are
    on.

    Args:
        model: any network of torchcaps layers; of a
            :class:`~torchcaps.models.CapsuleNetwork` the decoder is left out.
        images: (B, C, H, W), or whatever the network takes.

    Returns:
        The layers by name, in the order in which they ran; a layer that ran again is
        ``name_2``. Empty for a network without capsules.
    """
    with _recording(model) as layers:
        if isinstance(model, CapsuleNetwork):
            classes = model.encode(images)
            runs = [
                name
                for name, layer in layers.items()
                if layer.module is model.class_caps
            ]
            if runs:
                layers[runs[-1]] = replace(layers[runs[-1]], capsules=classes)
        else:
            model(images)
    return layers


@contextmanager
def _recording(model: nn.Module) -> Iterator[dict[str, Layer]]:
    """Inside the ``with`` block every layer of capsules that runs is added to what this
    gives.
    """
    layers: dict[str, Layer] = {}
    pending: list[tuple[nn.Module, Routed]] = []

    def routed(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        pending.append((module, output))

    def taken(module: nn.Module) -> tuple[Routed, ...]:
        inside = set(module.modules())
        inner_routings = tuple(
            output for routing, output in pending if routing in inside
        )
        pending[:] = [
            (routing, output) for routing, output in pending if routing not in inside
        ]
        return inner_routings

    def begins(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        taken(module)  # drops routings of earlier rounds

    def ran(
        module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any
    ) -> None:
        # Capsules are a pair; most modules return a tensor.
        output = from_pair(output) if isinstance(output, tuple) else output
        if not isinstance(output, Capsules) or any(
            _same(output, layer.capsules) for layer in layers.values()
        ):
            return
        name = names[module]
        times = sum(layer.module is module for layer in layers.values())
        key = f"{name}_{times + 1}" if times else name
        inputs_of_call = (*inputs, *named.values())
        inner_routings = taken(module)
        children = None
        if inner_routings and inputs_of_call:
            children = _children(module, inputs_of_call[0])
        layers[key] = Layer(key, module, output, children, inner_routings)

    names = {module: name or "model" for name, module in model.named_modules()}
    routings = [name for module, name in names.items() if isinstance(module, Routing)]
    with ExitStack() as hooks:
        for module, name in names.items():
            if isinstance(module, Routing):
                hooks.enter_context(module.register_forward_hook(routed))
                continue
            if module is model or any(
                map(str.startswith, routings, repeat(f"{name}."))
            ):
                hooks.enter_context(module.register_forward_pre_hook(begins))
            hooks.enter_context(module.register_forward_hook(ran, with_kwargs=True))
        yield layers


def _same(first: Capsules, second: Capsules) -> bool:
    return first.pose is second.pose and first.activation is second.activation


def _children(module: nn.Module, candidate: Any) -> Capsules | None:
    """What a layer took; the activations of poses alone are their lengths."""
    if isinstance(candidate, Tensor):
        axes = tuple(range(-len(getattr(module, "in_pose", (0,))), 0))
        return Capsules(candidate, length(candidate, axes))
    candidate = from_pair(candidate)
    return candidate if isinstance(candidate, Capsules) else None


def below(layers: dict[str, Layer], layer: Layer) -> Layer | None:
    """The layer that made the children of this one; None if no observed layer did."""
    if layer.children is None:
        return None
    pose, activation = layer.children
    makers = [
        other_layer
        for other_layer in layers.values()
        if other_layer.capsules.pose is pose
        or other_layer.capsules.activation is activation
    ]
    return makers[0] if makers else None


def layer_entropy(layer: Layer) -> Tensor:
    r"""How undecided a layer's routing was, from 0 (each child went to one parent) to 1
    (all its parents got the same).

    :func:`assignment_entropy` over the parents that compete for a child, averaged over
    the children:

    .. math::
        \frac{1}{I} \sum_i \frac{-1}{\log K_i} \sum_{p} r_{ip} \log r_{ip}, \quad
        r_{ip} = \frac{R_{ip}}{\sum_{p'} R_{ip'}}

    In a convolution whose parents compete over the whole image, p runs over the parents
    of all windows that see the child, K_i in number: fewer at the border. Where types
    do not compete, p runs only over those of one type, and the average is also over the
    types. Where each window routes for itself, p runs over the J parents of one window,
    and the average is also over the windows. Padding and children that no window sees
    are left out; several routings are averaged.

    Args:
        layer: one that routes, of :func:`observe_layers`.

    Returns:
        (B,), no units: nats over log K nats.

    Raises:
        ValueError: if the layer does not route.
    """
    return mean_of_groups(layer, _group_entropy)


def mean_of_groups(layer: Layer, measure: Callable[[Layer, int], Tensor]) -> Tensor:
    """A measure (B,) of each routing of a layer, averaged over them.

    Raises:
        ValueError: if the layer does not route.
    """
    if not layer.routed:
        raise ValueError(f"layer {layer.name} routes nothing: it has no assignment")
    return torch.stack(
        [measure(layer, group) for group in range(len(layer.routed))]
    ).mean(0)


def mean_of_children(layer: Layer, field: Tensor, windows: Tensor) -> Tensor:
    """A number of each child, (B, children), averaged over those that are seen by some
    windows, (B,).
    """
    field, seen = (
        layer.inside(share).flatten(1)
        for share in (field, (windows > 0).to(field.dtype))
    )
    return (field * seen).sum(1) / seen.sum(1)


def _group_entropy(layer: Layer, group: int) -> Tensor:
    R = layer.assignment(group)  # [B, windows, I, J]
    if layer.windows is None:
        return assignment_entropy(R.squeeze(1))
    R = R.to(torch.promote_types(R.dtype, torch.float32))
    if layer.competition == "window":
        windows = layer.scatter(torch.ones_like(R[..., 0]))  # [B, children]
        entropy = assignment_entropy(R.flatten(0, 1)[:, :, None].flatten(0, 1)).view(
            R.shape[:3]
        )  # of each row
        mean = layer.scatter(entropy) / windows.clamp(min=1)
    else:
        windows, mean = _wide_entropy(layer, R)
    return mean_of_children(layer, mean, windows)


def _wide_entropy(layer: Layer, R: Tensor) -> tuple[Tensor, Tensor]:
    """Of each child the number of parents in all windows that compete for it, and their
    entropy, (B, children).
    """

    def together(field: Tensor) -> Tensor:
        return field.sum(-1, keepdim=True)

    total = layer.gather(together(layer.scatter(R)))
    competing = together(layer.scatter(torch.ones_like(R)))  # [B, children, 1]
    share = ratio(R, total, 1 / layer.gather(competing))
    entropy = (
        -together(layer.scatter(torch.xlogy(share, share)))
        / competing.clamp(min=2).log()
    )
    return competing.amax(-1), entropy.mean(-1).clamp(
        0, 1
    )  # rounding may lead out of [0, 1]


def peak_activation(capsules: Capsules) -> Tensor:
    """The largest activation of each type of capsule at any position, (B, types).

    The types are the last axis of sites; capsules (B, H, W) without such an axis are of
    one type.
    """
    activation = capsules.activation
    if activation.ndim == 3:
        activation = activation.unsqueeze(-1)
    return activation if activation.ndim == 2 else activation.flatten(1, -2).amax(1)


def with_types(activation: Tensor) -> Tensor:
    """(B, H', W', types), of one type where there is no such axis."""
    return activation if activation.ndim == 4 else activation.unsqueeze(-1)


def assignment_entropy(assignment: Tensor) -> Tensor:
    r"""How undecided routing was, from 0 (each child went to one parent) to 1 (all
    parents got the same).

    .. math::
        \frac{-1}{I \log J} \sum_{ij} R_{ij} \log R_{ij}

    For routings that let children go to no parent, R is first divided by its sum over
    the parents. With one parent there is nothing to decide: 0.

    Args:
        assignment: R, (B, I, J).

    Returns:
        (B,), no units: nats over log J nats.

    Raises:
        ValueError: if ``assignment`` has another number of axes.

    Assignments that turn hard as the steps grow: Paik, Kwak & Kim 2019, "Capsule
    Networks Need an Improved Routing Algorithm".
    """
    if assignment.ndim != 3:
        raise ValueError(
            f"assignment must be (B, I, J), got shape {tuple(assignment.shape)}"
        )
    J = assignment.shape[-1]
    if J == 1:
        return assignment.new_zeros(len(assignment))
    share = ratio(assignment, assignment.sum(-1, keepdim=True), 1 / J)
    return (-torch.xlogy(share, share).sum(-1).mean(-1) / math.log(J)).clamp(
        0, 1
    )  # rounding may lead out of [0, 1]


def ratio(part: Tensor, total: Tensor, otherwise: Tensor | float) -> Tensor:
    """``part / whole``, or ``otherwise`` where the whole is 0; its gradients are finite
    there.
    """
    divisible = total > 0
    return torch.where(divisible, part / torch.where(divisible, total, 1.0), otherwise)


def dead_capsules(activation: Tensor, threshold: float = 0.01) -> float:
    """The share of capsules whose activation stays at or below the threshold for every
    image.

    Args:
        activation: (N, J), of J capsules for N images.
        threshold: in units of the activation.

    Raises:
        ValueError: if ``activation`` has another number of axes, or no images.
    """
    if activation.ndim != 2 or not len(activation):
        raise ValueError(
            "activation must be (N, J) of at least one image, got shape "
            f"{tuple(activation.shape)}"
        )
    dead = activation.amax(0) <= threshold
    return int(dead.sum()) / len(dead)
