"""What the numbers of a pose draw, in figures."""

import pytest
import torch

from recipes.perturb import changes, reconstruction_error, sweep
from torchcaps import create_model
from torchcaps.models import CapsuleClassifier
from torchcaps_lab.data import create_dataset
from torchcaps_lab.evaluate import default_sweep


def network() -> CapsuleClassifier:
    torch.manual_seed(0)
    return create_model(
        "capsnet_digits",
        image_shape=(1, 8, 8),
        classes=10,
        channels=4,
        types=2,
        decoder_hidden=(8, 8),
    ).eval()


class TestChanges:
    def test_by_hand(self) -> None:
        grids = torch.zeros(1, 2, 3, 1, 2, 2)
        grids[0, 0, 1] = (
            0.5  # the pose as it is: both ends are 0.5 darker in every pixel
        )
        grids[0, 1, 0, 0, 0, 0] = 1.0  # one end, one pixel of four, all the way
        assert changes(grids).tolist() == [[50, 12.5]]

    def test_opposite_changes_do_not_cancel(self) -> None:
        grids = torch.full((1, 1, 5, 1, 2, 2), 0.5)
        grids[0, 0, 0], grids[0, 0, -1] = 0.25, 0.75
        assert changes(grids).item() == pytest.approx(25)

    def test_there_must_be_a_middle(self) -> None:
        with pytest.raises(ValueError, match="with an odd V"):
            changes(torch.zeros(1, 2, 4, 1, 2, 2))


@torch.no_grad()
def test_sweeps_are_of_the_first_images_of_each_class() -> None:
    model = network()
    test = create_dataset("digits").test
    swept = sweep(model, test, 3)
    assert list(swept) == list(range(10))
    places = [place for place in range(len(test)) if test.labels[place] == 7][:3]
    poses = model.encode(test.__getitems__(places).inputs)
    target = torch.full((3,), 7)
    plain = model.decode(poses, target)
    assert torch.equal(swept[7].image, test[places[0]].pictures[0])
    expected = torch.zeros(poses.pose.shape[-1])
    for dimension in range(len(expected)):
        for step in (-0.25, 0.25):
            moved = poses.pose.clone()
            moved[:, 7, dimension] += step
            drawn = model.decode(poses._replace(pose=moved), target)
            expected[dimension] += 50 * (drawn - plain).abs().mean()
    torch.testing.assert_close(swept[7].change, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(swept[7].grid[4, 5], plain[0])
    assert swept[7].grid.shape == (len(expected), len(default_sweep()), 1, 8, 8)


@torch.no_grad()
def test_error_is_the_root_of_the_mean_square() -> None:
    model = network()
    test = create_dataset("digits").test.subset(torch.arange(7))
    total = 0.0
    for place in range(7):
        batch = test[place]
        total += (
            model(batch.inputs, batch.labels).reconstruction - batch.pictures
        ).square().mean().item() / 7
    assert reconstruction_error(model, test, batch_size=3) == pytest.approx(
        100 * total**0.5, rel=1e-5
    )
