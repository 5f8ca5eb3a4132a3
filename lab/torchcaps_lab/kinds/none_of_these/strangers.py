"""None of these: images of no class that a network knows, told by what the decoder
makes of the winning class.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.models import ClassifierNetwork, Prediction
from torchcaps_lab.data import Examples
from torchcaps_lab.evaluate.calibration import LEAST_IMAGES
from torchcaps_lab.evaluate.findings import kept, predicted
from torchcaps_lab.evaluate.verdict import judge
from torchcaps_lab.report.exhibit import EXHIBITS, Exhibit
from torchcaps_lab.report.observe import Observation
from torchcaps_lab.tasks.doubt import (
    FALSE_ALARMS,
    Doubt,
    check_false_alarms,
    register_doubt,
)

LEAST_EXPLAINED = 0.5
"""The share of the variance of the validation images that a decoder must explain.

Those of the package explain 0.67 (digits), 0.83 and 0.88 (MNIST). The drawing of a
photograph is a blur: nearly all photographs of other classes pass then.
"""

_LEVELS = 200
"""Quantiles of the errors that are kept, less one: they tell how strange an image is to
half a percent.
"""
_LEAST_ENERGY = 1e-6
"""Of an image: a black one that is drawn as anything else is as strange as can be."""


def reconstruction_error(pictures: Tensor, reconstructions: Tensor) -> Tensor:
    r"""Return the distance of reconstructions from images, relative to the energy of
    these, (B,).

    .. math:: e = \frac{\sum_p (x_p - y_p)^2}{\sum_p x_p^2}

    Args:
        pictures: x, (B, C, H, W) in [0, 1].
        reconstructions: y, what the capsules of the most active classes alone describe,
            (B, C, H, W).

    Source: Frosst, Sabour & Hinton 2018, "DARCCC: Detecting Adversaries by
    Reconstruction from Class Conditional Capsules", and Qin, Frosst, Sabour, Raffel,
    Cottrell & Hinton 2020, "Detecting and Diagnosing Adversarial Images with
    Class-Conditional Capsule Reconstructions", which take the distance as it is.
    Divided by the energy it does not grow with the ink in an image, see ``python -m
    recipes strangers``.
    """
    energy = pictures.flatten(1).square().sum(1).clamp_min(_LEAST_ENERGY)
    return (pictures - reconstructions).flatten(1).square().sum(1) / energy


@register_doubt("strangers")
@dataclass(frozen=True)
class Strangers(Doubt):
    """Which images are of none of the classes, by their :func:`reconstruction_error`.

    Args:
        threshold: the threshold of the error; an image with a larger one is a stranger.
        false_alarms: the share of the validation images that lie above it.
        quantiles: the quantiles of the errors of the validation images, from the
            smallest to the largest, evenly spaced.
        images: how many validation images there were.

    Raises:
        ValueError: if ``false_alarms`` is not between 0 and 1, or numbers are not
            finite or not in order.

    Example:
        >>> from torchcaps_lab.report import Strangers
        >>> strangers = Strangers(
        ...     threshold=0.3, false_alarms=0.25, quantiles=(0.1, 0.2, 0.4), images=500
        ... )
        >>> error = torch.tensor([0.15, 0.9])
        >>> (
        ...     strangers.known(error).tolist(),
        ...     strangers.strangeness(error).round(decimals=2).tolist(),
        ... )
        ([True, False], [0.25, 1.0])
    """

    threshold: float
    false_alarms: float
    quantiles: tuple[float, ...]
    images: int

    says = "none of these"
    needs = (
        "this needs a classification, a decoder that learned to reconstruct, and at "
        f"least {LEAST_IMAGES} validation images"
    )

    def __post_init__(self) -> None:
        check_false_alarms(self.false_alarms)
        numbers = torch.tensor([self.threshold, *self.quantiles])
        if (
            len(self.quantiles) < 2
            or not numbers.isfinite().all()
            or (numbers[1:].diff() < 0).any()
        ):
            raise ValueError(
                "threshold and quantiles must be finite, and quantiles two or more "
                f"in order, got {self.threshold} and "
                f"{self.quantiles}"
            )

    @classmethod
    def unfit(cls, network: ClassifierNetwork, examples: Examples) -> str:
        """Why errors of reconstructions tell nothing; empty if they do."""
        few = examples.subset(torch.arange(min(2, len(examples))))
        if len(few) and reconstruction_errors(network, few) is None:
            return "this network has no decoder"
        if len(examples) < LEAST_IMAGES:
            return f"there are {len(examples)} images to fit it on"
        verdict = judge(network, examples)
        explained = None if verdict is None else verdict.explained
        if explained is not None and explained < LEAST_EXPLAINED:
            return (
                f"the decoder explains {max(explained, 0.0):.0%} of the variance of "
                f"the images, which must be at least {LEAST_EXPLAINED:.0%}"
            )
        return ""

    @classmethod
    def fit(
        cls,
        network: ClassifierNetwork,
        examples: Examples,
        false_alarms: float = FALSE_ALARMS,
    ) -> "Strangers | None":
        """The threshold above which lies the share ``false_alarms`` of the errors; None
        also for errors that are not finite.
        """
        check_false_alarms(false_alarms)
        if cls.unfit(network, examples):
            return None
        errors = reconstruction_errors(network, examples)
        if errors is None or not errors.isfinite().all():
            return None
        errors = errors.double()
        quantiles = errors.quantile(
            torch.linspace(0, 1, _LEVELS + 1, dtype=errors.dtype)
        ).tolist()
        rounded = tuple(float(f"{quantile:.4g}") for quantile in quantiles)
        threshold = errors.quantile(1 - false_alarms).item()
        return cls(threshold, false_alarms, rounded, len(errors))

    def error(self, prediction: Prediction, pictures: Tensor) -> Tensor | None:
        """The :func:`reconstruction_error` of each image; None without
        reconstructions.
        """
        if prediction.reconstruction is None:
            return None
        return reconstruction_error(pictures, prediction.reconstruction)

    def shown(self, observation: Observation) -> Exhibit | None:
        """The images, what their classes draw, and the difference."""
        kind: Any = EXHIBITS.find("none_of_these")
        exhibit: Exhibit | None = kind.of(observation, self)
        return exhibit

    def apart(self, known: Tensor, strange: Tensor) -> Mapping[str, float]:
        """How well errors tell images apart: :func:`told_apart`."""
        return told_apart(known, strange, self.threshold)._asdict()

    def known(self, error: Tensor) -> Tensor:
        """Whether images with these errors (B,) are of the classes, bool (B,)."""
        return error <= self.threshold

    def strangeness(self, error: Tensor) -> Tensor:
        """The share of the validation images that are less strange, (B,): from 0 to
        1.
        """
        # With the threshold among them, what is known is exactly what is at most 1 -
        # false_alarms strange.
        errors = np.sort([*self.quantiles, self.threshold])
        levels = np.sort(
            [*np.linspace(0, 1, len(self.quantiles)), 1 - self.false_alarms]
        )
        return torch.from_numpy(np.interp(error.double().numpy(), errors, levels))

    def __str__(self) -> str:
        return (
            "an image is none of these if its reconstruction differs by more than "
            f"{self.threshold:.3g} of its energy, which holds for "
            f"{self.false_alarms:.3g} of {self.images:,} validation images"
        )

    def config(self) -> dict[str, Any]:
        """The same, ready for JSON."""
        return {**asdict(self), "quantiles": list(self.quantiles)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Strangers":
        """What :meth:`config` was made of."""
        return cls(**{**config, "quantiles": tuple(config["quantiles"])})


def reconstruction_errors(
    model: ClassifierNetwork, image_set: Examples, batch_size: int = 128
) -> Tensor | None:
    """The :func:`reconstruction_error` of each image by its most active class, (N,);
    None if nothing is reconstructed.

    Args:
        model: any network; it is left in the mode it came in.
        image_set: at least one image, prepared for it.
        batch_size: how many at a time.
    """
    errors = []
    for batch, prediction in predicted(model, image_set, batch_size):
        drawn = prediction.reconstruction
        if drawn is None or drawn.shape != batch.pictures.shape:
            return None
        errors.append(reconstruction_error(batch.pictures.cpu(), kept(drawn)))
    return torch.cat(errors)


class Apart(NamedTuple):
    """How well strangers are told from images of the classes.

    Args:
        auc: the area under the receiver operating characteristic: how often a stranger
            is the stranger of two images, one of each kind.
        undetected: the share of the strangers that pass for known.
        false_alarms: the share of the known images that are taken for strangers.

    Example:
        >>> from torchcaps_lab.report import told_apart
        >>> told_apart(
        ...     torch.tensor([0.1, 0.2]), torch.tensor([0.15, 0.9]), threshold=0.5
        ... )
        Apart(auc=0.75, undetected=0.5, false_alarms=0.0)
    """

    auc: float
    undetected: float
    false_alarms: float


def told_apart(known: Tensor, strange: Tensor, threshold: float) -> Apart:
    """Measure how well scores separate (N,) images of the classes from (M,) strangers.
    A score above the threshold counts as strange.

    Raises:
        ValueError: if there are none of either.
    """
    from sklearn.metrics import roc_auc_score

    if not len(known) or not len(strange):
        raise ValueError(
            f"there must be known and strange images, got {len(known)} and "
            f"{len(strange)}"
        )
    auc = roc_auc_score(
        [0] * len(known) + [1] * len(strange), torch.cat([known, strange]).numpy()
    )
    above = [(errors > threshold).double().mean().item() for errors in (known, strange)]
    return Apart(float(auc), 1 - above[1], above[0])
