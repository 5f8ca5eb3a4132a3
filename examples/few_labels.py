"""Few labels: a capsule network and a convolutional twin of equal size, trained alike on
a few digits of each class.

    python examples/few_labels.py

Here are three seeds on the digits that come with scikit-learn. docs/few-labels.md has
three larger data sets and five seeds, on which convolutions make fewer errors. About half
a minute on a CPU.
"""

import torch
from torch import nn

import torchcaps as tc
from torchcaps_lab.data import Digits, Examples

LABELS = 10
"""Labelled images of each class."""


def some_of_each(examples: Examples, count: int, seed: int) -> Examples:
    """So many images of each class, drawn by the seed."""
    torch.manual_seed(seed)
    order = torch.randperm(len(examples))
    labels = examples.labels[order]
    chosen = []
    for label in range(10):
        members = order[labels == label]
        chosen.append(members[:count])
    indices = torch.cat(chosen)
    return examples.subset(indices)


class Network(nn.Module):
    """Two convolutions with a head.

    Args:
        channels: the number of channels of the convolutions.
        head: takes maps (B, channels, 4, 4) and gives capsules of the classes.
    """

    def __init__(self, channels: int, head: nn.Module) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, channels, 3),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        )
        self.head = head

    def forward(self, examples: Examples) -> tc.Capsules:
        """Classes of images."""
        images = examples.inputs.float() / 255
        return self.head(self.features(images))


class PooledHead(nn.Module):
    """The mean of all places and a linear layer, whose answers are capsules of one
    number.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, 10)

    def forward(self, maps: torch.Tensor) -> tc.Capsules:
        """Classes of maps (B, channels, H, W)."""
        numbers = self.linear(maps.mean((2, 3)))
        return tc.Capsules(numbers[..., None], numbers.sigmoid())


def networks() -> dict[str, Network]:
    """Two networks of equal size, by name."""
    head = tc.CapsHead(10, types=4, dim=4, pose_dim=8)
    return {
        "capsules": Network(24, head),
        "convolutional twin": Network(27, PooledHead(27)),
    }


def error(
    network: Network,
    train: Examples,
    test: Examples,
    steps: int,
) -> float:
    """The share of the test images that a network gets wrong, after a training."""
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(steps):
        indices = torch.randint(len(train), (32,))
        batch = train.subset(indices)
        classes = network(batch)
        loss = tc.margin_loss(classes.activation, batch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    network.eval()
    with torch.no_grad():
        classes = network(test)
    answers = classes.activation.argmax(1)
    wrong = answers != test.labels
    share = wrong.double().mean()
    return share.item()


def main(seed: int, steps: int = 200) -> dict[str, float]:
    """The test errors of both networks on the same images."""
    digits = Digits(validation=0)
    train = some_of_each(digits.train, LABELS, seed)
    errors = {}
    for name, network in networks().items():
        errors[name] = error(network, train, digits.test, steps)
    return errors


if __name__ == "__main__":
    for seed in range(3):
        errors = main(seed)
        for name, share in errors.items():
            print(f"seed {seed}, {name}: {share:.1%} test error")
