"""``python -m benchmarks slots``: slot attention beside the textbook's, and others.

All have the same sizes and are timed in turn: ours; the textbook, Algorithm 1 of
Locatello et al. 2020 line by line; the textbook compiled by ``torch.compile``; and the
package ``slot-attention`` of PyPI, if it is installed.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import torchcaps as tc
from benchmarks import measure
from benchmarks.report import Show

STEPS = 3
EPSILON = 1e-8


class Sizes(NamedTuple):
    """Of one comparison: examples, features, numbers of a feature and a slot, slots."""

    batch: int
    features: int
    dim: int
    slots: int

    @property
    def hidden(self) -> int:
        """The numbers of the hidden layer of the MLP."""
        return 2 * self.dim


SIZES = {
    "cpu": (
        Sizes(16, 1024, 64, 7),
        Sizes(4, 4096, 64, 11),
        Sizes(32, 256, 64, 7),
        Sizes(16, 196, 256, 7),
        Sizes(8, 196, 768, 24),
    ),
    "cuda": (
        Sizes(64, 1024, 64, 7),
        Sizes(16, 16384, 64, 11),
        Sizes(64, 196, 256, 7),
        Sizes(64, 196, 768, 24),
    ),
}


class Textbook(nn.Module):
    """Slot attention as Algorithm 1 of Locatello et al. 2020 has it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        _, _, D, S = sizes
        self.start = nn.Parameter(torch.randn(S, D) / D**0.5)
        self.norm_input, self.norm_slot = nn.LayerNorm(D), nn.LayerNorm(D)
        self.query = nn.Linear(D, D, bias=False)
        self.key_value = nn.Linear(D, 2 * D, bias=False)
        self.cell = nn.GRUCell(D, D)
        self.mlp = nn.Sequential(
            nn.LayerNorm(D),
            nn.Linear(D, sizes.hidden),
            nn.ReLU(),
            nn.Linear(sizes.hidden, D),
        )

    def forward(self, features: Tensor) -> Tensor:
        """The slots, (B, S, D)."""
        key, value = self.key_value(self.norm_input(features)).chunk(2, -1)
        key = key * key.shape[-1] ** -0.5
        slots = self.start.expand(len(features), -1, -1)
        for _ in range(STEPS):
            logits = key @ self.query(self.norm_slot(slots)).mT
            attention = logits.softmax(-1) + EPSILON
            attention = attention / attention.sum(1, keepdim=True)
            rows = (attention.mT @ value).flatten(0, 1)
            slots = self.cell(rows, slots.flatten(0, 1)).view_as(slots)
            slots = slots + self.mlp(slots)
        return slots


def ours(textbook: Textbook, sizes: Sizes) -> nn.Module:
    """Our layer with the weights of the textbook."""
    routing: Any = tc.routing.SlotAttentionRouting(steps=STEPS, hidden=sizes.hidden)
    layer = tc.Slots(sizes.slots, sizes.dim, features=sizes.dim, routing=routing)
    routing = layer.routing
    with torch.no_grad():
        routing.first.queries.copy_(textbook.start)
    pairs: Any = (
        (routing.norm_child, textbook.norm_input),
        (routing.norm_slot, textbook.norm_slot),
        (routing.to_query, textbook.query),
        (routing.to_key_value, textbook.key_value),
        (routing.update.cell, textbook.cell),
        (routing.update.mlp, textbook.mlp),
    )
    for own, other in pairs:
        own.load_state_dict(other.state_dict())
    return layer


def candidates(sizes: Sizes, device: str, compiled: bool) -> dict[str, Any]:
    """The modules, by name."""
    torch.manual_seed(0)
    textbook = Textbook(sizes)
    modules: dict[str, Any] = {"ours": ours(textbook, sizes)}
    modules["textbook"] = textbook
    if compiled:
        modules["textbook, compiled"] = torch.compile(textbook)
    if find_spec("slot_attention"):
        from slot_attention import SlotAttention

        modules["slot-attention of PyPI"] = SlotAttention(
            num_slots=sizes.slots, dim=sizes.dim, iters=STEPS, hidden_dim=sizes.hidden
        )
    return {name: module.to(device) for name, module in modules.items()}


def call(module: nn.Module, features: Tensor, training: bool) -> Callable[[], object]:
    """A forward pass, or a training step without an optimizer."""
    leaves = [features, *module.parameters()]

    def run() -> object:
        with torch.set_grad_enabled(training):
            answer = module(features)
            slots = answer.pose if isinstance(answer, tc.Capsules) else answer
            if not training:
                return slots
            return torch.autograd.grad(slots.square().mean(), leaves, allow_unused=True)

    return run


def seconds(
    calls: dict[str, Callable[[], object]], runs: int, device: str, threads: int
) -> dict[str, float]:
    """The least seconds of each, in turn: of the processor, where one thread works."""
    if device == "cuda" or threads > 1:
        timed = measure.interleaved(calls, runs, device)
        return {name: statistics.median(values) for name, values in timed.items()}
    least = dict.fromkeys(calls, float("inf"))
    for run in range(runs + 1):
        for name, call in calls.items():
            start = time.process_time()
            call()
            if run:  # the first one warms up
                least[name] = min(least[name], time.process_time() - start)
    return least


def run(options: argparse.Namespace, show: Show) -> None:
    """Measures and shows all comparisons."""
    torch.set_num_threads(options.threads)
    measure.full_float32()
    results = []
    for sizes in SIZES[options.device]:
        modules = candidates(sizes, options.device, not options.no_compile)
        features = torch.randn(*sizes[:3], device=options.device, requires_grad=True)
        with torch.no_grad():
            expected = modules["textbook"](features)
            error = (modules["ours"](features).pose - expected).abs().max()
        show(f"{tuple(sizes)}, differs by {float(error):.1e}")
        for training in (False, True):
            calls = {
                name: call(module, features, training)
                for name, module in modules.items()
            }
            times = seconds(calls, options.runs, options.device, options.threads)
            best = min(value for name, value in times.items() if name != "ours")
            row = {
                "sizes": sizes._asdict(),
                "training": training,
                "milliseconds": {k: round(v * 1e3, 3) for k, v in times.items()},
                "error": float(error),
                "times as fast as the best of the others": best / times["ours"],
            }
            results.append(row)
            kind = "step" if training else "forward"
            figures = ", ".join(f"{k} {v * 1e3:.2f}" for k, v in times.items())
            show(f"  {kind}: {figures} ms; {best / times['ours']:.2f} times as fast")
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
