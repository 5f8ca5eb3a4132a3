"""Random numbers that tests share."""

import torch
from torch import Tensor


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers in float64, always the same for one shape and seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)
