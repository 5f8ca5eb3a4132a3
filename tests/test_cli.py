import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from torchcaps.cli import main
from torchcaps.data import Digits
from torchcaps.models import create_model, list_models, load_pretrained

SMALL = [
    *("--model", "capsnet_digits", "--model_args.channels", "8", "--model_args.types", "2"),
    *("--model_args.decoder_hidden", "[8]", "--epochs", "1", "--trainer.accelerator", "cpu"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", "--data", "Digits", "--run", str(run), *SMALL, "--report", "false"]) == 0
    return run


@pytest.fixture(scope="module")
def colour_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    generator = torch.Generator().manual_seed(0)
    for label, name in enumerate(("red", "green", "blue")):
        (folder / name).mkdir()
        for number in range(12):
            pixels = torch.randint(0, 100, (17, 20, 3), generator=generator, dtype=torch.uint8)
            pixels[..., label] += 120
            Image.fromarray(pixels.numpy()).save(folder / name / f"{number}.png")
    return folder


class TestTrain:
    def test_run_folder(self, run):
        summary = json.loads((run / "summary.json").read_text())
        assert summary["images"] == {"train": 1295, "validation": 143, "test": 359}
        assert 0 <= summary["test_accuracy"] <= 1
        assert summary["epochs"] == 1
        for name in ("config.yaml", "metrics.csv", "model/model.safetensors", "checkpoints", "tensorboard"):
            assert (run / name).exists()

    def test_options_reach_the_network(self, tmp_path):
        options = ["--routing", "DynamicRouting", "--routing.steps", "2", "--routing.bias", "true"]
        assert (
            main(
                [
                    "train",
                    "--data",
                    "Digits",
                    "--run",
                    str(tmp_path / "run"),
                    *SMALL,
                    *options,
                    "--report",
                    "false",
                    "--loss",
                    "LengthCrossEntropy",
                ]
            )
            == 0
        )
        network = load_pretrained(tmp_path / "run" / "model")
        assert network.routing.steps == 2
        assert network.routing.offset.shape == (10, 16)
        assert network.conv.out_channels == 8

    def test_folder_of_colour_images_end_to_end(self, colour_folder, tmp_path, capsys):
        run = tmp_path / "run"
        data = ["--data", "ImageFolder", "--data.root", str(colour_folder), "--data.size", "[16,18]"]
        assert main(["train", *data, "--run", str(run), *SMALL]) == 0
        assert (run / "report" / "index.html").is_file()
        network = load_pretrained(run / "model")
        assert network.image_shape == (3, 16, 18)
        assert network.extra["classes"] == ["blue", "green", "red"]
        capsys.readouterr()
        files = sorted(str(path) for path in colour_folder.glob("*/0.png"))
        assert main(["predict", str(run), *files, "--json"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["file"] for line in lines] == files
        assert all(set(line["lengths"]) == {"blue", "green", "red"} for line in lines)
        assert all(line["class"] == max(line["lengths"], key=line["lengths"].get) for line in lines)
        assert len(lines[0]["poses"]["red"]) == 16

    def test_never_overwrites_a_run(self, run, capsys):
        before = (run / "summary.json").read_bytes()
        assert main(["train", "--data", "Digits", "--run", str(run), *SMALL]) == 1
        assert f"{run} exists already" in capsys.readouterr().err
        assert (run / "summary.json").read_bytes() == before

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--model", "capsnut"], "model must be one of .*capsnet.* got 'capsnut'"),
            (["--epochs", "x"], "epochs"),
            (["--routing", "Nothing"], "routing"),
            (["--loss.present", "x", "--loss", "MarginLoss"], "present"),
            (["--routing", "HardKMeansRouting"], "routing must have gradients"),
            (["--batch_size", "0"], "batch_size must be at least 1, got 0"),
            (["--model_args.kernel_size", "20"], "smaller than kernel_size 20"),
            (["--model_args.colour", "1"], "colour"),
        ],
        ids=["model", "number", "routing", "hard", "loss", "batch", "kernel", "argument"],
    )
    def test_wrong_options_are_named(self, options, message, tmp_path, capsys):
        arguments = ["train", "--data", "Digits", "--run", str(tmp_path / "run"), *SMALL, *options]
        try:
            status = main(arguments)
        except SystemExit as stop:  # jsonargparse's own answer
            status = stop.code
        assert status not in (0, None)
        error = capsys.readouterr().err
        assert re.search(message, error), error
        assert not (tmp_path / "run").exists()

    def test_broken_image_is_named(self, colour_folder, tmp_path, capsys):
        folder = tmp_path / "images"
        shutil.copytree(colour_folder, folder)
        broken = folder / "red" / "3.png"
        broken.write_bytes(broken.read_bytes()[:60])
        arguments = ["--data", "ImageFolder", "--data.root", str(folder), "--data.size", "16"]
        assert main(["train", *arguments, "--run", str(tmp_path / "run"), *SMALL]) == 1
        assert str(broken) in capsys.readouterr().err

    def test_resume_needs_a_run(self, tmp_path, capsys):
        assert main(["train", "--resume", str(tmp_path)]) == 1
        assert "is not the folder of a run" in capsys.readouterr().err


class TestLooking:
    def test_evaluate_agrees_with_the_summary(self, run, capsys):
        assert main(["evaluate", str(run), "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["accuracy"] == json.loads((run / "summary.json").read_text())["test_accuracy"]
        assert sum(map(sum, result["confusion"])) == 359

    def test_evaluate_another_split(self, run, capsys):
        assert main(["evaluate", str(run), "--split", "validation"]) == 0
        assert "of 143 images" in capsys.readouterr().out

    def test_evaluate_refuses_images_that_do_not_fit(self, run, colour_folder, capsys):
        data = ["--data", "ImageFolder", "--data.root", str(colour_folder)]
        assert main(["evaluate", str(run), *data]) == 1
        assert "the images are (3, 17, 20), the network takes (1, 8, 8)" in capsys.readouterr().err

    def test_explain(self, run, tmp_path, capsys):
        assert main(["explain", str(run), "--out", str(tmp_path)]) == 0
        assert Path(capsys.readouterr().out.strip()) == tmp_path / "report" / "index.html"
        assert (tmp_path / "report" / "reconstructions.png").is_file()

    def test_explaining_other_images_leaves_the_report_of_the_run_alone(self, run, capsys):
        assert main(["explain", str(run), "--split", "validation"]) == 0
        assert Path(capsys.readouterr().out.strip()) == run / "explain-validation" / "report" / "index.html"
        assert not (run / "report").exists()

    def test_predict_is_the_network(self, run, tmp_path, capsys):
        image = Digits().test.images[0]
        Image.fromarray(image[0].numpy()).save(tmp_path / "digit.png")
        assert main(["predict", str(run), str(tmp_path / "digit.png"), "--json"]) == 0
        row = json.loads(capsys.readouterr().out)
        with torch.no_grad():
            expected = load_pretrained(run / "model")(image[None].float() / 255)
        assert list(row["lengths"].values()) == pytest.approx(expected.activation[0].tolist())
        assert row["poses"]["3"] == pytest.approx(expected.capsules.pose[0, 3].tolist())

    def test_predict_names_what_is_no_image(self, run, tmp_path, capsys):
        (tmp_path / "note.txt").write_text("hello")
        assert main(["predict", str(run), str(tmp_path / "note.txt")]) == 1
        assert "note.txt" in capsys.readouterr().err

    def test_damaged_model(self, run, tmp_path, capsys):
        shutil.copytree(run, tmp_path / "run")
        weights = tmp_path / "run" / "model" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-10])
        assert main(["evaluate", str(tmp_path / "run")]) == 1
        assert "model.safetensors is damaged" in capsys.readouterr().err

    def test_models(self, capsys):
        assert main(["models", "--json"]) == 0
        rows = {row["name"]: row["parameters"] for row in json.loads(capsys.readouterr().out)}
        assert sorted(rows) == list_models()
        assert rows["sharedcapsnet"] == sum(p.numel() for p in create_model("sharedcapsnet").parameters())

    @pytest.mark.parametrize("arguments", [[], ["dance"]])
    def test_usage(self, arguments, capsys):
        assert main(arguments) == 2
        assert "usage: torchcaps" in capsys.readouterr().err
