"""Slots that have a place: each attends near it, moves to what it attended to, and draws
a mask around it. They find bright, compact things on a dark ground, where slots without
a place stay alike.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.capsules import Capsules, Prediction
from torchcaps.models import ImageClassifier, register_model
from torchcaps.numerics import Size
from torchcaps.spec import settings

_STEPS = 3
_PATCH = 2
"""Pixels along a side of the image for one place of the grid that slots are drawn on."""

_INVERSE_TEMPERATURE = 3.0
_NEAR = 75.0
"""How much a squared distance in the image, which is 2 wide, lowers a logit."""

_APART = {True: 0.25, False: 0.4}
"""How far apart slots start, in training and in evaluation."""

_LEAST_SPREAD = 0.05
_GAUSSIAN = 0.3
"""Weight of the Gaussian around a slot in the logits of its mask."""

_LEAST_WEIGHT = 0.01
"""Of a place that is as dark as the ground, where the mean place has 1."""


def place_code(places: Tensor, centre: Tensor, spread: Tensor) -> Tensor:
    """Where places lie, seen from each slot and in the image, (B, J, I, 10).

    Args:
        places: (I, 2), in [-1, 1].
        centre: of each slot, (B, J, 2).
        spread: of each slot, (B, J, 1).
    """
    relative = (places - centre[:, :, None]) / spread[:, :, None]
    relative = relative.clamp(-4, 4)
    waves = [(math.pi * places).sin(), (math.pi * places).cos()]
    absolute = torch.cat([places, *waves], -1).expand(*relative.shape[:2], -1, -1)
    return torch.cat([relative, relative.square() / 4, absolute], -1)


def bright_places(
    places: Tensor, weight: Tensor, draws: Tensor, apart: float
) -> Tensor:
    """Bright places far from each other, drawn one after the other, (B, J, 2).

    Args:
        places: (I, 2).
        weight: of each place, (B, I).
        draws: a number in [0, 1) for each of them, (B, J).
        apart: the distance at which a place is hardly less likely than without the
            others.

    Source: Arthur & Vassilvitskii 2007, "k-means++", with a bounded distance.
    """
    likely = weight.square()
    centres: list[Tensor] = []
    for draw in draws.unbind(1):
        cumulated = likely.cumsum(1)  # [B, I]
        below = cumulated <= draw[:, None] * cumulated[:, -1:]
        drawn = places[below.sum(1).clamp_max(len(places) - 1)][:, None]  # [B, 1, 2]
        centres.append(drawn)
        distance = (places - drawn).square().sum(-1)  # [B, I]
        far = 1 - (-distance / (2 * apart**2)).exp()
        likely = likely * far.square() + torch.finfo(likely.dtype).tiny
    return torch.cat(centres, 1)


@register_model(
    "placed_slots",
    "slots with a place and a spread, and one for the ground, for bright things on dark",
)
@settings
class PlacedSlots(ImageClassifier):
    r"""Takes bright things on a dark ground apart.

    Slots start at bright places far from each other. In each step a slot attends to the
    features near its centre c, and its centre moves to what it attended to:

    .. math::
        R_{ij} = \operatorname{softmax}_j \big( \beta \langle k_i, q_j \rangle / \sqrt{D}
        - \nu |p_i - c_j|^2 \big), \qquad
        c_j = \frac{\sum_i w_i R_{ij} p_i}{\sum_i w_i R_{ij}}

    where p are places and w how much brighter or darker than the ground they are. A slot
    is drawn in the mean brightness that it attended to, so that only its mask can carry
    its form. The first slot is the ground, which has the median of the picture.

    Args:
        image_shape: (C, H, W); the height and the width are even.
        classes: the number of slots, with that of the ground.
        channels: the channels of the convolutions.
        dim: D, numbers of the pose of a slot.

    Source: frames of places as in Biza et al. 2023, "Invariant Slot Attention"; slots
    are those of Locatello et al. 2020.
    """

    image_shape: tuple[int, int, int] = (1, 64, 64)
    classes: Size = 9
    channels: Size = 32
    dim: Size = 48

    def __post_init__(self) -> None:
        channels, dim = self.channels, self.dim
        layers: list[nn.Module] = []
        before = 1
        for kernel_size, stride in ((5, 2), (3, 1), (3, 1)):
            padding = kernel_size // 2
            layers.append(nn.Conv2d(before, channels, kernel_size, stride, padding))
            layers.append(nn.ReLU())
            before = channels
        self.features = nn.Sequential(*layers)
        self.place = nn.Linear(4, channels)
        self.key_value = nn.Sequential(
            nn.LayerNorm(channels),
            nn.Linear(channels, dim),
            nn.ReLU(),
            nn.Linear(dim, dim),
            nn.LayerNorm(dim),
            nn.Linear(dim, 2 * dim, bias=False),
        )
        self.query = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim, bias=False))
        self.mean = nn.Parameter(0.1 * torch.randn(dim))
        self.log_deviation = nn.Parameter(torch.zeros(dim))
        self.gru = nn.GRUCell(dim, dim)
        self.update = nn.Sequential(
            nn.LayerNorm(dim),
            nn.Linear(dim, 2 * dim),
            nn.ReLU(),
            nn.Linear(2 * dim, dim),
        )
        self.of_slot = nn.Linear(dim, channels)
        self.of_place = nn.Linear(10, channels, bias=False)
        self.draw = nn.Sequential(
            nn.ReLU(),
            nn.Linear(channels, channels),
            nn.ReLU(),
            nn.Linear(channels, channels),
            nn.ReLU(),
            nn.Linear(channels, _PATCH**2),
        )
        self.ground = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """The slots of images (B, C, H, W), their masks, and what they draw together;
        ``target`` changes nothing.
        """
        self._check(images)
        B, _, height, width = images.shape
        slots = self.classes - 1
        brightness = images.mean(1, keepdim=True)  # [B, 1, H, W]
        median = brightness.flatten(1).median(1).values[:, None]  # [B, 1]
        deviation = brightness.flatten(1).std(1, keepdim=True).clamp_min(1 / 255)
        standard = (brightness - median[..., None, None]) / deviation[..., None, None]
        seen = F.avg_pool2d(brightness, 2).flatten(1)  # [B, I]
        weight = (seen - median).abs()
        weight = weight / weight.mean(1, keepdim=True).clamp_min(1e-6) + _LEAST_WEIGHT

        places = _grid(height // 2, width // 2, images)  # [I, 2]
        code = self.place(torch.cat([places, places.square()], -1))  # [I, C]
        features = self.features(standard).flatten(2).mT + code
        key, value = self.key_value(features).chunk(2, -1)  # [B, I, D]

        draws, noise = self._starts(images)
        centre = bright_places(places, weight, draws, _APART[self.training])
        pose = self.mean + self.log_deviation.exp() * noise  # [B, J, D]
        scale = _INVERSE_TEMPERATURE / math.sqrt(self.dim)
        for _ in range(_STEPS):
            distance = (places[:, None] - centre[:, None]).square().sum(-1)
            logits = scale * key @ self.query(pose).mT - _NEAR * distance  # [B, I, J]
            share = logits.softmax(-1) * weight[..., None]
            share = share / share.sum(1, keepdim=True).clamp_min(1e-8)
            centre = share.mT @ places
            # The same cell updates each slot of each image.
            attended = (share.mT @ value).flatten(0, 1)
            pose = self.gru(attended, pose.flatten(0, 1)).unflatten(0, (B, slots))
            pose = pose + self.update(pose)

        second = (share.mT @ places.square() - centre.square()).clamp_min(0)
        variance = second.sum(-1, keepdim=True)
        spread = (variance + _LEAST_SPREAD**2).sqrt()  # [B, J, 1]
        colours = (share.mT @ seen[..., None]).squeeze(-1)  # [B, J]
        colours = torch.cat([median, colours], 1)
        masks = self._masks(pose, centre, spread)
        drawn = torch.einsum("bj,bjhw->bhw", colours, masks)[:, None]
        activation = masks.flatten(2).amax(2)
        # The ground has no pose of its own.
        poses = torch.cat([torch.zeros_like(pose[:, :1]), pose], 1)
        return Prediction(
            activation,
            Capsules(poses, activation),
            drawn.expand_as(images),
            masks=masks,
        )

    def _starts(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Random numbers that slots start from: uniform ones, (B, J), and normal ones,
        (B, J, D). In evaluation they are the same for every image.
        """
        shape = (self.classes - 1, self.dim)
        if self.training:
            draws = torch.rand(len(images), shape[0])
            noise = torch.randn(len(images), *shape)
        else:
            generator = torch.Generator().manual_seed(0)
            draws = torch.rand(shape[:1], generator=generator).expand(len(images), -1)
            noise = torch.randn(shape, generator=generator).expand(len(images), -1, -1)
        return draws.to(images), noise.to(images)

    def _masks(self, pose: Tensor, centre: Tensor, spread: Tensor) -> Tensor:
        """How much of each pixel the ground and each slot claim, (B, J + 1, H, W)."""
        _, height, width = self.image_shape
        B, J, _ = pose.shape
        places = _grid(height // _PATCH, width // _PATCH, pose)
        code = self.of_place(place_code(places, centre, spread))
        patches = self.draw(self.of_slot(pose)[:, :, None] + code)  # [B, J, I, 4]
        maps = patches.mT.unflatten(-1, (height // _PATCH, width // _PATCH))
        claims = F.pixel_shuffle(maps.flatten(0, 1), _PATCH).view(B, J, height, width)
        pixels = _grid(height, width, pose).view(height, width, 2)
        away = (pixels - centre[:, :, None, None]) / spread[:, :, None, None]
        claims = claims - _GAUSSIAN * away.square().sum(-1).clamp_max(16)
        ground = self.ground.expand(B, 1, height, width)
        return torch.cat([ground, claims], 1).softmax(1)


def _grid(rows: int, columns: int, like: Tensor) -> Tensor:
    """The row and the column of the middle of each place, in [-1, 1], (rows * columns, 2)."""
    middles = [(2 * torch.arange(side) + 1) / side - 1 for side in (rows, columns)]
    return (
        torch.stack(torch.meshgrid(*middles, indexing="ij"), -1).flatten(0, 1).to(like)
    )
