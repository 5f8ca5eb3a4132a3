"""Where the time of a training step goes: each moment counts for the innermost part that is running.

Lightning reports when its own parts begin and end (actions of its profiler), hooks report when a convolution, a routed
layer, the decoder or a loss runs forward, and each node of the autograd graph counts for the part that made it.
Everything in between counts for the enclosing part: the squash between a convolution and a routed layer for the rest of
the network, the bookkeeping of a step for the loop.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from lightning.pytorch.profilers import Profiler
from torch import Tensor, nn

from torchcaps.losses import ActivationLoss, ReconstructionLoss
from torchcaps.models import ImageClassifier
from torchcaps.routing import Routing
from torchcaps.training import Learner

CONVOLUTIONS, ROUTING, DECODER, NETWORK = "convolutions", "routing", "decoder", "rest of the network"
LOSS, OPTIMIZER, DATA, LOOP = "loss", "optimizer", "data", "loop, metrics"
PARTS = (CONVOLUTIONS, ROUTING, DECODER, NETWORK, LOSS, OPTIMIZER, DATA, LOOP)
"""The parts of a training step."""

_ACTIONS = {
    "train_dataloader_next": DATA,
    "batch_to_device": DATA,
    "optimizer_step": OPTIMIZER,
    "zero_grad": OPTIMIZER,
    "backward": NETWORK,
    "training_step": LOOP,
}
"""The parts of Lightning's actions, by the end of their names; others count for the enclosing part."""


def part_of(module: nn.Module, network: ImageClassifier) -> str | None:
    """The part that a module counts for; None for the enclosing one."""
    if module is network:
        return NETWORK
    if isinstance(module, nn.modules.conv._ConvNd):
        return CONVOLUTIONS
    if isinstance(getattr(module, "routing", None), Routing):
        return ROUTING
    if module is getattr(network, "decoder", None):
        return DECODER
    return LOSS if isinstance(module, (ActivationLoss, ReconstructionLoss)) else None


class Stages(Profiler):
    """Adds up seconds of each of :data:`PARTS` over the steps of a training.

    Args:
        clock: gives seconds; default: the CPU time of this thread if torch uses one thread, else the wall clock.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        super().__init__()
        self.clock = clock or (time.thread_time if torch.get_num_threads() == 1 else time.perf_counter)
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._open = [LOOP]
        self._made: list[tuple[int, str]] = []
        """Numbers of nodes of the autograd graph, ascending, and the part that makes the nodes from each one on."""
        self._since = self.clock()

    def mark(self) -> dict[str, float]:
        """The seconds of each part since the last mark."""
        self._note()
        found, self.seconds = self.seconds, dict.fromkeys(PARTS, 0.0)
        return found

    def enter(self, part: str | None) -> None:
        """Enters a part; None stays in the current one."""
        self._note()
        self._open.append(part or self._open[-1])
        self._made.append((_next_node(), self._open[-1]))

    def leave(self) -> None:
        """Leaves the part that was entered last."""
        self._note()
        self._open.pop()
        self._made.append((_next_node(), self._open[-1]))

    def _note(self) -> None:
        now = self.clock()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def start(self, action_name: str) -> None:
        """Lightning begins something."""
        self.enter(next((part for end, part in _ACTIONS.items() if action_name.endswith(end)), None))

    def stop(self, action_name: str) -> None:
        """Lightning has ended it."""
        self.leave()

    def follow(self, loss: Tensor) -> None:
        """Makes each node of the loss's graph count for the part that made it; its own time is not counted."""
        self._note()
        for node in _nodes(loss):
            place = bisect_right(self._made, node._sequence_nr(), key=itemgetter(0)) - 1
            if place >= 0:
                node.register_prehook(partial(self._run_node, self._made[place][1]))
        self._made.clear()
        self._since = self.clock()

    def _run_node(self, part: str, gradients: tuple[Tensor, ...]) -> None:
        self._note()
        self._open[-1] = part

    @contextmanager
    def watching(self, learner: Learner) -> Iterator[None]:
        """Hooks into the modules of a training within the context."""
        handles = []
        for module in learner.modules():
            if (part := part_of(module, learner.model)) is not None:
                handles.append(module.register_forward_pre_hook(partial(self._forward, part)))
                handles.append(module.register_forward_hook(self._forwarded))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _forward(self, part: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.enter(part)

    def _forwarded(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self.leave()


def _next_node() -> int:
    """The sequence number of the next node of an autograd graph."""
    return int(torch.autograd._get_sequence_nr())


def _nodes(loss: Tensor) -> set[Any]:
    """All nodes behind a loss, except those that accumulate gradients of weights, which run with their predecessors."""
    found: set[Any] = set()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found and type(node).__name__ != "AccumulateGrad":
            found.add(node)
            waiting += [behind for behind, _ in node.next_functions]
    return found
