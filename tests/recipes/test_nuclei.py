"""The parts of the recipe on nuclei."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from recipes.components import Otsu
from recipes.nuclei import ByNetwork, Nuclei, ObjectPixels
from recipes.placed_slots import PlacedSlots, bright_places
from torchcaps.models import ImageClassifier, Prediction
from torchcaps_lab.data import Shapes
from torchcaps_lab.kinds.objects.measures import adjusted_rand_index


def discs() -> tuple[Tensor, Tensor]:
    """Two bright discs on a dark ground, and which disc each pixel is of."""
    rows, columns = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    labels = torch.zeros(32, 32, dtype=torch.int64)
    for number, (row, column) in enumerate(((9, 8), (22, 23)), 1):
        labels[(rows - row).square() + (columns - column).square() < 25] = number
    return 0.1 + 0.8 * (labels > 0), labels


def plates(folder: Path, count: int = 24) -> None:
    """Images with two nuclei in the first of their windows, dark and bright in turn."""
    for kind in ("images", "masks"):
        (folder / "nuclei" / kind).mkdir(parents=True)
    mask = np.zeros((256, 256), np.uint8)
    mask[20:40, 20:40] = 3
    mask[60:80, 60:90] = 7
    mask[100:103, 100:103] = 9
    for number in range(count):
        image = np.full((256, 256), 2 + 5 * (number % 12), np.uint8)
        image[mask > 0] = 100 + number
        for kind, array in (("images", image), ("masks", mask)):
            Image.fromarray(array).save(folder / "nuclei" / kind / f"{number:02}.png")


def test_crops_have_the_nuclei_that_are_large_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plates(tmp_path)
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    data = Nuclei()
    for part in (data.train, data.validation, data.test):
        assert len(part) > 0
        assert part.labels.unique().tolist() == [0, 1, 2]
    # The speck of nine pixels is bright in the picture, and no nucleus.
    assert int((data.test.labels[0] > 0).sum()) == (20 * 20 + 20 * 30) // 4
    assert len(data.train) + len(data.validation) + len(data.test) == 24


def test_images_that_look_alike_stay_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plates(tmp_path)
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    parts = Nuclei()._parts
    together = [{place % 12 for place in part} for part in parts]
    assert sum(map(len, together)) == 12


def test_no_nuclei_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="images and masks of nuclei"):
        _ = Nuclei().train


def test_pixels_of_objects_are_one_class() -> None:
    shapes = Shapes(size=16, count=20, tests=4)
    pixels = ObjectPixels(shapes)
    assert torch.equal(pixels.test.labels > 0, shapes.test.labels > 0)
    assert pixels.classes == ("ground", "nucleus")


def test_connected_regions_are_objects() -> None:
    image, labels = discs()

    class Marked(ImageClassifier):
        """Knows the pixels of objects."""

        def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
            inside = (images[:, 0] > 0.5).float()
            return Prediction(torch.stack([1 - inside, inside], 1), None, None)

    for network in (Otsu((1, 32, 32), 5), ByNetwork(Marked((1, 32, 32), 2), 5)):
        prediction = network(image[None, None])
        assert prediction.masks is not None
        slots = prediction.masks.argmax(1)
        assert adjusted_rand_index(labels[None], slots).tolist() == [1.0]
        assert prediction.reconstruction is not None
        torch.testing.assert_close(prediction.reconstruction[0, 0], image)


def test_regions_differ_from_the_colour_of_the_ground() -> None:
    """One darker and one of another colour, on a bright ground."""
    _, labels = discs()
    colours = torch.tensor([[0.8, 0.9, 0.7], [0.2, 0.1, 0.1], [0.8, 0.2, 0.9]])
    slots = Otsu((3, 32, 32), 4)(colours[labels].movedim(-1, 0)[None]).masks.argmax(1)
    assert adjusted_rand_index(labels[None], slots).tolist() == [1.0]


def test_more_regions_than_slots_leave_the_largest() -> None:
    image, labels = discs()
    image[2, 2:30] = 0.9
    slots = Otsu((1, 32, 32), 3)(image[None, None]).masks.argmax(1)
    assert slots[0, 2].eq(0).all()
    assert adjusted_rand_index(labels[None], slots).tolist() == [1.0]


class TestPlacedSlots:
    def test_masks_cover_each_pixel_once_and_an_image_is_alone(self) -> None:
        torch.manual_seed(0)
        network = PlacedSlots((3, 16, 20), classes=4, channels=4, dim=6).eval()
        images = torch.rand(3, 3, 16, 20)
        together, alone = network(images), network(images[1:2])
        torch.testing.assert_close(together.masks.sum(1), torch.ones(3, 16, 20))
        torch.testing.assert_close(alone.masks, together.masks[1:2])

    def test_every_parameter_has_a_gradient(self) -> None:
        network = PlacedSlots((1, 16, 16), classes=4, channels=4, dim=6).double()
        images = torch.rand(2, 1, 16, 16, dtype=torch.float64)
        network(images).reconstruction.square().sum().backward()
        assert [
            name for name, number in network.named_parameters() if number.grad is None
        ] == []

    def test_slots_start_at_bright_places_apart(self) -> None:
        side = torch.linspace(-1, 1, 16)
        places = torch.cartesian_prod(side, side)
        weight = torch.full((64, 256), 1e-3)
        weight[:, [0, 1, 255]] = 1.0
        starts = bright_places(places, weight, torch.rand(64, 2), apart=0.25)
        distance = (starts[:, 0] - starts[:, 1]).norm(dim=-1)
        # The corners are 2.8 apart, and the two places of one corner 0.13.
        assert (distance > 2).float().mean() > 0.8

    def test_an_empty_picture_is_no_error(self) -> None:
        network = PlacedSlots((1, 16, 16), classes=3, channels=4, dim=6)
        prediction = network(torch.zeros(2, 1, 16, 16))
        assert prediction.reconstruction.isfinite().all()
