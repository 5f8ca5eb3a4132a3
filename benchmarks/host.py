"""Where the processor's time of a training step on a GPU goes, before the GPU has
anything to do.
"""

import cProfile
import pstats
from collections.abc import Callable
from typing import Any

import torch

STEPS = 20
OWNERS = {
    "ours": ("/torchcaps/", "/benchmarks/"),
    "torch": ("/torch/",),
    "triton": ("/triton/",),
}
"""Whose Python it is, by parts of paths, the first that is found. The rest is compiled code: operations,
autograd's engine, and the launches themselves.
"""


def profile(step: Callable[[], object], device: str) -> dict[str, Any]:
    """Milliseconds of one step by whose code they are, and the functions that take
    longest.

    The profiler itself slows Python down, so compare shares. Autograd runs in the
    calling thread, where it is seen.
    """
    for _ in range(3):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    profiler = cProfile.Profile()
    with torch.autograd.set_multithreading_enabled(False):
        profiler.enable()
        for _ in range(STEPS):
            step()
        profiler.disable()
    if device == "cuda":
        torch.cuda.synchronize()
    owned = dict.fromkeys((*OWNERS, "compiled"), 0.0)
    functions = []
    launches, launching = 0, 0.0
    stats: Any = pstats.Stats(profiler)
    for (path, _, name), (_, calls, own, total, _) in stats.stats.items():
        owned[_owner(path)] += own
        functions.append((own, calls, f"{path.rpartition('/')[2]}:{name}"))
        if path.endswith("triton/runtime/jit.py") and name == "run":
            launches, launching = calls, total
    scale = 1000 / STEPS
    slowest = sorted(functions, reverse=True)[:15]
    return {
        "milliseconds": {owner: round(own * scale, 4) for owner, own in owned.items()},
        "launches of Triton": launches // STEPS,
        "microseconds a launch": round(1e6 * launching / max(1, launches), 1),
        "functions": [
            {
                "name": name,
                "milliseconds": round(own * scale, 4),
                "calls": calls / STEPS,
            }
            for own, calls, name in slowest
        ],
    }


def _owner(path: str) -> str:
    for owner, parts in OWNERS.items():
        if any(part in path for part in parts):
            return owner
    return "compiled"
