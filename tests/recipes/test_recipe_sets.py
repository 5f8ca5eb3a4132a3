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
    found = sets.read_graphs(folder)
    assert found.labels.tolist() == [0, 1, 0]
    assert found.present.tolist() == [
        [True] * 3,
        [True, False, False],
        [True, True, False],
    ]
    assert found.elements[0].tolist() == [[1, 0], [0, 1], [1, 0]]
    assert found.edges is not None
    assert found.edges[0].tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    assert not found.edges[1].any()  # one node
    (folder / "Three_node_attributes.txt").write_text(ATTRIBUTES)
    moved = sets.read_graphs(folder).elements
    assert moved.shape == (3, 3, 4)
    torch.testing.assert_close(moved[..., 2:].sum(1), torch.zeros(3, 2))
    torch.testing.assert_close(moved[1, 0, 2:], torch.zeros(2))
    torch.testing.assert_close(
        moved[found.present][:, 2:].square().mean(0), torch.ones(2)
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
    found = sets.shapes(2, seed=5, points=32, astray=0.1)
    assert found.elements.shape == (2 * len(sets.SHAPES), 32, 3)
    assert found.labels.bincount().tolist() == [2] * len(sets.SHAPES)
    torch.testing.assert_close(
        found.elements.mean(1), torch.zeros(len(found.labels), 3), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(
        found.elements.square().sum(2).mean(1), torch.ones(len(found.labels))
    )
    torch.testing.assert_close(
        sets.shapes(2, seed=5, points=32, astray=0.1).elements, found.elements
    )
    assert not torch.allclose(
        sets.shapes(2, seed=6, points=32, astray=0.1).elements, found.elements
    )


@pytest.mark.thorough
def test_a_smoke_run_tells_rings_from_paths(smoke) -> None:
    ours = smoke("sets").ours
    assert ours["MUTAG: capsules, 3 steps", sets.ACCURACY] > 80
    assert ours["MUTAG: sum pooling", sets.ACCURACY] > 80
