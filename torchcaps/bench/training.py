"""``torchcaps bench training``: images per second of whole training loops, beside those of the bare step.

The bare step is forward, loss, backward and optimizer on one batch that is on the device already: the ceiling.
Everything else goes through ``torchcaps.training.fit``, with random images of MNIST's size. In every round all variants
run in turn; ratios are taken round by round. The ends of epochs (checkpoint, validation, report) do not count. One more
training without options, with hooks that take some time themselves, shows which share of a step goes to convolutions,
to routing and to other parts. TF32 is as in torch by default: on in convolutions, off in matrix products.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps import create_model
from torchcaps.bench import measure, report
from torchcaps.bench.measure import Spread
from torchcaps.bench.options import amount, folder, natural, new_folder, positive
from torchcaps.bench.stages import CONVOLUTIONS, ROUTING, Stages
from torchcaps.bench.suite import Show
from torchcaps.data import Batch, ImageSet
from torchcaps.losses import MarginLoss, SpreadLoss
from torchcaps.training import Learner, Optimisation, Schedule, Speed, TrainerOptions, fit, quiet_lightning

MODELS = {
    "cpu": ["capsnet_small", "matrixcapsnet_small", "sharedcapsnet"],
    "cuda": ["capsnet", "sharedcapsnet", "matrixcapsnet"],
}
WARM = {"cpu": 3, "cuda": 20}
"""Steps before the clock starts, in which caches fill and CUDA graphs are recorded."""


REFERENCES = ("default", "bare step")
"""The variants that all are compared with: the loop without options, and the ceiling."""


class Variant(NamedTuple):
    """A way to train, and the devices it makes sense on."""

    speed: Speed
    precision: str = "32-true"
    devices: tuple[str, ...] = ("cpu", "cuda")


VARIANTS = {
    "default": Variant(Speed()),
    "not-resident": Variant(Speed(resident=0), devices=("cuda",)),
    "channels-last": Variant(Speed(channels_last=True)),
    "bf16": Variant(Speed(), "bf16-mixed"),
    "channels-last-bf16": Variant(Speed(channels_last=True), "bf16-mixed"),
    "compile": Variant(Speed(compile="default")),
    "cuda-graphs": Variant(Speed(compile="reduce-overhead"), devices=("cuda",)),
}


class Timed(Learner):
    """Records when its first timed step begins and its last one ends."""

    stages: Stages | None = None

    def on_fit_start(self) -> None:
        """Removes the marks of an earlier training."""
        self.marks: list[float] = []

    def on_before_backward(self, loss: Tensor) -> None:
        """Shows the stages the graph that gradients will go through."""
        if self.stages is not None:
            self.stages.follow(loss)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Reads the clock where it starts and where it stops."""
        if batch_idx + 1 in (WARM[self.device.type], self.trainer.num_training_batches):
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            self.marks.append(time.perf_counter())
            if self.stages is not None:
                self.found = self.stages.mark()


def task_of(name: str, speed: Speed) -> Timed:
    """A training of a network with its usual loss, and Adam."""
    torch.manual_seed(0)
    model = create_model(name, image_shape=(1, 28, 28), classes=10)
    loss = SpreadLoss() if name.startswith("matrixcapsnet") else MarginLoss()
    return Timed(model, Optimisation(loss=loss, optimizer=partial(torch.optim.Adam, lr=1e-3)), speed=speed)


def bare(task: Timed, batch: Batch, steps: int, device: str) -> float:
    """Images per second of bare steps."""
    network, optimizer = task.model.to(device).train(), task.configure_optimizers()
    images, labels, pictures = (tensor.to(device) for tensor in (batch.images, batch.labels, batch.pictures))

    def run(steps: int) -> None:
        for _ in range(steps):
            prediction = network(images, labels)
            loss = task.loss(prediction.activation, labels)
            if prediction.reconstruction is not None:
                loss = loss + task.reconstruction(prediction.reconstruction, pictures)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    run(WARM[device])
    return steps * len(labels) / measure.timed(lambda: run(steps), device)


def loop(task: Timed, images: ImageSet, batch: int, steps: int, precision: str, device: str) -> float:
    """Images per second in the loop that ``torchcaps train`` runs."""
    limit = {"limit_train_batches": WARM[device] + steps}
    options = TrainerOptions("gpu" if device == "cuda" else "cpu", 1, precision=precision, extra=limit)
    with TemporaryDirectory() as folder:
        fit(task, images, images.subset(torch.arange(0)), Path(folder), Schedule(epochs=1, batch_size=batch), options)
    return steps * batch / (task.marks[1] - task.marks[0])


def shares(task: Timed, images: ImageSet, batch: int, steps: int) -> dict[str, float]:
    """Seconds of a step of the loop on a CPU, by part, see :data:`~torchcaps.bench.stages.PARTS`."""
    stages = Stages()
    options = TrainerOptions("cpu", 1, extra={"limit_train_batches": WARM["cpu"] + steps, "profiler": stages})
    task.stages = stages
    with TemporaryDirectory() as folder, stages.watching(task):
        fit(task, images, images.subset(torch.arange(0)), Path(folder), Schedule(epochs=1, batch_size=batch), options)
    return {part: seconds / steps for part, seconds in task.found.items()}


def rates_of(name: str, images: ImageSet, options: argparse.Namespace, show: Show) -> dict[str, list[float]]:
    """Images per second of each variant in each round, after one to warm up; variants that fail are left out."""
    device, batch = options.device, images.__getitems__(list(range(options.batch)))
    plain = task_of(name, Speed())
    steps = round(options.seconds * bare(plain, batch, 3, device) / options.batch)
    steps = min(max(steps, 1), len(images) // options.batch - WARM[device])  # one epoch
    calls: dict[str, Callable[[], float]] = {"bare step": partial(bare, plain, batch, steps, device)}
    for key in ["default", *(key for key in options.variants if key != "default")]:
        speed, precision, devices = VARIANTS[key]
        if device in devices:
            calls[key] = partial(loop, task_of(name, speed), images, options.batch, steps, precision, device)
    rates: dict[str, list[float]] = {key: [] for key in calls}
    for key in list(calls):
        try:
            calls[key]()
        except Exception as error:  # such as no compiler or too little memory: go on with the others
            show(f"{name}, {key} failed: {error!r}")
            del calls[key], rates[key]
    for _ in range(options.runs):
        for key, call in calls.items():
            rates[key].append(call())
    return rates


def rows_of(name: str, rates: dict[str, list[float]]) -> list[dict[str, Any]]:
    """The rates with their ratios."""
    rows = []
    for key in rates:
        over = {other: [a / b for a, b in zip(rates[key], rates[other], strict=True)] for other in REFERENCES}
        spreads = {"images_per_second": rates[key], **{f"over {other}": values for other, values in over.items()}}
        spread = {what: Spread.of(values)._asdict() for what, values in spreads.items()}
        rows.append({"model": name, "variant": key, "rates": rates[key], **spread})
    return rows


def table_of(rows: list[dict[str, Any]]) -> str:
    """A row for each variant: medians and ranges."""
    cells = []
    for row in rows:
        rate = Spread(**row["images_per_second"])
        ratios = [report.times(Spread(**row[f"over {other}"])) for other in REFERENCES]
        cells.append((row["model"], row["variant"], f"{rate.median:.0f} ({rate.low:.0f}-{rate.high:.0f})", *ratios))
    return report.table(("model", "variant", "images/s", *(f"/ {other}" for other in REFERENCES)), cells)


def shares_table(found: dict[str, dict[str, float]]) -> str:
    """Milliseconds and shares of the parts of a step, a column for each network; last, all but the two main parts."""
    cells = [[part] for part in next(iter(found.values()))] + [["neither convolutions nor routing"]]
    for parts in found.values():
        whole = sum(parts.values())
        rest = whole - parts[CONVOLUTIONS] - parts[ROUTING]
        for row, seconds in zip(cells, [*parts.values(), rest], strict=True):
            row.append(f"{report.milliseconds(seconds)} ms, {seconds / whole:.1%}")
    return report.table(("part of a step", *found), cells)


def main(arguments: list[str], show: Show, program: str) -> None:
    """Measures, shows a table and writes ``training.json``; see :func:`torchcaps.bench.command.main`."""
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("--device", choices=MODELS, default="cpu", help="default: cpu")
    parser.add_argument("--model", nargs="+", help="names; default: a few that suit the device")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="beside the default")
    parser.add_argument("--batch", type=positive, default=128, help="images in a step; default: 128")
    parser.add_argument("--seconds", type=amount, default=2.0, help="of each run of each variant; default: 2")
    parser.add_argument("--runs", type=natural, default=5, help="timed rounds; default: 5; 0: only parts of a step")
    parser.add_argument("--steps", type=positive, default=10, help="steps whose parts are timed, on a CPU; default: 10")
    parser.add_argument("--images", type=positive, default=60_000, help="images in the data set; default: 60000")
    parser.add_argument("--out", type=folder, help="folder for results; default: a new one in runs/")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda needs a GPU that torch can use")
    if options.images < (WARM[options.device] + 1) * options.batch:
        parser.error(f"--images must be {WARM[options.device] + 1} batches or more")
    options.steps = min(options.steps, options.images // options.batch - WARM["cpu"])
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    quiet_lightning()
    about = report.environment(options.device, torch.get_num_threads(), report.command_line())
    about["settings"] |= {"batch": options.batch, "dtype": "float32, TF32 in convolutions on a GPU"}
    show(report.heading(about))
    pixels = torch.randint(256, (options.images, 1, 28, 28), dtype=torch.uint8)
    images = ImageSet(pixels, torch.arange(options.images) % 10, tuple("0123456789"))
    rows: list[dict[str, Any]] = []
    parts = {}
    for name in options.model or MODELS[options.device]:
        if options.runs:
            rows += rows_of(name, rates_of(name, images, options, show))
        if options.device == "cpu":
            parts[name] = shares(task_of(name, Speed()), images, options.batch, options.steps)
    if rows:
        show("\n" + table_of(rows))
    if parts:
        show("\n" + shares_table(parts))
    out = options.out or new_folder("training")
    report.write_json(out / "training.json", **about, rows=rows, parts=parts)
    show(f"\nresults: {out}")
