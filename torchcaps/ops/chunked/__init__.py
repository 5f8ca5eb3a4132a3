"""The primitive in plain PyTorch with bounded memory, on any device."""

from torchcaps.ops.chunked.votes import ChunkedVotes
