"""What is in a scene, and where: class capsules with shared transforms, and their twin
with class-activation maps.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.capsules import Capsules, Places, Prediction
from torchcaps.layers import CapsLinear
from torchcaps.models.base import CapsuleClassifier, ImageClassifier
from torchcaps.models.registry import register_model
from torchcaps.models.residual import Residual
from torchcaps.numerics import (
    Positive,
    ProperShare,
    Size,
    Sizes,
    compute_dtype,
    full_precision,
)
from torchcaps.routing import DynamicRouting, Routed, Routing
from torchcaps.routing.batch_norm import EarlyBatchNorm2d
from torchcaps.spec import settings
from torchcaps.squashing import length


def boxes_of_maps(
    maps: Tensor, cell: float, cut: float = 0.2, reach: float = 1.0
) -> Tensor:
    r"""Return boxes around the content of maps, from their mean and variance.

    .. math:: \mu \pm \sqrt{3 (\sigma^2 + r^2 / 12)}, \quad w_{yx} = \max(0, m_{yx} - \text{cut} \max m)

    with mean and variance of the centres of the cells under the weights w, and each
    cell speaking for a square of side r, ``reach`` times its own, around it. With a
    ``reach`` of 1 a box that is filled evenly is found again; maps that point at the
    middles of things, rather than fill them, take more.

    Args:
        maps: m, 0 or more, (B, E, H', W').
        cell: side of a cell of the maps, in pixels of the image.
        cut: share of the largest value that is taken off, in [0, 1).
        reach: side of what a cell speaks for, in cells.

    Returns:
        (B, E, 4), left, top, right, bottom in pixels of the image, in float32 at least;
        zeros where a map is 0 everywhere.
    """
    # Half precision does not hold the squares of distances in pixels.
    maps = maps.to(compute_dtype(maps))
    weights = (maps - cut * maps.amax((2, 3), keepdim=True)).clamp_min(0)
    mass = weights.sum((2, 3))
    sides = []
    divisor = mass.clamp_min(torch.finfo(mass.dtype).tiny)[..., None]
    for axis in (3, 2):
        along = weights.sum(5 - axis) / divisor  # [B, E, extent]
        centres = _centres(maps.shape[axis], cell, maps)
        # Not a matrix product, which autocast would compute in half precision.
        mean = (along * centres).sum(-1)
        variance = (along * (centres - mean[..., None]).square()).sum(-1)
        half = (3 * (variance + (reach * cell) ** 2 / 12)).sqrt()
        sides.append((mean - half, mean + half))
    (left, right), (top, bottom) = sides
    return torch.stack([left, top, right, bottom], -1) * (mass > 0)[..., None]


def _centres(extent: int, cell: float, like: Tensor) -> Tensor:
    """The centres of cells side by side, in pixels, (extent,)."""
    places = torch.arange(extent, dtype=like.dtype, device=like.device)
    return cell * (places + 0.5)


def box_iou(first: Tensor, second: Tensor) -> Tensor:
    """Return the intersection over union of pairs of boxes (..., 4): (...), in float32
    at least; 0 where both are empty.

    Args:
        first: left, top, right, bottom.
        second: likewise; the shapes broadcast.
    """
    dtype = compute_dtype(first, second)
    first, second = first.to(dtype), second.to(dtype)
    low = torch.maximum(first[..., :2], second[..., :2])
    high = torch.minimum(first[..., 2:], second[..., 2:])
    common = (high - low).clamp_min(0).prod(-1)
    union = box_area(first) + box_area(second) - common
    return torch.where(union > 0, common / torch.where(union > 0, union, 1.0), 0.0)


def box_area(boxes: Tensor) -> Tensor:
    """Return areas (...) of boxes (..., 4), in float32 at least; 0 of one whose sides
    are in the wrong order.
    """
    boxes = boxes.to(compute_dtype(boxes))
    return (boxes[..., 2:] - boxes[..., :2]).clamp_min(0).prod(-1)


_FAINT = 0.02
"""The least value of a place that counts, as a share of the largest one of its map: of
two things of a class, one may be much fainter than the other.
"""


class Thing(NamedTuple):
    """One of the things in an image.

    Args:
        label: its class.
        activation: the activation of its capsule.
        box: left, top, right, bottom in pixels of the image, (4,).
        pose: the pose of its capsule, whose last four numbers are the box; None where
            there is no capsule for it alone.

    Example:
        >>> network = tc.models.SceneCapsNet(
        ...     (1, 48, 48), classes=10, channels=(8, 8, 16)
        ... )
        >>> [thing.label for thing in network.things_of(torch.zeros(1, 1, 48, 48))[0]]
        []
    """

    label: int
    activation: float
    box: Tensor
    pose: Tensor | None = None


def _indices(maps: Tensor) -> Tensor:
    """The flat index of each cell, int64 (B, E, H', W')."""
    return torch.arange(maps.numel(), device=maps.device).view(maps.shape)


def _components(inked: Tensor) -> Tensor:
    """Label the connected components of maps, bool (B, E, H', W'), corners included, by
    the last flat index of each, int64; -1 for cells that are False.
    """
    # Pooling takes floating-point numbers. Within a map, float32 counts up to 2^24 cells.
    rows, columns = inked.shape[2:]
    cells = torch.arange(rows * columns, device=inked.device).view(rows, columns)
    numbers = cells.float().where(inked, -1.0)
    while True:
        spread = F.max_pool2d(numbers, 3, 1, 1).where(inked, -1.0)
        if torch.equal(spread, numbers):
            first = _indices(inked)[..., :1, :1]
            return (numbers.long() + first).where(inked, -1)
        numbers = spread


def _agreeing(weights: Tensor, votes: Tensor, overlap: float) -> Tensor:
    """Places grouped by the boxes that they vote for, int64 (B, E, H', W'): each has
    the flat index of its leader.

    The leader is the place whose box most of the weight votes for, its group all that
    vote for nearly the same; then the next, of what is left. -1 where the weight (B, E,
    H', W') is 0.
    """
    mass = weights.flatten(2)
    alike = box_iou(votes[:, :, None], votes[:, None]) > overlap  # [B, I, I]
    first = (
        torch.arange(mass[..., 0].numel(), device=mass.device).view(mass.shape[:2])
        * mass.shape[2]
    )
    group = torch.full_like(mass, -1, dtype=torch.int64)
    while (mass > 0).any():
        voted = mass @ alike.to(mass.dtype)
        leader = voted.where(mass > 0, -1.0).argmax(-1)  # [B, E]
        mine = (mass > 0) & alike.take_along_dim(leader[..., None], 1)
        # An empty box is unlike itself.
        mine.scatter_(2, leader[..., None], mass.gather(2, leader[..., None]) > 0)
        group = torch.where(mine, (first + leader)[..., None], group)
        mass = mass.where(~mine, 0.0)
    return group.view(weights.shape)


@settings
class _SceneNetwork(ImageClassifier):
    """The features that both networks have, and what both can say: what is there, and
    where.
    """

    any_size = True

    image_shape: tuple[int, int, int] = (1, 96, 96)
    classes: int = 10
    channels: Sizes = (24, 48, 96)
    _: KW_ONLY
    cut: ProperShare = 0.2
    reach: Positive = 1.0

    def __post_init__(self) -> None:
        """Convolutions that halve the grid, each behind the first with a residual
        block, batch normalisation, ReLU.
        """
        self.features = nn.Sequential()
        before = self.image_shape[0]
        for stage, width in enumerate(self.channels):
            # An even kernel's outputs tile the image: cell k covers [k, k + 1] times
            # the stride.
            halving = nn.Conv2d(before, width, 4, 2, padding=1, bias=False)
            self.features.extend([halving, EarlyBatchNorm2d(width), nn.ReLU()])
            if stage:
                self.features.append(Residual(width, width))
            before = width

    @property
    def cell(self) -> int:
        """Side of a cell of the maps, in pixels."""
        return 2 ** len(self.channels)

    def _features_of(self, images: Tensor) -> Tensor:
        """The features (B, C', H', W') of images, padded with black rows and columns to
        whole cells.
        """
        self._check(images)
        below, beside = (-extent % self.cell for extent in images.shape[2:])
        return self.features(F.pad(images, (0, beside, 0, below)))

    def _cut(self, maps: Tensor) -> Tensor:
        return maps > self.cut * maps.amax((2, 3), keepdim=True)

    @torch.no_grad()
    def parts_of(self, images: Tensor) -> Tensor:
        """How many connected parts the map of each class has, cut as for boxes: int64
        (B, E).
        """
        components = _components(self._cut(self.maps_of(images)))
        # Each component has the index of one of its cells.
        return (components == _indices(components)).sum((2, 3))

    @abstractmethod
    def maps_of(self, images: Tensor) -> Tensor:
        """How much of each place of images (B, C, H, W) belongs to each class: (B, E,
        H', W'), 0 or more.
        """


class _PlacedCaps(CapsLinear):
    """Class capsules whose poses end with a box."""

    def forward(
        self,
        children: Capsules | Tensor,
        mask: Tensor | None = None,
        *,
        initial: Routed | None = None,
        locate: Callable[[Routed], Tensor] | None = None,
    ) -> Capsules:
        """As the layer does; ``locate`` finds the boxes (B, J, 4) of what was
        routed.
        """
        if locate is None:
            return super().forward(children, mask, initial=initial)
        routed = self.route(children, mask, initial=initial)
        capsules = self.parents(routed, children)
        with full_precision(capsules.pose):
            box = locate(routed)
        return Capsules(
            torch.cat([capsules.pose, box.to(capsules.pose.dtype)], -1),
            capsules.activation,
        )


@register_model(
    "scene_capsnet",
    "fully convolutional, transforms shared by all places: which classes are where",
)
@settings
class SceneCapsNet(_SceneNetwork, CapsuleClassifier):
    r"""A child at each place votes for what is there; class capsules say which classes
    are there, and where.

    The transforms are shared by all places, so that images of any size do, and a child
    may go to no class. What the assignment R leaves of the children's activations a
    says where a class is,

    .. math:: m_{ij} = a_i \max(0, R_{ij} - R_{i0}), \quad R_{i0} = 1 - \textstyle\sum_j R_{ij},

    at the places that belong to it rather than to none: :meth:`maps_of`. A class
    capsule's pose is what it looks like, ``pose_dim`` numbers of the routing, and where
    it is, a box: left, top, right, bottom, in pixels.

    - Trained on labels alone, the box is that of :func:`boxes_of_maps`.
    - With ``boxes``, each child also votes for the box of what it is a part of, by its
      distances from the four sides, and a class's box is the mean of its children's,
      weighted by m. This takes the task ``detection`` to learn. Several things of a
      class are clusters of these votes: :meth:`things_of`.

    Args:
        image_shape: (C, H, W) of the images; other heights and widths work too.
        classes: number of classes.
        channels: the channels of the stages, each of which halves the grid.
        child_dim: dimension of the children's poses.
        pose_dim: dimension of what a class capsule looks like.
        boxes: whether children vote for boxes.
        cut: see :func:`boxes_of_maps`.
        reach: likewise.
        overlap: least IoU of the boxes that places of one thing vote for; None: a thing
            is a connected part of a map.
        routing: any routing; default: dynamic routing in 3 steps, without accumulation,
            with a leak class.

    Raises:
        ValueError: if ``cut`` is not in [0, 1), or ``reach`` not above 0.

    Source: after Su Jianlin 2018, kexue.fm/archives/4819 and 5112 (shared transforms,
    trained on one digit and tested on several); leaks: the code released with Sabour,
    Frosst & Hinton 2017; distances from the sides: Tian et al. 2019, "FCOS: Fully
    Convolutional One-Stage Object Detection", section 3.1.

    Example:
        >>> network = tc.models.SceneCapsNet(
        ...     (1, 48, 48), classes=10, channels=(8, 8, 16)
        ... )
        >>> network(torch.rand(2, 1, 64, 96)).boxes.shape
        torch.Size([2, 10, 4])
        >>> network.maps_of(torch.rand(2, 1, 64, 96)).shape
        torch.Size([2, 10, 8, 12])
    """

    child_dim: Size = 32
    pose_dim: Size = 16
    boxes: bool = False
    _: KW_ONLY
    overlap: ProperShare | None = 0.3
    routing: InitVar[Routing | None] = None

    def __post_init__(self, routing: Routing | None) -> None:
        super().__post_init__()
        self.what = nn.Conv2d(self.channels[-1], self.child_dim, 1)
        self.sides = nn.Conv2d(self.channels[-1], 4, 1) if self.boxes else None
        self.decoder = None
        routing = routing or DynamicRouting(accumulate=False, leaky=True, squash="half")
        # With small transforms the votes of a hundred places do not add up to saturated
        # capsules at the start.
        self.class_caps = _PlacedCaps(
            None,
            self.classes,
            self.child_dim,
            self.pose_dim,
            transforms="shared",
            routing=routing,
            init_std=0.02,
        )

    def children_of(self, images: Tensor) -> Capsules:
        """Return what each place looks like: poses (B, H', W', child_dim)."""
        return self._children(self._features_of(images))

    def _children(self, features: Tensor) -> Capsules:
        pose = self.what(features).relu().movedim(1, -1)
        return Capsules(pose, length(pose))

    def encode(self, images: Tensor) -> Capsules:
        """Return the class capsules, poses (B, E, pose_dim + 4) that end with the box."""
        return self._classes_and_places(images)[0]

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """Class capsules, the box of each class, and what each place says."""
        capsules, places = self._classes_and_places(images)
        boxes = capsules.pose[..., -4:]
        return Prediction(capsules.activation, capsules, boxes=boxes, places=places)

    def _classes_and_places(self, images: Tensor) -> tuple[Capsules, Places]:
        features = self._features_of(images)
        children = self._children(features)
        places_found: list[Places] = []

        def locate(routed: Routed) -> Tensor:
            places_found.append(
                self._places(children, self._maps(routed, children), features)
            )
            return self._boxes(places_found[0].maps, places_found[0].boxes)

        return self.class_caps(children, locate=locate), places_found[0]

    def alone(self, places: Places, image: Tensor, there: Tensor) -> Capsules:
        """Return the class capsules of some children alone, such as those of one thing:
        poses (N, E, pose_dim + 4).

        Args:
            places: the places of images.
            image: whose children, (N,).
            there: which of them, bool (N, H', W').
        """
        pose, activation = places.children
        mine = Capsules(pose[image] * there[..., None], activation[image] * there)
        votes = None if places.boxes is None else places.boxes[image]
        return self.class_caps(
            mine, there, locate=lambda own: self._boxes(self._maps(own, mine), votes)
        )

    def maps_of(self, images: Tensor) -> Tensor:
        """Return how active the children of each class are: (B, E, H', W')."""
        children = self.children_of(images)
        return self._maps(self.class_caps.route(children), children)

    @torch.no_grad()
    def things_of(self, images: Tensor, least: float = 0.5) -> list[list[Thing]]:
        """Return what is in each image, several things of a class among them, the most
        active first.

        The map of a class is cut as for boxes, at ``cut`` of its largest value: each
        connected part of what is left is a thing. With ``boxes``, places that vote for
        the same box are, so that things may touch; those above 2 % of the map's largest
        value count. A thing's capsule, and so its activation, pose and box, is routed
        from the children there alone.

        Args:
            images: (B, C, H, W).
            least: classes with a larger activation are there; so are their things, or
                else the most active one.
        """
        capsules, places = self._classes_and_places(images)
        return self.things_in(
            Prediction(capsules.activation, capsules, places=places), least
        )

    @torch.no_grad()
    def things_in(
        self, prediction: Prediction, least: float = 0.5
    ) -> list[list[Thing]]:
        """Return the same for images that the network has looked at."""
        assert prediction.places is not None
        places = prediction.places
        present = (prediction.activation > least)[..., None, None]
        if self.overlap is None or places.boxes is None:
            groups = _components(self._cut(places.maps) & present)
        else:
            counts = places.maps > _FAINT * places.maps.amax((2, 3), keepdim=True)
            groups = _agreeing(
                places.maps * (counts & present), places.boxes, self.overlap
            )
        numbers = groups[groups >= 0].unique()
        image, label, *_ = torch.unravel_index(numbers, groups.shape)
        mine = groups[image, label] == numbers[:, None, None]  # [things, H', W']
        parts = self.alone(places, image, mine)
        pose, activation = (
            part[torch.arange(len(label)), label].float().cpu() for part in parts
        )
        things: list[list[Thing]] = [[] for _ in places.maps]
        for place in activation.argsort(descending=True).tolist():
            thing = Thing(
                int(label[place]),
                activation[place].item(),
                pose[place, -4:],
                pose[place],
            )
            things_of_image = things[int(image[place])]
            if thing.activation > least or all(
                other.label != thing.label for other in things_of_image
            ):
                things_of_image.append(thing)
        return things

    @staticmethod
    def _maps(routed: Routed, children: Capsules) -> Tensor:
        share = routed.votes.assignment(routed.similarity)  # [B, I, E]
        leak = (1 - share.sum(-1, keepdim=True)).clamp_min(0)
        active = children.activation.to(share.dtype)
        return (share - leak).clamp_min(0).mT.unflatten(2, active.shape[1:]) * active[
            :, None
        ]

    def _boxes(self, maps: Tensor, votes: Tensor | None = None) -> Tensor:
        if votes is None:
            return boxes_of_maps(maps.detach(), self.cell, self.cut, self.reach)
        weights = maps.flatten(2)
        mass = weights.sum(2, keepdim=True)
        return torch.where(
            mass > 0, weights @ votes / torch.where(mass > 0, mass, 1.0), 0.0
        )

    def _places(self, children: Capsules, maps: Tensor, features: Tensor) -> Places:
        rows, columns = (_centres(extent, self.cell, maps) for extent in maps.shape[2:])
        pairs = torch.cartesian_prod(rows, columns).flip(1)
        centres = pairs.expand(maps.shape[0], -1, -1)  # [B, I, 2]
        if self.sides is None:
            return Places(children, maps, None, centres)
        logs = self.sides(features.to(self.sides.weight.dtype))
        # The distances of the sides, left, top, right, bottom, from each place.
        sides = logs.to(compute_dtype(logs)).clamp(-6, 6).exp() * (2 * self.cell)
        before, behind = sides.flatten(2).mT.split(2, -1)
        return Places(
            children, maps, torch.cat([centres - before, centres + behind], -1), centres
        )


@register_model(
    "scene_cnn",
    "Zhou et al. 2016: the same features, class-activation maps; the baseline",
)
@settings
class SceneTwin(_SceneNetwork):
    """The features of :class:`SceneCapsNet`, a score of each class at each place, their
    mean, a sigmoid.

    Where a class is follows from its class-activation map, the positive part of its
    scores, by :func:`boxes_of_maps`.

    Args:
        image_shape: (C, H, W) of the images; other heights and widths work too.
        classes: number of classes.
        channels: the channels of the stages, each of which halves the grid.
        cut: see :func:`boxes_of_maps`.
        reach: likewise.

    Raises:
        ValueError: if ``cut`` is not in [0, 1), or ``reach`` not above 0.

    Source: Zhou, Khosla, Lapedriza, Oliva & Torralba 2016, "Learning Deep Features for
    Discriminative Localization".

    Example:
        >>> network = tc.models.SceneTwin((1, 48, 48), classes=10, channels=(8, 8, 16))
        >>> network(torch.rand(2, 1, 64, 96)).boxes.shape
        torch.Size([2, 10, 4])
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scores = nn.Conv2d(self.channels[-1], self.classes, 1, bias=False)
        self.bias = nn.Parameter(torch.zeros(self.classes))

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """Return the probability of each class, and its box."""
        scores = self._scores(images)
        maps = scores.detach().relu()
        boxes = boxes_of_maps(maps, self.cell, self.cut, self.reach)
        activation = (scores.mean((2, 3)) + self.bias).sigmoid()
        return Prediction(activation.to(self.bias.dtype), boxes=boxes)

    def maps_of(self, images: Tensor) -> Tensor:
        """Return the class-activation maps, (B, E, H', W')."""
        return self._scores(images).relu()

    def _scores(self, images: Tensor) -> Tensor:
        scores = self.scores(self._features_of(images))
        return scores.to(compute_dtype(scores))
