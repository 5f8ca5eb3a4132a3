"""Which exhibits there are of a network."""

from collections.abc import Iterator, Mapping
from typing import Any

from torchcaps.data.base import ImageSet
from torchcaps.data.text_set import TextSet
from torchcaps.models.base import ImageClassifier
from torchcaps.models.text import TextClassifier
from torchcaps.report.calibration import Calibration
from torchcaps.report.exhibits.advice import Advice
from torchcaps.report.exhibits.answers import Confusion, Mistakes, Summary, measures
from torchcaps.report.exhibits.assignments import Assignments
from torchcaps.report.exhibits.base import Exhibit
from torchcaps.report.exhibits.curves import LearningCurves, Metrics
from torchcaps.report.exhibits.decoded import Perturbations, Reconstructions
from torchcaps.report.exhibits.layers import LayerActivations, LayerPoses, LayerTypes
from torchcaps.report.exhibits.readout import PoseReadout
from torchcaps.report.exhibits.reliability import Reliability
from torchcaps.report.exhibits.words import exhibits_of_texts
from torchcaps.report.findings import Findings
from torchcaps.report.observe import Observation
from torchcaps.report.selection import select_examples, select_samples


def exhibits_of(observation: Observation, examples: Observation | None = None) -> Iterator[Exhibit]:
    """What a network has to show of the images of an observation, each made when it is asked for.

    No labels are needed, so this serves every task; what else a task has to show, it adds before or after.

    Args:
        observation: of the images to show.
        examples: of the images whose poses are moved, one of each class; default: the images to show.
    """
    makers = (
        (Reconstructions.of, observation),
        (Perturbations.of, observation if examples is None else examples),
        (LayerActivations.of, observation),
        (LayerTypes.of, observation),
        (LayerPoses.of, observation),
        (Assignments.of, observation),
    )
    for make, observed in makers:
        exhibit = make(observed)
        if exhibit is not None:
            yield exhibit


def exhibits_of_classifier(
    model: ImageClassifier,
    image_set: ImageSet,
    findings: Findings,
    summary: Mapping[str, Any],
    metrics: Metrics,
) -> Iterator[Exhibit]:
    """What there is to show of a network for images of one class each, in the order of a report.

    Args:
        model: any network.
        image_set: the images.
        findings: of :func:`~torchcaps.report.examine`, about these images.
        summary: what the run says of itself; may be empty.
        metrics: rows for :class:`LearningCurves`; may be empty.
    """
    yield Summary.of(f"What this {type(model).__name__} learned", summary, measures(findings))
    yield Advice.of(findings, image_set, summary, metrics)
    curves = LearningCurves.of(metrics)
    if curves is not None:
        yield curves
    yield Confusion.of(findings, image_set.classes)
    if isinstance(image_set, TextSet):
        assert isinstance(model, TextClassifier)
        yield from exhibits_of_texts(model, image_set, findings)
    else:
        yield Mistakes.of(findings, image_set)
    calibration = Calibration.from_config(model.extra.get("calibration"))
    reliability = None if calibration is None else Reliability.of(findings, calibration)
    if reliability is not None:
        yield reliability
    if isinstance(image_set, TextSet):
        return
    shown, examples = select_samples(findings, image_set), select_examples(findings, image_set)
    yield from exhibits_of(Observation(model, shown), Observation(model, examples))
    readout = PoseReadout.of(model, image_set)
    if readout is not None:
        yield readout
