"""Calibration: from the activations of the classes to probabilities that say how often
the network is right.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from torchcaps_lab.evaluate.targets import check_target

LEAST_IMAGES = 20
"""With fewer images nothing is fitted."""

_SMALLEST = 1e-6
"""Smaller activations count as this: the logarithm of one of 0, of a class that is
there, would be infinite.
"""


@dataclass(frozen=True)
class Calibration:
    r"""How probabilities are made of activations a_j.

    ``temperature``, for one class an image, with T > 0, which leaves the order of the
    classes as it is:

    .. math::
        p_j = \frac{a_j^{1/T}}{\sum_k a_k^{1/T}}

    ``platt``, for several classes an image, each for itself, with the slope s and the
    intercept b:

    .. math::
        p_j = \sigma\Big(s \log\frac{a_j}{1 - a_j} + b\Big)

    Args:
        method: ``temperature`` or ``platt``.
        parameters: (T,) or (s, b).
        images: how many validation images they were fitted on.

    Raises:
        ValueError: if there is no such method, or it has other parameters.

    Source: Guo, Pleiss, Sun & Weinberger 2017, "On Calibration of Modern Neural
    Networks", section 4.2; Platt 1999, "Probabilistic Outputs for Support Vector
    Machines".

    Example:
        >>> from torchcaps_lab.evaluate import Calibration
        >>> calibration = Calibration("temperature", (2.0,), images=500)
        >>> calibration(torch.tensor([[0.9, 0.1, 0.1]])).sum().item()
        1.0
    """

    method: Literal["temperature", "platt"]
    parameters: tuple[float, ...]
    images: int

    def __post_init__(self) -> None:
        count = {"temperature": 1, "platt": 2}.get(self.method)
        if count is None:
            raise ValueError(
                f"method must be temperature or platt, got {self.method!r}"
            )
        fits = (
            len(self.parameters) == count
            and torch.tensor(self.parameters).isfinite().all()
        )
        if not fits or (self.method == "temperature" and self.parameters[0] <= 0):
            raise ValueError(
                f"parameters of {self.method} must be {count} finite numbers, got "
                f"{self.parameters}"
            )

    def __call__(self, activation: Tensor) -> Tensor:
        """The probabilities of activations, both (B, E), in float64."""
        activation = activation.double()
        if self.method == "temperature":
            (temperature,) = self.parameters
            return (activation.clamp_min(_SMALLEST).log() / temperature).softmax(-1)
        slope, intercept = self.parameters
        return (slope * _logit(activation) + intercept).sigmoid()

    def __str__(self) -> str:
        if self.method == "temperature":
            (temperature,) = self.parameters
            how = f"temperature scaling, T = {temperature:.3g}"
        else:
            slope, intercept = self.parameters
            how = f"Platt scaling, slope {slope:.3g}, intercept {intercept:.3g}"
        return f"{how}, fitted on {self.images} validation examples"

    def config(self) -> dict[str, Any]:
        """The same, ready for JSON."""
        return {
            "method": self.method,
            "parameters": list(self.parameters),
            "images": self.images,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None) -> "Calibration | None":
        """What :meth:`config` was made of; None of None."""
        if config is None:
            return None
        return cls(config["method"], tuple(config["parameters"]), config["images"])


class CalibrationBins(NamedTuple):
    """Images by how sure a network was of what it said; bins without images are left
    out.

    Args:
        confidence: mean probability of the class that was said, (M,).
        accuracy: share of the images for which that class was right, (M,).
        share: the share of all images, (M,).
    """

    confidence: Tensor
    accuracy: Tensor
    share: Tensor

    @property
    def error(self) -> float:
        """The expected calibration error: see :func:`calibration_error`."""
        return ((self.accuracy - self.confidence).abs() @ self.share).item()


def calibration_bins(
    probabilities: Tensor, labels: Tensor, bins: int
) -> CalibrationBins:
    r"""Bins of how sure a network was, all equally wide, :math:`\left(\frac{b - 1}{B},
    \frac{b}{B}\right]`.

    Args:
        probabilities: the probabilities of the classes, (N, E); the largest is that of
            the class that is said.
        labels: the true classes, (N,).
        bins: B.
    """
    confidence, predicted = probabilities.double().max(1)
    confidence = confidence.clamp(0, 1)  # rounding may lead out of [0, 1]
    edges = torch.arange(1, bins).to(confidence) / bins
    inside = one_hot(torch.bucketize(confidence, edges), bins).to(
        confidence
    )  # [N, bins]
    count = inside.sum(0)
    sums = torch.stack([confidence, (predicted == labels).to(confidence)]) @ inside
    filled = count > 0
    mean, accuracy = sums[:, filled] / count[filled]
    return CalibrationBins(mean, accuracy, count[filled] / count.sum())


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int) -> float:
    r"""The expected calibration error: how far a network is from being right as often
    as it says, in [0, 1].

    .. math:: \sum_b \frac{n_b}{N} |\text{accuracy}_b - \text{confidence}_b|

    Args:
        probabilities: the probabilities of the classes, (N, E); the largest is that of
            the class that is said.
        labels: the true classes, (N,).
        bins: how many, of [0, 1], all equally wide; a probability between two of them
            belongs to the lower one.

    Source: Guo, Pleiss, Sun & Weinberger 2017, "On Calibration of Modern Neural
    Networks", section 2.
    """
    return calibration_bins(probabilities, labels, bins).error


def fit_temperature(activation: Tensor, labels: Tensor) -> Calibration | None:
    r"""Return the temperature with the smallest negative log-likelihood.

    .. math::
        \min_T -\sum_n \sum_j t_{nj} \log p_{nj}(T), \quad
        t_{nj} = \frac{N + 1}{N + 2} \text{ for the true class, the rest shared by the others}

    The targets are Platt's: to be right about all of N images does not make a network
    certain. T is searched from 2^-10 to 2^10 times the spread of the log a_nj within an
    image, so that all powers of the activations give the same probabilities.

    Args:
        activation: the activation of the classes, (N, E), of images that the network
            was not trained on.
        labels: the true classes, integers (N,).

    Returns:
        None for fewer than 20 images, fewer than two classes or what is not finite.

    Raises:
        ValueError: if shapes do not fit, or labels are no integers in 0..E - 1.
    """
    from scipy.optimize import minimize_scalar

    _check_activation(activation)
    check_target(labels, activation, "labels")
    N, E = activation.shape
    if not _enough(activation) or E < 2:
        return None
    log = activation.double().clamp_min(_SMALLEST).log()
    spread = _spread(log - log.mean(1, keepdim=True))
    miss = 1 / (N + 2)
    targets = torch.full_like(log, miss / (E - 1)).scatter_(
        1, labels[:, None].long().cpu(), 1 - miss
    )

    def cost(octave: float) -> float:
        return (
            -(targets * (log / (spread * 2.0**octave)).log_softmax(-1))
            .sum(1)
            .mean()
            .item()
        )

    optimum = minimize_scalar(cost, bounds=(-10, 10), method="bounded")
    return Calibration("temperature", (spread * float(2.0**optimum.x),), N)


def fit_platt(activation: Tensor, labels: Tensor) -> Calibration | None:
    r"""Slope and intercept of the largest likelihood over all images and classes
    together.

    .. math::
        \min_{s \ge 0, b} -\sum_{nj} \big(t_{nj} \log p_{nj} + (1 - t_{nj}) \log(1 - p_{nj})\big), \quad
        t_{nj} = \frac{N_+ + 1}{N_+ + 2} \text{ where the class is there, else } \frac{1}{N_- + 2}

    The targets, of N_+ classes that are there and N_- that are not, are Platt's: the
    slope stays finite where activations tell all of them apart. It is not negative:
    where classes that are there have the smaller activations, as in a network that has
    learned nothing, all get the share of those that are there.

    Args:
        activation: the activation of the classes, (N, E), of images that the network
            was not trained on.
        labels: which classes are there, bool (N, E).

    Returns:
        None for fewer than 20 images, labels that are all alike, or what is not finite.

    Raises:
        ValueError: if shapes do not fit, or labels are no masks.
    """
    from sklearn.linear_model import LogisticRegression

    _check_activation(activation)
    if labels.dtype != torch.bool or labels.shape != activation.shape:
        raise ValueError(
            "labels must be masks of the classes that are there, bool "
            f"{tuple(activation.shape)}, got {labels.dtype} "
            f"{tuple(labels.shape)}"
        )
    if not _enough(activation) or bool(labels.all()) or not bool(labels.any()):
        return None
    logit = _logit(activation.double()).reshape(-1, 1)
    present = labels.cpu().flatten()
    centre = logit.mean().item()
    spread = _spread(logit - logit.mean())
    yes = int(present.sum())
    low = 1 / (len(present) - yes + 2)
    high = (yes + 1) / (yes + 2)
    target = low + (high - low) * present.double()
    # Each is there with the weight t and not there with 1 - t; a C so large is no
    # penalty.
    model = LogisticRegression(C=1e9, solver="newton-cholesky", tol=1e-8)
    model.fit(
        ((logit - centre) / spread).repeat(2, 1).numpy(),
        torch.arange(2).repeat_interleave(len(present)).numpy(),
        torch.cat([1 - target, target]).numpy(),
    )
    slope = float(model.coef_[0, 0]) / spread
    intercept = float(model.intercept_[0]) - slope * centre
    if slope < 0:
        slope = 0.0
        intercept = target.mean().logit().item()
    return Calibration("platt", (slope, intercept), len(activation))


def _check_activation(activation: Tensor) -> None:
    if activation.ndim != 2 or not activation.is_floating_point():
        raise ValueError(
            f"activation must be floating-point (N, E), got {activation.dtype} "
            f"{tuple(activation.shape)}"
        )


def _enough(activation: Tensor) -> bool:
    return len(activation) >= LEAST_IMAGES and bool(activation.isfinite().all())


def _spread(centred: Tensor) -> float:
    """The standard deviation of numbers with mean 0; 1 if they differ by no more than
    rounding.
    """
    spread = centred.square().mean().sqrt().item()
    return spread if spread > _SMALLEST else 1.0


def _logit(activation: Tensor) -> Tensor:
    return activation.logit(eps=_SMALLEST)
