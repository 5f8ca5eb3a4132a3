"""Runs on folders of images that change, or hold anything."""

import json

import pytest
from PIL import Image

from tests.kinds.images.folders import (
    BROKEN,
    LEFT_OUT,
    LIMIT,
    READ,
    make_root,
    make_troubles,
    save,
)
from torchcaps.models import create_model
from torchcaps_lab.cli import main
from torchcaps_lab.data import ImageFolder
from torchcaps_lab.data.manifest import readable

SMALL = [
    *(
        "--model",
        "capsnet_digits",
        "--model_args.channels",
        "4",
        "--model_args.types",
        "2",
    ),
    *(
        "--model_args.decoder_hidden",
        "[4]",
        "--epochs",
        "1",
        "--trainer.accelerator",
        "cpu",
        "--report",
        "false",
    ),
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path / "cache"))


def test_evaluate_explain_and_resume_use_the_split_of_the_run(
    tmp_path, capsys, monkeypatch
):
    # The drawing takes its time.
    monkeypatch.setattr("torchcaps_lab.tasks.base.write_page", lambda folder, _: folder)
    root = make_root(tmp_path / "images")
    run = tmp_path / "run"
    options = ["--data", "ImageFolder", "--data.root", str(root)]
    assert main(["train", *options, "--run", str(run), *SMALL]) == 0
    recorded = json.loads((run / "data.json").read_text())
    assert main(["evaluate", str(run), "--json"]) == 0
    before = json.loads(capsys.readouterr().out.splitlines()[-1])
    for number in range(20):
        save(root / "a" / f"{number:03} new.png", 5000 + number)
    assert main(["evaluate", str(run), "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out) == before
    assert "20 images added since the training" in output.err
    assert main(["explain", str(run), "--out", str(tmp_path)]) == 0
    assert "20 images added since the training" in capsys.readouterr().err
    assert main(["train", "--resume", str(run), "--epochs", "2"]) == 0
    assert "note: 20 images added since the training" in capsys.readouterr().out
    assert json.loads((run / "data.json").read_text()) == recorded
    summary = json.loads((run / "summary.json").read_text())
    assert summary["examples"] == {
        part: len(rows) for part, rows in recorded["parts"].items()
    }
    assert summary["notes"][0].startswith("20 images added")


def test_other_data_are_tested_without_what_the_run_was_trained_on(tmp_path, capsys):
    root = make_root(tmp_path / "images")
    run = tmp_path / "run"
    options = ["--data", "ImageFolder", "--data.root", str(root)]
    assert main(["train", *options, "--run", str(run), *SMALL]) == 0
    trained = {
        row[2] for row in json.loads((run / "data.json").read_text())["parts"]["train"]
    }
    second = make_root(
        tmp_path / "other", 40
    )  # the first 30 of each class are those of the run
    data = ["--data", "ImageFolder", "--data.root", str(second), "--data.test", "0.9"]
    rows = ImageFolder(str(second), test=0.9).manifest().parts["test"]
    expected = sum(row.digest not in trained for row in rows)
    assert 0 < expected < len(rows)
    capsys.readouterr()
    assert main(["evaluate", str(run), *data, "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["images"] == expected
    assert (
        f"{len(rows) - expected} of {len(rows)} test images left out: the run was "
        "trained on them" in output.err
    )
    every = sum(
        len(part) for part in ImageFolder(str(second)).manifest().parts.values()
    )
    assert (
        f"{len(rows)} of {every} images are in the test split of this data; --split "
        "all takes every one" in output.err
    )
    assert main(["evaluate", str(run), *data, "--split", "all", "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["images"] == every - len(trained)
    assert "--split all" not in output.err
    assert main(["evaluate", str(run), "--data", "Digits", "--split", "all"]) == 1
    assert "Digits has splits of its own" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["evaluate", str(run), "--split", "all"])
    assert "the run was trained on some of its own" in capsys.readouterr().err


def test_an_empty_class_folder_is_in_no_way_of_a_test(tmp_path, capsys):
    """`evaluate RUN FOLDER` stopped at it, or took it for a class that is not known."""
    network = create_model("capsnet_digits", classes=2, channels=4, types=2)
    network.save_pretrained(tmp_path / "network", classes=["a", "b"])
    root = make_root(tmp_path / "photos", 3)
    for name in ("a", "new"):
        (root / f"{name} (copy)").mkdir()
    assert main(["evaluate", str(tmp_path / "network"), str(root), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["images"] == 6
    assert (
        "note: class folders without images are left out: a (copy), new (copy)\n" in err
    )
    (root / "notes.txt").write_text("not an image")
    assert main(["evaluate", str(tmp_path / "network"), str(root), "--json"]) == 0
    assert (
        "left out 1 file: it lies in no class folder: notes.txt"
        in capsys.readouterr().err
    )
    assert main(["train", str(root), "--run", str(tmp_path / "run"), *SMALL]) == 1
    assert capsys.readouterr().err.endswith(
        f"class folder {root / 'new (copy)'} holds no images (--data.skip_broken true "
        "leaves it out)\n"
    )


def test_a_folder_of_troubles_trains_and_the_summary_says_what_was_left_out(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", LIMIT)
    troubles = make_troubles(tmp_path / "photos")
    run = tmp_path / "run"
    options = [
        "--data",
        "ImageFolder",
        "--data.root",
        str(troubles),
        "--data.size",
        "8",
    ]
    assert main(["train", *options, "--run", str(run), *SMALL]) == 1
    assert "7 images cannot be read" in capsys.readouterr().err
    assert not run.exists()
    assert (
        main(
            ["train", *options, "--data.skip_broken", "true", "--run", str(run), *SMALL]
        )
        == 0
    )
    summary = json.loads((run / "summary.json").read_text())
    notes = "\n".join(summary["notes"])
    assert all(readable(name) in notes for name in (*BROKEN, *LEFT_OUT))
    assert sum(summary["examples"].values()) == 24 + len(READ)
    assert set(json.loads((run / "data.json").read_text())["left_out"]) == {
        *BROKEN,
        *LEFT_OUT,
    }
    capsys.readouterr()
    assert main(["evaluate", str(run), "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["accuracy"] == summary["test_accuracy"]
    assert "since the training" not in output.err
