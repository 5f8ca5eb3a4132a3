"""Which parts of an image a class took, traced through all layers of capsules down to
the lowest grid.
"""

import torch
from torch import Tensor

from torchcaps_lab.evaluate.layers import Layer, below, ratio


def class_shares(layers: dict[str, Layer]) -> dict[str, Tensor]:
    r"""How much of every capsule went to each class, handed down from the class
    capsules.

    With R the last assignment probabilities, a the activations of the parents p of
    child i, and j a class,

    .. math::
        s_{ij} = R_{ij} \quad \text{(children of the classes)}, \qquad
        s_{ij} = g_i \frac{\sum_p R_{ip} a_p s_{pj}}{\sum_p R_{ip} a_p}, \quad g_i = \sum_p R_{ip}
        \quad \text{(layers below)}

    A child went where its parents went; a parent that is not there takes nothing on
    (where no parent of a child is there, all count the same). The parents of a
    convolutional layer are those of all windows that see the child, and if each window
    routes for itself the windows are averaged. Over the classes the shares add up to
    :math:`g_i` times the mean of what its parents handed on: to 1 if no routing on the
    way lets children go to no parent. Children that no parent sees, at a border that
    windows leave out, have the share 0.

    Args:
        layers: the layers of :func:`~torchcaps_lab.evaluate.observe_layers`; the last is
            that of the classes.

    Returns:
        Shares of the children of each routed layer, (B, *sites, E) at the name of that
        layer, from the classes down. Where the capsules of a layer were changed before
        the next one took them, the chain ends.

    Raises:
        ValueError: if there are no layers, or the last one does not route.
    """
    if not layers or not next(reversed(layers.values())).routed:
        raise ValueError(
            "the last layer must route children to the classes, got layers "
            f"{list(layers)}"
        )
    layer: Layer | None = next(reversed(layers.values()))
    assert layer is not None
    parents: Tensor | None = None
    shares: dict[str, Tensor] = {}
    while layer is not None and layer.routed:
        parents = _handed_down(layer, parents)
        shares[layer.name] = parents
        layer = below(layers, layer)
    return shares


def _handed_down(layer: Layer, shares: Tensor | None) -> Tensor:
    """Shares of the children (B, *sites, E) from those of the parents (B, *sites, E);
    None: the parents are classes.
    """
    groups = [
        _group_handed_down(layer, group, shares) for group in range(len(layer.routed))
    ]
    return torch.cat([layer.inside(part) for part in groups], dim=-2)


def _group_handed_down(layer: Layer, group: int, shares: Tensor | None) -> Tensor:
    R = layer.assignment(group)  # [B, windows, I, J]
    R = R.to(torch.promote_types(R.dtype, torch.float32))
    J = R.shape[-1]
    if shares is None:
        shares = torch.eye(J, dtype=R.dtype, device=R.device)
        activation = R.new_ones(J)
    else:
        types = slice(group * J, (group + 1) * J)
        shares = shares[..., types, :].reshape(len(R), R.shape[1], J, -1).to(R.dtype)
        activation = (
            layer.capsules.activation[..., types]
            .reshape(len(R), R.shape[1], 1, J)
            .to(R.dtype)
        )
    active = R * activation
    received = layer.scatter(R.sum(-1, keepdim=True))
    going = layer.scatter(active.sum(-1, keepdim=True))
    handed = layer.scatter(active @ shares)
    alike = layer.scatter(R @ shares)  # if all parents count the same
    return ratio(received * handed, going, alike)


def class_maps(shares: Tensor, activation: Tensor) -> Tensor:
    r"""The shares of every class on the grid of the children: the mean over the types,
    weighted by their activations.

    .. math::
        m_{yxj} = \frac{\sum_t a_{yxt} s_{yxtj}}{\sum_t a_{yxt}}

    Args:
        shares: (B, H', W', E) or (B, H', W', types, E), of :func:`class_shares`.
        activation: the activation of the same children, without E.

    Returns:
        (B, H', W', E), shares in [0, 1]; NaN where nothing of any child went to any
        class.

    Raises:
        ValueError: if the children do not lie on a grid, or shapes do not fit.
    """
    if shares.ndim not in (4, 5) or shares.shape[:-1] != activation.shape:
        raise ValueError(
            "shares must be (B, H', W', E) or (B, H', W', types, E) with activations "
            "of the same sites, "
            f"got shapes {tuple(shares.shape)} and {tuple(activation.shape)}"
        )
    if shares.ndim == 4:
        shares = shares.unsqueeze(-2)
        activation = activation.unsqueeze(-1)
    weight = activation.to(shares.dtype)
    weight = torch.where(weight.sum(-1, keepdim=True) > 0, weight, 1.0)
    maps = (weight.unsqueeze(-1) * shares).sum(-2) / weight.sum(
        -1, keepdim=True
    )  # [B, H', W', E]
    return maps.masked_fill(maps.sum(-1, keepdim=True) == 0, torch.nan)
