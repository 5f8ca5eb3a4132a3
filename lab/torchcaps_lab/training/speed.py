"""Options that make a training faster."""

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from torchcaps.models import ClassifierNetwork, Prediction
from torchcaps.spec import Within, check_fields
from torchcaps_lab.data import Examples

CompileMode = Literal[
    "off", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"
]


Step = Callable[[ClassifierNetwork, Tensor, Tensor], Prediction]


def predict(model: ClassifierNetwork, images: Tensor, target: Tensor) -> Prediction:
    """The part of a training step that may be compiled: the network's."""
    return model(images, target)


_FUSED = torch.optim.Adam, torch.optim.SGD  # AdamW is an Adam
_FUSED_ON = "cpu", "cuda"
_UNFUSED = "capturable", "differentiable"
"""Arguments of optimizers that exclude fused steps."""


@dataclass(frozen=True)
class Speed:
    """Options that make a training faster, besides the trainer's ``precision``.

    On by default is ``resident``. Steps of Adam, AdamW and SGD run in one kernel, see
    :meth:`fuse`.

    Attributes:
        channels_last: store images and the weights of convolutions with the channels
            innermost. The results are the same up to rounding.
        compile: compile the training step's network with ``torch.compile`` in this
            mode; ``reduce-overhead`` replays CUDA graphs, ``off`` does not compile. The
            same up to rounding. None replays CUDA graphs on a GPU, if the training is
            long enough to pay for compiling.
        resident: data sets of up to this many GiB are copied to the GPU once instead of
            batch by batch. Nothing else changes.

    Raises:
        ValueError: if an option is of another type, or ``resident`` is negative.

    Example:
        >>> from torchcaps_lab.training.speed import Speed
        >>> Speed(channels_last=True).compile is None
        True
    """

    channels_last: bool = False
    compile: CompileMode | None = None
    resident: Annotated[float, Within(0)] = 4.0

    def __post_init__(self) -> None:
        check_fields(self)

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
