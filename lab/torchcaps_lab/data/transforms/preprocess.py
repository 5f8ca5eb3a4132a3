"""How a network sees the images of a data set, in training and in the test, as one set
of options.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, NamedTuple

from torch import Tensor

from torchcaps.numerics import NotNegative, Share, Size
from torchcaps.spec import Within, check_fields, plain
from torchcaps_lab.data.transforms.changes import (
    Pixels,
    RandomBrightness,
    RandomContrast,
    RandomCrop,
    RandomFlip,
    RandomShift,
)
from torchcaps_lab.data.transforms.draws import RandomChange
from torchcaps_lab.data.transforms.steps import (
    MOST_PIXELS,
    centre_crop,
    nearest,
    normalise,
    rescale,
    standardise,
    thirteen_crops,
)
from torchcaps_lab.data.transforms.strong import (
    Degrees,
    RandAugment,
    RandomErasing,
    RandomRotation,
    RandomZoom,
    Stretch,
)

Changes = Mapping[str, Callable[..., RandomChange]]
"""The classes of random changes, or functions that make one, by the option whose value
they take.
"""

MOVES: Changes = {
    "shift": RandomShift,
    "rotate": RandomRotation,
    "zoom": RandomZoom,
    "crop": RandomCrop,
    "flip": lambda _, seed: RandomFlip(seed=seed),
    "randaugment": RandAugment,
}
"""Those that may move things; RandAugment is among them because it leaves black pixels
black.
"""

SHADES: Changes = {
    "brightness": RandomBrightness,
    "contrast": lambda bounds, seed: RandomContrast(*bounds, seed=seed),
    "erase": RandomErasing,
}
"""Those that leave everything in its place."""


class View(NamedTuple):
    """Prepared images, for the network and for people.

    Attributes:
        images: float (B, C, H, W), what the network sees.
        pictures: (B, C, H, W), the same before they were standardised or normalised,
            clamped to [0, 1]: what a decoder should reconstruct, and what to draw.
        placed: (B, C, H, W), the same before brightness, contrast and erasing, to find
            where things are; None if none of these was chosen.

    Example:
        >>> from torchcaps_lab.data import Preprocess
        >>> view = Preprocess(standardise=True).evaluate(torch.rand(4, 1, 8, 8))
        >>> (
        ...     view.images.mean().abs() < 0.1,
        ...     view.pictures.mean() > 0.4,
        ... )  # what the network sees, what people see
        (tensor(True), tensor(True))
    """

    images: Tensor
    pictures: Tensor
    placed: Tensor | None = None


RANDOM = {*MOVES, *SHADES} - {"crop"}
"""Settings of :class:`Preprocess` that change images in training alone. Outside of it, a
crop takes the centre.
"""


@dataclass(frozen=True)
class Preprocess:
    """Prepare images: training images at random, all others always in the same way.

    Training images are rescaled, shifted, turned, stretched, cropped, flipped,
    augmented, changed in brightness and in contrast, erased in part, binarised and
    standardised or normalised, in this order; each step is left out unless asked for.
    All others are rescaled, cropped in the centre, binarised and standardised or
    normalised. `rotate`, `zoom` and `randaugment` need the extra `augment`.

    With `crop=32, brightness=63 / 255, contrast=(0.2, 1.8), standardise=True` this is
    the way of G. Hinton, S. Sabour, N. Frosst, "Matrix capsules with EM routing", ICLR
    2018, on smallNORB of 48 x 48 pixels, except that the released code crops last, so
    that its contrast is about the mean of the whole picture; their best figure is for
    `crops=13`. S. Sabour, N. Frosst, G. Hinton, "Dynamic routing between capsules",
    NeurIPS 2017: `shift=2` on MNIST, `crop=32` on smallNORB, `crop=24` on CIFAR-10.

    V. Mazzia, F. Salvetti, M. Chiaberge, "Efficient-CapsNet", 2021, on smallNORB of 96
    x 96 pixels: `rescale=64, crop=48, contrast=(0.5, 1.5)`, `mean` and `deviation` of
    the training images (0.752, 0.757 and 0.177, 0.174), and a `brightness` of 2
    deviations (0.35).

    Args:
        shift: move training images by up to this many pixels in x and in y; pixels from
            outside are zero.
        crop: height and width of what the network sees: a random part of a training
            image, the centre of any other.
        flip: mirror half of the training images, left to right.
        brightness: add a number from [-brightness, brightness] to all pixels of a
            training image, which span [0, 1]. Standardising undoes this.
        contrast: scale a training image around its mean by a factor between these two.
        standardise: give each image, as the last step, the mean 0 and the variance 1.
        rescale: bring images to this height and width first, bilinearly; None leaves
            their size.
        mean: of each channel of all training images, which is subtracted as the last
            step, and
        deviation: which is then divided by: the same numbers for every image, where
            `standardise` has each image's own.
        crops: 13 averages the class activations over thirteen crops around the centre
            wherever a network is tested.
        rotate: turn training images by up to this many degrees; corners that come in
            are black.
        zoom: stretch training images, width and height each by up to this share;
            borders that come in are black.
        randaugment: change each training image by this many operations of RandAugment,
            of magnitude 9.
        erase: the probability that a rectangle of a training image becomes black.
        binarise: make pixels above 0.5 one and all others zero, after all changes and
            before `standardise` or `mean`.

    Raises:
        ValueError: a number is out of range, or thirteen crops are asked for without
            `crop`.

    Example:
        >>> from torchcaps_lab.data import Preprocess
        >>> preprocess = Preprocess(shift=2, standardise=True)
        >>> images = torch.rand(4, 1, 28, 28)
        >>> preprocess.train(images, indices=torch.arange(4), epoch=0).images.shape
        torch.Size([4, 1, 28, 28])
        >>> preprocess.evaluate(images).images.std().round()
        tensor(1.)
    """

    shift: Pixels = 0
    crop: Size | None = None
    flip: bool = False
    brightness: NotNegative = 0.0
    contrast: tuple[float, float] | None = None
    standardise: bool = False
    crops: Literal[1, 13] = 1
    rotate: Degrees = 0.0
    zoom: Stretch = 0.0
    randaugment: Annotated[int, Within(0)] = 0
    erase: Share = 0.0
    rescale: Annotated[int, Within(1, MOST_PIXELS)] | None = None
    mean: Annotated[tuple[float, ...], Within()] | None = None
    deviation: Annotated[tuple[float, ...], Within(0, open=True)] | None = None
    binarise: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.contrast is not None:
            RandomContrast(*self.contrast)
        self._check_statistics()
        if self.crops == 13 and self.crop is None:
            raise ValueError("crops=13 needs crop, the size of each of them, got None")

    def _check_statistics(self) -> None:
        mean = self.mean
        deviation = self.deviation
        if mean is None and deviation is None:
            return
        if mean is None or deviation is None or len(mean) != len(deviation):
            raise ValueError(
                f"mean and deviation must be one number each a channel, got {mean} "
                f"and {deviation}"
            )
        if self.standardise:
            raise ValueError(
                "standardise and mean are two ways to scale images, got both"
            )

    def image_shape(self, raw: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the shape in which the network sees images of the shape `raw`, (C, H,
        W).

        Raises:
            ValueError: `crop` is larger than the images, or leaves no margin for
                thirteen crops; `shift` is as large as the images; or `mean` has another
                number of channels.
        """
        channels, height, width = raw
        if self.mean is not None and len(self.mean) != channels:
            raise ValueError(
                f"mean and deviation must be for {channels} channels, got {self.mean}"
            )
        if self.rescale is not None:
            height = width = self.rescale
        if self.shift >= min(height, width):
            raise ValueError(
                f"shift must be less than {min(height, width)} for images of {height} "
                f"x {width}, got {self.shift}"
            )
        if self.crop is None:
            return channels, height, width
        if self.crops == 1:
            margin, why = (0, "")
        else:
            margin, why = (6, ", 3 pixels less on every side for 13 crops")
        if self.crop > min(height, width) - margin:
            raise ValueError(
                f"crop must be at most {min(height, width) - margin} for images of "
                f"{height} x {width}{why}, "
                f"got {self.crop}"
            )
        return channels, self.crop, self.crop

    def train(self, images: Tensor, indices: Tensor, epoch: int, seed: int = 0) -> View:
        """Training images (B, C, H, W) in [0, 1], whose places in their set are
        `indices`, int64 (B,), for one epoch.

        What happens to an image depends only on the seed, the epoch and its index.
        """
        images = self._rescaled(images)
        for change in self._changes(MOVES, seed):
            images = change(images, indices, epoch)
        placed = images
        shades = self._changes(SHADES, seed)
        for change in shades:
            images = change(images, indices, epoch)
        return self._view(images)._replace(placed=placed if shades else None)

    def evaluate(self, images: Tensor) -> View:
        """Prepare images (B, C, H, W) in [0, 1] for a test; of several crops, the
        centre.
        """
        images = self._rescaled(images)
        return self._view(
            images if self.crop is None else centre_crop(images, self.crop)
        )

    def evaluate_crops(self, images: Tensor) -> Tensor:
        """Return all crops of images (B, C, H, W) for a test: (B, crops, C, h, w), the
        centre first.
        """
        if self.crops == 1 or self.crop is None:
            return self.evaluate(images).images.unsqueeze(1)
        parts = thirteen_crops(self._rescaled(images), self.crop)
        return self._view(parts.flatten(0, 1)).images.unflatten(0, parts.shape[:2])

    def undone(self, values: Tensor, height: int, width: int) -> Tensor:
        """Bring numbers of the pixels of a prepared image, whole ones (H, W), back to
        those of the image, (height, width); they are 0 where a crop left pixels out.
        """
        rows, columns = values.shape
        size = (height, width) if self.rescale is None else (self.rescale, self.rescale)
        whole = values.new_zeros(size)
        top, left = (size[0] - rows) // 2, (size[1] - columns) // 2
        whole[top : top + rows, left : left + columns] = values
        return whole if self.rescale is None else nearest(whole, height, width)

    def config(self) -> dict[str, Any]:
        """Return the options, ready for JSON."""
        return plain(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Preprocess":
        """Create it from the result of :meth:`config`; missing options have their
        defaults.

        Raises:
            ValueError: an option is unknown or out of range.
        """
        unknown = sorted(config.keys() - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"unknown preprocess options {', '.join(unknown)}")
        options: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in config.items()
        }
        return cls(**options)

    def _changes(self, kinds: Changes, seed: int) -> list[RandomChange]:
        """The changes that are asked for."""
        return [
            make(value, seed=seed)
            for name, make in kinds.items()
            if (value := getattr(self, name))
        ]

    def _rescaled(self, images: Tensor) -> Tensor:
        return images if self.rescale is None else rescale(images, self.rescale)

    def _view(self, images: Tensor) -> View:
        if self.binarise:
            images = (images > 0.5).to(images.dtype)
        pictures = images.clamp(0, 1)
        if self.standardise:
            return View(standardise(images), pictures)
        if self.mean is not None and self.deviation is not None:
            return View(normalise(images, self.mean, self.deviation), pictures)
        return View(images, pictures)
