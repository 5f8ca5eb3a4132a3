"""Exhibits: plain data that says what to show of a network, for a report, a notebook or a page in the browser."""

from torchcaps.report.exhibits.advice import Advice, Hint
from torchcaps.report.exhibits.answers import Confusion, Mistake, Mistakes, Quantity, Summary, measures
from torchcaps.report.exhibits.assignments import Assignments, ShareMaps
from torchcaps.report.exhibits.base import Exhibit, Table, list_exhibits, register_exhibit
from torchcaps.report.exhibits.choice import exhibits_of, exhibits_of_classifier
from torchcaps.report.exhibits.curves import Curve, LearningCurves, Panel
from torchcaps.report.exhibits.decoded import Perturbations, Reconstructions
from torchcaps.report.exhibits.layers import (
    ActivationMaps,
    LayerActivations,
    LayerPoses,
    LayerTypes,
    PoseMaps,
    TypeMaps,
)
from torchcaps.report.exhibits.live import ClassActivations, ClassBoxes, ClassPose, PoseSwap, RoutingStep, RoutingSteps
from torchcaps.report.exhibits.readout import PoseReadout
from torchcaps.report.exhibits.reliability import Reliability, ReliabilityCurve
from torchcaps.report.exhibits.words import ClassWords, ColouredText, ColouredTexts, exhibits_of_texts, word_shares

__all__ = [
    "ActivationMaps",
    "Advice",
    "Assignments",
    "ClassActivations",
    "ClassBoxes",
    "ClassPose",
    "ClassWords",
    "ColouredText",
    "ColouredTexts",
    "Confusion",
    "Curve",
    "Exhibit",
    "Hint",
    "LayerActivations",
    "LayerPoses",
    "LayerTypes",
    "LearningCurves",
    "Mistake",
    "Mistakes",
    "Panel",
    "Perturbations",
    "PoseMaps",
    "PoseReadout",
    "PoseSwap",
    "Quantity",
    "Reconstructions",
    "Reliability",
    "ReliabilityCurve",
    "RoutingStep",
    "RoutingSteps",
    "ShareMaps",
    "Summary",
    "Table",
    "TypeMaps",
    "exhibits_of",
    "exhibits_of_classifier",
    "exhibits_of_texts",
    "list_exhibits",
    "measures",
    "register_exhibit",
    "word_shares",
]
