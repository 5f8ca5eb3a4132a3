"""The attack that knows the detector: images that are taken for another class, and reconstructed well."""

import torch
from torch import Tensor
from torch.nn import functional as F

from recipes.attacks import Scores
from torchcaps.numerics import check_positive, check_size
from torchcaps_lab.report import reconstruction_error


def reconstructive(
    scores: Scores, pixels: Tensor, labels: Tensor, epsilon: float, steps: int = 20, batch_size: int = 100
) -> Tensor:
    r"""Images no pixel of which is more than epsilon off, (N, C, H, W), by two moves in each step.

    .. math::
        x \leftarrow x + a\,\mathrm{sign}\,\nabla_x (-\log p_t(x)), \quad
        x \leftarrow x - a\,\mathrm{sign}\,\nabla_x e(x), \quad a = 2 \epsilon / \text{steps}

    t is the true class, p the share of its activation, and e the error of the reconstruction by the winning class. Each
    move stays within epsilon of the image and in [0, 1]. Of all that came up, the image with the least error that is
    taken for a wrong class is returned, or else the last.

    Args:
        scores: of a network that reconstructs, with its preparation.
        pixels: (N, C, H, W) in [0, 1].
        labels: the true classes, (N,).
        epsilon: the largest change of a pixel.
        steps: how many.
        batch_size: how many images at a time.

    Raises:
        ValueError: if ``epsilon`` is not positive, or ``steps`` is no whole number, or less than 1.

    Source: Qin et al. 2020, section 5, the attack in two moves, untargeted here; its details recalled. That the best
    image is kept is ours: the attacker knows the detector.
    """
    check_positive(epsilon=epsilon)
    check_size(steps=steps, batch_size=batch_size)
    parts = zip(pixels.split(batch_size), labels.split(batch_size), strict=True)
    return torch.cat([_attacked(scores, *part, epsilon, steps) for part in parts])


def _attacked(scores: Scores, start: Tensor, labels: Tensor, epsilon: float, steps: int) -> Tensor:
    low, high = (start - epsilon).clamp_min(0), (start + epsilon).clamp_max(1)
    images, least = start, torch.full((len(start),), torch.inf)
    best = start
    for _ in range(steps):
        for up in (True, False):
            given = images.detach().requires_grad_()
            view = scores.preprocess.evaluate(given)
            found = scores.network(view.images)
            assert found.reconstruction is not None
            error = reconstruction_error(view.pictures, found.reconstruction)
            log = found.activation.clamp_min(torch.finfo(found.activation.dtype).tiny).log()
            better = (log.argmax(1) != labels) & (error < least)
            best = torch.where(better[:, None, None, None], given, best).detach()
            least = torch.where(better, error, least).detach()
            aim = F.cross_entropy(log, labels, reduction="sum") if up else -error.sum()
            (slope,) = torch.autograd.grad(aim, given)
            images = (given + 2 * epsilon / steps * slope.sign()).clamp(low, high)
    return torch.where(least.isfinite()[:, None, None, None], best, images.detach())
