"""Pose transfer: the class of one image drawn with the pose of another (after
Rajasegaran et al. 2019, DeepCaps).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from recipes.kit.base import Line, Picture, Recipe, Study, register_recipe
from recipes.kit.charts import transfer_grid
from recipes.kit.lab import Trained, at_random
from recipes.kit.measures import percent
from recipes.kit.options import ENTROPY, MARGIN, TrainingOptions, plain
from torchcaps.capsules import Capsules
from torchcaps.models import CapsuleClassifier
from torchcaps_lab.data import Examples
from torchcaps_lab.report import (
    ATTRIBUTES,
    Readout,
    ask,
    attributes,
    draw_poses,
    fit_readout,
    poses_of,
    transfer,
)
from torchcaps_lab.report.poses import encoded

BOTH = "decoder told pose and class"
ALONE = "decoder told the pose alone"
MASKED = "masked decoder"
AGAIN = "the content drawn again"
JUDGE = "independent classifier on the test images"
TOLD = {BOTH: "pose_and_class", ALONE: "pose", MASKED: "masked"}
"""The input of the decoder of each network."""

KEPT = "content's class seen"
FOLLOWS = {name: f"correlation with the style's {name}" for name in ATTRIBUTES}
MOVED = ("slant", "thickness")
"""The attributes that the read-out changes."""


@dataclass(frozen=True, kw_only=True)
class TransferSettings(TrainingOptions):
    """One preset.

    Attributes:
        weight: of the reconstruction in the loss.
        noise: on the poses that a decoder gets in training: on standardised poses, and
            on others.
        judge: options of the independent classifier's training, over those of the
            networks.
        pairs: of test images, of different classes.
        fitted: training images that the read-out is fitted to.
    """

    weight: float = 0.02
    noise: tuple[float, float] = (0.4, 0.02)
    judge: Mapping[str, Any] = field(default_factory=dict)
    pairs: int = 1000
    fitted: int = 2000


class Posed(NamedTuple):
    """Images, and the pose of the class that a network sees in each.

    Args:
        pictures: (N, C, H, W).
        labels: true classes, (N,).
        capsules: of the classes.
        seen: the most active class, (N,).
    """

    pictures: Tensor
    labels: Tensor
    capsules: Capsules
    seen: Tensor

    def at(self, places: Tensor) -> "Posed":
        """Some of them."""
        capsules = Capsules(
            self.capsules.pose[places], self.capsules.activation[places]
        )
        return Posed(
            self.pictures[places], self.labels[places], capsules, self.seen[places]
        )

    @property
    def poses(self) -> Tensor:
        """Of the class that was seen, (N, D)."""
        return poses_of(self.capsules, self.seen)


def posed(network: CapsuleClassifier, images: Examples) -> Posed:
    """The class capsules of a network for images that were prepared for it."""
    batch = images.__getitems__(list(range(len(images))))
    capsules = encoded(network, batch.inputs, at_once=250)
    return Posed(batch.pictures, batch.labels, capsules, capsules.activation.argmax(1))


def pairs_of(labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Indices of contents and styles in random pairs of different classes; each index
    at most once on either side.
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    other = order.roll(1)
    different = labels[order] != labels[other]
    return order[different][:count], other[different][:count]


def correlation(one: Tensor, other: Tensor) -> float:
    """Pearson's correlation of the pairs in which both are finite."""
    there = one.isfinite() & other.isfinite()
    return torch.corrcoef(torch.stack([one[there], other[there]]))[0, 1].item()


@register_recipe
class Transfer(Recipe[TransferSettings]):
    """Draws contents with the poses of styles; a classifier and measured attributes
    judge the result.
    """

    name: ClassVar = "transfer"
    rows: ClassVar = TOLD
    lines: ClassVar = (
        *(Line(row, KEPT, higher_is_better=True) for row in (*TOLD, AGAIN)),
        *(
            Line(row, measure, unit="", higher_is_better=True)
            for row in (*TOLD, AGAIN)
            for measure in FOLLOWS.values()
        ),
        Line(JUDGE, "accuracy", higher_is_better=True),
    )
    settings: ClassVar = TransferSettings

    def options(self, settings: TransferSettings, row: str) -> dict[str, Any]:
        """The same for all rows except the input of the decoder; for :data:`JUDGE`,
        those of the classifier.
        """
        if row == JUDGE:
            judge = {"loss": ENTROPY, "model_args": {}, **settings.judge}
            return settings.options(**plain(judge))
        told = TOLD[row]
        noise = settings.noise[0 if told == "pose_and_class" else 1]
        arguments = {**settings.model_args, "decoder_input": told, "pose_noise": noise}
        loss = {"loss": MARGIN, "reconstruction": settings.weight}
        return settings.options(model_args=arguments, **loss)

    def begin(self, study: Study) -> "Given":
        """The independent classifier, and the pairs, the same for every network."""
        judge = study.lab.train("transfer-judge", self.options(study.settings, JUDGE))
        study.facts[JUDGE] = judge.facts
        study.note(JUDGE, {"accuracy": judge.test_accuracy})
        test = judge.data.test
        contents, styles = pairs_of(test.labels, study.settings.pairs)
        return Given(
            judge, contents, styles, attributes(test.inputs[styles].float() / 255)
        )

    def measure(self, study: Study, row: str, given: "Given") -> dict[str, float]:
        """The share of drawn images whose class the judge sees, and how they follow the
        styles.
        """
        trained = study.trained[row]
        network = trained.network
        assert isinstance(network, CapsuleClassifier)
        test = posed(network, trained.classifier.prepared(trained.data.test))
        content, style = test.at(given.contents), test.at(given.styles)
        readout = None
        if row == ALONE:
            readout = read_out(
                network, at_random(trained.data.train, study.settings.fitted), trained
            )
            study.curves["read-out"] = dict(
                zip(MOVED, readout.explained.tolist(), strict=True)
            )
        if row == BOTH:
            study.note(
                AGAIN,
                given.judged(
                    restyled(network, content, content, given.wanted, None),
                    content.labels,
                ),
            )
        caption = self.caption.format(row=f"{row[0].upper()}{row[1:]}")
        study.pictures[TOLD[row].replace("_", "-")] = _picture(
            network, test, row, readout, caption
        )
        return given.judged(
            restyled(network, content, style, given.wanted, readout), content.labels
        )


class Given(NamedTuple):
    """The test of all networks.

    Args:
        judge: the independent classifier.
        contents: indices of the contents among the test images, (N,).
        styles: indices of the styles, (N,).
        wanted: attributes of the styles, (N, A).
    """

    judge: Trained
    contents: Tensor
    styles: Tensor
    wanted: Tensor

    def judged(self, drawn: Tensor, labels: Tensor) -> dict[str, float]:
        """The share of drawn images in which the judge sees the content's class, and
        how they follow the styles.
        """
        images = Examples(
            drawn.clamp(0, 1).mul(255).round().to(torch.uint8),
            labels,
            self.judge.classifier.classes,
        )
        said = ask(
            self.judge.network, self.judge.classifier.prepared(images)
        ).activation.argmax(1)
        found = {KEPT: percent(said == labels)}
        have = attributes(drawn)
        return found | {
            FOLLOWS[name]: correlation(have[:, k], self.wanted[:, k])
            for k, name in enumerate(ATTRIBUTES)
        }


def read_out(network: CapsuleClassifier, images: Examples, trained: Trained) -> Readout:
    """A linear read-out of slant and thickness from the poses of the classes that a
    network sees in raw images.
    """
    seen = posed(network, trained.classifier.prepared(images))
    return fit_readout(
        seen.poses,
        attributes(seen.pictures)[:, [ATTRIBUTES.index(one) for one in MOVED]],
        seen.seen,
    )


def restyled(
    network: CapsuleClassifier,
    content: Posed,
    style: Posed,
    wanted: Tensor,
    readout: Readout | None,
) -> Tensor:
    """The contents with the poses of the styles; with a read-out, with their own poses
    moved to what is wanted.
    """
    device = next(network.parameters()).device
    if readout is not None:
        poses = readout.moved(
            content.poses, wanted[:, [ATTRIBUTES.index(one) for one in MOVED]]
        )
        return draw_poses(network, poses.to(device), content.seen.to(device)).cpu()
    classes, others = (
        Capsules(*(part.to(device) for part in one.capsules))
        for one in (content, style)
    )
    return transfer(
        network, classes, others, content.seen.to(device), style.seen.to(device)
    )[:, -1].cpu()


def _picture(
    network: CapsuleClassifier,
    test: Posed,
    row: str,
    readout: Readout | None,
    caption: str,
) -> Picture:
    """The first image of each class (down) with the poses of others (across)."""
    classes = test.labels.unique().tolist()
    contents = test.at(
        torch.tensor([int((test.labels == label).nonzero()[0]) for label in classes])
    )
    styles = test.at(
        torch.tensor(
            [
                int((test.labels == label).nonzero()[place % 2 + 1])
                for place, label in enumerate(classes)
            ]
        )
    )
    wanted = attributes(styles.pictures)
    grid = [torch.cat([torch.ones_like(styles.pictures[:1]), styles.pictures])]
    for place in range(len(classes)):
        content = contents.at(torch.full((len(classes),), place))
        drawn = restyled(network, content, styles, wanted, readout)
        grid.append(torch.cat([content.pictures[:1], drawn]))
    return Picture(transfer_grid(torch.stack(grid)[:, :, :1], row), caption)
