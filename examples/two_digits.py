"""Two digits in one image, after training on single digits: what capsules are for, beside
a plain convolutional network. ``make demo`` runs it.

    python examples/two_digits.py runs/two-digits

Both networks have the same four convolutions and learn the 1,797 embedded digits one at a
time. Then they see two digits at once. The capsules are routed by K-Means with evidence,
the plain network has a map of evidence for each class. The report opens with the pairs:
the digits that each network finds, the part of the image that went to each digit, and what
the pose of each digit draws. About a minute on two CPU cores.
"""

import argparse
import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchcaps as tc
from torchcaps.models import CapsuleClassifier, ImageClassifier
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.data import Digits, Examples, Padded, Scenes, arrange
from torchcaps_lab.evaluate import (
    even_assignments,
    examine,
    layer_entropy,
    observe_layers,
)
from torchcaps_lab.report import (
    Exhibit,
    Observation,
    Picture,
    Selection,
    Table,
    Tested,
    exhibits_of_classifier,
    list_exhibits,
    new_figure,
    register_exhibit,
    write_page,
)
from torchcaps_lab.training import (
    RunFolder,
    quiet_lightning,
    read_summary,
    train_with,
    training_options,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE, MARGIN = 12, 2
"""Pixels of a digit, and of the black border around it."""

DATA = {
    "name": "Padded",
    "data": {"name": "Digits", "size": SIZE},
    "pad": MARGIN,
}
TRAINING: dict[str, Any] = {
    "data": DATA,
    "model_args": {"channels": [32, 32, 64, 64], "batch_norm": True},
    "preprocess": {"shift": MARGIN},
    "optimizer": {"name": "Adam", "lr": 4e-3},
    "scheduler": {"name": "OneCycleLR", "max_lr": 4e-3},
    "epochs": 20,
    "batch_size": 64,
    "seed": 0,
    "report": False,
    "trainer": {"accelerator": "cpu"},
}
# Steps: on pairs of validation digits, seeds 2 to 4, three found 91.3 to 92.5 % of those
# one above the other, and two found 86.7 to 91.6 %.
CAPSULES = {
    "model": "sharedcapsnet",
    "routing": {"name": "kmeans", "steps": 3, "evidence": True},
}
PLAIN = {"model": "sharedcapsnet_maps"}

MOVES = 2
"""How far the numbers of a pose are moved, in standard deviations within a class."""

SIDE_BY_SIDE, ABOVE = "side by side", "one above the other"
SHOWN = 6
"""Pairs of each layout in the report: the first ones, whatever the networks answer."""

FIRST = (0.90, 0.42, 0.05)
SECOND = (0.10, 0.40, 0.85)
"""The colours of the two digits, red, green and blue."""


def main(run: Path) -> Path:
    """Trains both networks and writes the report.

    Args:
        run: the folder of the run. The plain network gets a folder beside it.

    Returns:
        The page of the report.
    """
    quiet_lightning()
    data = Padded(Digits(size=SIZE), MARGIN)
    capsules = trained(run, CAPSULES)
    plain = trained(run.with_name(f"{run.name}-plain"), PLAIN)
    spread = learn_to_draw(capsules.network, data.train)
    moves = torch.arange(-5, 6) * round(MOVES * spread / 5, 3)
    digits = data.centred_test()
    pairs = [pairs_of(digits, layout) for layout in (SIDE_BY_SIDE, ABOVE)]
    exhibits = [
        TwoDigits.of(pairs, capsules.network, plain.network),
        Comparison.of(digits, capsules.network, plain.network),
        *learned_from_single(capsules, data.test, moves),
    ]
    return write_page(run, exhibits)


def trained(folder: Path, network: Mapping[str, Any]) -> Classifier:
    """The network, trained on single digits in that folder."""
    print(f"\n{network['model']}, trained on single digits:")
    options = training_options({**TRAINING, **network})
    train_with(RunFolder(folder).unused(), options, show=print)
    return Classifier.open(folder)


def learn_to_draw(
    network: CapsuleClassifier, digits: Examples, epochs: int = 15
) -> float:
    """Gives a trained network a decoder of its poses, and trains nothing else.

    The decoder sees which class it is, and how far the pose is from the mean pose of
    that class. It learns from single digits, each also shifted by a pixel or two, and
    draws the digit in the middle.

    Returns:
        The mean standard deviation of a number of a pose within a class.
    """
    torch.manual_seed(0)
    network.eval()
    drawings = digits.inputs.float() / 255
    moved = F.pad(drawings, (MARGIN,) * 4)
    places = [
        (2, 2),
        (2, 1),
        (1, 2),
        (0, 3),
        (3, 0),
    ]
    side = drawings.shape[-1]
    with torch.no_grad():
        poses = []
        for top, left in places:
            rows = moved[:, :, top : top + side]
            capsules = network.encode(rows[..., left : left + side])
            poses.append(capsules.pose)
    poses = torch.cat(poses)
    labels = digits.labels.repeat(len(places))
    drawings = drawings.repeat(len(places), 1, 1, 1)
    of_digits = poses[torch.arange(len(labels)), labels]
    deviations, spread = deviations_of(of_digits, labels, network.classes)
    decoder = nn.Sequential(
        tc.layers.PoseInput(network.classes, network.pose_dim, "pose_and_class"),
        deviations,
        tc.FullyConnectedDecoder(
            network.pose_dim + network.classes, network.image_shape, hidden=(128, 256)
        ),
    )
    network.decoder = decoder
    optimizer = torch.optim.Adam(decoder[-1].parameters(), lr=2e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(64):
            capsules = tc.Capsules(poses[batch], tc.length(poses[batch]))
            drawn = network.decode(capsules, labels[batch])
            distance = (drawn - drawings[batch]).square()
            loss = distance.sum((1, 2, 3)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    network.eval()
    return spread


def deviations_of(
    poses: Tensor, labels: Tensor, classes: int
) -> tuple[nn.Linear, float]:
    """A layer that turns a pose and its class into standard deviations from the mean.

    Poses of one class differ by a twentieth of what classes differ by. A decoder that
    sees them as they are draws the mean of each class.

    Args:
        poses: each of its own class, (N, D).
        labels: the classes, (N,).
        classes: how many there are.

    Returns:
        The layer, from (B, D + E) to (B, D + E), and the mean standard deviation.
    """
    of_class = [poses[labels == label] for label in range(classes)]
    mean = torch.stack([rows.mean(0) for rows in of_class])
    spread = torch.stack([rows.std(0) for rows in of_class]).mean(0)
    dim = poses.shape[1]
    layer = nn.Linear(dim + classes, dim + classes, bias=False).requires_grad_(False)
    layer.weight.zero_()
    layer.weight[:dim, :dim] = torch.diag(1 / spread)
    layer.weight[:dim, dim:] = -(mean / spread).T
    layer.weight[dim:, dim:] = torch.eye(classes)
    return layer, float(spread.mean())


class Pairs(NamedTuple):
    """Images of two different digits.

    Args:
        layout: how they lie.
        images: (N, 1, H, W) in [0, 1].
        labels: which digits they are, (N, 2).
    """

    layout: str
    images: Tensor
    labels: Tensor

    @property
    def present(self) -> Tensor:
        """Which digits an image shows, bool (N, 10)."""
        return F.one_hot(self.labels, 10).sum(1).bool()

    def halves(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """The parts of maps (N, H', W') that lie over the first and the second digit."""
        axis = 2 if self.layout == SIDE_BY_SIDE else 1
        first, second = maps.chunk(2, axis)
        return first, second


def pairs_of(digits: Examples, layout: str, count: int = 500) -> Pairs:
    """Pairs of different digits, drawn at random, the same ones each time."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(
        len(digits),
        (2, 2 * count),
        generator=generator,
    )
    labels = digits.labels[chosen]
    different = (labels[0] != labels[1]).nonzero()[:count, 0]
    chosen = chosen[:, different]
    labels = labels[:, different]
    first, second = digits.inputs[chosen].float() / 255
    axis = 3 if layout == SIDE_BY_SIDE else 2
    return Pairs(layout, torch.cat([first, second], axis), labels.T)


def answers(network: ImageClassifier, images: Tensor, count: int) -> Tensor:
    """The most active classes of each image, as many as there are digits: (N, count)."""
    network.eval()
    with torch.no_grad():
        activation = torch.cat([network(part).activation for part in images.split(128)])
    return activation.topk(count).indices.sort(1).values


def all_found(network: ImageClassifier, images: Tensor, present: Tensor) -> float:
    """Share of the images in which the network names all digits, and no others."""
    count = int(present[0].sum())
    true = present.nonzero()[:, 1].unflatten(0, (-1, count))
    right = answers(network, images, count) == true
    return right.all(1).double().mean().item()


class Columns(NamedTuple):
    """Pairs of one layout to show.

    Args:
        layout: how the digits lie.
        images: (N, 1, H, W).
        labels: which digits they are, (N, 2).
        capsules: the two digits that the capsules find, (N, 2).
        plain: those that the plain network finds, (N, 2).
        shares: of each child capsule, what went to the first and the second digit,
            (N, 2, H', W').
        extent: the part of the image that the maps of shares cover.
        drawn: what the poses of both digits draw, (N, 2, 1, h, w).
    """

    layout: str
    images: Tensor
    labels: Tensor
    capsules: Tensor
    plain: Tensor
    shares: Tensor
    extent: Any
    drawn: Tensor


@register_exhibit("two_digits", drawings="two-digits-*.png")
class TwoDigits(Exhibit):
    """Pairs of digits and what both networks make of them.

    Attributes:
        columns: the pairs, one entry for each layout.
        own_share: share of the child capsules over a digit that went to this digit.
        other_share: share of the same that went to the other digit.
        entropy: of the assignments, relative to even ones.
        decided: share of the answers that change without routing.
    """

    columns: tuple[Columns, ...] = field(metadata={"plain": len})
    own_share: float
    other_share: float
    entropy: float
    decided: float

    @classmethod
    def of(
        cls, pairs: list[Pairs], capsules: CapsuleClassifier, plain: ImageClassifier
    ) -> "TwoDigits":
        """Of all pairs the figures, and the first ones to show."""
        shares = []
        entropies = []
        changed = []
        columns = []
        for of_layout in pairs:
            images = of_layout.images
            look = Observation(capsules, Selection(images, images))
            shares.append(assigned(of_layout, look))
            entropies.append(entropy_of(capsules, images))
            changed.append(changed_without_routing(capsules, images))
            columns.append(columns_of(of_layout, look, plain))
        own_share, other_share = torch.tensor(shares).mean(0).tolist()
        entropy = mean_of(entropies)
        decided = mean_of(changed)
        return cls(
            title="Two digits in one image, after training on single digits",
            text=(
                "The networks learned single digits and never saw two at once. Each "
                "column shows two test digits in one image, and what the capsules and "
                "the plain network find. The colours show which digit routing gave each "
                "child capsule to: orange for the first digit, blue for the second, "
                "nothing where it went to neither. Below are drawings made from the pose "
                f"of each digit alone. These are the first {SHOWN} pairs, mistakes "
                "included. Of the child capsules over a digit, routing gave "
                f"{own_share:.0%} to this digit and {other_share:.0%} to the other "
                "one. Without routing every digit would get 10%. The entropy of the "
                "assignments is "
                f"{entropy:.2f} of that of an even split, and an even split changes "
                f"{decided:.0%} of the answers."
            ),
            columns=tuple(columns),
            own_share=own_share,
            other_share=other_share,
            entropy=entropy,
            decided=decided,
        )

    def draw(self) -> Iterator[Picture]:
        """A picture for each layout."""
        for columns in self.columns:
            name = columns.layout.replace(" ", "-")
            yield Picture(
                f"two-digits-{name}.png",
                f"Two digits, {columns.layout}: images, where each part went, and what "
                "the poses draw",
                drawn_columns(columns),
            )


def assigned(pairs: Pairs, look: Observation) -> tuple[float, float]:
    """Of the active children over a digit, the share that went to it, and the share that
    went to the other one.
    """
    ((name, maps),) = look.maps.items()
    weights = pairs.halves(look.capsules[name].activation)
    to_own = torch.zeros(2)
    to_other = torch.zeros(2)
    images = torch.arange(len(maps))
    for place in (0, 1):
        weight = weights[place]
        for shares, digit in ((to_own, place), (to_other, 1 - place)):
            share = maps[images, :, :, pairs.labels[:, digit]]
            over_digit = pairs.halves(share)[place]
            shares[place] = (over_digit * weight).sum() / weight.sum()
    return to_own.mean().item(), to_other.mean().item()


def entropy_of(network: CapsuleClassifier, images: Tensor) -> float:
    """Entropy of the assignments to the classes, 1 for even ones."""
    *_, classes = observe_layers(network, images).values()
    return layer_entropy(classes).mean().item()


def changed_without_routing(network: CapsuleClassifier, images: Tensor) -> float:
    """Share of the answers that differ if every child is split evenly."""
    routed = answers(network, images, 2)
    with even_assignments(network):
        even = answers(network, images, 2)
    return (routed != even).any(1).double().mean().item()


def mean_of(values: Sequence[float]) -> float:
    """Their mean."""
    return sum(values) / len(values)


def columns_of(pairs: Pairs, look: Observation, plain: ImageClassifier) -> Columns:
    """What to show of the first pairs."""
    images = pairs.images[:SHOWN]
    labels = pairs.labels[:SHOWN]
    ((name, maps),) = look.maps.items()
    shares = []
    drawn = []
    for label in labels.unbind(1):
        share = maps[torch.arange(SHOWN), :, :, label]
        poses = poses_of(look, label)
        shares.append(share)
        drawn.append(look.draw(poses, label))
    return Columns(
        pairs.layout,
        images,
        labels,
        look.activation[:SHOWN].topk(2).indices,
        answers(plain, images, 2),
        torch.stack(shares, 1),
        look.extents[name],
        torch.stack(drawn, 1),
    )


def poses_of(look: Observation, labels: Tensor) -> Tensor:
    """The poses of one class capsule of each of the first images, (N, D)."""
    return look.classes.pose[torch.arange(len(labels)), labels]


def drawn_columns(columns: Columns) -> "Figure":
    """A column for each pair: the image, where its parts went, what both poses draw."""
    beside = columns.layout == SIDE_BY_SIDE
    width, height = (1.7, 5.8) if beside else (1.6, 6.8)
    figure = new_figure(width * SHOWN + 0.6, height)
    ratios = [1, 1, 2, 2] if beside else [2, 2, 1, 1]
    grid = figure.add_gridspec(4, SHOWN, height_ratios=ratios)
    for column in range(SHOWN):
        image, went, first, second = (
            figure.add_subplot(grid[row, column], xticks=[], yticks=[])
            for row in range(4)
        )
        image.imshow(
            columns.images[column, 0].numpy(),
            cmap="gray",
            vmin=0,
            vmax=1,
        )
        image.set_title(title_of(columns, column), fontsize=8)
        show_shares(went, columns, column)
        for place, (axes, colour) in enumerate([(first, FIRST), (second, SECOND)]):
            axes.imshow(
                columns.drawn[column, place, 0].numpy(), cmap="gray", vmin=0, vmax=1
            )
            axes.spines[:].set(color=colour, linewidth=2)
        if column == 0:
            image.set_ylabel("image")
            went.set_ylabel("went to")
            first.set_ylabel("first pose")
            second.set_ylabel("second pose")
    return figure


def title_of(columns: Columns, column: int) -> str:
    """What an image shows, and what both networks answer."""
    true = columns.labels[column]
    lines = [f"{true[0]} and {true[1]}"]
    for name, predicted in (("capsules", columns.capsules), ("plain", columns.plain)):
        right = set(predicted[column].tolist()) == set(true.tolist())
        sign = "✓" if right else "✗"
        digits = ordered(predicted[column], true)
        lines.append(f"{name}: {digits} {sign}")
    return "\n".join(lines)


def ordered(predicted: Tensor, true: Tensor) -> str:
    """The predicted digits, in the order of those in the image."""
    order = {label: place for place, label in enumerate(true.tolist())}
    digits = sorted(predicted.tolist(), key=lambda label: order.get(label, 2))
    return ", ".join(map(str, digits))


def show_shares(axes: "Axes", columns: Columns, column: int) -> None:
    """Lays over the paler image, at each place, the colour of the digit that got the
    child, as strong as the share that both digits got.
    """
    image = columns.images[column, 0]
    height, width = image.shape
    axes.imshow(
        image.numpy(), cmap="gray", vmin=0, vmax=2, extent=(0, width, height, 0)
    )
    first, second = columns.shares[column]
    both = first + second
    colours = torch.tensor([FIRST, SECOND])
    of_first = (first / both)[..., None] * colours[0]
    of_second = (second / both)[..., None] * colours[1]
    mixed = of_first + of_second
    cells = torch.cat([mixed, 0.85 * both[..., None]], 2)
    axes.imshow(cells.numpy(), extent=columns.extent, interpolation="nearest")
    axes.set(xlim=(0, width), ylim=(height, 0))


@register_exhibit("two_digits_compared")
class Comparison(Exhibit):
    """How often each network finds all digits.

    Attributes:
        shares: for each kind of image, those of the capsules, of the capsules without
            routing, and of the plain network.
    """

    shares: Mapping[str, tuple[float, float, float]]

    @classmethod
    def of(
        cls, digits: Examples, capsules: CapsuleClassifier, plain: ImageClassifier
    ) -> "Comparison":
        """Of single digits, pairs, and four digits at once."""
        four = arrange(digits, Scenes.layouts()["2 x 2"], 500)
        tests = {
            "single digits": (
                digits.inputs.float() / 255,
                F.one_hot(digits.labels).bool(),
            )
        }
        for layout in (SIDE_BY_SIDE, ABOVE):
            pairs = pairs_of(digits, layout)
            tests[f"two digits {layout}"] = pairs.images, pairs.present
        tests["four digits, 2 x 2"] = four.images.float() / 255, four.present
        shares = {}
        for name, (images, present) in tests.items():
            routed = all_found(capsules, images, present)
            with even_assignments(capsules):
                even = all_found(capsules, images, present)
            shares[name] = routed, even, all_found(plain, images, present)
        better = "The capsules are level or ahead on all of them."
        ahead = []
        for name, (routed, _, share) in shares.items():
            if share > routed:
                ahead.append(name)
        if ahead:
            better = f"The plain network is ahead on {', '.join(ahead)}."
        return cls(
            title="Beside a plain convolutional network",
            text=(
                "Share of the images in which the most active classes are the digits "
                f"that the image shows. The plain network has {size_of(plain):,} "
                "parameters: the same convolutions, and a map of evidence for each "
                f"class. The capsules have {size_of(capsules):,}. {better} It has no "
                "poses, so it cannot draw what it found. The column without routing is "
                "the trained capsule network with an even split. It shows how much this "
                "network relies on routing, not how good a network trained without "
                "routing can be. Each network was trained once. The page "
                "where-routing-pays of the documents has five seeds on MNIST."
            ),
            shares=shares,
        )

    def table(self) -> Table:
        """A row for each kind of image."""
        rows = []
        for name, shares in self.shares.items():
            rows.append([name, *(f"{share:.1%}" for share in shares)])
        return Table(rows, ["images", "capsules", "without routing", "plain network"])


def size_of(network: ImageClassifier) -> int:
    """The number of its parameters that find digits, without a decoder."""
    return sum(
        parameter.numel()
        for name, parameter in network.named_parameters()
        if not name.startswith("decoder.")
    )


def learned_from_single(
    capsules: Classifier, test: Examples, moves: Tensor
) -> Iterator[Exhibit]:
    """The standard report about single digits, with moves of poses that single digits
    make, too.
    """
    folder = RunFolder(capsules.run)
    with folder.metrics.open() as file:
        metrics = []
        for row in csv.DictReader(file):
            measured = {}
            for name, value in row.items():
                if value:
                    measured[name] = float(value)
            metrics.append(measured)
    prepared = capsules.prepared(test)
    findings = examine(capsules.network, prepared)
    tested = Tested(capsules.network, prepared, findings, read_summary(folder), metrics)
    for exhibit in exhibits_of_classifier(
        tested.model, tested.images, tested.findings, tested.summary, tested.metrics
    ):
        if exhibit.kind == "perturbations":
            perturbations: Any = list_exhibits()["perturbations"]
            yield perturbations.of(tested.examples, moves) or exhibit
        else:
            yield exhibit


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Finds two digits in one image.")
    parser.add_argument("run", type=Path, help="the folder of the run, new or empty")
    print(f"\nreport: {main(parser.parse_args().run)}")
