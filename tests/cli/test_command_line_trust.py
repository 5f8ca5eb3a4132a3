"""What a person with a folder of photos relies on."""

import csv
import json
import os
import subprocess
import sys
from importlib import import_module
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

import torchcaps as tc
from benchmarks.__main__ import PARTS
from benchmarks.__main__ import main as benchmarks
from recipes.__main__ import main as recipes
from tests.runs import status
from torchcaps.models import ImageClassifier
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.cli import COMMANDS, main
from torchcaps_lab.data import Digits, ImageFolder, load_image
from torchcaps_lab.evaluate.calibration import LEAST_IMAGES
from torchcaps_lab.explore.server import application, serve
from torchcaps_lab.kinds.series.files import rate_of, series_in
from torchcaps_lab.kinds.series.table import SeriesForm

ROOT = Path(__file__).parents[2]
SMALL = [
    *(
        "--model",
        "capsnet_digits",
        "--model_args.channels",
        "8",
        "--model_args.types",
        "2",
    ),
    *("--model_args.decoder_hidden", "[8]", "--trainer.accelerator", "cpu"),
]


def write_photos(folder: Path, names: tuple[str, ...], count: int) -> Path:
    """Noise of 10 x 24 pixels, brightest in one channel."""
    generator = torch.Generator().manual_seed(0)
    for label, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = torch.randint(
                0, 100, (10, 24, 3), generator=generator, dtype=torch.uint8
            )
            pixels[..., label % 3] += 120
            Image.fromarray(pixels.numpy()).save(folder / name / f"{number:02d}.png")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    return write_photos(
        tmp_path_factory.mktemp("trust") / "photos", ("red", "green", "blue"), 16
    )


@pytest.fixture(scope="module")
def run(photos, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("trust") / "run"
    data = [
        "--data",
        "ImageFolder",
        "--data.root",
        str(photos),
        "--data.size",
        "12",
        "--data.validation",
        "0.6",
    ]
    assert (
        main(
            [
                "train",
                *data,
                "--data.resize",
                "stretch",
                "--epochs",
                "2",
                "--run",
                str(run),
                *SMALL,
            ]
        )
        == 0
    )
    return run


def lengths(network: ImageClassifier, files: list[Path], resize: str) -> torch.Tensor:
    images = torch.stack([load_image(file, (3, 12, 12), resize) for file in files])
    with torch.no_grad():
        return network(images.float() / 255).activation


def predicted(capsys, *arguments: str) -> torch.Tensor:
    capsys.readouterr()
    assert main(["predict", *arguments, "--json"]) == 0
    return torch.tensor(
        [
            list(json.loads(row)["lengths"].values())
            for row in capsys.readouterr().out.splitlines()
        ]
    )


class TestSavedNetworkCarriesItsPreprocessing:
    def test_predict_resizes_as_the_training_did(self, run, photos, capsys):
        files = sorted(photos.glob("*/0[0-2].png"))
        network = tc.load_pretrained(run / "model")
        stretched = lengths(network, files, "stretch")
        padded = lengths(network, files, "pad")
        assert not torch.allclose(stretched, padded)
        for source in (run, run / "model"):
            torch.testing.assert_close(
                predicted(capsys, str(source), *map(str, files)), stretched
            )
        actual = predicted(capsys, str(run), *map(str, files), "--resize", "pad")
        torch.testing.assert_close(actual, padded)
        answers = Classifier.open(run / "model")(files)
        torch.testing.assert_close(
            torch.tensor([list(answer.lengths.values()) for answer in answers]),
            stretched,
        )

    def test_evaluate_names_a_class_that_the_network_does_not_have(
        self, run, tmp_path, capsys
    ):
        second = write_photos(tmp_path / "other", ("red", "green", "yellow"), 4)
        data = [
            "--data",
            "ImageFolder",
            "--data.root",
            str(second),
            "--data.size",
            "12",
        ]
        assert main(["evaluate", str(run), *data]) == 1
        assert (
            "yellow is none of the classes blue, green, red" in capsys.readouterr().err
        )

    def test_evaluate_takes_some_of_the_classes(self, run, tmp_path, capsys):
        second = write_photos(tmp_path / "other", ("red", "green"), 4)
        data = [
            "--data",
            "ImageFolder",
            "--data.root",
            str(second),
            "--data.size",
            "12",
        ]
        assert main(["evaluate", str(run), *data]) == 0
        assert "test: " in capsys.readouterr().out

    def test_numbers_for_names_fit_any_names(self):
        classifier = Classifier(
            tc.create_model(
                "capsnet_digits", image_shape=(1, 8, 8), channels=4, types=2
            )
        )
        images = Digits().test.subset(torch.arange(4))
        named = type(images)(images.inputs, images.labels, tuple("abcdefghij"))
        assert classifier.examine(named).figures == classifier.examine(images).figures


class TestCommandLine:
    @pytest.mark.parametrize(
        "arguments",
        [
            ["train", "--data", "Digits", "--bogus", "1"],
            ["predict"],
            ["evaluate", "x", "--split", "all"],
        ],
    )
    def test_an_error_is_three_lines_at_most(self, arguments, capsys):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert error.startswith(f"torchcaps {arguments[0]}: error: ")
        assert len(error.splitlines()) <= 3
        assert f"torchcaps {arguments[0]} --help" in error
        assert "usage" not in error

    def test_report_false_speaks_of_no_report(self, run, capsys):
        assert (run / "report" / "index.html").is_file()
        assert main(["train", "--resume", str(run), "--report", "false"]) == 0
        output = capsys.readouterr().out
        assert "summary" in output
        assert "report" not in output

    def test_epochs_are_counted_from_one(self, run):
        with (run / "metrics.csv").open(newline="") as file:
            assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2"]
        assert (
            json.loads((run / "summary.json").read_text())["last_epoch"]["epoch"] == 2
        )
        exhibits = json.loads((run / "report" / "exhibits.json").read_text())[
            "exhibits"
        ]
        (curves,) = [
            exhibit for exhibit in exhibits if exhibit["kind"] == "learning_curves"
        ]
        assert curves["panels"][0]["curves"]["training"]["epochs"] == [1, 2]

    @pytest.mark.parametrize(
        ("command", "arguments"),
        [
            (main, ["models", "capsnet_digits"]),
            (main, ["--version"]),
            (main, ["--help"]),
            *((main, [name, "--help"]) for name in COMMANDS),
            (recipes, []),
            (recipes, ["--help"]),
            (recipes, ["run", "--help"]),
            (recipes, ["queue", "--help"]),
            (benchmarks, ["--help"]),
            *((benchmarks, [part, "--help"]) for part in PARTS),
        ],
        ids=lambda given: " ".join(given) if isinstance(given, list) else "",
    )
    @pytest.mark.parametrize("both", [False, True])
    def test_a_pipe_that_nobody_reads_is_no_error(
        self, command, arguments, both, monkeypatch, capsys
    ):
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "w") as closed:
            monkeypatch.setattr(sys, "stdout", closed)
            if both:
                monkeypatch.setattr(sys, "stderr", closed)
            assert command(arguments) == 141
        assert capsys.readouterr().err == ""

    def test_a_training_goes_on_when_nobody_reads_its_output(
        self, photos, tmp_path, monkeypatch
    ):
        """``torchcaps train ... | head -1`` ended the training after an epoch, before
        its first checkpoint.
        """
        data = [
            "--data",
            "ImageFolder",
            "--data.root",
            str(photos),
            "--data.size",
            "12",
        ]
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "w") as closed:
            monkeypatch.setattr(sys, "stdout", closed)
            assert (
                main(
                    [
                        "train",
                        *data,
                        "--epochs",
                        "2",
                        "--run",
                        str(tmp_path / "run"),
                        *SMALL,
                        "--report",
                        "false",
                    ]
                )
                == 0
            )
        assert (
            json.loads((tmp_path / "run" / "summary.json").read_text())["epochs"] == 2
        )

    @pytest.mark.parametrize(
        ("errors", "name"), [("strict", b"\\udcff"), ("surrogateescape", b"\xff")]
    )
    def test_letters_that_the_output_cannot_show_are_escaped(
        self, monkeypatch, errors, name
    ):
        """The output of a POSIX locale keeps the bytes of names of files."""
        written = BytesIO()
        monkeypatch.setattr(
            sys, "stdout", TextIOWrapper(written, encoding="ascii", errors=errors)
        )
        monkeypatch.setitem(
            COMMANDS, "models", lambda arguments: sys.stdout.write("猫 ü \udcff\n")
        )
        assert main(["models"]) == 0
        assert written.getvalue() == b"\\u732b \\xfc " + name + b"\n"


MISSING = [
    ("soundfile", lambda: rate_of(Path("a.wav")), "series"),
    ("aeon.datasets", lambda: series_in(Path("a.ts"), SeriesForm()), "series"),
    ("starlette.applications", lambda: application(None), "explore"),
    ("uvicorn", lambda: serve(None), "explore"),
]


class TestCoreInstall:
    CODE = """
import sys
import torch, safetensors.torch
allowed = {name.partition(".")[0] for name in sys.modules} | set(sys.stdlib_module_names) | {"torchcaps"}
allowed |= {"numpy"}  # safetensors writes with it
allowed -= {"yaml", "PIL", "scipy", "sklearn"}

class OnlyTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, OnlyTorch())
import torchcaps
torchcaps.create_model("capsnet_digits").save_pretrained(sys.argv[1])
torchcaps.load_pretrained(sys.argv[1])
core = "torchcaps."
for need in (core + "train", core + "Classifier", core + "load_pretrained('a/b')", "__import__('torchcaps.mixture')"):
    try:
        eval(need)
    except ModuleNotFoundError as error:
        print(error)
"""

    def test_torch_and_safetensors_save_and_load_and_errors_say_what_to_install(
        self, tmp_path
    ):
        done = subprocess.run(
            [sys.executable, "-c", self.CODE, str(tmp_path / "model")],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            "trainings need torchcaps_lab, which is not installed: pip install "
            "torchcaps-lab",
            "classifiers need torchcaps_lab, which is not installed: pip install "
            "torchcaps-lab",
            "networks of the Hugging Face Hub need huggingface_hub, which is not "
            "installed: "
            "pip install 'torchcaps[hub]'",
            "mixtures as estimators need sklearn, which is not installed: pip install "
            "'torchcaps[mixture]'",
        ]

    @pytest.mark.parametrize(("module", "call", "extra"), MISSING)
    def test_a_command_names_the_extra_that_is_missing(
        self, module, call, extra, monkeypatch, capsys
    ):
        monkeypatch.setitem(sys.modules, module, None)
        monkeypatch.setitem(COMMANDS, "models", lambda arguments: call())
        assert main(["models"]) == 1
        error = capsys.readouterr().err
        assert f"need {module}, which is not installed: pip" in error
        assert f"'torchcaps-lab[{extra}]'" in error

    def test_another_missing_module_is_a_fault(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "absent", None)
        monkeypatch.setitem(COMMANDS, "models", lambda words: import_module("absent"))
        with pytest.raises(ModuleNotFoundError):
            main(["models"])


class TestPredict:
    def test_a_folder_and_a_pattern(self, run, photos, capsys):
        assert (
            main(
                [
                    "predict",
                    str(run),
                    str(photos / "red"),
                    str(photos / "*" / "01.png"),
                    "--json",
                ]
            )
            == 0
        )
        rows = [json.loads(row) for row in capsys.readouterr().out.splitlines()]
        expected = [
            *sorted((photos / "red").iterdir()),
            *sorted(photos.glob("*/01.png")),
        ]
        assert [row["file"] for row in rows] == list(map(str, expected))

    @pytest.mark.parametrize("form", ["--csv", "--json", "--top=2"])
    def test_names_of_files_command_no_terminal(
        self, form, run, photos, tmp_path, capsys
    ):
        """The defect: an escape sequence in a name went to the terminal as it was."""
        whole = tmp_path / "a\x1b[2Jb.png"
        broken = tmp_path / "c\x1b]0;d.png"
        whole.write_bytes((photos / "red" / "00.png").read_bytes())
        broken.write_bytes(b"no image")
        assert main(["predict", str(run), str(whole), str(broken), form]) == 1
        output = capsys.readouterr()
        assert "\x1b" not in output.out + output.err
        assert f"a\\{'u001b' if form == '--json' else 'x1b'}[2Jb.png" in output.out
        assert "c\\x1b]0;d.png: it is not an image" in output.err

    def test_errors_command_no_terminal(self, tmp_path, capsys):
        table = tmp_path / "t.csv"
        table.write_text("first\x1b[2J,second\u202e\n" + "1,2\n" * 9)
        assert status("check", str(table)) == 1
        assert status("check", f"{tmp_path}/\x9b2J") == 2
        output = capsys.readouterr()
        assert "first\\x1b[2J" in output.out
        assert not {"\x1b", "\x9b", "\u202e"} & {*output.out, *output.err}

    def test_bad_files_are_named_and_the_others_predicted(
        self, run, photos, tmp_path, capsys
    ):
        files = [
            photos / "red" / "00.png",
            tmp_path / "broken.png",
            tmp_path / "none.png",
            photos / "blue" / "00.png",
        ]
        files[1].write_bytes(files[0].read_bytes()[:50])
        assert main(["predict", str(run), *map(str, files), "--csv"]) == 1
        output = capsys.readouterr()
        assert [row["file"] for row in csv.DictReader(output.out.splitlines())] == [
            str(files[0]),
            str(files[3]),
        ]
        assert "broken.png" in output.err
        assert "none.png" in output.err
        assert "2 of 4 images could not be read" in output.err

    def test_files_are_streamed(self, run, photos):
        classifier = Classifier.open(run)
        opened, answered = [], []
        files = (opened.append(file) or file for file in sorted(photos.glob("*/*.png")))
        for file, answer in classifier.stream(files, batch_size=5):
            answered.append((file, answer.classes))
            assert len(opened) - len(answered) < 5
        assert [file for file, _ in answered] == opened
        assert [classes for _, classes in answered] == [
            expected.classes for expected in classifier(opened)
        ]

    def test_the_most_active_classes(self, run, photos, capsys):
        file = str(photos / "red" / "00.png")
        assert main(["predict", str(run), file, "--csv", "--top", "2"]) == 0
        first, second = csv.DictReader(capsys.readouterr().out.splitlines())
        answer = Classifier.open(run)(file)
        assert (
            (first["class"], second["class"])
            == answer.top(2)
            == tuple(sorted(answer.lengths, key=lambda name: -answer.lengths[name])[:2])
        )
        ranks = [(row["rank"], row["predicted"]) for row in (first, second)]
        assert ranks == [("1", "1"), ("2", "0")]
        assert float(second["length"]) == pytest.approx(
            answer.lengths[second["class"]], rel=1e-4
        )
        assert float(second["calibrated_probability"]) == pytest.approx(
            answer.calibrated[second["class"]], rel=1e-4
        )
        assert main(["predict", str(run), file, "--top", "3", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["top"] == list(answer.top(3))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--device", "cuda:77"], "--device cuda:77"),
            (["--device", "abacus"], "--device abacus"),
            (["--json", "--csv"], "exclude each other"),
        ],
    )
    def test_wrong_options_are_named(self, run, photos, options, message, capsys):
        assert (
            main(["predict", str(run), str(photos / "red" / "00.png"), *options]) == 1
        )
        assert message in capsys.readouterr().err

    def test_nothing_to_predict_is_named(self, run, tmp_path, capsys):
        assert main(["predict", str(run), str(tmp_path)]) == 1
        assert f"there are no images in {tmp_path}" in capsys.readouterr().err
        assert main(["predict", str(run), str(tmp_path / "*.jpg")]) == 1
        assert "no file fits the pattern" in capsys.readouterr().err

    def test_an_empty_folder_leaves_the_others(self, run, photos, tmp_path, capsys):
        assert main(["predict", str(run), str(tmp_path), "", str(photos / "red")]) == 1
        output = capsys.readouterr()
        assert f"there are no images in {tmp_path}\n" in output.err
        assert "must be names of files or folders, got an empty one\n" in output.err
        assert str(photos / "red" / "00.png") in output.out

    def test_the_output_says_what_is_a_probability_and_what_a_length(
        self, run, photos, capsys
    ):
        assert main(["predict", str(run), str(photos / "red" / "00.png")]) == 0
        first, second, line = capsys.readouterr().out.splitlines()
        assert "probability of the class: calibrated, temperature scaling" in first
        assert "not a probability" in second
        answer = Classifier.open(run)(photos / "red" / "00.png")
        (name,) = answer.classes
        assert (
            f"{name} ({answer.calibrated[name]:.1%}, length {answer.lengths[name]:.3f})"
            in line
        )

    def test_the_run_keeps_a_calibration_on_its_validation_images(self, run, photos):
        classifier = Classifier.open(run)
        data = ImageFolder(str(photos), size=12, resize="stretch", validation=0.6)
        assert classifier.calibration.images == len(data.validation) >= LEAST_IMAGES
        activation = classifier.activations(data.validation.inputs)
        assert (
            classifier.calibration.config()
            == classifier.task.calibrate(
                classifier.network, classifier.prepared(data.validation)
            ).config()
        )
        rows = torch.tensor(
            [
                list(answer.calibrated.values())
                for answer in classifier(data.validation.inputs)
            ]
        )
        torch.testing.assert_close(rows, classifier.calibration(activation).float())


TASK = '''
from torchcaps_lab.tasks import Classification, register_task

@register_task("twice")
class Twice(Classification):
    """A task of one's own."""
'''


def test_a_saved_network_names_the_module_of_its_task(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "their_task.py").write_text(TASK)
    options = [
        "--import",
        "their_task",
        "--data",
        "Digits",
        "--task",
        "their_task.Twice",
        "--epochs",
        "1",
    ]
    assert main(["train", *options, "--run", "run", "--report", "false", *SMALL]) == 0
    assert main(["predict", "run", "x.png"]) == 1  # the run imports it
    assert "their_task" not in capsys.readouterr().err
    from torchcaps_lab.tasks.base import TASKS

    del TASKS["twice"]
    assert main(["predict", "run/model", "x.png"]) == 1
    assert "--import their_task" in capsys.readouterr().err


class TestTrainInPython:
    def test_train_is_the_command_in_one_line(self, photos, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        small = {"channels": 4, "types": 2, "decoder_hidden": None}
        common = {
            "model": "capsnet_digits",
            "model_args": small,
            "trainer": {"accelerator": "cpu"},
        }
        lines: list[str] = []
        actual = tc.train(
            photos, size=8, epochs=1, report=False, show=lines.append, **common
        )
        assert actual.run == Path("runs/photos")
        assert actual.summary["epochs"] == 1
        assert actual.summary["command"].startswith("torchcaps.train(")
        assert len(lines) == 1
        assert actual(photos / "red" / "00.png").classes[0] in actual.classes
        written = yaml.safe_load((actual.run / "config.yaml").read_text())
        arguments = [str(photos), "--data.size", "8", "--epochs", "1"]
        arguments += [
            "--model",
            "capsnet_digits",
            "--model_args.channels",
            "4",
            "--model_args.types",
            "2",
        ]
        arguments += [
            "--model_args.decoder_hidden",
            "null",
            "--trainer.accelerator",
            "cpu",
            "--report",
            "false",
        ]
        assert main(["train", *arguments, "--run", "command"]) == 0
        command = yaml.safe_load(Path("command/config.yaml").read_text())
        assert {**written, "run": ""} == {**command, "run": ""}
        weights = tc.load_pretrained("command/model").state_dict()
        assert all(
            torch.equal(weights[name], value)
            for name, value in actual.network.state_dict().items()
        )

    @pytest.mark.parametrize(
        "routing",
        [
            pytest.param("kmeans", id="name", marks=pytest.mark.thorough),
            pytest.param(tc.create_routing("kmeans", steps=2), id="object"),
        ],
    )
    def test_a_routing_as_create_routing_has_it(self, routing, tmp_path):
        """The folder of the run has all options, to go on with."""
        small = {"channels": 4, "types": 2, "decoder_hidden": None}
        options = {
            "model": "capsnet_digits",
            "model_args": small,
            "epochs": 1,
            "report": False,
            "routing": routing,
        }
        actual = tc.train(
            "Digits", run=tmp_path / "run", trainer={"accelerator": "cpu"}, **options
        )
        assert main(["train", "--resume", str(actual.run), "--epochs", "2"]) == 0
        steps = tc.load_pretrained(actual.run / "model").routing.config()["steps"]
        assert steps == (3 if routing == "kmeans" else 2)

    @pytest.mark.parametrize(
        ("data", "options", "message"),
        [
            (
                "nowhere",
                {},
                "there is no folder nowhere .*, and no data set of that name",
            ),
            (
                "Digits",
                {"sise": 8},
                "(?s)no option sise; did you mean size.*A training takes .*epochs.*"
                "Digits takes .*size",
            ),
            (
                "Digits",
                {"epoch": 8},
                "did you mean epochs.\\n  A training takes",
            ),
            ("Digits", {"epochs": "many"}, "epochs"),
            (
                "Digits",
                {"loss": torch.nn.MSELoss()},
                r"loss must be a name, .*to be saved; got MSELoss",
            ),
        ],
    )
    def test_train_names_what_does_not_fit(
        self, data, options, message, tmp_path, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            tc.train(data, **options)
        assert not (tmp_path / "runs").exists()
