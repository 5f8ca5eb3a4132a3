"""Capsules over sets: is it a ball, a cube or a ring, by a few points on its surface, in
any order?

    python examples/points.py

A set has no grid and no order, and sets may be of any size. About ten seconds on a CPU.
"""

import math

import torch
from torch import Tensor, nn

import torchcaps as tc

SHAPES = ("ball", "cube", "ring")
MOST = 48
"""Points of a set, at most."""


def surface(
    label: int,
    count: int,
    generator: torch.Generator,
) -> Tensor:
    """Points on a shape, (count, 3): a ring is a flat ball."""
    shape = SHAPES[label]
    points = torch.randn(count, 3, generator=generator)
    if shape == "ball":
        return nn.functional.normalize(points)
    if shape == "cube":
        return nn.functional.normalize(points, p=math.inf)
    points[:, 2] = 0
    return nn.functional.normalize(points)


def clouds(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points of turned shapes, (B, 48, 3), which of them are there, (B, 48), and the
    shapes, (B,).
    """
    generator = torch.Generator()
    generator.manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    sizes = torch.randint(24, MOST, (count, 1), generator=generator)
    shapes = []
    for label in labels.tolist():
        points = surface(label, MOST, generator)
        shapes.append(points)
    numbers = torch.randn(count, 3, 3, generator=generator)
    turns, _ = torch.linalg.qr(numbers)
    turned = torch.stack(shapes) @ turns
    present = torch.arange(MOST) < sizes
    return turned, present, labels


def main(steps: int = 300, batch: int = 32) -> float:
    """Trains on new shapes in each step, and gives the accuracy on others."""
    torch.manual_seed(0)
    model = tc.models.SetCapsNet(
        in_features=3,
        classes=3,
        channels=(32, 32),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        points, present, labels = clouds(batch, seed=step + 1)
        classes = model(points, present)
        loss = tc.margin_loss(classes.activation, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    points, present, labels = clouds(300, seed=0)
    with torch.no_grad():
        classes = model(points, present)
    answers = classes.activation.argmax(1)
    correct = answers == labels
    accuracy = correct.double().mean()
    return accuracy.item()


if __name__ == "__main__":
    accuracy = main()
    print(f"{accuracy:.1%} of 300 shapes classified correctly (by chance: 33.3%)")
