import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from torchcaps_lab.data import (
    MNIST,
    Batch,
    DataSet,
    Digits,
    Examples,
    ImageFolder,
    create_dataset,
    find_data_dir,
    list_datasets,
    register_dataset,
    stratified_split,
)
from torchcaps_lab.data.base import DATASETS


def make_set(count: int = 20, classes: int = 2) -> Examples:
    images = (torch.arange(count * 12) % 256).to(torch.uint8).reshape(count, 1, 3, 4)
    names = tuple(f"class {i}" for i in range(classes))
    return Examples(
        images,
        torch.arange(count) % classes,
        names,
        tuple(f"{i}.png" for i in range(count)),
    )


class Fake(DataSet):
    """Twenty training images in two classes, four test images; it keeps account of what
    is read.
    """

    def __init__(self, validation: float = 0.1, seed: int = 0) -> None:
        super().__init__(validation, seed)
        self.read: list[str] = []

    def load_train(self) -> Examples:
        self.read.append("train")
        return make_set(20)

    def load_test(self) -> Examples:
        self.read.append("test")
        return make_set(4)


class FakeWithValidation(Fake):
    def load_validation(self) -> Examples:
        return make_set(6)


# Examples


def test_batch_holds_scaled_images_labels_and_indices() -> None:
    data = make_set()
    batch = data.__getitems__([7, 2])
    assert isinstance(batch, Batch)
    assert batch.inputs.dtype == torch.float32
    torch.testing.assert_close(
        batch.inputs, data.inputs[[7, 2]].double().div(255).float()
    )
    assert batch.labels.tolist() == [1, 0]
    assert batch.indices.tolist() == [7, 2]


def test_one_item_is_a_batch_of_one() -> None:
    example = make_set()[3]
    batch = make_set().__getitems__([3])
    assert example.inputs.shape == (1, 1, 3, 4)
    assert all(torch.equal(a, b) for a, b in zip(example[:4], batch[:4], strict=True))


def test_batches_are_all_images_in_their_order() -> None:
    actual = list(make_set(20).batches(8))
    assert [len(batch.inputs) for batch in actual] == [8, 8, 4]
    assert torch.cat([batch.indices for batch in actual]).tolist() == list(range(20))
    torch.testing.assert_close(
        torch.cat([batch.inputs for batch in actual]), make_set(20).inputs / 255
    )
    assert not list(make_set(0).batches(8))
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        next(make_set(20).batches(0))


def test_data_loader_fetches_batches_whole() -> None:
    data = make_set(10)
    batches = list(DataLoader(data, batch_size=4, collate_fn=lambda batch: batch))
    assert [len(batch.inputs) for batch in batches] == [4, 4, 2]
    assert torch.cat([batch.indices for batch in batches]).tolist() == list(range(10))
    assert torch.equal(torch.cat([batch.labels for batch in batches]), data.labels)


def test_subset_keeps_images_labels_and_files_together() -> None:
    data = make_set()
    part = data.subset(torch.tensor([5, 0, 8]))
    assert torch.equal(part.inputs, data.inputs[[5, 0, 8]])
    assert part.labels.tolist() == [1, 0, 0]
    assert part.files == ("5.png", "0.png", "8.png")
    assert part.classes == data.classes


def test_empty_subset_keeps_the_image_shape() -> None:
    part = make_set().subset(torch.empty(0, dtype=torch.int64))
    assert len(part) == 0
    assert part.image_shape == (1, 3, 4)
    assert part.files == ()


def test_subset_refuses_a_mask() -> None:
    with pytest.raises(ValueError, match="indices must be int64"):
        make_set(3).subset(torch.tensor([True, False, True]))


IMAGES = torch.zeros(2, 1, 3, 3, dtype=torch.uint8)
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("images", "labels", "files", "message"),
    [
        (
            IMAGES.float(),
            LABELS,
            None,
            r"inputs must be uint8 .* got torch.float32 \(2, 1, 3, 3\)",
        ),
        (
            IMAGES[:, 0],
            LABELS,
            None,
            r"inputs must be uint8 .* got torch.uint8 \(2, 3, 3\)",
        ),
        (IMAGES, LABELS.int(), None, "labels must be int64"),
        (
            IMAGES,
            LABELS[:1],
            None,
            r"labels must be int64 \(2,\).* got torch.int64 \(1,\)",
        ),
        (IMAGES, LABELS + 1, None, r"labels must lie in 0..1, .* from 1 to 2"),
        (IMAGES, LABELS - 1, None, r"labels must lie in 0..1, .* from -1 to 0"),
        (IMAGES, LABELS, ("one.png",), "files must name 2 files, .* got 1"),
    ],
)
def test_image_set_refuses_what_does_not_fit(
    images: torch.Tensor,
    labels: torch.Tensor,
    files: tuple[str, ...] | None,
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        Examples(images, labels, ("a", "b"), files)


# The split


@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    share=st.floats(0.001, 0.999),
    seed=st.integers(0, 2**32),
)
def test_split_is_a_stratified_partition(
    counts: list[int], share: float, seed: int
) -> None:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[
        torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    ]
    rest, held_out = stratified_split(labels, share, seed)
    assert sorted(rest.tolist() + held_out.tolist()) == list(range(len(labels)))
    assert rest.tolist() == sorted(rest.tolist())
    assert held_out.tolist() == sorted(held_out.tolist())
    for label, count in enumerate(counts):
        held = int((labels[held_out] == label).sum())
        if count == 1:
            assert held == 0
        else:
            assert 1 <= held <= count - 1
            assert abs(held - share * count) <= 1


def test_split_depends_on_the_seed_alone() -> None:
    labels = torch.arange(100) % 4
    first = stratified_split(labels, 0.25, seed=3)[1]
    torch.manual_seed(99)  # The global generator is neither read ...
    state = torch.get_rng_state()
    assert torch.equal(stratified_split(labels, 0.25, seed=3)[1], first)
    assert torch.equal(torch.get_rng_state(), state)  # ... nor moved.
    assert not torch.equal(stratified_split(labels, 0.25, seed=4)[1], first)


def test_share_zero_puts_nothing_aside() -> None:
    rest, held_out = stratified_split(torch.arange(10) % 2, 0, seed=0)
    assert rest.tolist() == list(range(10))
    assert held_out.numel() == 0


def test_a_subset_is_chosen_by_a_tensor() -> None:
    with pytest.raises(
        TypeError, match=r"indices must be a tensor, int64 \(M,\), got list"
    ):
        make_set().subset([0, 1])


@pytest.mark.parametrize("index", [1.5, [0, 1], [True, False], [], slice(2), "0", None])
def test_an_index_is_one_whole_number(index) -> None:
    with pytest.raises(
        TypeError, match=r"index must be one whole number, got .*__getitems__.*subset"
    ):
        make_set()[index]


def test_whole_numbers_of_any_kind_are_indices() -> None:
    image_set = make_set()
    for index in (np.int64(3), torch.tensor(3)):
        batch = image_set[index]
        assert batch.indices.tolist() == [3]
        assert batch.inputs.shape == (1, 1, 3, 4)


def test_a_negative_seed_is_one() -> None:
    assert len(Digits(seed=-1).validation) == len(Digits().validation)


def test_the_folder_of_data_sets_is_a_path(tmp_path) -> None:
    assert MNIST(tmp_path).data_dir == tmp_path
    with pytest.raises(
        ValueError, match="data_dir must be text or a path or null, got 5"
    ):
        MNIST(5)


@pytest.mark.parametrize("share", [-0.1, 1.0, 2.0, float("nan"), "0.1", None])
def test_share_out_of_range(share: float) -> None:
    with pytest.raises(ValueError, match=r"share must be a (share in|number)"):
        stratified_split(torch.tensor([0, 1]), share, seed=0)
    with pytest.raises(
        ValueError, match=r"validation must be a (share in \[0, 1\)|number), got"
    ):
        Fake(validation=share)


# DataSet


def test_test_images_are_read_only_when_asked_for_and_all_once() -> None:
    data = Fake()
    assert data.read == []
    assert len(data.train) + len(data.validation) + len(data.train) == 18 + 2 + 18
    assert data.read == ["train"]
    assert len(data.test) + len(data.test) == 8
    assert data.read == ["train", "test"]


def test_validation_images_of_the_source_are_used_instead_of_a_split() -> None:
    data = FakeWithValidation(validation=0.5)
    assert len(data.train) == 20
    assert len(data.validation) == 6


# Names and places


def test_datasets_by_name(tmp_path: Path) -> None:
    shipped = [
        name
        for name in list_datasets()
        if DATASETS[name].__module__.startswith("torchcaps_lab.")
    ]
    assert shipped == [
        "annotated",
        "cifar10",
        "digits",
        "fashion_mnist",
        "folder",
        "hub",
        "image_table",
        "masks",
        "mnist",
        "multi_dsprites",
        "picture_folder",
        "scenes_3d",
        "series",
        "shapes",
        "smallnorb",
        "tetrominoes",
        "text",
    ]
    digits = create_dataset("digits", validation=0.3, seed=5)
    assert isinstance(digits, Digits)
    assert (digits.validation_share, digits.seed) == (0.3, 5)
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").touch()
    assert isinstance(create_dataset("folder", root=str(tmp_path)), ImageFolder)


def test_unknown_dataset_lists_those_that_exist() -> None:
    hint = r"got 'cifar'; did you mean cifar10\?[\s\S]*annotated, cifar10, digits"
    with pytest.raises(ValueError, match=hint):
        create_dataset("cifar")


def test_a_name_is_given_once() -> None:
    with pytest.raises(
        ValueError, match="a data set named 'digits' exists already: Digits"
    ):
        register_dataset("digits")(Fake)
    assert isinstance(create_dataset("digits"), Digits)


def test_a_cell_that_defines_a_data_set_can_run_again() -> None:
    name, (first, second) = (
        "again-and-again",
        (type("Again", (Fake,), {}) for _ in range(2)),
    )
    try:
        for data in (first, second):
            register_dataset(name)(data)
        assert type(create_dataset(name)) is second
    finally:
        DATASETS.pop(name)


def test_data_dir_is_the_argument_then_the_variable_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert find_data_dir(None) == tmp_path / ".cache" / "torchcaps"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert find_data_dir(None) == tmp_path / "xdg" / "torchcaps"
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path / "variable"))
    assert find_data_dir(None) == tmp_path / "variable"
    assert find_data_dir("~/argument") == tmp_path / "argument"


@pytest.mark.parametrize("shape", [(9, 4, 6), (40, 3, 3), (3, 50, 50)])
def test_images_whose_pixels_have_classes_are_put_aside_whole(
    shape: tuple[int, ...],
) -> None:
    labels = torch.arange(math.prod(shape)).reshape(shape) % 3
    rest, aside = stratified_split(labels, 0.2, seed=0)
    assert sorted([*rest.tolist(), *aside.tolist()]) == list(range(shape[0]))
    assert len(aside) == max(1, round(0.2 * shape[0]))
