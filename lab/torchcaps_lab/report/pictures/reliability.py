"""Whether the network is right as often as it says."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from torchcaps_lab.evaluate.calibration import Calibration, calibration_bins
from torchcaps_lab.evaluate.findings import Findings
from torchcaps_lab.report.canvas import new_figure
from torchcaps_lab.report.exhibit import Exhibit, Picture, register_exhibit
from torchcaps_lab.report.observe import Tested

_BINS = 10


class ReliabilityCurve(NamedTuple):
    """How sure a network was of what it said, and how often it was right, in bins of
    how sure it was.

    Args:
        name: the name of the probabilities.
        confidence: mean probability of the class that was said, for each bin that has
            images.
        accuracy: share of the images of the bin for which that class was right.
        error: the expected calibration error, in [0, 1].

    Example:
        >>> from torchcaps_lab.report.pictures.reliability import ReliabilityCurve
        >>> ReliabilityCurve(
        ...     "lengths", confidence=[0.5, 0.9], accuracy=[0.4, 0.95], error=0.07
        ... ).error
        0.07
    """

    name: str
    confidence: list[float]
    accuracy: list[float]
    error: float


@register_exhibit("reliability", place=60, drawings="reliability.png")
class Reliability(Exhibit):
    """Reliability curves: of the shares of the activations and, if there is a
    calibration, of its probabilities.

    Attributes:
        curves: the calibrated one last.
        calibration: the method, in words; empty without one.

    Example:
        >>> from torchcaps_lab import evaluate, report
        >>> from torchcaps_lab.data import Digits
        >>> findings = evaluate.examine(
        ...     tc.create_model("capsnet_digits"), Digits().test
        ... )
        >>> len(report.pictures.Reliability.of(findings, calibration=None).curves)
        1
    """

    curves: tuple[ReliabilityCurve, ...]
    calibration: str

    @classmethod
    def of(
        cls, findings: Findings, calibration: Calibration | None, what: str = "images"
    ) -> "Reliability | None":
        """Make the exhibit of examples of one class each; None for activations that are
        not finite.

        Args:
            findings: about them.
            calibration: the fitted one; None if there is none.
            what: what they are, such as "images" or "texts".
        """
        activation = findings.activation.double()
        if not activation.isfinite().all():
            return None
        probabilities = {
            "shares of the activations": activation
            / activation.sum(1, keepdim=True).clamp_min(1e-30)
        }
        if calibration is not None and calibration.method == "temperature":
            probabilities["calibrated"] = calibration(activation)
        curves = tuple(
            _curve(name, shares, findings.labels)
            for name, shares in probabilities.items()
        )
        text = (
            "If the network is 80 % sure, it should be right for about 80 % of these "
            f"{what}. Its points are then on the diagonal. Above the diagonal the "
            "network is too cautious, and below it is too sure. The expected "
            "calibration error is the mean distance from the diagonal over all "
            f"{what}: "
            + ", ".join(f"{curve.error:.1%} for {curve.name}" for curve in curves)
            + "."
        )
        if len(curves) > 1:
            text += (
                f" 'torchcaps predict' prints calibrated probabilities ({calibration})."
            )
        how = "" if calibration is None else str(calibration)
        return cls(
            title="Confidence and accuracy", text=text, curves=curves, calibration=how
        )

    @classmethod
    def of_test(cls, tested: Tested) -> "Iterator[Reliability | None]":
        """Make the exhibit of what a classifier was tested on."""
        calibration = Calibration.from_config(tested.model.extra.get("calibration"))
        if calibration is not None:
            yield cls.of(tested.findings, calibration, tested.images.what)

    def draw(self) -> Iterator[Picture]:
        """How often the network is right against how sure it is, and the diagonal on
        which both are the same.
        """
        figure = new_figure(4.6, 4.2)
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color="0.7", linestyle=":", label="as sure as right")
        for place, curve in enumerate(self.curves):
            axes.plot(
                curve.confidence,
                curve.accuracy,
                f"C{place}o-",
                markersize=4,
                label=curve.name,
            )
        labels = {
            "xlabel": "probability of the predicted class",
            "ylabel": "share that is right",
        }
        axes.set(xlim=(0, 1), ylim=(0, 1.02), **labels)
        axes.grid(alpha=0.3)
        figure.legend(
            *axes.get_legend_handles_labels(),
            loc="outside lower center",
            ncols=2,
            fontsize=8,
            frameon=False,
        )
        yield Picture(
            "reliability.png",
            "How often the network is right, by how sure it is",
            figure,
        )


def _curve(name: str, probabilities: Tensor, labels: Tensor) -> ReliabilityCurve:
    """The points of the bins that have images, and the error over them."""
    bins = calibration_bins(probabilities, labels, _BINS)
    return ReliabilityCurve(
        name, bins.confidence.tolist(), bins.accuracy.tolist(), bins.error
    )
