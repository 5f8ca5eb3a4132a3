"""Routing that decides nothing, and a decoder that learned nothing, are said to, and
not drawn.
"""

from pathlib import Path

import pytest
import torch

from tests.report.small import digits_net, image_set, matrix_net, plain_net
from torchcaps import Classifier, create_routing
from torchcaps_lab.data import Digits
from torchcaps_lab.evaluate import Verdict, ask, even_assignments, judge
from torchcaps_lab.explore import Explorer, local_samples
from torchcaps_lab.kinds.images.samples import digit_samples
from torchcaps_lab.report import Observation, Selection
from torchcaps_lab.report.pictures import (
    Assignments,
    ClassPose,
    Perturbations,
    Reconstructions,
)
from torchcaps_lab.tasks import Classification

SHAPE = (1, 8, 8)
NOTHING = Verdict(images=200, entropy=0.9998, changed=0.0, explained=0.01)


@pytest.mark.parametrize(
    ("entropy", "changed", "even"),
    [
        (0.9998, 0.0, True),
        (0.996, 0.009, True),
        (0.996, 0.02, False),
        (
            0.99999,
            0.02,
            True,
        ),  # two classes that are equally active change places by noise
        (0.99, 0.0, False),
        (1.0, None, True),
        (None, None, False),
    ],
)
def test_routing_decides_nothing_if_it_is_even_and_even_ones_answer_the_same(
    entropy: float | None, changed: float | None, even: bool
) -> None:
    verdict = Verdict(200, entropy, changed, None)
    assert verdict.even is even
    assert verdict.of_routing.startswith("Routing had no effect") is even


@pytest.mark.parametrize(
    ("explained", "blind"),
    [(None, False), (-1.5, True), (0.07, True), (0.11, False), (0.9, False)],
)
def test_a_decoder_that_draws_the_mean_image_learned_nothing(
    explained: float | None, blind: bool
) -> None:
    verdict = Verdict(200, 0.5, 0.5, explained)
    assert verdict.blind is blind
    assert ("learned nothing" in verdict.of_decoder) is blind


def test_one_step_of_routing_is_even_and_more_steps_of_a_trained_network_are_not() -> (
    None
):
    actual = judge(
        digits_net(routing=create_routing("dynamic", steps=1)), image_set(SHAPE, 30)
    )
    assert (actual.changed, actual.images) == (0, 30)
    assert actual.entropy == pytest.approx(1)
    assert actual.even

    trained = Classifier.open("mnist/sharedcapsnet")
    digits = local_samples("mnist/sharedcapsnet", trained)
    assert digits is not None
    actual = judge(trained.network, digits.prepared(trained.preprocess))
    assert not actual.even
    assert actual.changed is not None
    assert actual.changed > 0.1


@pytest.mark.parametrize(
    ("entropy", "changed", "message"),
    [
        (0.9998, 0.03, "had little effect"),
        (0.97, 0.03, "had an effect"),
        (0.97, 0.0, "had little effect"),
        (0.9998, 0.0, "had no effect"),
    ],
)
def test_how_much_routing_decided(entropy: float, changed: float, message: str) -> None:
    """Shares of photos that are even to 3 % were said to have decided something, as
    those of a good network.
    """
    assert Verdict(63, entropy, changed, None).of_routing.startswith(
        f"Routing {message}"
    )


def test_what_is_not_there_is_not_judged() -> None:
    assert judge(plain_net(), image_set((1, 16, 16), 6)) == Verdict(6, None, None, None)
    assert judge(digits_net(decoder_hidden=None), image_set(SHAPE, 6)).explained is None
    assert Verdict(6, None, None, None).of_routing == ""


def test_one_class_leaves_routing_nothing_to_decide() -> None:
    """It was said to have had little effect, with an entropy of 0."""
    one = image_set(SHAPE, 6, ("cell",))
    network = digits_net(classes=1, decoder_hidden=None)
    assert judge(network, one) == Verdict(6, None, None, None)
    assert ask(network, one).entropy is None
    layers = matrix_net(classes=1)
    actual = judge(layers, image_set(layers.image_shape, 6, ("cell",)))
    assert actual.changed is None
    assert actual.entropy > 0.5, "that of the layers below the class"


def test_the_explained_variance_is_that_about_the_mean_image() -> None:
    trained = Classifier.open("digits/capsnet_digits")
    digits = Digits().test.subset(torch.arange(60))
    actual = judge(trained.network, digits.prepared(trained.preprocess))
    pictures = digits.inputs.float() / 255
    with torch.no_grad():
        capsules = trained.network.eval().encode(pictures)
        drawn = trained.network.decode(capsules, capsules.activation.argmax(1))
    expected = (
        1 - ((pictures - drawn) ** 2).mean() / pictures.var(0, correction=0).mean()
    )
    assert actual.explained == pytest.approx(expected.item(), rel=1e-4)
    assert not actual.blind


def test_what_would_show_nothing_is_left_out() -> None:
    images = torch.rand(3, *SHAPE)
    seen = Observation(digits_net(), Selection(images, images), verdict=NOTHING)
    maps = Assignments.of(seen)
    assert maps is not None
    assert maps.layers == ()
    assert maps.text == NOTHING.of_routing
    assert list(maps.draw()) == []
    for kind in (Reconstructions, Perturbations, ClassPose):
        assert kind.of(seen) is None
    assert seen.asked(torch.tensor([0, 1, 2])).verdict is NOTHING


@pytest.mark.thorough
def test_a_report_says_so(tmp_path: Path) -> None:
    summary = {"verdict": vars(NOTHING)}
    index = Classification().report(
        tmp_path, digits_net(), image_set(SHAPE), summary, []
    )
    page = index.read_text()
    assert page.count("Routing had no effect") == 1
    routing = page[page.index("<h2>Routing</h2>") :]
    assert routing.index("Routing had no effect") < routing.index("<h2>", 4)
    assert "The decoder learned nothing" in page
    drawn = {path.name for path in index.parent.glob("*.png")}
    assert not {
        name
        for name in drawn
        if name.startswith(("assignments", "reconstructions", "perturbation"))
    }


def test_the_explorer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchcaps_lab.explore.explorer.judge", lambda *_: NOTHING)
    explorer = Explorer(
        {"a": Classifier(digits_net(classes=10))}, {"a": lambda: digit_samples(SHAPE)}
    )
    prediction = explorer.network("a")
    assert prediction["verdict"]["routing"] == NOTHING.of_routing
    assert not prediction["decides"]
    assert not prediction["decodes"]
    look = explorer.sample("a")
    assert explorer.pose(look, 0) is None
    assert explorer.swap(look, 0, look, 1) is None
    maps = explorer.assignments(look, 0)
    assert maps is not None
    assert (maps["layers"], maps["text"]) == ([], NOTHING.of_routing)


def test_even_assignments_leave_out_the_evidence_of_the_children() -> None:
    """One step with evidence is not even: it was judged as what even assignments give."""
    routing = create_routing("kmeans", steps=2, evidence=True)
    network = digits_net(routing=routing).eval()
    children = network.children_of(image_set(SHAPE, 4).inputs.float() / 255)
    with even_assignments(network):
        even = network.class_caps.route(children).assignment
    torch.testing.assert_close(even, torch.full_like(even, 1 / even.shape[-1]))
    assert network.routing.evidence
    assert network.routing.steps == 2
    with torch.no_grad():
        network.routing.local_evidence.bias[:, 2] = 20.0  # all children go to class 2
    assert judge(network, image_set(SHAPE, 30)).changed != 0
