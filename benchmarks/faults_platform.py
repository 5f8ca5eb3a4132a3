"""Rows of ``python -m benchmarks faults``: another user of the machine, compilers that
are killed, another processor.
"""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks.faults import fault
from torchcaps.ops.fused import library
from torchcaps.ops.fused.compiling import find_compiler

_HOSTILE = """
#include <cstdio>
__attribute__((constructor)) void act() { std::fclose(std::fopen("MARK", "w")); }
"""


@contextmanager
def _empty_cache(folder: Path) -> Iterator[Path]:
    """The folder of kernels in a new cache, and a quick compiler: it hands out the
    library that was compiled before.
    """
    whole = library.build()
    compiler = folder / "compiler"
    compiler.write_text(
        '#!/bin/sh\nsleep "${SLOW:-0}"\n'
        f'while [ "$1" != "-o" ]; do shift; done\ncp {whole} "$2"\n'
    )
    compiler.chmod(0o700)
    cache = folder / "cache"
    library.library.cache_clear()
    with patch.dict(os.environ, CXX=str(compiler), XDG_CACHE_HOME=str(cache)):
        yield cache / "torchcaps" / "native"
    library.library.cache_clear()


def _hostile_library(folder: Path) -> Path:
    """A library that leaves a mark when it is loaded."""
    source = folder / "hostile.cpp"
    source.write_text(_HOSTILE.replace("MARK", str(folder / "mark")))
    target = folder / "hostile.so"
    compiler = [*(find_compiler() or ()), "-shared", "-fPIC"]
    subprocess.run([*compiler, str(source), "-o", str(target)], check=True)
    return target


def _open_to_all(path: Path) -> None:
    path.chmod(0o777)


def _somebody_elses(path: Path) -> None:
    os.chown(path, 65534, -1, follow_symlinks=False)


@fault(
    "kernels that another user left in the cache",
    "compiled anew, nothing executed, nothing emptied",
)
def planted_kernels(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """A library under the right name in a folder, or as a file, that others may write
    to or own; a library and a lock that are links. Only root can give files away.
    """
    if find_compiler() is None:
        return
    hostile = _hostile_library(folder).read_bytes()
    gifts: list[Callable[[Path], None]] = [_open_to_all]
    if os.geteuid() == 0:
        gifts.append(_somebody_elses)
    for number in range(count):
        place = folder / f"planted-{number}"
        place.mkdir()
        thesis = place / "thesis"
        thesis.write_text("years of work")
        with _empty_cache(place) as cache:
            path = library.build()
            path.write_bytes(hostile)
            path = path.rename(
                path.with_name(f"{path.stem[:16]}-{library._digest(path)}.so")
            )
            target = chance.choice([path, cache, cache.parent, cache.parents[1]])
            if chance.random() < 0.3:
                target = path.rename(place / "elsewhere.so")
                path.symlink_to(target)
            chance.choice(gifts)(target)
            if chance.random() < 0.5:
                (cache / "lock").unlink()
                (cache / "lock").symlink_to(thesis)
            loaded = library.library()
        yield (
            loaded.vector_bytes > 0
            and not (folder / "mark").exists()
            and thesis.read_text() == "years of work"
        )


@fault(
    "three processes compile at once, one is killed",
    "the others have one whole library, nothing is left",
)
def killed_compilers(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """SIGKILL at a random moment: before it compiles, while it does, and after."""
    if find_compiler() is None:
        return
    code = "from torchcaps.ops.fused import library; library.library()"
    for number in range(count):
        place = folder / f"killed-{number}"
        place.mkdir()
        with _empty_cache(place) as cache, patch.dict(os.environ, SLOW="1"):
            processes = [
                subprocess.Popen([sys.executable, "-W", "ignore", "-c", code])
                for _ in range(3)
            ]
            killed = chance.choice(processes)
            try:
                killed.wait(chance.uniform(1, 10))
            except subprocess.TimeoutExpired:
                killed.kill()
            ends = [process.wait() for process in processes if process is not killed]
            killed.wait()
            left = {"lock", library.build().name}
        yield ends == [0, 0] and {path.name for path in cache.iterdir()} == left


_STEP = """
import sys, torch, torchcaps as tc
torch.set_default_dtype(torch.float64)
network = tc.create_model("capsnet_digits", routing=tc.create_routing(sys.argv[1]))
for weight in network.parameters():
    weight.data = torch.arange(weight.numel()).sin().reshape(weight.shape) / 10
images = torch.arange(8.0 * 64).cos().square().reshape(8, 1, 8, 8)
prediction = network(images)
prediction.activation.square().sum().backward()
gradients = [weight.grad for weight in network.parameters() if weight.grad is not None]
torch.save([prediction.activation.detach(), *gradients], sys.argv[2])
"""


@fault("another processor", "the same numbers and gradients to 1e-9")
def other_processors(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """A step in float64 with other instruction sets, another number of threads, and
    without a compiler, against one with the settings of this machine.
    """
    for number in range(count):
        routing = chance.choice(["dynamic", "em", "kmeans", "self_attention"])
        setting = {
            "ATEN_CPU_CAPABILITY": chance.choice(["default", "avx2"]),
            "ONEDNN_MAX_CPU_ISA": chance.choice(["SSE41", "AVX2"]),
            "OMP_NUM_THREADS": chance.choice(["1", "2"]),
            "PATH": chance.choice([os.environ["PATH"], "/nowhere"]),
        }
        results = []
        for name, environment in (("here", {}), ("elsewhere", setting)):
            path = folder / f"{name}-{number}.pt"
            subprocess.run(
                [sys.executable, "-W", "ignore", "-c", _STEP, routing, str(path)],
                env={**os.environ, **environment},
                check=True,
            )
            results.append(torch.load(path, weights_only=True))
        here, elsewhere = results
        yield len(here) == len(elsewhere) and all(
            torch.allclose(actual, expected, rtol=1e-9, atol=1e-9)
            for actual, expected in zip(elsewhere, here, strict=True)
        )
