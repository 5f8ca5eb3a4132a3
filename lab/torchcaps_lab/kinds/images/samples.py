"""Images to try for networks without a run: data sets that are on this machine, without
downloads.
"""

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

from torch.nn import functional as F

from torchcaps_lab.classifier import Classifier
from torchcaps_lab.data.base import Tell, create_dataset, test_examples
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.kinds import public
from torchcaps_lab.kinds.images.made import arrange
from torchcaps_lab.kinds.images.sets.digits import Digits
from torchcaps_lab.tasks import SeveralLabels
from torchcaps_lab.tasks.things import counts_things

_SMALLNORB = 96  # pixels of its side; each divisor is a possible size
_DIGITS = tuple(str(digit) for digit in range(10))


def image_samples(name: str, classifier: Classifier, tell: Tell) -> Examples | None:
    """Test images for a network.

    Args:
        name: the name of the data that it was trained on: if that data set is on this
            machine, its test images are read.
        classifier: the network. If it classifies digits, and nothing better is there,
            it gets the digits that come with scikit-learn, scaled as in MNIST; for
            several digits at once, images of several.
        tell: is called with the reason if test images are damaged and not used.

    Returns:
        None if there are no images for it.
    """
    if isinstance(classifier.task, SeveralLabels) and classifier.classes == _DIGITS:
        return digit_scenes(classifier, tell)
    options: dict[str, dict[str, Any]] = {
        "mnist": {"download": False},
        "fashion_mnist": {"download": False},
        "shapes": {},
        "tetrominoes": {},
        "multi_dsprites": {},
    }
    if not _SMALLNORB % classifier.image_shape[1]:
        options["smallnorb"] = {"size": classifier.image_shape[1]}
    if name in options:
        images = test_examples(partial(create_dataset, name, **options[name]), tell)
        fits = (classifier.image_shape, classifier.classes)
        if images is not None and (images.raw_image_shape, images.classes) == fits:
            return images
    if classifier.classes == _DIGITS and classifier.image_shape[0] == 1:
        return digit_samples(classifier.image_shape)
    return None


def digit_samples(image_shape: tuple[int, int, int]) -> Examples:
    """The test images of scikit-learn's digits, grey, of this shape (1, H, W), with
    margins in MNIST's proportion.

    Enlarged from 8 x 8 pixels they are blurred, so twice the contrast gives their edges
    back.
    """
    _, height, width = image_shape
    side = min(height, width)
    margin, contrast = (round(side / 7), 2) if side > 8 else (0, 1)
    test = Digits(size=side - 2 * margin).test
    images = (test.inputs.float() - 127.5) * contrast + 127.5
    images = images.clamp(0, 255).round().byte()
    high = height - images.shape[2]
    wide = width - images.shape[3]
    images = F.pad(images, (wide // 2, wide - wide // 2, high // 2, high - high // 2))
    return Examples(images, test.labels, test.classes)


def digit_scenes(classifier: Classifier, tell: Tell = warnings.warn) -> Examples:
    """Images of several digits for a network, of MNIST if it is on this machine, else
    of scikit-learn.

    Args:
        classifier: a :class:`~torchcaps.models.SceneCapsNet` gets digits of several
            sizes among clutter, any other network digits side by side, as many as fit.
        tell: as in :func:`image_samples`.
    """
    _, height, width = classifier.image_shape
    digits = test_examples(partial(create_dataset, "mnist", download=False), tell)
    if digits is None:
        digits = digit_samples((1, 28, 28))
    if counts_things(classifier.network):
        scenery = public("Scenery")(digits, (height, width))
        return replace(digits, composition=scenery)
    images, present = arrange(digits, (max(1, height // 28), max(1, width // 28)), 200)
    return Examples(images, present, digits.classes)
