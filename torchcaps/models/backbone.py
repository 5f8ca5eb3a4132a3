"""Class capsules, or a linear layer, on the features of a residual network or of any
network of timm.
"""

import math
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import InitVar
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.capsules import Capsules, Prediction
from torchcaps.layers import (
    CapsLinear,
    DecoderInput,
    FullyConnectedDecoder,
    PrimaryCaps,
)
from torchcaps.models.base import CapsuleClassifier, ImageClassifier
from torchcaps.models.registry import register_model
from torchcaps.models.residual import residual_features
from torchcaps.models.timm_package import IMAGENET_PIXELS, imagenet_weights, import_timm
from torchcaps.numerics import AnySizes, NotNegative, Size, Sizes
from torchcaps.routing import DynamicRouting, Routing
from torchcaps.spec import SuggestsNames, settings
from torchcaps.whole import WEIGHTS_FILE, check_file, network_folder

TIMM = "timm/"
HUB = "hub"
IMAGENET = "imagenet"


class Backbone(SuggestsNames, nn.Module):
    """Makes features (B, channels, H', W') of images (B, C, H, W) in [0, 1]."""

    channels: int


class ResidualBackbone(Backbone):
    """A small residual network: a convolution, then stages of basic blocks; each stage
    but the first halves the grid.

    Args:
        in_channels: the channels of the images.
        widths: channels of the stages.
        blocks: in each stage, of two 3x3 convolutions.
        stride: the stride of the first convolution: 2 for larger images.

    Source: He, Zhang, Ren & Sun 2016, "Deep Residual Learning for Image Recognition",
    sections 3.3 and 4.2.
    """

    def __init__(
        self, in_channels: int, widths: Sequence[int], blocks: int, stride: int
    ) -> None:
        super().__init__()
        self.channels = widths[-1]
        convolution, norm, _, *residuals = residual_features(
            in_channels, widths, [blocks] * len(widths), stride=stride, projected=True
        )
        self.stem = nn.Sequential(convolution, norm)
        self.stages = nn.Sequential(*residuals)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu"
                )

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of the last stage."""
        return self.stages(F.relu(self.stem(images)))


class TimmBackbone(Backbone):
    """The features of a network of timm, of images normalised as it was trained on.

    Args:
        name: as ``timm.list_models()`` has it, such as ``resnet18``.
        image_shape: (C, H, W) of the images; timm adapts the first convolution to their
            channels, and codes of places to their size.
        weights: ``hub`` to fetch the pretrained ones, ``imagenet`` for those of
            ``efficientnet_lite0`` in an installed package (the extra ``photos``), a
            file or folder with such; None for random ones.
        level: which of the network's levels has the features, counted from the last,
            which is the coarsest and has 1.

    Raises:
        ModuleNotFoundError: if timm, or the package with the weights, is not installed.
        ValueError: if there is no such network, no such level or no such weights, or it
            has no features on a grid.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, name: str, image_shape: Sequence[int], weights: str | None, level: int
    ) -> None:
        super().__init__()
        if ":" in name or "/" in name:
            raise ValueError(
                f"backbone must be {TIMM!r} and a name of timm.list_models(), got "
                f"{TIMM + name!r}"
            )
        timm = import_timm(TIMM + name)
        in_channels, *size = image_shape
        options = dict[str, Any]()
        if weights == IMAGENET:
            options["pretrained_cfg_overlay"] = {
                "state_dict": imagenet_weights(timm, name),
                **IMAGENET_PIXELS,
            }
        elif weights not in (None, HUB):
            options["pretrained_cfg_overlay"] = {
                "file": str(_weights_file(str(weights)))
            }
        try:
            published = timm.get_pretrained_cfg(name)
            if published is not None and published.fixed_input_size:
                options["img_size"] = tuple(size)
            options |= {"features_only": True, "out_indices": (-level,)}
            make = partial(timm.create_model, name, in_chans=in_channels, **options)
            with _numbers_only():
                if weights is None:
                    self.network = make(pretrained=False)
                else:
                    self.network = _loaded(make, f"weights {weights}")
        except (RuntimeError, AssertionError, LookupError) as error:
            raise ValueError(
                f"backbone {TIMM}{name} cannot be made with level {level} for images "
                f"of {tuple(image_shape)}: {_reason(error)}"
            ) from error
        self.channels = self.network.feature_info.channels()[-1]
        preprocessing = getattr(self.network, "pretrained_cfg", {})
        for key in ("mean", "std"):
            values = torch.tensor(preprocessing.get(key, (0.5, 0.5, 0.5)))
            if len(values) != in_channels:
                values = values.mean().expand(in_channels)
            self.register_buffer(key, values.clone()[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of the level, (B, C, H, W)."""
        features: Tensor = self.network((images - self.mean) / self.std)[-1]
        if features.shape[1] == self.channels:
            return features
        return features.movedim(-1, 1)  # those of Swin are (B, H, W, C)


def _loaded(make: Callable[..., nn.Module], weights: str) -> nn.Module:
    """Return the network with its weights. Where timm has none, or a file has others,
    timm leaves random ones: those that two networks of one seed share.

    Raises:
        ValueError: if some are random.
    """
    before = torch.get_rng_state()
    network = make(pretrained=True)
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(before)
        drawn = make(pretrained=False)
    state = network.state_dict()
    missing = [
        key
        for key, value in drawn.named_parameters()
        if value.numel()
        and value.min() < value.max()
        and torch.equal(value, state[key])
    ]
    if missing:
        raise ValueError(
            f"{weights} are not those of this backbone: nothing for "
            f"{len(missing)} tensors, such as {missing[0]}"
        )
    return network


def _reason(error: Exception) -> str:
    """The message of an error of timm, or the line that raised it: many of its
    assertions have no message.
    """
    line = traceback.extract_tb(error.__traceback__)[-1].line
    return str(error) or f"{type(error).__name__} at {line!r}"


@contextmanager
def _numbers_only() -> Iterator[None]:
    """Inside the ``with`` block files of weights execute no code: timm turns
    ``weights_only`` of ``torch.load`` off.
    """
    switch = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(switch)
    os.environ[switch] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[switch]
        else:
            os.environ[switch] = before


def _weights_file(path: str) -> Path:
    """A file with weights, or the one that lies in a folder, or in that of a run."""
    folder = Path(path)
    if folder.is_dir():
        files = [
            network_folder(folder) / name
            for name in (WEIGHTS_FILE, "pytorch_model.bin")
        ]
    else:
        files = [folder]
    weights_path = next((file for file in files if file.is_file()), None)
    if weights_path is None:
        raise FileNotFoundError(
            f"weights must be {HUB!r}, {IMAGENET!r}, a file, or a folder with "
            f"{WEIGHTS_FILE}, got {path!r}"
        )
    return weights_path


def _load_own(backbone: Backbone, weights: str) -> None:
    """Load the weights of the backbone out of a saved network of this module."""
    from safetensors.torch import load_file

    prefix = "features."
    state = load_file(check_file(_weights_file(weights)))
    backbone_state = {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }
    try:
        backbone.load_state_dict(backbone_state)
    except RuntimeError as error:
        raise ValueError(
            f"weights {weights} are not those of such a backbone: {error}"
        ) from error


@settings
class OnBackbone(ImageClassifier):
    """What networks on a backbone have in common; its weights are saved with theirs.
    The backbone does not learn, unless a network says so.
    """

    outside: ClassVar[tuple[str, ...]] = ("weights",)
    frozen = True
    """Whether the backbone does not learn."""
    keep_statistics = True
    """Whether it keeps its statistics where it learns."""

    image_shape: tuple[int, int, int] = (3, 32, 32)
    classes: int = 10
    backbone: str = "residual"
    widths: Sizes = (32, 64, 128)
    blocks: Size = 2
    stride: Size = 1
    weights: str | None = None

    def _make_backbone(self, level: int = 1) -> None:
        # They are in the network from now on, and saved with it.
        weights = self.weights
        self.weights = None
        self.features = self._backbone(weights, level)
        if self.frozen:
            self.features.requires_grad_(False)

    def _backbone(self, weights: str | None, level: int) -> Backbone:
        """The backbone of that name."""
        name = self.backbone
        if name.startswith(TIMM):
            return TimmBackbone(
                name.removeprefix(TIMM), self.image_shape, weights, level
            )
        if level != 1:
            raise ValueError(
                f"level must be 1 with the backbone {name!r}, whose widths say how "
                f"many levels it has, got {level}"
            )
        if name != "residual":
            raise ValueError(
                f"backbone must be 'residual' or '{TIMM}' and the name of a network "
                f"of timm, got {name!r}"
            )
        backbone = ResidualBackbone(
            self.image_shape[0], self.widths, self.blocks, self.stride
        )
        if weights is not None:
            _load_own(backbone, weights)
        return backbone

    def train(self, mode: bool = True) -> Any:
        """Switch to training or evaluation mode; a frozen backbone, or one that keeps
        its statistics, stays in the latter.
        """
        super().train(mode)
        if self.frozen or self.keep_statistics:
            self.features.eval()
        return self

    def _grid(self) -> tuple[int, int]:
        """Height and width of the features.

        Raises:
            ValueError: if the images do not suit the backbone, or the features have no
                grid.
        """
        self.features.eval()
        try:
            features = _features_of_one(self.features, self.image_shape)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(
                f"image_shape {self.image_shape} does not suit {self.backbone}: "
                f"{_reason(error)}"
            ) from error
        self.train()
        if (
            features.ndim != 4
            or features.shape[1] != self.features.channels
            or not features.numel()
        ):
            shape = tuple(features.shape)
            raise ValueError(
                f"image_shape {self.image_shape} gives {self.backbone} features "
                f"{shape}, not on a grid"
            )
        return features.shape[2], features.shape[3]


@settings
class _ClassesOnBackbone(OnBackbone):
    """A network for classes, whose backbone may learn."""

    frozen: bool = False
    keep_statistics: bool = False


_SMALL = 2**18
"""Numbers in an image that is tried as it is, which imports nothing; larger ones are
tried without memory.
"""


def _features_of_one(features: nn.Module, image_shape: Sequence[int]) -> Tensor:
    """The features of one image; of a large one as a tensor on the device ``meta``,
    which takes no memory, whatever counts that of others.
    """
    on_meta = any(weight.is_meta for weight in features.parameters())
    with torch.no_grad(), torch._C.DisableTorchFunction():
        if math.prod(image_shape) <= _SMALL and not on_meta:
            # The default device, which is that of the weights, is not looked at here.
            device = next((weight.device for weight in features.parameters()), None)
            return features(torch.zeros(1, *image_shape, device=device))
        state = {
            name: tensor.to("meta")
            for name, tensor in features.state_dict(keep_vars=True).items()
        }
        state |= {name: tensor.to("meta") for name, tensor in features.named_buffers()}
        return torch.func.functional_call(
            features, state, torch.zeros(1, *image_shape, device="meta")
        )


@register_model(
    "capsnet_on_backbone",
    "CapsNet's class capsules on a small residual network, or on any of timm: photos",
)
@settings
class CapsNetOnBackbone(_ClassesOnBackbone, CapsuleClassifier):
    """Features of a backbone, primary capsules, one routed layer of class capsules and,
    if asked for, a decoder.

    Args:
        image_shape: (C, H, W) of the images.
        classes: number of classes.
        backbone: ``residual``, trained from scratch: :class:`ResidualBackbone`; or
            ``timm/`` and a name of ``timm.list_models()``: :class:`TimmBackbone`, which
            needs the extra ``timm``.
        widths: channels of the stages of ``residual``; each but the first halves height
            and width.
        blocks: in each stage of ``residual``.
        stride: the stride of the first convolution of ``residual``.
        weights: initial ones of the backbone: for ``residual`` the folder of a run, or
            of a saved network, on such a one, for timm ``hub``, a file, or a folder
            with ``model.safetensors``, for ``timm/efficientnet_lite0`` also
            ``imagenet``, out of an installed package (the extra ``photos``); None for
            random ones. The attribute is None: a saved network brings its own.
        frozen: train only what stands on the backbone.
        keep_statistics: train all layers, but with the running statistics of the
            backbone's batch normalisation as they came with the weights: a few hundred
            images have none as good.
        types: types of primary capsules.
        primary_dim: dimension of their poses.
        pose_dim: dimension of the class capsules' poses.
        routing: any routing; default: dynamic routing in 3 steps.
        decoder_hidden: widths of the decoder's hidden layers; None for no decoder.
        decoder_input: what the decoder is told of the class that it draws: ``masked``,
            ``pose`` or ``pose_and_class``, see :class:`~torchcaps.layers.PoseInput`.
        pose_noise: deviation of the noise on the pose that the decoder is given in
            training.

    Raises:
        ModuleNotFoundError: if the backbone is of timm, and that, or the package with
            its weights, is not installed.
        ValueError: if there is no such backbone, or it does not suit the images.

    Source: Sabour, Frosst & Hinton 2017, "Dynamic Routing Between Capsules", section 4,
    on the features of He et al. 2016; primary capsules have batch normalisation and the
    kernel 3, stride 2.

    Example:
        >>> network = tc.models.CapsNetOnBackbone(
        ...     (3, 16, 16), classes=4, widths=(8, 16), blocks=1
        ... )
        >>> network(torch.rand(2, 3, 16, 16)).activation.shape
        torch.Size([2, 4])
    """

    types: Size = 16
    primary_dim: Size = 8
    pose_dim: Size = 16
    routing: InitVar[Routing | None] = None
    decoder_hidden: AnySizes | None = None
    decoder_input: DecoderInput = "masked"
    pose_noise: NotNegative = 0.0

    def __post_init__(self, routing: Routing | None) -> None:
        self._make_backbone()
        self.primary_caps = PrimaryCaps(
            self.features.channels,
            self.types,
            self.primary_dim,
            3,
            2,
            1,
            batch_norm=True,
        )
        self.class_caps = CapsLinear(
            math.prod(self.primary_caps.sites(*self._grid())),
            self.classes,
            self.primary_dim,
            self.pose_dim,
            routing=routing or DynamicRouting(),
        )
        self.decoder = self._make_decoder(FullyConnectedDecoder, self.decoder_hidden)

    def children_of(self, images: Tensor) -> Capsules:
        """Return the primary capsules, poses (B, H', W', types, primary_dim)."""
        self._check(images)
        return self.primary_caps(self.features(images))


@register_model(
    "capsnet_on_backbone_cnn",
    "the same backbone with global average pooling and a linear layer: its twin",
)
@settings
class BackboneTwin(_ClassesOnBackbone):
    """Features of a backbone, global average pooling, a linear layer, a softmax.

    Args:
        image_shape: (C, H, W) of the images.
        classes: number of classes.
        backbone: this and the next ones as in :class:`CapsNetOnBackbone`.
        widths: channels of the stages.
        blocks: in each stage.
        stride: the stride of the first convolution.
        weights: initial ones of the backbone.
        frozen: train only the linear layer.
        keep_statistics: train all layers with the backbone's statistics as they are.

    Raises:
        ModuleNotFoundError: if the backbone is of timm, and that, or the package with
            its weights, is not installed.
        ValueError: if there is no such backbone, or it does not suit the images.

    Source: He, Zhang, Ren & Sun 2016, "Deep Residual Learning for Image Recognition".

    Example:
        >>> network = tc.models.BackboneTwin(
        ...     (3, 16, 16), classes=4, widths=(8, 16), blocks=1
        ... )
        >>> network(torch.rand(2, 3, 16, 16)).activation.shape
        torch.Size([2, 4])
    """

    def __post_init__(self) -> None:
        self._make_backbone()
        self._grid()
        self.head = nn.Linear(self.features.channels, self.classes)

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """Return the probability of each class."""
        self._check(images)
        return Prediction(self.head(self.features(images).mean((2, 3))).softmax(-1))
