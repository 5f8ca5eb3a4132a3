"""Networks, and a registry of their published configurations."""

from typing import Any

from torchcaps.capsules import Places, Prediction
from torchcaps.models.attentioncapsnet import AttentionCapsNet
from torchcaps.models.backbone import BackboneTwin, CapsNetOnBackbone
from torchcaps.models.base import (
    CapsuleClassifier,
    CapsuleNetwork,
    ClassifierNetwork,
    ImageClassifier,
)
from torchcaps.models.byerly import ByerlyCapsNet
from torchcaps.models.capsnet import CapsNet, CapsNetTwin
from torchcaps.models.deepcaps import DeepCaps, TransposedDecoder
from torchcaps.models.efficient_capsnet import EfficientCapsNet, UpsamplingDecoder
from torchcaps.models.heinsen import HeinsenCapsNet
from torchcaps.models.lab_networks import CLASSES_OF_THE_LAB, load_lab
from torchcaps.models.matrixcapsnet import MatrixCapsNet, MatrixCapsNetTwin
from torchcaps.models.network import Network
from torchcaps.models.registry import (
    create_model,
    describe_models,
    list_models,
    register_model,
)
from torchcaps.models.saved import NETWORKS, load_pretrained
from torchcaps.models.scene_capsnet import (
    SceneCapsNet,
    SceneTwin,
    Thing,
    box_area,
    box_iou,
    boxes_of_maps,
)
from torchcaps.models.segmentation import SegCaps, Segmenter, UNet
from torchcaps.models.selfroutingresnet import SelfRoutingResNet
from torchcaps.models.sets import PooledSet, SetCapsNet, SetClassifier
from torchcaps.models.sharedcapsnet import (
    SharedCapsNet,
    SharedCapsNetMaps,
    SharedCapsNetTwin,
)
from torchcaps.models.slot_autoencoder import (
    SlotAutoencoder,
    SlotNetwork,
    SpatialBroadcastDecoder,
)
from torchcaps.models.slots_on_backbone import SlotsOnBackbone
from torchcaps.models.vbcapsnet import VBCapsNet

__all__ = [
    "CapsNet",
    "CapsNetTwin",
    "CapsuleClassifier",
    "CapsuleNetwork",
    "ClassifierNetwork",
    "ImageClassifier",
    "MatrixCapsNet",
    "PooledSet",
    "Prediction",
    "SetCapsNet",
    "box_iou",
    "boxes_of_maps",
    "create_model",
    "list_models",
    "load_pretrained",
    "register_model",
]


def __getattr__(name: str) -> Any:
    """Networks that come with torchcaps-lab."""
    if name not in CLASSES_OF_THE_LAB:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    load_lab()
    return NETWORKS[name]
