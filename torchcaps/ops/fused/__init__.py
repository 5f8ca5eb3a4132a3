"""The primitive in fused kernels: C++ on a CPU, Triton on a GPU."""

from torchcaps.ops.fused import folded as folded
from torchcaps.ops.fused.call import Call, TritonVotes
from torchcaps.ops.fused.deferred import NativeVotes
from torchcaps.ops.fused.operators import Kernels, why_not
