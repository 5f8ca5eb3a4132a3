"""Children that are not there leave no trace."""

import pytest
import torch
from ops_cases import close
from torch import Tensor

from tests.random_numbers import normal
from torchcaps.ops import Competition, Gaussian, InnerProduct, Similarity, Votes

B = 2
I = 6
J = 3
M = 2
P = 2
D = 3
THERE = torch.tensor([0, 2, 3, 5])
BACKENDS = pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
SIMILARITIES = pytest.mark.parametrize("name", ["uniform", "inner", "gaussian"])


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 5 * J * M * D)


def mask() -> Tensor:
    present = torch.zeros(B, I, dtype=torch.bool)
    present[:, THERE] = True
    return present


def similarity(name: str) -> Similarity | None:
    mean = normal(B, J, M * D, seed=3)
    precision = normal(B, J, M * D, seed=4).exp()
    return {
        "uniform": None,
        "inner": InnerProduct(mean),
        "gaussian": Gaussian(mean, precision, normal(B, J, seed=5)),
    }[name]


@BACKENDS
@SIMILARITIES
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scatter", [False, True])
@pytest.mark.parametrize("leaky", [False, True])
def test_masked_out_is_left_out(
    backend: str, name: str, weighted: bool, scatter: bool, leaky: bool
) -> None:
    children = normal(B, I, M, P)
    transforms = normal(I, J, P, D, seed=1)
    weights = normal(B, I, seed=2).sigmoid()
    children[~mask()] = torch.nan
    weights[~mask()] = torch.nan

    def results(
        children: Tensor, transforms: Tensor, weights: Tensor, given: Tensor | None
    ) -> dict[str, Tensor]:
        leaves = [
            tensor.clone().requires_grad_()
            for tensor in (children, transforms, weights)
        ]
        votes = Votes(
            *leaves[:2],
            competition=Competition(leaky=leaky),
            backend=backend,
            mask=given,
        )
        moments = votes.moments(
            similarity(name), leaves[2] if weighted else None, scatter=scatter
        )
        outputs = {
            name: tensor
            for name, tensor in moments._asdict().items()
            if tensor is not None
        }
        outputs["assignment"] = votes.assignment(similarity(name))
        objective = sum((tensor.sin()).sum() for tensor in outputs.values())
        gradients = torch.autograd.grad(
            objective, leaves, materialize_grads=True, allow_unused=True
        )
        return outputs | dict(
            zip(("dchildren", "dtransforms", "dweights"), gradients, strict=True)
        )

    expected = results(
        children[:, THERE],
        transforms[THERE],
        weights[:, THERE],
        None,
    )
    actual = results(children, transforms, weights, mask())
    for key in ("assignment", "dchildren", "dweights"):
        assert not actual[key][~mask()].any(), key
        actual[key] = actual[key][:, THERE]
    away = torch.ones(I, dtype=torch.bool)
    away[THERE] = False
    assert not actual["dtransforms"][away].any()
    actual["dtransforms"] = actual["dtransforms"][THERE]
    close(actual, expected, 1e-10)


@BACKENDS
def test_each_row_has_its_own(backend: str) -> None:
    children = normal(B, I, M, P)
    transforms = normal(I, J, P, D, seed=1)
    present = torch.tensor(
        [[True, False, True, False, True, True], [False, True, True, True, False, True]]
    )
    votes = Votes(children, transforms, backend=backend, mask=present)
    gaussian = similarity("gaussian")
    moments = votes.moments(gaussian, scatter=True)
    assert votes.count.tolist() == [[4], [4]]
    for row in range(B):
        index = present[row].nonzero().squeeze(1)
        alone = Votes(
            children[row : row + 1, index], transforms[index], backend=backend
        )
        of_row = Gaussian(*(tensor[row : row + 1] for tensor in gaussian.tensors))
        expected = alone.moments(of_row, scatter=True)
        for name, tensor in expected._asdict().items():
            torch.testing.assert_close(
                getattr(moments, name)[row], tensor[0], rtol=1e-10, atol=1e-12
            )


@BACKENDS
def test_in_windows(backend: str) -> None:
    """The mask is of the children; each window takes its own part of it."""
    sites = torch.tensor([[0, 1, 2, 3], [2, 3, 4, 5]], dtype=torch.int32)
    children = normal(B, I, M, P)
    transforms = normal(4, J, P, D, seed=1)
    children[~mask()] = torch.nan
    votes = Votes(children, transforms, sites=sites, backend=backend, mask=mask())
    moments = votes.moments()
    assignment = votes.assignment()
    assert votes.count.tolist() == [[3], [3]] * B
    dense = Votes(
        children.nan_to_num(), transforms, sites=sites, backend="naive"
    ).dense()
    inside = mask()[:, sites.long()].flatten(0, 1).double()
    torch.testing.assert_close(assignment, inside[..., None].expand(-1, -1, J) / J)
    torch.testing.assert_close(
        moments.sum, torch.einsum("bi,bijh->bjh", inside, dense) / J
    )


@BACKENDS
def test_nobody_is_there(backend: str) -> None:
    children = torch.full((B, I, M, P), torch.nan).double().requires_grad_()
    votes = Votes(
        children,
        normal(I, J, P, D),
        backend=backend,
        mask=torch.zeros(B, I, dtype=torch.bool),
    )
    moments = votes.moments(similarity("gaussian"), scatter=True)
    assert not any(tensor.any() for tensor in moments)
    (gradient,) = torch.autograd.grad((moments.mean + moments.variance).sum(), children)
    assert not gradient.any()


def test_without_a_mask_all_are_there() -> None:
    votes = Votes(normal(B, I, M, P), normal(I, J, P, D))
    assert votes.count == I
    assert votes.present(None) is None


@pytest.mark.parametrize(
    "wrong", [torch.ones(B, I), torch.ones(B, I + 1, dtype=torch.bool)]
)
def test_refused(wrong: Tensor) -> None:
    with pytest.raises(
        ValueError,
        match=r"mask must be bool \(N, G\) = \(2, 6\), got torch\..* \(2, [67]\)",
    ):
        Votes(normal(B, I, M, P), normal(I, J, P, D), mask=wrong)
