"""Attacks on networks."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from recipes.attacks import (
    BLACK,
    TARGETED,
    UNTARGETED,
    WHITE,
    Attacker,
    Key,
    Sample,
    Scores,
    attack_all,
    draw_sample,
    random_signs,
)
from torchcaps.losses import negative_log_likelihood, spread_loss
from torchcaps.models import ImageClassifier, Prediction, create_model
from torchcaps.routing import EMRouting
from torchcaps_lab.data import Digits, Preprocess

CAPSULES, CNN = "matrix capsules", "convolutional network"
SHAPE = (1, 3, 4)


class Linear(nn.Module):
    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(torch.randn(classes, 12, generator=generator))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels.flatten(1) @ self.weight.T


class Fixed(ImageClassifier):
    """Activations that are logistic functions of the sums over the columns of an
    image.
    """

    def forward(
        self, images: torch.Tensor, target: torch.Tensor | None = None
    ) -> Prediction:
        return Prediction(images.sum((1, 2)).sigmoid(), None, None)


class Activation(nn.Module):
    """The logarithms of a prediction's activations."""

    def forward(self, prediction: Prediction) -> torch.Tensor:
        return prediction.activation.log()


def by_hand(weight, x, origin, labels, sign, epsilon, step):
    """A step by the sign of the gradient of the cross-entropy, (p - t) W, clipped."""
    error = (x.flatten(1) @ weight.T).softmax(1) - F.one_hot(labels, len(weight))
    x = (x + sign * step * (error @ weight).sign().view_as(x)).clamp(0, 1)
    return origin + (x - origin).clamp(-epsilon, epsilon)


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize(("attack", "steps"), [("FGSM", 1), ("BIM", 5)])
def test_attacks_go_along_the_sign_of_the_gradient_and_stay_in_range(
    attack, steps, targeted
):
    model, epsilon = Linear(), 0.2
    pixels = torch.rand(7, *SHAPE, generator=torch.Generator().manual_seed(2))
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    made = Attacker(model, SHAPE, 3, steps=steps, batch_size=3).attacked(
        attack, epsilon, pixels, labels, targeted
    )
    expected = pixels
    sign = -1 if targeted else 1
    for _ in range(steps):
        expected = by_hand(
            model.weight.detach(),
            expected,
            pixels,
            labels,
            sign,
            epsilon,
            epsilon / steps,
        )
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=0)
    assert (made - pixels).abs().max() <= epsilon + 1e-6
    assert 0 <= made.min() <= made.max() <= 1
    losses = [F.cross_entropy(model(x), labels) for x in (pixels, made)]
    assert sign * losses[1] > sign * losses[0]


def test_epsilon_zero_is_no_attack():
    pixels = torch.rand(2, *SHAPE)
    assert torch.equal(
        Attacker(Linear(), SHAPE, 3).attacked(
            "BIM", 0.0, pixels, torch.tensor([0, 1]), False
        ),
        pixels,
    )


def test_zero_gradients_counts_the_pixels_without_a_gradient():
    model = Linear()
    model.weight.data[:, :3] = 0  # 3 of 12 pixels
    attacker = Attacker(model, SHAPE, 3, batch_size=2)
    assert (
        attacker.zero_gradients(torch.rand(5, *SHAPE), torch.tensor([0, 1, 2, 0, 1]))
        == 25
    )


def test_scores_are_of_what_the_network_sees_in_a_test():
    network = Fixed((1, 6, 6), 6)
    preprocess = Preprocess(crop=6, standardise=True)
    test = Digits(size=8).test
    sample = draw_sample(test, preprocess, 20)
    where = [
        next(
            i
            for i in range(len(test))
            if torch.equal(test.inputs[i, :, 1:7, 1:7] / 255, x)
        )
        for x in sample[0]
    ]
    batch = test.prepared(preprocess).__getitems__(where)
    assert torch.equal(batch.labels, sample.labels)
    scores = Scores(network, preprocess)
    torch.testing.assert_close(
        scores(sample.pixels), network(batch.inputs).activation.log()
    )
    pixels = sample.pixels.double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: preprocess.evaluate(x).images, pixels[:2].detach().requires_grad_()
    )


def test_the_attack_sees_all_steps_of_routing():
    torch.manual_seed(0)
    pixels = torch.rand(3, 1, 20, 20)
    results = []
    for gradient in ("all", "last"):
        torch.manual_seed(1)
        routing = EMRouting.preset("standardised", gradient=gradient)
        network = create_model(
            "matrixcapsnet",
            image_shape=(1, 20, 20),
            classes=3,
            channels=4,
            types=(2, 3, 3),
            routing=routing,
        ).eval()
        assert network.routing.gradient == gradient
        for model in (
            Scores(network, Preprocess()),
            nn.Sequential(network, Activation()),
        ):
            images = pixels.clone().requires_grad_()
            results.append(
                torch.autograd.grad(
                    F.cross_entropy(model(images), torch.tensor([0, 1, 2])), images
                )[0]
            )
        assert network.routing.gradient == gradient
    attack_all_steps, all_steps, attack_last, last = results
    torch.testing.assert_close(attack_all_steps, all_steps)
    torch.testing.assert_close(attack_last, all_steps)
    assert not torch.allclose(last, all_steps, rtol=1e-2)


def test_the_attack_has_a_gradient_where_the_spread_loss_is_flat():
    scores = Scores(Fixed((1, 1, 3), 3), Preprocess())
    images = torch.tensor([8.0, -8.0, -9.0]).view(1, 1, 1, 3).requires_grad_()
    labels = torch.tensor([0])
    (flat,) = torch.autograd.grad(spread_loss(scores(images).exp(), labels), images)
    (steep,) = torch.autograd.grad(F.cross_entropy(scores(images), labels), images)
    assert flat.abs().max() == 0
    assert steep[0, 0, 0, 0] < 0 < steep[0, 0, 0, 2] < steep[0, 0, 0, 1]
    same = negative_log_likelihood(scores(images).exp(), labels)
    torch.testing.assert_close(F.cross_entropy(scores(images), labels), same)


def test_targets_are_wrong_and_every_wrong_class_is_one():
    test = Digits(
        validation=0
    ).train  # 1,437 images: 16 for each pair of a class and a target
    sample = draw_sample(test, Preprocess(), 10**6)
    assert len(sample.labels) == len(test)
    assert not (sample.labels == sample.targets).any()
    seen = torch.zeros(10, 10).index_put(
        (sample.labels, sample.targets), torch.tensor(1.0), accumulate=True
    )
    assert ((seen > 0) == ~torch.eye(10, dtype=torch.bool)).all()
    again = draw_sample(test, Preprocess(), 10**6)
    assert torch.equal(sample.targets, again.targets)
    assert len(draw_sample(test, Preprocess(), 5).labels) == 5


class Marked:
    """An attacker that writes its number into the first pixel; its answer is a class
    for each number.
    """

    def __init__(self, number: int, answers: dict[int, int]) -> None:
        self.number = number
        self.by_number = answers
        self.seen: list[torch.Tensor] = []

    def attacked(self, attack, epsilon, pixels, labels, targeted):
        images = pixels.clone()
        images[:, 0] = self.number if epsilon else 0
        return images

    def answers(self, pixels):
        self.seen.append(pixels)
        return torch.tensor([self.by_number[int(x)] for x in pixels[:, 0]])


def test_the_black_box_is_the_other_network():
    sample = Sample(torch.zeros(2, 3), torch.tensor([0, 0]), torch.tensor([1, 2]))
    # Without an attack both are right; both say 1 to images of the first network and 2
    # or 0 to those of the second.
    attackers = {
        CAPSULES: Marked(1, {0: 0, 1: 1, 2: 2}),
        CNN: Marked(2, {0: 0, 1: 1, 2: 0}),
    }
    curves = attack_all(attackers, sample, {"FGSM": (0.1,)})
    assert len(curves) == 8
    for goal in (UNTARGETED, TARGETED):
        assert curves[Key(CAPSULES, "FGSM", goal, WHITE)] == (
            [0, 0.1],
            [100, 0],
            [0, 50],
        )
        assert curves[Key(CAPSULES, "FGSM", goal, BLACK)] == (
            [0, 0.1],
            [100, 0],
            [0, 50],
        )
        assert curves[Key(CNN, "FGSM", goal, BLACK)] == ([0, 0.1], [100, 0], [0, 50])
        assert curves[Key(CNN, "FGSM", goal, WHITE)] == ([0, 0.1], [100, 100], [0, 0])


def test_random_signs_change_every_pixel_by_epsilon():
    attacker = Marked(0, dict.fromkeys(range(-1, 2), 0))
    pixels = torch.full((50, 40), 0.5)
    random_signs(
        attacker, Sample(pixels, torch.zeros(50), torch.ones(50)), (0.25, 0.75)
    )
    change = attacker.seen[1] - pixels
    assert change.unique().tolist() == [-0.25, 0.25]
    assert abs(change.mean()) < 0.02
    assert attacker.seen[2].unique().tolist() == [0, 1]


@pytest.mark.parametrize("argument", ["classes", "steps", "batch_size"])
def test_an_attacker_takes_at_least_one_of_everything(argument):
    with pytest.raises(ValueError, match=f"{argument} must be at least 1, got 0"):
        Attacker(Linear(), SHAPE, **{"classes": 3, argument: 0})


@pytest.mark.parametrize("count", [0, -1])
def test_a_sample_has_images(count):
    with pytest.raises(ValueError, match=f"count must be at least 1, got {count}"):
        draw_sample(Digits().test, Preprocess(), count)


def test_epsilons_start_at_zero_once_and_are_not_negative():
    sample = Sample(torch.zeros(2, 3), torch.tensor([0, 0]), torch.tensor([1, 2]))
    attacker = Marked(1, {0: 0, 1: 1})
    curves = attack_all({CNN: attacker}, sample, {"FGSM": (0.0, 0.1)})
    assert [curve.epsilon for curve in curves.values()] == [[0, 0.1]] * 2
    noise = Marked(0, dict.fromkeys(range(-1, 2), 0))
    assert random_signs(noise, sample, (0.0, 0.1)).epsilon == [0, 0.1]
    with pytest.raises(ValueError, match="epsilon must be at least 0, got -1"):
        random_signs(noise, sample, [-1.0])
    with pytest.raises(ValueError, match="epsilon must be at least 0, got -1"):
        attack_all({CNN: attacker}, sample, {"FGSM": (-1.0,)})
    with pytest.raises(ValueError, match="epsilon must be at least 0, got -1"):
        Attacker(Linear(), SHAPE, 3).attacked(
            "FGSM", -1.0, torch.rand(1, *SHAPE), torch.tensor([0]), False
        )
