"""A digest of what networks are trained on changes with it, and with nothing else."""

from dataclasses import replace

import pytest
import torch

from torchcaps_lab.data import DataSet, Digits, Examples


class Four(DataSet):
    """Four training images in two classes; the test images are not to be read."""

    def __init__(
        self,
        classes: tuple[str, ...] = ("a", "b"),
        flipped: bool = False,
        pixel: int = 0,
    ) -> None:
        super().__init__(validation=0)
        images = torch.arange(24, dtype=torch.uint8).reshape(4, 1, 2, 3)
        images[0, 0, 0, 0] = pixel
        labels = torch.tensor([0, 1, 0, 1])
        self.images = Examples(images, 1 - labels if flipped else labels, classes)

    def load_train(self) -> Examples:
        return self.images

    def load_test(self) -> Examples:
        raise AssertionError("the test images are read")


@pytest.mark.parametrize(
    "another",
    [Four(("a", "c")), Four(flipped=True), Four(pixel=1)],
    ids=["class", "label", "byte"],
)
def test_whatever_is_trained_on_changes_the_fingerprint(
    another: DataSet,
) -> None:
    assert Four().fingerprint() == Four().fingerprint() != another.fingerprint()


def test_the_split_changes_the_fingerprint() -> None:
    assert (
        len(
            {
                Digits(validation, seed).fingerprint()
                for validation, seed in ((0.1, 0), (0.1, 1), (0.2, 0))
            }
        )
        == 3
    )


def test_the_order_of_images_changes_the_digest_and_files_do_not() -> None:
    images = Four().images
    assert images.subset(torch.tensor([2, 1, 0, 3])).digest() != images.digest()
    assert replace(images, files=("1", "2", "3", "4")).digest() == images.digest()
    assert images.subset(torch.arange(0)).digest() != images.digest()
