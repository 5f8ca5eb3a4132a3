"""Children that are not there: nothing of them is in any result, whatever they hold."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.random_numbers import normal
from torchcaps import (
    CapsConv1d,
    CapsConv2d,
    CapsLinear,
    Capsules,
    ClassCaps,
    create_routing,
)

BACKENDS = pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
ROUTINGS = pytest.mark.parametrize("routing", ["dynamic", "kmeans", "euclidean", "em"])


def make_children(*sites: int) -> Capsules:
    return Capsules(normal(*sites, 2, 3), normal(*sites, seed=1).sigmoid())


def spoiled(children: Capsules, mask: Tensor) -> Capsules:
    """NaN where nobody is."""
    pose = children.pose.clone()
    activation = children.activation.clone()
    pose[~mask] = torch.nan
    activation[~mask] = torch.nan
    return Capsules(pose.requires_grad_(), activation.requires_grad_())


def results(
    layer: nn.Module, children: Capsules, *mask: Tensor
) -> tuple[Capsules, list[Tensor]]:
    """The parents, and the gradients of children and parameters."""
    children = Capsules(*(field.detach().requires_grad_() for field in children))
    parents = layer(children, *mask)
    total = (
        parents.pose * normal(*parents.pose.shape, seed=5)
    ).sum() + parents.activation.square().sum()
    inputs = [*children, *layer.parameters()]
    return parents, list(
        torch.autograd.grad(total, inputs, materialize_grads=True, allow_unused=True)
    )


def assert_without(
    layer: nn.Module, children: Capsules, there: Tensor, mask: Tensor
) -> None:
    """With a mask as with these children along the first axis of their sites alone."""
    expected, expected_gradients = results(
        layer, Capsules(children.pose[:, there], children.activation[:, there])
    )
    parents, gradients = results(layer, spoiled(children, mask), mask)
    torch.testing.assert_close(parents, expected, rtol=1e-9, atol=1e-11)
    for field in (0, 1):
        assert (gradients[field][~mask] == 0).all()
        gradients[field] = gradients[field][:, there]
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-8, atol=1e-10)


class TestLinear:
    @pytest.mark.parametrize("transforms", ["full", "shared"])
    @pytest.mark.parametrize("poses_alone", [False, True])
    def test_examples_differ(self, transforms: Any, poses_alone: bool) -> None:
        """Each example has children of its own; sites on several axes."""
        torch.manual_seed(0)
        layer = CapsLinear(6, 3, (2, 3), (2, 2), transforms=transforms).double()
        mask = torch.tensor([[[1, 0, 1], [1, 1, 0]], [[0, 0, 0], [1, 0, 1]]]).bool()
        children = make_children(2, 2, 3)
        broken = spoiled(children, mask)
        parents = layer(broken.pose if poses_alone else broken, mask)
        (parents.pose.sum() + parents.activation.sum()).backward()
        for gradient in (broken.pose.grad, layer.weight.grad):
            assert gradient.isfinite().all()
        assert (broken.pose.grad[~mask] == 0).all()
        for number in range(2):
            pose = children.pose[number : number + 1]
            masked = torch.where(
                mask[number, ..., None, None], pose, 0.0
            )  # no vote, and so no sum
            torch.testing.assert_close(
                parents.pose[number], layer(masked).pose[0], rtol=1e-9, atol=1e-12
            )

    def test_route_and_votes(self) -> None:
        layer = CapsLinear(4, 3, (2, 3), (2, 2)).double()
        mask = torch.tensor([[True, True, False, True]])
        children = spoiled(make_children(1, 4), mask)
        assert (layer.route(children, mask).assignment[:, 2] == 0).all()
        assert layer.votes(children, mask).dense().isfinite().all()

    @pytest.mark.parametrize(
        "mask",
        [torch.ones(1, 4), torch.ones(1, 3, dtype=torch.bool), torch.ones(4) > 0],
        ids=str,
    )
    def test_other_masks(self, mask: Tensor) -> None:
        for layer, children in (
            (
                CapsLinear(
                    4,
                    3,
                    (2, 3),
                    (2, 2),
                ).double(),
                make_children(1, 4),
            ),
            (
                CapsConv1d(
                    1,
                    3,
                    (2, 3),
                    (2, 2),
                    2,
                ).double(),
                make_children(1, 4, 1),
            ),
            (
                ClassCaps(
                    1,
                    3,
                    (2, 3),
                    (2, 2),
                    axes=1,
                ).double(),
                make_children(1, 4, 1),
            ),
        ):
            with pytest.raises(
                ValueError,
                match=r"mask must be bool \(1, 4.*one value for each child, got torch",
            ):
                layer(children, mask)
            with pytest.raises(TypeError, match="mask must be a tensor, got list"):
                layer(children, mask.tolist())


class TestClassCapsules:
    @BACKENDS
    @ROUTINGS
    def test_as_if_they_were_left_out(self, routing: str, backend: str) -> None:
        layer = ClassCaps(
            2,
            3,
            (2, 3),
            (2, 2),
            routing=create_routing(routing),
            coordinates=False,
            axes=1,
            backend=backend,
        ).double()
        present = torch.tensor([True, True, False, True, False])
        assert_without(
            layer, make_children(2, 5, 2), present, present[:, None].expand(2, 5, 2)
        )

    def test_places_stay_where_they_are(self) -> None:
        """Coordinates are those of the whole grid."""
        torch.manual_seed(0)
        layer = ClassCaps(2, 3, (2, 3), (2, 2), axes=1).double()
        mask = torch.tensor([False, True, True])[:, None].expand(1, 3, 2)
        votes = layer.route(spoiled(make_children(1, 3, 2), mask), mask).votes.dense()
        expected = layer.route(make_children(1, 3, 2)).votes.dense()
        torch.testing.assert_close(
            votes[:, 2:],
            expected[:, 2:],
            rtol=0,
            atol=0,
        )


class TestConvolution:
    @BACKENDS
    @ROUTINGS
    @pytest.mark.parametrize("competition", ["grid", "window"])
    def test_the_end_of_a_sequence(
        self, competition: Any, routing: str, backend: str
    ) -> None:
        """A sequence in a longer frame."""
        torch.manual_seed(0)
        layer = CapsConv1d(
            2,
            3,
            (2, 3),
            (2, 2),
            2,
            2,
            routing=create_routing(routing),
            competition=competition,
            backend=backend,
        ).double()
        present = torch.arange(10) < 6
        mask = present[:, None].expand(2, 10, 2)
        children = make_children(2, 10, 2)
        parents, gradients = results(layer, spoiled(children, mask), mask)
        expected = layer(Capsules(children.pose[:, :6], children.activation[:, :6]))
        for field, short in zip(parents, expected, strict=True):
            assert field.isfinite().all()
            torch.testing.assert_close(field[:, :3], short, rtol=1e-9, atol=1e-11)
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert (gradients[0][~mask] == 0).all()
        assert (gradients[1][~mask] == 0).all()
        out = layer.out_mask(mask)
        assert out.shape == (2, 5, 3)
        assert out[..., 0].tolist() == [[True] * 3 + [False] * 2] * 2

    def test_out_mask_goes_by_window(self) -> None:
        layer = CapsConv2d(
            4,
            6,
            (2, 3),
            (2, 2),
            (1, 2),
            padding=(0, 1),
        )
        mask = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
        # A type at one end, another one at the other.
        mask[0, 0, 0, 1] = mask[0, 0, 3, 2] = True
        expected = torch.zeros(1, 1, 5, 6, dtype=torch.bool)
        expected[0, 0, :2] = expected[0, 0, 3:] = True
        assert torch.equal(layer.out_mask(mask), expected)
        assert layer.out_mask(torch.ones_like(mask)).all()


@ROUTINGS
def test_texts_of_different_lengths(routing: str) -> None:
    """Two convolutions and class capsules over texts in one frame: each as it is
    alone.
    """
    torch.manual_seed(0)
    first_layer = CapsConv1d(
        2, 3, 4, 4, 3, routing=create_routing(routing), competition="window"
    ).double()
    two = CapsConv1d(
        3, 2, 4, 4, 2, 2, routing=create_routing(routing), competition="window"
    ).double()
    classes = ClassCaps(
        2, 3, 4, 4, routing=create_routing(routing), coordinates=False, axes=1
    ).double()
    lengths = (12, 8)
    children = Capsules(normal(2, 12, 2, 4), normal(2, 12, 2, seed=1).sigmoid())
    present = torch.arange(12) < torch.tensor(lengths)[:, None]
    mask = present[..., None].expand(2, 12, 2)
    middle = first_layer(children, mask)
    # A window that reaches beyond the end of a text is none of that text alone.
    inside = torch.arange(10) < torch.tensor(lengths)[:, None] - 2
    mask = inside[..., None].expand(2, 10, 3)
    top = two(middle, mask)
    inside = torch.arange(5) < (torch.tensor(lengths)[:, None] - 2) // 2
    parents = classes(top, inside[..., None].expand(2, 5, 2))
    for number, length in enumerate(lengths):
        alone = classes(
            two(
                first_layer(
                    Capsules(
                        *(field[number : number + 1, :length] for field in children)
                    )
                )
            )
        )
        torch.testing.assert_close(
            Capsules(*(field[number : number + 1] for field in parents)),
            alone,
            rtol=1e-9,
            atol=1e-12,
        )
