import pytest

from recipes.affine import ROWS, AffineRobustness
from recipes.kit.lab import PRESETS
from torchcaps.models import create_model
from torchcaps_lab.training import training_options

job = AffineRobustness().job


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("row", ROWS)
def test_jobs_are_options_of_train(preset, row):
    name, config = job(AffineRobustness.presets[preset], row, 0.95)
    options = training_options({**config, "run": name}).plain()
    assert (options["stop_at"], options["data"]["pad"]) == (config["stop_at"], options["preprocess"]["shift"])


@pytest.mark.parametrize("preset", ["paper", "quick"])
def test_both_networks_have_as_many_parameters(preset):
    counts = []
    for row in ROWS:
        config = job(AffineRobustness.presets[preset], row, 0.95)[1]
        network = create_model(config["model"], image_shape=(1, 40, 40), classes=10, **config["model_args"])
        counts.append(sum(one.numel() for one in network.parameters()))
    assert abs(counts[1] / counts[0] - 1) < 0.03
