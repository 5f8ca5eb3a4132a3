"""Objects: to take pictures apart without labels."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, product
from math import inf
from typing import Any

import torch
from torch import Tensor

from torchcaps.models import ClassifierNetwork, Prediction, SlotAutoencoder
from torchcaps.models.slot_autoencoder import assigned_pixels
from torchcaps.numerics import Progress, Ramp, resolution
from torchcaps.spec import Within
from torchcaps_lab.data import Batch, Examples
from torchcaps_lab.evaluate.findings import Metrics, check_asked, predicted
from torchcaps_lab.evaluate.hints import Commands, Hint, falling_loss, few_tested
from torchcaps_lab.kinds.objects.guess import guess_pictures
from torchcaps_lab.kinds.objects.measures import (
    UNKNOWN,
    adjusted_rand_index,
    best_overlap,
    contingency,
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
from torchcaps_lab.look import counted
from torchcaps_lab.report.exhibit import Exhibit
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

_CLAIM = 0.5
"""A slot draws a pixel by itself where its mask is larger."""

_NOTHING_DRAWN = 0.15
"""A network that draws no larger share of the variance has found nothing."""

_SAME_PLACES = 0.5
"""Pictures of different things that are divided more alike are divided by place."""

_SEVERAL_SLOTS = 0.6
"""An object is in several slots if none has a larger share of its pixels."""

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


_PIXELS = ("variance", "square")
"""What is measured of the pixels of each picture, and kept in no figure."""

_DEVIATION = 0.3
"""The standard deviation of a colour in [0, 1] around that of its slot. With 0.1, slots
learn to draw pixels that are not theirs, and masks stay alike.
"""


def error_of_slots(pictures: Tensor, colours: Tensor, masks: Tensor) -> Tensor:
    r"""The squared error of the slots that pixels belong to, the mean over the pixels of
    each picture, (B,).

    .. math::
        -\frac{2 \sigma^2}{C} \log \sum_j m_j
        \exp\Big( -\frac{|x - c_j|^2}{2 \sigma^2} \Big)

    It is :math:`|x - c_j|^2 / C` for a pixel that one slot claims, and more where slots
    share a pixel of which only one has the colour: the negative log-likelihood of a
    mixture of Gaussians.

    Args:
        pictures: x, (B, C, H, W) in [0, 1].
        colours: c, what each slot draws, (B, J, C, H, W).
        masks: m, how much of each pixel it draws, (B, J, H, W).

    Source: Greff et al. 2019, "Multi-Object Representation Learning with Iterative
    Variational Inference", equation 3, in units of the squared error.

    Example:
        >>> from torchcaps_lab.kinds.objects.task import error_of_slots
        >>> pictures, masks = torch.rand(2, 3, 8, 8), torch.rand(2, 4, 8, 8).softmax(1)
        >>> error_of_slots(pictures, torch.rand(2, 4, 3, 8, 8), masks).shape
        torch.Size([2])
    """
    pictures, colours, masks = pictures.float(), colours.float(), masks.float()
    scale = 2 * _DEVIATION**2
    distance = (pictures[:, None] - colours).square().sum(2)
    log_likelihood = (_log(masks) - distance / scale).logsumexp(1)
    return -scale / pictures.shape[1] * log_likelihood.flatten(1).mean(1)


def error_of_outlines(pictures: Tensor, colours: Tensor, masks: Tensor) -> Tensor:
    r"""The cross-entropy of the masks with the assigned pixels, the mean over the pixels
    of each picture, (B,).

    .. math:: -\frac{1}{HW} \sum_p \sum_j R_{jp} \log m_{jp}

    Args:
        pictures: x, (B, C, H, W) in [0, 1].
        colours: c, what each slot draws, (B, J, C, H, W).
        masks: m, how much of each pixel it draws, (B, J, H, W). Only they are
            differentiated.

    Source: the M-step of the shares of a mixture (Dempster, Laird & Rubin 1977); the
    E-step is :func:`~torchcaps.models.slot_autoencoder.assigned_pixels`.

    Example:
        >>> from torchcaps_lab.kinds.objects.task import error_of_outlines
        >>> pictures, masks = torch.rand(2, 3, 8, 8), torch.rand(2, 4, 8, 8).softmax(1)
        >>> error_of_outlines(pictures, torch.rand(2, 4, 3, 8, 8), masks).shape
        torch.Size([2])
    """
    with torch.no_grad():
        assigned = assigned_pixels(pictures.float(), colours.float(), masks.float())
    return -(assigned * _log(masks.float())).sum(1).flatten(1).mean(1)


def _log(masks: Tensor) -> Tensor:
    """Their logarithm, finite also where a softmax has underflowed."""
    return masks.clamp_min(torch.finfo(masks.dtype).tiny).log()


@register_task("objects")
class Objects(Task):
    r"""Learns to take pictures apart into objects, without labels: by drawing them.

    The loss is :math:`(1 - \lambda)` times the mean squared error of the reconstruction
    and :math:`\lambda` times that of single slots, :func:`error_of_slots`. The
    reconstruction alone may blend slots: it loses nothing if two of them draw the same
    ground, or half of an object each. The second part wants one slot for each pixel.
    Its weight falls evenly to 0 in the last epoch, because it leaves the masks of
    objects to colours.

    A third part is the area of objects, which is what is outside of the largest slot.
    Without it, the slot of an object may draw the ground around it, too, at no cost. Each
    pixel costs a share of what the network draws of one, so a network that draws nothing
    yet pays nothing:

    .. math::
        \kappa \, \max(0, V - E) \Big( 1 - \max_j \frac{1}{HW} \sum_p m_{jp} \Big)

    with the variance V of the pixels, the error E of the reconstruction as a constant,
    and masks m.

    A fourth part lets masks learn the outlines that the colours of the pixels show: it is
    the cross-entropy of the masks m with the assigned pixels R as constants
    (:func:`~torchcaps.models.slot_autoencoder.assigned_pixels`), the M-step of the shares
    of a mixture whose E-step these are:

    .. math:: -\frac{\rho}{HW} \sum_p \sum_j R_{jp} \log m_{jp}

    Its weight :math:`\rho` rises evenly from 0 in the first epoch, because it would keep
    whatever slots begin with. In validation there is only the first part.

    Its main measure is the share of the variance of the pixels that is drawn, :math:`1 - \sum (x - \hat x)^2 /
    \sum (x - \bar x)^2` with the mean colour :math:`\bar x` of a picture: a network
    that draws one colour has 0, and so has one of pictures of one colour alone. Networks
    must draw each
    slot with a mask (:attr:`torchcaps.models.Prediction.masks`), as
    :class:`~torchcaps.models.SlotAutoencoder` does. What they draw is the image, or
    :attr:`~torchcaps.models.Prediction.features` of it. Where the objects of the pixels are
    known, as in :class:`~torchcaps_lab.data.Shapes`, they only measure the result.

    Args:
        single_slots: :math:`\lambda` in the first epoch, from 0 to 1. Networks that do not
            say what each slot draws (:attr:`~torchcaps.models.Prediction.colours`) have
            0.
        area: :math:`\kappa`, from 0 to 1.
        outlines: :math:`\rho` in the last epoch, from 0 to 1. Networks that do not say
            what each slot draws have 0.

    Raises:
        ValueError: if one of them is out of its range.

    Source: the second part is the likelihood of a mixture of Gaussians, one for each
    slot, as in Greff et al. 2019, "IODINE". Slot attention (Locatello et al. 2020) has
    0.

    Example:
        >>> from torchcaps_lab.kinds.objects.task import Objects
        >>> [measure.name for measure in Objects().measures]
        ['drawn', 'error']
    """

    measures = (
        Measure("drawn", bounds=(-inf, 1.0)),
        Measure("error", higher_is_better=False, bounds=(0.0, inf), percent=False),
    )

    probability = "share of the pixels"

    length = "activation of the slot"

    explores = True

    def __init__(
        self, single_slots: float = 0.2, area: float = 0.0, outlines: float = 0.0
    ) -> None:
        Within(0, 1).check("single_slots", single_slots)
        Within(0, 1).check("area", area)
        Within(0, 1).check("outlines", outlines)
        self.single_slots = single_slots
        self.area = area
        self.outlines = outlines
        self._weight = single_slots
        self._weight_of_outlines = 0.0

    def advance(self, progress: Progress) -> None:
        """Set the weights of single slots and of outlines for an epoch."""
        self._weight = Ramp(self.single_slots, 0.0).at(progress)
        self._weight_of_outlines = Ramp(0.0, self.outlines).at(progress)

    @classmethod
    def guess(cls, data: Any, given: Mapping[str, Any]) -> Any:
        """Options for the pictures of a folder and its sub-folders, or of a program."""
        return guess_pictures(data, given)

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
        """The mean squared errors of the reconstruction and of single slots, the area of
        objects and the cross-entropy of outlines, with their weights.
        """
        prediction = forward(batch.inputs, None)
        error = _errors(prediction, batch).mean()
        parts = {"loss_of_drawing": error}
        masks, colours = prediction.masks, prediction.colours
        if not network.training or masks is None:
            return prediction, parts
        if self._weight and colours is not None:
            pictures = batch.pictures.to(error.device)
            of_slots = error_of_slots(pictures, colours, masks).mean()
            parts["loss_of_drawing"] = (1 - self._weight) * error
            parts["loss_of_single_slots"] = self._weight * of_slots
        if self.area:
            largest = masks.float().mean((2, 3)).amax(1)  # (B,)
            variance = _variances(prediction, batch)[0].mean()
            drawn = (variance - error.detach()).clamp_min(0)
            parts["loss_of_area"] = self.area * drawn * (1 - largest.mean())
        if self._weight_of_outlines and colours is not None:
            pictures = batch.pictures.to(error.device)
            entropy = error_of_outlines(pictures, colours, masks).mean()
            parts["loss_of_outlines"] = self._weight_of_outlines * entropy
        return prediction, parts

    def measure(self, prediction: Prediction, batch: Batch) -> dict[str, Tensor]:
        """``error``, the mean squared error of each image, and ``drawn``, the share of
        the variance that is drawn; where objects are known ``fg_ari`` of the masks, and
        ``fg_ari_assigned`` of the pixels.
        """
        error = _errors(prediction, batch).detach()
        drawn = _drawn_shares(error, *_variances(prediction, batch))
        figures = {"drawn": drawn, "error": error}
        if _has_true_masks(batch.labels):
            figures |= _indices(batch.labels, prediction, ["fg_ari"])
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
            of_batch = self._figures(prediction, batch)
            of_batch |= zip(_PIXELS, _variances(prediction, batch), strict=True)
            for name, values in of_batch.items():
                rows.setdefault(name, []).append(values.cpu().double())
        each = {name: torch.cat(values) for name, values in rows.items()}
        # Of the variance of all pictures, however they were divided into batches.
        of_all = (each.pop(name) for name in _PIXELS)
        each["drawn"] = _drawn_shares(each["error"], *of_all)
        figures = {name: values.mean().item() for name, values in each.items()}
        lines = [
            f"{figures['drawn']:.1%} of the variance of the pictures drawn (mean "
            f"squared error {figures['error']:.4f}), {figures['objects']:.1f} objects "
            "in a picture",
            *(f"{hint.fact}, so {hint.advice}" for hint in slot_hints(figures)),
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
        slot = slot_of_pixels(prediction)
        counts = [
            len(_drawn_slots(row, claim))
            for row, claim in zip(slot, _claims(prediction), strict=True)
        ]
        figures["objects"] = torch.tensor(counts) - 1.0
        if len(slot) > 1:
            # Each picture of the batch beside the one before.
            figures["same_places"] = adjusted_rand_index(slot[1:], slot[:-1])
        if _has_true_masks(batch.labels):
            figures["shared_objects"] = _shared_objects(batch.labels, slot)
            figures |= _indices(batch.labels, prediction, ["ari", "mbo"])
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
        return drawings_of(answer.mask, picture, range(len(classes)))

    def answers(self, prediction: Prediction, classes: Sequence[str]) -> list[Answer]:
        """The slots of each picture: its classes are those that draw something, the one
        with the most pixels, which is usually the ground, first.

        The mask says for each pixel which of these classes it belongs to, by its place
        among them. So 0 is the ground, and objects count from 1.
        """
        slots = slot_of_pixels(prediction)
        claims = _claims(prediction)
        poses = None if prediction.capsules is None else prediction.capsules.pose
        answers = []
        for row, mask in enumerate(slots):
            shares = _shares(mask, len(classes))
            things = _drawn_slots(mask, claims[row])
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
                    seen=f"{counted(len(things) - 1, 'objects')} and the ground",
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
        hints = chain(
            slot_hints(examination.figures), falling_loss(metrics), few_tested(images)
        )
        good = (
            "slots follow the objects, the loss no longer falls, and there are enough "
            "pictures to test on"
        )
        yield Advice.of_hints(
            hints, images, Commands.of(summary), good, "--masks masks"
        )
        yield LearningCurves.of(metrics)
        yield Summary.of("Settings", summary, [])


def slot_hints(figures: Mapping[str, float]) -> Iterator[Hint]:
    """Hint that slots are no objects: that they draw nothing, divide all pictures alike,
    or share objects.

    Args:
        figures: those of :meth:`Objects.examine`.
    """
    if figures["drawn"] < _NOTHING_DRAWN or figures["objects"] <= 0:
        yield Hint(
            f"the network draws {figures['drawn']:.1%} of the variance of the "
            f"pictures, with {max(figures['objects'], 0):.1f} objects in a picture",
            "it has found nothing. Train longer, "
            "use pictures with other colours, or try the features of a trained network",
            "--model slots_on_backbone",
        )
        return
    if figures.get("same_places", 0) > _SAME_PLACES:
        yield Hint(
            f"the pixels of different pictures are divided alike (ARI "
            f"{figures['same_places']:.2f} between them)",
            "slots divide the picture by place and not by object. Use fewer slots, or "
            "train longer",
            "--data.slots",
        )
    if figures.get("shared_objects", 0) > _SEVERAL_SLOTS:
        yield Hint(
            f"{figures['shared_objects']:.0%} of the objects are in several slots",
            "there are more slots than objects. Use fewer slots",
            "--data.slots",
        )


def _drawn_and_true(prediction: Prediction, batch: Batch) -> tuple[Tensor, Tensor]:
    """What was drawn and should be, pictures (B, C, H, W) or features, in float32.

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
    return drawn.float(), true.float()


def _errors(prediction: Prediction, batch: Batch) -> Tensor:
    """The mean squared error of what was drawn of each picture, (B,), in float32."""
    drawn, true = _drawn_and_true(prediction, batch)
    return (drawn - true).square().flatten(1).mean(1)


def _drawn_shares(error: Tensor, variance: Tensor, square: Tensor) -> Tensor:
    """The share of the variance of all pictures together that is drawn of each, (B,),
    because a picture of one colour has none; 0 if all are of one colour.

    Args:
        error: the mean squared error of each picture, (B,).
        variance: that of its pixels around their mean colour, (B,).
        square: the mean of the squares of its pixels, (B,).
    """
    mean = variance.mean()
    flat = mean <= resolution(square.float().mean(), roundings=4)
    return torch.where(flat, 0.0, 1 - error / mean.where(~flat, 1))


def _variances(prediction: Prediction, batch: Batch) -> tuple[Tensor, Tensor]:
    """The variance of the pixels of each picture around their mean colour, and the mean
    of their squares, (B,).
    """
    _, true = _drawn_and_true(prediction, batch)
    pixels = true.flatten(2) if prediction.features is None else true.mT
    return pixels.var(2, correction=0).mean(1), pixels.square().mean((1, 2))


def _claims(prediction: Prediction) -> Tensor:
    """Whether each slot draws some pixel by itself, bool (B, J)."""
    assert prediction.masks is not None
    return prediction.masks.flatten(2).amax(2) > _CLAIM


def _shared_objects(true: Tensor, slots: Tensor) -> Tensor:
    """The share of the objects of each picture that are in several slots, (B,)."""
    counts = contingency(true, slots)[:, 1:]  # without the ground, (B, K, J)
    size = counts.sum(2)
    largest = counts.amax(2) / size.clamp_min(1)
    several = (largest < _SEVERAL_SLOTS) & (size > 0)
    return several.sum(1) / (size > 0).sum(1).clamp_min(1)


def _indices(
    true: Tensor, prediction: Prediction, keys: Sequence[str]
) -> dict[str, Tensor]:
    """How well the slots of each picture match its objects, (B,), by the names of the
    figures: of the masks, and of the assigned pixels.
    """
    shares = {"": prediction.masks, _ASSIGNED: prediction.assigned}
    return {
        f"{key}{end}": _INDICES[key](true, share.argmax(1)).float()
        for (end, share), key in product(shares.items(), keys)
        if share is not None
    }


def _has_true_masks(labels: Tensor) -> bool:
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


def _drawn_slots(mask: Tensor, claims: Tensor) -> list[int]:
    """The slots of one picture that draw something, those with the most pixels first.

    The first is usually the ground, which slots may share. An object has a slot that
    draws some of its pixels by itself: where all masks are alike, nothing was found.

    Args:
        mask: the slot of each pixel, int64 (H, W).
        claims: whether each slot draws some pixel by itself, bool (J,).
    """
    shares = _shares(mask, len(claims))
    ground, *others = shares.argsort(descending=True).tolist()
    objects = [slot for slot in others if shares[slot] > _LEAST_SHARE and claims[slot]]
    return [ground, *objects]
