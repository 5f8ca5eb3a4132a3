"""Fixed points as layers: they converge, to the solution, with its gradient."""

import math

import pytest
import torch

from torchcaps.layers.fixed_point import (
    ImplicitActivation,
    SelfWeightedPooling,
    implicit_activation,
    self_weighted_pooling,
)


class TestImplicitActivation:
    def test_three_steps_are_the_formula(self) -> None:
        x = torch.linspace(-4, 4, 50, dtype=torch.float64)
        torch.testing.assert_close(
            implicit_activation(x), x - (x - (x - x.cos()).cos()).cos(), rtol=0, atol=0
        )
        assert torch.equal(ImplicitActivation()(x), implicit_activation(x))
        assert torch.equal(implicit_activation(x, steps=0), x)

    def test_converges_to_the_solution(self) -> None:
        """From a y we know, away from where |sin y| = 1; each doubling of the steps
        squares the error, or better.
        """
        y = torch.linspace(-1.2, 1.2, 25, dtype=torch.float64)
        x = y + y.cos()
        errors = [
            (implicit_activation(x, steps=steps) - y).abs().max().item()
            for steps in (25, 50, 100, 200, 400)
        ]
        assert errors[0] > 1e-3
        assert errors[-1] < 1e-11
        contraction = math.sin(1.2)
        for steps, error in zip((25, 50, 100, 200), errors, strict=False):
            assert error < 2 * contraction**steps

    def test_gradient_becomes_that_of_the_solution(self) -> None:
        y = torch.linspace(-1, 1, 21, dtype=torch.float64)
        x = (y + y.cos()).requires_grad_()
        (gradient,) = torch.autograd.grad(implicit_activation(x, steps=300).sum(), x)
        torch.testing.assert_close(gradient, 1 / (1 - y.sin()), rtol=1e-9, atol=1e-9)
        (early,) = torch.autograd.grad(implicit_activation(x, steps=3).sum(), x)
        assert not torch.allclose(early, gradient, rtol=0.05)

    def test_gradcheck_and_other_functions(self) -> None:
        x = torch.randn(
            5,
            dtype=torch.float64,
            generator=torch.Generator().manual_seed(0),
            requires_grad=True,
        )
        assert torch.autograd.gradcheck(ImplicitActivation(steps=4), x)
        solved = ImplicitActivation(lambda y: y.tanh() / 2, steps=80)(x)
        torch.testing.assert_close(solved + solved.tanh() / 2, x)

    def test_wrong_arguments(self) -> None:
        with pytest.raises(ValueError, match="steps must be at least 0, got -1"):
            ImplicitActivation(steps=-1)
        with pytest.raises(ValueError, match="steps must be at least 0, got -2"):
            implicit_activation(torch.zeros(1), steps=-2)


def sequences(scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(
        3, 7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )


class TestSelfWeightedPooling:
    def test_by_the_book(self) -> None:
        x = sequences()
        for b, members in enumerate(x):
            pooled = members.mean(0)
            for _ in range(3):
                e = [math.exp(2 * float(pooled @ member)) for member in members]
                pooled = sum(
                    weight / sum(e) * member
                    for weight, member in zip(e, members, strict=True)
                )
            torch.testing.assert_close(
                SelfWeightedPooling(3, sharpness=2.0)(x)[b],
                pooled,
                rtol=1e-12,
                atol=1e-12,
            )
        torch.testing.assert_close(self_weighted_pooling(x, steps=0), x.mean(1))

    @pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
    def test_converges_to_a_fixed_point(self, scale: float) -> None:
        x = sequences(scale)
        settled = self_weighted_pooling(x, steps=2000)
        weights = torch.einsum("bd,bnd->bn", settled, x).softmax(-1)
        torch.testing.assert_close(
            torch.einsum("bn,bnd->bd", weights, x), settled, rtol=1e-8, atol=1e-8
        )

    def test_no_step_raises_the_energy(self) -> None:
        x = sequences(2.0)
        states = torch.stack(
            [
                self_weighted_pooling(x, steps=steps, sharpness=0.7)
                for steps in range(20)
            ]
        )
        free = (0.7 * torch.einsum("tbd,bnd->tbn", states, x)).logsumexp(-1) / 0.7
        energy = states.square().sum(-1) / 2 - free
        assert (energy.diff(dim=0) <= 1e-12).all()
        assert (energy[0] - energy[-1] > 1e-3).all()

    def test_agreeing_members_win_over_a_stray_one(self) -> None:
        x = torch.tensor([[[3.0, 0.0], [3.0, 0.2], [3.0, -0.2], [0.0, 4.0]]])
        pooled = self_weighted_pooling(x, steps=10)
        torch.testing.assert_close(
            pooled, torch.tensor([[3.0, 0.0]]), atol=0.02, rtol=0
        )

    def test_order_and_padding_do_not_matter(self) -> None:
        x = sequences()
        pooled = self_weighted_pooling(x)
        torch.testing.assert_close(self_weighted_pooling(x.flip(1)), pooled)
        mask = torch.arange(9).expand(3, 9) < 7
        for filling in (50.0, torch.nan):
            padded = torch.cat(
                [x, torch.full((3, 2, 4), filling, dtype=x.dtype)], dim=1
            ).requires_grad_()
            actual = SelfWeightedPooling()(padded, mask)
            torch.testing.assert_close(actual, pooled)
            (gradient,) = torch.autograd.grad(actual.sum(), padded)
            assert gradient.isfinite().all()

    def test_gradcheck(self) -> None:
        x = sequences().requires_grad_()
        mask = torch.tensor(
            [[True] * 7, [True] * 3 + [False] * 4, [True] + [False] * 6]
        )
        assert torch.autograd.gradcheck(
            lambda x: self_weighted_pooling(x, mask, steps=3), x
        )
        (gradient,) = torch.autograd.grad(self_weighted_pooling(x, mask).sum(), x)
        assert (gradient[~mask] == 0).all()
        assert (gradient[mask] != 0).any()

    def test_wrong_arguments(self) -> None:
        with pytest.raises(
            ValueError,
            match=r"sequence must be \(B, n > 0, D\) of floats, got .* \(7, 4\)",
        ):
            self_weighted_pooling(sequences()[0])
        with pytest.raises(ValueError, match=r"mask must be bool \(B, n\) = \(3, 7\)"):
            self_weighted_pooling(sequences(), torch.ones(3, 7))
        with pytest.raises(ValueError, match="without members"):
            self_weighted_pooling(sequences(), torch.zeros(3, 7, dtype=torch.bool))
        with pytest.raises(ValueError, match="steps must be at least 0, got -1"):
            SelfWeightedPooling(-1)
