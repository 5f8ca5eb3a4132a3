"""What makes a training faster."""

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Literal

import torch
from torch import Tensor, nn

from torchcaps.data import ImageSet
from torchcaps.models import ImageClassifier, Prediction

CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


Step = Callable[[ImageClassifier, Tensor, Tensor], Prediction]


def _predict(model: ImageClassifier, images: Tensor, target: Tensor) -> Prediction:
    return model(images, target)


@dataclass(frozen=True)
class Speed:
    """What makes a training faster beside the trainer's ``precision``. What may change a result is off by default.

    Attributes:
        channels_last: keep images and the weights of convolutions with the channels innermost in memory. The numbers
            are the same up to rounding, which depends on the kernels that are chosen.
        compile: compile the training step's network with ``torch.compile`` in this mode; ``reduce-overhead`` replays
            CUDA graphs. The same up to rounding. None does not compile.
        resident: data sets of up to so many GiB are copied to the device once, where it is not the CPU, instead of
            batch by batch. Nothing else changes.

    Example:
        >>> from torchcaps.training import Speed
        >>> Speed(channels_last=True).compile is None
        True
    """

    channels_last: bool = False
    compile: CompileMode | None = None
    resident: float = 4.0

    def lay_out(self, model: nn.Module) -> None:
        """Puts the weights of the model's convolutions in the order of ``channels_last``, in place."""
        for module in model.modules():
            if self.channels_last and isinstance(module, nn.Conv2d):
                module.weight.data = self.arrange(module.weight.data)

    def arrange(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W), or weights of a convolution, in the order of ``channels_last``; words as they are."""
        if not self.channels_last or images.ndim != 4:
            return images
        images = images.contiguous(memory_format=torch.channels_last)
        _, channels, height, width = images.shape
        if channels == 1:  # in either order; torch takes it for the other one unless the strides say this one
            images = images.as_strided(images.shape, (height * width, 1, width, 1))
        return images

    def step(self) -> Step:
        """What runs a model in a training step: compiled if it shall be."""
        if self.compile is None:
            return _predict
        # torch.compile counts by code object: with the same one, the ninth network of a process would not be compiled.
        own = FunctionType(_predict.__code__.replace(), globals())
        return torch.compile(own, mode=self.compile)

    def near(self, images: ImageSet, device: torch.device) -> ImageSet:
        """The images on the device, unless they are too large."""
        small = images.images.nbytes <= self.resident * 2**30
        return images.to(device) if small else images
