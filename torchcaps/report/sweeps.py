"""What the numbers of a pose draw, in figures: how much a sweep changes the picture, how right the picture is."""

from typing import NamedTuple

from torch import Tensor

from torchcaps.data import ImageSet
from torchcaps.models.base import CapsuleClassifier, in_precision_of
from torchcaps.report.findings import evaluating
from torchcaps.report.poses import default_sweep, perturb


def changes(grids: Tensor) -> Tensor:
    r"""How much the picture changes as one number of the pose moves to either end of its sweep.

    .. math::
        c_{bd} = \frac{100}{2 C H W} \sum_{chw} |x_{bd,\text{first}} - x_{bd,0}| + |x_{bd,\text{last}} - x_{bd,0}|

    with x the decoded image, from 0 (black) to 1 (white), and 0 the middle of the sweep, the pose as it is.

    Args:
        grids: (B, D, V, C, H, W) with V odd, as :func:`~torchcaps.report.perturb` returns it for a sweep around 0.

    Returns:
        (B, D), in percent of the range of greys.

    Raises:
        ValueError: if ``grids`` has another number of axes, or no middle.
    """
    if grids.ndim != 6 or grids.shape[2] % 2 == 0:
        raise ValueError(f"grids must be (B, D, V, C, H, W) with an odd V, got shape {tuple(grids.shape)}")
    middle = grids[:, :, grids.shape[2] // 2]
    ends = [(grids[:, :, end] - middle).abs().flatten(2).mean(2) for end in (0, -1)]
    return 50 * (ends[0] + ends[1])


class Sweep(NamedTuple):
    """The sweeps of one class.

    Args:
        change: of each dimension, in percent of the range of greys, averaged over the images of the class, (D,).
        image: the first of these images, (C, H, W).
        grid: its sweeps, (D, V, C, H, W).
    """

    change: Tensor
    image: Tensor
    grid: Tensor


def sweep(network: CapsuleClassifier, test: ImageSet, images: int) -> dict[int, Sweep]:
    """Sweeps the pose of the true class, over the first test images of each class.

    Args:
        network: with a decoder.
        test: images, prepared for it.
        images: how many of each class.

    Returns:
        By label.
    """
    found = {}
    with evaluating(network) as device:
        for label in test.labels.unique().tolist():
            places = (test.labels == label).nonzero().squeeze(1)[:images]
            batch = test.__getitems__(places.tolist())
            capsules = network.encode(in_precision_of(network, batch.images.to(device)))
            grids = perturb(network, capsules, batch.labels.to(device), default_sweep().to(device)).float().cpu()
            found[int(label)] = Sweep(changes(grids).mean(0), batch.pictures[0], grids[0])
    return found


def reconstruction_error(network: CapsuleClassifier, test: ImageSet, batch_size: int = 250) -> float:
    r"""The root mean square error of reconstructions from the true class's capsule, in percent of the range of greys.

    .. math::
        100 \sqrt{\frac{1}{N C H W} \sum_{nchw} (\hat x_{nchw} - x_{nchw})^2}

    Args:
        network: with a decoder.
        test: images, prepared for it.
        batch_size: how many at a time.
    """
    total, numbers = 0.0, 0
    with evaluating(network) as device:
        for batch in test.batches(batch_size):
            images, labels, pictures = (one.to(device) for one in (batch.images, batch.labels, batch.pictures))
            drawn = network.decode(network.encode(in_precision_of(network, images)), labels)
            total += (drawn.double() - pictures).square().sum().item()
            numbers += pictures.numel()
    return 100 * (total / numbers) ** 0.5
