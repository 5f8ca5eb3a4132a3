"""The routing is observed while a network trains, and the training does not notice."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.runs import FEW as DIGITS
from tests.runs import learner, rows
from torchcaps import create_model
from torchcaps.models import ImageClassifier
from torchcaps_lab.evaluate import layer_entropy, observe_layers
from torchcaps_lab.evaluate.health import routing_health
from torchcaps_lab.options.declarations import Schedule, TrainerOptions
from torchcaps_lab.training.callbacks import RoutingHealth
from torchcaps_lab.training.fitting import Fitting
from torchcaps_lab.training.learner import Learner


def tiny(**arguments: object) -> ImageClassifier:
    torch.manual_seed(0)
    return create_model(
        "capsnet_digits", channels=8, types=4, decoder_hidden=(8,), **arguments
    )


def trained(
    folder: Path, epochs: int = 2, precision: str = "32-true"
) -> tuple[Learner, list[dict[str, float]]]:
    """With its own network and the rows of its metrics."""
    fitted = learner(channels=8, types=4, decoder_hidden=(8,))
    options = TrainerOptions(accelerator="cpu", precision=precision)
    Fitting(
        fitted, DIGITS, DIGITS, folder, Schedule(epochs=epochs, batch_size=16), options
    ).run()
    return fitted, rows(folder)


HEALTH = {
    "assignment_entropy_class_caps",
    "dead_capsules_primary_caps",
    "dead_capsules_class_caps",
}


def test_each_epoch_has_its_own_figures_in_the_csv_file_and_in_tensorboard(
    tmp_path: Path,
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    task, actual = trained(tmp_path, epochs=3)
    assert len(actual) == 3
    assert all(row.keys() >= HEALTH for row in actual)
    assert len({row["assignment_entropy_class_caps"] for row in actual}) == 3
    expected = routing_health(task.model, DIGITS.__getitems__(list(range(64))).inputs)
    assert {name: actual[-1][name] for name in HEALTH} == pytest.approx(
        expected, rel=1e-6
    )
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    logged = [event.value for event in events.Scalars("assignment_entropy_class_caps")]
    assert logged == pytest.approx(
        [row["assignment_entropy_class_caps"] for row in actual], rel=1e-6
    )


def test_the_training_does_not_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, actual = trained(tmp_path / "with")
    monkeypatch.setattr(RoutingHealth, "on_train_epoch_end", lambda *_: None)
    alone, expected = trained(tmp_path / "without")
    assert [
        {name: value for name, value in row.items() if name not in HEALTH}
        for row in actual
    ] == expected
    assert all(
        torch.equal(a, b)
        for a, b in zip(watched.parameters(), alone.parameters(), strict=True)
    )


def test_half_precision(tmp_path: Path) -> None:
    _, (row,) = trained(tmp_path, epochs=1, precision="bf16-mixed")
    assert all(0 <= row[name] <= 1 for name in HEALTH)


@pytest.mark.thorough
def test_a_resumed_training_has_the_figures_of_an_unbroken_one(tmp_path: Path) -> None:
    _, unbroken = trained(tmp_path / "unbroken", epochs=4)
    trained(tmp_path / "broken", epochs=2)
    _, resumed = trained(tmp_path / "broken", epochs=4)
    assert len(resumed) == 4
    assert resumed == unbroken


class Noisy(nn.Module):
    """Draws random numbers even in evaluation mode, and minds the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny()

    def forward(self, images: Tensor) -> Tensor:
        if self.training or torch.is_grad_enabled():
            raise RuntimeError("not now")
        return self.inner.encode(images + 0.1 * torch.rand_like(images)).activation


def test_mode_gradients_and_random_numbers_are_left_as_they_were() -> None:
    model = Noisy().train()
    model.inner.conv.eval()
    images = DIGITS.__getitems__(list(range(20))).inputs
    before = torch.get_rng_state()
    routing_health(model, images)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert not model.inner.conv.training
    assert torch.is_grad_enabled()


def test_figures_do_not_depend_on_how_many_are_observed_at_once() -> None:
    model = tiny().eval()
    images = DIGITS.__getitems__(list(range(37))).inputs
    with torch.no_grad():
        layers = observe_layers(model, images)
    health = routing_health(model, images)
    entropy = layer_entropy(layers["class_caps"]).mean().item()
    assert health["assignment_entropy_class_caps"] == pytest.approx(entropy, rel=1e-5)


@torch.no_grad()
def test_capsules_that_a_bias_kills_are_counted() -> None:
    model = tiny()
    images = DIGITS.__getitems__(list(range(20))).inputs
    assert routing_health(model, images)["dead_capsules_primary_caps"] == 0
    conv = model.primary_caps.conv
    conv.weight[8 : 2 * 8] = 0  # the second of four types, of 8 numbers each
    conv.bias[8 : 2 * 8] = 0
    health = routing_health(model, images)
    assert health["dead_capsules_primary_caps"] == 0.25


def test_one_dead_image_is_not_a_dead_capsule() -> None:
    images = torch.cat([torch.zeros(16, 1, 8, 8), torch.rand(16, 1, 8, 8)])
    model = tiny()
    nn.init.zeros_(model.conv.bias)
    nn.init.zeros_(model.primary_caps.conv.bias)
    assert routing_health(model, images[:16])["dead_capsules_primary_caps"] == 1
    assert routing_health(model, images)["dead_capsules_primary_caps"] < 1


@pytest.mark.parametrize(
    "name", ["matrixcapsnet", "matrixcapsnet_cifar10", "matrixcapsnet_small"]
)
def test_every_layer_of_matrix_capsules_is_watched(name: str) -> None:
    model = create_model(
        name, image_shape=(1, 19, 17), classes=3, channels=4, types=(2, 3, 2)
    )
    health = routing_health(model, torch.rand(3, 1, 19, 17))
    routed = {"conv_caps1", "conv_caps2", "class_caps"}
    assert health.keys() == {f"assignment_entropy_{layer}" for layer in routed} | {
        f"dead_capsules_{layer}" for layer in {*routed, "primary_caps"}
    }
    assert all(
        math.isfinite(value) and 0 <= value <= 1 + 1e-5 for value in health.values()
    )


def test_a_network_without_capsules_has_nothing_to_watch() -> None:
    model = create_model("sharedcapsnet_cnn", channels=(4, 4, 4, 4), hidden=4)
    assert routing_health(model, torch.rand(2, 1, 16, 16)) == {}
