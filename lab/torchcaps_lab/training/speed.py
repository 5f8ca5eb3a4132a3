"""Options that make a training faster."""

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType

import torch
from torch import Tensor, nn

from torchcaps.models import ClassifierNetwork, Prediction
from torchcaps_lab.data import Examples
from torchcaps_lab.options import declarations

Step = Callable[[ClassifierNetwork, Tensor, Tensor], Prediction]


def predict(model: ClassifierNetwork, images: Tensor, target: Tensor) -> Prediction:
    """The part of a training step that may be compiled: the network's."""
    return model(images, target)


_FUSED = torch.optim.Adam, torch.optim.SGD  # AdamW is an Adam
_FUSED_ON = "cpu", "cuda"
_UNFUSED = "capturable", "differentiable"
"""Arguments of optimizers that exclude fused steps."""


@dataclass(frozen=True)
class Speed(declarations.SpeedOptions):
    """Options that make a training faster, and what they do.

    Example:
        >>> from torchcaps_lab.training.speed import Speed
        >>> Speed(channels_last=True).compile is None
        True
    """

    def lay_out(self, model: nn.Module) -> None:
        """Stores the weights of the model's convolutions in the order of
        ``channels_last``, in place.
        """
        for module in model.modules():
            if self.channels_last and isinstance(module, nn.Conv2d):
                module.weight.data = self.arrange(module.weight.data)

    def arrange(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W), or weights of a convolution, in the order of
        ``channels_last``; words as they are.
        """
        if not self.channels_last or images.ndim != 4:
            return images
        images = images.contiguous(memory_format=torch.channels_last)
        _, channels, height, width = images.shape
        # Both orders apply; unless the strides say so, torch assumes the other one.
        if channels == 1:
            images = images.as_strided(images.shape, (height * width, 1, width, 1))
        return images

    def fuse(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes the optimizer run its steps in one kernel, if torch has one, unless its
        own arguments exclude it, as ``fused=False``; in place. The same up to rounding.
        """
        if not isinstance(optimizer, _FUSED):
            return
        for group in optimizer.param_groups:
            decided = group.get("fused") is not None or any(
                group.get(name) for name in ("foreach", *_UNFUSED)
            )
            if not decided and all(
                parameter.device.type in _FUSED_ON and parameter.is_floating_point()
                for parameter in group["params"]
            ):
                group["fused"] = True

    def settle(self, optimizer: torch.optim.Optimizer) -> None:
        """Gives the state of the optimizer the memory layout of its weights, as fused
        kernels assume; in place.

        The state from a checkpoint may have another layout.
        """
        for weight, state in optimizer.state.items():
            for name, value in state.items():
                if (
                    isinstance(value, Tensor)
                    and value.shape == weight.shape
                    and value.stride() != weight.stride()
                ):
                    state[name] = torch.empty_like(weight, dtype=value.dtype).copy_(
                        value
                    )

    @property
    def compiles(self) -> bool:
        """Return whether ``compile`` names a mode."""
        return self.compile not in (None, "off")

    def step(self) -> Step:
        """The function that runs a model in a training step, compiled if ``compile``
        names a mode.
        """
        if not self.compiles:
            return predict
        # torch.compile counts compilations by code object: with the same one, the ninth
        # network would not be compiled.
        function = FunctionType(predict.__code__.replace(), globals())
        return torch.compile(function, mode=self.compile)

    def near(self, images: Examples, device: torch.device) -> Examples:
        """The images on the device, unless they are too large."""
        small = images.inputs.nbytes <= self.resident * 2**30
        return images.to(device) if small else images
