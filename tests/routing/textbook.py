"""The algorithms as their sources print them, on stored votes (B, I, J, H): slow, in float64, and independent."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


def squash(s: Tensor, constant: float) -> Tensor:
    """n^2 / (constant + n^2) * s / n."""
    n = (s**2).sum(-1, keepdim=True) ** 0.5
    return n**2 / (constant + n**2) * (s / n)


def _softmax(b: Tensor, orphan: bool = False) -> Tensor:
    e = torch.exp(b)
    return e / (e.sum(2, keepdim=True) + (1.0 if orphan else 0.0))


def dynamic(
    V: Tensor,
    steps: int,
    bias: Tensor | float = 0.0,
    accumulate: bool = True,
    orphan: bool = False,
    last_only: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """Sabour et al. 2017, Procedure 1, and every step's c.

    ``last_only``: the poses v of all steps but the last are constants to the gradient.
    """
    b = torch.zeros(V.shape[:3], dtype=V.dtype)
    history = []
    for _ in range(steps):
        c = _softmax(b, orphan)
        v = squash((c[..., None] * V).sum(1) + bias, 1.0)
        agreement = (V * (v.detach() if last_only else v)[:, None]).sum(-1)
        b = b + agreement if accumulate else agreement
        history.append(c)
    return v, history


def inner_product_kmeans(V: Tensor, steps: int, sharpness: float = 1.0) -> tuple[Tensor, list[Tensor]]:
    """Su 2018 (kexue.fm 5112)."""
    b = torch.zeros(V.shape[:3], dtype=V.dtype)
    history = []
    for _ in range(steps):
        c = _softmax(b)
        s = (c[..., None] * V).sum(1)
        direction = s / (s**2).sum(-1, keepdim=True) ** 0.5
        b = sharpness * (V * direction[:, None]).sum(-1)
        history.append(c)
    return squash(s, 0.5), history


def euclidean_kmeans(
    V: Tensor, steps: int, sharpness: float = 1.0, weights: Tensor | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Soft K-Means."""
    b = torch.zeros(V.shape[:3], dtype=V.dtype)
    a = torch.ones(V.shape[:2], dtype=V.dtype) if weights is None else weights
    history = []
    for _ in range(steps):
        c = _softmax(b)
        r = c * a[..., None]
        mean = (r[..., None] * V).sum(1) / r.sum(1)[..., None]
        b = -sharpness * ((V - mean[:, None]) ** 2).sum(-1)
        history.append(c)
    return mean, history


def hard_kmeans(V: Array, steps: int, inner: bool = False) -> tuple[Array, Array]:
    """Lloyd's algorithm from the uniform start: centres and the assignment that made them. ``inner``: no squash."""
    B, I, J, _ = V.shape
    centre = V.mean(1) if not inner else V.sum(1) / J
    r = np.full((B, I, J), 1 / J)
    for _ in range(steps - 1):
        r = np.zeros((B, I, J))
        for b in range(B):
            for i in range(I):
                if inner:
                    scores = [V[b, i, j] @ centre[b, j] / np.sqrt(centre[b, j] @ centre[b, j]) for j in range(J)]
                else:
                    scores = [-np.sqrt(((V[b, i, j] - centre[b, j]) ** 2).sum()) for j in range(J)]
                r[b, i, int(np.argmax(scores))] = 1
        for b in range(B):
            for j in range(J):
                chosen = r[b, :, j] == 1
                if chosen.any():
                    members = V[b, chosen, j]
                    centre[b, j] = members.sum(0) if inner else members.mean(0)
    return centre, r


def em(
    V: Array,
    activation: Array,
    beta_u: Array,
    beta_a: Array,
    inverse_temperatures: tuple[float, ...],
    floor: float = 5e-4,
) -> tuple[Array, Array, Array]:
    """Hinton et al. 2018, Procedure 1, for one example (I, J, H): means, activations, and the last R used."""
    I, J, H = V.shape
    R = np.full((I, J), 1 / J)
    mu, sigma, a = np.zeros((J, H)), np.zeros((J, H)), np.zeros(J)
    for t, lam in enumerate(inverse_temperatures):
        if t > 0:  # E-step
            p = np.ones((I, J))
            for i in range(I):
                for j in range(J):
                    for h in range(H):
                        z = (V[i, j, h] - mu[j, h]) / sigma[j, h]
                        p[i, j] *= np.exp(-(z**2) / 2) / (np.sqrt(2 * np.pi) * sigma[j, h])
                R[i] = a * p[i] / (a * p[i]).sum()
        for j in range(J):  # M-step
            r = R[:, j] * activation
            for h in range(H):
                mu[j, h] = (r * V[:, j, h]).sum() / r.sum()
                sigma[j, h] = np.sqrt((r * (V[:, j, h] - mu[j, h]) ** 2).sum() / r.sum() + floor)
            cost = (beta_u[j] + np.log(sigma[j])) * r.sum()
            a[j] = 1 / (1 + np.exp(-lam * (beta_a[j] - cost.sum())))
    return mu, a, R
