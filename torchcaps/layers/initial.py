"""Transforms to start with: poses that keep their deviation from layer to layer."""

from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.layers.conv import CapsConvNd

_TIMES = 4  # at most; the routing changes a little with the scale, where its floors are absolute


@torch.no_grad()
def preserve_deviation(model: nn.Module, *inputs: Any) -> None:
    """Scales the transforms of convolutional capsules so that parents' poses deviate as their children's do.

    The deviation of a mean vote depends on how many children share in it: on their activations, on padding, and above
    all on the routing; after three sharp steps a parent has hardly more than one child. No fixed initialisation can
    know that, and over ten layers an error of 1.4 in each is one of 30. So the model is run once, from its first layer
    up, and each layer is scaled, for this batch, before its parents go on to the next.

    Layers that normalise their poses, or have an identity path, are left as they are.

    Args:
        model: with :class:`~torchcaps.CapsConv2d` layers or their kin, at the start of its training; runs in the mode
            that it is in.
        inputs: of the model: a batch.

    Source: Mishkin & Matas 2016, "All you need is a good init", for the deviation in place of the variance 1.
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
    """A forward hook: scales the transforms, and returns what the layer then gives."""
    children: Capsules = inputs[0] if inputs else named["children"]
    for _ in range(_TIMES):
        ratio = _deviation(children.pose) / _deviation(parents.pose)
        if not ratio.isfinite() or 0.99 < ratio < 1.01:
            break
        layer.weight.mul_(ratio)
        parents = layer.forward(*inputs, **named)
    return parents


def _deviation(pose: Tensor) -> Tensor:
    return pose.double().std()
