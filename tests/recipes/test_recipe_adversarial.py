import pytest

from recipes import smallnorb
from recipes.adversarial import CAPSULES, CNN, Adversarial, AdversarialSettings

job = Adversarial().job


def test_jobs():
    for preset, settings in Adversarial.presets.items():
        _, capsules = job(settings, CAPSULES)
        name, cnn = job(settings, CNN, 0.9)
        assert capsules["model"] == "matrixcapsnet"
        assert (cnn["model"], cnn["stop_at"], name) == ("matrixcapsnet_cnn", 0.9, "adversarial-convolutional-network")
        assert (cnn["data"], cnn["preprocess"]) == (capsules["data"], capsules["preprocess"])
        assert cnn["data"].get("validation", 0.1) > 0, preset
    quick = Adversarial.presets["quick"]
    assert job(quick, CAPSULES) == smallnorb.SmallNORBEM().job(smallnorb.SmallNORBEM.presets["quick"], smallnorb.BASE)
    assert job(Adversarial.presets["paper"], CAPSULES)[0] == "adversarial-matrix-capsules"


def test_settings_need_the_epsilons_of_the_table():
    with pytest.raises(ValueError, match=r"epsilons of BIM must hold \(0\.01,\), got \(0\.1,\)"):
        AdversarialSettings(epsilons={"FGSM": (0.01, 0.1), "BIM": (0.1,)})
