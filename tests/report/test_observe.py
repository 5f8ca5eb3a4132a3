"""One look at a few images is the network's own, is taken once, and keeps little."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.report.small import (
    digits_net,
    image_set,
    images_for,
    look,
    matrix_net,
    plain_net,
)
from torchcaps import Capsules, create_routing
from torchcaps.models import CapsuleClassifier
from torchcaps_lab import evaluate, report
from torchcaps_lab.data import Examples
from torchcaps_lab.evaluate import Findings, default_sweep, examine
from torchcaps_lab.report import Selection, exhibits_of, page, select_samples
from torchcaps_lab.report.pictures import RoutingSteps


def runs_of(model: nn.Module) -> list[int]:
    """How many images go through a network each time that it runs from now on."""
    batches: list[int] = []
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    first.register_forward_hook(
        lambda module, inputs, output: batches.append(len(inputs[0]))
    )
    return batches


@pytest.mark.parametrize("build", [digits_net, matrix_net])
@torch.no_grad()
def test_what_is_seen_is_the_networks_own(build: Any) -> None:
    model = build().eval().double()
    images = images_for(model).double()
    target = torch.arange(20) % 3
    seen = look(model, images, target=target)
    layers = evaluate.observe_layers(model, images)
    assert list(seen.capsules) == list(layers)
    for name, layer in layers.items():
        torch.testing.assert_close(seen.capsules[name], layer.capsules)
    assert seen.classes is seen.capsules["class_caps"]
    torch.testing.assert_close(seen.activation, model(images).activation)
    shares = report.class_shares(layers)
    assert len(seen.maps) == len(shares)
    for (name, maps), (layer, part) in zip(
        seen.maps.items(), shares.items(), strict=True
    ):
        children = layers[layer].children.activation
        assert seen.capsules[name].activation.shape == children.shape
        torch.testing.assert_close(
            maps, report.class_maps(part, children), equal_nan=True
        )
    assert seen.extents == report.layer_extents(model, images)
    assert set(seen.grids) == set(seen.extents)


@torch.no_grad()
def test_what_the_decoder_draws_of_the_target() -> None:
    model = digits_net().eval()
    images = images_for(model, 3)
    target = torch.tensor([2, 0, 1])
    seen = look(model, images, target=target)
    capsules = model.encode(images)
    torch.testing.assert_close(seen.reconstructions, model.decode(capsules, target))
    sweeps = torch.stack(list(seen.sweeps(default_sweep())))
    torch.testing.assert_close(
        sweeps, evaluate.perturb(model, capsules, target, default_sweep())
    )


def test_nothing_runs_before_it_is_asked_for_and_then_once() -> None:
    model = digits_net().train()
    runs = runs_of(model)
    seen = look(model, images_for(model))
    assert runs == []
    exhibits = list(exhibits_of(seen))
    assert len(exhibits) == 5
    assert runs == [
        16,
        4,
        4,
    ]  # the images in two parts, and noise that finds the places
    list(exhibits_of(seen))
    assert len(runs) == 3
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("build", [digits_net, matrix_net, plain_net])
@pytest.mark.parametrize("batch_size", [8, 256])
def test_a_report_runs_the_network_few_times(
    build: Any, batch_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Drawing takes long and runs nothing.
    monkeypatch.setattr(
        page, "_drawn", lambda exhibit, *_: page._Section(exhibit, [], {})
    )
    model = build()
    images = image_set(model.image_shape, 30)
    runs = runs_of(model)
    findings = examine(model, images, batch_size)
    page.write_page(
        tmp_path, report.exhibits_of_classifier(model, images, findings, {}, [])
    )
    expected = [min(batch_size, 30 - start) for start in range(0, 30, batch_size)]
    if isinstance(model, CapsuleClassifier):
        decoder = (
            [3] if model.decoder is not None else []
        )  # the clearest image of each class
        expected += [
            16,
            4,
            *decoder,
            4,
        ]  # 20 images in two parts, and noise that finds the places
    else:
        expected += [16]  # which show that there are no capsules
    assert sorted(runs) == sorted(expected)


def test_votes_and_assignments_are_not_kept() -> None:
    votes: list[weakref.ref[Any]] = []
    model = matrix_net()
    for name in ("conv_caps1", "conv_caps2", "class_caps"):
        routing = getattr(model, name).routing
        routing.register_forward_hook(
            lambda module, inputs, output: votes.append(weakref.ref(output.votes))
        )
    seen = look(model, images_for(model, 3))
    assert len(seen.maps) == 3
    gc.collect()
    assert len(votes) == 3
    assert all(reference() is None for reference in votes)


def test_without_labels_the_most_active_class_is_asked_about() -> None:
    model = digits_net()
    seen = look(model, images_for(model, 4))
    assert torch.equal(seen.target, seen.activation.argmax(1))
    kinds = [exhibit.kind for exhibit in exhibits_of(seen)]
    expected = [
        "reconstructions",
        "perturbations",
        "layer_activations",
        "layer_poses",
        "assignments",
    ]
    assert kinds == expected


@pytest.mark.parametrize(("leaky", "even"), [(False, 1 / 3), (True, 1 / 4)])
def test_an_even_split_is_what_the_first_step_gives(leaky: bool, even: float) -> None:
    model = digits_net(routing=create_routing("dynamic", steps=1, leaky=leaky))
    exhibits = {
        part.kind: part for part in exhibits_of(look(model, images_for(model, 2)))
    }
    shown = exhibits["assignments"]
    torch.testing.assert_close(shown.layers[0].share, torch.full((2, 4, 4), even))
    assert shown.even == even
    assert (
        f"every class gets {even:.2g}{', and no class as much' if leaky else ''}."
        in shown.text
    )
    assert RoutingSteps.of(look(model, images_for(model, 1))).even == even


@torch.no_grad()
def test_an_image_may_be_asked_about_several_classes() -> None:
    model = digits_net().eval()
    image = images_for(model, 1)
    target = torch.tensor([0, 2])
    exhibits = {
        part.kind: part
        for part in exhibits_of(look(model, image.expand(2, -1, -1, -1), target=target))
    }
    capsules = model.encode(image)
    for place, label in enumerate(target):
        torch.testing.assert_close(
            exhibits["reconstructions"].reconstructions[place],
            model.decode(capsules, label[None])[0],
        )
    shares = exhibits["assignments"].layers[0].share
    assert not torch.allclose(shares[0], shares[1])


@torch.no_grad()
def test_a_network_without_capsules_has_an_activation_and_no_more() -> None:
    model = plain_net().eval()
    images = images_for(model)
    seen = look(model, images)
    torch.testing.assert_close(seen.activation, model(images).activation)
    assert seen.capsules == seen.grids == seen.maps == {}
    assert seen.classes is None
    assert list(exhibits_of(seen)) == []
    with pytest.raises(RuntimeError, match="has no decoder"):
        _ = seen.reconstructions
    with pytest.raises(RuntimeError, match="has no decoder"):
        next(seen.sweeps(default_sweep()))


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-4), (torch.bfloat16, 0.1)]
)
@pytest.mark.parametrize("build", [digits_net, matrix_net, plain_net])
def test_networks_in_any_precision_show_the_same(
    build: Any, dtype: torch.dtype, bound: float
) -> None:
    model = build().eval()
    images = images_for(model, 2)
    target = torch.tensor([0, 1])
    expected = look(model, images, target=target)
    seen = look(build().eval().to(dtype), images, target=target)
    assert seen.extents == expected.extents
    assert all(
        picture.figure.axes
        for exhibit in exhibits_of(seen)
        for picture in exhibit.draw()
    )
    if expected.decodes:
        torch.testing.assert_close(
            seen.reconstructions.float(),
            expected.reconstructions,
            atol=bound,
            rtol=bound,
        )
    if expected.classes is None:
        torch.testing.assert_close(
            seen.activation.float(), expected.activation, atol=bound, rtol=bound
        )
        return
    torch.testing.assert_close(
        seen.classes.pose.float(), expected.classes.pose, atol=bound, rtol=bound
    )
    shown = RoutingSteps.of(seen).steps[0]
    expected_step = RoutingSteps.of(expected).steps[0]
    torch.testing.assert_close(
        shown.assignment.float(), expected_step.assignment, atol=bound, rtol=bound
    )


class Bare(nn.Module):
    """A layer of capsules that nothing routes to, and no classifier."""

    def forward(self, images: Tensor) -> Capsules:
        pose = images.permute(0, 2, 3, 1)
        return Capsules(pose, pose.norm(dim=-1))


def test_capsules_that_nobody_routes_have_no_maps() -> None:
    seen = look(Bare(), torch.rand(2, 3, 4, 5))
    assert list(seen.grids) == ["model"]
    assert seen.maps == {}


def test_a_selection_knows_which_come_first() -> None:
    images = torch.rand(4, 1, 2, 2)
    selection = Selection(
        images, images, titles=("a", "b", "c", "d"), order=torch.tensor([2, 0, 3, 1])
    )
    assert selection.first(3).tolist() == [0, 2, 3]
    assert selection.first(9).tolist() == [0, 1, 2, 3]
    assert selection.titles_at(selection.first(2)) == ("a", "c")
    assert Selection(images, images).titles_at() == ("", "", "", "")
    assert Selection(images, images).first(2).tolist() == [0, 1]


@pytest.mark.parametrize("classes", [2, 3, 15])
def test_the_images_of_a_report_are_those_of_the_findings(classes: int) -> None:
    generator = torch.Generator().manual_seed(3)
    count = 40
    labels = torch.randint(classes, (count,), generator=generator)
    names = tuple(f"class {label}" for label in range(classes))
    images = (
        torch.arange(count, dtype=torch.uint8)[:, None, None, None]
        .expand(count, 1, 2, 2)
        .contiguous()
    )
    findings = Findings(labels, torch.rand(count, classes, generator=generator), None)
    data = Examples(images, labels, names)

    def places(pictures: Tensor) -> list[int]:
        return pictures[:, 0, 0, 0].mul(255).round().int().tolist()

    samples = select_samples(findings, data)
    assert places(samples.pictures) == findings.samples(20).tolist()
    for first in (1, 10, 15):
        assert (
            places(samples.pictures[samples.first(first)])
            == findings.samples(first).tolist()
        )
    ten = findings.samples(10)
    assert (
        places(samples.pictures)[samples.example] == ten[findings.margin[ten].argmax()]
    )
    assert torch.equal(samples.target, findings.prediction[findings.samples(20)])
    wrong = (findings.prediction != labels)[findings.samples(20)].tolist()
    assert ["→" in title for title in samples.titles] == wrong
    examples = report.select_examples(findings, data)
    assert places(examples.pictures) == findings.examples().tolist()
    assert torch.equal(examples.target, labels[findings.examples()])
    assert examples.titles == tuple(names[label] for label in examples.target.tolist())


def test_findings_choose_for_a_trained_eye() -> None:
    model = digits_net()
    images = image_set(model.image_shape, 30)
    selection = select_samples(examine(model, images), images)
    assert len(selection) == 20
    assert (
        look(model, selection.images, target=selection.target).reconstructions.shape
        == selection.pictures.shape
    )


def test_misfits_are_named() -> None:
    images = torch.rand(2, 1, 8, 8)
    for arguments, message in [
        ({"images": images[:0]}, "images must be"),
        ({"images": images[0]}, "images must be"),
        ({"pictures": images[:1]}, "pictures must be one for each of 2"),
        ({"pictures": images[..., 1:]}, "pictures must be"),
        (
            {"target": torch.zeros(3, dtype=torch.int64)},
            "target must be integer labels",
        ),
        ({"target": torch.zeros(2)}, "target must be integer labels"),
        ({"titles": ("a",)}, "titles must be one for each of 2"),
        ({"order": torch.tensor([0, 0])}, "order must hold each position"),
        ({"example": 2}, "example must be the position"),
    ]:
        with pytest.raises(ValueError, match=message):
            Selection(**{"images": images, "pictures": images, **arguments})
    with pytest.raises(ValueError, match=r"target must lie in 0\.\.2"):
        _ = look(digits_net(), images, target=torch.tensor([0, 3])).target
