"""A network layer by layer: where its capsules are active, and what their poses are."""

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.report.exhibits.base import PNG, Exhibit, register_exhibit
from torchcaps.report.layers import peak_activation
from torchcaps.report.observe import Observation
from torchcaps.report.places import Extent
from torchcaps.report.selection import COLUMNS

_TYPES = 8  # of each layer that are shown
_POSE_NUMBERS = 32  # of a pose, up to which each number gets a map


class ActivationMaps(NamedTuple):
    """Activations of one type of capsule of a layer.

    Args:
        layer: its name.
        type: which type of the layer's; None if it has but one.
        activation: (B, H', W').
        extent: the part of the image that a map covers; None for all of it.

    Example:
        >>> from torchcaps.report.exhibits import ActivationMaps
        >>> ActivationMaps("primary", None, torch.rand(2, 6, 6), extent=None).activation.shape
        torch.Size([2, 6, 6])
    """

    layer: str
    type: int | None
    activation: Tensor
    extent: Extent | None


@register_exhibit("layer_activations")
@dataclass(frozen=True, eq=False, kw_only=True)
class LayerActivations(Exhibit):
    """Images and, layer by layer, where one type of capsule is active.

    Attributes:
        pictures: (B, C, H, W), at most ten.
        titles: one an image.
        layers: from the lowest up, of the type that differs most between these images and places.
        classes: activations of the classes, (B, E).

    Example:
        >>> from torchcaps.report import Observation, Selection
        >>> from torchcaps.report.exhibits import LayerActivations
        >>> images = torch.rand(2, 1, 8, 8)
        >>> exhibit = LayerActivations.of(Observation(tc.create_model("capsnet_digits"), Selection(images, images)))
        >>> exhibit.classes.shape, len(exhibit.layers) > 0
        (torch.Size([2, 10]), True)
    """

    pictures: Tensor = field(metadata=PNG)
    titles: tuple[str, ...]
    layers: tuple[ActivationMaps, ...]
    classes: Tensor

    @classmethod
    def of(cls, observation: Observation) -> "LayerActivations | None":
        """None if no capsules lie on a grid."""
        if not observation.grids:
            return None
        chosen = observation.selection.first(COLUMNS)
        layers = []
        for name, capsules in observation.grids.items():
            maps = with_types(capsules.activation[chosen])
            kind = int(maps.flatten(0, -2).std(0).argmax())
            shown = kind if maps.shape[-1] > 1 else None
            layers.append(ActivationMaps(name, shown, maps[..., kind], observation.extents.get(name)))
        return cls(
            title="Layer by layer",
            text="Images and, from the lowest layer up, the activation of one type of capsule at each position: of the "
            "type that differs most between these images and places. The bars are the activations of the classes, the "
            "strongest in red.",
            pictures=observation.selection.pictures[chosen],
            titles=observation.selection.titles_at(chosen),
            layers=tuple(layers),
            classes=observation.activation[chosen],
        )


class TypeMaps(NamedTuple):
    """Activations of the most active types of capsules of a layer, for one image.

    Args:
        layer: its name.
        types: which of the layer's, the most active first.
        activation: (H', W', types).
        extent: the part of the image that a map covers; None for all of it.

    Example:
        >>> from torchcaps.report.exhibits import TypeMaps
        >>> TypeMaps.of("primary", torch.rand(6, 6, 32), extent=None, count=8).activation.shape
        torch.Size([6, 6, 8])
    """

    layer: str
    types: list[int]
    activation: Tensor
    extent: Extent | None

    @classmethod
    def of(cls, layer: str, activation: Tensor, extent: Extent | None, count: int = _TYPES) -> "TypeMaps":
        """The most active of all types, of activations (H', W', types)."""
        peak = activation.flatten(0, 1).amax(0)
        types = peak.argsort(descending=True, stable=True)[:count].tolist()
        return cls(layer, types, activation[..., types], extent)


@register_exhibit("layer_types")
@dataclass(frozen=True, eq=False, kw_only=True)
class LayerTypes(Exhibit):
    """One image and, layer by layer, where its most active types of capsules are active.

    Attributes:
        picture: (C, H, W).
        image_title: of the image.
        layers: from the lowest up.

    Example:
        >>> from torchcaps.report import Observation, Selection
        >>> from torchcaps.report.exhibits import LayerTypes
        >>> images = torch.rand(2, 1, 8, 8)
        >>> exhibit = LayerTypes.of(Observation(tc.create_model("capsnet_digits"), Selection(images, images)))
        >>> exhibit.picture.shape
        torch.Size([1, 8, 8])
    """

    picture: Tensor = field(metadata=PNG)
    image_title: str
    layers: tuple[TypeMaps, ...]

    @classmethod
    def of(cls, observation: Observation) -> "LayerTypes | None":
        """None if no layer on a grid has several types."""
        place = observation.selection.example
        maps = {name: with_types(capsules.activation)[place] for name, capsules in observation.grids.items()}
        if not any(part.shape[-1] > 1 for part in maps.values()):
            return None
        return cls(
            title="Types of capsules",
            text="For one image, where the most active types of each layer are active. A type that found something "
            "answers in few places.",
            picture=observation.selection.pictures[place],
            image_title=observation.selection.title(place),
            layers=tuple(TypeMaps.of(name, part, observation.extents.get(name)) for name, part in maps.items()),
        )


class PoseMaps(NamedTuple):
    """The poses of the most active type of capsule of a layer, for one image.

    Args:
        layer: its name.
        type: which type of the layer's; None if it has but one.
        pose: (H', W', D) of vector or (H', W', M, D) of matrix capsules.

    Example:
        >>> from torchcaps.report.exhibits import PoseMaps
        >>> PoseMaps("primary", 0, torch.rand(6, 6, 8)).pose.shape
        torch.Size([6, 6, 8])
    """

    layer: str
    type: int | None
    pose: Tensor


@register_exhibit("layer_poses")
@dataclass(frozen=True, eq=False, kw_only=True)
class LayerPoses(Exhibit):
    """One image and, layer by layer, the numbers of the pose of one type of capsule at every position.

    Attributes:
        picture: (C, H, W).
        image_title: of the image.
        layers: from the lowest up, those whose poses have at most 32 numbers.

    Example:
        >>> from torchcaps.report import Observation, Selection
        >>> from torchcaps.report.exhibits import LayerPoses
        >>> images = torch.rand(2, 1, 8, 8)
        >>> exhibit = LayerPoses.of(Observation(tc.create_model("capsnet_digits"), Selection(images, images)))
        >>> exhibit.picture.shape
        torch.Size([1, 8, 8])
    """

    picture: Tensor = field(metadata=PNG)
    image_title: str
    layers: tuple[PoseMaps, ...]

    @classmethod
    def of(cls, observation: Observation) -> "LayerPoses | None":
        """None if no capsules lie on a grid, or their poses are too large to be read."""
        place = observation.selection.example
        found = [_pose_maps(name, capsules, place) for name, capsules in observation.grids.items()]
        layers = tuple(maps for maps in found if maps.pose[0, 0].numel() <= _POSE_NUMBERS)
        if not layers:
            return None
        return cls(
            title="Poses",
            text="For one image, the numbers of the pose of the most active type of each layer at each position, in "
            "the rows and columns of its matrix (of a vector: in rows of four). Numbers of a pose that change steadily "
            "along a stroke describe it.",
            picture=observation.selection.pictures[place],
            image_title=observation.selection.title(place),
            layers=layers,
        )


def _pose_maps(name: str, capsules: Capsules, place: int) -> PoseMaps:
    if capsules.activation.ndim == 3:
        return PoseMaps(name, None, capsules.pose[place])
    kind = int(peak_activation(capsules)[place].argmax())
    several = capsules.activation.shape[-1] > 1
    return PoseMaps(name, kind if several else None, capsules.pose[place, :, :, kind])


def with_types(activation: Tensor) -> Tensor:
    """(B, H', W', types), of one type where there is no such axis."""
    return activation if activation.ndim == 4 else activation.unsqueeze(-1)
