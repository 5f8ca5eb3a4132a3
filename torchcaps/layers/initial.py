"""An initialisation of the transforms by which poses keep their standard deviation from layer to layer."""

from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.layers.conv import CapsConvNd
from torchcaps.numerics import given

_TIMES = 4  # at most: once is not quite enough where the routing depends on the scale, as by a floor of variances


@torch.no_grad()
def preserve_deviation(model: nn.Module, *inputs: Any) -> None:
    """Scales the transforms of convolutional capsules so that parents' poses have the deviation of their children's.

    The standard deviation of a mean vote depends on how many children share in it: on their activations, on padding,
    and above all on the routing; after three sharp steps a parent has hardly more than one child. No fixed
    initialisation can know that, and a factor of 1.4 too much in each of ten layers makes 30. So the model is run once,
    on a batch, and each layer is scaled before its parents are passed on to the next.

    Layers that normalise their poses, or have an identity path, are left as they are.

    Args:
        model: with layers such as :class:`~torchcaps.CapsConv2d`, before its training; it is run in its present mode,
            training or evaluation.
        inputs: the arguments of the model, for one batch.

    Source: Mishkin & Matas 2016, "All you need is a good init", who scale to variance 1 instead.
    """
    layers = [module for module in model.modules() if isinstance(module, CapsConvNd)]
    free = [layer for layer in layers if layer.pose_norm is None and layer.identity_path is None]
    handles = [layer.register_forward_hook(_scaled, with_kwargs=True) for layer in free]
    try:
        model(*inputs)
    finally:
        for handle in handles:
            handle.remove()


def _scaled(layer: CapsConvNd, inputs: tuple[Any, ...], named: dict[str, Any], parents: Capsules) -> Capsules:
    """A forward hook: scales the transforms, and returns the output of the scaled layer."""
    children: Capsules = inputs[0] if inputs else named["children"]
    for _ in range(_TIMES):
        ratio = _deviation(children.pose) / _deviation(parents.pose)
        if not ratio.isfinite() or 0.99 < ratio < 1.01:
            break
        for parameter in given(weight=layer.weight, bias=layer.bias).values():
            parameter.mul_(ratio)
        parents = layer.forward(*inputs, **named)
    return parents


def _deviation(pose: Tensor) -> Tensor:
    return pose.double().std()
