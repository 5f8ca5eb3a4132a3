"""Fused steps of the optimizer change nothing else."""

from functools import partial
from pathlib import Path

import pytest
import torch

from torchcaps import create_model
from torchcaps_lab.data import Digits, ImageSet
from torchcaps_lab.training import Learner, Optimisation, Schedule, Speed, TrainerOptions, fit

SCHEDULE = Schedule(epochs=1, batch_size=8)
EXACT = TrainerOptions(accelerator="cpu", precision="64-true")


@pytest.fixture
def images() -> ImageSet:
    few = Digits().train.subset(torch.arange(24))
    return ImageSet(torch.cat([few.images, 255 - few.images], 1), few.labels, few.classes)


def learner(speed: Speed) -> Learner:
    torch.manual_seed(0)
    network = create_model("capsnet_digits", image_shape=(2, 8, 8), channels=4, types=2, decoder_hidden=(8,))
    return Learner(network, Optimisation(optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9)), speed=speed)


class TestFused:
    @pytest.mark.parametrize("name", ["AdamW", "SGD"])
    def test_steps_are_the_same(self, name: str, images: ImageSet, tmp_path: Path) -> None:
        found = []
        for fused in (True, False):
            one = learner(Speed(fused=fused))
            one.optimisation.optimizer = partial(getattr(torch.optim, name), lr=0.01, weight_decay=0.1)
            trainer, _ = fit(one, images, images, tmp_path / str(fused), SCHEDULE, EXACT)
            assert bool(trainer.optimizers[0].param_groups[0]["fused"]) is fused
            found.append(one.model.state_dict())
        torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("told", [{"foreach": True}, {"fused": False}, {"differentiable": True}])
    def test_what_was_told_stays(self, told: dict[str, bool]) -> None:
        optimizer = torch.optim.Adam([torch.zeros(2, requires_grad=True)], **told)
        Speed().fuse(optimizer)
        assert not optimizer.param_groups[0]["fused"]

    def test_other_optimizers_are_left_alone(self) -> None:
        optimizer = torch.optim.RMSprop([torch.zeros(2, requires_grad=True)])
        Speed().fuse(optimizer)
        assert "fused" not in optimizer.param_groups[0]

    def test_moments_in_another_order_are_laid_out_like_their_weights(self, images: ImageSet, tmp_path: Path) -> None:
        """The kernel takes all tensors as they lie in memory."""
        ends = []
        for last in (False, True):
            one, folder = learner(Speed(channels_last=True)), tmp_path / str(last)
            one.optimisation.optimizer = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
            fit(one, images, images, folder, SCHEDULE, EXACT)
            other = learner(Speed(channels_last=last))
            fit(other, images, images, folder, Schedule(epochs=2, batch_size=8), EXACT)
            ends.append(other.model.state_dict())
        torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-9)
