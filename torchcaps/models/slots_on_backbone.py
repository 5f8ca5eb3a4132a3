"""Objects without labels in photos: slots that draw the features of a network which
was trained before (Seitzer et al. 2023).
"""

from dataclasses import InitVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.capsules import Capsules, DrawnFeatures, Prediction
from torchcaps.models.backbone import OnBackbone
from torchcaps.models.registry import register_model
from torchcaps.models.slot_autoencoder import Drawing, SlotNetwork, on_grey
from torchcaps.numerics import Size, positive, resolution
from torchcaps.routing import Routing
from torchcaps.spec import settings


class FeatureDecoder(nn.Module):
    r"""Draws the features of each slot by itself, and how much of each place it claims.

    The pose of a slot is copied to every place of a grid, a learned code of the place
    is added, and an MLP makes features of it. The features of all slots are the sum
    :math:`\sum_j m_j f_j` with masks m that are a softmax over the slots.

    Args:
        dim: numbers of a pose.
        hidden: the width of the MLP, which has three hidden layers.
        features: numbers of the features of a place, F.
        grid: height and width of the grid.

    Shape:
        Poses (B, J, dim) to features (B, J, F, H', W') and claims (B, J, H', W').

    Source: Seitzer et al. 2023, "Bridging the Gap to Real-World Object-Centric
    Learning", section 3, the MLP decoder.

    Example:
        >>> from torchcaps.models.slots_on_backbone import FeatureDecoder
        >>> decoder = FeatureDecoder(dim=16, hidden=32, features=24, grid=(4, 5))
        >>> features, claims = decoder(torch.randn(2, 3, 16))
        >>> features.shape, claims.shape
        (torch.Size([2, 3, 24, 4, 5]), torch.Size([2, 3, 4, 5]))
    """

    def __init__(
        self, dim: int, hidden: int, features: int, grid: tuple[int, int]
    ) -> None:
        super().__init__()
        self.grid = grid
        self.place = nn.Parameter(torch.empty(grid[0] * grid[1], dim))
        nn.init.normal_(self.place, std=dim**-0.5)
        layers: list[nn.Module] = []
        before = dim
        for _ in range(3):
            layers += [nn.Linear(before, hidden), nn.ReLU()]
            before = hidden
        self.draw = nn.Sequential(*layers, nn.Linear(hidden, features + 1))

    def forward(self, pose: Tensor) -> Drawing:
        """Return the features and the claims of slots."""
        drawn = self.draw(pose[:, :, None] + self.place)  # (B, J, H' W', F + 1)
        features, claims = drawn.mT.unflatten(3, self.grid).tensor_split([-1], 2)
        return Drawing(features, claims.squeeze(2))


@register_model(
    "slots_on_backbone",
    "after Seitzer et al. 2023 (DINOSAUR): slots of the features of a trained network, "
    "for photos without labels",
)
@register_model(
    "slots_on_backbone_coco",
    "its sizes in Seitzer et al. 2023 for COCO, for --model_args.backbone "
    "timm/vit_base_patch16_224.dino --model_args.weights hub",
    image_shape=(3, 224, 224),
    classes=7,
    dim=256,
    hidden=2048,
    routing={"name": "slots", "start": "normal", "hidden": 1024},
)
@settings
class SlotsOnBackbone(OnBackbone, SlotNetwork):
    r"""Takes a photo apart into slots that draw the features of a trained network,
    instead of its pixels.

    The colours of a photo tell little about its objects. So the slots share out the
    features of a backbone, and draw these features again. The backbone does not learn:
    features that learn with the slots would become constant, which is easy to draw.
    Each place of the grid has its features normalised, :math:`\hat f = (f - \bar f) /
    \operatorname{std}(f)`, so that the error does not depend on the backbone:

    .. math::
        \frac{1}{F H' W'} \sum_p \Big| \hat f_p - \sum_j m_{jp} f_{jp} \Big|^2

    The masks are those of the grid, brought to the size of the image.

    Args:
        image_shape: (C, H, W) of the images.
        classes: the number of slots, one more than there are objects, or more.
        backbone: ``timm/`` and a name of ``timm.list_models()``, which needs the extra
            ``timm``, or ``residual``, as in :class:`CapsNetOnBackbone`.
        widths: channels of the stages of ``residual``.
        blocks: in each stage of ``residual``.
        stride: the stride of the first convolution of ``residual``.
        weights: of the backbone, as in :class:`CapsNetOnBackbone`. With None they are
            random, and the slots find little.
        level: which level of a timm network has the features, counted from the last,
            which is the coarsest and has 1.
        dim: numbers of the pose of a slot.
        hidden: the width of the decoder.
        routing: the routing of the features to the slots, as in
            :class:`SlotAutoencoder`.

    Raises:
        ModuleNotFoundError: if the backbone is of timm, and that, or the package with
            its weights, is not installed.
        ValueError: if there is no such backbone or level, or it does not suit the
            images.

    Source: Seitzer et al. 2023, "Bridging the Gap to Real-World Object-Centric
    Learning" (DINOSAUR). There the backbone is a vision transformer that learned
    without labels (DINO), and the article shows that its features matter most.

    Example:
        >>> network = tc.create_model(
        ...     "slots_on_backbone", image_shape=(3, 32, 32), classes=4, widths=(8, 16)
        ... )
        >>> prediction = network(torch.rand(2, 3, 32, 32))
        >>> prediction.masks.shape, prediction.features.drawn.shape
        (torch.Size([2, 4, 32, 32]), torch.Size([2, 16, 16, 16]))
    """

    level: Size = 1
    dim: Size = 64
    hidden: Size = 256
    routing: InitVar[Routing | None] = None

    def __post_init__(self, routing: Routing | None) -> None:
        self._make_backbone(self.level)
        channels = self.features.channels
        grid = self._grid()
        self.project = nn.Sequential(
            nn.LayerNorm(channels),
            nn.Linear(channels, channels),
            nn.ReLU(),
            nn.Linear(channels, self.dim),
        )
        self._make_slots(self.dim, routing, self.classes)
        self.decoder = FeatureDecoder(self.dim, self.hidden, channels, grid)

    def features_of(self, images: Tensor) -> Tensor:
        """Return the features of places, projected to the size of poses, (B, I, dim)."""
        return self._projected(self.features(images))

    def _projected(self, maps: Tensor) -> Tensor:
        return self.project(maps.flatten(2).mT)

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """Return the slots of images (B, C, H, W), their masks, and the features that
        they draw together; ``target`` changes nothing.
        """
        self._check(images)
        maps = self.features(images)
        slots: Capsules = self.slots(self._projected(maps))
        features, claims = self.decoder(slots.pose.to(maps.dtype))
        masks = claims.softmax(1)
        true = F.layer_norm(maps.movedim(1, -1), maps.shape[1:2]).movedim(-1, 1)
        drawn = (features * masks[:, :, None]).sum(1)
        masks = F.interpolate(masks, images.shape[2:], mode="bilinear")
        activation = masks.flatten(2).amax(2)
        return Prediction(
            activation,
            Capsules(slots.pose, activation),
            masks=masks,
            features=DrawnFeatures(drawn, true),
        )

    def parts(self, pictures: Tensor, prediction: Prediction) -> Tensor:
        """Return the part of the pictures that each slot claims, on grey, (B, J, C, H,
        W).
        """
        assert prediction.masks is not None
        slots = prediction.masks.shape[1]
        copies = pictures[:, None].expand(-1, slots, -1, -1, -1)
        return on_grey(copies, prediction.masks)

    def drawing(self, prediction: Prediction) -> Tensor:
        """Return the drawn features as colours: red, green and blue are the three
        directions in which the true features of the picture differ most.
        """
        assert prediction.features is not None
        assert prediction.masks is not None
        drawn, true = (maps.float().flatten(2) for maps in prediction.features)
        mean = true.mean(2, keepdim=True)
        directions = torch.linalg.svd(true - mean, full_matrices=False).U[..., :3]
        low, high = (directions.mT @ (true - mean)).aminmax(dim=2, keepdim=True)
        least = resolution(true.abs().amax((1, 2), keepdim=True))
        scale = positive(torch.maximum(high - low, least))
        colours = (directions.mT @ (drawn - mean) - low) / scale
        maps = colours.clamp(0, 1).unflatten(2, prediction.features.true.shape[2:])
        return F.interpolate(maps, prediction.masks.shape[2:])
