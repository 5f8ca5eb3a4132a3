"""Moving the numbers of a pose."""

import pytest
import torch
from torch import Tensor, nn

from tests.report.small import digits_net
from torchcaps import Capsules
from torchcaps.models import CapsuleClassifier
from torchcaps_lab.evaluate import default_sweep, perturb


@pytest.fixture(scope="module")
def model() -> CapsuleClassifier:
    return digits_net(decoder_hidden=(8,)).eval()


@pytest.fixture(scope="module")
def capsules(model: CapsuleClassifier) -> Capsules:
    with torch.no_grad():
        return model.encode(
            torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
        )


TARGET = torch.tensor([0, 2, 1, 1, 2])


def test_the_default_sweep_is_the_papers() -> None:
    values = default_sweep()
    assert len(values) == 11
    assert values[5] == 0
    torch.testing.assert_close(values.diff(), torch.full((10,), 0.05))
    torch.testing.assert_close(values[[0, -1]], torch.tensor([-0.25, 0.25]))


@torch.no_grad()
def test_adding_nothing_is_decoding(
    model: CapsuleClassifier, capsules: Capsules
) -> None:
    images = perturb(model, capsules, TARGET, torch.zeros(2))
    assert images.shape == (5, 4, 2, 1, 8, 8)
    expected = model.decode(capsules, TARGET)[:, None, None].expand_as(images)
    torch.testing.assert_close(images, expected)


@torch.no_grad()
def test_one_number_of_the_target_moves_and_nothing_else(
    model: CapsuleClassifier, capsules: Capsules
) -> None:
    values = torch.tensor([-0.5, 0.25])
    before = capsules.pose.clone()
    images = perturb(model, capsules, TARGET, values)
    assert torch.equal(capsules.pose, before)
    for b, target in enumerate(TARGET.tolist()):
        for d in range(4):
            for v, value in enumerate(values.tolist()):
                masked = torch.zeros(1, 3, 4)
                masked[0, target] = capsules.pose[b, target]
                masked[0, target, d] += value
                torch.testing.assert_close(images[b, d, v], model.decoder(masked)[0])


class Summing(nn.Module):
    """Shows the pose numbers themselves: the picture is the sum over the classes of the
    poses, in one row.
    """

    def forward(self, poses: Tensor) -> Tensor:
        return poses.flatten(2).sum(1)[:, None, None]


class MatrixNetwork(CapsuleClassifier):
    def __init__(self) -> None:
        super().__init__((1, 1, 6), 3)
        self.decoder = Summing()

    def children_of(self, images: Tensor) -> Capsules:
        raise NotImplementedError


def test_matrix_poses_are_moved_in_rows() -> None:
    pose = torch.randn(2, 3, 2, 3, dtype=torch.float64)
    target = torch.tensor([1, 0])
    images = perturb(
        MatrixNetwork(), Capsules(pose, torch.ones(2, 3)), target, torch.tensor([0.5])
    )
    assert images.shape == (2, 6, 1, 1, 1, 6)
    difference = (
        images[:, :, 0, 0, 0] - pose[torch.arange(2), target].flatten(1)[:, None]
    )
    torch.testing.assert_close(
        difference, torch.eye(6, dtype=torch.float64).expand(2, 6, 6) * 0.5
    )


@pytest.mark.parametrize(
    ("target", "values", "message"),
    [
        (torch.tensor([0, 1]), torch.zeros(1), "target must be integer labels"),
        (torch.zeros(5), torch.zeros(1), "target must be integer labels"),
        (torch.tensor([0, 1, 2, 3, 0]), torch.zeros(1), "target must lie in 0..2"),
        (TARGET, torch.zeros(1, 1), "values must be"),
    ],
)
def test_misfits_are_named(
    model: CapsuleClassifier,
    capsules: Capsules,
    target: Tensor,
    values: Tensor,
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        perturb(model, capsules, target, values)


def test_a_network_without_a_decoder_says_so(capsules: Capsules) -> None:
    model = digits_net(decoder_hidden=None)
    with pytest.raises(RuntimeError, match="without a decoder"):
        perturb(model, capsules, TARGET, torch.zeros(1))
