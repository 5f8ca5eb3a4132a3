"""Class capsules on the features of any network, whatever their size."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

from torchcaps.capsules import CapsuleLayer, Capsules
from torchcaps.layers.classcaps import ClassCaps
from torchcaps.layers.initial import FirstBatchLinear, check_channels, start_length
from torchcaps.numerics import check_size
from torchcaps.routing import DynamicRouting, Routed, Routing
from torchcaps.squashing import length, squash


class HeadCaps(ClassCaps):
    r"""Multiply the transforms by a constant, :math:`V_{tj} = u_t \, g W_{tj}`.

    All positions share the transforms, so a step of an optimizer changes a parent's
    pose by as much more as there are more positions. The constant is the root of the
    factor that fits the positions, and leaves weights that a step changes little.
    """

    gain: Tensor

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register_buffer("gain", torch.ones(()))

    @property
    def transforms(self) -> Tensor:
        """Return the weights times the constant."""
        return self.gain * self.weight

    @torch.no_grad()
    def start(self, children: Capsules) -> None:
        """Scale the transforms for children; the constant has the root of the factor."""
        self.gain.fill_(1)
        root = math.sqrt(start_length(self, children))
        self.gain.fill_(root)
        self.weight.div_(root)


class CapsHead(CapsuleLayer):
    r"""Replace the last linear layer of a network by capsules, one for each class.

    .. math:: u_{nt} = \operatorname{squash}(W_t \, \operatorname{norm}(x_n) + b_t), \quad V_{ntj} = u_{nt} W_{tj}

    The features :math:`x_n` of each position n, standardised over their channels,
    become ``types`` primary capsules, which all vote for the classes. Positions share
    the transforms, so maps and sequences may have any size. The first batch sets the
    number of channels and draws the transforms of the classes (0 until then), unless
    they are loaded: pass a batch through before you make an optimizer. The transforms are
    scaled so that the mean length at the start does not depend on positions and
    features, see :func:`~torchcaps.layers.start_length`. The root of the factor is a
    constant, so that the same learning rates fit few and many positions. Take real
    inputs: the positions of a constant image agree more than others, and the classes
    then start shorter.

    Args:
        classes: the number of classes, J, which are the parents.
        types: the number of types of primary capsules at each position.
        dim: how many numbers the pose of a primary capsule has.
        pose_dim: how many numbers the pose of a class has.
        routing: any routing, or the name of one; default: dynamic routing in 3 steps.

    Shape:
        Features of any backbone, maps (B, C, H, W), vectors (B, C), or tokens (B, N,
        C), to poses (B, classes, pose_dim) and activations (B, classes).

    Raises:
        TypeError: if the features are no tensor.
        ValueError: if an argument is not a size, or the features have another number of
            axes or of channels, or a single channel.
        RuntimeError: if the transforms are parametrized before the first batch.

    Source: Sabour, Frosst & Hinton 2017, section 4; transforms that positions share:
    Hinton, Sabour & Frosst 2018, section 4.

    Example:
        >>> head = tc.CapsHead(10)
        >>> head(torch.randn(4, 512, 7, 7)).activation.shape  # what a backbone gives
        torch.Size([4, 10])
        >>> tc.margin_loss(
        ...     tc.CapsHead(5)(torch.randn(4, 64)).activation,
        ...     torch.tensor([0, 1, 2, 4]),
        ... ).shape
        torch.Size([])
    """

    def __init__(
        self,
        classes: int,
        *,
        types: int = 32,
        dim: int = 8,
        pose_dim: int = 16,
        routing: Routing | str | None = None,
    ) -> None:
        super().__init__()
        check_size(classes=classes, types=types, dim=dim, pose_dim=pose_dim)
        self.types = types
        self.dim = dim
        self.primary: nn.Linear = FirstBatchLinear(types * dim)
        routing = routing or DynamicRouting()
        self.class_caps = HeadCaps(
            types, classes, dim, pose_dim, routing=routing, coordinates=False
        )
        nn.init.zeros_(self.class_caps.weight)
        # Classes whose transforms the next batch draws, 0 once they are there. A number,
        # so that a network's reset_classifier sees it change with the transforms.
        self._undrawn = 0 if self.routing.own_transforms else classes
        self.register_load_state_dict_post_hook(_loaded)

    @property
    def routing(self) -> Routing:
        """Return the routing of the class capsules."""
        return self.class_caps.routing

    def children_of(self, features: Tensor) -> Capsules:
        """Return the primary capsules, poses (B, H, W, types, dim)."""
        rows = _rows(features)
        check_channels(self.primary, rows)
        children = self._children(rows)
        pose = children.pose
        if self._undrawn and not (pose.is_meta or isinstance(pose, FakeTensor)):
            # Traced, its calls of the layer would take a minute.
            start = (
                _START_UNTRACED if torch.compiler.is_compiling() else CapsHead._start
            )
            start(self, rows, children)
        return children

    def _children(self, rows: Tensor) -> Capsules:
        numbers: Tensor = self.primary(F.layer_norm(rows, rows.shape[-1:]))
        pose = squash(numbers.view(*rows.shape[:-1], self.types, self.dim))
        return Capsules(pose, length(pose))

    @torch.no_grad()
    def _start(self, rows: Tensor, children: Capsules) -> None:
        """Draw the transforms of the classes, unless they were loaded, and scales them
        to what these children make of them.
        """
        # Norms of zeros divide by 0.
        if not self.class_caps.weight.nan_to_num().any():
            self._draw(rows, children)
        self._undrawn = 0

    def _draw(self, rows: Tensor, children: Capsules) -> None:
        if "weight" not in self.class_caps._parameters:
            raise RuntimeError(
                "the first batch draws class_caps.weight: pass one through before you "
                "prune, normalise or otherwise parametrize it"
            )
        std = math.sqrt(1 / self.dim)
        nn.init.trunc_normal_(self.class_caps.weight, std=std, a=-2 * std, b=2 * std)
        # A batch of zeros, which only sets sizes, says nothing about children to come.
        # Standardised features are like random ones.
        finite = rows.isfinite().flatten(1).all(1)
        if not (finite & _vary(rows)).any():
            children = self._children(rows.new_empty(8, *rows.shape[1:]).normal_())
        self.class_caps.start(children)

    def route(self, features: Tensor) -> Routed:
        """Route as :meth:`forward` does, but also return the votes and the last
        assignment.
        """
        return self.class_caps.route(self.children_of(features))

    def forward(self, features: Tensor) -> Capsules:
        """Return the class capsules."""
        return self.class_caps(self.children_of(features))


def _loaded(head: CapsHead, _: object) -> None:
    """After a loading: transforms that are there are not drawn."""
    # Not read through a parametrization: a spectral norm would move on.
    weight = head.class_caps._parameters.get("weight")
    if weight is not None and (weight.is_meta or weight.any()):
        head._undrawn = 0


_START_UNTRACED = torch._disable_dynamo(CapsHead._start)


def _vary(rows: Tensor) -> Tensor:
    """Whether the features of an example, (B, H, W, C), differ over the channels at some
    position, bool (B,).
    """
    return (rows.amax(-1) > rows.amin(-1)).flatten(1).any(1)


def _rows(features: Tensor) -> Tensor:
    """The features of each position, (B, H, W, C)."""
    if not isinstance(features, Tensor):
        raise TypeError(f"features must be a tensor, got {type(features).__name__}")
    if features.ndim not in (2, 3, 4) or not torch.is_floating_point(features):
        raise ValueError(
            "features must be maps (B, C, H, W), tokens (B, N, C) or vectors (B, C), "
            f"in floating point, got {features.dtype} {tuple(features.shape)}"
        )
    if features.ndim == 4:
        rows = features.movedim(1, -1)
    elif features.ndim == 3:
        rows = features[:, :, None]
    else:
        rows = features[:, None, None]
    if rows.shape[-1] < 2:
        raise ValueError(
            "features must have 2 channels or more, over which they are standardised, "
            f"got {tuple(features.shape)}"
        )
    return rows
