"""The queue: trains the rows of a preset that no result has yet, the cheapest first.

Each row is rehearsed: a few steps are timed, so its hours are known before it is
trained. Trainings can be stopped at any moment, and the next call goes on with them.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import lightning as L
import torch

from recipes.kit.base import RECIPES, Study
from recipes.kit.command import RUNS, run_recipe
from recipes.kit.estimates import Estimate, Key, read_estimates, write_estimates
from recipes.kit.lab import Lab, PresetName
from recipes.kit.results import read_results
from torchcaps_lab.training.callbacks import History
from torchcaps_lab.training.run import machine

_TIMED = 3
_WARM_UP = 1
"""Steps that are timed in a rehearsal, and steps before them."""

_LEARNS_BY = 0.1
_LEAST_EPOCHS = 5
_LEAST_FALL = 0.02
"""A training is stuck if in a tenth of its epochs, and at least five, its loss has not
fallen by 2 % of that of the first epoch.
"""


@dataclass(frozen=True)
class Entry:
    """One row to train with one seed."""

    recipe: str
    row: str
    seed: int

    def __str__(self) -> str:
        return f"{self.recipe}, {self.row}, seed {self.seed}"


class Rehearsed(Exception):
    """The timed steps are done: the training need not go on."""


class OutOfTime(Exception):
    """The time of the queue is over; the training goes on with its next call."""


class Stuck(ValueError):
    """A training does not learn."""


class StepTimer(L.Callback):
    """Ends a training after a few steps, and keeps what they cost.

    Attributes:
        estimate: that of the whole training, once it has ended.
    """

    def __init__(self) -> None:
        self.estimate: Estimate | None = None
        self._begun = 0.0
        self._seconds: list[float] = []

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        """Start the clock."""
        self._begun = _clock(trainer)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Stop the clock; raise `Rehearsed` after the last step."""
        self._seconds.append(_clock(trainer) - self._begun)
        steps = int(trainer.num_training_batches) * (trainer.max_epochs or 1)
        timed = self._seconds[_WARM_UP:]
        if len(timed) == _TIMED or len(self._seconds) == steps:
            seconds = statistics.median(timed or self._seconds)
            hardware = machine(trainer.strategy.root_device)["hardware"]
            self.estimate = Estimate(steps, seconds, hardware)
            raise Rehearsed


def _clock(trainer: L.Trainer) -> float:
    """Seconds: of all cores on a CPU, which may be busy with other work, and else those
    that pass until the device has done what it was given.
    """
    if trainer.strategy.root_device.type == "cpu":
        return time.process_time()
    torch.accelerator.synchronize()
    return time.perf_counter()


class Deadline(L.Callback):
    """Ends a training after the last epoch that fits in the time.

    Args:
        end: when the time is over, on the clock of :func:`time.monotonic`.
    """

    def __init__(self, end: float) -> None:
        self.end = end
        self._begun = 0.0

    def on_train_epoch_start(self, *_: Any) -> None:
        """Start the clock; raise `OutOfTime` if the last epoch took longer than what
        is left. The checkpoint of that epoch is whole by now.
        """
        now = time.monotonic()
        last_epoch = now - self._begun if self._begun else 0.0
        if now + last_epoch > self.end:
            raise OutOfTime
        self._begun = now


class StuckTraining(L.Callback):
    """Raises :class:`Stuck` if a training does not learn, by its curve."""

    def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
        """Compare the losses of the epochs before, also of those before a resume."""
        histories = [row for row in trainer.callbacks if isinstance(row, History)]
        losses = [row["train_loss"] for row in histories[0].rows if "train_loss" in row]
        least = max(_LEAST_EPOCHS, int(_LEARNS_BY * (trainer.max_epochs or 1)))
        if len(losses) < least:
            return
        first, best = losses[0], min(losses)
        if best > first - _LEAST_FALL * abs(first):
            raise Stuck(
                f"it does not learn: its loss was {first:.4g} in the first epoch, and "
                f"{best:.4g} in the best of {len(losses)}"
            )


def missing(
    preset: PresetName, seeds: Sequence[int], names: Sequence[str], results: Path
) -> Iterator[Entry]:
    """The rows of a preset that no result has yet, of recipes whose trainings resume.

    Args:
        preset: the preset.
        seeds: the seeds that each row needs.
        names: the recipes; all if empty.
        results: the folder of the results.
    """
    saved = read_results(results)
    for name, recipe in RECIPES.items():
        left_out = recipe.apart or preset not in recipe.presets
        if left_out or (names and name not in names):
            continue
        result = saved.get((name, preset), {"seeds": [], "facts": []})
        facts = dict(zip(result["seeds"], result["facts"], strict=True))
        rows = recipe.present(recipe.presets[preset])
        for seed, row in product(seeds, rows):
            if row not in facts.get(seed, {}):
                yield Entry(name, row, seed)


def rehearsed(entry: Entry, preset: PresetName, trainer: Mapping[str, Any]) -> Estimate:
    """Time a few steps of a row in a folder that is removed again."""
    recipe = RECIPES[entry.recipe]
    timer = StepTimer()
    with tempfile.TemporaryDirectory() as runs:
        lab = Lab(preset, entry.seed, Path(runs), trainer, callbacks=(timer,))
        with suppress(Rehearsed):
            recipe.train(Study(lab, recipe.presets[preset]), entry.row, None)
    # A row without a training of steps, such as one that only measures, costs nothing.
    return timer.estimate or Estimate(0, 0.0, machine(lab.device)["hardware"])


def run_queue(
    preset: PresetName = "paper",
    seeds: Sequence[int] = (0, 1, 2),
    names: Sequence[str] = (),
    *,
    minutes: float | None = None,
    hours: float | None = None,
    runs: Path = RUNS,
    results: Path,
    trainer: Mapping[str, Any] | None = None,
    show: Callable[[str], None] = lambda line: None,
) -> dict[str, str]:
    """Train the missing rows of a preset, the cheapest first, and write each result.

    Call it again to go on: rows that are done are left out, and interrupted trainings
    resume. A row that fails is named, and the queue goes on with the next. Recipes
    that measure their rows together are estimated only.

    Args:
        preset: the preset.
        seeds: the seeds that each row needs.
        names: the recipes; all if empty.
        minutes: the queue ends before the epoch that would take longer; None for no
            limit.
        hours: the most hours of one training; longer ones are estimated only. None for
            no limit, 0 to estimate only.
        runs: the folder of the trained networks.
        results: the folder of the results.
        trainer: options of the trainer, over those of the preset.
        show: the function that shows a line of text.

    Returns:
        What became of each row that was tried: ``done``, ``out of time`` or an error.
    """
    end = None if minutes is None else time.monotonic() + 60 * minutes
    estimates = read_estimates(results)
    device = Lab(preset, 0, runs, trainer or {}).device.type
    queue: list[tuple[float, Entry]] = []
    outcomes: dict[str, str] = {}
    for entry in missing(preset, seeds, names, results):
        if end is not None and time.monotonic() > end:
            break
        key = Key(entry.recipe, preset, entry.row, device)
        try:
            if key not in estimates:
                estimates[key] = rehearsed(entry, preset, trainer or {})
                write_estimates(results, estimates)
        except (ValueError, OSError, RuntimeError, ImportError) as error:
            outcomes[str(entry)] = f"cannot be rehearsed: {error}"
            show(f"{entry}: {outcomes[str(entry)]}")
            continue
        queue.append((estimates[key].hours, entry))
    queue.sort(key=lambda row: row[0])
    total = sum(cost for cost, _ in queue)
    show(f"{len(queue)} rows to train, {total:,.1f} hours")
    for cost, entry in queue:
        show(f"{entry}: {cost:,.2f} hours")
    for cost, entry in queue:
        if hours is not None and cost > hours:
            break
        if not RECIPES[entry.recipe].grows:
            whole = f"python -m recipes run {entry.recipe} --preset {preset}"
            outcomes[str(entry)] = f"its rows are trained together: {whole}"
            continue
        try:
            run_recipe(
                entry.recipe,
                preset,
                [entry.seed],
                rows=[entry.row],
                runs=runs,
                results=results,
                trainer=trainer,
                callbacks=[StuckTraining(), *([] if end is None else [Deadline(end)])],
                show=show,
            )
            outcomes[str(entry)] = "done"
        except OutOfTime:
            outcomes[str(entry)] = "out of time"
            show(f"{entry}: the time is over, run the queue again to go on")
            break
        except (ValueError, OSError, ArithmeticError, RuntimeError) as error:
            outcomes[str(entry)] = str(error)
            show(f"{entry}: {error}")
    return outcomes
