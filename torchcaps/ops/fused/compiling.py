"""How the C++ kernels are compiled: for this machine when they are first used, or for
others into the wheel.

Needs nothing but Python, since ``setup.py`` reads this file where neither torch nor
this package is installed.
"""

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

UNITS = tuple(Path(__file__).with_name(f"{name}.cpp") for name in ("native", "folded"))
"""What is compiled, all at once."""

SOURCES = (*UNITS, *sorted(UNITS[0].with_name("kernels").glob("*.hpp")))
"""With the headers that it includes."""

BUILT = Path(__file__).with_name("built")
"""Where a wheel has its libraries."""

GCC_ONLY = "-fno-tree-loop-distribute-patterns"
"""Keeps loops over vectors from becoming calls of memset and memcpy, which take longer.
Clang refuses to know it.
"""

FLAGS = (
    "-O3",
    "-fno-math-errno",
    "-std=c++20",
    "-Wno-psabi",
    "-fopenmp",
    "-fPIC",
    # x + 0 is x; NaN stays NaN.
    "-fno-signed-zeros",
    "-fno-trapping-math",
    GCC_ONLY,
)

LEVELS = {"AVX512": "x86-64-v4", "AVX2": "x86-64-v3"}
"""For which processors a wheel has a library, the best first, by what torch calls them.
"""


def find_compiler() -> list[str] | None:
    """The C++ compiler with its options: ``CXX``, or the first of c++, g++ and clang++
    that is there.

    Raises:
        RuntimeError: if ``CXX`` is not a command.
    """
    named = os.environ.get("CXX", "").strip()
    if not named:
        compiler = next(
            filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None
        )
        return None if compiler is None else [compiler]
    try:
        return shlex.split(named)
    except ValueError as error:
        raise RuntimeError(
            f"the environment variable CXX must be a command, got {named!r}: {error}"
        ) from error


def compile_library(compiler: Sequence[str], target: Path) -> None:
    """Compiles the library for the processor of this machine, with all temporary files
    in the folder of the target.

    Raises:
        RuntimeError: if it cannot be compiled, with what the compiler said.
    """
    scratch = target.parent
    objects = _compile(compiler, ["-march=native"], target, scratch)
    link = [*compiler, "-shared", "-fopenmp", *map(str, objects)]
    _run([*link, "-o", str(target)], scratch)
    for part in objects:
        part.unlink()


def compile_for_others(compiler: Sequence[str], folder: Path) -> list[Path]:
    """Compiles the libraries of a wheel into a folder, which is made, and returns them.

    They are not linked with a library for threads: torch brings one, under a name of
    its own, which is loaded by then.
    """
    machine = platform.machine()
    kinds = list(LEVELS.values()) if machine == "x86_64" else [machine]
    folder.mkdir(parents=True, exist_ok=True)
    libraries = []
    for kind in kinds:
        target = folder / f"native-{kind}.so"
        march = [f"-march={kind}"] if machine == "x86_64" else []
        objects = _compile(compiler, march, target)
        _run([*compiler, "-shared", "-s", *map(str, objects), "-o", str(target)])
        for part in objects:
            part.unlink()
        libraries.append(target)
    return libraries


def _compile(
    compiler: Sequence[str],
    march: Sequence[str],
    target: Path,
    scratch: Path | None = None,
) -> list[Path]:
    """Compiles the units beside a library, each by a compiler of its own, and returns
    their objects.
    """

    def compiled(unit: Path) -> Path:
        part = target.with_name(f"{target.stem}-{unit.stem}.o")
        command = [*compiler, *FLAGS, *march, "-c", str(unit)]
        _run([*command, "-o", str(part)], scratch)
        return part

    with ThreadPoolExecutor() as pool:
        return list(pool.map(compiled, UNITS))


def _run(command: Sequence[str], scratch: Path | None = None) -> None:
    """Runs a compiler, whose temporary files are in ``scratch`` if it is given."""
    environment = None if scratch is None else {**os.environ, "TMPDIR": str(scratch)}
    try:
        subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
            env=environment,
        )
    except subprocess.CalledProcessError as error:
        if GCC_ONLY in command and GCC_ONLY in error.stderr:
            return _run([part for part in command if part != GCC_ONLY], scratch)
        raise RuntimeError(
            "torchcaps' C++ kernels could not be compiled: "
            f"{' '.join(command)}\n{error.stderr[-2000:]}"
        ) from error
