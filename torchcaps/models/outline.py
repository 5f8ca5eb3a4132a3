"""Networks without memory for their numbers: the shapes that arguments ask for, before
anything is made.
"""

import math
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchcaps.whole import check_file

SPARE, EACH = 1_000, 20
"""Values in a configuration, and tensors that the constructor of its network makes: so
many, and so many for each tensor in the file. Networks of the package make up to 3.
"""

SPARE_NUMBERS, TIMES_WEIGHTS = 2**26, 4
"""Numbers of one tensor: so many, as one example of large images has, and so many times
those of all weights.
"""

LOOKED_AT = 2**12
"""The most numbers of a tensor that is made as it is where a constructor names a device,
or one of a file looks at numbers.
"""

_DRAWS = (Tensor.normal_, Tensor.uniform_, Tensor.random_, Tensor.bernoulli_)
"""What draws numbers in place. On ``meta`` there are none to draw, but torch imports
its compiler for it, which takes seconds.
"""

_NOISE = (torch.randn, torch.rand)

Made = TypeVar("Made")


class TooLarge(ValueError):
    """A configuration asks for more than the weights beside it give reason for."""


class Header(NamedTuple):
    """What a file of safetensors holds.

    Args:
        shapes: the shapes of its tensors.
        dtype: float64 if all its numbers are, else float32.
    """

    shapes: list[torch.Size]
    dtype: torch.dtype


def read_header(path: Path) -> Header:
    """Return what a file of safetensors holds, which must have the bytes of its tensors;
    none of these is read.

    Raises:
        ValueError: if the file is damaged: names it.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(check_file(path), framework="pt") as file:
            names = file.keys()
            slices = [file.get_slice(name) for name in names]
            shapes = [torch.Size(tensor.get_shape()) for tensor in slices]
            kinds = {tensor.get_dtype() for tensor in slices}
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    double = "F64" in kinds and kinds.isdisjoint({"F32", "F16", "BF16"})
    return Header(shapes, torch.float64 if double else torch.float32)


def outlined(
    make: Callable[[], Made], shapes: Collection[torch.Size] | None = None
) -> Made:
    """Return what ``make`` returns, a network, with shapes and types, but without memory
    for its numbers; with some of them if its constructor looks at numbers.

    Args:
        make: makes the network.
        shapes: those of the tensors in the file of its weights, if these bound what
            its arguments may ask for.

    Raises:
        TooLarge: before it takes more time, or would take more memory, than the weights
            give reason for.
    """
    with warnings.catch_warnings():
        # An error will follow.
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        try:
            with Outlining(shapes), torch.device("meta"):
                return make()
        except (NotImplementedError, RuntimeError):
            # The constructor looks at numbers, which are nowhere on this device.
            looked_at = math.inf if shapes is None else LOOKED_AT
            with Outlining(shapes, looked_at), torch.device("meta"):
                return make()


class Outlining(TorchFunctionMode):
    """Inside, torch makes tensors on the device ``meta``, which have shapes and take no
    memory, and makes no more and no larger ones than the weights give reason for. Small
    ones for which a constructor names a device are made as they are, on the CPU.

    It goes around ``torch.device("meta")``.

    Args:
        shapes: those of the tensors in the file of weights; None for no bounds.
        looked_at: tensors of so many numbers are made as they are.

    Raises:
        TooLarge: inside, at the call that asks for too much.
    """

    def __init__(
        self, shapes: Collection[torch.Size] | None, looked_at: float = 0
    ) -> None:
        super().__init__()
        self.left = self.most_numbers = math.inf
        if shapes is not None:
            numbers = sum(map(torch.Size.numel, shapes))
            self.left = SPARE + EACH * len(shapes)
            self.most_numbers = SPARE_NUMBERS + TIMES_WEIGHTS * numbers
            self.why = (
                f"the file of weights holds {len(shapes)} tensors of {numbers:,} "
                "numbers"
            )
        self.looked_at = looked_at

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWS:
            return args[0]
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"]
        if func in _NOISE:
            func = torch.empty
            kwargs.pop("generator", None)
        # Only what makes tensors takes a device.
        if "device" in kwargs:
            result = self._make_tensor(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        if isinstance(result, Tensor) and result.numel() > self.most_numbers:
            raise TooLarge(
                f"its arguments ask for {result.numel():,} numbers at once: {self.why}"
            )
        return result

    def _make_tensor(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A tensor that is made, on ``meta`` if its numbers are not looked at."""
        # Here calls can end without harm.
        self.left -= 1
        if self.left < 0:
            raise TooLarge(f"its arguments ask for too many layers: {self.why}")
        outline = func(*args, **{**kwargs, "device": "meta"})
        # Constructors that name a device, as those of timm do, look at the numbers.
        device = kwargs["device"]
        named = device is not None and torch.device(device).type != "meta"
        if outline.numel() > max(self.looked_at, LOOKED_AT * named):
            return outline
        return func(*args, **{**kwargs, "device": "cpu"})
