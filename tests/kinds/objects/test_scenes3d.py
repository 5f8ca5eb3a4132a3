"""Scenes in three dimensions, drawn small and few."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from torchcaps_lab.data import Scenes3D
from torchcaps_lab.testing import check_dataset


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that scenes are kept in."""
    pytest.importorskip("pybullet")
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    return tmp_path


def few(**changes: Any) -> Scenes3D:
    return Scenes3D(**{"size": 32, "count": 20, "tests": 6, **changes})


def test_what_every_data_set_keeps(kept: Path) -> None:
    check_dataset(few())


def test_each_thing_is_seen(kept: Path) -> None:
    for data, numbers in ((few(), (3, 6)), (few(least=7, most=8), (7, 8))):
        for labels in data.test.labels:
            sizes = torch.bincount(labels.flatten().long())
            assert numbers[0] <= len(sizes) - 1 <= numbers[1]
            assert sizes.min() >= 0.003 * labels.numel()


def test_the_same_pictures_drawn_again(kept: Path) -> None:
    expected = few().test.inputs.clone()
    kept_file = next(kept.rglob("*.npy"))
    kept_file.unlink()
    assert few(seed=7).test.inputs.equal(expected)


@pytest.mark.parametrize(
    "changes",
    [{"meshes": "unseen"}, {"camera": "other"}, {"floor": "textured"}],
    ids=lambda changes: next(iter(changes)),
)
def test_other_scenes(kept: Path, changes: dict[str, str]) -> None:
    assert not few(**changes).test.inputs.equal(few().test.inputs)


def test_a_plain_floor_has_one_colour_but_for_shadows(kept: Path) -> None:
    for floor, plain in (("plain", True), ("textured", False)):
        test = few(floor=floor).test
        for image, labels in zip(test.inputs, test.labels, strict=True):
            pixels = image[:, labels == 0].float()
            same = (pixels - pixels.median(1, keepdim=True)[0]).abs().amax(0) < 4
            assert (same.float().mean() > 0.6) == plain


def test_without_pybullet_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pybullet", None)
    with pytest.raises(ModuleNotFoundError, match=r"torchcaps-lab\[scenes3d\]"):
        few().load_test()
