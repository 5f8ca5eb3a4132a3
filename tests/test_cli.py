import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.options import made, typed
from torchcaps.models import create_model, list_models, load_pretrained
from torchcaps_lab.cli import main
from torchcaps_lab.data import (
    Digits,
    ImageFolder,
    Preprocess,
    load_image,
    standardise,
    thirteen_crops,
)
from torchcaps_lab.options.reading import read_options

SMALL = [
    *(
        "--model",
        "capsnet_digits",
        "--model_args.channels",
        "8",
        "--model_args.types",
        "2",
    ),
    *(
        "--model_args.decoder_hidden",
        "[8]",
        "--epochs",
        "1",
        "--trainer.accelerator",
        "cpu",
    ),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("cli") / "run"
    assert (
        main(
            [
                "train",
                "--data",
                "Digits",
                "--run",
                str(run),
                *SMALL,
                "--report",
                "false",
            ]
        )
        == 0
    )
    return run


@pytest.fixture(scope="module")
def colour_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    generator = torch.Generator().manual_seed(0)
    for label, name in enumerate(("red", "green", "blue")):
        (folder / name).mkdir()
        for number in range(12):
            pixels = torch.randint(
                0, 100, (17, 20, 3), generator=generator, dtype=torch.uint8
            )
            pixels[..., label] += 120
            Image.fromarray(pixels.numpy()).save(folder / name / f"{number}.png")
    return folder


class TestTrain:
    def test_run_folder(self, run):
        summary = json.loads((run / "summary.json").read_text())
        assert summary["examples"] == {"train": 1295, "validation": 143, "test": 359}
        assert 0 <= summary["test_accuracy"] <= 1
        assert summary["epochs"] == 1
        for name in (
            "config.yaml",
            "metrics.csv",
            "model/model.safetensors",
            "checkpoints",
            "tensorboard",
        ):
            assert (run / name).exists()

    def test_options_reach_the_network(self, tmp_path):
        options = [
            "--routing",
            "DynamicRouting",
            "--routing.steps",
            "2",
            "--routing.bias",
            "true",
        ]
        options += [
            "--report",
            "false",
            "--loss",
            "LengthCrossEntropy",
            "--run",
            str(tmp_path / "run"),
        ]
        assert main(["train", "--data", "Digits", *SMALL, *options]) == 0
        network = load_pretrained(tmp_path / "run" / "model")
        assert network.routing.steps == 2
        assert network.routing.offset.shape == (10, 16)
        assert network.conv.out_channels == 8

    def test_folder_of_colour_images_end_to_end(self, colour_folder, tmp_path, capsys):
        run = tmp_path / "run"
        data = [
            "--data",
            "ImageFolder",
            "--data.root",
            str(colour_folder),
            "--data.size",
            "[16,18]",
        ]
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
        assert all(
            line["class"] == max(line["lengths"], key=line["lengths"].get)
            for line in lines
        )
        assert len(lines[0]["poses"]["red"]) == 16

    def test_never_overwrites_a_run(self, run, capsys):
        before = (run / "summary.json").read_bytes()
        assert main(["train", "--data", "Digits", "--run", str(run), *SMALL]) == 1
        assert f"{run} exists already" in capsys.readouterr().err
        assert (run / "summary.json").read_bytes() == before

    def test_resume_needs_a_run(self, tmp_path, capsys):
        assert main(["train", "--resume", str(tmp_path)]) == 1
        assert "is not the folder of a run" in capsys.readouterr().err


@pytest.fixture(scope="module")
def prepared_run(colour_folder, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("preprocess") / "run"
    data = [
        "--data",
        "ImageFolder",
        "--data.root",
        str(colour_folder),
        "--data.size",
        "[16,18]",
    ]
    options = [
        *(
            "--preprocess.crop",
            "10",
            "--preprocess.crops",
            "13",
            "--preprocess.standardise",
            "true",
        ),
        *("--preprocess.flip", "true", "--preprocess.contrast", "[0.5,1.5]"),
    ]
    assert main(["train", *data, "--run", str(run), *SMALL, *options]) == 0
    return run


class TestPreprocess:
    """Images of 16 x 18 pixels, of which the network sees 10 x 10, standardised;
    thirteen crops in the test.
    """

    PREPROCESS = Preprocess(
        crop=10, flip=True, contrast=(0.5, 1.5), standardise=True, crops=13
    )

    def activations(self, prepared_run: Path, images: torch.Tensor) -> torch.Tensor:
        crops = thirteen_crops(images.float() / 255, 10)
        network = load_pretrained(prepared_run / "model")
        with torch.no_grad():
            return torch.stack(
                [network(standardise(crop)).activation for crop in crops.unbind(1)]
            ).mean(0)

    def test_settings_are_kept_with_the_network(self, prepared_run):
        network = load_pretrained(prepared_run / "model")
        assert network.image_shape == (3, 10, 10)
        reader = network.extra["reader"]
        assert (reader["name"], reader["image_shape"]) == ("images", [3, 16, 18])
        assert Preprocess.from_config(reader["preprocess"]) == self.PREPROCESS

    def test_evaluate_averages_the_crops_as_the_summary_does(
        self, prepared_run, colour_folder, capsys
    ):
        assert main(["evaluate", str(prepared_run), "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert (
            result["accuracy"]
            == json.loads((prepared_run / "summary.json").read_text())["test_accuracy"]
        )
        test = ImageFolder(str(colour_folder), size=(16, 18)).test
        predicted = self.activations(prepared_run, test.inputs).argmax(1)
        assert (
            result["confusion"]
            == torch.bincount(test.labels * 3 + predicted, minlength=9)
            .reshape(3, 3)
            .tolist()
        )

    def test_evaluate_on_another_number_of_crops(
        self, prepared_run, colour_folder, capsys
    ):
        assert main(["evaluate", str(prepared_run), "--json", "--crops", "1"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["crops"] == 1
        test = ImageFolder(str(colour_folder), size=(16, 18)).test
        with torch.no_grad():
            images = self.PREPROCESS.evaluate(test.inputs.float() / 255).images
            predicted = load_pretrained(prepared_run / "model")(
                images
            ).activation.argmax(1)
        assert (
            result["confusion"]
            == torch.bincount(test.labels * 3 + predicted, minlength=9)
            .reshape(3, 3)
            .tolist()
        )

    def test_thirteen_crops_of_uncropped_images_are_refused(self, run, capsys):
        assert main(["evaluate", str(run), "--crops", "13"]) == 1
        assert "crops=13 needs crop" in capsys.readouterr().err

    def test_predict_prepares_pictures_in_the_same_way(
        self, prepared_run, colour_folder, capsys
    ):
        files = sorted(
            str(path) for path in colour_folder.glob("*/?.png")
        )  # more than a batch of 13 crops each
        assert main(["predict", str(prepared_run), *files, "--json"]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        images = torch.stack([load_image(file, (3, 16, 18)) for file in files])
        assert [row["file"] for row in rows] == files
        actual = torch.tensor([list(row["lengths"].values()) for row in rows])
        torch.testing.assert_close(actual, self.activations(prepared_run, images))
        network = load_pretrained(prepared_run / "model")
        with torch.no_grad():
            poses = network(
                self.PREPROCESS.evaluate(images.float() / 255).images
            ).capsules.pose
        actual = torch.tensor([list(row["poses"].values()) for row in rows])
        torch.testing.assert_close(actual, poses)

    @pytest.mark.thorough
    def test_explain(self, prepared_run, tmp_path, capsys):
        assert main(["explain", str(prepared_run), "--out", str(tmp_path)]) == 0
        assert (
            Path(capsys.readouterr().out.strip()) == tmp_path / "report" / "index.html"
        )
        assert list((tmp_path / "report").glob("*.png"))
        assert (prepared_run / "report" / "index.html").read_text() == (
            tmp_path / "report" / "index.html"
        ).read_text()

    def test_images_of_another_size_are_refused(
        self, prepared_run, colour_folder, capsys
    ):
        data = [
            "--data",
            "ImageFolder",
            "--data.root",
            str(colour_folder),
            "--data.size",
            "[17, 20]",
        ]
        assert main(["evaluate", str(prepared_run), *data]) == 1
        assert (
            "the images are (3, 17, 20), the network takes (3, 16, 18)"
            in capsys.readouterr().err
        )

    def test_pairs_of_images_cannot_be_predicted_from_pictures(self, tmp_path, capsys):
        create_model(
            "capsnet_digits", image_shape=(2, 8, 8), channels=8
        ).save_pretrained(tmp_path / "pairs")
        Image.new("L", (8, 8)).save(tmp_path / "left.png")
        assert (
            main(["predict", str(tmp_path / "pairs"), str(tmp_path / "left.png")]) == 1
        )
        assert "it has 1 channel, expected 2" in capsys.readouterr().err


EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.yaml"))


@pytest.fixture
def at_home(monkeypatch, tmp_path):
    """Where the folders are that examples speak of."""
    (tmp_path / "trec").mkdir()
    for part in ("train_5500.label", "TREC_10.label"):
        (tmp_path / "trec" / part).write_text(
            "LOC:city Where is it ?\nHUM:ind Who is she ?\n" * 9
        )
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(9):
            Image.new("RGB", (40, 30), (number, 9, 99)).save(
                tmp_path / "photos" / name / f"{number}.jpg"
            )
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("at_home")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_options_of_the_examples_fit_together(example):
    options = made(read_options(example))
    assert options.model in list_models(takes=options.data.gives)
    if options.data.gives == "words":
        return
    raw = {
        "CIFAR10": (3, 32, 32),
        "DigitScenes": (1, 96, 96),
        "Digits": (1, 8, 8),
        "ImageFolder": (3, 32, 32),
    }
    raw |= {"MNIST": (1, 28, 28), "SmallNORB": (2, 48, 48)}
    shape = options.preprocess.image_shape(raw[type(options.data).__name__])
    assert shape == (2, 32, 32) or example.stem != "smallnorb"
    assert (
        create_model(
            options.model, image_shape=shape, **(options.model_args or {})
        ).image_shape
        == shape
    )


class TestLooking:
    def test_evaluate_agrees_with_the_summary(self, run, capsys):
        assert main(["evaluate", str(run), "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert (
            result["accuracy"]
            == json.loads((run / "summary.json").read_text())["test_accuracy"]
        )
        assert sum(map(sum, result["confusion"])) == 359

    def test_evaluate_another_split(self, run, capsys):
        assert main(["evaluate", str(run), "--split", "validation"]) == 0
        assert "of 143 images" in capsys.readouterr().out

    def test_evaluate_refuses_images_that_do_not_fit(
        self, run, colour_folder, tmp_path, capsys
    ):
        data = ["--data", "ImageFolder", "--data.root", str(colour_folder)]
        data += ["--data.size", "[17, 20]", "--data.channels", "3"]
        assert main(["evaluate", str(run), *data]) == 1
        assert (
            "blue, green, red are none of the classes 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
            in capsys.readouterr().err
        )
        for number, name in enumerate(("blue", "green", "red")):
            shutil.copytree(colour_folder / name, tmp_path / str(number))
        assert main(["evaluate", str(run), *data, "--data.root", str(tmp_path)]) == 1
        assert (
            "the images are (3, 17, 20), the network takes (1, 8, 8)"
            in capsys.readouterr().err
        )

    @pytest.mark.thorough
    def test_explaining_other_images_leaves_the_report_of_the_run_alone(
        self, prepared_run, capsys
    ):
        before = {
            path: path.stat().st_mtime_ns
            for path in (prepared_run / "report").iterdir()
        }
        assert main(["explain", str(prepared_run), "--split", "validation"]) == 0
        page = prepared_run / "explain-validation" / "report" / "index.html"
        assert Path(capsys.readouterr().out.strip()) == page
        assert page.is_file()
        assert {
            path: path.stat().st_mtime_ns
            for path in (prepared_run / "report").iterdir()
        } == before

    def test_predict_is_the_network(self, run, tmp_path, capsys):
        image = Digits().test.inputs[0]
        Image.fromarray(image[0].numpy()).save(tmp_path / "digit.png")
        assert main(["predict", str(run), str(tmp_path / "digit.png"), "--json"]) == 0
        row = json.loads(capsys.readouterr().out)
        with torch.no_grad():
            expected = load_pretrained(run / "model")(image[None].float() / 255)
        assert list(row["lengths"].values()) == pytest.approx(
            expected.activation[0].tolist()
        )
        assert row["poses"]["3"] == pytest.approx(expected.capsules.pose[0, 3].tolist())

    def test_predict_names_what_is_no_image(self, run, tmp_path, capsys):
        (tmp_path / "note.txt").write_text("hello")
        assert main(["predict", str(run), str(tmp_path / "note.txt")]) == 1
        assert "note.txt" in capsys.readouterr().err

    def test_damaged_metrics(self, run, tmp_path, capsys):
        shutil.copytree(run, tmp_path / "run")
        (tmp_path / "run" / "metrics.csv").write_text("epoch,loss\n1,x\n")
        assert main(["explain", str(tmp_path / "run")]) == 1
        assert (
            "metrics.csv is damaged: could not convert string to float: 'x'"
            in capsys.readouterr().err
        )

    def test_damaged_model(self, run, tmp_path, capsys):
        shutil.copytree(run, tmp_path / "run")
        weights = tmp_path / "run" / "model" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-10])
        assert main(["evaluate", str(tmp_path / "run")]) == 1
        assert "model.safetensors is damaged" in capsys.readouterr().err

    def test_models(self, capsys):
        assert main(["models", "--json"]) == 0
        rows = {
            row["name"]: row["parameters"]
            for row in json.loads(capsys.readouterr().out)
        }
        assert sorted(rows) == list_models()
        assert rows["sharedcapsnet"] == sum(
            p.numel() for p in create_model("sharedcapsnet").parameters()
        )

    def test_usage(self, capsys):
        assert main([]) == 2
        usage, commands, *_ = capsys.readouterr().err.split("\n\n")
        assert usage == "usage: torchcaps COMMAND ..."
        assert all(line.startswith("  ") for line in commands.splitlines())

    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("trian", "; did you mean train?"),
            ("version", "; did you mean --version?"),
            ("xyzzy", ""),
        ],
    )
    def test_a_command_that_is_none(self, name, meant, capsys):
        assert main([name]) == 2
        assert capsys.readouterr().err.startswith(
            f"torchcaps: error: unknown command {name!r}{meant}\n"
        )

    def test_closed_outputs_are_no_error(self, monkeypatch):
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, None)
        assert main(["models", "nope"]) == 1
        assert main(["models", "capsnet"]) == 0
        for stream in (sys.stdout, sys.stderr):
            stream.close()

    @pytest.mark.parametrize(
        "command", ["evaluate", "predict", "explain", "transfer", "export"]
    )
    def test_help_shows_nothing_of_the_inside(self, command, capsys):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        out = capsys.readouterr().out
        assert " at 0x" not in out
        assert "lambda" not in out

    def test_a_run_that_has_not_ended(self, run, tmp_path, capsys):
        shutil.copytree(
            run,
            tmp_path / "run",
            ignore=shutil.ignore_patterns("model", "summary.json"),
        )
        # Killed while it saved the network: the card of the network comes last.
        (tmp_path / "run/model").mkdir()
        (tmp_path / "run/model/model.safetensors").touch()
        message = (
            f"{tmp_path / 'run'} holds no network yet, its training has not "
            "ended: torchcaps train --resume "
        )
        for command in (["evaluate"], ["predict", "x.png"], ["explain"], ["export"]):
            assert main([command[0], str(tmp_path / "run"), *command[1:]]) == 1
            assert message in capsys.readouterr().err

    def test_a_run_is_loaded_as_its_network(self, run):
        weights = load_pretrained(run / "model").state_dict()
        assert all(
            torch.equal(tensor, weights[name])
            for name, tensor in load_pretrained(run).state_dict().items()
        )


@pytest.mark.parametrize(
    "options",
    [
        *(
            ["--routing", "em"],
            ["--routing=em"],
            ["--routing.name", "em"],
        ),
        *(["--routing", "{name: em, steps: 2}"],),
    ],
    ids=str,
)
def test_a_routing_goes_by_its_short_name(options: list[str]) -> None:
    assert (
        typed("--data", "Digits", "--run", "r", *options).plain()["routing"]["name"]
        == "em"
    )
