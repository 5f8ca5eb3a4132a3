"""The compiled C++ kernels: from the wheel, or compiled when they are first used.

A wheel holds the library for several kinds of processors; it is called through a plain
C interface and depends on no version of torch. Where none of them fits, as in a
checkout, it takes a C++20 compiler with vector extensions and OpenMP (GCC 12, Clang 15,
or later), named by ``CXX`` (with options, as in ``g++ -m64``) or found as ``c++``. What
that makes is kept in the user's cache, and made again when the source or the processor
changes. It is executed: a cache that other users may write to is not used.
"""

import ctypes
import fcntl
import hashlib
import logging
import os
import platform
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from torchcaps.ops.fused.compiling import (
    BUILT,
    FLAGS,
    LEVELS,
    SOURCES,
    compile_library,
    find_compiler,
)
from torchcaps.ops.fused.private import NotPrivate, make_private, open_private

_UNLOADABLE = (OSError, AttributeError)
"""What ctypes raises for what is no library, and for one without the kernels."""


@cache
def library() -> Any:
    """The compiled library, a ``ctypes.CDLL``; its ``vector_bytes`` are those of a
    vector of the processor.

    Raises:
        RuntimeError: if none can be loaded or compiled here, with what the compiler or
            the loader said.
    """
    for path in built():
        # The C library may be older than that of the machine that built it.
        with suppress(*_UNLOADABLE):
            return _loaded(path)
    try:
        return _loaded_or_named(build())
    except NotPrivate as problem:
        warnings.warn(
            f"torchcaps' C++ kernels are compiled for this process alone, because "
            f"{problem}: make the folder yours alone (chown, chmod go-w), or let "
            "XDG_CACHE_HOME name one that is",
            RuntimeWarning,
            stacklevel=2,
        )
        return _for_this_process()


def _loaded_or_named(path: Path) -> Any:
    """The library that was compiled here; a `RuntimeError` if it cannot be loaded."""
    try:
        return _loaded(path)
    except _UNLOADABLE as error:
        raise RuntimeError(
            f"torchcaps' C++ kernels could not be loaded: {error}; if programs may not "
            f"run from {path.parent}, let XDG_CACHE_HOME name a folder where they may"
        ) from error


_RECORD, _NUMBER = ctypes.c_char_p, ctypes.c_int64
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "torchcaps_run": (_RECORD, _NUMBER, _NUMBER),
    "torchcaps_agree": (_RECORD, _RECORD, _NUMBER, _NUMBER),
    "torchcaps_folded": (_RECORD, _NUMBER, _NUMBER),
    "torchcaps_folded_routing": (_RECORD, _NUMBER, _NUMBER),
    "torchcaps_folded_kept": (_RECORD, _NUMBER),
    "torchcaps_vector_bytes": (),
}
"""What the functions of the library take; all return a number."""


def _loaded(path: Path) -> Any:
    loaded: Any = ctypes.CDLL(str(path))
    for name, arguments in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.argtypes = arguments
        function.restype = _NUMBER
    loaded.vector_bytes = loaded.torchcaps_vector_bytes()
    return loaded


def built() -> list[Path]:
    """The libraries that came with the package and suit this processor, the best
    first.
    """
    machine = platform.machine()
    kinds = [machine]
    if machine == "x86_64":
        order = list(LEVELS)
        best = torch.backends.cpu.get_cpu_capability()
        if best in order:
            kinds = [LEVELS[level] for level in order[order.index(best) :]]
        else:
            kinds = []
    return [path for kind in kinds if (path := BUILT / f"native-{kind}.so").is_file()]


def build() -> Path:
    """Compiles the library if the user's cache does not have it whole, and returns its
    path.

    Its name ends in the digest of what is in it: a file that was cut or damaged, which
    could end the program when it is loaded, does not fit its name, and is compiled
    again. One process at a time compiles; others wait for it. Nobody but this user may
    write to the cache, since what is in it is executed.

    Raises:
        NotPrivate: if others may write there.
        RuntimeError: if it cannot be compiled here, with what the compiler said.
    """
    compiler = _compiler()
    folder = (
        Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        / "torchcaps"
        / "native"
    )
    name = _name(compiler)
    with _named_errors(compiler):
        make_private(folder)
        library = _cached_library(folder, name)
        if library is None:
            lock_handle = open_private(folder / "lock", os.O_RDWR | os.O_CREAT)
            with os.fdopen(lock_handle) as lock:
                # A process that dies gives the lock back.
                fcntl.flock(lock, fcntl.LOCK_EX)
                library = _cached_library(folder, name) or _compiled_library(
                    compiler, folder, name
                )
    return library


def _for_this_process() -> Any:
    """The library, compiled and loaded from a folder that is removed afterwards."""
    compiler = _compiler()
    with (
        _named_errors(compiler),
        tempfile.TemporaryDirectory(prefix="torchcaps-") as scratch,
    ):
        make_private(Path(scratch))
        path = Path(scratch, "native.so")
        compile_library(compiler, path)
        return _loaded_or_named(path)


def _compiler() -> list[str]:
    compiler = find_compiler()
    if compiler is None:
        raise RuntimeError(
            "torchcaps' C++ kernels need a compiler, and there is no c++, g++ or "
            "clang++"
        )
    return compiler


@contextmanager
def _named_errors(compiler: list[str]) -> Iterator[None]:
    """Turns errors of files into a `RuntimeError` that names the compiler."""
    try:
        yield
    except OSError as error:
        raise RuntimeError(
            f"torchcaps' C++ kernels could not be compiled with {' '.join(compiler)}: "
            f"{error}"
        ) from error


def _name(compiler: list[str]) -> str:
    """The name of what is compiled here: a digest of the source, the compiler and the
    processor.
    """
    description = "\0".join(
        [*(path.read_text() for path in SOURCES), *compiler, *FLAGS, _machine()]
    )
    return hashlib.sha256(description.encode()).hexdigest()[:16]


def _cached_library(folder: Path, name: str) -> Path | None:
    """The library of that name, if it is there, as it was written, and of this user."""
    for path in folder.glob(f"{name}-*.so"):
        with suppress(NotPrivate):
            if path.stem == f"{name}-{_digest(path)}":
                return path
    return None


def _digest(path: Path) -> str:
    with os.fdopen(open_private(path, os.O_RDONLY), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


def _compiled_library(compiler: list[str], folder: Path, name: str) -> Path:
    """Compiles the library; what an earlier, interrupted process left is swept away."""
    for left in folder.glob("making-*"):
        shutil.rmtree(left, ignore_errors=True)
    damaged = list(folder.glob(f"{name}-*.so"))
    cause = (
        f" again, because {damaged[0]} is damaged or another user's"
        if damaged
        else ", once"
    )
    logging.getLogger("torchcaps").warning(
        "compiling torchcaps' C++ kernels%s: this takes a minute", cause
    )
    for path in damaged:
        path.unlink()
    with tempfile.TemporaryDirectory(prefix="making-", dir=folder) as scratch:
        compiled = Path(scratch) / "made.so"
        compile_library(compiler, compiled)
        # Whatever the umask lets others do.
        compiled.chmod(0o700)
        with compiled.open("rb") as written:
            # A name in the cache must not come before what it names.
            os.fsync(written.fileno())
        return compiled.replace(folder / f"{name}-{_digest(compiled)}.so")


def _machine() -> str:
    """What ``-march=native`` and the C library are here: machines and containers may
    share a home.
    """
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    flags = [line for line in lines if line.startswith(("flags", "Features"))][
        :1
    ]  # x86, ARM
    return " ".join(
        [platform.machine(), platform.processor(), *platform.libc_ver(), *flags]
    )
