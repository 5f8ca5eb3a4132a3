"""Losses by hand-computed numbers."""

import math
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps import (
    Capsules,
    LengthCrossEntropy,
    MarginLoss,
    NegativeLogLikelihood,
    ReconstructionLoss,
    SpreadLoss,
    length_cross_entropy,
    margin_loss,
    negative_log_likelihood,
    reconstruction_loss,
    spread_loss,
)
from torchcaps.layers import balanced_length
from torchcaps.losses import LOSSES
from torchcaps.testing.options import Row, check_together, options_of

# Two images, three classes.
ACTIVATION = torch.tensor([[0.7, 0.3, 0.05], [0.95, 0.1, 0.5]], dtype=torch.float64)
LABELS = torch.tensor([0, 2])


def activation(batch: int = 3, classes: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(
        batch, classes, generator=generator, dtype=torch.float64
    ).requires_grad_()


TARGETS = [torch.tensor([1, 3, 0]), F.one_hot(torch.tensor([1, 3, 0]), 4)]


@pytest.mark.parametrize("make", LOSSES.classes())
def test_options_of_a_loss_with_each_other(make: Any) -> None:
    """With labels or a mask, unless it refuses one, and with weights: gradients are
    those of differences, and images of no weight count for nothing.
    """
    of_call = {"target": [0, 1], "weighted": [False, make.weighs]}

    def called(row: Row) -> Callable[[Tensor], Tensor]:
        loss = make(**{key: row[key] for key in row.keys() - of_call})
        loss = pickle.loads(pickle.dumps(loss)).double()
        if row.get("weighted"):
            loss.weigh(torch.tensor([0.5, 2.0, 1.0, 0.0], dtype=torch.float64))
        call = partial(loss, target=TARGETS[row.get("target", 0)])
        call(activation())
        return call

    def check(row: Row) -> None:
        call = called(row)
        assert torch.autograd.gradcheck(call, activation())
        if row["weighted"]:
            inputs = activation()
            (gradient,) = torch.autograd.grad(call(inputs), inputs)
            assert not gradient[1].any()

    check_together({**options_of(make), **of_call}, called, check)


@pytest.mark.parametrize("loss", [NegativeLogLikelihood(), LengthCrossEntropy(7.0)])
def test_a_likelihood_is_that_of_its_probabilities(loss) -> None:
    probabilities = loss.probabilities(ACTIVATION)
    torch.testing.assert_close(
        loss(ACTIVATION, LABELS), F.nll_loss(probabilities.log(), LABELS)
    )
    torch.testing.assert_close(
        probabilities.sum(1), torch.ones_like(probabilities[:, 0])
    )


@pytest.mark.parametrize("loss", [MarginLoss(), SpreadLoss(0.5)])
def test_nothing_is_lost_beyond_the_margins(loss) -> None:
    scores = torch.tensor([[0.9, 0.1], [0.0, 1.0]], requires_grad=True)
    lost = loss(scores, torch.tensor([0, 1]))
    lost.backward()
    assert lost == 0
    assert (scores.grad == 0).all()


@pytest.mark.parametrize("loss", [MarginLoss(), LengthCrossEntropy(), SpreadLoss()])
def test_gradcheck(loss) -> None:
    target = torch.tensor(
        [[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0]]
        if isinstance(loss, MarginLoss)
        else [0, 3, 1]
    )
    assert torch.autograd.gradcheck(lambda a: loss(a, target), (activation(),))


class TestMargin:
    def test_by_hand(self) -> None:
        # first: 0.2^2 + 0.5 * 0.2^2 = 0.06; second: 0.5 * 0.85^2 + 0.4^2 = 0.52125
        assert margin_loss(ACTIVATION, LABELS).item() == pytest.approx(
            (0.06 + 0.52125) / 2, abs=1e-12
        )

    def test_margins_and_weight_of_the_absent(self) -> None:
        # present 0.8, absent 0.2, weight 0.25: 0.1^2 + 0.25 * 0.1^2; 0.25 * 0.75^2 +
        # 0.3^2
        loss = margin_loss(
            ACTIVATION, LABELS, present=0.8, absent=0.2, down_weight=0.25
        )
        assert loss.item() == pytest.approx((0.0125 + 0.230625) / 2, abs=1e-12)

    def test_several_classes_at_once(self) -> None:
        # both 0 and 1: 0.2^2 + 0.6^2; none: 0.5 * (0.85^2 + 0.4^2)
        loss = margin_loss(ACTIVATION, torch.tensor([[1, 1, 0], [0, 0, 0]]))
        assert loss.item() == pytest.approx((0.4 + 0.44125) / 2, abs=1e-12)

    @pytest.mark.parametrize(
        "dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32]
    )
    def test_mask_of_one_class_is_its_label(self, dtype: torch.dtype) -> None:
        mask = F.one_hot(LABELS, 3).to(dtype)
        assert margin_loss(ACTIVATION, mask) == margin_loss(ACTIVATION, LABELS)

    @pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
    def test_labels_of_any_integer_type(self, dtype: torch.dtype) -> None:
        assert margin_loss(ACTIVATION, LABELS.to(dtype)) == margin_loss(
            ACTIVATION, LABELS
        )

    @pytest.mark.parametrize("classes", [2, 10])
    def test_released_code_halves_and_averages_over_the_classes(
        self, classes: int
    ) -> None:
        scores = activation(5, classes)
        labels = torch.arange(5) % classes
        paper = margin_loss(scores, labels)
        released = margin_loss(scores, labels, weighting="released")
        torch.testing.assert_close(released, paper / (2 * classes), rtol=1e-12, atol=0)

    def test_module(self) -> None:
        module = MarginLoss(0.8, 0.2, 0.25, "released")
        assert module(ACTIVATION, LABELS) == margin_loss(
            ACTIVATION, LABELS, 0.8, 0.2, 0.25, "released"
        )
        assert MarginLoss()(ACTIVATION, LABELS) == margin_loss(ACTIVATION, LABELS)

    def test_of_each_example_of_a_batch(self) -> None:
        """Nobody can look at the numbers of a mask there."""
        mask = F.one_hot(LABELS, 3)[:, None].double()
        each = torch.func.vmap(margin_loss)(ACTIVATION[:, None], mask)
        torch.testing.assert_close(each.mean(), margin_loss(ACTIVATION, LABELS))

    def test_wrong_arguments(self) -> None:
        with pytest.raises(
            ValueError,
            match=r"weighting must be one of \['paper', 'released'\], got 'sum'",
        ):
            margin_loss(ACTIVATION, LABELS, weighting="sum")


class TestCrossEntropy:
    @pytest.mark.parametrize("factor", [1.0, 10.0])
    def test_is_that_of_torch(self, factor: float) -> None:
        expected = F.cross_entropy(factor * ACTIVATION, LABELS)
        torch.testing.assert_close(
            length_cross_entropy(ACTIVATION, LABELS, factor),
            expected,
            rtol=1e-12,
            atol=0,
        )
        torch.testing.assert_close(
            LengthCrossEntropy(factor)(ACTIVATION, LABELS), expected, rtol=1e-12, atol=0
        )

    def test_probabilities(self) -> None:
        target = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]], dtype=torch.float64)
        expected = F.cross_entropy(10 * ACTIVATION, target)
        torch.testing.assert_close(
            length_cross_entropy(ACTIVATION, target), expected, rtol=1e-12, atol=0
        )


class TestNegativeLogLikelihood:
    def test_of_a_softmax_is_the_cross_entropy(self) -> None:
        logits = 5 * activation()
        expected = F.cross_entropy(logits, torch.tensor([0, 3, 1]))
        share = logits.softmax(-1)
        target = torch.tensor([0, 3, 1])
        torch.testing.assert_close(
            negative_log_likelihood(share, target), expected, rtol=1e-12, atol=0
        )
        torch.testing.assert_close(
            NegativeLogLikelihood()(7 * share, target), expected, rtol=1e-12, atol=0
        )

    def test_zeros_are_finite(self) -> None:
        nothing = torch.zeros(2, 3, requires_grad=True)
        loss = negative_log_likelihood(nothing, torch.tensor([0, 1]))
        loss.backward()
        assert loss.isfinite()
        assert nothing.grad is not None
        assert nothing.grad.isfinite().all()


class TestSpread:
    def test_by_hand(self) -> None:
        # first: 0.7 over 0.3 and 0.05: (0.9 - 0.4)^2 + (0.9 - 0.65)^2; second: 0.5
        # below 0.95: 1.35^2, over 0.1: 0.5^2
        assert spread_loss(ACTIVATION, LABELS).item() == pytest.approx(
            (0.25 + 0.0625 + 1.8225 + 0.25) / 2, abs=1e-12
        )

    def test_margin(self) -> None:
        # 0.2: nothing in the first; 0.65^2 in the second, where 0.4 over the other is
        # enough
        assert spread_loss(ACTIVATION, LABELS, 0.2).item() == pytest.approx(
            0.4225 / 2, abs=1e-12
        )
        assert SpreadLoss(0.2, 0.9)(ACTIVATION, LABELS) == spread_loss(
            ACTIVATION, LABELS, 0.2
        )

    def test_all_the_same(self) -> None:
        for classes in (2, 5):
            loss = spread_loss(
                torch.full((3, classes), 0.4), torch.tensor([0, 1, 0]), 0.5
            )
            assert loss.item() == pytest.approx(0.25 * (classes - 1))

    def test_mask(self) -> None:
        with pytest.raises(
            ValueError,
            match=r"target must be labels \(B,\): .* one true class .* shape \(2, 3\)",
        ):
            spread_loss(ACTIVATION, F.one_hot(LABELS, 3))

    def test_linear(self) -> None:
        loss = SpreadLoss()
        assert loss.margin == pytest.approx(0.2)
        margins = []
        for epoch in range(8):
            loss.advance(epoch, 8, 1000 * epoch)
            margins.append(loss.margin)
        assert margins == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
        loss.advance(0, 1, 0)  # one epoch in all
        assert loss.margin == pytest.approx(0.2)
        loss.advance(50, 10, 0)  # training that goes on
        assert loss.margin == pytest.approx(0.9)

    def test_stepped(self) -> None:
        loss = SpreadLoss(schedule="stepped")
        assert loss.margin == pytest.approx(0.2)
        for epoch, margin in (
            (0, 0.2),
            (1, 0.3),
            (6, 0.8),
            (7, 0.9),
            (8, 0.9),
            (100, 0.9),
        ):
            loss.advance(epoch, 1000, 7)
            assert loss.margin == pytest.approx(margin)

    def test_sigmoid_of_the_released_code(self) -> None:
        """0.2 + 0.79 * sigmoid(min(10, step / 50000 - 4)), whatever the epoch."""
        loss = SpreadLoss(schedule="sigmoid")
        assert loss.margin == pytest.approx(0.2 + 0.79 / (1 + math.exp(4)))
        for step, margin in (
            (0, 0.214209),
            (200_000, 0.595),
            (250_000, 0.777536),
            (10**9, 0.989964),
        ):
            loss.advance(3, 5, step)
            assert loss.margin == pytest.approx(margin, abs=1e-6)
        quick = SpreadLoss(0.1, 0.5, "sigmoid", period=10.0)
        quick.advance(0, 5, 40)
        assert quick.margin == pytest.approx(0.1 + 0.49 / 2)

    def test_constant(self) -> None:
        loss = SpreadLoss(schedule="constant", end=0.6)
        loss.advance(3, 5, 100)
        assert loss.margin == 0.6

    def test_a_sum_is_the_mean_times_the_batch(self) -> None:
        activation = torch.rand(6, 4, dtype=torch.float64)
        labels = torch.arange(6) % 4
        mean, total = (
            SpreadLoss(end=0.7, schedule="constant", reduction=reduction)
            for reduction in ("mean", "sum")
        )
        torch.testing.assert_close(
            total(activation, labels), 6 * mean(activation, labels)
        )
        each = [
            total(row[None], label[None])
            for row, label in zip(activation, labels, strict=True)
        ]
        torch.testing.assert_close(total(activation, labels), torch.stack(each).sum())
        # A sum over no images is 0, as in torch; their mean is no number.
        assert spread_loss(activation[:0], labels[:0], reduction="sum") == 0
        with pytest.raises(ValueError, match="reduction must be one of"):
            spread_loss(activation, labels, reduction="none")

    @pytest.mark.parametrize("schedule", ["linear", "stepped", "sigmoid", "constant"])
    def test_advance_drives_the_loss(self, schedule: str) -> None:
        loss = SpreadLoss(schedule=schedule)
        values = []
        for epoch in range(10):
            loss.advance(epoch, 10, 40_000 * epoch)
            assert loss(ACTIVATION, LABELS) == spread_loss(
                ACTIVATION, LABELS, loss.margin
            )
            values.append(loss(ACTIVATION, LABELS).item())
        assert values == sorted(values)
        assert (values[0] < values[-1]) == (schedule != "constant")


@pytest.mark.parametrize(
    ("loss", "activation", "value"),
    [
        (margin_loss, 0.0, 0.81),
        (margin_loss, 1.0, 3.645),
        (margin_loss, balanced_length(10), 0.64 * 9 / 11),
        (spread_loss, 0.5, 7.29),
    ],
)
def test_where_a_loss_of_equal_activations_stays(
    loss: Callable[..., Tensor], activation: float, value: float
) -> None:
    """The values of ``docs/layers.md``."""
    equal = torch.full((2, 10), activation, dtype=torch.float64)
    assert loss(equal, torch.tensor([3, 7])).item() == pytest.approx(value)


class TestReconstruction:
    def test_by_hand(self) -> None:
        images = torch.zeros(2, 1, 2, 3)
        reconstruction = images.clone()
        reconstruction[0, 0, 0, 1] = 0.5
        reconstruction[1] = 1.0
        assert reconstruction_loss(reconstruction, images).item() == (0.25 + 6) / 2
        assert ReconstructionLoss()(reconstruction, images).item() == pytest.approx(
            0.0005 * 3.125
        )
        assert ReconstructionLoss(0.1)(reconstruction, images).item() == pytest.approx(
            0.3125
        )

    def test_gradcheck(self) -> None:
        images, start = torch.rand(2, 2, 2, 3, 1, dtype=torch.float64)
        assert torch.autograd.gradcheck(
            lambda r: reconstruction_loss(r, images), (start.requires_grad_(),)
        )

    def test_shapes_that_differ(self) -> None:
        with pytest.raises(
            ValueError, match=r"one shape, got \(2, 1, 3, 3\) and \(2, 1, 3, 4\)"
        ):
            reconstruction_loss(torch.zeros(2, 1, 3, 3), torch.zeros(2, 1, 3, 4))

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
    def test_images_that_nobody_scaled(self, dtype: torch.dtype) -> None:
        images = torch.full((2, 1, 3, 3), 200).to(dtype)
        with pytest.raises(
            ValueError, match=f"images must be floating point .* got {dtype}"
        ):
            reconstruction_loss(torch.zeros(2, 1, 3, 3), images)


@pytest.mark.parametrize("loss", [margin_loss, length_cross_entropy, spread_loss])
class TestTargets:
    def test_shapes_that_do_not_fit(self, loss: object) -> None:
        with pytest.raises(
            ValueError, match=r"activation must be \(B, E\), got shape \(3,\)"
        ):
            loss(torch.zeros(3), LABELS)
        with pytest.raises(
            ValueError,
            match=r"target must be integer labels \(2,\) or a mask \(2, 3\).*\(3,\)",
        ):
            loss(ACTIVATION, torch.zeros(3, dtype=torch.int64))
        with pytest.raises(
            ValueError, match=r"target must be .*float32 of shape \(2,\)"
        ):
            loss(ACTIVATION, LABELS.float())
        with pytest.raises(ValueError, match=r"target must be .*\(2, 4\)"):
            loss(ACTIVATION, torch.zeros(2, 4))

    @pytest.mark.parametrize("labels", [[0, 3], [-1, 2]], ids=["too large", "negative"])
    def test_a_label_that_there_is_not(self, loss: object, labels: list[int]) -> None:
        with pytest.raises(
            ValueError,
            match=rf"target must be labels in 0\.\.2, got {labels[0]} to {labels[1]}",
        ):
            loss(ACTIVATION, torch.tensor(labels))

    @pytest.mark.parametrize("number", [7, -1, math.nan])
    def test_a_mask_that_cannot_be(self, loss: object, number: float) -> None:
        mask = torch.zeros(2, 3)
        mask[1, 2] = number
        with pytest.raises(
            ValueError, match=r"target must be a mask of numbers in \[0, 1\], got"
        ):
            loss(ACTIVATION, mask)

    def test_a_target_before_the_activation(self, loss: object) -> None:
        mask = F.one_hot(LABELS, 3).to(ACTIVATION)
        scores = ACTIVATION.clone().requires_grad_()
        with pytest.raises(ValueError, match="activation comes before target"):
            loss(mask, scores)
        if loss is not spread_loss:
            learned = mask.clone().requires_grad_()
            assert loss(scores, learned).requires_grad  # labels that learn, too

    def test_what_is_no_real_tensor(self, loss: object) -> None:
        for target in (
            LABELS.to(torch.complex64),
            torch.zeros(2, 3, dtype=torch.complex64),
        ):
            with pytest.raises(ValueError, match="target must be real"):
                loss(ACTIVATION, target)
        for target in ([0, 2], None):
            with pytest.raises(
                TypeError, match=f"target must be a tensor, got {type(target).__name__}"
            ):
                loss(ACTIVATION, target)
        with pytest.raises(
            TypeError, match="activation must be a tensor, got Capsules"
        ):
            loss(Capsules(ACTIVATION[..., None], ACTIVATION), LABELS)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision(self, loss: object, dtype: torch.dtype) -> None:
        scores = ACTIVATION.to(dtype).requires_grad_()
        value = loss(scores, LABELS)
        assert value.dtype == torch.float32
        torch.testing.assert_close(
            value.double(), loss(scores.double(), LABELS), rtol=1e-5, atol=0
        )
        value.backward()
        assert scores.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_reconstruction_in_half_precision(dtype: torch.dtype) -> None:
    """A sum over 100,000 pixels exceeds float16."""
    images = torch.zeros(1, 1, 400, 250, dtype=dtype)
    loss = reconstruction_loss(torch.ones_like(images), images)
    assert loss.dtype == torch.float32
    assert loss == 100_000


OF_ACTIVATIONS = pytest.mark.parametrize(
    "loss",
    [margin_loss, length_cross_entropy, negative_log_likelihood, spread_loss],
    ids=lambda loss: loss.__name__,
)


@OF_ACTIVATIONS
def test_autocast_changes_no_weighted_loss(loss: Callable[..., Tensor]) -> None:
    scores = activation().detach().float()
    weight = torch.tensor([1.003, 2.0, 3.0, 0.1])
    right = loss(scores, TARGETS[0], weight=weight)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(loss(scores, TARGETS[0], weight=weight), right)


@OF_ACTIVATIONS
def test_losses_do_not_hide_nan(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    for place in range(4):  # of the true class, or another
        seen = activation()
        with torch.no_grad():
            seen[0, place] = torch.nan
        value = loss(seen, torch.tensor([1, 2, 3]))
        assert value.isnan()
        (gradient,) = torch.autograd.grad(value, seen)
        assert gradient[0].isnan().any()
        assert gradient[1:].isfinite().all()
