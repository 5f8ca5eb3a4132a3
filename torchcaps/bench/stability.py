"""``torchcaps bench stability``: are loss and gradients finite in each of 2,000 training steps, or more?

Trains a MatrixCapsNet on MNIST and on smallNORB, in float32 and under bf16 autocast, and checks every gradient after
every step. Prints the last loss and the training accuracy of the last tenth of the steps; stops at the first number
that is not finite. With ``--out``, it writes a checkpoint every ``--every`` steps, resumes from it when started again,
and writes the mean loss and accuracy between checkpoints to a JSON file.
"""

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torchcaps import SpreadLoss, create_model
from torchcaps.bench.options import folder, positive
from torchcaps.bench.suite import Show
from torchcaps.data import Batch, ImageData, Preprocess, create_dataset
from torchcaps.models.whole import write_whole
from torchcaps.training import train_loader
from torchcaps.training.checkpoints import SealedCheckpoints, is_whole

PREPARED = {
    "mnist": Preprocess(shift=2),
    "smallnorb": Preprocess(crop=32, brightness=63 / 255, contrast=(0.2, 1.8), standardise=True),
}


@dataclass
class Long:
    """One long training.

    Args:
        name: of the data set.
        precision: ``float32`` or ``bf16``.
        model: by name.
        steps: how many.
        batch_size: images in each.
        seed: of everything random.
        every: steps between checkpoints, over which loss and accuracy are averaged.
        folder: for the checkpoint; None keeps none.
    """

    name: str
    precision: str
    model: str
    steps: int
    batch_size: int
    seed: int = 0
    every: int = 1000
    folder: Path | None = None
    rows: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.data, self.preprocess = create_dataset(self.name), PREPARED[self.name]
        torch.manual_seed(self.seed)
        shape = self.preprocess.image_shape(self.data.image_shape)
        self.network = create_model(self.model, image_shape=shape, classes=len(self.data.classes))
        self.optimizer, self.loss = torch.optim.Adam(self.network.parameters(), 3e-3), SpreadLoss()

    @property
    def path(self) -> Path | None:
        """The file of the checkpoint."""
        called = f"{self.model}-{self.name}-{self.precision}-{self.steps}x{self.batch_size}-seed{self.seed}.ckpt"
        return None if self.folder is None else self.folder / called

    def run(self, show: Show) -> str:
        """Trains, and sums it up in a sentence; raises FloatingPointError at the first number that is not finite."""
        first = self._go_on()
        stretch: list[tuple[float, float]] = []
        for step, batch in zip(
            range(first, self.steps), _batches(self.data, self.batch_size, self.seed, first), strict=False
        ):
            stretch.append(self._step(step, batch))
            if (step + 1) % self.every == 0 or step + 1 == self.steps:
                loss, right = (sum(column) / len(stretch) for column in zip(*stretch, strict=True))
                self.rows.append({"step": step + 1, "loss": loss, "accuracy": right})
                stretch = []
                self._keep(step + 1)
                if self.path is not None:
                    show(f"{self.name}, {self.precision}, step {step + 1}: loss {loss:.4f}, accuracy {right:.3f}")
        last = self.rows[-max(1, len(self.rows) // 10) :]
        accuracy = sum(row["accuracy"] for row in last) / len(last)
        what = (
            f"{self.model} on {self.name}, {self.precision}: {self.steps} steps of {self.batch_size}, everything finite"
        )
        end = f"loss of the last {self.every} steps {self.rows[-1]['loss']:.4f}"
        return f"{what}; {end}, accuracy of the last {len(last) * self.every} {accuracy:.3f}"

    def _step(self, step: int, batch: Batch) -> tuple[float, float]:
        self.loss.advance(step, self.steps, step)
        images = self.preprocess.train(batch.images, batch.indices, step, self.seed).images
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bf16"):
            activation = self.network(images, batch.labels).activation
            value = self.loss(activation, batch.labels)
        self.optimizer.zero_grad()
        value.backward()
        gradients = ((name, parameter.grad) for name, parameter in self.network.named_parameters())
        for what, tensor in [("loss", value), *gradients]:
            if tensor is None or not tensor.isfinite().all():
                raise FloatingPointError(f"{self.name}, {self.precision}: {what} is not finite in step {step}")
        self.optimizer.step()
        return value.item(), (activation.argmax(-1) == batch.labels).float().mean().item()

    def _keep(self, step: int) -> None:
        if self.path is None:
            return
        state = {
            "step": step,
            "rows": self.rows,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
        }
        SealedCheckpoints().save_checkpoint(state, self.path)
        write_whole(
            self.path.with_suffix(".json"), json.dumps({"steps": step, "stretches": self.rows}, indent=1) + "\n"
        )

    def _go_on(self) -> int:
        """Loads the checkpoint, if there is one, and returns the step to begin with."""
        if self.path is None or not self.path.is_file() or not is_whole(self.path):
            return 0
        state: dict[str, Any] = torch.load(self.path, weights_only=True)
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        self.rows = state["rows"]
        return int(state["step"])


def _batches(data: ImageData, batch_size: int, seed: int, first: int) -> Iterator[Batch]:
    """The batches from step ``first`` on, without end, the same in each epoch."""
    loader = train_loader(data.train, batch_size, seed)
    yield from itertools.islice(loader, first % len(loader), None)
    yield from itertools.chain.from_iterable(itertools.repeat(loader))


def main(arguments: list[str], show: Show, program: str) -> None:
    """Trains on each data set in each precision; see :func:`torchcaps.bench.command.main`."""
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("--data", nargs="+", choices=PREPARED, default=list(PREPARED))
    parser.add_argument("--precision", nargs="+", choices=("float32", "bf16"), default=["float32", "bf16"])
    parser.add_argument("--model", default="matrixcapsnet_small")
    parser.add_argument("--steps", type=positive, default=2000)
    parser.add_argument("--batch_size", type=positive, default=8)
    parser.add_argument(
        "--every", type=positive, default=1000, help="steps between checkpoints; at most a tenth of all"
    )
    parser.add_argument("--out", type=folder, help="folder for checkpoints; default: none are kept")
    options = parser.parse_args(arguments)
    for name, precision in itertools.product(options.data, options.precision):
        training = Long(name, precision, options.model, options.steps, options.batch_size)
        training.every, training.folder = min(options.every, max(1, options.steps // 10)), options.out
        show(training.run(show))
