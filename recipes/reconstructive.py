"""The attack that knows the detector: images that are taken for another class, and
reconstructed well.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from recipes.attacks import Scores
from torchcaps.spec import Size, Within, check
from torchcaps_lab.report import reconstruction_error


def reconstructive(
    scores: Scores,
    pixels: Tensor,
    labels: Tensor,
    epsilon: float,
    steps: int = 20,
    batch_size: int = 100,
) -> Tensor:
    r"""Images no pixel of which is more than epsilon off, (N, C, H, W).

    .. math::
        x \leftarrow x + \frac{2 \epsilon}{\text{steps}}\,\mathrm{sign}\,\nabla_x \begin{cases}
        -\log p_t(x) & \text{while } x \text{ is taken for the true class } t \\ -e(x) & \text{else} \end{cases}

    p is the activation of the true class as a share, and e the error of the
    reconstruction by the winning class. A step stays within epsilon of the image and in
    [0, 1]. Of all that came up, the image with the least error that is taken for a
    wrong class is returned, or else the last.

    Args:
        scores: the scores of a network that reconstructs, with its preparation.
        pixels: the images, (N, C, H, W) in [0, 1].
        labels: the true classes, (N,).
        epsilon: the largest change of a pixel.
        steps: the number of steps.
        batch_size: the number of images at a time.

    Raises:
        ValueError: if ``epsilon`` is not positive, or ``steps`` is no whole number, or
            less than 1.

    Source: after Qin et al. 2020, whose attack moves against the loss of the class and
    against the error in turn (recalled), which undoes with one move what the other did;
    that an image turns to the error once it is taken for a
    wrong class, and that the best one is kept, is ours: the attacker knows the
    detector.
    """
    Within(0, open=True).check("epsilon", epsilon)
    check(Size, steps, "steps")
    check(Size, batch_size, "batch_size")
    parts = zip(pixels.split(batch_size), labels.split(batch_size), strict=True)
    return torch.cat([_attacked(scores, *part, epsilon, steps) for part in parts])


def _attacked(
    scores: Scores,
    start: Tensor,
    labels: Tensor,
    epsilon: float,
    steps: int,
) -> Tensor:
    low = (start - epsilon).clamp_min(0)
    high = (start + epsilon).clamp_max(1)
    images = best = attempt = start
    least = torch.full(
        (len(start),),
        torch.inf,
        device=start.device,
    )
    # The last one only looks.
    for _ in range(steps + 1):
        attempt = images.detach().requires_grad_()
        view = scores.preprocess.evaluate(attempt)
        prediction = scores.network(view.images)
        assert prediction.reconstruction is not None
        error = reconstruction_error(view.pictures, prediction.reconstruction)
        activation = prediction.activation
        log = activation.clamp_min(torch.finfo(activation.dtype).tiny).log()
        wrong = log.argmax(1) != labels
        better = wrong & (error < least)
        best = torch.where(better[:, None, None, None], attempt, best).detach()
        least = torch.where(better, error, least).detach()
        doubt = F.cross_entropy(log, labels, reduction="none")
        aim = torch.where(wrong, -error, doubt).sum()
        (slope,) = torch.autograd.grad(aim, attempt)
        images = (attempt + 2 * epsilon / steps * slope.sign()).clamp(low, high)
    succeeded = least.isfinite()[:, None, None, None]
    return torch.where(succeeded, best, attempt.detach())
