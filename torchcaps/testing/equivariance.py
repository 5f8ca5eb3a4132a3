"""Checks whether a layer of matrix capsules is equivariant to changes of viewpoint."""

from collections.abc import Callable

import torch
from torch import Tensor

from torchcaps.capsules import Capsules


def orthogonal(rows: int, generator: torch.Generator | None = None) -> Tensor:
    """Return a random rotation or reflection, float64 (rows, rows), uniformly
    distributed.

    Args:
        rows: M of the poses.
        generator: the generator of the random numbers.

    Source: Mezzadri 2007, "How to generate random matrices from the classical compact
    groups".
    """
    q, r = torch.linalg.qr(
        torch.randn(rows, rows, generator=generator, dtype=torch.float64)
    )
    return q * r.diagonal().sign()


def signed_permutation(rows: int, generator: torch.Generator | None = None) -> Tensor:
    """Return a random matrix that permutes axes and flips some of them, float64 (rows,
    rows).

    These are the orthogonal matrices that leave Gaussians with diagonal covariances
    diagonal.

    Args:
        rows: M of the poses.
        generator: the generator of the random numbers.
    """
    signs = (
        2 * torch.randint(2, (rows, 1), generator=generator, dtype=torch.float64) - 1
    )
    return (
        signs
        * torch.eye(rows, dtype=torch.float64)[
            torch.randperm(rows, generator=generator)
        ]
    )


def assert_equivariant(
    layer: Callable[[Capsules], Capsules],
    children: Capsules,
    transforms: Tensor,
    atol: float = 1e-5,
    rtol: float = 1e-4,
) -> None:
    r"""Assert that a layer of matrix capsules is equivariant to a change of viewpoint.

    .. math:: f(T M, a) = (T M', a') \quad \text{where} \quad (M', a') = f(M, a)

    Replacing the pose of every child by :math:`T M` must replace the pose of every
    parent in the same way, and leave the activations unchanged, and the assignments of
    a layer that has a method ``route``. With votes :math:`M_i W_{ij}` this holds for
    orthogonal T (:func:`orthogonal`) if routing compares by inner products or
    distances, and for signed permutations (:func:`signed_permutation`) in EM routing,
    whose Gaussians are diagonal.

    Args:
        layer: maps capsules to capsules, both with matrix poses of M rows.
        children: with poses (B, *sites, M, P).
        transforms: T, (M, M), or several of them, (N, M, M).
        atol: absolute tolerance.
        rtol: tolerance relative to the largest number of the expected tensor.

    Raises:
        AssertionError: if it does not hold; says what is off, by how much, and for
            which T.
        ValueError: if poses are not matrices, or T does not fit them.

    Source: Hinton, Sabour & Frosst 2018, "Matrix capsules with EM routing", sections 1
    and 2; interface of ``e3nn.util.test.assert_equivariant``.
    """
    if len(children.pose_shape) != 2:
        raise ValueError(
            f"poses must be matrices (M, P), got poses of shape {children.pose_shape}"
        )
    rows = children.pose_shape[0]
    if transforms.ndim not in (2, 3) or transforms.shape[-2:] != (rows, rows):
        raise ValueError(
            f"transforms must be ({rows}, {rows}) or (N, {rows}, {rows}), got "
            f"{tuple(transforms.shape)}"
        )
    with torch.no_grad():
        before = _observe(layer, children)
        for number, transform in enumerate(
            transforms.to(children.pose).view(-1, rows, rows)
        ):
            moved = _observe(layer, children._replace(pose=transform @ children.pose))
            for name, old in before.items():
                expected = transform.to(old) @ old if name == "poses" else old
                error = (moved[name] - expected).abs().max().item()
                allowed = atol + rtol * expected.abs().max().item()
                if not error <= allowed:  # NaN included
                    raise AssertionError(
                        f"the parents' {name} are off by up to {error:.3g} "
                        f"({allowed:.3g} is allowed) when all "
                        f"children move by transform {number}:\n{transform}"
                    )


def _observe(
    layer: Callable[[Capsules], Capsules], children: Capsules
) -> dict[str, Tensor]:
    """Poses, activations and assignments of the parents, by name."""
    parents = layer(children)
    seen = {"poses": parents.pose, "activations": parents.activation}
    route = getattr(layer, "route", None)
    if route is not None:
        seen["assignments"] = route(children).assignment
    return seen
