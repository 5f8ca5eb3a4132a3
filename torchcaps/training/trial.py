"""Finds the fastest memory layout and compiler by timing a few steps at the start of a training."""

import copy
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

import lightning as L
import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.callbacks import Callback
from torch import nn

from torchcaps.data import Batch, ImageSet
from torchcaps.models import ImageClassifier
from torchcaps.models.whole import write_whole
from torchcaps.tasks import Criteria
from torchcaps.training.folder import is_first_process
from torchcaps.training.learner import Learner
from torchcaps.training.options import Schedule
from torchcaps.training.speed import CompileMode, Speed

BUDGET = 20.0
"""Seconds after which no further step is timed, without compiling, which cannot be stopped."""

ROUNDS = 5
WORTH = 0.97
"""A candidate is preferred if it takes at most this share of the time."""

COMPILE_FROM = 1800.0
"""Shortest expected training, in seconds, for which compiling is tried, which takes about a minute itself."""

Clock = Callable[[], float]


@dataclass
class Trial:
    """Times training steps, without the optimizer, on copies of the network; the training itself is not changed.

    Args:
        learner: of the training.
        batch: of prepared images.
        trainer: gives device and precision.
        clock: gives seconds; default: CPU time if the CPU computes with one thread, else the wall clock.
    """

    learner: Learner
    batch: Batch
    trainer: L.Trainer
    clock: Clock | None = None
    milliseconds: dict[str, float] = field(default_factory=dict)
    """Median seconds of a step of each candidate, by name."""

    def __post_init__(self) -> None:
        self.device = self.trainer.strategy.root_device
        alone = self.device.type == "cpu" and torch.get_num_threads() == 1
        self.now: Clock = self.clock or (time.thread_time if alone else time.perf_counter)
        self.end = time.perf_counter() + BUDGET

    def quickest(self, steps: int) -> Speed:
        """The fastest settings for a training of ``steps`` steps."""
        speed = replace(self.learner.speed, auto=False)
        maps = any(isinstance(module, nn.Conv2d) for module in self.learner.model.modules())
        if maps and not speed.channels_last:
            speed = self._better(speed, "channels_last", replace(speed, channels_last=True))
        else:
            self.milliseconds["plain"] = 1e3 * statistics.median(self._rounds([self._ready(speed)])[0])
        expected = steps * min(self.milliseconds.values()) / 1e3
        if speed.compile is None and expected >= COMPILE_FROM:
            self.end = time.perf_counter() + BUDGET
            speed = self._better(speed, "compile", replace(speed, compile="default"))
        return speed

    def _better(self, now: Speed, name: str, other: Speed) -> Speed:
        """The other settings if they are clearly faster, from paired rounds; else the present ones."""
        try:
            calls = [self._ready(now), self._ready(other)]
        except Exception:  # a missing compiler must not end the training
            if other.compile is None:
                raise
            return now
        times = self._rounds(calls)
        for key, values in zip(("plain", name), times, strict=True):
            self.milliseconds.setdefault(key, 1e3 * statistics.median(values))
        ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
        return other if ratio < WORTH else now

    def _rounds(self, calls: Sequence[Callable[[], object]]) -> list[list[float]]:
        times: list[list[float]] = [[] for _ in calls]
        for _ in range(ROUNDS):
            for call, values in zip(calls, times, strict=True):
                values.append(self._timed(call))
            if time.perf_counter() > self.end:
                break
        return times

    def _timed(self, call: Callable[[], object]) -> float:
        start = self.now()
        call()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.now() - start

    def _ready(self, speed: Speed) -> Callable[[], object]:
        """A step with these settings, after one to warm up."""
        learner, precision = self.learner, self.trainer.precision_plugin
        network = copy.deepcopy(learner.model).to(self.device).train()
        network = cast(ImageClassifier, precision.convert_module(network))
        speed.lay_out(network)
        losses = copy.deepcopy(learner.loss), copy.deepcopy(learner.reconstruction)
        criteria = Criteria(losses[0].to(self.device), losses[1].to(self.device))
        forward = partial(speed.step(), network)
        moved = precision.convert_input(move_data_to_device(self.batch, self.device))
        batch = moved._replace(images=speed.arrange(moved.images))

        def step() -> None:
            network.zero_grad()
            with precision.forward_context():
                _, parts = learner.task.loss(network, forward, batch, criteria)
            torch.stack(list(parts.values())).sum().backward()

        step()
        return step


class ChooseSpeed(Callback):
    """Chooses layout and compiler before the training begins, if its speed is ``auto``, and stores the choice.

    Weights, random numbers and everything else that is trained stay as they are. A resumed training keeps the choice;
    the first of several processes chooses for all.

    Args:
        path: of a JSON file with the choice and the times.
        images: to train on.
        schedule: of the training.
    """

    def __init__(self, path: Path, images: ImageSet, schedule: Schedule) -> None:
        self.path, self.images, self.schedule = path, images, schedule
        self.found: dict[str, Any] = {}

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Chooses, or reads the stored choice."""
        if not isinstance(pl_module, Learner) or not pl_module.speed.auto:
            return
        if is_first_process():
            if self.path.exists():
                self.found = self._read()
            else:
                self.found = self._choose(trainer, pl_module)
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self.path, json.dumps(self.found, indent=1) + "\n")
        self.found = trainer.strategy.broadcast(self.found)
        chosen = {name: self.found[name] for name in ("channels_last", "compile")}
        pl_module.adopt(replace(pl_module.speed, auto=False, **chosen))

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self.path.read_text())
            if isinstance(found["channels_last"], bool) and found["compile"] in (None, *get_args(CompileMode)):
                return found
        except (ValueError, KeyError, TypeError):
            pass
        raise ValueError(f"{self.path} is damaged: remove it, and the training chooses its speed anew")

    def _choose(self, trainer: L.Trainer, learner: Learner) -> dict[str, Any]:
        started = time.perf_counter()
        share = max(1, min(self.schedule.batch_size // trainer.world_size, len(self.images)))
        batch = self.images.prepared(learner.preprocess).__getitems__(list(range(share)))
        device = trainer.strategy.root_device
        trial = Trial(learner, batch, trainer)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            speed = trial.quickest(self.schedule.epochs * (len(self.images) // max(1, self.schedule.batch_size)))
        return {
            "channels_last": speed.channels_last,
            "compile": speed.compile,
            "step_milliseconds": {name: round(value, 3) for name, value in trial.milliseconds.items()},
            "seconds": round(time.perf_counter() - started, 1),
        }
