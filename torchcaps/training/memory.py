"""Keeps CPU memory that a training step frees in the process.

Every step needs as much memory as the one before. glibc returns large blocks to the system at once, and gets them back
page by page, each one zeroed by the system: 5,000 page faults in a step of ``capsnet_small`` with 128 images, a tenth
of its time.
"""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
"""Names of ``mallopt``, in glibc's malloc.h."""

_KEEPING = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1}
"""Large blocks are not mapped separately, and the end of the heap is not returned to the system."""

_GIVING_BACK = {_MMAP_MAX: 65536, _MMAP_THRESHOLD: 32 << 20, _TRIM_THRESHOLD: 64 << 20}
"""The defaults of glibc; for the two thresholds, the values that it raises them to in time."""


@contextmanager
def kept_memory(keep: bool = True) -> Iterator[None]:
    """Lets this process keep freed memory within the context, if ``keep`` and with the allocator of glibc.

    Example:
        >>> from torchcaps.training.memory import kept_memory
        >>> with kept_memory():
        ...     losses = [float(torch.rand(1000, 1000).sum()) for _ in range(3)]  # one block of memory for all three
        >>> len(losses)
        3
    """
    if not keep or platform.libc_ver()[0] != "glibc":
        yield
        return
    allocator = ctypes.CDLL(None)
    for name, value in _KEEPING.items():
        allocator.mallopt(name, value)
    try:
        yield
    finally:
        for name, value in _GIVING_BACK.items():
            allocator.mallopt(name, value)
        allocator.malloc_trim(0)
