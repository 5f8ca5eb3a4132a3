"""The twin that reconstructs, the attack that knows the detector, letters, and the
recipe that has them all.
"""

import pytest
import torch

from recipes.attacks import Scores
from recipes.reconstructive import reconstructive
from recipes.strangers import (
    ATTACKS,
    FALSE,
    KINDS,
    TWIN,
    UNDETECTED,
    interval,
    letters,
    rank_correlation,
)
from tests.report.small import digits_net
from torchcaps import Classifier, create_model
from torchcaps_lab.data import Digits, Preprocess
from torchcaps_lab.report import reconstruction_error


def twin() -> torch.nn.Module:
    torch.manual_seed(0)
    shape = {
        "image_shape": (1, 8, 8),
        "classes": 3,
        "channels": (4, 4, 4),
        "hidden": (8, 8),
    }
    return create_model("decoding_cnn", **shape, units=4, decoder_hidden=(8,)).eval()


def test_the_decoder_of_the_twin_sees_one_class() -> None:
    network = twin()
    images = torch.rand(5, 1, 8, 8)
    prediction = network(images)
    torch.testing.assert_close(prediction.activation.sum(1), torch.ones(5))
    assert torch.equal(
        prediction.reconstruction,
        network(images, prediction.activation.argmax(1)).reconstruction,
    )
    groups = network.head(network.features(images)).unflatten(1, (3, 4))
    torch.testing.assert_close(prediction.activation, groups.sum(2).softmax(1))
    masked = groups * torch.nn.functional.one_hot(torch.tensor(2), 3)[:, None]
    torch.testing.assert_close(
        network(images, torch.full((5,), 2)).reconstruction, network.decoder(masked)
    )


class TestAttackThatKnows:
    @pytest.mark.parametrize("network", [twin, digits_net])
    def test_stays_close_and_in_range(self, network: object) -> None:
        model = network().eval()
        pixels = torch.rand(7, 1, 8, 8)
        labels = torch.arange(7) % 3
        actual = reconstructive(
            Scores(model, Preprocess()), pixels, labels, 0.1, steps=3, batch_size=4
        )
        assert actual.shape == pixels.shape
        assert (actual - pixels).abs().max() <= 0.1 + 1e-6
        assert 0 <= actual.min() <= actual.max() <= 1

    def test_fooled_images_are_reconstructed_better_than_after_more_of_the_class_alone(
        self,
    ) -> None:
        classifier = Classifier.open("digits/capsnet_digits")
        test = Digits().test.subset(torch.arange(40))
        pixels = test.inputs.float() / 255
        network = classifier.network
        scores = Scores(network, classifier.preprocess)
        actual = reconstructive(scores, pixels, test.labels, 0.2, steps=10)
        with torch.no_grad():
            prediction = network(actual)
            clean = network(pixels)
        fooled = prediction.activation.argmax(1) != test.labels
        assert (
            fooled.double().mean()
            > (clean.activation.argmax(1) != test.labels).double().mean()
        )
        step = pixels.clone().requires_grad_()
        torch.nn.functional.cross_entropy(scores(step), test.labels).backward()
        blunt = (pixels + 0.2 * step.grad.sign()).clamp(0, 1)
        with torch.no_grad():
            second = reconstruction_error(blunt, network(blunt).reconstruction)
        assert (
            reconstruction_error(actual, prediction.reconstruction)[fooled].mean()
            < second[fooled].mean()
        )

    @pytest.mark.parametrize(
        ("epsilon", "steps", "name"), [(0.0, 3, "epsilon"), (0.1, 0, "steps")]
    )
    def test_out_of_range(self, epsilon: float, steps: int, name: str) -> None:
        with pytest.raises(ValueError, match=f"{name} must be"):
            reconstructive(
                Scores(twin(), Preprocess()),
                torch.rand(1, 1, 8, 8),
                torch.zeros(1).long(),
                epsilon,
                steps,
            )


@pytest.mark.thorough
def test_letters_are_ink_on_black_in_the_middle() -> None:
    images = letters((1, 28, 28)).float() / 255
    assert len(images) == 17 * 21 * 3
    assert images.amax((1, 2, 3)).min() > 0.5
    mass = images.sum((1, 2, 3))
    rows = (images.sum((1, 3)) * torch.arange(28)).sum(1) / mass
    assert (rows - 13.5).abs().max() < 1.5


def test_the_interval_holds_the_share_of_even_scores() -> None:
    scores = torch.linspace(0, 1, 500)
    low, high = interval(scores, scores, 0.1, resamples=200)
    assert 80 < low < 90 < high < 98


def test_rank_correlation_by_hand() -> None:
    assert rank_correlation(
        torch.tensor([1.0, 2, 3]), torch.tensor([1.0, 10, 100])
    ) == pytest.approx(1)
    assert rank_correlation(
        torch.tensor([1.0, 2, 3]), torch.tensor([5.0, 0, -7])
    ) == pytest.approx(-1)


@pytest.mark.slow
def test_smoke(smoke) -> None:
    actual = smoke("strangers")
    for row in ("CapsNet", TWIN):
        shares = [
            actual.ours[row, UNDETECTED.format(kind)] for kind in (*KINDS, *ATTACKS)
        ]
        assert all(0 <= share <= 100 for share in [*shares, actual.ours[row, FALSE]])
    # The strangers of this preset are other test images of the known ones: about as
    # many are taken for known.
    second = actual.ours["CapsNet", UNDETECTED.format(KINDS[0])]
    assert second == pytest.approx(100 - actual.ours["CapsNet", FALSE], abs=10)
    assert len(actual.result["pictures"]) == 2
