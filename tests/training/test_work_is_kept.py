"""Whatever ends a training, its newest whole checkpoint is there to go on from."""

import contextlib
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runs import CPU, FEW, learner
from torchcaps.whole import UNFINISHED, write_whole, written_whole
from torchcaps_lab.data import Changes, Examples, TextSet, Words
from torchcaps_lab.options.declarations import Schedule
from torchcaps_lab.run_folder import RunFolder
from torchcaps_lab.training.checkpoints import (
    Fingerprint,
    WholeCheckpoints,
    checkpoint_to_resume,
    is_whole,
    newest_checkpoint,
    read_checkpoint,
)
from torchcaps_lab.training.fitting import Fitting
from torchcaps_lab.training.learner import Learner


def trained(
    folder: Path, epochs: int = 1, images: Examples = FEW, **schedule: int
) -> Learner:
    trained_learner = learner()
    Fitting(
        trained_learner,
        images,
        images,
        folder,
        Schedule(epochs=epochs, **{"batch_size": 16, **schedule}),
        CPU,
    ).run()
    return trained_learner


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("checkpoint")
    trained(folder)
    return (folder / "checkpoints" / "epoch00000.ckpt").read_bytes()


def test_every_flipped_byte_and_every_cut_is_found(
    checkpoint: bytes, tmp_path: Path
) -> None:
    """Or it is one between the parts of the file, which says nothing."""
    path = tmp_path / "epoch00000.ckpt"
    path.write_bytes(checkpoint)
    assert is_whole(path)
    weights = read_checkpoint(path)["state_dict"]
    generator = torch.Generator().manual_seed(0)
    for place in torch.randint(len(checkpoint), (60,), generator=generator).tolist():
        path.write_bytes(
            checkpoint[:place]
            + bytes([checkpoint[place] ^ 1])
            + checkpoint[place + 1 :]
        )
        if is_whole(path):
            with contextlib.suppress(ValueError):
                read = read_checkpoint(path)["state_dict"]
                assert all(torch.equal(read[name], weights[name]) for name in weights)
        path.write_bytes(checkpoint[:place])
        assert not is_whole(path), place


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("epoch", "one"),
        ("epoch", -1),
        ("epoch", None),
        ("state_dict", [1]),
        ("callbacks", ["a"]),
        ("loops", {"fit_loop": 1}),
        ("optimizer_states", "none"),
        ("pytorch-lightning_version", "one"),
    ],
)
def test_whole_checkpoints_of_other_content_are_refused_by_name(
    checkpoint: bytes, name: str, content: object, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"epoch00000\.ckpt (is|cannot)"):
        resumed(checkpoint, lambda state: {**state, name: content}, tmp_path)


def resumed(
    checkpoint: bytes, change: Callable[[dict[str, Any]], object], folder: Path
) -> None:
    """Resumes from a whole checkpoint whose content was changed."""
    path = folder / "checkpoints" / "epoch00000.ckpt"
    path.parent.mkdir()
    path.write_bytes(checkpoint)
    torch.save(change(torch.load(path, weights_only=True)), path)
    trained(folder, epochs=2)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("exp_avg", torch.zeros(1)),
        ("exp_avg_sq", torch.zeros(0)),
        ("step", torch.zeros(0)),
        ("lr", [1]),
        ("betas", (0.9, "x")),
        ("amsgrad", "yes"),
    ],
)
def test_a_fused_step_reads_no_more_than_a_checkpoint_holds(
    checkpoint: bytes, name: str, content: object, tmp_path: Path
) -> None:
    """Without a check it ended the process, or read what lay beside the state."""

    def change(state: dict[str, Any]) -> dict[str, Any]:
        [optimizer] = state["optimizer_states"]
        for owner in (optimizer["param_groups"][0], optimizer["state"][0]):
            if name in owner:
                owner[name] = content
        return state

    with pytest.raises(ValueError, match=rf"epoch00000\.ckpt cannot .*{name} of the"):
        resumed(checkpoint, change, tmp_path)


def test_changed_texts_are_told_as_texts() -> None:
    """Other words may change the network, too: the texts are what is named."""
    texts = ["a cat", "a dog", "one cat", "one dog"]

    def fingerprint(texts: list[str]) -> Fingerprint:
        labels = torch.tensor([0, 1, 0, 1])
        some = TextSet.of(texts, labels, ("cat", "dog"), Words.of(texts))
        return Fingerprint({}, some, some)

    before, now = fingerprint(texts), fingerprint([*texts[:3], "another dog"])
    checkpoint = {"callbacks": {before.state_key: before.state_dict()}}
    with pytest.raises(ValueError, match="the texts or their labels are others"):
        now.check(checkpoint, allow_changes=False)
    assert Changes(changed=("a.txt",), things="texts").lines() == (
        "1 text changed since the training: a.txt",
    )
    assert Changes(changed=("a", "b"), things="series").lines() == (
        "2 series changed since the training: a, b",
    )


def test_the_older_one_is_used_where_the_newest_is_damaged(tmp_path: Path) -> None:
    unbroken = trained(tmp_path / "whole", epochs=3)
    trained(tmp_path / "broken", epochs=1)
    older = (tmp_path / "broken" / "checkpoints" / "epoch00000.ckpt").read_bytes()
    trained(tmp_path / "broken", epochs=2)
    newest = tmp_path / "broken" / "checkpoints" / "epoch00001.ckpt"
    content = bytearray(newest.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 99] = bytes(99)
    newest.write_bytes(content)
    newest.with_name("epoch00000.ckpt").write_bytes(older)
    newest.with_name(f"epoch00002.ckpt{UNFINISHED}").write_bytes(b"half of one")
    with pytest.warns(
        UserWarning,
        match=r"epoch00001\.ckpt is damaged: the one before it is used, epoch00000",
    ):
        resumed = trained(tmp_path / "broken", epochs=3)
    for name, tensor in unbroken.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
    newest = newest_checkpoint(RunFolder(tmp_path / "broken").checkpoints)
    assert newest is not None
    assert list(newest.parent.iterdir()) == [newest]
    newest.write_bytes(newest.read_bytes()[:-1])
    assert newest_checkpoint(RunFolder(tmp_path / "broken").checkpoints) is None


def test_a_full_disk_leaves_the_older_checkpoint(
    checkpoint: bytes, tmp_path: Path
) -> None:
    """A limit on the size of files is as good as a full disk: the write fails in the
    middle.
    """
    path = tmp_path / "epoch00000.ckpt"
    path.write_bytes(checkpoint)
    child = multiprocessing.get_context("fork").Process(
        target=_save_with_little_space, args=(tmp_path,)
    )
    child.start()
    child.join()
    assert child.exitcode == 7, "OSError that names the file"
    assert newest_checkpoint(tmp_path) == path
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "moment", ["torch.save", "os.fsync", "pathlib.Path.replace", "pathlib.Path.unlink"]
)
def test_a_kill_at_any_moment_of_writing(
    moment, checkpoint, tmp_path, monkeypatch
) -> None:
    (tmp_path / "epoch00000.ckpt").write_bytes(checkpoint)
    child = multiprocessing.get_context("fork").Process(
        target=_save_and_die, args=(tmp_path, moment)
    )
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    actual = checkpoint_to_resume(tmp_path)
    assert actual is not None
    assert torch.load(actual, weights_only=True)
    assert [file.name for file in tmp_path.iterdir()] == [actual.name]


def test_options_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("old")

    def fail() -> None:
        with written_whole(tmp_path / "config.yaml") as part:
            part.write_text("ne")
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        fail()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "config.yaml": "old"
    }
    write_whole(tmp_path / "config.yaml", "new")
    assert (tmp_path / "config.yaml").read_text() == "new"


def test_a_kill_before_anything_was_written_leaves_the_folder_free(
    tmp_path: Path,
) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / f"config.yaml{UNFINISHED}").write_text("data: Dig")
    with RunFolder(tmp_path).unused().opened("data: Digits", resumed=False):
        assert not list(tmp_path.glob(f"*{UNFINISHED}"))
    with pytest.raises(FileExistsError, match="exists already"):
        RunFolder(tmp_path).unused()


def test_one_process_a_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(folder, ready))
    holder.start()
    assert ready.wait(30)
    with (
        pytest.raises(BlockingIOError, match=r"another process trains in .*run"),
        folder.opened("", resumed=True),
    ):
        pass
    of_a_recipe = RunFolder(folder.path, "--runs")
    with (
        pytest.raises(BlockingIOError, match=r"or choose another --runs$"),
        of_a_recipe.opened("", resumed=True),
    ):
        pass
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    with folder.opened("", resumed=True):  # a dead process holds nothing
        pass
    with (
        pytest.raises(FileExistsError, match="another process has begun"),
        folder.opened("", resumed=False),
    ):
        pass


def _save_with_little_space(folder: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    try:
        WholeCheckpoints(folder).save_checkpoint(
            {"state_dict": {"a": torch.zeros(10_000)}}, folder / "epoch00001.ckpt"
        )
    except OSError as error:
        os._exit(7 if "epoch00001.ckpt" in str(error) else 8)
    os._exit(9)


def _save_and_die(folder: Path, moment: str) -> None:
    module, _, name = moment.rpartition(".")
    owner = {"torch": torch, "os": os, "pathlib.Path": Path}[module]
    original = getattr(owner, name)

    def die(*arguments: object, **named: object) -> None:
        if name == "save":
            Path(arguments[1]).write_bytes(b"PK half of it")
        if name == "unlink":
            original(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, die)
    WholeCheckpoints(folder).save_checkpoint(
        {"state_dict": {"a": torch.zeros(10)}}, folder / "epoch00001.ckpt"
    )
    WholeCheckpoints(folder).remove_checkpoint(folder / "epoch00000.ckpt")
    (folder / "epoch00000.ckpt").unlink(missing_ok=True)


def _hold(folder: RunFolder, ready: object) -> None:
    with folder.opened("data: Digits", resumed=False):
        ready.set()
        signal.pause()
