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
    mean_smoothing: float = 0.0,
    cost_scale: float = 1.0,
    activation_scale: float = 1.0,
    mass_scale: float | None = None,
    standardise: bool = False,
) -> tuple[Array, Array, Array]:
    """Hinton et al. 2018, Procedure 1, for one example (I, J, H): means, activations, and the last R used.

    Densities are divided by the largest of their child, or they would underflow.
    """
    I, J, H = V.shape
    R = np.full((I, J), 1 / J)
    mu, sigma = np.zeros((J, H)), np.zeros((J, H))
    log_a, logit, cost = np.zeros(J), np.zeros(J), np.zeros(J)
    for t, lam in enumerate(inverse_temperatures):
        if t > 0:  # E-step
            for i in range(I):
                log_p = np.zeros(J)
                for j in range(J):
                    for h in range(H):
                        z = (V[i, j, h] - mu[j, h]) / sigma[j, h]
                        log_p[j] += -(z**2) / 2 - np.log(np.sqrt(2 * np.pi) * sigma[j, h])
                ap = np.exp(log_a + log_p - (log_a + log_p).max())
                R[i] = ap / ap.sum()
        for j in range(J):  # M-step
            r = R[:, j] * activation
            for h in range(H):
                mean = (r * V[:, j, h]).sum() / r.sum()
                mu[j, h] = mean_smoothing * mu[j, h] + (1 - mean_smoothing) * mean
                sigma[j, h] = np.sqrt((r * (V[:, j, h] - mu[j, h]) ** 2).sum() / r.sum() + floor)
            mass = r.sum() if mass_scale is None else r.sum() * mass_scale * J / I
            cost[j] = cost_scale * sum((beta_u[j] + np.log(sigma[j, h])) * mass for h in range(H))
        if standardise:
            cost = (cost - cost.mean()) / cost.std()
        logit = lam * (activation_scale * beta_a - cost)
        log_a = -np.logaddexp(0, -logit)
    return mu, np.exp(log_a), R


def em_released(
    V: Array,
    activation: Array,
    inverse_temperatures: tuple[float, ...],
    sigma_bias: float,
    activation_bias: float,
) -> tuple[Array, Array]:
    """The code released with Hinton et al. 2018, for one example (I, J, H): centres and activations."""
    I, J, H = V.shape
    post = np.full((I, J), 1 / J)
    center, variance, logit = np.zeros((J, H)), np.zeros((J, H)), np.zeros(J)
    for t, lam in enumerate(inverse_temperatures):
        if t > 0:
            log_prob = np.zeros((I, J))
            for j in range(J):
                distance = ((V[:, j] - center[j]) ** 2 / variance[j]).sum(-1)
                log_prob[:, j] = -0.5 * distance - 0.5 * np.log(variance[j]).sum() - np.logaddexp(0, -logit[j])
            post = np.exp(log_prob - log_prob.max(1, keepdims=True))
            post /= post.sum(1, keepdims=True)
        mass, new = np.zeros(J), np.zeros((J, H))
        variance = np.zeros((J, H))
        for j in range(J):
            for i in range(I):
                mass[j] += post[i, j] * activation[i]
                new[j] += post[i, j] * activation[i] * V[i, j]
            new[j] /= mass[j]
        center = 0.9 * new + 0.1 * center
        for j in range(J):
            for i in range(I):
                variance[j] += post[i, j] * activation[i] * (V[i, j] - center[j]) ** 2
            variance[j] = 5e-4 + variance[j] / mass[j]
        completeness = -np.log(variance).sum(1) - sigma_bias * H * (np.log(2 * np.pi) + 1)
        logit = lam * (mass * completeness - 5000 * activation_bias)
    return center, 1 / (1 + np.exp(-logit))
