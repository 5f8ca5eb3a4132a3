"""A run writes and deletes only below its own folder, whatever the links in it lead
to.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from torchcaps.whole import UNFINISHED, owned, write_whole, written_whole
from torchcaps_lab.cli import main
from torchcaps_lab.report import write_page
from torchcaps_lab.run_folder import RunFolder
from torchcaps_lab.training.command_line import training_options
from torchcaps_lab.training.run import train_with

OPTIONS: dict[str, Any] = {
    "data": {"name": "Digits"},
    "model": "capsnet_digits",
    "model_args": {"channels": 4, "types": 2, "decoder_hidden": None},
    "routing": {"name": "dynamic", "steps": 1},
    "optimizer": "Adam",
    "epochs": 1,
    "batch_size": 512,
    "report": False,
    "trainer": {
        "accelerator": "cpu",
        "devices": 1,
        "extra": {"limit_train_batches": 1},
    },
}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Any:
    """A folder with files of the names that a run has; at the end it is as it was."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    for name in (
        "index.html",
        "epoch00000.ckpt",
        "confusion_matrix.png",
        "config.json",
        "config.yaml",
        f"a{UNFINISHED}",
    ):
        (place / name).write_text("precious")
    before = sorted(place.iterdir())
    yield place
    assert sorted(place.iterdir()) == before
    assert {path.read_text() for path in before} == {"precious"}


def train(folder: Path, **more: Any) -> None:
    train_with(
        RunFolder(folder), training_options({**OPTIONS, **more, "run": str(folder)})
    )


WRITTEN = ("checkpoints", "report", "model", "tensorboard")


@pytest.mark.parametrize("name", WRITTEN)
def test_a_run_with_a_linked_folder_is_refused_before_anything_is_written(
    tmp_path: Path, elsewhere: Path, name: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / name).symlink_to(elsewhere)
    with pytest.raises(
        ValueError, match=rf"run/{name} is a link to .*/elsewhere, outside .*/run"
    ):
        train(run)
    assert [path.name for path in run.iterdir()] == [name]


@pytest.mark.parametrize(
    "name",
    [
        ".lock",
        "metrics.csv",
        "summary.json",
        "data.json",
        "checkpoints/epoch00000.ckpt",
        "model/model.safetensors",
        "report/index.html",
        "report/confusion_matrix.png",
    ],
)
def test_a_linked_file_is_refused(tmp_path: Path, elsewhere: Path, name: str) -> None:
    path = tmp_path / "run" / name
    path.parent.mkdir(parents=True)
    path.symlink_to(elsewhere / "config.json")
    with pytest.raises(
        ValueError,
        match=rf"run/{name} is a link to .*/elsewhere/config\.json, outside .*/run",
    ):
        train(tmp_path / "run")


def test_the_folder_of_a_run_may_be_reached_through_links(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    train(tmp_path / "runs" / "a")
    (tmp_path / "b").symlink_to(tmp_path / "disk" / "a")
    (tmp_path / "disk" / "a" / "photos").symlink_to(
        tmp_path
    )  # nothing is written there
    (tmp_path / "disk" / "a" / "checkpoints" / "last").symlink_to("epoch00000.ckpt")
    train(tmp_path / "b")
    assert (tmp_path / "disk" / "a" / "model").is_dir()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step."""
    folder = tmp_path_factory.mktemp("runs") / "a"
    train(folder)
    return folder


class TestFinished:
    """Commands on a run that ended."""

    @pytest.fixture
    def run(self, tmp_path: Path, finished: Path) -> Path:
        return Path(shutil.copytree(finished, tmp_path / "run"))

    @pytest.mark.parametrize(
        ("name", "command"),
        [
            ("report", ["explain"]),
            ("explain-validation", ["explain", "--split", "validation"]),
            ("explain-validation/report", ["explain", "--split", "validation"]),
        ],
    )
    def test_explain(
        self,
        run: Path,
        elsewhere: Path,
        name: str,
        command: list[str],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).symlink_to(elsewhere)
        assert main([command[0], str(run), *command[1:]]) != 0
        assert f"{name} is a link to {elsewhere.resolve()}" in capsys.readouterr().err

    def test_resume_deletes_no_checkpoints_elsewhere(
        self, run: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        shutil.rmtree(run / "checkpoints")
        (run / "checkpoints").symlink_to(elsewhere)
        assert main(["train", "--resume", str(run), "--epochs", "2"]) != 0
        assert (
            f"checkpoints is a link to {elsewhere.resolve()}" in capsys.readouterr().err
        )

    def test_a_checkpoint_that_names_others_to_delete(
        self, run: Path, elsewhere: Path
    ) -> None:
        """Lightning deletes what the checkpoint that it resumes from calls the best one
        before, with all in it.
        """
        (path,) = (run / "checkpoints").glob("*.ckpt")
        content = torch.load(path, weights_only=True)
        (state,) = (
            state
            for name, state in content["callbacks"].items()
            if name.startswith(ModelCheckpoint.__name__)
        )
        state["best_model_path"] = str(
            run.resolve() / "checkpoints" / ".." / ".." / "elsewhere"
        )
        path.unlink()
        torch.save(content, path)
        with pytest.raises(
            ValueError, match=r"checkpoint .*elsewhere is not in .*checkpoints"
        ):
            train(run, epochs=2)


def test_no_page_is_written_through_a_link(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report").symlink_to(elsewhere)
    with pytest.raises(ValueError, match=r"out/report is a link to"):
        write_page(tmp_path / "out", [])


@pytest.mark.parametrize(
    "act", [lambda path: write_whole(path, "x"), lambda path: written(path)]
)
def test_an_unfinished_file_that_is_a_link_is_not_followed(
    tmp_path: Path, elsewhere: Path, act: Callable[[Path], None]
) -> None:
    path = tmp_path / "config.json"
    path.with_name(path.name + UNFINISHED).symlink_to(elsewhere / "config.json")
    path.symlink_to(elsewhere / "config.json")
    act(path)
    assert (path.read_text(), path.is_symlink()) == ("x", False)


def written(path: Path) -> None:
    with written_whole(path) as part:
        part.write_text("x")


def test_links_that_stay_inside_are_followed(tmp_path: Path) -> None:
    (tmp_path / "run" / "a").mkdir(parents=True)
    (tmp_path / "run" / "b").symlink_to("a")
    assert owned(tmp_path / "run", "b") == tmp_path.resolve() / "run" / "b"
    (tmp_path / "run" / "c").symlink_to("../run2")
    with pytest.raises(ValueError, match=r"run/c is a link to .*run2, outside"):
        owned(tmp_path / "run", "c")
    assert (
        owned(tmp_path / "new" / "one", "x", "y")
        == tmp_path.resolve() / "new" / "one" / "x" / "y"
    )
