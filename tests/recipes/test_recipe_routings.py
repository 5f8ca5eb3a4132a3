"""The recipe that trains one network with every routing."""

from pathlib import Path

import pytest
import torch
from torch import nn

from recipes import Lab, Study
from recipes.routings import (
    IN_PLACE_OF,
    ROWS,
    RoutingsSideBySide,
    kept_an_image,
    kept_for_backward,
)
from tests.options import made
from torchcaps import create_model, list_routings, use_backend
from torchcaps.losses import length_cross_entropy
from torchcaps.routing.base import ROUTINGS
from torchcaps_lab.data import Digits, Few

job = RoutingsSideBySide().job


def test_every_routing_has_a_row():
    assert set(ROWS) == {
        name
        for name in list_routings()
        if ROUTINGS[name].__module__.startswith("torchcaps.")
    }
    assert {name for name in ROWS if not ROUTINGS[name].trainable} == set(IN_PLACE_OF)


@pytest.mark.parametrize("row", ROWS)
def test_jobs_are_options_of_train(row):
    """And their networks learn: after one step, classes no longer look alike, where
    they did.
    """
    preset = RoutingsSideBySide.presets["quick"]
    name, config = job(preset, row)
    routing = made({**config, "run": name}).routing
    assert isinstance(routing, ROUTINGS[IN_PLACE_OF.get(row, row)])
    torch.manual_seed(0)
    model = create_model(
        config["model"],
        **{**preset.model_args, "channels": 4, "types": 2},
        routing=routing,
    )
    images = torch.rand(4, 1, 28, 28)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if routing.trainable:
        length_cross_entropy(
            model(images).activation, torch.tensor([0, 1, 1, 3])
        ).backward()
        optimizer.step()
        assert model(images).activation.detach().std(1).min() > 1e-5


@pytest.mark.parametrize("preset", RoutingsSideBySide.presets)
def test_all_rows_differ_in_the_routing_alone(preset):
    settings = RoutingsSideBySide.presets[preset]
    others = [{**job(settings, row)[1], "routing": None} for row in ROWS]
    assert all(options == others[0] for options in others)


def test_kept_for_backward_counts_what_is_saved():
    layer = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
    x = torch.rand(3, 8)
    assert kept_for_backward(layer, x) == 4 * (
        3 * 8 + 3 * 4
    )  # the input, and what the tangent came to


def test_kept_an_image_leaves_out_what_does_not_grow():
    model = create_model("capsnet_digits", channels=4, types=2, decoder_hidden=None)
    images = torch.rand(8, *model.image_shape)
    with use_backend(
        "chunked"
    ):  # which keeps transforms in another order for the first step
        kept = kept_an_image(model, images)
        votes = 4 * model.class_caps.in_capsules * 10 * 16
        assert 0 < kept < votes / 2
        assert kept < kept_for_backward(
            model.class_caps, model.children_of(images)
        ) / len(images)


def test_few_images():
    data = Few(Digits(), train=100, validation=50)
    again = Few(Digits(), train=100, validation=50)
    assert torch.equal(data.train.inputs, again.train.inputs)
    counts = data.train.labels.bincount()
    assert counts.tolist() == [10] * 10
    assert abs(len(data.validation) - 50) <= 5
    assert len(data.test) == len(Digits().test)
    assert len(Few(Digits(), train=10**6).train) == len(Digits().train)
    with pytest.raises(ValueError, match="train must be at least 1"):
        Few(Digits(), train=0)


def test_the_picture_is_of_all_seeds():
    recipe = RoutingsSideBySide()
    lab = Lab("smoke", 0, Path("runs"))
    figures = {
        (line.row, line.measure): 1.0 + ROWS.index(line.row) for line in recipe.lines
    }
    outcomes = [
        Study(
            lab, None, figures={key: factor * value for key, value in figures.items()}
        )
        for factor in (1, 3)
    ]
    picture = recipe.pictures(outcomes)["answer"]
    assert "2 seeds" in picture.caption
    axes = picture.figure.axes
    assert [tick.get_text() for tick in axes[0].get_yticklabels()] == list(ROWS)
    assert axes[0].lines[0].get_xdata()[0] == 2.0
