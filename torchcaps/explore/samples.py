"""Images to try where no run says which: what is there already, nothing is downloaded."""

from contextlib import suppress

from torch.nn import functional as F

from torchcaps.classifier import Classifier
from torchcaps.data import Digits, ImageSet, create_dataset

_DIGITS = tuple(str(digit) for digit in range(10))


def local_samples(name: str, classifier: Classifier) -> ImageSet | None:
    """Test images for a network.

    Args:
        name: of the network; of one that comes with the package ``data/network``, and if that data set lies on this
            machine, its test images are read.
        classifier: the network. If it knows digits, and nothing better is there, it gets the 1,797 that come with
            scikit-learn, drawn as large as in MNIST.

    Returns:
        None if there are no images for it.
    """
    data = name.partition("/")[0]
    if data in ("mnist", "fashion_mnist", "smallnorb"):
        with suppress(FileNotFoundError):
            found = create_dataset(data, download=False).test
            if found.raw_image_shape == classifier.image_shape:
                return found
    if classifier.classes == _DIGITS and classifier.image_shape[0] == 1:
        return digit_samples(classifier.image_shape)
    return None


def digit_samples(image_shape: tuple[int, int, int]) -> ImageSet:
    """The test images of scikit-learn's digits, grey and of this shape (1, H, W), with MNIST's share of margin."""
    _, height, width = image_shape
    side = min(height, width)
    margin = round(side / 7) if side > 8 else 0
    test = Digits(size=side - 2 * margin).test
    high, wide = height - test.images.shape[2], width - test.images.shape[3]
    images = F.pad(test.images, (wide // 2, wide - wide // 2, high // 2, high - high // 2))
    return ImageSet(images, test.labels, test.classes)
