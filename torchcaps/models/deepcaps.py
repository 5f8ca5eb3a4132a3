"""DeepCaps (Rajasegaran et al. 2019)."""

import math
from dataclasses import InitVar, dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.capsules import Capsules
from torchcaps.layers import CapsLinear, DecoderInput
from torchcaps.models.base import CapsuleClassifier, same_padded
from torchcaps.models.initial import cut_normal, glorot, he_deviation
from torchcaps.models.registry import register_model
from torchcaps.numerics import AnySizes, NotNegative, Size, Sizes, ThreeSizes, product
from torchcaps.ops import Competition, InnerProduct, Votes, VoteSource
from torchcaps.ops.similarity import Similarity
from torchcaps.routing import DynamicRouting, Routing
from torchcaps.routing.base import Steps
from torchcaps.routing.batch_norm import EarlyBatchNorm2d
from torchcaps.spec import SuggestsNames, settings
from torchcaps.squashing import length, squash


@register_model(
    "deepcaps",
    "Rajasegaran et al. 2019 for images of 28 x 28: 8.44 M parameters, 8.50 M with "
    "the decoder",
)
@settings
class DeepCaps(CapsuleClassifier):
    """Four cells of convolutional capsules with a skip connection each, 3-D routing in
    the last, and class capsules.

    A convolution with ReLU and batch normalisation, then cells: a convolution of stride
    2, two more, and beside these two another one, whose capsules are added. In the last
    cell the one beside is :class:`CapsConvShared`, with routing; all others are
    convolutions whose channels are squashed as capsules. The capsules of the last two
    cells together are the children of the class capsules. The decoder is told only the
    pose of one class, not which class it is.

    Args:
        image_shape: (C, H, W) of the images.
        classes: number of classes.
        channels: the channels of the first convolution.
        types: types of capsules in each cell.
        dims: the dims of the poses, one a cell.
        pose_dim: dimension of the class capsules' poses.
        steps: the number of steps of the 3-D routing.
        routing: the routing of the class capsules, any; default: dynamic routing in 3
            steps with a bias.
        decoder_channels: the channels of the decoder, see :class:`TransposedDecoder`;
            None for no decoder. The released code has (64, 32, 16, 8) for images of 64
            x 64, to which it enlarges CIFAR-10's.
        decoder_input: what the decoder is told of the class that it draws, see
            :class:`~torchcaps.layers.PoseInput`.
        pose_noise: deviation of the noise on the pose that the decoder is given in
            training.

    Source: Rajasegaran, Jayasundara, Jayasekara, Jayasekara, Seneviratne & Rodrigo
    2019, "DeepCaps: Going Deeper with Capsule Networks", section 3, and the code
    released with it (``DeepCapsNet28``; brjathu/deepcaps), which has the initial
    weights and the padding too. Its 3-D routing reshapes (H, W, types, dim) to (types
    dim, H, W) without moving the axes; here the axes are moved, as the paper has it.

    Example:
        >>> network = tc.models.DeepCaps((1, 16, 16), classes=10, channels=16, types=4)
        >>> network(torch.rand(2, 1, 16, 16)).activation.shape
        torch.Size([2, 10])
    """

    image_shape: tuple[int, int, int] = (1, 28, 28)
    classes: int = 10
    channels: Size = 128
    types: Size = 32
    dims: Sizes = (4, 8, 8, 8)
    pose_dim: Size = 32
    steps: Steps = 3
    routing: InitVar[Routing | None] = None
    decoder_channels: AnySizes | None = (64, 32, 16)
    decoder_input: DecoderInput = "pose"
    pose_noise: NotNegative = 0.0

    def __post_init__(self, routing: Routing | None) -> None:
        if len(self.dims) < 2:
            raise ValueError(f"dims must be of at least two cells, got {self.dims}")
        self.conv = nn.Conv2d(self.image_shape[0], self.channels, 3, padding=1)
        self.norm = EarlyBatchNorm2d(self.channels, 1e-3, 0.01)
        glorot(self.conv)
        widths = (self.channels, *(self.types * dim for dim in self.dims))
        last = len(self.dims) - 1
        self.cells = nn.ModuleList(
            Cell(before, self.types, dim, self.steps if place == last else None)
            for place, (before, dim) in enumerate(zip(widths, self.dims, strict=False))
        )
        self.class_caps = self._class_caps(routing or DynamicRouting(bias=True))
        self.decoder = self._make_decoder(TransposedDecoder, self.decoder_channels)

    def _class_caps(self, routing: Routing) -> CapsLinear:
        if self.dims[-1] != self.dims[-2]:
            raise ValueError(
                "dims must end in two equal ones, for both cells are children of the "
                f"classes, got {self.dims}"
            )
        positions = [
            math.prod(math.ceil(extent / 2**cells) for extent in self.image_shape[1:])
            for cells in (len(self.dims) - 1, len(self.dims))
        ]
        children = self.types * sum(positions)
        # Glorot's bound for a kernel of J x I places, D numbers in and P out, as Keras
        # counts them.
        bound = math.sqrt(
            6 / (self.classes * children * (self.pose_dim + self.dims[-1]))
        )
        class_caps = CapsLinear(
            children, self.classes, self.dims[-1], self.pose_dim, routing=routing
        )
        nn.init.uniform_(class_caps.weight, -bound, bound)
        offset = getattr(class_caps.routing, "offset", None)
        if offset is not None:
            nn.init.xavier_uniform_(offset)
        return class_caps

    def children_of(self, images: Tensor) -> Capsules:
        """Return the capsules of the last cell and of the one before it, poses (B, I,
        dim).
        """
        self._check(images)
        features = self.norm(F.relu(self.conv(images)))
        maps = []
        for cell in self.cells:
            features = cell(features)
            maps.append(features)
        poses = [
            capsules_of(feature_map, self.types).flatten(1, 3)
            for feature_map in (maps[-1], maps[-2])
        ]
        pose = torch.cat(poses, 1)
        return Capsules(pose, length(pose))


class Cell(nn.Module):
    """Convolutional capsules of stride 2, then two more layers of them; to these is
    added a layer beside the two.

    Args:
        in_channels: the channels of the map below.
        types: the number of types of capsules.
        dim: the numbers of their poses.
        steps: the number of steps of the 3-D routing of the layer beside; None for a
            convolution without routing.

    Shape:
        (B, in_channels, H, W) to (B, types x dim, H / 2, W / 2), rounded up.
    """

    def __init__(
        self, in_channels: int, types: int, dim: int, steps: int | None = None
    ) -> None:
        super().__init__()
        width = types * dim
        self.down = CapsMap(in_channels, types, dim, stride=2)
        self.beside: nn.Module
        if steps is None:
            self.beside = CapsMap(width, types, dim)
        else:
            self.beside = CapsConvShared(types, types, dim, dim, 3, steps)
        self.through = nn.Sequential(
            CapsMap(width, types, dim), CapsMap(width, types, dim)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return sums of poses, not squashed again."""
        down = self.down(features)
        return self.through(down) + self.beside(down)


class CapsMap(nn.Module):
    """A convolution of 3 x 3 without bias, whose channels are squashed as capsules:
    each parent takes all votes alike.

    Shape:
        (B, in_channels, H, W) to (B, types x dim, H / stride, W / stride), rounded up.
    """

    def __init__(self, in_channels: int, types: int, dim: int, stride: int = 1) -> None:
        super().__init__()
        self.types = types
        self.stride = stride
        self.conv = nn.Conv2d(in_channels, types * dim, 3, stride, bias=False)
        # Keras: six axes, fans of the root of all numbers.
        bound = math.sqrt(3 / math.sqrt(self.conv.weight.numel()))
        nn.init.uniform_(self.conv.weight, -bound, bound)

    def forward(self, features: Tensor) -> Tensor:
        """Convolve and squash."""
        convolved = self.conv(same_padded(features, 3, self.stride))
        return squash(convolved.unflatten(1, (self.types, -1)), dim=2).flatten(1, 2)


class CapsConvShared(nn.Module):
    r"""Convolutional capsules by 3-D convolution: all types of children share the
    transforms, and routing is over maps.

    A child is a type, with its whole map; a vote is what its window at a position says
    for one type of parents, :math:`V_{ijp} = W_j * u_i` there. Routing is that of
    :func:`field_routing`, with a bias.

    Args:
        in_types: I.
        out_types: J.
        in_dim: dimension of the children's poses.
        out_dim: D.
        kernel_size: the kernel size of the windows, odd.
        steps: the number of steps of the routing.

    Shape:
        (B, in_types x in_dim, H, W) to (B, out_types x out_dim, H, W).

    Source: Rajasegaran et al. 2019, section 3.2 and Procedure 1; the code released with
    it (``ConvCapsuleLayer3D``).
    """

    def __init__(
        self,
        in_types: int,
        out_types: int,
        in_dim: int,
        out_dim: int,
        kernel_size: int = 3,
        steps: int = 3,
    ) -> None:
        super().__init__()
        self.in_types = in_types
        self.out_types = out_types
        self.out_dim = out_dim
        self.kernel_size = kernel_size
        self.steps = steps
        size = in_dim * kernel_size**2
        # [in_dim k k, J, D]
        self.weight = nn.Parameter(torch.empty(size, out_types, out_dim))
        self.bias = nn.Parameter(torch.full((out_types, out_dim), 0.1))
        cut_normal(self.weight, he_deviation(size))

    def forward(self, features: Tensor) -> Tensor:
        """Route the map of each child's type to those of the parents' types."""
        H, W = features.shape[2:]
        padded = same_padded(features, self.kernel_size, 1)
        windows = F.unfold(padded, self.kernel_size)  # [B, I P k k, H W]
        of_types = windows.unflatten(1, (self.in_types, -1))
        children = of_types.permute(0, 3, 1, 2).flatten(0, 1)  # [B H W, I, P k k]
        transforms = self.weight.movedim(0, 1)[None]  # [1, J, P k k, D]
        pose = field_routing(
            children, transforms, product((H, W)), self.bias, self.steps
        )
        dtype = torch.promote_types(features.dtype, self.weight.dtype)
        return pose.permute(0, 2, 3, 1).flatten(1, 2).unflatten(-1, (H, W)).to(dtype)


def field_routing(
    children: Tensor, transforms: Tensor, positions: int, bias: Tensor, steps: int
) -> Tensor:
    r"""Route types of capsules dynamically over maps.

    .. math::
        R_{ijp} = \operatorname{softmax}_{jp} b_{ijp}, \quad
        s_{jp} = \sum_i R_{ijp} V_{ijp} + \text{bias}_j, \quad
        v_{jp} = \frac{|s_j|^2}{1 + |s_j|^2} \frac{s_{jp}}{|s_j|}, \quad
        b_{ijp} \mathrel{+}= \langle V_{ijp}, v_{jp} \rangle

    from b = 0, with the length :math:`|s_j|` over all positions p and dimensions:
    parents of all types at all positions compete for a child.

    Args:
        children: windows of the children, (B positions, I, P), the positions of an
            image behind each other.
        transforms: (1, J, P, D).
        positions: the number of positions of a map.
        bias: (J, D).
        steps: how many times the assignment is made, the uniform first one included.

    Returns:
        (B, positions, J, D).

    Source: Rajasegaran et al. 2019, Procedure 1.
    """
    votes = Votes(children, transforms, competition=FieldWide(positions=positions))
    alpha: Tensor | None = None  # the sum of all poses so far: b = <V, alpha>
    for _ in range(steps):
        total = votes.moments(None if alpha is None else InnerProduct(alpha)).sum + bias
        # [B, positions, J, D]
        pose = squash(total.unflatten(0, (-1, positions)), dim=(1, 3))
        flat = pose.flatten(0, 1)
        alpha = flat if alpha is None else alpha + flat
    return pose


@dataclass(frozen=True, eq=False)
class FieldWide(Competition):
    """All types of parents at all positions of a map compete for a child, which has a
    window at each of them.

    Args:
        positions: the number of positions of a map; the rows of the votes are those of
            an image behind each other.
    """

    positions: int = 1

    def log_partition(
        self, source: VoteSource, similarity: Similarity | None
    ) -> Tensor:
        """Return the log-partition of each child over the positions, (N, G)."""
        of_windows = source.log_partition(similarity, leaky=False).unflatten(
            0, (-1, self.positions)
        )
        over_all = of_windows.logsumexp(1, keepdim=True)
        return over_all.expand_as(of_windows).flatten(0, 1)


@settings
class TransposedDecoder(SuggestsNames, nn.Module):
    """Decodes to an image by transposed convolutions: a linear layer draws a small map,
    all but the first double it.

    A linear layer with ReLU gives a map of 16 channels, batch-normalised; transposed
    convolutions of 3 x 3, one for each of ``channels``, the first of stride 1, the
    others of stride 2, nothing between them, and one more to the channels of the image;
    ReLU. The first map is the smallest one that gives the image; what is over is cut
    off.

    Args:
        in_features: numbers that it is told.
        image_shape: (C, H, W) of the image.
        channels: the channels of the transposed convolutions.

    Shape:
        (B, in_features), or (B, J, *pose) of as many numbers, to images (B, C, H, W), 0
        or more.

    Source: the code released with Rajasegaran et al. 2019.

    Example:
        >>> decoder = tc.models.TransposedDecoder(16, image_shape=(1, 28, 28))
        >>> decoder(torch.randn(2, 16)).shape
        torch.Size([2, 1, 28, 28])
    """

    _CHANNELS = 16

    in_features: Size
    image_shape: ThreeSizes
    channels: AnySizes = (64, 32, 16)

    def __post_init__(self) -> None:
        channels = self.channels
        scale = 2 ** (len(channels) - 1) if channels else 1
        self.first = tuple(math.ceil(extent / scale) for extent in self.image_shape[1:])
        self.linear = nn.Linear(
            self.in_features, self._CHANNELS * math.prod(self.first)
        )
        self.norm = EarlyBatchNorm2d(self._CHANNELS, 1e-3, 0.2)
        widths = (self._CHANNELS, *channels, self.image_shape[0])
        strides = (1, *[2] * (len(channels) - 1), 1)[: len(widths) - 1]
        self.convolutions = nn.ModuleList(
            nn.ConvTranspose2d(before, width, 3, stride)
            for (before, width), stride in zip(pairwise(widths), strides, strict=True)
        )
        for layer in (self.linear, *self.convolutions):
            glorot(layer)

    def forward(self, poses: Tensor) -> Tensor:
        """Decode."""
        numbers = F.relu(self.linear(poses.flatten(1)))
        image = self.norm(numbers.unflatten(1, (self._CHANNELS, *self.first)))
        for layer in self.convolutions:
            assert isinstance(layer, nn.ConvTranspose2d)
            stride = layer.stride[0]
            before = 1 if stride == 1 else 0
            height, width = (extent * stride for extent in image.shape[2:])
            image = layer(image)[
                :, :, before : before + height, before : before + width
            ]
        return F.relu(image[:, :, : self.image_shape[1], : self.image_shape[2]])


def capsules_of(features: Tensor, types: int) -> Tensor:
    """Return a map (B, types x dim, H, W) as poses (B, H, W, types, dim)."""
    return features.unflatten(1, (types, -1)).permute(0, 3, 4, 1, 2)
