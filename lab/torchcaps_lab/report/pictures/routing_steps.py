"""The routing of one image to the classes, step by step."""

from dataclasses import field
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.models.base import CapsuleNetwork, in_precision_of
from torchcaps_lab.evaluate.findings import evaluating, kept
from torchcaps_lab.evaluate.steps import Step, observe_steps, routes_votes
from torchcaps_lab.report.exhibit import PNG, Exhibit, register_exhibit
from torchcaps_lab.report.flow import class_maps
from torchcaps_lab.report.observe import Observation
from torchcaps_lab.report.places import Extent, on_a_grid

_CHILDREN = 48
"""Children whose rows are shown."""


class RoutingStep(NamedTuple):
    """One step of routing.

    Args:
        assignment: the assignment of the children shown, (I', E).
        agreement: how far the same pairs agree, as cosines in [-1, 1], (I', E).
        activation: the activation of the classes, (E,).
        maps: share of the active children at each position that went to each class,
            (H', W', E); None off a grid.

    Example:
        >>> from torchcaps_lab.report.pictures.routing_steps import RoutingStep
        >>> step = RoutingStep(
        ...     torch.full((6, 3), 1 / 3), torch.zeros(6, 3), torch.rand(3), maps=None
        ... )
        >>> step.assignment.shape
        torch.Size([6, 3])
    """

    assignment: Tensor
    agreement: Tensor
    activation: Tensor
    maps: Tensor | None


@register_exhibit("routing_steps")
class RoutingSteps(Exhibit):
    """The routing of one image to the classes, step by step.

    Attributes:
        picture: (C, H, W).
        routing: its name.
        steps: one a step.
        sites: where each child that is shown lies: its indices on the axes of the
            children's sites.
        weight: how active each child that is shown is, (I',).
        children: how many there are in all.
        even: the share of a class if all got the same:
            :attr:`~torchcaps_lab.report.Observation.even`.
        extent: the part of the image that a map covers; None for all of it.

    Example:
        >>> from torchcaps_lab.report import Observation, Selection
        >>> from torchcaps_lab.report.pictures.routing_steps import RoutingSteps
        >>> image = torch.rand(1, 1, 8, 8)
        >>> look = Observation(
        ...     tc.create_model("capsnet_digits"), Selection(image, image)
        ... )
        >>> shown = RoutingSteps.of(look)
        >>> len(shown.steps), shown.steps[-1].activation.shape
        (3, torch.Size([10]))
    """

    picture: Tensor = field(metadata=PNG)
    routing: str
    steps: tuple[RoutingStep, ...]
    sites: list[list[int]]
    weight: Tensor
    children: int
    even: float
    extent: Extent | None

    @classmethod
    def of(cls, observation: Observation) -> "RoutingSteps | None":
        """Make the exhibit of the example; None if the classes are not found by routing
        votes. Routes it anew, step by step.

        The children shown are the most active ones, by the class that most of them goes
        to in the end.
        """
        model = observation.model
        place = observation.selection.example
        if not isinstance(model, CapsuleNetwork) or not routes_votes(model):
            return None
        with evaluating(model) as device:
            image = in_precision_of(
                model, observation.selection.images[place : place + 1].to(device)
            )
            children = model.children_of(image)
            steps = observe_steps(model, children)
        activation = kept(children.activation[0])
        order = activation.flatten().argsort(descending=True, stable=True)[:_CHILDREN]
        final = kept(steps[-1].assignment)[0, order]
        order = order[(final.argmax(-1) - final.amax(-1)).argsort(stable=True)]
        layer = next(iter(observation.maps), "")
        return cls(
            title="Routing, step by step",
            text=(
                "Each row is a child capsule, and each column is a class. A step "
                "assigns each child to the classes that its vote agrees with. It "
                "then computes the classes again from the votes of their children."
            ),
            picture=observation.selection.pictures[place],
            routing=type(model.routing).__name__,
            steps=tuple(_routing_step(step, activation, order) for step in steps),
            sites=torch.stack(torch.unravel_index(order, activation.shape), 1).tolist(),
            weight=activation.flatten()[order],
            children=activation.numel(),
            even=observation.even,
            extent=observation.extents.get(layer),
        )


def _routing_step(step: Step, activation: Tensor, order: Tensor) -> RoutingStep:
    assignment = kept(step.assignment)
    sites = activation[None]
    maps = None
    if on_a_grid(sites):
        maps = class_maps(assignment.unflatten(1, sites.shape[1:]), sites)[0]
    agreement = kept(step.agreement)[0, order]
    return RoutingStep(
        assignment[0, order], agreement, kept(step.parents.activation)[0], maps
    )
