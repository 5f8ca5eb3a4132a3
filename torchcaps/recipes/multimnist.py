"""Two digits on top of each other: both are to be told, and taken apart (Sabour et al. 2017, section 5)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from torchcaps.data import Batch, ImageSet, Overlaid, Overlay, bounding_box_overlap, fixed_pairs
from torchcaps.explain.findings import evaluating
from torchcaps.losses import ActivationLoss, MarginLoss, NegativeLogLikelihood, ReconstructionLoss
from torchcaps.models import CapsuleClassifier, ImageClassifier, create_model
from torchcaps.recipes.kit.base import Line, Picture, register_recipe
from torchcaps.recipes.kit.comparison import Comparison, Study
from torchcaps.recipes.kit.lab import Lab, Trained, data_of, run_name
from torchcaps.recipes.kit.options import option, plain
from torchcaps.recipes.kit.pictures import Cell, image_grid
from torchcaps.training import Classification, RunFolder, Speed, TrainerOptions, circumstances, fit

TEST_SEED = 0
"""Of the test pairs, which are the same for every seed of a training."""


class PairClassification(Classification):
    """Trains a network on pairs that are made anew in every step.

    The loss is that of a target with two classes; with a decoder, each class capsule alone reconstructs its digit.

    Args:
        overlay: makes the training pairs.
        validation: the validation pairs, in the order of the images that validation batches come from.
        shared: whether the loss wants probabilities that add up to 1 instead of a mask.
        arguments: of :class:`~torchcaps.training.Classification`.
    """

    def __init__(self, *arguments: Any, overlay: Overlay, validation: Overlaid, shared: bool, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.overlay = overlay
        self.pairs = validation
        self.shared = shared

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """One step on new pairs."""
        seed = hash((self.seed, self.current_epoch, batch_idx)) % 2**63
        overlaid = self.overlay(batch.images, batch.labels, torch.Generator().manual_seed(seed))
        loss, right = self._pair_step(overlaid, "train")
        self.log("train_accuracy", right, on_step=False, on_epoch=True, batch_size=len(batch.labels))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss and exact-pair accuracy on the validation pairs."""
        rows = batch.indices.cpu()
        overlaid = Overlaid(*(part[rows].to(batch.images.device) for part in self.pairs))
        _, right = self._pair_step(overlaid, "val")
        self.log("val_accuracy", right, on_epoch=True, prog_bar=True, batch_size=len(rows))

    def _pair_step(self, overlaid: Overlaid, stage: str) -> tuple[Tensor, Tensor]:
        mask = F.one_hot(overlaid.labels, self.model.classes).sum(1).float()
        images = self.speed.arrange(overlaid.images)
        if isinstance(self.model, CapsuleClassifier):
            capsules = self.model.encode(images)
            activation = capsules.activation
        else:
            activation = self.model(images).activation
        loss = self.loss(activation, mask / 2 if self.shared else mask)
        parts = {}
        if isinstance(self.model, CapsuleClassifier) and self.model.decoder is not None:
            parts[f"{stage}_class_loss"] = loss
            for digit in range(2):
                image = self.model.decode(capsules, overlaid.labels[:, digit])
                loss = loss + self.reconstruction(image, overlaid.parts[:, digit])
        parts[f"{stage}_loss"] = loss
        self.log_dict(parts, on_step=False, on_epoch=True, batch_size=len(mask))
        return loss, exact_pairs(activation, overlaid.labels).float().mean()


def exact_pairs(activation: Tensor, labels: Tensor) -> Tensor:
    """Whether the two most active classes are those of the pair, bool (B,): no credit for one of them.

    Args:
        activation: (B, E).
        labels: int64 (B, 2), different in each row.
    """
    found = activation.topk(2, dim=1).indices.sort(1).values
    return (found == labels.sort(1).values).all(1)


@dataclass(frozen=True)
class PairNetwork:
    """The network of a row.

    Attributes:
        model: its name.
        epochs: how many times each digit is overlaid on others.
        learning_rate: of Adam, in the first epoch.
        final_rate: share of it that is left in the last epoch; it falls by the same factor after each.
        arguments: of the network.
    """

    model: str
    epochs: int
    learning_rate: float = 1e-3
    final_rate: float = 0.01
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MultiMNISTSettings:
    """One preset.

    Attributes:
        data: the digits, option of ``torchcaps train``.
        networks: by row.
        batch_size: pairs in a step.
        reconstruction: weight of the sum of squared errors of each digit's reconstruction.
        size: height and width of the images.
        shift: largest shift of a digit, in pixels.
        test_pairs: how many.
        trainer: option of ``torchcaps train``.
        speed: likewise.
    """

    data: Mapping[str, Any]
    networks: Mapping[str, PairNetwork]
    batch_size: int = 128
    reconstruction: float = 0.0005
    size: int = 36
    shift: int = 4
    test_pairs: int = 10000
    trainer: Mapping[str, Any] = field(default_factory=dict)
    speed: Mapping[str, Any] = field(default_factory=dict)


CAPSULES, CNN = "CapsNet, 3 steps", "convolutional network"
ERROR = "exact-pair test error"
PAIRS, OVERLAP = "test pairs", "overlap of the bounding boxes"
SABOUR = "Sabour et al. 2017, section 5"


@register_recipe
class MultiMNIST(Comparison[MultiMNISTSettings]):
    """Trains on pairs of overlapping digits and takes them apart.

    Source: Sabour, Frosst & Hinton 2017, section 5 and figure 5.
    """

    name: ClassVar[str] = "multimnist"
    title: ClassVar[str] = "two digits on top of each other"
    source: ClassVar[str] = SABOUR
    lines: ClassVar[tuple[Line, ...]] = (
        Line(CAPSULES, ERROR, 5.2, f"{SABOUR}, recalled"),
        Line(CNN, ERROR, 8.1, f"{SABOUR}, recalled: another network, of 24.6 M parameters"),
        Line(PAIRS, OVERLAP, 80, SABOUR, higher_is_better=None),
    )
    rows: ClassVar = (CAPSULES, CNN)
    presets: ClassVar = {
        "paper": MultiMNISTSettings(
            data=option("MNIST", validation=0.02),
            networks={CAPSULES: PairNetwork("capsnet", 1000), CNN: PairNetwork("matrixcapsnet_cnn", 1000)},
            test_pairs=1_000_000,
        ),
        "quick": MultiMNISTSettings(
            data=option("MNIST", validation=0.02),
            networks={
                CAPSULES: PairNetwork(
                    "capsnet_small",
                    30,
                    learning_rate=2e-3,
                    final_rate=0.04,
                    arguments={"channels": 128, "stem": [32], "decoder_hidden": [512, 1024]},
                ),
                CNN: PairNetwork("matrixcapsnet_cnn", 10, final_rate=0.04),
            },
            batch_size=64,
            trainer={"precision": "bf16-mixed"},
            speed={"channels_last": True},
        ),
        "smoke": MultiMNISTSettings(
            data=option("Digits"),
            networks={
                CAPSULES: PairNetwork(
                    "capsnet_digits", 2, arguments={"channels": 8, "types": 2, "decoder_hidden": [16]}
                ),
                CNN: PairNetwork("matrixcapsnet_cnn", 2, arguments={"channels": [4, 8], "hidden": 16}),
            },
            size=12,
            shift=2,
            test_pairs=100,
        ),
    }
    notes: ClassVar[tuple[str, ...]] = (
        "A pair counts only if both digits are told. Pairs of training digits are made anew in every step, test pairs "
        "are of test digits alone and the same for every seed.",
        "The overlap is the intersection of the two bounding boxes over the smaller of them.",
        "The quick preset's CapsNet has 5 x 5 kernels, 32 and 128 channels with batch normalisation, 16 primary types.",
        "The CNN is that of Hinton et al. 2018 (two convolutions with pooling, a hidden layer), trained with the "
        "cross-entropy against half a probability for each digit. In the quick preset it has a third of the "
        "CapsNet's epochs (each takes as long), half its learning rate and no batch normalisation: its row says "
        "little.",
    )

    def train(self, study: Study, row: str, stop_at: float | None) -> Trained:
        """On pairs."""
        return train(study.lab, study.settings, row)

    def begin(self, study: Study) -> Overlaid:
        """The test pairs, and how much they overlap."""
        settings = study.settings
        test = Overlay(data_of(settings.data).test, settings.size, settings.shift)
        pairs = fixed_pairs(test, settings.test_pairs, TEST_SEED)
        study.note(PAIRS, {OVERLAP: 100 * float(bounding_box_overlap(pairs.parts).mean())})
        return pairs

    def measure(self, study: Study, row: str, given: Overlaid) -> dict[str, float]:
        """Both digits must be told."""
        return {ERROR: pair_error(study.trained[row].network, given)}

    def finish(self, study: Study, given: Overlaid) -> None:
        """The reconstructions of the capsules."""
        network = study.trained[CAPSULES].network
        if isinstance(network, CapsuleClassifier) and network.decoder is not None:
            study.pictures["reconstructions"] = _picture(network, Overlaid(*(part[:200] for part in given)))


def pair_error(network: ImageClassifier, pairs: Overlaid, batch_size: int = 256) -> float:
    """The share of pairs, in percent, of which not both digits are told."""
    with evaluating(network) as device:
        right = [
            exact_pairs(_activation(network, images.to(device)).cpu(), labels)
            for images, labels in zip(pairs.images.split(batch_size), pairs.labels.split(batch_size), strict=True)
        ]
    return 100 * (1 - torch.cat(right).double().mean().item())


def _activation(network: ImageClassifier, images: Tensor) -> Tensor:
    """Of the classes, without decoding."""
    return (network.encode(images) if isinstance(network, CapsuleClassifier) else network(images)).activation


def train(lab: Lab, settings: MultiMNISTSettings, row: str) -> Trained:
    """Trains the network of a row on pairs, or opens it: :meth:`Lab.train` for this recipe."""
    spec = settings.networks[row]
    trainer = {**settings.trainer, **lab.trainer}
    shared = {name: value for name, value in asdict(settings).items() if name not in ("networks", "test_pairs")}
    own = {"network": asdict(spec), "trainer": trainer, "seed": lab.seed}
    options = plain({"recipe": MultiMNIST.name, "row": row, **shared, **own})

    def make(folder: RunFolder) -> None:
        torch.manual_seed(lab.seed)
        data = data_of(settings.data)
        overlay = Overlay(data.train, settings.size, settings.shift)
        held_out = Overlay(data.validation, settings.size, settings.shift)
        validation = fixed_pairs(held_out, len(data.validation), lab.seed)
        image_shape = tuple(validation.images.shape[1:])
        network = create_model(spec.model, image_shape=image_shape, classes=len(data.classes), **spec.arguments)
        capsules = isinstance(network, CapsuleClassifier)
        decay = spec.final_rate ** (1 / max(spec.epochs - 1, 1))
        loss: ActivationLoss = MarginLoss() if capsules else NegativeLogLikelihood()
        task = PairClassification(
            network,
            loss,
            ReconstructionLoss(settings.reconstruction),
            lambda parameters: torch.optim.Adam(parameters, lr=spec.learning_rate),
            lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, decay),
            overlay=overlay,
            validation=validation,
            shared=not capsules,
            seed=lab.seed,
            speed=Speed(**settings.speed),
        )
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.config.write_text(yaml.safe_dump(options, sort_keys=False))
        runner, metrics = fit(
            task,
            data.train,
            ImageSet((255 * validation.images).round().to(torch.uint8), validation.labels[:, 0], data.classes),
            folder.path,
            epochs=spec.epochs,
            batch_size=settings.batch_size,
            seed=lab.seed,
            options=TrainerOptions(**{"devices": 1, **trainer}),
            show=lab.show,
        )
        network.save_pretrained(folder.model, classes=list(data.classes))
        folder.write_summary(
            {
                "model": spec.model,
                "parameters": sum(parameter.numel() for parameter in network.parameters()),
                "epochs": len(metrics),
                "seed": lab.seed,
                "last_epoch": metrics[-1],
                **circumstances(runner, metrics),
                "command": lab.command,
            }
        )

    return lab.keep(run_name("multimnist", row), options, make)


@torch.no_grad()
def _picture(network: CapsuleClassifier, pairs: Overlaid, count: int = 7) -> Picture:
    """Pairs, taken apart in two colours, and what the capsules say of wrong and of absent digits (figure 5)."""
    device = next(network.parameters()).device
    capsules = network.encode(pairs.images.to(device))
    right = exact_pairs(capsules.activation.cpu(), pairs.labels)
    chosen = torch.cat([right.nonzero().squeeze(1)[: count - 2], (~right).nonzero().squeeze(1)[:2]])[:count]
    told = capsules.activation.topk(2, dim=1).indices.cpu()
    absent = capsules.activation.cpu().scatter(1, pairs.labels, torch.inf).argmin(1, keepdim=True)
    claims = {
        "true": pairs.labels,
        "told": told,
        "true, absent": torch.cat([pairs.labels[:, :1], absent], 1),
    }
    places = chosen.tolist()
    rows = [
        ("input", [Cell(pairs.images[place, 0]) for place in places]),
        (
            "its digits",
            [Cell(_two_colours(pairs.parts[place, :, 0]), _digits(pairs.labels[place])) for place in places],
        ),
    ]
    for name, labels in claims.items():
        drawn = torch.stack([network.decode(capsules, one.to(device))[:, 0].cpu() for one in labels.unbind(1)], 1)
        rows.append(
            (f"capsules:\n{name}", [Cell(_two_colours(drawn[place]), _digits(labels[place])) for place in places])
        )
    caption = (
        "Test pairs, their two digits in red and green, and reconstructions of single class capsules in the same "
        "colours: of the true classes, of the two most active ones (the last columns: pairs that were not told right), "
        "and of one true and the least active class, which is not in the image."
    )
    return image_grid(rows, caption, 1.25)


def _two_colours(digits: Tensor) -> Tensor:
    """Two grey images (2, H, W) as the red and the green channel of one, (H, W, 3)."""
    red, green = digits.clamp(0, 1)
    return torch.stack([red, green, torch.zeros_like(red)], -1)


def _digits(labels: Tensor) -> str:
    return " and ".join(str(int(label)) for label in labels)
