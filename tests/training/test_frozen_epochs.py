"""The first stage of fine-tuning: the head alone, on features that are computed
once.
"""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.runs import FEW, rows, status, summary
from torchcaps import create_model, load_pretrained
from torchcaps.models.backbone import Backbone
from torchcaps_lab.data import Preprocess
from torchcaps_lab.options.declarations import Schedule
from torchcaps_lab.training.head import VIEWS, Kept, train_head
from torchcaps_lab.training.learner import Learner
from torchcaps_lab.training.loaders import Loaders
from torchcaps_lab.training.options import Optimisation
from torchcaps_lab.training.speed import Speed

TINY = {
    "widths": [4, 8],
    "blocks": 1,
    "types": 2,
    "primary_dim": 4,
    "pose_dim": 4,
}
TRAIN = [
    *(
        "train",
        "--data",
        "Digits",
        "--model",
        "capsnet_on_backbone",
        "--model_args",
        str(TINY).replace("'", ""),
    ),
    *(
        "--batch_size",
        "64",
        "--trainer.accelerator",
        "cpu",
        "--report",
        "false",
        "--preprocess.shift",
        "1",
    ),
]


class Counted(Backbone):
    """A backbone that counts the images of which it was asked features."""

    def __init__(self, backbone: torch.nn.Module) -> None:
        super().__init__()
        self.backbone, self.asked = backbone, 0

    def forward(self, images: Tensor) -> Tensor:
        self.asked += len(images)
        return self.backbone(images)


def test_features_of_known_keys_are_not_computed_again() -> None:
    kept = Kept(Counted(torch.nn.Identity()))
    images = torch.rand(4, 1, 2, 2)
    kept.keys = [(0, 3), (0, 5)]
    first = kept(images[:2])
    kept.keys = [(0, 5), (1, 3), (0, 3)]
    assert torch.equal(kept(images[1:]), torch.stack([first[1], images[2], first[0]]))
    assert kept.backbone.asked == 3


def test_layers_in_evaluation_mode_stay_there() -> None:
    network = create_model("capsnet_on_backbone", image_shape=(1, 8, 8), **TINY)
    norms = [
        part for part in network.modules() if isinstance(part, torch.nn.BatchNorm2d)
    ]
    for norm in norms:
        norm.eval()
    modes = [part.training for part in network.modules()]
    learner = Learner(
        network, Optimisation(optimizer=partial(torch.optim.Adam, lr=0.01))
    )
    loaders = Loaders(FEW, FEW, Schedule(batch_size=32, frozen_epochs=1), Speed())
    train_head(learner, loaders, torch.device("cpu"))
    assert norms
    assert [part.training for part in network.modules()] == modes


def test_gradients_of_the_head_are_clipped() -> None:
    network = create_model("capsnet_on_backbone", image_shape=(1, 8, 8), **TINY)
    before = [weight.clone() for weight in network.parameters()]
    learner = Learner(network, Optimisation(optimizer=partial(torch.optim.SGD, lr=1.0)))
    loaders = Loaders(FEW, FEW, Schedule(batch_size=32, frozen_epochs=1), Speed())
    steps: list[int] = []
    train_head(
        learner,
        loaders,
        torch.device("cpu"),
        clip=1e-6,
        on_step=lambda done, _: steps.append(done),
    )
    moved = [
        after - weight
        for after, weight in zip(network.parameters(), before, strict=True)
    ]
    assert 0 < torch.nn.utils.get_total_norm(moved) < 1e-6 * len(steps)


def test_the_head_learns_and_the_backbone_is_asked_once_for_each_view() -> None:
    torch.manual_seed(0)
    network = create_model("capsnet_on_backbone", image_shape=(1, 8, 8), **TINY)
    network.features = counted = Counted(network.features)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    learner = Learner(
        network,
        Optimisation(optimizer=partial(torch.optim.Adam, lr=0.01)),
        None,
        Preprocess(shift=1),
    )
    schedule = Schedule(batch_size=32, frozen_epochs=3 * VIEWS)
    steps: list[tuple[int, int]] = []
    train_head(
        learner,
        Loaders(FEW, FEW, schedule, Speed()),
        torch.device("cpu"),
        on_step=lambda *told: steps.append(told),
    )
    assert [done for done, _ in steps] == [
        *range(1, 3 * steps[0][1] + 1)
    ]  # a third of them compute features
    assert counted.asked == VIEWS * len(FEW)
    assert network.features is counted
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]) == name.startswith("features."), name
    assert all(part.training for part in network.modules())
    assert (
        learner.task.examine(network, FEW).figures["accuracy"] > 0.3
    )  # of ten classes


@pytest.mark.thorough
def test_it_comes_before_the_first_epoch_and_not_again_when_resumed(
    tmp_path: Path, capsys
) -> None:
    run, first = (tmp_path / "run", "5 epochs on the features of the backbone")
    assert (
        status(*TRAIN, "--epochs", "2", "--frozen_epochs", "5", "--run", str(run)) == 0
    )
    output = capsys.readouterr().out
    assert output.count(first) == 1
    assert output.index(
        "features of the backbone are computed first, once: about "
    ) < output.index(first)
    second = tmp_path / "other"
    assert (
        status(*TRAIN, "--epochs", "1", "--frozen_epochs", "5", "--run", str(second))
        == 0
    )
    capsys.readouterr()
    assert status("train", "--resume", str(second), "--epochs", "2") == 0
    assert first not in capsys.readouterr().out
    assert rows(second) == rows(run)
    assert summary(run)["training_seconds"] > 0
    weights = [
        load_pretrained(folder / "model").state_dict() for folder in (run, second)
    ]
    assert all(
        torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items()
    )


def test_it_needs_a_backbone(tmp_path: Path, capsys) -> None:
    plain = [word for word in TRAIN if word not in ("--model_args", TRAIN[6])]
    assert (
        status(
            *plain,
            "--model",
            "capsnet_digits",
            "--frozen_epochs",
            "1",
            "--run",
            str(tmp_path / "run"),
        )
        == 1
    )
    output = capsys.readouterr().err
    assert (
        "frozen_epochs needs a network on a backbone, such as capsnet_on_backbone, "
        "got a CapsNet" in output
    )
    assert not (tmp_path / "run").exists()
