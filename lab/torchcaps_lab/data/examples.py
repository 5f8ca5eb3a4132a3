"""Labelled images in memory, and the batches that networks get of them."""

import hashlib
import json
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchcaps.numerics import check_size
from torchcaps_lab.data.classes import places_of
from torchcaps_lab.data.plain_text import check_class_names
from torchcaps_lab.data.transforms.preprocess import Preprocess, View

_AS_THEY_ARE = Preprocess()


class Parts(NamedTuple):
    """What composed images were made of: each of their K things alone.

    Attributes:
        labels: int64 (B, K), the class of each.
        pictures: float32 (B, K, C, H, W), in [0, 1].

    Example:
        >>> from torchcaps_lab.data import Digits, Pairs
        >>> batch = Pairs(Digits(), size=12, shift=2).test.__getitems__([0, 1])
        >>> batch.parts.labels.shape, batch.parts.pictures.shape
        (torch.Size([2, 2]), torch.Size([2, 2, 1, 12, 12]))
    """

    labels: Tensor
    pictures: Tensor


class Batch(NamedTuple):
    """Some of the `Examples`, ready for a network.

    Attributes:
        inputs: float32 (B, C, H, W), in [0, 1] unless they were standardised; rows of
            words or series from other kinds of examples.
        labels: int64 (B,), or bool (B, E), a mask of the classes in each image where
            there may be several.
        indices: int64 (B,), their places in the `Examples`.
        pictures: float32 (B, C, H, W), the images before they were standardised, in [0,
            1]: to draw, to reconstruct.
        parts: what the images were put together from, if a `Composition` made them and
            gives it.
        placed: the pictures of the parts before brightness, contrast and erasing, which
            show where each part lies; None if none of these was applied.

    Example:
        >>> from torchcaps_lab.data import Digits
        >>> batch = Digits().test.__getitems__([0, 1, 2])
        >>> batch.inputs.shape, batch.labels.shape
        (torch.Size([3, 1, 8, 8]), torch.Size([3]))
    """

    inputs: Tensor
    labels: Tensor
    indices: Tensor
    pictures: Tensor
    parts: Parts | None = None
    placed: Tensor | None = None

    def prepared(self, prepare: Callable[[Tensor], View]) -> "Batch":
        """The batch with its images, and the pictures of its parts, prepared by
        `prepare`.
        """
        view = prepare(self.inputs)
        batch = self._replace(inputs=view.images, pictures=view.pictures)
        if self.parts is None:
            return batch
        views = [prepare(part) for part in self.parts.pictures.unbind(1)]
        parts = self.parts._replace(
            pictures=torch.stack([prepared.pictures for prepared in views], 1)
        )
        placed = [prepared.placed for prepared in views if prepared.placed is not None]
        return batch._replace(
            parts=parts, placed=torch.stack(placed, 1) if placed else None
        )


class Composition(ABC):
    """Puts images together out of those of a set, anew in each epoch: two digits on top
    of each other, a scene, ...

    The result may depend on the seed, the epoch, the index of the image in its set and
    the arguments of the composition only: then a resumed training and one on several
    processes see the same images as an uninterrupted one on one process.
    `random_integers` gives such random numbers.

    Example:
        >>> from torchcaps_lab.data import Composition, Digits, Overlay
        >>> overlay = Overlay(
        ...     Digits().test, size=12, shift=2
        ... )  # two digits on top of each other
        >>> isinstance(overlay, Composition), overlay.image_shape((1, 8, 8))
        (True, (1, 12, 12))
    """

    @property
    def several(self) -> bool:
        """Whether an image may show several things of a class."""
        return False

    @abstractmethod
    def image_shape(self, raw: tuple[int, int, int]) -> tuple[int, int, int]:
        """The shape of the results, from images of the shape `raw`, (C, H, W)."""

    @abstractmethod
    def __call__(self, batch: Batch, epoch: int, seed: int) -> Batch:
        """Puts images together, on the device of the batch.

        Args:
            batch: images and pictures (B, C, H, W) in [0, 1] and labels, as they are in
                the set.
            epoch: from 0.
            seed: the seed of the training.

        Returns:
            The batch with new images and pictures in [0, 1], the labels of these, and
            their parts if there are any.
        """


_SMALL_PHOTOS = 96
_PHOTO_BACKBONE = (
    "--model capsnet_on_backbone --model_args.backbone timm/efficientnet_lite0 "
    "--model_args.weights imagenet --model_args.keep_statistics true "
    "--frozen_epochs 10 --optimizer.lr 0.0003"
)

MOST_CLASSES = 10_000
"""Measures of a test count all pairs of classes: 10,000 classes take 0.8 GB."""


@dataclass(frozen=True, eq=False)
class Examples(Dataset[Batch]):
    """Labelled images of one size, held in memory as bytes and prepared for the network
    when they are fetched.

    torch's `DataLoader` fetches whole batches from it (by `__getitems__`): give it a
    `collate_fn` that returns its argument.

    Attributes:
        inputs: uint8 (N, C, H, W).
        labels: int64 (N,), each in [0, len(classes)), or bool (N, len(classes)), a mask
            of the classes in each image where there may be several, or none.
        classes: the name of each label.
        files: the file of each image, if each has its own.
        preprocess: how the images are prepared, in its way for the test; by default
            they are left as they are.
        composition: puts new images together out of these; None leaves them as they
            are. In training they are new in each epoch; fetched from here they are
            always those of epoch 0 and seed 0.

    Raises:
        ValueError: a tensor has another type or shape, a label is out of range, the
            name of a class cannot be shown in one line, or `preprocess` does not suit
            the size of the images.

    Example:
        >>> from torchcaps_lab.data import Examples
        >>> images = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
        >>> examples = Examples(images, torch.tensor([0, 1, 1]), classes=("cat", "dog"))
        >>> len(examples), examples[0].inputs.shape
        (3, torch.Size([1, 1, 8, 8]))
    """

    what: ClassVar[str] = "images"
    """What the items are called in messages."""

    groups: ClassVar[str] = "classes"
    """What their labels name, likewise."""

    larger: ClassVar[str] = "--model capsnet_on_backbone"
    """The option that takes a network that can learn more of them."""

    stand_in: ClassVar[str] = "new.jpg"
    """What a command names that asks about another one."""

    inputs: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    files: tuple[str, ...] | None = None
    preprocess: Preprocess = _AS_THEY_ARE
    composition: Composition | None = None

    def __post_init__(self) -> None:
        self._check_inputs()
        self._check_labels()
        check_class_names(self.classes, "the name of a class")
        if self.files is not None and len(self.files) != len(self.inputs):
            raise ValueError(
                f"files must name {len(self.inputs)} files, one per image, got "
                f"{len(self.files)}"
            )
        self._check_preparation()

    def _check_inputs(self) -> None:
        shape = self.inputs.shape
        if self.inputs.dtype != torch.uint8 or len(shape) != 4 or 0 in shape[1:]:
            raise ValueError(
                "inputs must be uint8 (N, C, H, W) with pixels in each image, got "
                f"{_describe(self.inputs)}"
            )

    def _check_preparation(self) -> None:
        self.preprocess.image_shape(self.raw_image_shape)

    def _check_labels(self) -> None:
        labels = self.labels
        count = len(self.inputs)
        classes = len(self.classes)
        if classes > MOST_CLASSES:
            raise ValueError(
                f"there may be at most {MOST_CLASSES:,} classes, got {classes:,} for "
                f"{count:,} examples: "
                "are these labels names of single examples?"
            )
        if labels.dtype == torch.bool and labels.shape == (count, classes):
            return
        if labels.dtype != torch.int64 or labels.shape != (count,):
            raise ValueError(
                f"labels must be int64 ({count},), one per image, or bool ({count}, "
                f"{classes}), a mask of the classes "
                f"in each, got {_describe(labels)}"
            )
        if count and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise ValueError(
                f"labels must lie in 0..{classes - 1}, one of {classes} classes, "
                f"got labels from {int(labels.min())} to {int(labels.max())}"
            )

    @classmethod
    def require(cls, examples: "Examples", name: str = "examples") -> Self:
        """Return the examples, which must be of this class.

        Args:
            examples: the examples.
            name: what they are called in the message.

        Raises:
            TypeError: they are of another class.
        """
        if isinstance(examples, cls):
            return examples
        raise TypeError(
            f"{name} must be a {cls.__name__}, got {type(examples).__name__}"
        )

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Batch:
        try:
            place = operator.index(index)
        except TypeError:
            raise TypeError(
                f"index must be one whole number, got {index!r}; "
                f"__getitems__(indices) fetches several {self.what} as "
                "a batch, subset(indices) keeps some of them"
            ) from None
        return self.__getitems__([place])

    def __getitems__(self, indices: list[int]) -> Batch:
        return self._fetch(indices).prepared(self.preprocess.evaluate)

    def batches(self, size: int) -> Iterator[Batch]:
        """All images in their order, `size` at a time; a `ValueError` if that is less
        than 1.
        """
        check_size(size=size)
        for start in range(0, len(self), size):
            yield self.__getitems__(list(range(start, min(start + size, len(self)))))

    def crops(self, indices: list[int]) -> Tensor:
        """The crops that a network is tested on, of the images at `indices`: float32
        (B, crops, C, H, W).
        """
        return self.preprocess.evaluate_crops(self._fetch(indices).inputs)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Return channels, height and width of every image as a network sees it."""
        return self.preprocess.image_shape(self.raw_image_shape)

    @property
    def raw_image_shape(self) -> tuple[int, int, int]:
        """Return channels, height and width of every image before it is prepared."""
        _, channels, height, width = self.inputs.shape
        shape = channels, height, width
        if self.composition is None:
            return shape
        return self.composition.image_shape(shape)

    @property
    def several(self) -> bool:
        """Whether an image may show several things of a class, and knows where they
        are.
        """
        return self.composition is not None and self.composition.several

    def contents(self) -> list[bytes]:
        """What each of them is: two of the same content are copies."""
        return [row.cpu().contiguous().numpy().tobytes() for row in self.inputs]

    def labelled(self, labels: Tensor) -> Tensor:
        """The labels of a batch that stand for a class."""
        return labels

    def wrong_in(self, batch: Batch) -> str:
        """What is wrong with the inputs of a batch of these; empty if nothing is."""
        pixels = batch.pictures
        shape = (len(batch.indices), *self.image_shape)
        if tuple(pixels.shape) != shape or pixels.dtype != torch.float32:
            return (
                f"a batch is {pixels.dtype} {tuple(pixels.shape)}, not float32 {shape}"
            )
        low = float(pixels.min())
        high = float(pixels.max())
        if not 0 <= low <= high <= 1:
            return f"pixels go from {low:g} to {high:g}, not from 0 to 1"
        return ""

    def written(self, index: int) -> str:
        """The text of one of them.

        Raises:
            TypeError: they are not written.
        """
        raise TypeError(f"{self.what} have no text")

    def nameable(self) -> str:
        """What to type on a command line to ask a network about one of them: the file
        that it is in, or what stands for one.
        """
        first = self.files[0] if self.files else ""
        # The second: without its row.
        for name in (first, first.rpartition(":")[0]):
            if name and Path(name).is_file():
                return name
        return self.stand_in

    def folders(self, indices: Sequence[int]) -> list[str]:
        """The folders in which some of them lie, as a network can be asked about
        them.
        """
        if self.files is None:
            return []
        return [
            *dict.fromkeys(str(Path(self.files[place]).parent) for place in indices)
        ]

    def seen(self, indices: list[int]) -> Batch | None:
        """Return some of them to look at; None if they cannot be shown as pictures."""
        return self.__getitems__(indices)

    def shape_in_words(self) -> str:
        """Return their shape; empty if they have any."""
        return f"{' x '.join(map(str, self.image_shape))} (C x H x W)"

    def against_overfitting(self, preprocess: Mapping[str, Any]) -> str:
        """Return options that keep a network from learning them by heart.

        Args:
            preprocess: the options in use, which are left out.
        """
        options = {"flip": "true", "shift": "2", "rotate": "15", "zoom": "0.2"}
        options |= {"randaugment": "2", "erase": "0.25"}
        unused = [
            f"--preprocess.{name} {value}"
            for name, value in options.items()
            if not preprocess.get(name)
        ]
        return " ".join(unused[:3])

    def pretrained(self) -> str:
        """Return options that start from a backbone trained on many others; empty if
        there is none for them.
        """
        channels, *size = self.image_shape
        if channels != 3:
            return ""
        larger = self.files is not None and min(size) < _SMALL_PHOTOS
        return ("--data.size 128 " if larger else "") + _PHOTO_BACKBONE

    def counts(self) -> dict[str, int]:
        """How many of them show each class, by its name."""
        if self.labels.dtype == torch.bool:
            numbers = self.labels.sum(0)
        else:
            numbers = torch.bincount(self.labels, minlength=len(self.classes))
        return dict(zip(self.classes, numbers.tolist(), strict=True))

    def shown(self) -> list[str]:
        """The classes that any of them shows."""
        return [name for name, count in self.counts().items() if count]

    def to(self, device: torch.device | str) -> "Examples":
        """Return the same images in the memory of a device; batches of them are made
        there.
        """
        return replace(
            self, inputs=self.inputs.to(device), labels=self.labels.to(device)
        )

    def prepared(self, preprocess: Preprocess) -> "Examples":
        """The same images, prepared in this way; a `ValueError` if it does not suit
        their size.
        """
        return replace(self, preprocess=preprocess)

    def in_classes(
        self, classes: Sequence[str], where: str = "the images"
    ) -> "Examples":
        """The same images with the labels that their classes, found by name, have among
        others.

        Args:
            classes: the names of the new labels; those of other images than these may
                be among them.
            where: what these images are, for the message.

        Raises:
            ValueError: there are images of another class; or the images are put
                together, and have other classes.
        """
        if tuple(classes) == tuple(self.classes):
            return self
        if self.composition is not None:
            raise ValueError(
                f"{where} must have the classes {tuple(classes)}, got {self.classes}"
            )
        used = sorted(self._used_labels())
        places = torch.zeros(max(len(self.classes), 1), dtype=torch.int64)
        places_of_used = places_of(
            [self.classes[label] for label in used], classes, where
        )
        places[used] = torch.tensor(places_of_used, dtype=torch.int64)
        return self._relabelled(places.to(self.labels.device), tuple(classes))

    def _used_labels(self) -> list[int]:
        """The labels of these images."""
        if self.labels.dtype == torch.bool:
            return self.labels.any(0).nonzero().flatten().tolist()
        return self.labels.unique().tolist()

    def _relabelled(self, places: Tensor, classes: tuple[str, ...]) -> "Examples":
        """The same with the label ``places[label]`` in place of each."""
        if self.labels.dtype != torch.bool:
            return replace(self, labels=places[self.labels], classes=classes)
        masks = self.labels.new_zeros(len(self), len(classes))
        used = self._used_labels()
        masks[:, places[used]] = self.labels[:, used]
        return replace(self, labels=masks, classes=classes)

    def subset(self, indices: Tensor) -> "Examples":
        """Return the images at `indices`, int64 (M,), in that order."""
        return replace(self, **self._rows(indices))

    def _rows(self, indices: Tensor) -> dict[str, Any]:
        """The tensors and other fields of a subset at `indices`."""
        if not isinstance(indices, Tensor):
            raise TypeError(
                f"indices must be a tensor, int64 (M,), got {type(indices).__name__}"
            )
        if indices.dtype != torch.int64 or indices.ndim != 1:
            raise ValueError(f"indices must be int64 (M,), got {_describe(indices)}")
        if self.files is None:
            files = None
        else:
            files = tuple(self.files[i] for i in indices.tolist())
        return {
            "inputs": self.inputs[indices],
            "labels": self.labels[indices],
            "files": files,
        }

    def digest(self) -> str:
        """Return SHA-256 of the names of the classes and of all images and labels in
        their order, in hexadecimal.
        """
        digest = hashlib.sha256(
            json.dumps([self.classes, self.inputs.shape, self.labels.shape]).encode()
        )
        for part in (self.inputs, self.labels):
            for rows in part.split(1024):
                digest.update(rows.cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def _on_device(self, indices: list[int]) -> Tensor:
        """Indices where the inputs are, int64 (B,)."""
        # Without non_blocking, every batch would wait for all work that is queued on
        # the device.
        return torch.as_tensor(indices, dtype=torch.int64).to(
            self.inputs.device, non_blocking=True
        )

    def _fetch(self, indices: list[int]) -> Batch:
        """A batch of unprepared images in [0, 1]."""
        rows = self._on_device(indices)
        pixels = self.inputs[rows].to(torch.float32) / 255
        batch = Batch(pixels, self.labels[rows], rows, pixels)
        if self.composition is None:
            return batch
        return self.composition(batch, epoch=0, seed=0)


class PlainExamples(Examples):
    """Examples that are not images: they are not prepared at random, and cannot be
    shown as pictures.
    """

    stand_in = "FILE"

    forgetting: ClassVar[str] = ""
    """The options that keep a network from learning them by heart."""

    def _check_preparation(self) -> None:
        if self.preprocess != _AS_THEY_ARE or self.composition is not None:
            raise ValueError(
                f"preprocess and composition are for images: {self.what} take none"
            )

    def __getitems__(self, indices: list[int]) -> Batch:
        return self._fetch(indices)

    def folders(self, indices: Sequence[int]) -> list[str]:
        """None: a file may hold many of them."""
        return []

    def seen(self, indices: list[int]) -> Batch | None:
        """None: they cannot be shown as pictures."""
        return None

    def shape_in_words(self) -> str:
        """Empty: they have any length."""
        return ""

    def against_overfitting(self, preprocess: Mapping[str, Any]) -> str:
        """The options of their networks."""
        return self.forgetting

    def pretrained(self) -> str:
        """Empty: there is none."""
        return ""


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"
