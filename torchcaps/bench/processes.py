"""``torchcaps bench processes``: how much faster two processes train than one, each pinned to its own core.

Both train in the loop of ``torchcaps train`` with the same batch, which two processes share (gloo, ``ddp``). The limit
of the cores is measured as well: two independent processes that train on half the batch each. Each round has one
process first, then two apart, then two together; the slower process of two counts. If something else uses the cores,
the figure means nothing.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from torchcaps.bench import report
from torchcaps.bench.measure import Spread
from torchcaps.bench.options import folder, new_folder, positive
from torchcaps.bench.suite import Show
from torchcaps.bench.training import WARM, task_of
from torchcaps.data import ImageSet
from torchcaps.training import Schedule, Speed, TrainerOptions, fit, quiet_lightning

PATIENCE = 20.0
"""Seconds within which a process that has nothing left to do must end."""

CAN_PIN = hasattr(os, "sched_setaffinity")
ONE, APART, TWO = "one process", "two apart, half the batch each", "two together"


class Process:
    """A training process, started once for all rounds.

    Args:
        rank: 0 or 1; also the index of the core that it is pinned to, among those that this process may use.
        options: of the command.
    """

    def __init__(self, rank: int, options: argparse.Namespace) -> None:
        what = json.dumps({"rank": rank, **{name: getattr(options, name) for name in ("model", "batch", "steps")}})
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "LOCAL_RANK": str(rank), "NODE_RANK": "0"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torchcaps.bench.processes", what],
            env={**environment, "MASTER_ADDR": "127.0.0.1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, processes: int, port: int, batch: int) -> None:
        """Makes it train in a group of ``processes``, which share the batch.

        Raises:
            OSError: if it has ended.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"processes": processes, "port": port, "batch": batch}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:  # the command line would take it for a closed pipe of its own output
            raise self._ended() from error

    def seconds(self) -> float:
        """Waits for its steps, and returns their time.

        Raises:
            OSError: if it has ended.
        """
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("seconds "):
                return float(line.split()[1])
        raise self._ended()

    def _ended(self) -> OSError:
        return OSError(f"a training process ended with status {self.process.wait()}")

    def end(self) -> None:
        """Lets it end; a process that waits for one that has ended already is killed."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def serve(rank: int, model: str, batch: int, steps: int) -> None:
    """The training process: trains once for each line that it reads, and prints how long the steps took."""
    torch.set_num_threads(1)
    if CAN_PIN:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    quiet_lightning()
    count = batch * (WARM["cpu"] + steps)
    pixels = torch.randint(256, (count, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = ImageSet(pixels, torch.arange(count) % 10, tuple("0123456789"))
    for line in sys.stdin:
        asked = json.loads(line)
        os.environ["MASTER_PORT"] = str(asked["port"])
        learner, strategy = task_of(model, Speed()), "ddp" if asked["processes"] > 1 else "auto"
        limit = {"limit_train_batches": WARM["cpu"] + steps}
        options = TrainerOptions("cpu", asked["processes"], strategy=strategy, extra=limit)
        with TemporaryDirectory() as folder:
            schedule = Schedule(epochs=1, batch_size=asked["batch"])
            fit(learner, images, images.subset(torch.arange(0)), Path(folder), schedule, options)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        sys.stdout.write(f"seconds {learner.marks[1] - learner.marks[0]}\n")
        sys.stdout.flush()


def free_port() -> int:
    """A free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def measured(options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of the steps in each round, of one process and of two, after one round to warm up."""
    processes = [Process(rank, options) for rank in range(2)]
    half = options.batch // 2
    rounds = ((ONE, 1, 1, options.batch), (APART, 2, 1, half), (TWO, 2, 2, options.batch))
    found: dict[str, list[float]] = {name: [] for name, *_ in rounds}
    try:
        for place in range(1 + options.runs):
            for name, count, sharing, batch in rounds:
                port = free_port()
                for process in processes[:count]:
                    process.begin(sharing, port, batch)
                slowest = max([process.seconds() for process in processes[:count]])
                if place:
                    found[name].append(slowest)
    finally:
        for process in processes:
            process.end()
    return found


def main(arguments: list[str], show: Show, program: str) -> None:
    """Measures, shows the ratio and writes ``processes.json``; see :func:`torchcaps.bench.command.main`."""
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("--model", default="capsnet_small", help="name of a network; default: capsnet_small")
    parser.add_argument("--batch", type=int, default=128, help="images a step, of all processes; default: 128")
    parser.add_argument("--steps", type=positive, default=20, help="steps that are timed in each round; default: 20")
    parser.add_argument("--runs", type=positive, default=5, help="counted rounds; default: 5")
    parser.add_argument("--out", type=folder, help="folder for results; default: a new one in runs/")
    options = parser.parse_args(arguments)
    if options.batch < 2 or options.batch % 2:
        parser.error(f"--batch must be shared by two processes, got {options.batch}")
    about = report.environment("cpu", 1, report.command_line())
    about["settings"]["pinned"] = CAN_PIN and len(os.sched_getaffinity(0)) > 1
    show(report.heading(about))
    found = measured(options)
    faster, limit = (
        Spread.of([one / two for one, two in zip(found[ONE], found[name], strict=True)]) for name in (TWO, APART)
    )
    rows: list[dict[str, Any]] = [
        {"processes": name, "milliseconds": [1e3 * value / options.steps for value in values]}
        for name, values in found.items()
    ]
    for row in rows:
        spread = Spread.of(row["milliseconds"])
        show(f"{row['processes']:31} {spread.median:.1f} ms a step ({spread.low:.1f}-{spread.high:.1f})")
    show(f"two processes train {faster.median:.2f} times as fast as one ({faster.low:.2f}-{faster.high:.2f})")
    show(f"the cores allow {limit.median:.2f} times ({limit.low:.2f}-{limit.high:.2f})")
    found_out = {"faster": faster._asdict(), "limit": limit._asdict(), "rows": rows}
    out = options.out or new_folder("processes")
    report.write_json(out / "processes.json", **about, model=options.model, **found_out)
    show(f"\nresults: {out}")


if __name__ == "__main__":
    serve(**json.loads(sys.argv[1]))
