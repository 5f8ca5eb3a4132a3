"""The common parts of all data sets: images with labels, three splits, a name and a folder on disk."""

import hashlib
import json
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchcaps.numerics import check_size
from torchcaps.spec import Registry, Within, argument, is_finite, settings
from torchcaps_lab.data.manifest import Changes, Manifest
from torchcaps_lab.data.view import Preprocess, View

# Test sets that are drawn here (not given by a source) use this seed, never the user's: runs with different seeds are
# then measured on the same images.
TEST_SEED = 0

_AS_THEY_ARE = Preprocess()

Resize = Literal["pad", "crop", "stretch", "handwriting"]
"""How images get to another size: keep the aspect ratio and pad with black, keep it and crop, or stretch; or cut out
what was written by hand, see :func:`~torchcaps_lab.data.handwriting.read_handwriting`."""

Fit = Literal["pad", "crop", "stretch", "handwriting", "keep"]
"""The same for images that a trained network classifies; ``keep``, for networks of any size, leaves their size."""


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
    """Some images of an `ImageSet`, ready for a network.

    Attributes:
        images: float32 (B, C, H, W), in [0, 1] unless they were standardised.
        labels: int64 (B,), or bool (B, E), a mask of the classes in each image where there may be several.
        indices: int64 (B,), the places of the images in their `ImageSet`.
        pictures: float32 (B, C, H, W), the images before they were standardised, in [0, 1]: to draw, to reconstruct.
        parts: what the images were put together from, if a `Composition` made them and gives it.
        placed: the pictures of the parts before brightness, contrast and erasing, which show where each part lies; None
            if none of these was applied.

    Example:
        >>> from torchcaps_lab.data import Digits
        >>> batch = Digits().test.__getitems__([0, 1, 2])
        >>> batch.images.shape, batch.labels.shape
        (torch.Size([3, 1, 8, 8]), torch.Size([3]))
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    pictures: Tensor
    parts: Parts | None = None
    placed: Tensor | None = None

    def prepared(self, prepare: Callable[[Tensor], View]) -> "Batch":
        """The batch with its images, and the pictures of its parts, prepared by `prepare`."""
        view = prepare(self.images)
        batch = self._replace(images=view.images, pictures=view.pictures)
        if self.parts is None:
            return batch
        views = [prepare(part) for part in self.parts.pictures.unbind(1)]
        parts = self.parts._replace(pictures=torch.stack([one.pictures for one in views], 1))
        placed = [one.placed for one in views if one.placed is not None]
        return batch._replace(parts=parts, placed=torch.stack(placed, 1) if placed else None)


class Composition(ABC):
    """Puts images together out of those of a set, anew in each epoch: two digits on top of each other, a scene, ...

    The result may depend on the seed, the epoch, the index of the image in its set and the arguments of the composition
    only: then a resumed training and one on several processes see the same images as an uninterrupted one on one
    process. `random_integers` gives such random numbers.

    Example:
        >>> from torchcaps_lab.data import Composition, Digits, Overlay
        >>> overlay = Overlay(Digits().test, size=12, shift=2)  # two digits on top of each other
        >>> isinstance(overlay, Composition), overlay.image_shape((1, 8, 8))
        (True, (1, 12, 12))
    """

    @abstractmethod
    def image_shape(self, raw: tuple[int, int, int]) -> tuple[int, int, int]:
        """The shape of the results, from images of the shape `raw`, (C, H, W)."""

    @abstractmethod
    def __call__(self, batch: Batch, epoch: int, seed: int) -> Batch:
        """Puts images together, on the device of the batch.

        Args:
            batch: images and pictures (B, C, H, W) in [0, 1] and labels, as they are in the set.
            epoch: from 0.
            seed: of the training.

        Returns:
            The batch with new images and pictures in [0, 1], the labels of these, and their parts if there are any.
        """


@dataclass(frozen=True, eq=False)
class ImageSet(Dataset[Batch]):
    """Labelled images of one size, held in memory as bytes and prepared for the network when they are fetched.

    torch's `DataLoader` fetches whole batches from it (by `__getitems__`): give it a `collate_fn` that
    returns its argument.

    Attributes:
        images: uint8 (N, C, H, W).
        labels: int64 (N,), each in [0, len(classes)), or bool (N, len(classes)), a mask of the classes in each image
            where there may be several, or none.
        classes: the name of each label.
        files: the file of each image, if each has its own.
        preprocess: how the images are prepared, in its way for the test; by default they are left as they are.
        composition: puts new images together out of these; None leaves them as they are. In training they are new in
            each epoch; fetched from here they are always those of epoch 0 and seed 0.

    Raises:
        ValueError: a tensor has another type or shape, a label is out of range, or `preprocess` does not suit
            the size of the images.

    Example:
        >>> from torchcaps_lab.data import ImageSet
        >>> images = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
        >>> image_set = ImageSet(images, torch.tensor([0, 1, 1]), classes=("cat", "dog"))
        >>> len(image_set), image_set[0].images.shape
        (3, torch.Size([1, 1, 8, 8]))
    """

    what: ClassVar[str] = "images"
    """What the items are called in messages."""

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    files: tuple[str, ...] | None = None
    preprocess: Preprocess = _AS_THEY_ARE
    composition: Composition | None = None

    def __post_init__(self) -> None:
        images = self.images
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise ValueError(f"images must be uint8 (N, C, H, W), got {_describe(images)}")
        self._check_labels()
        if self.files is not None and len(self.files) != len(images):
            raise ValueError(f"files must name {len(images)} files, one per image, got {len(self.files)}")
        self.preprocess.image_shape(self.raw_image_shape)

    def _check_labels(self) -> None:
        labels, count, classes = self.labels, len(self.images), len(self.classes)
        if labels.dtype == torch.bool and labels.shape == (count, classes):
            return
        if labels.dtype != torch.int64 or labels.shape != (count,):
            raise ValueError(
                f"labels must be int64 ({count},), one per image, or bool ({count}, {classes}), a mask of the classes "
                f"in each, got {_describe(labels)}"
            )
        if count and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise ValueError(
                f"labels must lie in 0..{classes - 1}, one of {classes} classes, "
                f"got labels from {int(labels.min())} to {int(labels.max())}"
            )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Batch:
        try:
            place = operator.index(index)
        except TypeError:
            raise TypeError(
                f"index must be one whole number, got {index!r}; __getitems__(indices) fetches several {self.what} as "
                "a batch, subset(indices) keeps some of them"
            ) from None
        return self.__getitems__([place])

    def __getitems__(self, indices: list[int]) -> Batch:
        return self._fetch(indices).prepared(self.preprocess.evaluate)

    def batches(self, size: int) -> Iterator[Batch]:
        """All images in their order, `size` at a time; a `ValueError` if that is less than 1."""
        check_size(size=size)
        for start in range(0, len(self), size):
            yield self.__getitems__(list(range(start, min(start + size, len(self)))))

    def crops(self, indices: list[int]) -> Tensor:
        """The crops that a network is tested on, of the images at `indices`: float32 (B, crops, C, H, W)."""
        return self.preprocess.evaluate_crops(self._fetch(indices).images)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image as a network sees it."""
        return self.preprocess.image_shape(self.raw_image_shape)

    @property
    def raw_image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image before it is prepared."""
        _, channels, height, width = self.images.shape
        shape = channels, height, width
        return shape if self.composition is None else self.composition.image_shape(shape)

    def to(self, device: torch.device | str) -> "ImageSet":
        """The same images in the memory of a device; batches of them are made there."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def prepared(self, preprocess: Preprocess) -> "ImageSet":
        """The same images, prepared in this way; a `ValueError` if it does not suit their size."""
        return replace(self, preprocess=preprocess)

    def subset(self, indices: Tensor) -> "ImageSet":
        """The images at `indices`, int64 (M,), in that order."""
        return replace(self, **self._rows(indices))

    def _rows(self, indices: Tensor) -> dict[str, Any]:
        """The tensors and other fields of a subset at `indices`."""
        if not isinstance(indices, Tensor):
            raise TypeError(f"indices must be a tensor, int64 (M,), got {type(indices).__name__}")
        if indices.dtype != torch.int64 or indices.ndim != 1:
            raise ValueError(f"indices must be int64 (M,), got {_describe(indices)}")
        files = None if self.files is None else tuple(self.files[i] for i in indices.tolist())
        return {"images": self.images[indices], "labels": self.labels[indices], "files": files}

    def digest(self) -> str:
        """SHA-256 of the names of the classes and of all images and labels in their order, in hexadecimal."""
        found = hashlib.sha256(json.dumps([self.classes, self.images.shape, self.labels.shape]).encode())
        for part in (self.images, self.labels):
            for rows in part.split(1024):
                found.update(rows.cpu().contiguous().numpy().data)
        return found.hexdigest()

    def _fetch(self, indices: list[int]) -> Batch:
        """A batch of unprepared images in [0, 1]."""
        # Without non_blocking, every batch would wait for all work that is queued on the device.
        rows = torch.as_tensor(indices, dtype=torch.int64).to(self.images.device, non_blocking=True)
        pixels = self.images[rows].to(torch.float32) / 255
        batch = Batch(pixels, self.labels[rows], rows, pixels)
        return batch if self.composition is None else self.composition(batch, epoch=0, seed=0)


def check_held_out_share(name: str, share: float) -> None:
    """Raise a `ValueError` that names the argument unless `share` lies in [0, 1): not all can be put aside."""
    if not is_finite(share) or not 0 <= share < 1:
        raise ValueError(f"{name} must be a share in [0, 1), got {share!r}")


class _NotAll(Within):
    """The bounds of a share to put aside."""

    def check(self, place: str, value: Any) -> None:
        check_held_out_share(place, value)


HeldOut = Annotated[float, _NotAll(0, 1)]
"""A share in [0, 1) to put aside."""


@settings
class ImageData(ABC):
    """A data set with its training, validation and test images, each read when first asked for.

    Attributes:
        task: the default task of networks that are trained on it: the name of a task in `torchcaps_lab.tasks`, or its
            name and arguments, such as `{"name": "several_labels", "count": 2}`.
        resize: how images of another size are brought to that of the data set; saved with a network.
        validation_share: the argument ``validation``; the attribute of that name are the images.
        gives: what it consists of, `images` or `words`; networks must take that, see
            :attr:`torchcaps.models.ImageClassifier.takes`.
        model: the default network, by its registered name.

    Args:
        validation: share of the training images put aside for validation, the same in every class;
            0 puts none aside.
        seed: chooses which images those are; nothing else does.

    Raises:
        ValueError: `validation` is outside [0, 1), or `seed` is not a whole number.

    Example:
        >>> from torchcaps_lab.data import Digits, ImageData, ImageSet
        >>> class Inverted(ImageData):
        ...     def load_train(self):
        ...         return self._inverted(Digits(validation=0).train)
        ...     def load_test(self):
        ...         return self._inverted(Digits().test)
        ...     def _inverted(self, digits):
        ...         return ImageSet(255 - digits.images, digits.labels, digits.classes)
        ...
        >>> len(Inverted(validation=0.1).train), len(Inverted().classes)
        (1295, 10)
    """

    task: ClassVar[str | Mapping[str, Any]] = "classification"

    gives: ClassVar[str] = "images"

    model: ClassVar[str] = "capsnet"

    validation_share: HeldOut = argument(default=0.1, alias="validation", kw_only=True)
    seed: Annotated[int, Within(-(2**63))] = argument(default=0, kw_only=True)  # what torch takes

    @property
    def resize(self) -> Fit:
        """How images of another size are brought to that of the data set."""
        return "pad"

    @abstractmethod
    def load_train(self) -> ImageSet:
        """Read the training images, those for validation included."""

    @abstractmethod
    def load_test(self) -> ImageSet:
        """Read the test images."""

    def load_validation(self) -> ImageSet | None:
        """Read the validation images of a source that has its own; None has them split off training."""
        return None

    @property
    def train(self) -> ImageSet:
        """The images to train on."""
        return self._train_and_validation[0]

    @property
    def validation(self) -> ImageSet:
        """The images to choose settings on; empty if none were put aside."""
        return self._train_and_validation[1]

    @cached_property
    def test(self) -> ImageSet:
        """The images to report results on. Only touching this reads them."""
        return self.load_test()

    @property
    def classes(self) -> tuple[str, ...]:
        """The name of each label."""
        return self.train.classes

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        return self.train.image_shape

    def arguments(self, preprocess: Preprocess) -> dict[str, Any]:
        """Arguments of a network for it, besides the number of classes; a `ValueError` if it cannot be prepared so."""
        return {"image_shape": preprocess.image_shape(self.image_shape)}

    def kept(self) -> dict[str, Any]:
        """What is saved with a network that was trained on it: how new images are read. For JSON."""
        return {"raw_image_shape": list(self.image_shape), "resize": self.resize}

    def fingerprint(self) -> str:
        """A digest of what networks are trained and validated on: images, labels and names of classes, in their order.

        Training is resumed on the same images only if this is the same. Test images are not read for it.
        """
        return mixed_digest(self.train.digest(), self.validation.digest())

    def manifest(self) -> Manifest | None:
        """Which files the images come from, split by split; None if they are not files of the user's own."""
        return None

    def follow(self, manifest: Manifest | None) -> Changes:
        """Takes over the split of a manifest, whatever files were added since, and returns what changed.

        Args:
            manifest: of a run; None for a run from before manifests were kept.

        Raises:
            ValueError: the images are not files.
        """
        if manifest is not None:
            raise ValueError(f"{type(self).__name__} has no files that could be those of the manifest")
        return Changes()

    def test_on_all(self) -> None:
        """Makes every file a test image.

        Raises:
            ValueError: the images are not files.
        """
        raise ValueError(
            f"only folders and lists of images can all be tested on, {type(self).__name__} has splits of its own"
        )

    def notes(self) -> tuple[str, ...]:
        """What a reader of results should know about the images, such as what was left out and why; a sentence each."""
        return ()

    @cached_property
    def _train_and_validation(self) -> tuple[ImageSet, ImageSet]:
        train, validation = self.load_train(), self.load_validation()
        if validation is not None:
            return train, validation
        rest, held_out = stratified_split(train.labels, self.validation_share, self.seed)
        return train.subset(rest), train.subset(held_out)


def stratified_split(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Put aside the same share of every class, at random.

    Args:
        labels: int64 (N,); or masks, bool (N, E): then all images count as one class, because each mask may be unique.
        share: how much of each class to put aside, in [0, 1). Unless it is 0, every class of two or more
            keeps at least one on each side; a class of one is never put aside.
        seed: the only thing that the choice depends on, besides the labels.

    Returns:
        The indices of the rest and of those put aside, int64, each in ascending order.

    Raises:
        ValueError: `share` is outside [0, 1).
    """
    check_held_out_share("share", share)
    generator = torch.Generator().manual_seed(seed)
    labels = labels if labels.ndim == 1 else torch.zeros(len(labels), dtype=torch.int64)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = (labels == label).nonzero().squeeze(1)
        count = min(max(round(share * len(members)), 1), len(members) - 1) if share else 0
        held_out[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return (~held_out).nonzero().squeeze(1), held_out.nonzero().squeeze(1)


def stable_split(labels: Tensor, digests: Sequence[str], share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Put aside the same share of every class: the images whose digests, mixed with the seed, are the smallest.

    Where an image goes depends on its content and, at the edge, on how many others of its class come before it: adding
    an image moves at most one other of its class. Copies of an image stay together if both sides keep images.

    Args:
        labels: int64 (N,).
        digests: of the images' contents.
        share: how much of each class to put aside, in [0, 1). Unless it is 0, every class of two or more
            keeps at least one on each side; a class of one is never put aside.
        seed: of the choice.

    Returns:
        The indices of the rest and of those put aside, int64, each in ascending order.

    Raises:
        ValueError: `share` is outside [0, 1).
    """
    check_held_out_share("share", share)
    scores = [hashlib.sha256(f"{seed} {digest}".encode()).digest() for digest in digests]
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = sorted((labels == label).nonzero().squeeze(1).tolist(), key=scores.__getitem__)
        count = min(max(round(share * len(members)), 1), len(members) - 1) if share else 0
        end = count
        while 0 < end < len(members) and digests[members[end - 1]] == digests[members[end]]:
            end += 1
        held_out[members[: count if end == len(members) else end]] = True
    return (~held_out).nonzero().squeeze(1), held_out.nonzero().squeeze(1)


def mixed_digest(*digests: str) -> str:
    """One SHA-256, in hexadecimal, of several digests; their order counts."""
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def find_data_dir(data_dir: str | Path | None) -> Path:
    """The folder of the data sets: the argument, else $TORCHCAPS_DATA, else torchcaps in the user's cache.

    Raises:
        ValueError: the argument is not a path.
    """
    if data_dir is not None and not isinstance(data_dir, str | os.PathLike):
        raise ValueError(f"data_dir must be the path of a folder, or None, got {data_dir!r}")
    chosen = data_dir or os.environ.get("TORCHCAPS_DATA")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "torchcaps"


DATASETS = Registry("data set", ImageData)
"""The data sets that :func:`create_dataset` knows."""

register_dataset = DATASETS.register
"""Decorate an `ImageData` so that `create_dataset` knows it as `name`; a name taken is a `ValueError`."""


def list_datasets() -> list[str]:
    """The names that `create_dataset` knows, sorted."""
    return sorted(DATASETS)


def create_dataset(name: str, **kwargs: Any) -> ImageData:
    """Build the data set `name` with the arguments of its class; an unknown name is a `ValueError`."""
    return DATASETS.find(name)(**kwargs)


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"
