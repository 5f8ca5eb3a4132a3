"""What a network gets to see of a data set's images, in training and in the test, as one set of options."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, NamedTuple

from torch import Tensor

from torchcaps.data.augment import RandomShift
from torchcaps.data.preprocess import (
    RandomBrightness,
    RandomContrast,
    RandomCrop,
    RandomFlip,
    centre_crop,
    standardise,
    thirteen_crops,
)
from torchcaps.data.strong import RandAugment, RandomErasing, RandomRotation


class View(NamedTuple):
    """Prepared images, for the network and for people.

    Attributes:
        images: float (B, C, H, W), what the network sees.
        pictures: (B, C, H, W), the same before they were standardised, clamped to [0, 1]: what a decoder shall
            reconstruct, and what to draw.
    """

    images: Tensor
    pictures: Tensor


@dataclass(frozen=True)
class Preprocess:
    """How images are prepared: training images at random, all others always in the same way.

    Training images are shifted, turned, cropped, flipped, augmented, changed in brightness and in contrast, erased
    in part and standardised, in this order; each step is left out unless asked for. All others are cropped in the
    centre and standardised. `rotate`, `randaugment` and `erase` need the extra `augment`.

    With `crop=32, brightness=63 / 255, contrast=(0.2, 1.8), standardise=True` this is the way of G. Hinton,
    S. Sabour, N. Frosst, "Matrix capsules with EM routing", ICLR 2018, on smallNORB of 48 x 48 pixels; their best
    figure is for `crops=13`. S. Sabour, N. Frosst, G. Hinton, "Dynamic routing between capsules", NeurIPS 2017:
    `shift=2` on MNIST, `crop=32` on smallNORB, `crop=24` on CIFAR-10.

    Args:
        shift: move training images by up to this many pixels in x and in y; what moves in is zero.
        crop: height and width of what the network sees: a random part of a training image, the centre of any other.
        flip: mirror half of the training images, left to right.
        brightness: add a number from [-brightness, brightness] to all pixels of a training image, which span [0, 1].
            Standardising takes this back.
        contrast: scale a training image around its mean by a factor between these two.
        standardise: give each image, as the last step, the mean 0 and the variance 1.
        crops: 13 averages the class activations over thirteen crops around the centre wherever a network is tested.
        rotate: turn training images by up to this many degrees; black comes in.
        randaugment: change training images by so many operations of RandAugment, of magnitude 9.
        erase: the probability of a training image to lose a rectangle, which becomes black.

    Raises:
        ValueError: a number is out of range, or thirteen crops are asked for without `crop`.
    """

    shift: int = 0
    crop: int | None = None
    flip: bool = False
    brightness: float = 0.0
    contrast: tuple[float, float] | None = None
    standardise: bool = False
    crops: Literal[1, 13] = 1
    rotate: float = 0.0
    randaugment: int = 0
    erase: float = 0.0

    def __post_init__(self) -> None:
        if self.shift < 0:
            raise ValueError(f"shift must be 0 or more, got {self.shift}")
        if self.crop is not None and self.crop < 1:
            raise ValueError(f"crop must be 1 or more, got {self.crop}")
        if not 0 <= self.brightness < float("inf"):
            raise ValueError(f"brightness must be 0 or more, got {self.brightness}")
        if self.contrast is not None and not 0 <= self.contrast[0] <= self.contrast[1] < float("inf"):
            raise ValueError(f"contrast must be two factors, 0 <= low <= high, got {self.contrast}")
        if not 0 <= self.rotate <= 180:
            raise ValueError(f"rotate must be 0 to 180 degrees, got {self.rotate}")
        if self.randaugment < 0:
            raise ValueError(f"randaugment must be 0 or more operations, got {self.randaugment}")
        if not 0 <= self.erase <= 1:
            raise ValueError(f"erase must be a probability, 0 to 1, got {self.erase}")
        if self.crops not in (1, 13):
            raise ValueError(f"crops must be 1 or 13, got {self.crops}")
        if self.crops == 13 and self.crop is None:
            raise ValueError("crops=13 needs crop, the size of each of them, got None")

    def image_shape(self, raw: tuple[int, int, int]) -> tuple[int, int, int]:
        """The shape that images of the shape `raw`, (C, H, W), have for the network.

        Raises:
            ValueError: `crop` is larger than the images, or leaves no margin for thirteen crops.
        """
        channels, height, width = raw
        if self.crop is None:
            return raw
        margin, why = (0, "") if self.crops == 1 else (6, ", 3 pixels less on every side for 13 crops")
        if self.crop > min(height, width) - margin:
            raise ValueError(
                f"crop must be at most {min(height, width) - margin} for images of {height} x {width}{why}, "
                f"got {self.crop}"
            )
        return channels, self.crop, self.crop

    def train(self, images: Tensor, indices: Tensor, epoch: int, seed: int = 0) -> View:
        """Training images (B, C, H, W) in [0, 1], whose places in their set are `indices`, int64 (B,), for one epoch.

        What happens to an image depends on the seed, the epoch and its index alone.
        """
        for change in self._changes(seed):
            images = change(images, indices, epoch)
        return self._view(images)

    def evaluate(self, images: Tensor) -> View:
        """Images (B, C, H, W) in [0, 1] as a network is tested on them; their centres, if there are several crops."""
        return self._view(images if self.crop is None else centre_crop(images, self.crop))

    def evaluate_crops(self, images: Tensor) -> Tensor:
        """All that a network is tested on, for images (B, C, H, W): (B, crops, C, h, w), the centre first."""
        if self.crops == 1 or self.crop is None:
            return self.evaluate(images).images.unsqueeze(1)
        parts = thirteen_crops(images, self.crop)
        return self._view(parts.flatten(0, 1)).images.unflatten(0, parts.shape[:2])

    def config(self) -> dict[str, Any]:
        """The options, ready for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Preprocess":
        """What :meth:`config` was made of; options that are left out have their defaults.

        Raises:
            ValueError: an option is unknown or out of range.
        """
        unknown = sorted(config.keys() - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"unknown preprocess options {', '.join(unknown)}")
        options: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in config.items()}
        return cls(**options)

    def _changes(self, seed: int) -> list[Callable[[Tensor, Tensor, int], Tensor]]:
        changes: list[Callable[[Tensor, Tensor, int], Tensor]] = []
        if self.shift:
            changes.append(RandomShift(self.shift, seed))
        if self.rotate:
            changes.append(RandomRotation(self.rotate, seed))
        if self.crop is not None:
            changes.append(RandomCrop(self.crop, seed))
        if self.flip:
            changes.append(RandomFlip(seed))
        if self.randaugment:
            changes.append(RandAugment(self.randaugment, seed=seed))
        if self.brightness:
            changes.append(RandomBrightness(self.brightness, seed))
        if self.contrast is not None:
            changes.append(RandomContrast(*self.contrast, seed))
        if self.erase:
            changes.append(RandomErasing(self.erase, seed))
        return changes

    def _view(self, images: Tensor) -> View:
        return View(standardise(images) if self.standardise else images, images.clamp(0, 1))
