"""Variational Bayes routing against the equations of Ribeiro et al. 2020."""

import math

import pytest
import torch
from by_the_book import (
    B,
    D,
    H,
    I,
    J,
    KernelEquations,
    M,
    P,
    normal,
    problem,
    routed_with,
)
from torch import Tensor
from torch.optim.swa_utils import update_bn

from torchcaps import CapsConv2d, CapsLinear, Capsules
from torchcaps.ops import Votes
from torchcaps.routing import (
    LayerShape,
    Routed,
    VariationalBayesRouting,
)
from torchcaps.routing.batch_norm import BatchStandard

BETAS = normal(J, seed=3), normal(J, seed=4)


def route(votes: Votes, a: Tensor, beta_u: Tensor, beta_a: Tensor) -> Routed:
    """Without the batch normalisations."""
    routing = VariationalBayesRouting()
    return routed_with(routing, votes, a, unit_cost=beta_u, activation_cost=beta_a)


def book(
    V: Tensor, a: Tensor, beta_u: Tensor, beta_a: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Algorithm 1, without the batch normalisations."""
    H = V.shape[-1]
    R = ln_p = torch.full(V.shape[:3], 1 / V.shape[2], dtype=V.dtype)
    for step in range(3):
        R = ln_p.softmax(2) if step > 0 else R
        r = a[..., None] * R
        mass = r.sum(1)
        m_bar = (r[..., None] * V).sum(1) / mass[..., None]
        kappa = 1 + mass
        nu = H + 1 + mass
        m = (mass / kappa)[..., None] * m_bar
        iPsi = (
            1
            + (r[..., None] * (V - m_bar[:, None]) ** 2).sum(1)
            + (mass / kappa)[..., None] * m_bar**2
        )
        ln_pi = torch.digamma(kappa) - torch.digamma(kappa.sum(-1, keepdim=True))
        ln_L = (
            sum(torch.digamma((nu - k) / 2) for k in range(H))
            + H * math.log(2)
            - iPsi.log().sum(-1)
        )
        distance = H / kappa[:, None] + nu[:, None] * (
            (V - m[:, None]) ** 2 / iPsi[:, None]
        ).sum(-1)
        ln_p = ln_pi[:, None] + ln_L[:, None] / 2 - distance / 2
    entropy = H / 2 * math.log(2 * math.pi * math.e) - ln_L / 2
    return m, (beta_a - ln_pi.exp() * entropy - beta_u).sigmoid(), R


class TestEquations(KernelEquations):
    route = staticmethod(route)
    book = staticmethod(book)
    parameters = BETAS


def test_densities_that_underflow() -> None:
    """Votes 1e4 away from all parents but one child's: exp(ln p) is 0 in float32 for
    all of them.
    """
    children, transforms, a = (tensor.float() for tensor in problem())
    routed = route(
        Votes(1e4 * children, transforms),
        a,
        torch.zeros(J),
        torch.zeros(J),
    )
    torch.testing.assert_close(routed.assignment.sum(2), torch.ones(B, I))
    assert routed.pose.isfinite().all()


def test_image_wide_in_a_convolution() -> None:
    """The assignment of a child adds up to 1 over all windows that see it; the first
    one is 1 / J in each of them.
    """
    torch.manual_seed(0)
    conv = CapsConv2d(
        2, J, (M, P), (M, D), 2, routing=VariationalBayesRouting(steps=2)
    ).double()
    children = Capsules(normal(B, 3, 3, 2, M, P), normal(B, 3, 3, 2, seed=1).sigmoid())
    routed = conv.route(children)
    sites = routed.votes.sites.long().flatten()
    total = (
        torch.zeros(B, 18)
        .double()
        .index_add(1, sites, routed.assignment.sum(2).reshape(B, -1))
    )
    torch.testing.assert_close(total, torch.ones(B, 18).double())
    first = (
        CapsConv2d(
            2,
            J,
            (M, P),
            (M, D),
            2,
            routing=VariationalBayesRouting(steps=1),
        )
        .double()
        .route(children)
    )
    torch.testing.assert_close(
        first.assignment, torch.full((4 * B, 8, J), 1 / J).double()
    )


class TestNormalisation:
    def test_after_a_long_training_it_is_torchs(self) -> None:
        ours = BatchStandard(J).double()
        ours.num_batches_tracked += 1000
        theirs = torch.nn.BatchNorm1d(J, affine=False).double()
        for batch in (normal(5, J, H), normal(6, J), normal(1, J, 2)):
            torch.testing.assert_close(ours(batch), theirs(batch))
        torch.testing.assert_close(ours.running_mean, theirs.running_mean)
        torch.testing.assert_close(ours.running_var, theirs.running_var)
        ours.eval(), theirs.eval()
        torch.testing.assert_close(ours(normal(5, J)), theirs(normal(5, J)))

    def test_update_bn_takes_the_mean_over_all_batches(self) -> None:
        ours = BatchStandard(J).double()
        theirs = torch.nn.BatchNorm1d(J, affine=False).double()
        batches = [normal(B, J, H, seed=seed) for seed in range(5)]
        for norm in (ours, theirs):
            update_bn(batches, norm)
        torch.testing.assert_close(ours.running_mean, theirs.running_mean)
        torch.testing.assert_close(ours.running_var, theirs.running_var)

    def test_one_number_alone(self) -> None:
        norm = BatchStandard(J).double()
        norm(normal(5, J))
        expected = (normal(1, J) - norm.running_mean) / (norm.running_var + 1e-5).sqrt()
        torch.testing.assert_close(norm(normal(1, J)), expected)

    def test_one_statistic_for_each_parent(self) -> None:
        routing = (
            VariationalBayesRouting().bind(LayerShape(I, J, (M, P), (M, D))).double()
        )
        children, transforms, a = problem()
        routed = routing(Votes(children, transforms), a)
        torch.testing.assert_close(routed.pose.mean((0, 2)), torch.zeros(J).double())
        plain = route(Votes(children, transforms), a, *torch.zeros(2, J).double())
        torch.testing.assert_close(
            routed.pose, torch.nn.BatchNorm1d(J, affine=False).double()(plain.pose)
        )
        standard = torch.nn.BatchNorm1d(J, affine=False).double()(
            plain.activation.logit()
        )
        torch.testing.assert_close(routed.activation, standard.sigmoid())


@pytest.mark.parametrize("training", [False, True])
def test_an_example_alone_without_running_values_is_refused(training: bool) -> None:
    layer = CapsLinear(6, 3, 4, 4, routing="variational_bayes").train(training)
    torch.func.replace_all_batch_norm_modules_(layer)
    with pytest.raises(ValueError, match=r"at least two, got one, in \(1, 3\)\. Give"):
        layer(torch.randn(1, 6, 4))
    assert layer(torch.randn(0, 6, 4)).pose.shape == (0, 3, 4)
