"""Memory that only the kernels see, used again as soon as nobody holds it."""

import ctypes
import math
import threading
import weakref
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor


class Rooms:
    """Memory for tensors that are made anew in each training step.

    What the system gives out anew, it clears first, page by page, which takes longer than the kernels take to fill it.
    There are as many rooms as tensors have been held at once.
    """

    def __init__(self) -> None:
        self._free: list[torch.UntypedStorage] = []  # the smallest first
        self._left: deque[torch.UntypedStorage] = deque()  # by tensors that are gone, in whatever thread
        self._lock = threading.Lock()

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor with any numbers in it: in the least room that is large enough, or in a new one."""
        count = math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        room = self._room(count * dtype.itemsize)
        guest = (ctypes.c_char * room.nbytes()).from_address(room.data_ptr())  # lives as long as the tensor's memory
        weakref.finalize(guest, self._left.append, room).atexit = False
        return torch.frombuffer(guest, dtype=dtype, count=count).view(shape)

    def _room(self, size: int) -> torch.UntypedStorage:
        with self._lock:
            while self._left:
                insort(self._free, self._left.popleft(), key=torch.UntypedStorage.nbytes)
            place = bisect_left(self._free, size, key=torch.UntypedStorage.nbytes)
            if place < len(self._free):
                return self._free.pop(place)
            if self._free:
                self._free.pop()  # the new one is larger
        return torch.UntypedStorage(size)
