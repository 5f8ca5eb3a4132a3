"""One image and one class, for a page on which people draw, move and point: of one image each."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.models.base import CapsuleClassifier, in_precision_of
from torchcaps.models.scene_capsnet import SceneCapsNet
from torchcaps.report.exhibits.base import PNG, Exhibit, register_exhibit
from torchcaps.report.findings import evaluating, kept
from torchcaps.report.flow import class_maps
from torchcaps.report.observe import Observation
from torchcaps.report.places import Extent, on_a_grid
from torchcaps.report.poses import pose_changes
from torchcaps.report.shapes import pose_tells
from torchcaps.report.steps import Step, observe_steps, routes_votes

_CHILDREN = 48
"""Children whose rows are shown."""


@register_exhibit("class_activations")
@dataclass(frozen=True, eq=False, kw_only=True)
class ClassActivations(Exhibit):
    """One image and how active each class is.

    Attributes:
        picture: (C, H, W).
        activation: (E,).
        said: the most active class.

    Example:
        >>> from torchcaps.report import Observation, Selection
        >>> from torchcaps.report.exhibits import ClassActivations
        >>> image = torch.rand(1, 1, 8, 8)
        >>> look = Observation(tc.create_model("capsnet_digits"), Selection(image, image))
        >>> ClassActivations.of(look).activation.shape
        torch.Size([10])
    """

    picture: Tensor = field(metadata=PNG)
    activation: Tensor
    said: int

    @classmethod
    def of(cls, observation: Observation) -> "ClassActivations":
        """Of the example."""
        place = observation.selection.example
        activation = observation.activation[place]
        return cls(
            title="What the network sees",
            text="Each bar is the activation of a class's capsule: whether the class is there, from 0 to 1, each for "
            "itself, so that they need not add up to 1.",
            picture=observation.selection.pictures[place],
            activation=activation,
            said=int(activation.argmax()),
        )


@register_exhibit("class_pose")
@dataclass(frozen=True, eq=False, kw_only=True)
class ClassPose(Exhibit):
    """The pose of the capsule of one class for one image, what it draws, and what each of its numbers does to that.

    Attributes:
        target: the class.
        pose: (D,), matrices row by row.
        reach: how far to move a number each way; about the paper's 0.25 for a pose of length 1.
        reconstruction: what the pose draws, (C, H, W).
        changes: (D,), the mean absolute difference of what is drawn with a number moved so far down and up.
        tells: of each number, what it changes of the shape: :func:`~torchcaps.report.shapes.pose_tells`.
        in_classes: what the same pose draws as the capsule of each class, (E, C, H, W).

    Example:
        >>> from torchcaps.report import Observation, Selection
        >>> from torchcaps.report.exhibits import ClassPose
        >>> image = torch.rand(1, 1, 8, 8)
        >>> look = Observation(tc.create_model("capsnet_digits"), Selection(image, image))
        >>> shown = ClassPose.of(look)
        >>> shown.pose.shape, shown.reconstruction.shape, shown.in_classes.shape
        (torch.Size([16]), torch.Size([1, 8, 8]), torch.Size([10, 1, 8, 8]))
    """

    target: int
    pose: Tensor
    reach: float
    reconstruction: Tensor = field(metadata=PNG)
    changes: Tensor
    tells: tuple[str, ...]
    in_classes: Tensor = field(metadata=PNG)

    @classmethod
    def of(cls, observation: Observation) -> "ClassPose | None":
        """Of the example and the class that it is asked about; None without a decoder."""
        classes = observation.classes
        if classes is None or not observation.decodes:
            return None
        place = observation.selection.example
        target = int(observation.target[place])
        pose = classes.pose[place, target].flatten()
        reach = 0.6 * float(pose.abs().max()) or 1.0
        D, E = len(pose), classes.activation.shape[1]
        moves = torch.eye(D)[:, None] * torch.tensor([-reach, 0.0, reach])[:, None]  # [D, 3, D]
        poses = torch.cat([(pose + moves).flatten(0, 1), pose.expand(E, D)])
        drawn = observation.draw(poses, torch.tensor([target] * (3 * D) + list(range(E))))
        sweep, in_classes = drawn[: 3 * D].unflatten(0, (D, 3)), drawn[3 * D :]
        return cls(
            title="The pose of a class",
            text="A capsule says with the numbers of its pose what its class looks like in this image, and the decoder "
            "draws what they say.",
            target=target,
            pose=pose,
            reach=reach,
            reconstruction=in_classes[target],
            changes=pose_changes(sweep[None])[0],
            tells=pose_tells(sweep),
            in_classes=in_classes,
        )


@register_exhibit("class_boxes")
@dataclass(frozen=True, eq=False, kw_only=True)
class ClassBoxes(Exhibit):
    """One image, which classes are in it, and where each of them is.

    Attributes:
        picture: (C, H, W).
        classes: those that the network says are there, the most active first.
        boxes: of all classes, (E, 4): left, top, right, bottom in pixels; zeros for nowhere.

    Example:
        >>> from torchcaps.report import Observation, Selection
        >>> from torchcaps.report.exhibits import ClassBoxes
        >>> image = torch.rand(1, 1, 32, 32)
        >>> network = tc.create_model("scene_capsnet", image_shape=(1, 32, 32), classes=3, channels=(3, 4))
        >>> shown = ClassBoxes.of(Observation(network, Selection(image, image)), torch.tensor([False, True, False]))
        >>> shown.classes, shown.boxes.shape
        ([1], torch.Size([3, 4]))
    """

    picture: Tensor = field(metadata=PNG)
    classes: list[int]
    boxes: Tensor

    @classmethod
    def of(cls, observation: Observation, said: Tensor) -> "ClassBoxes | None":
        """Of the example; None if the network says of no class where it is.

        Args:
            observation: of the image.
            said: which classes are there, bool (E,).
        """
        classes = observation.classes
        if classes is None or not isinstance(observation.model, SceneCapsNet):
            return None
        place = observation.selection.example
        order = classes.activation[place].argsort(descending=True).tolist()
        return cls(
            title="What is where",
            text="A class capsule's pose says what its class looks like and, with its last four numbers, where it is: "
            "a box around it.",
            picture=observation.selection.pictures[place],
            classes=[label for label in order if said[label]],
            boxes=classes.pose[place, :, -4:],
        )


class RoutingStep(NamedTuple):
    """One step of routing.

    Args:
        assignment: of the children shown, (I', E).
        agreement: of the same, cosines in [-1, 1], (I', E).
        activation: of the classes, (E,).
        maps: share of the active children at each position that went to each class, (H', W', E); None off a grid.

    Example:
        >>> from torchcaps.report.exhibits import RoutingStep
        >>> step = RoutingStep(torch.full((6, 3), 1 / 3), torch.zeros(6, 3), torch.rand(3), maps=None)
        >>> step.assignment.shape
        torch.Size([6, 3])
    """

    assignment: Tensor
    agreement: Tensor
    activation: Tensor
    maps: Tensor | None


@register_exhibit("routing_steps")
@dataclass(frozen=True, eq=False, kw_only=True)
class RoutingSteps(Exhibit):
    """The routing of one image to the classes, step by step.

    Attributes:
        picture: (C, H, W).
        routing: its name.
        steps: one a step.
        sites: where each child that is shown lies: its indices on the axes of the children's sites.
        weight: how active each child that is shown is, (I',).
        children: how many there are in all.
        even: the share of a class if all got the same: :attr:`~torchcaps.report.Observation.even`.
        extent: the part of the image that a map covers; None for all of it.

    Example:
        >>> from torchcaps.report import Observation, Selection
        >>> from torchcaps.report.exhibits import RoutingSteps
        >>> image = torch.rand(1, 1, 8, 8)
        >>> look = Observation(tc.create_model("capsnet_digits"), Selection(image, image))
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
        """Of the example; None if the classes are not found by routing votes. Routes it anew, step by step.

        The children shown are the most active ones, by the class that most of them goes to in the end.
        """
        model, place = observation.model, observation.selection.example
        if not isinstance(model, CapsuleClassifier) or not routes_votes(model):
            return None
        with evaluating(model) as device:
            image = in_precision_of(model, observation.selection.images[place : place + 1].to(device))
            children = model.children_of(image)
            steps = [_on_cpu(step) for step in observe_steps(model, children)]
        activation = kept(children.activation[0])
        order = activation.flatten().argsort(descending=True, stable=True)[:_CHILDREN]
        final = steps[-1].assignment[0, order]
        order = order[(final.argmax(-1) - final.amax(-1)).argsort(stable=True)]
        layer = next(iter(observation.maps), "")
        return cls(
            title="Routing, step by step",
            text="Each row is a child capsule, each column a class: a step assigns each child to the classes that its "
            "vote agrees with, and makes the classes anew from the votes of their children.",
            picture=observation.selection.pictures[place],
            routing=type(model.routing).__name__,
            steps=tuple(_routing_step(step, activation, order) for step in steps),
            sites=torch.stack(torch.unravel_index(order, activation.shape), 1).tolist(),
            weight=activation.flatten()[order],
            children=activation.numel(),
            even=observation.even,
            extent=observation.extents.get(layer),
        )


def _on_cpu(step: Step) -> Step:
    parents = step.parents._replace(pose=kept(step.parents.pose), activation=kept(step.parents.activation))
    return Step(kept(step.assignment), kept(step.agreement), parents)


def _routing_step(step: Step, activation: Tensor, order: Tensor) -> RoutingStep:
    sites = activation[None]
    maps = None
    if on_a_grid(Capsules(sites.unsqueeze(-1), sites)):
        maps = class_maps(step.assignment.unflatten(1, sites.shape[1:]), sites)[0]
    return RoutingStep(step.assignment[0, order], step.agreement[0, order], step.parents.activation[0], maps)


@register_exhibit("pose_swap")
@dataclass(frozen=True, eq=False, kw_only=True)
class PoseSwap(Exhibit):
    """Two images, and each pose drawn by the capsule of the other's class.

    Attributes:
        pictures: the images, (2, C, H, W).
        targets: their classes, (2,).
        reconstructions: what each pose draws in its own class, (2, C, H, W).
        swapped: what each pose draws in the class of the other, (2, C, H, W).

    Example:
        >>> from torchcaps.report import Observation, Selection
        >>> from torchcaps.report.exhibits import PoseSwap
        >>> network = tc.create_model("capsnet_digits")
        >>> one, other = (Observation(network, Selection(image, image)) for image in torch.rand(2, 1, 1, 8, 8))
        >>> PoseSwap.of(one, other).swapped.shape
        torch.Size([2, 1, 8, 8])
    """

    pictures: Tensor = field(metadata=PNG)
    targets: Tensor
    reconstructions: Tensor = field(metadata=PNG)
    swapped: Tensor = field(metadata=PNG)

    @classmethod
    def of(cls, one: Observation, other: Observation) -> "PoseSwap | None":
        """Of the examples of two looks with the same network; None without a decoder."""
        if one.classes is None or other.classes is None or not one.decodes:
            return None
        looks = [
            (look, classes, look.selection.example) for look, classes in ((one, one.classes), (other, other.classes))
        ]
        targets = torch.stack([look.target[place] for look, _, place in looks])
        poses = torch.stack([classes.pose[place, look.target[place]].flatten() for look, classes, place in looks])
        drawn = one.draw(poses.repeat(2, 1), torch.cat([targets, targets.flip(0)]))
        return cls(
            title="Swap poses",
            text="The pose of one image, drawn by the capsule of the other's class: what stays is what the numbers of "
            "a pose mean in both, which is little where each class has learned numbers of its own.",
            pictures=torch.stack([look.selection.pictures[place] for look, _, place in looks]),
            targets=targets,
            reconstructions=drawn[:2],
            swapped=drawn[2:],
        )
