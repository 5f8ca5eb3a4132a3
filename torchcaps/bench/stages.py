"""Where the time of a training step goes: each moment of it counts for the innermost part that is running.

Lightning says when its own parts begin and end (its profiler's actions), hooks say when a convolution, a routed layer,
the decoder or a loss runs forward, and each node of the autograd graph counts for the part that made it. What is
between counts for the part around it: the squash between a convolution and a routed layer for the rest of the network,
the bookkeeping of a step for the loop.
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
"""Of a training step."""

_ACTIONS = {
    "train_dataloader_next": DATA,
    "batch_to_device": DATA,
    "optimizer_step": OPTIMIZER,
    "zero_grad": OPTIMIZER,
    "backward": NETWORK,
    "training_step": LOOP,
}
"""What Lightning's actions count for, by how their names end; others count for the part that they are in."""


def part_of(module: nn.Module, network: ImageClassifier) -> str | None:
    """What a module counts for; None for the part that it is in."""
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
        clock: of this thread; default: the processor's time of the thread where torch uses one, else the clock's.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        super().__init__()
        self.clock = clock or (time.thread_time if torch.get_num_threads() == 1 else time.perf_counter)
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._open = [LOOP]
        self._made: list[tuple[int, str]] = []
        """From which number on the nodes of the autograd graph were made by which part, in ascending order."""
        self._since = self.clock()

    def mark(self) -> dict[str, float]:
        """The seconds of each part since the last mark."""
        self._note()
        found, self.seconds = self.seconds, dict.fromkeys(PARTS, 0.0)
        return found

    def enter(self, part: str | None) -> None:
        """From here on this part is running, or if it is None the same one as before."""
        self._note()
        self._open.append(part or self._open[-1])
        self._made.append((_next_node(), self._open[-1]))

    def leave(self) -> None:
        """What was entered last has ended."""
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
        """Has each node of the loss's graph count for the part that made it; takes no time of the clock itself."""
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
        """Hooks on the modules of a training for as long as the context lasts."""
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
    """The number that the next node of an autograd graph gets."""
    return int(torch.autograd._get_sequence_nr())


def _nodes(loss: Tensor) -> set[Any]:
    """All nodes behind a loss but those that add up the gradients of weights, which run with the one before them."""
    found: set[Any] = set()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found and type(node).__name__ != "AccumulateGrad":
            found.add(node)
            waiting += [behind for behind, _ in node.next_functions]
    return found
