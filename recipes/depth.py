"""How deep may a stack of capsule layers be? With a bias of the votes and without,
squashed, normalised or neither.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from recipes.kit.base import TEST_ERROR, Line, Picture, Recipe, Study, register_recipe
from recipes.kit.lab import at_random, data_of
from recipes.kit.options import TrainingOptions
from recipes.routing_health import layer_health
from torchcaps import margin_loss
from torchcaps.capsules import Capsules
from torchcaps.layers import CapsLinear, PoseNorm, PrimaryCaps
from torchcaps.models import CapsuleClassifier, register_model
from torchcaps.routing import DynamicRouting
from torchcaps.spec import Size, settings
from torchcaps.squashing import length
from torchcaps_lab.data import Examples
from torchcaps_lab.report import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Between = Literal["squash", "nothing", "norm"]


@register_model(
    "capsule_stack", "a convolution, primary capsules, and any number of routed layers"
)
@settings
class CapsuleStack(CapsuleClassifier):
    """A convolution, primary capsules, and a stack of fully connected layers of
    capsules, the classes last.

    Args:
        image_shape: the shape (C, H, W) of the images.
        classes: the number of classes.
        depth: the number of layers of capsules that are routed, that of the classes
            included.
        channels: the channels of the convolution.
        types: the number of primary capsules at each position.
        hidden: the number of capsules in each layer between the primary ones and the
            classes.
        dim: the dimension of all poses but those of the classes, which have twice as
            many numbers.
        between: what is done to the poses of a layer below the classes: ``squash``
            inside the routing and behind it, as published; ``nothing``; or ``norm``,
            batch normalisation of what is not squashed.
        vote_bias: whether the votes of all layers have biases.
        steps: the number of steps of dynamic routing.
    """

    image_shape: tuple[int, int, int] = (1, 16, 16)
    classes: int = 10
    depth: Size = 3
    channels: Size = 32
    types: Size = 8
    hidden: Size = 16
    dim: Size = 8
    between: Between = "squash"
    vote_bias: bool = False
    steps: Size = 3

    def __post_init__(self) -> None:
        self.features = nn.Sequential(
            nn.Conv2d(self.image_shape[0], self.channels, 5, 2), nn.ReLU()
        )
        self.primary_caps = PrimaryCaps(
            self.channels, self.types, self.dim, kernel_size=3, stride=2
        )
        grid = ((extent - 5) // 2 + 1 for extent in self.image_shape[1:])
        children = math.prod(self.primary_caps.sites(*grid))
        routing = DynamicRouting(
            steps=self.steps, squash="sabour" if self.between == "squash" else "none"
        )
        self.hidden_caps = nn.ModuleList()
        for _ in range(self.depth - 1):
            layer = CapsLinear(
                children,
                self.hidden,
                self.dim,
                self.dim,
                routing=routing,
                vote_bias=self.vote_bias,
            )
            self.hidden_caps.append(layer)
            children = self.hidden
        normalised = self.depth - 1 if self.between == "norm" else 0
        self.norms = nn.ModuleList(
            PoseNorm(self.hidden, self.dim, "element") for _ in range(normalised)
        )
        routing = DynamicRouting(steps=self.steps)
        self.class_caps = CapsLinear(
            children,
            self.classes,
            self.dim,
            2 * self.dim,
            routing=routing,
            vote_bias=self.vote_bias,
        )
        self.decoder = None

    def children_of(self, images: Tensor) -> Capsules:
        """The capsules of the last layer below the classes."""
        self._check(images)
        capsules = self.primary_caps(self.features(images)).flatten()
        for number, layer in enumerate(self.hidden_caps):
            capsules = layer(capsules)
            if self.norms:
                # of length about 1, as if squashed
                pose = self.norms[number](capsules.pose) / math.sqrt(self.dim)
                capsules = Capsules(pose, length(pose))
        return capsules

    @property
    def routed_layers(self) -> list[CapsLinear]:
        """All layers that route, from the lowest to the classes."""
        return [
            layer
            for layer in (*self.hidden_caps, self.class_caps)
            if isinstance(layer, CapsLinear)
        ]


DEPTHS = (1, 2, 4, 8)
BETWEEN: dict[Between, str] = {
    "squash": "squashed",
    "nothing": "not squashed",
    "norm": "normalised",
}
BIASES = {False: "", True: ", bias"}


def row_of(depth: int, between: Between, bias: bool) -> str:
    """The name of a row; a single layer has nothing between layers."""
    if depth == 1:
        return f"1 layer{BIASES[bias]}"
    return f"{depth} layers, {BETWEEN[between]}{BIASES[bias]}"


def _rows() -> dict[str, dict[str, Any]]:
    """What each row changes in the network."""
    rows = {}
    for depth, between, bias in product(DEPTHS, BETWEEN, BIASES):
        if depth > 1 or between == "squash":
            arguments = {"depth": depth, "between": between, "vote_bias": bias}
            rows[row_of(depth, between, bias)] = {"model_args": arguments}
    return rows


ROWS = _rows()
ENTROPY = "entropy of the couplings, all layers"
DEAD = "dead capsules below the classes"
FLOW = "gradient of the lowest layer over that of the classes, log10"
LEAST = -30.0
"""What a gradient of 0 counts as, in decades."""


@dataclass(frozen=True, kw_only=True)
class DepthSettings(TrainingOptions):
    """One preset.

    Attributes:
        observed: the number of test images on which entropy and dead capsules are
            measured, and gradients at the start.
    """

    observed: int = 256


def _lines() -> tuple[Line, ...]:
    lines = []
    for row, changes in ROWS.items():
        lines += [
            Line(row, TEST_ERROR),
            Line(row, ENTROPY, unit="", higher_is_better=None),
        ]
        if changes["model_args"]["depth"] > 1:
            lines += [
                Line(row, DEAD),
                Line(
                    row,
                    FLOW,
                    unit="",
                    higher_is_better=None,
                ),
            ]
    return tuple(lines)


@register_recipe
class Depth(Recipe[DepthSettings]):
    """Stacks of capsule layers under dynamic routing: what they learn, and what is left
    of gradients and capsules.

    Source: Peer, Stabinger & Rodriguez-Sanchez 2019, arXiv 1905.08744; Mitterreiter et
    al. 2023, "Why Capsule Neural Networks Do Not Scale"; Everett, Zhong & Leontidis
    2023, "ProtoCaps".
    """

    name: ClassVar = "depth"
    rows: ClassVar = ROWS
    lines: ClassVar = _lines()
    settings: ClassVar = DepthSettings
    grows: ClassVar = True

    def begin(self, study: Study) -> Examples:
        """The test images."""
        return data_of(study.settings.data).test

    def measure(
        self,
        study: Study,
        row: str,
        test: Examples,
    ) -> dict[str, float]:
        """Error, entropy and dead capsules of the trained network, gradients of the
        same network before training.
        """
        trained = study.trained[row]
        few = at_random(test, study.settings.observed)
        prepared = trained.classifier.prepared(few)
        images = prepared.__getitems__(list(range(len(prepared)))).inputs
        entropies, dead = [], []
        for health in layer_health(trained.network, images).values():
            if health.entropy is not None:
                entropies.append(health.entropy)
                dead.append(health.dead)
        with torch.random.fork_rng():
            torch.manual_seed(study.lab.seed)
            untrained = type(trained.network).from_config(trained.network.config())
            gradients = relative_gradients(untrained, images)
        study.curves[row] = {
            "entropy": entropies,
            "dead": dead,
            "gradient, log10": gradients,
        }
        figures = {TEST_ERROR: trained.test_error, ENTROPY: mean(entropies)}
        if len(gradients) > 1:
            figures |= {DEAD: 100 * mean(dead[:-1]), FLOW: gradients[0] - gradients[-1]}
        return figures

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """Errors and gradients over the depth."""
        return {"depth": Picture(_figure(studies), self.caption)}


def relative_gradients(network: Any, images: Tensor) -> list[float]:
    """The norm of the gradient of each layer's transforms over the norm of the
    transforms, log10, lowest layer first.

    Args:
        network: a :class:`CapsuleStack`, in training.
        images: the images, (B, C, H, W), which are labelled with the classes from the
            first to the last and again.
    """
    network.train().to(images.device)
    labels = torch.arange(len(images), device=images.device) % network.classes
    margin_loss(network(images).activation, labels).backward()
    decades = []
    for layer in network.routed_layers:
        share = (layer.weight.grad.norm() / layer.weight.norm()).item()
        decades.append(max(math.log10(share), LEAST) if share > 0 else LEAST)
    return decades


def over_depth(
    studies: Sequence[Study],
    measure: str,
    between: Between,
    bias: bool,
) -> Mapping[int, list[float]]:
    """The figures of each depth, of all seeds that have them."""
    by_depth = {}
    for depth in DEPTHS:
        key = row_of(depth, between, bias), measure
        figures = [study.figures[key] for study in studies if key in study.figures]
        if figures:
            by_depth[depth] = figures
    return by_depth


def _figure(studies: Sequence[Study]) -> "Figure":
    """Two panels: test error and gradient over the depth, a colour for what is between
    layers, broken with a bias.
    """
    figure = new_figure(9.0, 3.6, "constrained")
    panels = figure.subplots(1, 2)
    for number, (between, name) in enumerate(BETWEEN.items()):
        for bias, after in BIASES.items():
            for axes, measure in zip(panels, (TEST_ERROR, FLOW), strict=True):
                by_depth = over_depth(studies, measure, between, bias)
                style = "--s" if bias else "-o"
                axes.plot(
                    list(by_depth),
                    list(map(mean, by_depth.values())),
                    style,
                    color=f"C{number}",
                    label=name + after,
                )
    for axes, label in zip(
        panels, ("test error, %", "gradient, lowest over highest, log10"), strict=True
    ):
        axes.set(xlabel="layers of capsules", ylabel=label)
        axes.set_xticks(DEPTHS)
        axes.grid(alpha=0.3)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=6, fontsize=8, frameon=False
    )
    return figure
