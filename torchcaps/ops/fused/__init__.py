"""The primitive in fused kernels: C++ on a CPU, Triton on a GPU."""

from torchcaps.ops.fused.operators import Call, Kernels, NativeVotes, TritonVotes, why_not

__all__ = ["Call", "Kernels", "NativeVotes", "TritonVotes", "why_not"]
