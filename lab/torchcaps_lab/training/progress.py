"""How far a training is: a line after its first steps, and one that is rewritten in
place.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from torchcaps.routing import Routed, Routing
from torchcaps_lab.training.callbacks import duration

SPOKEN = 6
"""Steps after which the time of all is told; fewer where an epoch has fewer."""

OFTEN = 0.5
"""Seconds between two states of the line in place."""


def can_rewrite() -> bool:
    """Whether the output shows a line that is rewritten as one: a terminal's, or a
    notebook's.
    """
    return sys.stdout.isatty() or "ipykernel" in sys.modules


class ProgressLine(Callback):
    """Says after a few steps how long a training will take, and where it routes. Must
    come before all that print.

    Args:
        show: takes that line; None for silence.
        in_place: whether a line, rewritten, says how far the training is.
    """

    def __init__(self, show: Callable[[str], None] | None, in_place: bool) -> None:
        self.show = show
        self.in_place = in_place
        self._backends: set[str] = set()
        self._hooks: list[Any] = []
        self._steps = self._done = 0
        self._began = self._told = 0.0

    def on_feature_step(self, done: int, steps: int) -> None:
        """Tells, in the first stage, how long its features take, and how far they
        are.
        """
        now = time.perf_counter()
        if done == 1:
            self._began = now
        elif done <= steps:
            left = duration((now - self._began) / (done - 1) * (steps - done))
            if done == 2 and self.show is not None:
                self.show(
                    f"features of the backbone are computed first, once: about {left}"
                )
            if self.in_place and now - self._told > OFTEN:
                self._told = now
                self._write(f"features, batch {done} of {steps}, {left} left")
        if done == steps:
            self._write("")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Counts the steps to come, and watches the first."""
        epochs = (trainer.max_epochs or 1) - trainer.current_epoch
        self._steps = int(trainer.num_training_batches * epochs)
        self._done = 0
        # A compiler would trace what watches.
        if not getattr(pl_module, "compiled", False):
            parts = [part for part in pl_module.modules() if isinstance(part, Routing)]
            self._hooks = [part.register_forward_hook(self._watch) for part in parts]

    def _watch(self, routing: Any, inputs: Any, routed: Routed) -> None:
        with torch.no_grad():
            choice = routed.votes.choose_backend(routed.similarity)
            self._backends.add(choice.backend)

    def on_train_batch_end(self, trainer: L.Trainer, *more: Any) -> None:
        """Tells how long it takes; the first step, which may build kernels, does not
        count.
        """
        self._done, now = self._done + 1, time.perf_counter()
        if self._done == 1:
            self._began = now
            self._forget()
            return
        each = (now - self._began) / (self._done - 1)
        left = duration(each * (self._steps - self._done))
        if (
            self._done == min(SPOKEN, trainer.num_training_batches)
            and self.show is not None
            and trainer.is_global_zero
        ):
            where = ""
            if self._backends:
                where = f"; votes: {', '.join(sorted(self._backends))}"
            self._write("")
            total = duration(each * self._steps)
            self.show(f"{each:.2g} s a step, about {total} for all of them{where}")
        if self.in_place and trainer.is_global_zero and now - self._told > OFTEN:
            self._told = now
            step = more[-1] + 1
            self._write(
                f"epoch {trainer.current_epoch + 1}, step {step} of "
                f"{trainer.num_training_batches}, {left} left"
            )

    def on_train_epoch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule
    ) -> None:
        """Makes room for the line of the epoch."""
        self._write("")

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Watches no longer, also if there was no step."""
        self._forget()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Makes room for what is said of it."""
        self._write("")
        self._forget()

    def _write(self, text: str) -> None:
        if self.in_place:
            sys.stdout.write(f"\r{text:60}" if text else f"\r{'':60}\r")
            sys.stdout.flush()

    def _forget(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
