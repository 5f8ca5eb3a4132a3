"""Objects: to take pictures apart without labels."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, product
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchcaps.models import ClassifierNetwork, Prediction, SlotAutoencoder
from torchcaps_lab.data import Batch, Examples
from torchcaps_lab.kinds.objects.guess import guess_pictures
from torchcaps_lab.kinds.objects.measures import (
    UNKNOWN,
    adjusted_rand_index,
    best_overlap,
    foreground_rand_index,
)
from torchcaps_lab.kinds.objects.pictures import (
    NO_SLOTS,
    SlotMoves,
    SlotPictures,
    slot_of_pixels,
)
from torchcaps_lab.kinds.objects.sets import ObjectSet
from torchcaps_lab.kinds.objects.steps import SlotSteps
from torchcaps_lab.kinds.pixels.pictures import drawings_of
from torchcaps_lab.report.exhibit import Exhibit
from torchcaps_lab.report.findings import check_asked, predicted
from torchcaps_lab.report.hints import Commands, falling_loss, few_tested
from torchcaps_lab.report.observe import Metrics
from torchcaps_lab.report.pictures.advice import Advice
from torchcaps_lab.report.pictures.headline import page_title, sentence
from torchcaps_lab.report.pictures.learning_curves import LearningCurves
from torchcaps_lab.report.pictures.summary import Summary
from torchcaps_lab.tasks.base import (
    Answer,
    Criteria,
    Examination,
    Forward,
    Losses,
    Measure,
    Task,
    register_task,
)

_SHOWN = 6
"""Pictures of a report."""

_LEAST_SHARE = 0.002
"""Of the pixels: slots with fewer draw nothing."""

_INDICES = {
    "fg_ari": foreground_rand_index,
    "ari": adjusted_rand_index,
    "mbo": best_overlap,
}
"""How well the slots of pixels match the objects."""

_NAMES = {
    "fg_ari": "FG-ARI",
    "ari": "ARI with the ground",
    "mbo": "mean best overlap",
}

_ASSIGNED = "_assigned"
"""The end of the name of a figure of assigned pixels, not of masks."""


@register_task("objects")
class Objects(Task):
    """Learns to take pictures apart into objects, without labels: by drawing them.

    The loss is the mean squared error of the reconstruction. Networks must draw each
    slot with a mask (:attr:`torchcaps.models.Prediction.masks`), as
    :class:`~torchcaps.models.SlotAutoencoder` does. What they draw is the image, or
    :attr:`~torchcaps.models.Prediction.features` of it. Where the objects of the pixels are
    known, as in :class:`~torchcaps_lab.data.Shapes`, they only measure the result.

    Example:
        >>> from torchcaps_lab.kinds.objects.task import Objects
        >>> Objects().main.name, Objects().main.higher_is_better
        ('error', False)
    """

    measures = (
        Measure("error", higher_is_better=False, bounds=(0.0, inf), percent=False),
    )

    probability = "share of the pixels"

    length = "activation of the slot"

    explores = True

    @classmethod
    def guess(cls, root: Path, given: Mapping[str, Any]) -> Any:
        """Options for the pictures of a folder and its sub-folders."""
        return guess_pictures(root, given)

    def check(self, images: Examples) -> None:
        """Raise a `ValueError` unless the pictures have slots for classes."""
        if not isinstance(images, ObjectSet):
            raise ValueError(
                "task 'objects' takes pictures without labels, as PictureFolder and "
                "Shapes have: these have labels, such as "
                f"{', '.join(map(repr, images.classes[:3]))}"
            )

    def loss(
        self,
        network: ClassifierNetwork,
        forward: Forward,
        batch: Batch,
        criteria: Criteria,
    ) -> Losses:
        """The mean squared error of the reconstruction."""
        prediction = forward(batch.inputs, batch.labels)
        error = _errors(prediction, batch).mean()
        return prediction, {"loss_of_drawing": error}

    def measure(self, prediction: Prediction, batch: Batch) -> dict[str, Tensor]:
        """``error``, the mean squared error of each image; where objects are known
        ``fg_ari`` of the masks, and ``fg_ari_assigned`` of the pixels.
        """
        figures = {"error": _errors(prediction, batch).detach()}
        if _known(batch.labels):
            slots = _slots_by_name(prediction)
            for end, slot in slots.items():
                index = foreground_rand_index(batch.labels, slot)
                figures[f"fg_ari{end}"] = index.float()
        return figures

    def examine(
        self,
        network: ClassifierNetwork,
        images: Examples,
        batch_size: int = 128,
    ) -> Examination:
        """Error of the reconstruction, objects of an image, and where they are known
        FG-ARI, ARI and mean best overlap.
        """
        self.check(images)
        check_asked(network, images, batch_size)
        rows: dict[str, list[Tensor]] = {}
        for batch, prediction in predicted(network, images, batch_size):
            for name, values in self._figures(prediction, batch).items():
                rows.setdefault(name, []).append(values.double().cpu())
        each = {name: torch.cat(values) for name, values in rows.items()}
        figures = {name: values.mean().item() for name, values in each.items()}
        lines = [
            f"mean squared error of what was drawn {figures['error']:.4f}, "
            f"{figures['objects']:.1f} objects found in a picture"
        ]
        for end, what in (("", "masks"), (_ASSIGNED, "assigned pixels")):
            of_slots = [
                f"{name} {figures[key + end]:.3f}"
                for key, name in _NAMES.items()
                if key + end in each
            ]
            if of_slots:
                lines.append(f"{what}: {', '.join(of_slots)}")
        details = {
            f"{name}_of_images": values.tolist() for name, values in each.items()
        }
        return Examination(figures, details, tuple(lines))

    def _figures(self, prediction: Prediction, batch: Batch) -> dict[str, Tensor]:
        figures = self.measure(prediction, batch)
        slots = prediction.activation.shape[1]
        counts = [len(_things(mask, slots)) for mask in slot_of_pixels(prediction)]
        figures["objects"] = torch.tensor(counts) - 1.0
        true = batch.labels.to(prediction.activation.device)
        if _known(true):
            for (end, slot), (key, index) in product(
                _slots_by_name(prediction).items(), _INDICES.items()
            ):
                figures[key + end] = index(true, slot)
        return figures

    def explored(
        self,
        network: ClassifierNetwork,
        image: Tensor,
        picture: Tensor,
    ) -> SlotSteps:
        """The slots of an image, step by step."""
        return SlotSteps.of(network, image, picture)

    def drawings(
        self,
        answer: Answer,
        picture: Tensor,
        classes: Sequence[str],
    ) -> dict[str, bytes]:
        """The slot of each pixel, and the slots laid over the picture."""
        return drawings_of(answer.mask, picture, len(classes))

    def answers(self, prediction: Prediction, classes: Sequence[str]) -> list[Answer]:
        """The slots of each picture: its classes are those that draw something, the one
        with the most pixels, which is usually the ground, first.

        The mask says for each pixel which of these classes it belongs to, by its place
        among them. So 0 is the ground, and objects count from 1.
        """
        slots = slot_of_pixels(prediction)
        poses = None if prediction.capsules is None else prediction.capsules.pose
        answers = []
        for row, mask in enumerate(slots):
            shares = _shares(mask, len(classes))
            things = _things(mask, len(classes))
            names = tuple(classes[slot] for slot in things)
            lengths = prediction.activation[row].tolist()
            answers.append(
                Answer(
                    names,
                    dict(zip(classes, shares.tolist(), strict=True)),
                    dict(zip(classes, lengths, strict=True)),
                    poses=None
                    if poses is None
                    else dict(zip(classes, poses[row], strict=True)),
                    seen=f"{len(things) - 1} objects and the ground",
                    mask=_places(mask, things, len(classes)),
                )
            )
        return answers

    def exhibits(
        self,
        network: ClassifierNetwork,
        images: Examples,
        summary: Mapping[str, Any],
        metrics: Metrics,
    ) -> Iterator[Exhibit | None]:
        """Pictures taken apart, the worst ones, moves of poses, learning curves."""
        examination = self.examine(network, images)
        title = page_title(network, summary)
        text = sentence("; ".join(examination.lines))
        some = images.subset(torch.arange(min(_SHOWN, len(images))))
        yield SlotPictures.of(network, some, title, text)
        measure = f"fg_ari{_ASSIGNED}_of_images"
        worst_first = False
        if measure not in examination.details:
            measure, worst_first = "error_of_images", True
        each = torch.tensor(examination.details[measure])
        worst = images.subset(each.argsort(descending=worst_first)[:_SHOWN])
        yield SlotPictures.of(
            network,
            worst,
            "Where it fails",
            "The pictures with the worst figures. Objects that share a slot have one "
            "colour, and an object in two slots has two.",
            "worst",
        )
        if isinstance(network, SlotAutoencoder):
            yield SlotMoves.of(network, images)
        hints = chain(falling_loss(metrics), few_tested(images))
        good = "the loss no longer falls, and there are enough pictures to test on"
        yield Advice.of_hints(
            hints, images, Commands.of(summary), good, "--masks masks"
        )
        yield LearningCurves.of(metrics)
        yield Summary.of("Settings", summary, [])


def _errors(prediction: Prediction, batch: Batch) -> Tensor:
    """The mean squared error of what was drawn of each picture, (B,), in float32.

    Raises:
        ValueError: if the network draws no slots.
    """
    if prediction.features is not None:
        drawn, true = prediction.features
    elif prediction.reconstruction is not None and prediction.masks is not None:
        drawn = prediction.reconstruction
        true = batch.pictures.to(drawn.device)
    else:
        raise ValueError(NO_SLOTS)
    return (drawn.float() - true.float()).square().flatten(1).mean(1)


def _slots_by_name(prediction: Prediction) -> dict[str, Tensor]:
    """The slot of each pixel, (B, H, W), by the end of the names of its figures: of the
    masks, and of the assigned pixels.
    """
    shares = {"": prediction.masks, _ASSIGNED: prediction.assigned}
    return {end: share.argmax(1) for end, share in shares.items() if share is not None}


def _known(labels: Tensor) -> bool:
    return bool((labels != UNKNOWN).any())


def _shares(mask: Tensor, slots: int) -> Tensor:
    """Count the share of the pixels of an image that each slot has."""
    return torch.bincount(mask.flatten(), minlength=slots) / mask.numel()


def _places(mask: Tensor, things: Sequence[int], slots: int) -> Tensor:
    """Each slot of a mask by its place among the slots that draw something; the ground
    for those that hardly do.
    """
    table = torch.zeros(slots, dtype=torch.int64)
    table[torch.tensor(things)] = torch.arange(len(things))
    return table[mask]


def _things(mask: Tensor, slots: int) -> list[int]:
    """The slots that draw something, those with the most pixels first."""
    shares = _shares(mask, slots)
    order = shares.argsort(descending=True).tolist()
    return [slot for slot in order if shares[slot] > _LEAST_SHARE]
