"""Data sets that Hugging Face ``datasets`` opens, from files of this machine."""

import io
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.kinds.images.folders import make_root
from torchcaps_lab.data import Hub, ImageFolder, create_dataset
from torchcaps_lab.testing import check_dataset

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    datasets.disable_progress_bars()


def pictures(count: int, start: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(start)
    return [
        random.integers(
            0,
            256,
            (6, 8, 3),
            dtype=np.uint8,
        )
        for _ in range(count)
    ]


def png(pixels: np.ndarray) -> bytes:
    packed = io.BytesIO()
    Image.fromarray(pixels).save(packed, "PNG")
    return packed.getvalue()


def table(count: int, start: int = 0, labels: list | None = None, **more: list):
    labels = [index % 2 for index in range(count)] if labels is None else labels
    features = {
        "img": datasets.Image(),
        "kind": datasets.ClassLabel(names=["wolf", "bear"]),
    }
    features |= {name: datasets.Value("string") for name in more}
    rows = {
        "img": [{"bytes": png(pixels)} for pixels in pictures(count, start)],
        "kind": labels,
        **more,
    }
    return datasets.Dataset.from_dict(
        rows,
        datasets.Features(features | {name: datasets.Value("string") for name in more}),
    )


def write(folder: Path, **splits) -> str:
    (folder / "data").mkdir(parents=True)
    for name, rows in splits.items():
        rows.to_parquet(folder / "data" / f"{name}-00000-of-00001.parquet")
    return str(folder)


def test_parquet_with_all_splits(tmp_path):
    path = write(
        tmp_path / "p", train=table(20), validation=table(6, 1), test=table(8, 2)
    )
    data = create_dataset("hub", path=path)
    assert data.classes == ("wolf", "bear")
    assert data.image_shape == (3, 6, 8)
    for part, count, start in (("train", 20, 0), ("validation", 6, 1), ("test", 8, 2)):
        images = getattr(data, part)
        expected = torch.from_numpy(np.stack(pictures(count, start))).permute(
            0, 3, 1, 2
        )
        assert torch.equal(images.inputs, expected)
        assert images.labels.tolist() == [index % 2 for index in range(count)]
        assert images.files == tuple(f"{part}/{index}" for index in range(count))
    assert data.notes() == ()


def test_what_is_missing_is_put_aside(tmp_path):
    path = write(tmp_path / "p", train=table(60))
    check_dataset(partial(Hub, path))
    data = Hub(path, size=4, channels=1)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [
        44,
        4,
        12,
    ]
    assert data.train.inputs.shape[1:] == (1, 4, 4)
    assert torch.equal(
        Hub(path, size=4, channels=1, memory=0).test.inputs, data.test.inputs
    )


def test_validation_images_are_reported_where_there_is_no_test(tmp_path):
    unlabelled = table(5, 2, labels=[-1] * 5)
    data = Hub(
        write(tmp_path / "p", train=table(20), validation=table(6, 1), test=unlabelled)
    )
    assert len(data.test) == 6
    assert "the validation images are used as the test" in data.notes()[0]
    assert "left out 5 files: it has no label: test/0" in data.notes()[1]


def test_a_folder_of_images_a_file_and_what_was_saved(tmp_path):
    root = make_root(tmp_path / "images", 6)
    folder = ImageFolder(str(root), test=0, validation=0)
    hub = Hub(str(root), test=0, validation=0)
    assert hub.classes == folder.classes
    assert torch.equal(hub.train.inputs, folder.train.inputs)
    path = write(tmp_path / "p", train=table(20))
    table(20).save_to_disk(tmp_path / "saved")
    expected = Hub(path).test.inputs
    assert torch.equal(
        Hub(f"{path}/data/train-00000-of-00001.parquet").test.inputs, expected
    )
    assert torch.equal(Hub(str(tmp_path / "saved")).test.inputs, expected)


def test_columns_are_named_where_they_are_doubtful(tmp_path):
    words = ["new" if index % 3 else "old" for index in range(20)]
    path = write(tmp_path / "p", train=table(20, age=words))
    assert Hub(path).classes == ("wolf", "bear")
    data = Hub(path, label="age", image="img", test=0, validation=0)
    assert data.classes == ("new", "old")
    assert data.train.labels.tolist() == [int(word == "old") for word in words]
    with pytest.raises(
        ValueError, match="label must be a column, one of img, kind, age, got 'colour'"
    ):
        _ = Hub(path, label="colour").train
    bare = write(tmp_path / "bare", train=table(20).remove_columns("kind"))
    with pytest.raises(
        ValueError,
        match="label must name the column of the labels, one of img: none could be it",
    ):
        _ = Hub(bare).train


def test_broken_images_are_told_or_left_out(tmp_path):
    rows = [{"bytes": png(pixels)} for pixels in pictures(20)]
    rows[3], rows[7] = {"bytes": b"hello"}, None
    broken = datasets.Dataset.from_dict(
        {"image": rows, "label": [index % 2 for index in range(20)]},
        datasets.Features(
            {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
        ),
    )
    path = write(tmp_path / "p", train=broken)
    with pytest.raises(
        ValueError,
        match=r"(?s)cannot read the image train/3: it is not an.*train/7: there is no",
    ):
        _ = Hub(path).train
    data = Hub(path, skip_broken=True)
    assert set(data.manifest().left_out) == {"train/3", "train/7"}
    assert len(data.train) + len(data.validation) + len(data.test) == 18


def test_the_parts_of_a_run_are_kept(tmp_path):
    before = Hub(write(tmp_path / "old", train=table(40)))
    manifest = before.manifest()
    fingerprint = before.fingerprint()
    later = Hub(
        write(
            tmp_path / "new",
            train=datasets.concatenate_datasets([table(40), table(10, 5)]),
        )
    )
    assert len(later.follow(manifest).added) == 10
    assert later.fingerprint() == fingerprint
    assert torch.equal(later.test.inputs, before.test.inputs)


def test_errors(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no training images with labels, only test"):
        _ = Hub(write(tmp_path / "p", test=table(5))).train
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"datasets cannot open .*empty"):
        _ = Hub(str(tmp_path / "empty")).train
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        ModuleNotFoundError,
        match=(
            r"data sets of the hub need datasets, which is not installed: pip install "
            r"'torchcaps-lab\[datasets\]'"
        ),
    ):
        _ = Hub("some/where").train
