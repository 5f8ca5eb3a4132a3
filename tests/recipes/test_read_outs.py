"""What is read of objects, from which slots, and in which order."""

from typing import Any

import pytest
import torch
from torch.nn.functional import one_hot

from recipes import read_outs
from recipes.components import Otsu
from recipes.read_outs import COLOUR, PLACE, SHAPE, SIZE, TETROMINOES, Objects
from torchcaps_lab.data import MultiDSprites
from torchcaps_lab.kinds.objects.published import fixed_tetrominoes, painted
from torchcaps_lab.kinds.objects.sets import ObjectSet, slot_names


def test_objects_of_each_shape_at_the_edge_of_the_picture() -> None:
    shapes = fixed_tetrominoes()
    labels = torch.zeros(len(shapes), 35, 35, dtype=torch.uint8)
    middle = []
    for number, shape in enumerate(shapes):
        rows, columns = shape.shape
        labels[number, 35 - rows :, 35 - columns :] = shape
        down, across = torch.nonzero(shape, as_tuple=True)
        middle.append([down.float().mean() - rows, across.float().mean() - columns])
    green = torch.tensor([0, 255, 0], dtype=torch.uint8).expand(len(shapes), 1, 3)
    images = painted(labels, torch.zeros(len(shapes), 3).byte(), green)
    true = read_outs.true_objects(TETROMINOES, ObjectSet(images, labels, slot_names(2)))
    assert true.present.all()
    assert true.shape[:, 0].tolist() == list(range(len(shapes)))
    pixels = 35 + torch.tensor(middle)
    torch.testing.assert_close(true.values[:, 0, :2], 2 * pixels / 34 - 1)
    rest = torch.tensor([0, 1, 0, 10 / 35]).expand(len(shapes), -1)
    torch.testing.assert_close(true.values[:, 0, 2:], rest)


@pytest.fixture
def true() -> Objects:
    """Four images of up to three objects."""
    generator = torch.Generator().manual_seed(0)
    present = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 1, 0], [0, 0, 0]]).bool()
    return Objects(
        torch.rand(4, 3, 6, generator=generator),
        torch.randint(17, (4, 3), generator=generator),
        present,
    )


def answers_of(true: Objects, queries: int) -> torch.Tensor:
    """Perfect answers: the objects, shuffled among others that say that they are none."""
    B, K = true.present.shape
    there = torch.where(true.present, 9.0, -9.0)[..., None]
    answers = torch.cat([true.values, 99.0 * one_hot(true.shape, 17), there], -1)
    none = torch.full((B, queries - K, answers.shape[2]), -9.0)
    order = torch.rand(B, queries).argsort(1)[..., None]
    whole = torch.cat([answers, none], 1)
    return whole.gather(1, order.expand_as(whole))


def test_answers_in_any_order_are_matched_to_their_objects(true: Objects) -> None:
    answers = answers_of(true, 5).requires_grad_()
    assert read_outs.loss_of(answers, true).item() < 0.01
    there = true.present
    objects = true.at(there)
    values, logits, _ = read_outs.in_order(answers, true)[:, :3][there].split(
        (6, 17, 1), -1
    )
    torch.testing.assert_close(values, objects.values)
    figures = read_outs.figures_of(values, logits, objects)
    assert figures == {PLACE: 100.0, COLOUR: 100.0, SIZE: 100.0, SHAPE: 100.0}
    # The mean tells nothing, and one object too many costs.
    figures = read_outs.figures_of(objects.values.mean(0).expand(6, -1), None, objects)
    assert list(figures.values()) == pytest.approx([0.0] * 3, abs=1e-4)
    more = torch.cat([answers, answers[:1].expand(4, -1, -1)], 1)
    assert read_outs.loss_of(more, true).item() > 5


def test_true_slots_are_measured_as_they_are() -> None:
    images = MultiDSprites(count=20, tests=30).test
    labels = images.labels.long()

    class TrueSlots(Otsu):
        def inside(self, images: torch.Tensor) -> Any:
            # `connected` keeps numbers apart that touch.
            return labels

    slots = read_outs.slots_of(
        "multi-dsprites", TrueSlots(images.image_shape, 6), images
    )
    there = slots.measured.present
    # Regions of fewer than 15 pixels are none, and a sprite in two parts is two.
    assert there.float().mean() > 0.85 * slots.true.present.float().mean()
    assert not (there & ~slots.true.present).any()
    off = slots.measured.at(there).values - slots.true.at(there).values
    assert off.abs().amax(1).median() == 0
