"""What all rooms need of numbers: the dtype to compute in, and divisors that cannot vanish."""

import torch
from torch import Tensor


def positive(mass: Tensor) -> Tensor:
    """The mass, or next to nothing where there is less: a divisor whose inverse is finite, and its gradient too."""
    return mass.clamp(min=torch.finfo(mass.dtype).tiny ** 0.5)


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """The dtype that routing computes in: the widest of the inputs, and float32 at least."""
    dtype = torch.float32
    for tensor in tensors:
        if tensor is not None:
            dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype
