"""What is read of objects, and in which order."""

import torch
from torch.nn.functional import one_hot

from recipes import read_outs
from recipes.read_outs import COLOUR, PLACE, SHAPE, Properties
from torchcaps_lab.kinds.objects.published import fixed_tetrominoes, painted
from torchcaps_lab.kinds.objects.sets import ObjectSet, slot_names


def test_properties_of_each_shape_at_the_edge_of_the_picture() -> None:
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
    properties = read_outs.properties_of(ObjectSet(images, labels, slot_names(2)))
    assert properties.shape[:, 0].tolist() == list(range(len(shapes)))
    assert properties.colour.unique().tolist() == [1]
    pixels = 35 + torch.tensor(middle)
    torch.testing.assert_close(properties.place[:, 0], 2 * pixels / 34 - 1)


def test_answers_in_any_order_are_matched_to_their_objects() -> None:
    generator = torch.Generator().manual_seed(0)
    true = Properties(
        torch.rand(4, 3, 2, generator=generator),
        torch.randint(6, (4, 3), generator=generator),
        torch.randint(17, (4, 3), generator=generator),
    )
    logits = [9.0 * one_hot(true.colour, 6), 9.0 * one_hot(true.shape, 17)]
    answers = torch.cat([true.place, *logits], -1)
    order = torch.rand(4, 3, generator=generator).argsort(1)
    shuffled = answers.gather(1, order[..., None].expand_as(answers))
    matched = read_outs.in_order(shuffled, true)
    torch.testing.assert_close(matched, answers)
    figures = read_outs.figures_of(matched, true)
    assert figures == {PLACE: 100.0, COLOUR: 100.0, SHAPE: 100.0}
