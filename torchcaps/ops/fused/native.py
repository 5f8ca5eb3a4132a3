"""The routing primitive in C++ for CPUs: from the wheel, or compiled when it is first used.

A wheel for this kind of machine has the library in it, for several kinds of processors; it is called through a plain C
interface and depends on no version of torch. Where there is none that fits, as in a checkout, a C++20 compiler with
vector extensions and OpenMP is needed (GCC 12, Clang 15, or later), named by ``CXX`` (with options, as in ``g++ -m64``)
or found as ``c++``. What it makes is kept in the user's cache, and made again when the source or the processor changes.
"""

import ctypes
import fcntl
import hashlib
import logging
import os
import platform
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.ops.fused.compiling import BUILT, FLAGS, LEVELS, SOURCES, compile_library, find_compiler
from torchcaps.ops.fused.operators import Call

_MOMENTS, _SCORES, _BACKWARD = range(3)
_SIZES = ("images", "grid", "windows", "I", "J", "M", "P", "D", "shared", "similarity", "orphan", "hard", "threads")
_INPUTS = ("children", "transforms", "coordinates", "weights", "log_partition", "parents", "precision", "log_weight")
_RESULTS = ("mass", "sum", "scatter", "mean", "scores")


class _Call(ctypes.Structure):
    """``TorchcapsCall`` of the C++ source."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _SIZES),
        *((name, ctypes.c_void_p) for name in (*_INPUTS, "sites", *_RESULTS)),
        ("reduced", ctypes.c_int64),
        *((f"grad_{name}", ctypes.c_void_p) for name in (*_INPUTS, "scores")),
    ]


def moments(call: Call, *, orphan: bool, hard: bool, scatter: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """One E-step and its sums; see :class:`~torchcaps.ops.fused.operators.Kernels`."""
    B, _, J, M, _, D = call.sizes
    mass, total = call.children.new_empty(B, J), call.children.new_empty(B, J, M * D)
    second = torch.empty_like(total) if scatter else None
    _run(_MOMENTS, call, {"mass": mass, "sum": total, "scatter": second}, orphan=orphan, hard=hard)
    return mass, total, second


def moments_backward(
    call: Call,
    mean: Tensor,
    grad_mass: Tensor,
    grad_sum: Tensor,
    grad_scatter: Tensor | None,
    *,
    orphan: bool,
    hard: bool,
) -> Call:
    """The gradients of every tensor of the call."""
    upstream = {"mean": mean, "mass": grad_mass, "sum": grad_sum, "scatter": grad_scatter}
    return _backward(call, upstream, orphan=orphan, hard=hard)


def scores(call: Call, *, orphan: bool, reduced: bool) -> Tensor:
    """The logits (B, I, J), or their normaliser (B, I)."""
    B, I, J, *_ = call.sizes
    out = call.children.new_empty((B, I) if reduced else (B, I, J))
    if J == 0:
        return out.fill_(0.0 if orphan else -torch.inf)
    _run(_SCORES, call, {"scores": out}, orphan=orphan, reduced=reduced)
    return out


def scores_backward(call: Call, scores: Tensor, grad: Tensor, *, orphan: bool, reduced: bool) -> Call:
    """The gradients of every tensor of the call."""
    return _backward(call, {"grad_scores": grad}, orphan=orphan, reduced=reduced)


def _backward(call: Call, upstream: dict[str, Tensor | None], **options: bool) -> Call:
    if 0 in call.sizes:
        return call.gradients()
    grads = call.gradients(torch.empty_like)  # the kernels write them all
    _run(_BACKWARD, call, {**upstream, **{f"grad_{name}": grad for name, grad in _named(grads).items()}}, **options)
    return grads


def _named(call: Call) -> dict[str, Tensor | None]:
    """The tensors of a call by their names in the C++ source."""
    similarity = (*call.similarity, None, None, None)[:3]
    fields = (call.children, call.transforms, call.coordinates, call.weights, call.log_partition, *similarity)
    return dict(zip(_INPUTS, fields, strict=True))


def _run(which: int, call: Call, results: dict[str, Tensor | None], **options: bool) -> None:
    tensors = {**_named(call), "sites": call.sites, **results}
    images, grid, M, P = call.children.shape
    _, I, J, _, _, D = call.sizes
    windows = 1 if call.sites is None else len(call.sites)
    shared, similarity = call.transforms.shape[0] == 1 and I > 1, min(len(call.similarity), 2)
    sizes = zip(_SIZES, (images, grid, windows, I, J, M, P, D, shared, similarity), strict=False)
    pointers = {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None}
    done = library().torchcaps_run(
        ctypes.byref(_Call(**dict(sizes), threads=torch.get_num_threads(), **options, **pointers)),
        which,
        call.children.dtype == torch.float64,
    )
    if not done:
        raise IndexError(f"sites must be from 0 to {grid - 1}, got {call.sites}")


@cache
def library() -> ctypes.CDLL:
    """The compiled library.

    Raises:
        RuntimeError: if none can be loaded or compiled here, with what the compiler or the loader said.
    """
    for path in built():
        with suppress(OSError):  # a C library that is older than that of the machine that built it, for one
            return _loaded(path)
    path = build()
    try:
        return _loaded(path)
    except OSError as error:
        raise RuntimeError(
            f"torchcaps' C++ kernels could not be loaded: {error}; if programs may not run from {path.parent}, let "
            "XDG_CACHE_HOME name a folder where they may"
        ) from error


def _loaded(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    loaded.torchcaps_run.argtypes = (ctypes.POINTER(_Call), ctypes.c_int64, ctypes.c_int64)
    loaded.torchcaps_run.restype = ctypes.c_int64
    return loaded


def built() -> list[Path]:
    """The libraries that came with the package and suit this processor, the best first."""
    machine = platform.machine()
    kinds = [machine]
    if machine == "x86_64":
        order, best = list(LEVELS), torch.backends.cpu.get_cpu_capability()
        kinds = [LEVELS[one] for one in order[order.index(best) :]] if best in order else []
    return [path for kind in kinds if (path := BUILT / f"native-{kind}.so").is_file()]


def prepare() -> None:
    """Loads the library, compiling it if need be.

    Raises:
        RuntimeError: if that cannot be done here.
    """
    library()


def build() -> Path:
    """Compiles the library if the user's cache does not have it whole, and returns its path.

    Its name ends in the digest of what is in it: a file that was cut or damaged, which could end the program when it is
    loaded, does not fit its name, and is compiled again. One process at a time compiles; others wait for it.

    Raises:
        RuntimeError: if it cannot be compiled here, with what the compiler said.
    """
    compiler = find_compiler()
    if compiler is None:
        raise RuntimeError("torchcaps' C++ kernels need a compiler, and there is no c++, g++ or clang++")
    known = "\0".join([*(path.read_text() for path in SOURCES), *compiler, *FLAGS, _processor()])
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "torchcaps" / "native"
    name = hashlib.sha256(known.encode()).hexdigest()[:16]
    try:
        found = _whole(folder, name)
        if found is None:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # given back by a process that dies
                found = _whole(folder, name) or _made(compiler, folder, name)
    except OSError as error:
        raise RuntimeError(
            f"torchcaps' C++ kernels could not be compiled with {' '.join(compiler)}: {error}"
        ) from error
    return found


def _whole(folder: Path, name: str) -> Path | None:
    """The library of that name, if it is there and as it was written."""
    return next((path for path in folder.glob(f"{name}-*.so") if path.stem == f"{name}-{_digest(path)}"), None)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _made(compiler: list[str], folder: Path, name: str) -> Path:
    """Compiles the library; what an earlier, interrupted process left is swept away."""
    for left in folder.glob("making-*"):
        shutil.rmtree(left, ignore_errors=True)
    damaged = list(folder.glob(f"{name}-*.so"))
    cause = f" again, because {damaged[0]} is damaged" if damaged else ", once"
    logging.getLogger("torchcaps").warning("compiling torchcaps' C++ kernels%s: this takes half a minute", cause)
    for path in damaged:
        path.unlink()
    with tempfile.TemporaryDirectory(prefix="making-", dir=folder) as scratch:
        made = Path(scratch) / "made.so"
        compile_library(compiler, made)
        with made.open("rb") as written:
            os.fsync(written.fileno())  # a name in the cache must not come before what it names
        return made.replace(folder / f"{name}-{_digest(made)}.so")


def _processor() -> str:
    """What ``-march=native`` means here: a home may be shared between machines."""
    info = Path("/proc/cpuinfo")
    flags = [line for line in info.read_text().splitlines() if line.startswith("flags")][:1] if info.is_file() else []
    return " ".join([platform.machine(), platform.processor(), *flags])
