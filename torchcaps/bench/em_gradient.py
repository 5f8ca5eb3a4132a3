"""``torchcaps bench em_gradient``: how EM routing starts to learn, with gradients through all steps or the last.

Trains networks of the quick preset of the recipe ``smallnorb-em`` for some hundred steps and prints a table: training
accuracy over the last steps, accuracy on training toys that were held out, the middle and the largest norm of the
gradient before it was clipped, and seconds of the processor.
"""

import argparse
import itertools
import time
from collections.abc import Iterator
from statistics import mean, median

import torch

from torchcaps import SpreadLoss, create_model
from torchcaps.bench.suite import Show
from torchcaps.data import ImageSet, Preprocess
from torchcaps.explain import examine
from torchcaps.recipes.kit.lab import data_of
from torchcaps.recipes.smallnorb import QUICK, VECTOR
from torchcaps.routing import EMRouting
from torchcaps.training import train_loader

MATRIX = (4, 4)
CASES = [((1, "all"), MATRIX), *(((s, g), MATRIX) for s in (2, 3, 5) for g in ("all", "last"))]
CASES += [((3, gradient), VECTOR) for gradient in ("all", "last")]
HEAD = "| steps | pose | gradient | clipped at | training accuracy | held out | gradient, median | largest | seconds |"


def batches(images: ImageSet, preprocess: Preprocess, size: int, seed: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Prepared images and labels without end; all images in each round."""
    loader = itertools.chain.from_iterable(itertools.repeat(train_loader(images, size, seed)))
    for step, batch in enumerate(loader):
        yield preprocess.train(batch.images, batch.indices, step, seed).images, batch.labels


def run(steps: int, gradient: str, pose: tuple[int, int], clip: float, count: int, seed: int) -> list[float]:
    """The numbers of a row: one training."""
    data = data_of(QUICK.data)
    preprocess = Preprocess.from_config(dict(QUICK.preprocess))
    torch.manual_seed(seed)
    network = create_model(
        "matrixcapsnet",
        image_shape=preprocess.image_shape(data.image_shape),
        classes=len(data.classes),
        routing=EMRouting(**{**QUICK.routing, "steps": steps, "gradient": gradient}),
        **{**QUICK.model_args, "pose": pose},
    )
    optimizer, loss = torch.optim.Adam(network.parameters(), QUICK.optimizer["init_args"]["lr"]), SpreadLoss()
    right, norms = [], []
    start = time.process_time()
    for images, labels in itertools.islice(batches(data.train, preprocess, QUICK.batch_size, seed), count):
        activation = network(images).activation
        optimizer.zero_grad()
        loss(activation, labels).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(network.parameters(), clip)))
        optimizer.step()
        right.append((activation.argmax(-1) == labels).float().mean().item())
    seconds = time.process_time() - start
    last = right[-max(1, count // 5) :]
    held_out = 1 - examine(network, data.validation.prepared(preprocess)).error
    return [100 * mean(last), 100 * held_out, median(norms), max(norms), seconds]


def main(arguments: list[str], show: Show, program: str) -> None:
    """Trains each of the networks with each seed and shows the table; see :func:`torchcaps.bench.command.main`."""
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("--steps", type=int, default=400, help="of training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--clip", type=float, nargs="+", default=[float("inf"), 1.0])
    options = parser.parse_args(arguments)
    show(f"{HEAD}\n{'|---' * 9}|")
    for ((steps, gradient), pose), clip in itertools.product(CASES, options.clip):
        runs = [run(steps, gradient, pose, clip, options.steps, seed) for seed in options.seeds]
        train, held_out, middle, largest, seconds = zip(*runs, strict=True)
        ranges = [f"{mean(values):.0f} ({min(values):.0f}-{max(values):.0f})" for values in (train, held_out)]
        show(
            f"| {steps} | {pose[0]} x {pose[1]} | {gradient} | {clip:g} | {' | '.join(ranges)} | "
            f"{median(middle):.2g} | {max(largest):.2g} | {mean(seconds):.0f} |"
        )
