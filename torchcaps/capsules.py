"""What capsule layers take and return, poses with activations, and what networks
answer.
"""

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree
from torch.utils.hooks import RemovableHandle

from torchcaps.spec import SuggestsNames


def _shapes_of(named: NamedTuple) -> str:
    """A named tuple of tensors with their shapes in place of their numbers."""
    fields = zip(named._fields, named, strict=True)
    shown = [
        f"{name}={tuple(field.shape) if isinstance(field, Tensor) else field!r}"
        for name, field in fields
    ]
    kinds = {
        str(field.dtype).removeprefix("torch.")
        for field in named
        if isinstance(field, Tensor)
    }
    return f"{type(named).__name__}({', '.join([*shown, *sorted(kinds)])})"


TupleType = TypeVar("TupleType", bound=type[tuple])


def exportable(cls: TupleType) -> TupleType:
    """Class decorator: lets ``torch.export.save`` write programs that take or return
    such a named tuple, and ``torch.load`` read one without ``weights_only=False``. Its
    ``repr`` has shapes in place of numbers.
    """
    cls.__repr__ = _shapes_of  # type: ignore[assignment]
    torch.serialization.add_safe_globals([cls])
    _pytree._register_namedtuple(cls, serialized_type_name=f"torchcaps.{cls.__name__}")
    return cls


@exportable
class Capsules(NamedTuple):
    """Capsules, each with a pose and an activation that tells whether its entity is
    present.

    Args:
        pose: (B, *sites, D) for vector capsules, (B, *sites, M, D) for matrix capsules.
        activation: (B, *sites), one number for each capsule.

    The sites are the axes that capsules are arranged on: ``(rows, columns, types)``
    after a convolution, one axis after
    :class:`~torchcaps.layers.CapsLinear`.

    Example:
        >>> capsules = tc.Capsules(
        ...     pose=torch.randn(2, 6, 6, 8, 4, 4), activation=torch.rand(2, 6, 6, 8)
        ... )
        >>> capsules.pose_shape
        (4, 4)
        >>> capsules.flatten()
        Capsules(pose=(2, 288, 4, 4), activation=(2, 288), float32)
    """

    pose: Tensor
    activation: Tensor

    @property
    def pose_shape(self) -> tuple[int, ...]:
        """Return ``(D,)`` for vector capsules and ``(M, D)`` for matrix capsules."""
        return tuple(self.pose.shape[self.activation.ndim :])

    @property
    def device(self) -> torch.device:
        """Return the device of the poses, which Captum reads from a layer's input."""
        return self.pose.device

    def flatten(self) -> "Capsules":
        """Return the same capsules with all sites on one axis, pose (B, I, ...) and
        activation (B, I).
        """
        sites = self.activation.ndim - 1
        if sites == 1:
            return self
        return Capsules(self.pose.flatten(1, sites), self.activation.flatten(1))


def from_pair(value: Any) -> Any:
    """Return capsules for a plain tuple (pose, activation) of two tensors, and anything
    else as it is.

    Tools that hook into layers, such as Captum, pass plain tuples on. Every layer and
    network that takes capsules calls this first. These tools differentiate with respect
    to both tensors, and autograd refuses one that the network does not use, as dynamic
    routing does not use activations. So in capsules from a plain tuple both depend on
    both: the gradient of one that is not used is 0.
    """
    if (
        type(value) is not tuple
        or len(value) != 2
        or not all(isinstance(tensor, Tensor) for tensor in value)
    ):
        return value
    pose, activation = value
    wanted = torch.is_grad_enabled() and (
        pose.requires_grad or activation.requires_grad
    )
    # No tool hooks into a compiled graph.
    if wanted and not torch.compiler.is_compiling():
        pose, activation = _Tied.apply(pose, activation)
    return Capsules(pose, activation)


class _Tied(torch.autograd.Function):
    """Both tensors as they are, in one node: autograd gives 0 for the gradient of one
    that is not used.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(pose: Tensor, activation: Tensor) -> tuple[Tensor, Tensor]:
        return pose.view_as(pose), activation.view_as(activation)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]
    ) -> None:
        """Save nothing for the backward pass."""

    @staticmethod
    def backward(
        ctx: Any, grad_pose: Tensor, grad_activation: Tensor
    ) -> tuple[Tensor, Tensor]:
        return grad_pose, grad_activation

    @staticmethod
    def jvp(ctx: Any, pose: Tensor, activation: Tensor) -> tuple[Tensor, Tensor]:
        return pose.view_as(pose), activation.view_as(activation)


class KeepsProperties(nn.Module):
    """Base of modules with properties, such as ``routing``, that belong to a layer
    inside.

    Raises:
        AttributeError: if a module is set for a property: torch would register it
            beside the one in use, and it would change nothing.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute that is no property, or no module."""
        if isinstance(value, nn.Module) and isinstance(
            inspect.getattr_static(type(self), name, None), property
        ):
            raise AttributeError(
                f"{name} of {type(self).__name__} is that of a layer inside, and is set "
                "there, as in class_caps.routing = routing.bind(parents, size)"
            )
        super().__setattr__(name, value)


class CapsuleLayer(SuggestsNames, KeepsProperties):
    """Base of modules that return :class:`Capsules`.

    A forward hook may return a plain tuple (pose, activation), as those of Captum do:
    callers get capsules all the same. What a layer takes, each turns into capsules
    itself, by :func:`from_pair`.

    A layer that inherits its constructor inherits the explanation of its arguments, so
    that ``help`` shows it.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__doc__ and "__init__" not in vars(cls):
            explained = next(base for base in cls.__mro__ if "__init__" in vars(base))
            cls.__doc__ = _with_arguments(cls.__doc__, explained.__doc__ or "")

    def register_forward_hook(
        self, hook: Callable[..., Any], **options: Any
    ) -> RemovableHandle:
        """Register a hook; a pair of tensors that it returns becomes capsules."""
        return super().register_forward_hook(partial(_as_capsules, hook), **options)

    def set_hooked_weights(self) -> None:
        """Set the weights that hooks of ``torch.nn.utils`` compute from others whenever
        the layer is called, as those of pruning: for who reads its votes before a call.
        """
        for hook in self._forward_pre_hooks.values():
            # By the name of the module, because torch does not import that of pruning.
            modules = [base.__module__ for base in type(hook).__mro__]
            if any(module.startswith("torch.nn.utils.") for module in modules):
                hook(self, ())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Apply what ``to`` and ``half`` do to all parameters and buffers.

        ``to(memory_format=torch.channels_last)`` is for maps. It would fail for
        transforms of five axes, and those of four would be copied in each call: they
        are passed on without axes.
        """

        def on_transforms(tensor: Tensor) -> Tensor:
            if tensor.ndim < 4:
                return fn(tensor)
            return fn(tensor.flatten()).view(tensor.shape)

        for name, child in self.named_children() if recurse else ():
            # Transforms that torch.nn.utils.parametrize has moved stay transforms.
            child._apply(on_transforms if name == "parametrizations" else fn)
        return super()._apply(on_transforms, recurse=False)


def _with_arguments(text: str, explained: str) -> str:
    """A docstring with the section Args of another one, before the shapes."""
    arguments = re.search(
        r"^Args:\n(?:(?: .*)?\n)+", inspect.cleandoc(explained), re.MULTILINE
    )
    text = inspect.cleandoc(text)
    if arguments is None or "\nArgs:" in text:
        return text
    head, mark, shapes = text.partition("\nShape:")
    return f"{head.rstrip()}\n\n{arguments[0].rstrip()}\n{mark}{shapes}"


def _as_capsules(hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a hook returns, capsules in place of a pair of tensors."""
    return from_pair(hook(*args, **kwargs))


@exportable
class Places(NamedTuple):
    """What a network that locates things predicts at each place of a batch of images.

    Args:
        children: the capsules of the places, poses (B, H', W', D).
        maps: how much of each place belongs to each class, (B, E, H', W').
        boxes: the box that each place votes for, (B, H' W', 4): left, top, right,
            bottom in pixels of the image; None if places do not vote.
        centres: x and y of each place, in the same pixels, (B, H' W', 2).

    Example:
        >>> network = tc.models.SceneCapsNet(
        ...     (1, 48, 48), classes=10, channels=(8, 8, 16), boxes=True
        ... )
        >>> network(torch.rand(2, 1, 48, 48)).places.boxes.shape
        torch.Size([2, 36, 4])
    """

    children: Capsules
    maps: Tensor
    boxes: Tensor | None
    centres: Tensor


@exportable
class DrawnFeatures(NamedTuple):
    """The features of an image, and what capsules drew of them.

    Args:
        drawn: the reconstruction of the features, (B, F, H', W').
        true: the features of the image, likewise.
    """

    drawn: Tensor
    true: Tensor


@exportable
class Prediction(NamedTuple):
    """The output of a network for a batch of images.

    Args:
        activation: the activation of the classes, (B, E).
        capsules: the capsules of the classes; None for a network without capsules.
        reconstruction: (B, C, H, W); None for a network without a decoder.
        boxes: where each class is, (B, E, 4): left, top, right, bottom in pixels of the
            image; zeros for nowhere. None for a network that does not locate things.
        places: what it predicts at each place; None likewise.
        masks: how much of each pixel each capsule draws, (B, E, H, W), 1 in all; None
            for a network whose capsules draw no parts.
        assigned: how much of each pixel of the image belongs to each capsule, likewise:
            the masks, corrected by the colour of the pixel. None in training.
        features: the features that the capsules draw; None for a network whose capsules
            draw the image.
        colours: what each capsule draws, (B, E, C, H, W); None for a network that does
            not draw each by itself.

    Example:
        >>> prediction = tc.create_model("capsnet_digits")(torch.rand(2, 1, 8, 8))
        >>> prediction.activation.shape, prediction.reconstruction.shape
        (torch.Size([2, 10]), torch.Size([2, 1, 8, 8]))
    """

    activation: Tensor
    capsules: Capsules | None = None
    reconstruction: Tensor | None = None
    boxes: Tensor | None = None
    places: Places | None = None
    masks: Tensor | None = None
    assigned: Tensor | None = None
    features: DrawnFeatures | None = None
    colours: Tensor | None = None
