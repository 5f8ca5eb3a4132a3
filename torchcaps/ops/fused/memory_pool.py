"""Memory that only the kernels see, used again as soon as its tensors are gone."""

import ctypes
import math
import threading
import weakref
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor


class MemoryPool:
    """Memory for tensors that are made anew in each training step.

    The system clears new memory page by page, which takes longer than the kernels take
    to fill it. The pool has as many blocks as tensors have been alive at once.
    """

    def __init__(self) -> None:
        self._free: list[torch.UntypedStorage] = []  # the smallest first
        self._left: deque[torch.UntypedStorage] = (
            deque()
        )  # of tensors that are gone, in whatever thread they were
        self._lock = threading.Lock()

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor that is not initialised: in the smallest block that is large enough,
        or in a new one.
        """
        count = math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        block = self._block(count * dtype.itemsize)
        buffer = (ctypes.c_char * block.nbytes()).from_address(
            block.data_ptr()
        )  # lives as long as the tensor's memory
        weakref.finalize(buffer, self._left.append, block).atexit = False
        return torch.frombuffer(buffer, dtype=dtype, count=count).view(shape)

    def _block(self, size: int) -> torch.UntypedStorage:
        with self._lock:
            while self._left:
                insort(
                    self._free, self._left.popleft(), key=torch.UntypedStorage.nbytes
                )
            place = bisect_left(self._free, size, key=torch.UntypedStorage.nbytes)
            if place < len(self._free):
                return self._free.pop(place)
            if self._free:
                self._free.pop()  # the new one is larger
        return torch.UntypedStorage(size)
