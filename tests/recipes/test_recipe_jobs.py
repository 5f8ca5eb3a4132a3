import pytest

from recipes import smallnorb
from recipes.adversarial import CAPSULES, CNN, Adversarial, AdversarialSettings
from recipes.affine import ROWS, AffineRobustness
from recipes.kit.lab import PRESETS
from torchcaps.models import create_model
from torchcaps_lab.training.command_line import training_options

job = Adversarial().job
moved = AffineRobustness().job


def test_jobs_of_adversarial():
    for preset, settings in Adversarial.presets.items():
        _, capsules = job(settings, CAPSULES)
        name, cnn = job(settings, CNN, 0.9)
        assert capsules["model"] == "matrixcapsnet"
        assert (cnn["model"], cnn["stop_at"], name) == (
            "matrixcapsnet_cnn",
            0.9,
            "adversarial-convolutional-network",
        )
        assert (cnn["data"], cnn["preprocess"]) == (
            capsules["data"],
            capsules["preprocess"],
        )
        assert cnn["data"].get("validation", 0.1) > 0, preset
    quick = Adversarial.presets["quick"]
    assert job(quick, CAPSULES) == smallnorb.SmallNORBEM().job(
        smallnorb.SmallNORBEM.presets["quick"], smallnorb.BASE
    )
    assert (
        job(Adversarial.presets["paper"], CAPSULES)[0] == "adversarial-matrix-capsules"
    )


def test_settings_need_the_epsilons_of_the_table():
    with pytest.raises(
        ValueError, match=r"epsilons of BIM must hold \(0\.01,\), got \(0\.1,\)"
    ):
        AdversarialSettings(epsilons={"FGSM": (0.01, 0.1), "BIM": (0.1,)})


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("row", ROWS)
def test_jobs_are_options_of_train(preset, row):
    name, config = moved(AffineRobustness.presets[preset], row, 0.95)
    options = training_options({**config, "run": name}).plain()
    assert (options["stop_at"], options["data"]["pad"]) == (
        config["stop_at"],
        options["preprocess"]["shift"],
    )


@pytest.mark.parametrize("preset", ["paper", "quick"])
def test_both_networks_have_as_many_parameters(preset):
    counts = []
    for row in ROWS:
        config = moved(AffineRobustness.presets[preset], row, 0.95)[1]
        network = create_model(
            config["model"], image_shape=(1, 40, 40), classes=10, **config["model_args"]
        )
        counts.append(sum(parameter.numel() for parameter in network.parameters()))
    assert abs(counts[1] / counts[0] - 1) < 0.03
