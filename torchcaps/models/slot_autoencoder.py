"""Objects without labels: slots of an image, each of which draws its part of it
(Locatello et al. 2020).
"""

import copy
import math
from abc import abstractmethod
from dataclasses import InitVar
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, normalize

from torchcaps.capsules import Capsules, Prediction, exportable
from torchcaps.layers import CapsLinear, PositionCode, Slots
from torchcaps.layers.pose import fixed_buffer
from torchcaps.models.base import ImageClassifier
from torchcaps.models.registry import register_model
from torchcaps.numerics import Size, compute_dtype, quotient
from torchcaps.routing import Routed, Routing, SlotAttentionRouting
from torchcaps.routing.base import given_routing
from torchcaps.routing.slot_parts import kept_noise
from torchcaps.spec import SuggestsNames, settings

_SCALE = 4
"""Pixels along a side of the image for one place of the grid that slots are drawn from.
"""

_STEPS = 5
"""With gradients through the last step alone, more steps cost little. The article takes
3, with gradients through all of them.
"""

_GREY_LEVEL = 1 / 255
"""Of images in [0, 1]."""

_SAME_PIXELS = 0.7
"""The cosine of two masks from which slots draw the same. From 0.5 to 0.8, validation
images of nuclei and of scenes have the same figures within 3 points.
"""

_LARGEST_MAP = 40
"""Larger images are halved once more before slots see them."""


@exportable
class Drawing(NamedTuple):
    """What each slot draws.

    Args:
        colours: (B, J, C, H, W).
        claims: how strongly it claims each pixel, (B, J, H, W): the logits of the masks.
    """

    colours: Tensor
    claims: Tensor


class SpatialBroadcastDecoder(SuggestsNames, nn.Module):
    r"""Draws each slot by itself: colours, and how much of each pixel it claims.

    The pose of a slot is copied to every place of a coarse grid, a code of the place is
    added, and convolutions make an image of it. The image of all slots is the sum
    :math:`\sum_j m_j c_j` of their colours c with masks m that are the softmax of their
    claims over the slots.

    Args:
        dim: numbers of a pose.
        channels: the channels of the hidden convolutions.
        colours: channels of the image.
        grid_channels: the channels of two convolutions of 5 x 5 places of the coarse
            grid, which let slots draw outlines; None for a decoder without them.

    Shape:
        Poses (B, J, dim) and the height and width of the image to colours (B, J, C, H,
        W) and claims (B, J, H, W).

    Source: Watters et al. 2019, "Spatial Broadcast Decoder"; the masks: Locatello et
    al. 2020, section 3.2. The last convolution draws the four pixels of a square at
    once (Shi et al. 2016).

    Example:
        >>> decoder = tc.models.SpatialBroadcastDecoder(dim=16, channels=8, colours=3)
        >>> colours, claims = decoder(torch.randn(2, 5, 16), 30, 32)
        >>> colours.shape, claims.shape
        (torch.Size([2, 5, 3, 30, 32]), torch.Size([2, 5, 30, 32]))
    """

    def __init__(
        self, dim: int, channels: int, colours: int, grid_channels: int | None = None
    ) -> None:
        super().__init__()
        self.place = PositionCode(dim)
        layers: list[nn.Module] = []
        if grid_channels:
            for before in (dim, grid_channels):
                layers += [nn.Conv2d(before, grid_channels, 5, padding=2), nn.ReLU()]
        before = grid_channels or dim
        layers += [nn.ConvTranspose2d(before, channels, 4, 2, 1), nn.ReLU()]
        if not grid_channels:
            layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(channels, 4 * (colours + 1), 3, padding=1)]
        self.draw = nn.Sequential(*layers, nn.PixelShuffle(2))

    def forward(self, pose: Tensor, height: int, width: int) -> Drawing:
        """Return colours and claims of an image of that size."""
        rows = -(-height // _SCALE)
        columns = -(-width // _SCALE)
        copies = pose.flatten(0, 1)[..., None, None].expand(-1, -1, rows, columns)
        drawn = self.draw(self.place(copies))[..., :height, :width]
        colours, claims = drawn.unflatten(0, pose.shape[:2]).tensor_split([-1], 2)
        return Drawing(colours, claims.squeeze(2))


class SlotNetwork(ImageClassifier):
    """A network whose classes are slots, which have no order: its routing shares out
    features of places of the image, and each slot draws its part.

    Args:
        image_shape: (C, H, W).
        classes: the number of slots, one more than there are objects, or more.

    Attributes:
        slots: the layer of the slots.

    Example:
        >>> network = tc.models.SlotAutoencoder(classes=4)
        >>> isinstance(network, tc.models.SlotNetwork)
        True
        >>> network.route(torch.rand(2, 3, 32, 32)).assignment.shape
        torch.Size([2, 256, 4])
    """

    slots: Slots | CapsLinear

    @property
    def routing(self) -> Routing:
        """Return the routing of the features to the slots."""
        return self.slots.routing

    def _make_slots(self, dim: int, routing: Routing | None, slots: int) -> None:
        """Make the layer of so many slots, of features with as many numbers as a pose."""
        default = SlotAttentionRouting(steps=_STEPS, start="normal", gradient="last")
        routing = given_routing(routing, default)
        if routing.own_transforms:
            self.slots = Slots(slots, dim, features=dim, routing=routing)
        else:
            self.slots = CapsLinear(
                None, slots, dim, dim, transforms="shared", routing=routing
            )

    @abstractmethod
    def features_of(self, images: Tensor) -> Tensor | Capsules:
        """Return the features of places that slots share out, (B, I, dim)."""

    @abstractmethod
    def parts(self, pictures: Tensor, prediction: Prediction) -> Tensor:
        """Return what each slot draws, on grey where it draws nothing, (B, J, C, H, W).

        Args:
            pictures: the images as people see them, (B, C, H, W) in [0, 1].
            prediction: what the network answered to them.
        """

    @abstractmethod
    def drawing(self, prediction: Prediction) -> Tensor:
        """Return what all slots draw together, as pictures (B, C, H, W) in [0, 1]."""

    def route(self, images: Tensor) -> Routed:
        """Route the features of images to the slots."""
        self._check(images)
        features = self.features_of(images)
        initial = self._first_slots(images, features)
        routed: Routed = self.slots.route(features, initial=initial)
        return routed

    def _first_slots(
        self, images: Tensor, features: Tensor | Capsules
    ) -> Routed | None:
        """The slots that routing goes on from; None if it makes them itself."""
        return None

    def with_start_of(self, images: Tensor) -> Self:
        """Return a network with the same weights that starts all images as this one
        starts the first of some.
        """
        return self

    def with_slots(self, slots: int) -> Self:
        """Return a copy of this network with another number of slots, and the same
        weights.

        Raises:
            ValueError: if the slots do not start from one learned Gaussian.
        """
        copy = type(self).from_config({**self.config(), "classes": slots})
        # Before the weights are loaded, which float32 would round.
        copy = copy.to(next(self.parameters())).train(self.training)
        state = self.state_dict()
        fresh = copy.state_dict()
        noise = [name for name in state if name.endswith("first.noise")]
        if not noise:
            raise ValueError(
                f"a {type(self).__name__} has any number of slots only with "
                "start='normal' in its routing"
            )
        for name in noise:
            state[name] = fresh[name]
        copy.load_state_dict(state)
        return copy


def on_grey(pictures: Tensor, masks: Tensor) -> Tensor:
    """Return pictures (B, J, C, H, W) where masks (B, J, H, W) are 1, and grey where
    they are 0.
    """
    grey = torch.full_like(pictures, 0.5)
    return torch.lerp(grey, pictures.clamp(0, 1), masks[:, :, None])


@register_model(
    "slot_autoencoder",
    "after Locatello et al. 2020, made small: slot attention and a decoder that draws "
    "each slot",
)
@register_model(
    "slot_autoencoder_mixture",
    "its twin after Kirilenko et al. 2024: a Gaussian mixture of the features",
    routing={
        "name": "slot_mixture",
        "steps": _STEPS,
        "start": "normal",
        "gradient": "last",
    },
)
@settings
class SlotAutoencoder(SlotNetwork):
    r"""Takes an image apart into slots, and draws it again slot by slot.

    Convolutions make features, which get a code of their place. Slots share them out
    among themselves and a :class:`~torchcaps.models.SpatialBroadcastDecoder` draws each
    slot with its own mask. Trained to draw what it sees, it has no labels: an object
    ends up in a slot because that is the shortest description.

    Its classes are its slots, which have no order. The activation of a slot is the
    largest share that it has of a pixel, so a slot that draws nothing has about 0.

    Args:
        image_shape: (C, H, W).
        classes: the number of slots, one more than there are objects, or more.
        channels: the channels of the convolutions.
        dim: numbers of the pose of a slot.
        grid_channels: those of the decoder, as there; None for a smaller one, whose slots
            draw discs for thousands of updates.
        ground: whether the first slot is the ground, which has the median colour
            :math:`c_1` of each image, learns nothing, and has a pose of zeros. The other
            slots see and draw differences from this colour, and share out places by how
            unlike it they are, :func:`unlike_ground`. Without it, a network spends
            thousands of updates on the colours of the grounds, and slots share the ground
            among themselves. Slots that are not needed then draw an object together with
            others, so in evaluation slots that draw the same are one, :func:`merged_slots`.
        starts: in evaluation slots start from so many draws of their Gaussian, one after
            the other, and those count that draw the image with the least squared error.
            K-Means is started anew for the same reason: two slots that start alike share
            an object, and another object has none. Needs slot attention with
            ``start="normal"``.
        routing: the routing of the features to the slots; one without transforms of its
            own gets one for each slot, as in :class:`~torchcaps.CapsLinear`. Default:
            slot attention in 5 steps, with gradients through the last.

    Source: Locatello et al. 2020, "Object-Centric Learning with Slot Attention".

    Example:
        >>> network = tc.create_model(
        ...     "slot_autoencoder", image_shape=(3, 32, 32), classes=6
        ... )
        >>> prediction = network(torch.rand(2, 3, 32, 32))
        >>> prediction.masks.shape, prediction.capsules.pose.shape
        (torch.Size([2, 6, 32, 32]), torch.Size([2, 6, 48]))
    """

    image_shape: tuple[int, int, int] = (3, 32, 32)
    classes: Size = 6
    channels: Size = 32
    dim: Size = 48
    grid_channels: Size | None = None
    ground: bool = False
    starts: Size = 1
    routing: InitVar[Routing | None] = None

    def __post_init__(self, routing: Routing | None) -> None:
        if self.ground and self.classes < 2:
            raise ValueError(
                f"classes must be at least 2 where one is the ground, got {self.classes}"
            )
        self.features = _encoder(self.image_shape, self.channels, self.dim)
        slots = self.classes - self.ground
        self._make_slots(self.dim, routing, slots)
        self.decoder = SpatialBroadcastDecoder(
            self.dim, self.channels, self.image_shape[0], self.grid_channels
        )
        self.noise: Tensor
        if self.starts > 1:
            normal = getattr(self.routing, "start", None) == "normal"
            if not normal or not self.routing.resumable:
                raise ValueError(
                    "starts may be more than 1 only with slot attention from "
                    f"start='normal', got {self.starts} with {type(self.routing).__name__}"
                )
            sizes = self.starts, slots, self.dim
            like = torch.empty(0, dtype=torch.float32)
            fixed_buffer(self, "noise", like, partial(_noise_of_starts, *sizes))

    def features_of(self, images: Tensor) -> Tensor | Capsules:
        """Return the features of places, with the code of their place, (B, I, dim);
        with a ground also their activations, (B, I).
        """
        return self._features_of(images - self.ground_colour(images))

    def _features_of(self, differences: Tensor) -> Tensor | Capsules:
        features: Tensor = self.features(differences)
        if not self.ground:
            return features
        side = 2 ** _halvings(self.image_shape)
        return Capsules(features, unlike_ground(differences, side))

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """Return the slots of images (B, C, H, W), their masks, and what they draw
        together; ``target`` changes nothing.
        """
        self._check(images)
        colour = self.ground_colour(images)
        features = self._features_of(images - colour)
        initial = self._first_slots(images, features)
        slots: Capsules = self.slots(features, initial=initial)
        prediction = self.drawn(slots.pose.to(images.dtype), colour)
        if self.training:
            return prediction
        assert prediction.colours is not None
        assert prediction.masks is not None
        return prediction._replace(
            assigned=assigned_pixels(images, prediction.colours, prediction.masks)
        )

    def with_start_of(self, images: Tensor) -> Self:
        """Return a network with the same weights that starts all images as this one
        starts the first of some.
        """
        if self.starts == 1:
            return self
        network = copy.deepcopy(self)
        best = self._best_start(images, self.features_of(images))[0]
        routing: Any = network.routing
        network.starts, routing.first.noise = 1, self.noise[best]
        return network

    def _first_slots(
        self, images: Tensor, features: Tensor | Capsules
    ) -> Routed | None:
        if self.training or self.starts == 1:
            return None
        return self._slots_at(self.noise[self._best_start(images, features)], features)

    def _best_start(self, images: Tensor, features: Tensor | Capsules) -> Tensor:
        """The start from which slots draw each image best, int64 (B,)."""
        colour = self.ground_colour(images)
        errors = []
        for noise in self.noise:
            initial = self._slots_at(noise.expand(images.shape[0], -1, -1), features)
            pose = self.slots.route(features, initial=initial).pose
            drawn = self.drawn(pose.to(images.dtype), colour).reconstruction
            assert drawn is not None
            errors.append((drawn - images).square().flatten(1).sum(1))
        return torch.stack(errors).argmin(0)

    def _slots_at(self, noise: Tensor, features: Tensor | Capsules) -> Routed:
        """Slots of some noise, (B, J, dim), that have collected nothing yet."""
        routing: Any = self.routing
        dtype = torch.promote_types(noise.dtype, torch.float32)
        pose = routing.first.at(noise, dtype)
        share = torch.zeros_like(pose[..., 0])
        return Routed(pose, share, self.slots.votes(features), None)

    def ground_colour(self, images: Tensor) -> Tensor:
        """Return the colour that differences are from, (B, C, 1, 1): the median of an
        image, or 0 without a ground.
        """
        if not self.ground:
            return images.new_zeros(*images.shape[:2], 1, 1)
        # Not `median`: on a GPU it is not deterministic.
        pixels = images.flatten(2).sort(2).values
        return pixels[:, :, pixels.shape[2] // 2, None, None]

    def drawn(self, pose: Tensor, colour: Tensor) -> Prediction:
        """Return what slots of these poses, (B, J, dim), draw from a colour (B, C, 1,
        1); the ground is added to them.
        """
        _, height, width = self.image_shape
        differences, claims = self.decoder(pose, height, width)
        if self.ground:
            # It draws no difference, and its claim is 0.
            pose, differences, claims = (
                torch.cat([torch.zeros_like(of_slots[:, :1]), of_slots], 1)
                for of_slots in (pose, differences, claims)
            )
        colours = differences + colour[:, None]
        masks = claims.softmax(1)
        reconstruction = (colours * masks[:, :, None]).sum(1)
        if self.ground and not self.training:
            colours, masks = merged_slots(colours, masks)
        activation = masks.flatten(2).amax(2)
        capsules = Capsules(pose, activation)
        return Prediction(
            activation, capsules, reconstruction, masks=masks, colours=colours
        )

    def parts(self, pictures: Tensor, prediction: Prediction) -> Tensor:
        """Return what each slot draws, on grey elsewhere, (B, J, C, H, W)."""
        assert prediction.colours is not None
        assert prediction.masks is not None
        return on_grey(prediction.colours, prediction.masks)

    def drawing(self, prediction: Prediction) -> Tensor:
        """Return the reconstruction, in [0, 1]."""
        assert prediction.reconstruction is not None
        return prediction.reconstruction.clamp(0, 1)


def _noise_of_starts(
    starts: int, slots: int, size: int, like: Tensor, device: torch.device
) -> Tensor:
    """The noise of several starts, (S, J, H); the first is that of one start."""
    noise = kept_noise(starts * slots, size).unflatten(0, (starts, slots))
    return noise.to(device, like.dtype)


def unlike_ground(differences: Tensor, side: int) -> Tensor:
    r"""Return how unlike the ground the places of images are, as activations in [0, 1]:

    .. math::
        a_i = \frac{d_i^2}{d_i^2 + \frac{1}{4} \operatorname{mean}_k d_k^2 + 1 / 255^2},
        \qquad d_i = \max_{p \in i} |x_p - c_1|

    Args:
        differences: :math:`x - c_1`, of images in [0, 1] from the colour of their ground,
            (B, C, H, W).
        side: the side of the square of pixels p that a place i sees.

    Returns:
        a, (B, I).

    Example:
        >>> from torchcaps.models.slot_autoencoder import unlike_ground
        >>> differences = torch.tensor([[[[0.0, 0.0, 0.5, 0.5]]]])
        >>> unlike_ground(differences, side=2)
        tensor([[0.0000, 0.8888]])
    """
    distance = differences.square().sum(1, keepdim=True)
    energy = max_pool2d(distance, side, ceil_mode=True).flatten(1)
    # An image of one colour has no energy.
    threshold = energy.mean(1, keepdim=True) / 4 + _GREY_LEVEL**2
    return energy / (energy + threshold)


def merged_slots(colours: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return what slots draw, with those that draw the same pixels as one: the first
    of them has their masks together, and the others have none.

    Two slots draw the same if the cosine of their masks is above 0.7. So do those that are
    joined by a chain of such pairs. The first slot, which is the ground, stays by itself.

    Args:
        colours: c, (B, J, C, H, W).
        masks: m, (B, J, H, W).

    Returns:
        The colours, whose means are weighted by the masks, and the masks. Together they
        draw the same image.

    Source: Aydemir, Xie & Guney 2023, "Self-supervised Object-Centric Learning for
    Videos", merge slots by their poses.

    Example:
        >>> from torchcaps.models.slot_autoencoder import merged_slots
        >>> colours, masks = merged_slots(
        ...     torch.rand(1, 3, 3, 8, 8), torch.full((1, 3, 8, 8), 1 / 3)
        ... )
        >>> masks[0, :, 0, 0]
        tensor([0.3333, 0.6667, 0.0000])
    """
    dtype = masks.dtype
    # A quotient by a mask below 0.01 would be 0 in float16.
    colours, masks = (tensor.to(compute_dtype(tensor)) for tensor in (colours, masks))
    # In a trace, a size is a tensor.
    J = int(masks.shape[1])
    directions = normalize(masks.flatten(2), dim=2)
    slot = torch.arange(J, device=masks.device)
    objects = (slot > 0) & (slot[:, None] > 0) | (slot == slot[:, None])
    joined = (directions @ directions.mT > _SAME_PIXELS) & objects  # [B, J, J]
    # Chains of 2, 4, 8, ... pairs.
    for _ in range((J - 1).bit_length()):
        joined = joined.to(masks) @ joined.to(masks) > 0
    # Not `one_hot`, which `vmap` does not take, (B, J, J).
    first = (joined.int().argmax(2)[..., None] == slot).to(masks)
    together = torch.einsum("bjk,bjhw->bkhw", first, masks)
    sums = torch.einsum("bjk,bjchw->bkchw", first, colours * masks[:, :, None])
    whole = together[:, :, None]
    colours = torch.where(whole > 0, quotient(sums, whole), colours)
    return colours.to(dtype), together.to(dtype)


def assigned_pixels(images: Tensor, colours: Tensor, masks: Tensor) -> Tensor:
    r"""Return how much of each pixel belongs to each slot, given the image: an E-step,
    in which the masks are the shares of a mixture, and the colours its means.

    .. math::
        R_{jp} = \operatorname{softmax}_j \Big( \log m_{jp} -
        \frac{|x_p - c_{jp}|^2}{2 \sigma^2} \Big), \qquad
        \sigma^2 = \frac{1}{C H W} \sum_p \Big| x_p - \sum_j m_{jp} c_{jp} \Big|^2

    The masks alone are smooth. At the edge of an object the colour of a pixel says
    which slot it belongs to.

    Args:
        images: x, (B, C, H, W) in [0, 1].
        colours: c, what each slot draws, (B, J, C, H, W).
        masks: m, how much of each pixel it draws, (B, J, H, W).

    Returns:
        R, (B, J, H, W), which sums to 1 over the slots.

    Source: Greff, van Steenkiste & Schmidhuber 2017, "Neural Expectation
    Maximization", the E-step; with :math:`\sigma` estimated for each image, not below
    a grey level.

    Example:
        >>> from torchcaps.models.slot_autoencoder import assigned_pixels
        >>> images, masks = torch.rand(2, 3, 8, 8), torch.rand(2, 4, 8, 8).softmax(1)
        >>> assigned_pixels(images, torch.rand(2, 4, 3, 8, 8), masks).shape
        torch.Size([2, 4, 8, 8])
    """
    dtype = masks.dtype
    # A single wrong pixel of a large image may be infinitely far off in float16.
    images, colours, masks = (
        tensor.to(compute_dtype(tensor)) for tensor in (images, colours, masks)
    )
    drawn = (colours * masks[:, :, None]).sum(1)
    variance = (images - drawn).square().mean((1, 2, 3), keepdim=True)
    distance = (images[:, None] - colours).square().sum(2)
    log_mask = masks.clamp_min(torch.finfo(masks.dtype).tiny).log()
    similarity = log_mask - distance / (2 * variance.clamp_min(_GREY_LEVEL**2))
    return similarity.softmax(1).to(dtype)


class _Rows(nn.Module):
    """Maps (B, C, H, W) as rows (B, H W, C)."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.flatten(2).mT


def _halvings(image_shape: tuple[int, int, int]) -> int:
    """Count how often an image is halved before slots see it."""
    side = max(image_shape[1:])
    return max(1, math.ceil(math.log2(side / _LARGEST_MAP)) + 1)


def _encoder(
    image_shape: tuple[int, int, int], channels: int, dim: int
) -> nn.Sequential:
    """Make a network from images to features with the code of their place, (B, I, dim)."""
    layers: list[nn.Module] = []
    before = image_shape[0]
    for _ in range(_halvings(image_shape)):
        layers += [nn.Conv2d(before, channels, 5, stride=2, padding=2), nn.ReLU()]
        before = channels
    for _ in range(2):
        layers += [nn.Conv2d(channels, channels, 5, padding=2), nn.ReLU()]
    mlp = [nn.LayerNorm(channels), nn.Linear(channels, dim), nn.ReLU()]
    rows = [PositionCode(channels), _Rows(), *mlp, nn.Linear(dim, dim)]
    return nn.Sequential(*layers, *rows)
