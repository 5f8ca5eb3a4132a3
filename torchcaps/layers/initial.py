"""Initialisations of the transforms from a first batch: poses keep their deviation,
lengths are neither 0 nor 1.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves, tree_map

from torchcaps.capsules import Capsules, from_pair
from torchcaps.layers.classcaps import ClassCaps
from torchcaps.layers.conv import CapsConvNd
from torchcaps.layers.linear import CapsLinear
from torchcaps.numerics import Positive, compute_dtype, resolution, transformed
from torchcaps.spec import check

_TIMES = 4
"""How often a layer is scaled at most: once is not enough where its routing depends on
the scale, as by a floor of variances.
"""


@torch.no_grad()
def preserve_deviation(model: nn.Module, *inputs: Any) -> None:
    """Scale the transforms of convolutional capsules so that parents' poses have the
    deviation of their children's.

    The standard deviation of a mean vote depends on how many children share in it: on
    their activations, on padding, and above all on the routing; after three sharp steps
    a parent has hardly more than one child. No fixed initialisation can know that, and
    a factor of 1.4 too much in each of ten layers makes 30. So the model is run once,
    on a batch, and each layer is scaled before its parents are passed on to the next.

    Layers that normalise their poses, or have an identity path, are left as they are.

    Args:
        model: with layers such as :class:`~torchcaps.CapsConv2d`, before its training;
            it is run in its present mode, training or evaluation.
        inputs: the arguments of the model, for one batch.

    Raises:
        ValueError: if the transforms of a layer are no parameters, as after pruning.

    Source: Mishkin & Matas 2016, "All you need is a good init", who scale to variance 1
    instead.
    """
    layers = [module for module in model.modules() if isinstance(module, CapsConvNd)]
    free = [
        layer
        for layer in layers
        if layer.pose_norm is None and layer.identity_path is None
    ]
    handles = [layer.register_forward_hook(_scaled, with_kwargs=True) for layer in free]
    try:
        model(*inputs)
    finally:
        for handle in handles:
            handle.remove()


def _scaled(
    layer: CapsConvNd, inputs: tuple[Any, ...], named: dict[str, Any], parents: Capsules
) -> Capsules:
    """A forward hook: scales the transforms, and returns the output of the scaled
    layer.
    """
    children = from_pair(inputs[0] if inputs else named["children"])
    for _ in range(_TIMES):
        if not (_differ(children.pose) and _differ(parents.pose)):
            break
        ratio = _deviation(children.pose) / _deviation(parents.pose)
        if 0.99 < ratio < 1.01:
            break
        _set_votes(layer, [ratio * tensor for tensor in _of_votes(layer)])
        parents = layer.forward(*inputs, **named)
    return parents


def _deviation(pose: Tensor) -> Tensor:
    return pose.to(compute_dtype(pose)).std()


def _differ(pose: Tensor) -> bool:
    """Whether the numbers of poses are finite, and differ by more than rounding."""
    spread = _deviation(pose)
    return bool(spread.isfinite() and spread > resolution(pose.abs().max()))


_PRESENT, _ABSENT, _DOWN_WEIGHT = 0.9, 0.1, 0.5
"""The defaults of the margin loss: m+, m- and lambda."""


def balanced_length(parents: int) -> float:
    r"""Return the length at which the margin loss neither raises nor lowers the mean
    length of class capsules.

    With one class of J present in each example, and all of length a, the loss pulls the
    mean upwards by :math:`2 (m^+ - a)` and downwards by :math:`2 \lambda (J - 1) (a -
    m^-)`. These are equal at

    .. math:: a = \frac{m^+ + \lambda (J - 1) m^-}{1 + \lambda (J - 1)}

    which is 0.25 for 10 classes and 0.11 for 168. From longer ones the many absent
    classes push all lengths to 0 together, where a squash has no gradient. From shorter
    ones a few large steps overshoot in the same way.

    Args:
        parents: J.

    Example:
        >>> (
        ...     round(tc.layers.balanced_length(10), 3),
        ...     round(tc.layers.balanced_length(168), 3),
        ... )
        (0.245, 0.109)
    """
    down = _DOWN_WEIGHT * (parents - 1)
    return (_PRESENT + down * _ABSENT) / (1 + down)


class FirstBatchLinear(nn.LazyLinear):
    """A linear layer that takes its number of channels from the first batch.

    Its weights can be trained even if ``torch.inference_mode`` is on for that batch,
    unlike those of torch's own lazy layer.

    Raises:
        RuntimeError: if the first batch comes in a transform of ``torch.func``, whose
            end the weights would not survive.
    """

    def initialize_parameters(self, input: Tensor) -> None:
        """Make the weights for the channels of this batch."""
        if self.has_uninitialized_params() and transformed():
            raise RuntimeError(
                "the first batch sets the number of channels: pass one through before "
                "a transform of torch.func"
            )
        # Under a mode of tensors without numbers weights have theirs.
        with torch.inference_mode(False), unset_fake_temporarily():
            super().initialize_parameters(input)


def check_channels(layer: nn.Module, rows: Tensor) -> None:
    """Raise a `ValueError` if a layer whose channels a first batch set gets others.

    Args:
        layer: the linear layer; one that is quantized has a method as its weight.
        rows: the features, with the channels last.
    """
    if isinstance(layer, nn.LazyLinear) and layer.has_uninitialized_params():
        return
    weight: Any = layer.weight
    channels = int((weight() if callable(weight) else weight).shape[1])
    if rows.shape[-1] != channels:
        raise ValueError(
            f"features must have {channels} channels, as in the first batch, got "
            f"{rows.shape[-1]}"
        )


_EXAMPLES = 8
"""How many examples of the first batch are used: a mean over all parents needs no more.
"""

_FACTORS = [4.0**power for power in range(-8, 9)]
"""The factors of the transforms that are tried."""


@torch.no_grad()
def start_length(
    layer: CapsLinear | ClassCaps,
    children: Capsules | Tensor,
    target: float | None = None,
) -> float:
    r"""Scale a layer's transforms so that its parents have a mean length of ``target``
    for these children.

    The length of a parent grows with the number of children that share in it and with
    their poses, and it depends on the routing: what falls on each of J parents is a
    share of 1 / J where all are alike, and all of it where they are not. No formula has
    all of these. So the layer is run on a few of the examples, with transforms that are
    larger and larger, until the mean length is ``target``, or half of the largest mean
    length if that is less. With few children for many parents it is, since each child
    then goes to one parent.

    Activations that are logistic functions, as of EM routing, start at 0.5 if they
    would at less than 0.1 or more than 0.9. Nothing is scaled where routings normalise
    poses, whose lengths are no probabilities, nor where children are not finite.

    Args:
        layer: with ``weight`` and ``routing``, such as :class:`~torchcaps.CapsLinear`;
            its statistics and the state of its routing stay.
        children: the children of a first batch, as the layer takes them.
        target: mean of the activations that are lengths. Default:
            :func:`balanced_length` of its parents.

    Returns:
        The factor by which the transforms were multiplied.

    Raises:
        ValueError: if the target is not a number above 0, or the transforms are no
            parameters, as after pruning.

    Source: after Mishkin & Matas 2016, "All you need is a good init", who scale to
    variance 1, layer by layer.

    Example:
        >>> layer, children = (
        ...     tc.CapsLinear(600, 10, 8, 16),
        ...     tc.Capsules(torch.randn(4, 600, 8), torch.ones(4, 600)),
        ... )
        >>> factor = tc.layers.start_length(layer, children)
        >>> 0.23 < layer(children).activation.mean() < 0.26
        tensor(True)
    """
    check(Positive | None, target, "target")
    tensors = tree_leaves(children)
    finite = torch.stack([tensor.flatten(1).isfinite().all(1) for tensor in tensors])
    rows = finite.all(0).nonzero()[:_EXAMPLES, 0]
    if not len(rows):
        return 1.0
    few = tree_map(lambda tensor: tensor[rows], children)
    factor = _Probe(layer, few).factor(target)
    _set_votes(layer, [factor * tensor for tensor in _of_votes(layer)])
    return factor


def _of_votes(layer: CapsConvNd | CapsLinear | ClassCaps) -> list[Tensor]:
    """What the votes are linear in: the transforms and, if it is learned, the bias.

    Raises:
        ValueError: if a hook computes one of them before each call.
    """
    tensors = {"weight": layer.weight}
    if layer.bias is not None:
        tensors["bias"] = layer.bias
    for name in tensors:
        # Not a parameter, a buffer, or a property of a parametrization.
        if name in vars(layer):
            raise ValueError(
                f"the {name} of {type(layer).__name__} is computed before each call, "
                "as by torch.nn.utils.prune: scale it first, prune it then"
            )
    return list(tensors.values())


def _set_votes(
    layer: CapsConvNd | CapsLinear | ClassCaps, tensors: list[Tensor]
) -> None:
    """Change what :func:`_of_votes` returns, through parametrizations if there are."""
    for name, tensor in zip(("weight", "bias"), tensors, strict=False):
        if parametrize.is_parametrized(layer, name):
            setattr(layer, name, tensor)
        else:
            getattr(layer, name).copy_(tensor)


class _Probe:
    """A copy of a layer with transforms times a factor, and the mean activation of its
    parents.
    """

    def __init__(self, layer: CapsLinear | ClassCaps, children: Any) -> None:
        self.start = [tensor.detach().clone() for tensor in _of_votes(layer)]
        self.layer = copy.deepcopy(layer)
        self.children = children
        self.logistic = False
        self.parents = 0

    def mean(self, factor: float) -> float:
        """The mean activation. It is infinite if it overflows or is NaN."""
        _set_votes(self.layer, [factor * start for start in self.start])
        routed = self.layer.route(self.children)
        self.logistic = routed.logit is not None
        self.parents = routed.activation.shape[-1]
        activation = routed.activation
        mean = float(activation.to(compute_dtype(activation)).mean())
        return mean if math.isfinite(mean) else math.inf

    def factor(self, target: float | None) -> float:
        """The smallest factor at which the mean activation crosses the target, or half
        of the largest mean if that is less. 1 if the scale has no effect.
        """
        now = self.mean(1.0)
        normalised = now > 1 and abs(self.mean(1 / 4) - now) < 0.1 * now
        if normalised or (self.logistic and 0.1 <= now <= 0.9):
            return 1.0
        if target is None:
            target = balanced_length(self.parents)
        goal = 0.5 if self.logistic else target
        means = [self.mean(factor) for factor in _FACTORS]
        if not self.logistic:
            goal = min(goal, max(means) / 2)
        below = means[0] < goal
        crossed = [k for k, mean in enumerate(means) if (mean < goal) != below]
        if not crossed:
            return 1.0
        low = _FACTORS[crossed[0] - 1]
        high = _FACTORS[crossed[0]]
        for _ in range(8):
            middle = math.sqrt(low * high)
            if (self.mean(middle) < goal) == below:
                low = middle
            else:
                high = middle
        return low
