"""The primitive in fused kernels: C++ on a CPU, Triton on a GPU."""

from torchcaps.ops.fused.at_once import TritonVotes
from torchcaps.ops.fused.call import Call
from torchcaps.ops.fused.deferred import NativeVotes
<<<<<<< HEAD
from torchcaps.ops.fused.operators import Kernels, TritonVotes, why_not
=======
from torchcaps.ops.fused.operators import Kernels, why_not

__all__ = ["Call", "Kernels", "NativeVotes", "TritonVotes", "why_not"]
>>>>>>> 7cd9752f (All steps of dynamic and EM routing at once on a GPU: one operator a layer, few launches, fields as callers have them)
