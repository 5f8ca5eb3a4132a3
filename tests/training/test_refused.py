"""What cannot be trained is told before anything is written: the folder is free for the
next try.
"""

import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.runs import TRAIN, status, summary
from torchcaps_lab.data import Digits

PAIRS = str(Path(__file__).parents[1] / "tasks" / "several_digits.py")
LATE = [
    "--scheduler",
    "OneCycleLR",
    "--scheduler.max_lr",
    "0.01",
    "--scheduler.total_steps",
    "2",
]

REFUSED = [
    # names and numbers
    (["--model", "capsnut"], "model must be .* got 'capsnut'; did you mean capsnet"),
    (
        ["--model", "text_cnn"],
        "text_cnn takes no images; model must be one of attentioncapsnet",
    ),
    (["--epochs", "x"], "epochs"),
    (["--routing", "Nothing"], "(?s)routing must be .* --import .*dynamic, em"),
    (["--loss", "Nothing"], "(?s)loss must be .*LengthCrossEntropy, MarginLoss"),
    (["--data", "Nothing"], "(?s)data must be .* --import .*digits"),
    (["--task", "guessing"], "(?s)task must be .*classification"),
    (["--loss.present", "x", "--loss", "MarginLoss"], "present"),
    (["--batch_size", "0"], "batch_size must be at least 1, got 0"),
    (["--seed", str(2**64)], r"seed must be .*2\^64.*, got 18446744073709551616"),
    (["--reconstruction", "-1"], "reconstruction must be at least 0, got -1.0"),
    (["--speed.resident", "-1"], "resident must be .*0.*, got -1.0"),
    # the network and its images
    (["--routing", "HardKMeansRouting"], "routing must have gradients"),
    (["--model_args.kernel_size", "20"], "smaller than kernel_size 20"),
    (["--model_args.colour", "1"], "colour"),
    (["--model_args.image_shape", "[3,8,8]"], "do not fit the images|image"),
    (["--preprocess.crop", "9"], "crop must be at most 8 for images of 8 x 8, got 9"),
    (
        ["--preprocess.crop", "4", "--preprocess.crops", "13"],
        "crop must be at most 2 .* for 13 crops, got 4",
    ),
    (["--preprocess.crops", "13"], "crops=13 needs crop"),
    (["--preprocess.contrast", "[2,1]"], "contrast must be two factors"),
    # the task and its targets
    (["--task", "SeveralLabels"], "'several_labels' takes images with masks"),
    (["--task", "detection"], "'detection' takes images with masks"),
    (
        ["--data", "Shapes", "--data.size", "16", "--task", "objects"],
        "task 'objects' takes networks that draw each slot with a mask",
    ),
    (
        [
            "--import",
            PAIRS,
            "--data",
            "several_digits.Pairs",
            "--task",
            "classification",
        ],
        "of one class each",
    ),
    (
        [
            "--import",
            PAIRS,
            "--data",
            "several_digits.Pairs",
            "--task",
            "SeveralLabels",
            "--task.count",
            "3",
        ],
        "count is 3, but the first image has 2 classes",
    ),
    # the optimizer and its schedule
    (["--optimizer", "adam"], "must be the name of an optimizer, got 'adam'"),
    (["--optimizer", "SparseAdam"], "SparseAdam does not support dense gradients"),
    (["--optimizer", "Adam", "--optimizer.lr", "-1"], "learning rate"),
    (["--optimizer", "Adam", "--optimizer.betas", "[2, 3]"], "beta"),
    (
        ["--scheduler", "StepLR", "--scheduler.step_size", "0"],
        "scheduler StepLR cannot make a step: integer modulo",
    ),
    (
        ["--scheduler", "CosineAnnealingLR", "--scheduler.T_max", "0"],
        "scheduler CosineAnnealingLR cannot make a step",
    ),
    (
        [*LATE, "--scheduler_interval", "step"],
        "OneCycleLR ends after 2 steps, and the training has .*: its total_st",
    ),
    (
        [*LATE, "--epochs", "3"],
        "OneCycleLR ends after 2 steps, one an epoch, and the training has 3: its",
    ),
    # the machine and Lightning's Trainer
    (
        ["--trainer.accelerator", "gpu"],
        "cannot train as asked .accelerator gpu.*--trainer.accelerator auto",
    ),
    (["--trainer.precision", "5-true"], "cannot train as asked .*precision 5-true"),
    (["--trainer.strategy", "magic"], "cannot train as asked .*magic"),
    (
        ["--trainer.gradient_clip_val", "-1"],
        "gradient_clip_val must be at least 0, got -1.0",
    ),
    (["--trainer.average", "1"], "average must be a share between 0 and 1, got 1"),
    (
        ["--trainer.extra.logger", "true"],
        "arguments of Lightning's Trainer: logger is set by torchcaps itself",
    ),
    (
        ["--trainer.extra.limit_val_batches", "3"],
        "limit_val_batches is set by torchcaps itself, from data.val",
    ),
    (
        ["--trainer.extra.accelerator", "cpu"],
        "accelerator is set by torchcaps itself, from trainer.acc",
    ),
    (
        ["--trainer.extra.inference_mode", "true"],
        "inference_mode is set by torchcaps itself",
    ),
    (
        ["--trainer.extra.colour", "red"],
        "extra takes arguments of Lightning's Trainer, which has no colour",
    ),
    (
        ["--trainer.extra.limit_train_batches", "2.5"],
        r"trainer.extra limit_train_batches 2.5\): .*int.$",
    ),
    (
        ["--trainer.extra.accumulate_grad_batches", "0"],
        "accumulate_grad_batches must be at least 1, got 0",
    ),
    (
        ["--trainer.extra.limit_train_batches", "0"],
        "got none of .* an epoch: .*limit_train_batches 0 ends it",
    ),
    (
        ["--trainer.extra.max_steps", "0"],
        "got none of .* an epoch: trainer.extra max_steps 0 ends it",
    ),
    # the validation
    (["--stop_at", "0.9", "--data.validation", "0"], "stop_at needs validation images"),
    (["--patience", "3", "--data.validation", "0"], "patience needs validation images"),
    (["--keep", "best", "--data.validation", "0"], "keep needs validation images"),
    *(
        (["--stop_at", value], r"stop_at must be an accuracy in \(0, 1\], got")
        for value in ("0.0", "-0.5", "1.01", "95.0", ".nan")
    ),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=str)
def test_what_cannot_be_is_told_at_the_start(
    options: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    run = tmp_path / "run"
    assert status(*TRAIN, *options, "--run", str(run)) != 0
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert not run.exists()


def test_slots_are_no_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each slot was trained to be a class."""
    words = ["--data", "Digits", "--model", "slot_autoencoder", "--epochs", "1"]
    assert status("train", *words, "--run", str(tmp_path / "run")) == 1
    assert "answers with slots, which are no classes" in capsys.readouterr().err


def test_an_image_that_is_broken_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a/1", "a/2", "b/1", "b/2"):
        file = tmp_path / "images" / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((40, 40), 50).save(file)
    file.write_bytes(file.read_bytes()[:90])
    data = ["--data", "ImageFolder", "--data.root", str(tmp_path / "images")]
    assert status(*TRAIN, *data, "--run", str(tmp_path / "run")) == 1
    assert str(file) in capsys.readouterr().err


def test_a_place_that_takes_no_files_is_told_before_the_data_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Digits, "load_train", lambda self: pytest.fail("read first"))
    (tmp_path / "file").touch()
    run = str(tmp_path / "file" / "run")
    assert status(*TRAIN, "--run", run) == 1
    error = capsys.readouterr().err
    assert run in error
    assert "--run" in error


def test_the_next_try_works(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert status(*TRAIN, "--trainer.strategy", "magic", "--run", str(run)) == 1
    assert status(*TRAIN, "--run", str(run)) == 0
    assert (summary(run)["epochs"], summary(run)["used_epoch"]) == (
        1,
        {"epoch": 1, "by": "the last"},
    )
