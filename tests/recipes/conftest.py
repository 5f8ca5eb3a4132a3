"""One smoke run of each recipe, for all tests."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from recipes import run_recipe


class Smoke(NamedTuple):
    """A smoke run: the content of the result file, the figures by row and measure, and
    the folder of it all.
    """

    result: dict[str, Any]
    ours: dict[tuple[str, str], float]
    folder: Path

    @property
    def facts(self) -> dict[str, dict[str, Any]]:
        return self.result["facts"][0]


@pytest.fixture(scope="session")
def run_smoke(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Smoke]:
    """Runs the smoke preset; all recipes share the folder, and so their networks."""
    folder = tmp_path_factory.mktemp("recipes")

    def run(name: str) -> Smoke:
        if name == "scenes-3d":
            pytest.importorskip("pybullet")
        paths = {"runs": folder / "runs", "results": folder / "results"}
        result = run_recipe(name, "smoke", **paths, trainer={"accelerator": "cpu"})
        ours = {
            (row["row"], row["measure"]): row["ours"][0]
            for row in result["rows"]
            if row["ours"]
        }
        return Smoke(result, ours, folder)

    return run


@pytest.fixture(scope="session")
def smoke(run_smoke: Callable[[str], Smoke]) -> Callable[[str], Smoke]:
    """The smoke run of a recipe, made once."""
    return cache(run_smoke)
