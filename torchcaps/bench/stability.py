"""``torchcaps bench stability``: are loss and gradients finite in every one of 2,000 training steps?

Trains a MatrixCapsNet on MNIST and on smallNORB, in float32 and under bf16 autocast, and looks at every gradient after
every step. Prints the last loss and the training accuracy of the last tenth of the steps; stops at the first number
that is not finite.
"""

import argparse
import itertools

import torch

from torchcaps import SpreadLoss, create_model
from torchcaps.bench.suite import Show
from torchcaps.data import Preprocess, create_dataset
from torchcaps.training import train_loader

PREPARED = {
    "mnist": Preprocess(shift=2),
    "smallnorb": Preprocess(crop=32, brightness=63 / 255, contrast=(0.2, 1.8), standardise=True),
}


def run(name: str, precision: str, model: str, steps: int, batch_size: int, seed: int = 0) -> str:
    """One training, in a sentence; raises FloatingPointError at the first number that is not finite."""
    data, preprocess = create_dataset(name), PREPARED[name]
    torch.manual_seed(seed)
    network = create_model(model, image_shape=preprocess.image_shape(data.image_shape), classes=len(data.classes))
    optimizer, loss = torch.optim.Adam(network.parameters(), 3e-3), SpreadLoss()
    right: list[float] = []
    batches = itertools.chain.from_iterable(itertools.repeat(train_loader(data.train, batch_size, seed)))
    for step, batch in enumerate(itertools.islice(batches, steps)):
        loss.advance(step, steps, step)
        images = preprocess.train(batch.images, batch.indices, step, seed).images
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            activation = network(images, batch.labels).activation
            value = loss(activation, batch.labels)
        optimizer.zero_grad()
        value.backward()
        for field, tensor in [("loss", value), *((n, p.grad) for n, p in network.named_parameters())]:
            if tensor is None or not tensor.isfinite().all():
                raise FloatingPointError(f"{name}, {precision}: {field} is not finite in step {step}")
        optimizer.step()
        right.append((activation.argmax(-1) == batch.labels).float().mean().item())
    last = right[-max(1, steps // 10) :]
    return (
        f"{model} on {name}, {precision}: {steps} steps of {batch_size}, everything finite; "
        f"last loss {value.item():.4f}, accuracy of the last {len(last)} steps {sum(last) / len(last):.3f}"
    )


def main(arguments: list[str], show: Show, program: str) -> None:
    """Trains on each data set in each precision; see :func:`torchcaps.bench.command.main`."""
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("--data", nargs="+", choices=PREPARED, default=list(PREPARED))
    parser.add_argument("--precision", nargs="+", choices=("float32", "bf16"), default=["float32", "bf16"])
    parser.add_argument("--model", default="matrixcapsnet_small")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch_size", type=int, default=8)
    options = parser.parse_args(arguments)
    for name, precision in itertools.product(options.data, options.precision):
        show(run(name, precision, options.model, options.steps, options.batch_size))
