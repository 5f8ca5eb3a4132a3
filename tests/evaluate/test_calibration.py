"""Probabilities that say how often a network is right."""

import pytest
import torch

from torchcaps_lab.evaluate import Calibration, Findings, fit_platt, fit_temperature
from torchcaps_lab.evaluate.calibration import calibration_bins, calibration_error
from torchcaps_lab.report.pictures import Reliability


def drawn(count: int, sharpness: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations whose shares to the power of 1 / sharpness are the truth."""
    generator = torch.Generator().manual_seed(0)
    truth = (1.5 * torch.randn(count, 4, generator=generator)).softmax(1)
    labels = torch.multinomial(truth, 1, generator=generator).squeeze(1)
    powers = truth**sharpness
    return powers / powers.amax(1, keepdim=True), labels


def platt_targets(present: torch.Tensor) -> torch.Tensor:
    """Platt 1999, section 2.2.1: what is told of a class that is there, and of one that
    is not.
    """
    yes = int(present.sum())
    no = int((~present).sum())
    return torch.where(present, (yes + 1) / (yes + 2), 1 / (no + 2)).double()


class TestCalibration:
    @pytest.mark.parametrize("sharpness", [0.3, 1.0, 3.0])
    def test_the_temperature_is_found_again(self, sharpness):
        activation, labels = drawn(4000, sharpness)
        actual = fit_temperature(activation, labels)
        assert actual.parameters[0] == pytest.approx(sharpness, rel=0.1)
        assert torch.equal(actual(activation).argmax(1), activation.argmax(1))
        torch.testing.assert_close(
            actual(activation).sum(1), torch.ones(4000, dtype=torch.float64)
        )
        assert Calibration.from_config(actual.config()) == actual
        reliability = Reliability.of(Findings(labels, activation, None), actual)
        assert reliability.curves[-1].error < 0.03
        if sharpness != 1:
            assert reliability.curves[0].error > 2 * reliability.curves[-1].error
        gaps = [
            abs(a - c)
            for a, c in zip(
                reliability.curves[-1].accuracy,
                reliability.curves[-1].confidence,
                strict=True,
            )
        ]
        assert max(gaps) < 0.15

    def test_always_right_is_not_sure_for_ever(self):
        activation = torch.eye(3).repeat(20, 1) * 0.8 + 0.1
        actual = fit_temperature(activation, torch.arange(3).repeat(20))
        assert actual(activation).amax(1).mean().item() == pytest.approx(
            61 / 62, abs=0.01
        )

    def test_each_of_several_classes_for_itself(self):
        generator = torch.Generator().manual_seed(0)
        logits = 2 * torch.randn(2000, 3, generator=generator)
        present = torch.rand(2000, 3, generator=generator) < (2 * logits - 1).sigmoid()
        actual = fit_platt(logits.sigmoid(), present)
        assert actual.parameters == pytest.approx((2, -1), abs=0.3)
        torch.testing.assert_close(
            actual(logits.sigmoid()),
            (actual.parameters[0] * logits + actual.parameters[1]).double().sigmoid(),
            atol=1e-4,
            rtol=0,
        )

    def test_nothing_is_fitted_where_nothing_can_be(self):
        activation, labels = drawn(100, 1.0)
        assert fit_temperature(activation[:19], labels[:19]) is None
        assert fit_temperature(activation * torch.nan, labels) is None
        assert fit_platt(activation, torch.ones(100, 4, dtype=torch.bool)) is None

    @pytest.mark.parametrize("scale", [1e-3, 1e-2, 0.1])
    def test_activations_that_are_close_together_say_as_much(self, scale):
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(1000, 4, generator=generator).double()
        present = torch.rand(1000, 4, generator=generator) < (3 * logits - 1).sigmoid()
        slope, intercept = fit_platt((scale * logits).sigmoid(), present).parameters
        assert (slope * scale, intercept) == pytest.approx(
            fit_platt(logits.sigmoid(), present).parameters, rel=1e-6
        )
        labels = torch.multinomial(
            (2 * logits).softmax(1), 1, generator=generator
        ).squeeze(1)
        temperature = fit_temperature((scale * logits).sigmoid(), labels).parameters[0]
        assert temperature / scale == pytest.approx(
            1 / 4, rel=0.1
        )  # log a = scale / 2 logit + constant

    def test_slope_and_intercept_are_the_likeliest(self):
        """Where the derivatives of the likelihood of Platt's targets are zero: for few
        images, too.
        """
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(20, 2, generator=generator).double()
        present = torch.rand(20, 2, generator=generator) < (5 * logits - 1).sigmoid()
        error = fit_platt(logits.sigmoid(), present)(logits.sigmoid()) - platt_targets(
            present
        )
        assert abs(error.sum().item()) < 1e-6
        assert abs((error * logits).sum().item()) < 1e-6

    def test_told_apart_without_an_error_the_slope_is_finite(self):
        activation = torch.tensor([[0.3, 0.7]]).repeat(20, 1)
        present = activation > 0.5
        torch.testing.assert_close(
            fit_platt(activation, present)(activation),
            platt_targets(present),
            atol=1e-6,
            rtol=0,
        )

    def test_classes_that_are_there_do_not_get_less_than_others(self) -> None:
        """Of a network that has learned nothing."""
        generator = torch.Generator().manual_seed(0)
        present = torch.rand(200, 5, generator=generator) < 0.2
        activation = (
            torch.randn(200, 5, generator=generator) - present.float()
        ).sigmoid()
        actual = fit_platt(activation, present)(activation)
        torch.testing.assert_close(
            actual, platt_targets(present).mean().expand(200, 5), atol=1e-6, rtol=0
        )

    def test_activations_that_are_all_alike_say_nothing(self):
        present = torch.arange(80).reshape(20, 4) % 4 == 0
        alike = torch.full((20, 4), 0.3)
        slope, intercept = fit_platt(alike, present).parameters
        assert slope == pytest.approx(0, abs=1e-6)
        assert torch.tensor(intercept).sigmoid().item() == pytest.approx(
            platt_targets(present).mean().item()
        )
        assert fit_temperature(alike, torch.zeros(20).long()).parameters[0] >= 2**-10

    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            (
                torch.full((30,), 4),
                r"labels must lie in 0\.\.3, got labels from 4 to 4",
            ),
            (
                torch.full((30,), -1),
                r"labels must lie in 0\.\.3, got labels from -1 to -1",
            ),
            (
                torch.zeros(29).long(),
                r"labels must be integer labels \(30,\), got torch.int64 of shape \(29,\)",
            ),
            (
                torch.zeros(30),
                r"labels must be integer labels \(30,\), got torch.float32 of shape",
            ),
            (
                torch.zeros(30, dtype=torch.complex64),
                r"labels must be integer labels \(30,\), got torch.complex64 of shape",
            ),
        ],
    )
    def test_wrong_labels_are_told(self, labels, message):
        activation = torch.rand(30, 4)
        with pytest.raises(ValueError, match=message):
            fit_temperature(activation, labels)
        with pytest.raises(
            ValueError,
            match=r"labels must be masks of the classes that are there, bool \(30, 4\)",
        ):
            fit_platt(activation, labels)
        with pytest.raises(
            ValueError, match=r"activation must be floating-point \(N, E\)"
        ):
            fit_temperature(activation[0], labels)

    def test_labels_are_integers_of_any_size(self):
        activation, labels = drawn(100, 1.0)
        assert fit_temperature(activation, labels.int()) == fit_temperature(
            activation, labels
        )
        assert fit_temperature(activation[:0], labels[:0]) is None

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("guess", (1.0,), 5), "method must be temperature or platt, got 'guess'"),
            (("temperature", (0.0,), 5), "parameters of temperature must be 1"),
            (("platt", (1.0,), 5), "parameters of platt must be 2"),
            (("platt", (1.0, float("nan")), 5), "finite"),
        ],
    )
    def test_wrong_parameters_are_named(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            Calibration(*arguments)


def test_calibration_error_written_out():
    torch.manual_seed(0)
    p = (3 * torch.randn(200, 4)).softmax(1)
    labels = torch.randint(4, (200,))
    confidence, predicted = p.max(1)
    bins = (confidence * 15).ceil()
    expected = sum(
        abs(
            (predicted[bins == b] == labels[bins == b]).float().mean()
            - confidence[bins == b].mean()
        )
        * (bins == b).sum()
        for b in bins.unique()
    )
    expected = pytest.approx(float(expected) / 200, rel=1e-4)
    assert calibration_error(p, labels, 15) == expected
    assert Findings(labels, p, None).calibration_error() == expected


def test_a_probability_between_two_bins_belongs_to_the_lower_one():
    upper = torch.arange(1, 50, dtype=torch.float64) / 49
    seen = calibration_bins(upper[:, None], torch.zeros(49), 49)
    assert torch.equal(seen.confidence, upper)


def test_calibration_error_of_what_rounding_made_more_than_certain():
    p = torch.tensor([[1 + 1e-7, 0.0], [0.0, 1.0]])
    labels = torch.tensor([0, 1])
    assert p.max() > 1
    assert calibration_error(p, labels, 15) == pytest.approx(0, abs=1e-6)


def test_certain_images_share_a_bin_with_nearly_certain_ones():
    """Right in 8 of 10 at 1 and in 10 of 10 at 0.92: together 0.9 at 0.96, in the
    figure as on the curve.
    """
    activation = torch.tensor([[1.0, 0.0], [0.92, 0.08]]).repeat_interleave(10, 0)
    labels = torch.tensor([0] * 8 + [1] * 2 + [0] * 10)
    assert calibration_error(activation, labels, 10) == pytest.approx(0.06)
    (curve,) = Reliability.of(Findings(labels, activation, None), None).curves
    assert (curve.confidence, curve.accuracy) == (
        pytest.approx([0.96]),
        pytest.approx([0.9]),
    )
    assert curve.error == pytest.approx(0.06)


def test_bins_of_scikit_learn():
    from sklearn.calibration import calibration_curve

    torch.manual_seed(0)
    p = (3 * torch.randn(500, 3, dtype=torch.float64)).softmax(1)
    labels = torch.randint(3, (500,))
    confidence, predicted = p.max(1)
    accuracy, mean = calibration_curve(
        (predicted == labels).numpy(), confidence.numpy(), n_bins=10
    )
    bins = calibration_bins(p, labels, 10)
    assert bins.accuracy.tolist() == pytest.approx(accuracy.tolist())
    assert bins.confidence.tolist() == pytest.approx(mean.tolist())
