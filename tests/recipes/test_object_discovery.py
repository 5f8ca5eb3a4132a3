"""Objects without labels: K-Means beside slots, and what the rows of the recipe are."""

import pytest
import torch

from recipes import RECIPES, Line
from recipes.object_discovery import (
    FIXED,
    MORE,
    OF_PIXELS,
    Clustering,
    PixelClusters,
    best_clusters,
    enlarged,
    objects_found,
    soft_kmeans,
)
from torchcaps_lab.data import Shapes
from torchcaps_lab.tasks import create_task

RECIPE = RECIPES["object-discovery"]


def lines_of(row: str) -> dict[str, Line]:
    return {line.measure: line for line in RECIPE.lines if line.row == row}


def test_kmeans_finds_clusters_that_are_far_apart() -> None:
    centres = torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
    points = centres.repeat_interleave(10, 0) + 0.1 * torch.randn(30, 2)
    cluster = soft_kmeans(points[None], 3, 1.0).argmax(2).view(3, 10)
    assert (cluster == cluster[:, :1]).all(1).sum() >= 2  # a bad start may join two


def test_kmeans_shares_every_point_out() -> None:
    shares = soft_kmeans(torch.randn(2, 20, 3), 4, 0.5)
    torch.testing.assert_close(shares.sum(2), torch.ones(2, 20))


def test_shares_of_coarse_places_are_those_of_their_pixels() -> None:
    left = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0])  # three rows of two places
    shares = torch.stack([left, 1 - left], 1)[None]
    slots = enlarged(shares, 6, 4)
    assert slots.tolist() == [[[0, 0, 1, 1]] * 6]


def test_two_halves_are_drawn_in_their_colours() -> None:
    image = torch.zeros(1, 3, 4, 6)
    image[:, 0, :, 3:] = 1.0
    network = PixelClusters((3, 4, 6), 2, Clustering(0.5, 30.0))
    prediction = network(image)
    torch.testing.assert_close(prediction.reconstruction, image)
    assert prediction.masks.sum(1).eq(1).all()
    assert prediction.masks[0, 0, 0, 0] != prediction.masks[0, 0, 0, 5]


def test_kmeans_is_set_on_the_images_that_it_is_told() -> None:
    images = Shapes(count=20, tests=10).test
    task = create_task("objects")
    candidates = [PixelClusters((3, 32, 32), 6, how) for how in OF_PIXELS]
    chosen = best_clusters(task, candidates, images).how
    scores = {
        how: objects_found(task, PixelClusters((3, 32, 32), 6, how), images, MORE)[MORE]
        for how in OF_PIXELS
    }
    assert scores[chosen] == max(scores.values())
    assert max(scores.values()) > min(scores.values()) + 10


@pytest.mark.parametrize("row", RECIPE.rows)
def test_only_exchangeable_slots_are_tested_in_other_numbers(row: str) -> None:
    assert (MORE in lines_of(row)) == (row not in FIXED)


def test_published_figures_say_that_the_images_differ() -> None:
    published = [line for line in RECIPE.lines if line.published is not None]
    assert len(published) == 2
    assert all("other images" in line.source for line in published)
    assert all(line.elsewhere for line in published)
