"""Pose transfer: the class of one image drawn with the pose of another (after
Rajasegaran et al. 2019, DeepCaps).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from recipes.kit.base import Line, Picture, Recipe, Study, register_recipe
from recipes.kit.charts import transfer_grid
from recipes.kit.lab import Trained, at_random
from recipes.kit.measures import percent
from recipes.kit.options import ENTROPY, MARGIN, TrainingOptions
from torchcaps.capsules import Capsules
from torchcaps.models import CapsuleClassifier
from torchcaps.spec import plain
from torchcaps_lab.data import Examples
from torchcaps_lab.evaluate import (
    ATTRIBUTES,
    ask,
    attributes,
    draw_poses,
    evaluating,
    fit_readout,
    poses_of,
    transfer,
)

BOTH = "decoder with pose and class"
ALONE = "decoder with the pose alone"
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
        weight: the weight of the reconstruction in the loss.
        noise: the noise on the poses that a decoder gets in training: on standardised
            poses, and on others.
        judge: options of the independent classifier's training, over those of the
            networks.
        pairs: the number of pairs of test images, of different classes.
        fitted: the number of training images to which the read-out is fitted.
    """

    weight: float = 0.02
    noise: tuple[float, float] = (0.4, 0.02)
    judge: Mapping[str, Any] = field(default_factory=dict)
    pairs: int = 1000
    fitted: int = 2000


class Posed(NamedTuple):
    """Images, and the pose of the class that a network sees in each.

    Args:
        pictures: the images, (N, C, H, W).
        labels: the true classes, (N,).
        capsules: the capsules of the classes.
        seen: the most active class, (N,).
    """

    pictures: Tensor
    labels: Tensor
    capsules: Capsules
    seen: Tensor

    def at(self, places: Tensor) -> "Posed":
        """Some of them."""
        pose = self.capsules.pose[places]
        activation = self.capsules.activation[places]
        return Posed(
            self.pictures[places],
            self.labels[places],
            Capsules(pose, activation),
            self.seen[places],
        )

    @property
    def poses(self) -> Tensor:
        """Of the class that was seen, (N, D)."""
        return poses_of(self.capsules, self.seen)


def posed(network: CapsuleClassifier, images: Examples) -> Posed:
    """The class capsules of a network for images that were prepared for it."""
    batch = images.__getitems__(list(range(len(images))))
    with evaluating(network) as device:
        parts = [network.encode(part.to(device)) for part in batch.inputs.split(250)]
    pose = torch.cat([part.pose for part in parts]).float().cpu()
    activation = torch.cat([part.activation for part in parts]).float().cpu()
    capsules = Capsules(pose, activation)
    return Posed(batch.pictures, batch.labels, capsules, capsules.activation.argmax(1))


def pairs_of(labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Indices of contents and styles in random pairs of different classes; each index
    at most once on either side.
    """
    contents = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    styles = contents.roll(1)
    different = labels[contents] != labels[styles]
    return contents[different][:count], styles[different][:count]


def correlation(x: Tensor, y: Tensor) -> float:
    """Pearson's correlation of the pairs in which both are finite."""
    finite = x.isfinite() & y.isfinite()
    return torch.corrcoef(torch.stack([x[finite], y[finite]]))[0, 1].item()


@register_recipe
class Transfer(Recipe[TransferSettings]):
    """Draws contents with the poses of styles; a classifier and measured attributes
    judge the result.
    """

    name: ClassVar = "transfer"
    rows: ClassVar = TOLD
    lines: ClassVar = (
        *(
            Line(
                row,
                KEPT,
                higher_is_better=True,
            )
            for row in (*TOLD, AGAIN)
        ),
        *(
            Line(row, measure, unit="", higher_is_better=True)
            for row, measure in product((*TOLD, AGAIN), FOLLOWS.values())
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
        on_standardised, on_others = settings.noise
        noise = on_standardised if row == BOTH else on_others
        return settings.options(
            model_args={
                **settings.model_args,
                "decoder_input": TOLD[row],
                "pose_noise": noise,
            },
            loss=MARGIN,
            reconstruction=settings.weight,
        )

    def begin(self, study: Study) -> "TransferTest":
        """The independent classifier, and the pairs, the same for every network."""
        judge = study.lab.train("transfer-judge", self.options(study.settings, JUDGE))
        study.facts[JUDGE] = judge.facts
        study.note(JUDGE, {"accuracy": judge.test_accuracy})
        test = judge.data.test
        contents, styles = pairs_of(test.labels, study.settings.pairs)
        wanted = attributes(test.inputs[styles].float() / 255)
        return TransferTest(judge, contents, styles, wanted)

    def measure(
        self,
        study: Study,
        row: str,
        transfer_test: "TransferTest",
    ) -> dict[str, float]:
        """The share of drawn images whose class the judge sees, and how they follow the
        styles.
        """
        trained = study.trained[row]
        network = trained.network
        assert isinstance(network, CapsuleClassifier)
        test = posed(network, trained.classifier.prepared(trained.data.test))
        content = test.at(transfer_test.contents)
        style = test.at(transfer_test.styles)
        wanted = transfer_test.wanted
        readout = None
        if row == ALONE:
            images = at_random(trained.data.train, study.settings.fitted)
            readout = read_out(network, images, trained)
            explained = readout.explained.tolist()
            study.curves["read-out"] = dict(zip(MOVED, explained, strict=True))
        if row == BOTH:
            again = restyled(network, content, content, wanted, None)
            study.note(AGAIN, transfer_test.judged(again, content.labels))
        caption = self.caption.format(row=f"{row[0].upper()}{row[1:]}")
        name = TOLD[row].replace("_", "-")
        study.pictures[name] = _picture(network, test, row, readout, caption)
        drawn = restyled(network, content, style, wanted, readout)
        return transfer_test.judged(drawn, content.labels)


class TransferTest(NamedTuple):
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
        classifier = self.judge.classifier
        bytes_drawn = drawn.clamp(0, 1).mul(255).round().to(torch.uint8)
        images = Examples(bytes_drawn, labels, classifier.classes)
        judged = ask(self.judge.network, classifier.prepared(images))
        figures = {KEPT: percent(judged.activation.argmax(1) == labels)}
        of_drawn = attributes(drawn)
        for column, name in enumerate(ATTRIBUTES):
            figures[FOLLOWS[name]] = correlation(
                of_drawn[:, column], self.wanted[:, column]
            )
        return figures


def _moved_only(values: Tensor) -> Tensor:
    """Of attributes (N, A) those that the read-out changes."""
    return values[:, [ATTRIBUTES.index(name) for name in MOVED]]


def read_out(network: CapsuleClassifier, images: Examples, trained: Trained) -> Any:
    """A linear read-out of slant and thickness from the poses of the classes that a
    network sees in raw images.
    """
    train = posed(network, trained.classifier.prepared(images))
    return fit_readout(train.poses, _moved_only(attributes(train.pictures)), train.seen)


def restyled(
    network: CapsuleClassifier,
    content: Posed,
    style: Posed,
    wanted: Tensor,
    readout: Any,
) -> Tensor:
    """The contents with the poses of the styles; with a read-out, with their own poses
    moved to what is wanted.
    """
    device = next(network.parameters()).device
    if readout is not None:
        poses = readout.moved(content.poses, _moved_only(wanted))
        return draw_poses(network, poses.to(device), content.seen.to(device)).cpu()
    drawn = transfer(
        network,
        _on(content.capsules, device),
        _on(style.capsules, device),
        content.seen.to(device),
        style.seen.to(device),
    )
    return drawn[:, -1].cpu()


def _on(capsules: Capsules, device: torch.device) -> Capsules:
    return Capsules(*(part.to(device) for part in capsules))


def _picture(
    network: CapsuleClassifier,
    test: Posed,
    row: str,
    readout: Any,
    caption: str,
) -> Picture:
    """The first image of each class (down) with the poses of others (across)."""
    classes = test.labels.unique().tolist()
    content_places, style_places = [], []
    for number, label in enumerate(classes):
        images = (test.labels == label).nonzero()[:, 0]
        content_places.append(int(images[0]))
        style_places.append(int(images[number % 2 + 1]))
    contents = test.at(torch.tensor(content_places))
    styles = test.at(torch.tensor(style_places))
    wanted = attributes(styles.pictures)
    grid = [torch.cat([torch.ones_like(styles.pictures[:1]), styles.pictures])]
    for place in range(len(classes)):
        content = contents.at(torch.full((len(classes),), place))
        drawn = restyled(network, content, styles, wanted, readout)
        grid.append(torch.cat([content.pictures[:1], drawn]))
    return Picture(transfer_grid(torch.stack(grid)[:, :, :1], row), caption)
