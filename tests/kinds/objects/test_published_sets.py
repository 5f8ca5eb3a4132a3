"""Tetrominoes and sprites: the facts of their published descriptions."""

import pytest
import torch

from torchcaps_lab.data import MultiDSprites, Scenes3D, Tetrominoes
from torchcaps_lab.kinds.objects.published import fixed_tetrominoes
from torchcaps_lab.testing import check_dataset


def test_what_every_data_set_keeps() -> None:
    check_dataset(Tetrominoes(count=20, tests=6))
    check_dataset(MultiDSprites(count=20, tests=6))


def test_slots_for_all_objects() -> None:
    """Of others, no data came: their labels were out of range."""
    with pytest.raises(ValueError, match="slots must be at least 4, got 3"):
        Tetrominoes(slots=3)
    for kind in (MultiDSprites, Scenes3D):
        with pytest.raises(ValueError, match="slots must be more than most, 6"):
            kind(most=6, slots=6)


def test_the_seventeen_tetrominoes() -> None:
    shapes = fixed_tetrominoes()
    assert len({tuple(map(tuple, shape.tolist())) for shape in shapes}) == 17
    for shape in shapes:
        assert shape.sum() == 4 * 25
        # A turn by a quarter is one of them, too.
        assert any(shape.rot90().equal(other) for other in shapes)


def test_three_whole_tetrominoes_of_six_colours_on_black() -> None:
    test = Tetrominoes(count=4, tests=40).test
    colours = set()
    for image, labels in zip(test.inputs, test.labels, strict=True):
        assert torch.bincount(labels.flatten().long()).tolist() == [925, 100, 100, 100]
        assert not image[:, labels == 0].any()
        for number in (1, 2, 3):
            pixels = image[:, labels == number].T.unique(dim=0)
            assert len(pixels) == 1
            colours.add(tuple(pixels[0].tolist()))
            rows, columns = torch.nonzero(labels == number, as_tuple=True)
            box = labels[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
            assert any((box == number).equal(shape) for shape in fixed_tetrominoes())
    assert len(colours) == 6


def test_sprites_have_one_colour_each_and_cover_one_another() -> None:
    test = MultiDSprites(count=20, tests=100).test
    numbers = [labels.unique().numel() - 1 for labels in test.labels]
    assert 1 <= min(numbers)
    assert max(numbers) == 5
    for image, labels in zip(test.inputs, test.labels, strict=True):
        for number in labels.unique():
            pixels = image[:, labels == number]
            assert (pixels == pixels[:, :1]).all()
