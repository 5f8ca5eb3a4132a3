"""The routing primitive in C++ for CPUs, compiled when it is first used.

Needs a C++20 compiler with vector extensions (GCC 12, Clang 15, or later), named by ``CXX`` or found as ``c++``. The
library is kept in the user's cache, and compiled again when the source, torch or the processor changes.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.ops.fused.operators import Call

SOURCE = Path(__file__).with_suffix(".cpp")
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-std=c++20", "-Wno-psabi", "-fopenmp", "-fPIC", "-shared")

_MOMENTS, _SCORES, _BACKWARD = range(3)
_SIZES = ("images", "grid", "windows", "I", "J", "M", "P", "D", "shared", "similarity", "orphan", "hard")
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
    grads = call.gradients()
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
        ctypes.byref(_Call(**dict(sizes), **options, **pointers)), which, call.children.dtype == torch.float64
    )
    if not done:
        raise IndexError(f"sites must be from 0 to {grid - 1}, got {call.sites}")


@cache
def library() -> ctypes.CDLL:
    """The compiled library.

    Raises:
        RuntimeError: if it cannot be compiled here, with what the compiler said.
    """
    loaded = ctypes.CDLL(str(build()))
    loaded.torchcaps_run.argtypes = (ctypes.POINTER(_Call), ctypes.c_int64, ctypes.c_int64)
    loaded.torchcaps_run.restype = ctypes.c_int64
    return loaded


def prepare() -> None:
    """Compiles and loads the library.

    Raises:
        RuntimeError: if that cannot be done here.
    """
    library()


def build() -> Path:
    """Compiles the library if the user's cache does not have it, and returns its path.

    Raises:
        RuntimeError: if it cannot be compiled here, with what the compiler said.
    """
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        raise RuntimeError("torchcaps' C++ kernels need a compiler, and there is no c++, g++ or clang++")
    known = "\0".join([SOURCE.read_text(), compiler, *FLAGS, torch.__version__, _processor()])
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "torchcaps" / "native"
    target = folder / f"{hashlib.sha256(known.encode()).hexdigest()[:16]}.so"
    if target.exists():
        return target
    logging.getLogger("torchcaps").warning("compiling torchcaps' C++ kernels, once: this takes half a minute")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _compile(compiler, Path(scratch) / target.name)
            (Path(scratch) / target.name).replace(target)  # in one step: others may be compiling too
    except OSError as error:
        raise RuntimeError(f"torchcaps' C++ kernels could not be compiled with {compiler}: {error}") from error
    return target


def _compile(compiler: str, target: Path) -> None:
    from torch.utils.cpp_extension import include_paths

    libraries = Path(torch.__file__).parent / "lib"
    command = [compiler, *FLAGS, *(f"-I{path}" for path in include_paths()), str(SOURCE), "-o", str(target)]
    command += [f"-L{libraries}", "-ltorch_cpu", "-lc10"]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(
            f"torchcaps' C++ kernels could not be compiled: {' '.join(command)}\n{error.stderr[-2000:]}"
        ) from error


def _processor() -> str:
    """What ``-march=native`` means here: a home may be shared between machines."""
    info = Path("/proc/cpuinfo")
    flags = [line for line in info.read_text().splitlines() if line.startswith("flags")][:1] if info.is_file() else []
    return " ".join([platform.machine(), platform.processor(), *flags])
