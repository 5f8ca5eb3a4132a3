"""Tiles smaller than the votes, so that what goes tile by tile meets more than one."""

import pytest


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 100)
