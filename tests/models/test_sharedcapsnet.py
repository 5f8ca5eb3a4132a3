"""SharedCapsNet's rivals: the published twin, and class maps pooled by log-mean-exp."""

import math

import pytest
import torch
from torch import nn

import torchcaps as tc

SMALL = {"channels": (4, 4, 8, 6), "image_shape": (1, 20, 18)}


@pytest.mark.parametrize(
    ("batch_norm", "parameters"), [(False, 16_698), (True, 16_890)]
)
def test_number_of_parameters(batch_norm: bool, parameters: int) -> None:
    model = tc.create_model(
        "sharedcapsnet_maps", channels=(16, 16, 32, 32), batch_norm=batch_norm
    )
    assert sum(weight.numel() for weight in model.parameters()) == parameters


@pytest.mark.parametrize("sharpness", [0.0, 1e-3, 0.5, 4.0])
def test_activations_are_the_pooled_evidence(sharpness: float) -> None:
    model = tc.create_model("sharedcapsnet_maps", sharpness=sharpness, **SMALL).double()
    images = torch.rand(3, 1, 23, 31, dtype=torch.float64)
    evidence = model.evidence(model.features(images)).flatten(2)
    pooled = (
        (sharpness * evidence).exp().mean(2).log() / sharpness
        if sharpness
        else evidence.mean(2)
    )
    torch.testing.assert_close(model(images).activation, pooled.sigmoid())


def test_sharpness_leads_from_the_mean_to_the_maximum() -> None:
    images = torch.rand(2, 1, 20, 18)
    answers = []
    for sharpness in (0.0, 1e-2, 1.0, 1e4):
        torch.manual_seed(0)
        answers.append(
            tc.create_model("sharedcapsnet_maps", sharpness=sharpness, **SMALL)(
                images
            ).activation.logit()
        )
    torch.manual_seed(0)
    model = tc.create_model("sharedcapsnet_maps", **SMALL)
    highest = model.evidence(model.features(images)).flatten(2).amax(2)
    torch.testing.assert_close(answers[0], answers[1], atol=1e-2, rtol=0)
    assert (answers[0] < answers[2]).all()
    assert (answers[2] < highest).all()
    torch.testing.assert_close(answers[3], highest, atol=1e-2, rtol=0)


@pytest.mark.parametrize("sharpness", [-1.0, math.inf, "soft"])
def test_wrong_sharpness(sharpness: object) -> None:
    with pytest.raises(ValueError, match="sharpness must be"):
        tc.create_model("sharedcapsnet_maps", sharpness=sharpness)


@pytest.mark.parametrize(
    "name", ["sharedcapsnet", "sharedcapsnet_cnn", "sharedcapsnet_maps"]
)
def test_batch_normalisation_follows_each_convolution(name: str) -> None:
    for batch_norm in (False, True):
        layers = list(tc.create_model(name, batch_norm=batch_norm, **SMALL).features)
        kind = nn.BatchNorm2d if batch_norm else nn.ReLU
        after = [
            isinstance(layers[place + 1], kind)
            for place, layer in enumerate(layers)
            if isinstance(layer, nn.Conv2d)
        ]
        assert after == [True] * 4
