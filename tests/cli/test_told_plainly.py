"""What the commands say of options that cannot be, and that they write over nothing."""

import json
import math
import socket
from pathlib import Path

import pytest
import torch
from PIL import Image

import torchcaps_lab.cli as cli
from tests.options import typed
from torchcaps import Classifier, create_model, train
from torchcaps.models import load_pretrained
from torchcaps_lab.cli import main
from torchcaps_lab.data import Digits, Words
from torchcaps_lab.explore import Explorer
from torchcaps_lab.options.reading import as_yaml
from torchcaps_lab.run_folder import RunFolder, read_summary


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saved networks of images and of words, and a picture."""
    folder = tmp_path_factory.mktemp("told")
    small = {"channels": 4, "types": 2, "decoder_hidden": (8,)}
    create_model("capsnet_digits", **small).save_pretrained(
        folder / "digits", classes=list("0123456789")
    )
    words = Words.of(["who wrote it", "where is it"])
    text = create_model(
        "text_capsnet",
        vocabulary=len(words),
        classes=2,
        word_dim=4,
        types=2,
        parts=2,
        pose_dim=2,
    )
    text.save_pretrained(
        folder / "texts", reader={"name": "texts", "words": words.config()}
    )
    Image.fromarray(Digits().test.inputs[0, 0].numpy()).save(folder / "one.png")
    (folder / "one" / "model").mkdir(parents=True)
    for name in ("config.yaml", "model/model.safetensors"):
        (folder / "one" / name).touch()
    (folder / "one.onnx").touch()
    return folder


@pytest.fixture(autouse=True)
def _there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def told_by(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that fails says."""
    try:
        status = main(arguments)
    except SystemExit as stop:  # wrong usage
        status = stop.code
    assert status in (1, 2)
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["models", "nope*"],
            "no network matches 'nope*'; there are attentioncapsnet, ",
        ),
        (["predict", "", "x.png"], "error: run must not be empty"),
        (["check", ""], "an argument must not be empty"),
        (
            ["train", "--data", "ImageFolder", "--data.root", "", "--run", "r"],
            "--data.root must not be empty",
        ),
        (
            ["predict", "digits", "one.png", "--resize", "keep"],
            "--resize keep is for networks of any size, and a CapsNet",
        ),
        (
            ["predict", "texts", "who", "--resize", "crop"],
            "--resize is for images: a TextCapsNet takes words",
        ),
        (
            ["predict", "digits", "one.png", "--boxes", "."],
            "--boxes . exists already and is not empty",
        ),
        (
            ["predict", "digits", "one.png", "--boxes", "one.png"],
            "--boxes one.png exists already, and is a file: ch",
        ),
        (
            ["transfer", "one.png", "one.png", "--run", "texts"],
            "a TextCapsNet takes words and draws no images",
        ),
        (
            ["transfer", "one.png", "one.png", "--run", "digits", "--out", "x"],
            "--out must be the name of a picture",
        ),
        (
            ["train", "--data", "Digits", "--routing.steps", "2"],
            "routing must have a name beside its arg",
        ),
        (
            ["train", "--resume", "r", "--run", "s"],
            "--resume continues in r itself and takes no --run, got s",
        ),
        (
            ["train", "--data", "Digits", "--run", "one.png"],
            "one.png is not a folder: choose another --run\n",
        ),
        (
            ["train", "--data", "Digits", "--run", "digits"],
            "exists already and is not empty: choose another --run\n",
        ),
        (
            ["train", "--config", "nowhere.yaml", "--run", "r"],
            "--config: there is no file nowhere.yaml",
        ),
        (
            ["evaluate", "digits"],
            "digits is a saved network, which names no data: name some with --data",
        ),
        (["evaluate", "."], ". holds no config.json: it is not a saved network"),
        (
            ["predict", "texts", "who", "--boxes", "bx"],
            "--boxes: a TextCapsNet does not predict boxes",
        ),
        (
            ["export", "digits", "--to", "y.txt"],
            "--to must end in .onnx (an ONNX file) or .pt2 (an exported ",
        ),
        (
            ["explain", "digits", "--data", "Digits"],
            "--out must name a folder for the report: digits is not",
        ),
        *(
            (
                [command, "one/model/model.safetensors", *others],
                "one/model/model.safetensors is a file. Give the folder of the run: "
                "one\n",
            )
            for command, *others in (
                ["predict", "one.png"],
                ["evaluate"],
                ["explain"],
                ["explain", "--data", "Digits"],
                ["export"],
                ["explore"],
            )
        ),
        (
            ["transfer", "one.png", "one.png", "--run", "one/config.yaml"],
            "one/config.yaml is a file. Give the folder of the run: one\n",
        ),
        (
            ["train", "--resume", "one/config.yaml"],
            "one/config.yaml is a file. Give the folder of the run: one\n",
        ),
        (
            ["explain", "digits", "--out", "one.png"],
            "--out must be a folder, and one.png is a file",
        ),
        (
            ["export", "digits", "--to", "one.onnx"],
            "one.onnx exists already: choose another file with --to, or add",
        ),
        (["export", "digits", "--to", "."], "--to must be a file, and . is a folder"),
        (["explain", "digits", "--batch_size", "3"], "batch_size"),  # it had no effect
        (["predict", "digits", "one.png", "--top", "0"], "--top must be at least 1"),
        (
            ["predict", "digits", "a.png", "--batch_size", "0"],
            "size must be at least 1",
        ),
        (
            ["transfer", "--steps", "0", "--run", "digits", "a", "b"],
            "steps must be at least 1",
        ),
        (["explore", "digits", "--port", "70000"], "--port must be at most 65535"),
    ],
    ids=str,
)
def test_wrong_options(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    error = told_by(capsys, *arguments)
    assert error.startswith(f"torchcaps {arguments[0]}: error: ")
    assert message in error
    assert before == {
        path: path.read_bytes() for path in Path().rglob("*") if path.is_file()
    }


DIGITS = ["--data", "Digits", "--model", "capsnet_digits", "--run", "r"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["train", *DIGITS, "--task", "SeveralLabels", "--task.count", "-1"],
            "error: count must be at least 1",
        ),
        (
            ["evaluate", "digits", "--data", "ImageFolder", "--data.root", "nowhere"],
            "error: root nowhere does not ex",
        ),
        (
            ["evaluate", "digits", "--data", "text", "--data.path", "x"],
            "error: there is no option --data.path",
        ),
    ],
    ids=str,
)
def test_nothing_of_types_that_were_not_meant(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = told_by(capsys, *arguments)
    assert message in error
    assert "NoneType" not in error
    assert len(error.splitlines()) <= 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["train", *DIGITS, "--batch-size", "3"],
            "unrecognized arguments: --batch-size; did you mean --batch_size?\n",
        ),
        (
            ["predict", "digits", "x.png", "--jsn"],
            "unrecognized arguments: --jsn; did you mean --json?\n",
        ),
        (
            ["train", *DIGITS, "--data.validatoin", "0"],
            "there is no option data.validatoin; did you mean validation?\n",
        ),
        (
            ["train", *DIGITS, "--trainer.max_epochs", "1"],
            "max_epochs; torchcaps sets it itself, from epochs\n",
        ),
        (
            ["train", *DIGITS, "--speed.precision", "16-mixed"],
            "no option speed.precision; did you mean trainer.precision?\n",
        ),
        (["train", *DIGITS, "--xyzzy"], "unrecognized arguments: --xyzzy\n"),
    ],
    ids=str,
)
def test_a_misspelt_option_is_told_its_like(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in told_by(capsys, *arguments)


def test_help_lists_options_of_groups_without_markup(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--routing", "dynamic", "--preprocess", "Preprocess", "--help"])
    shown = capsys.readouterr().out
    assert "(LearnedSquash)" in shown
    assert "`" not in shown
    assert "--trainer.precision" in shown
    assert "--preprocess.flip" in shown


@pytest.mark.parametrize("name", ["classes", "num_classes"])
def test_the_data_decide_the_number_of_classes(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--epochs", "1", f"--model_args.{name}", "12"]
    error = told_by(capsys, "train", "Digits", "--run", str(tmp_path / "run"), *options)
    assert f"model_args.{name} must be 10, as many as the data have, got 12" in error


@pytest.mark.parametrize(
    "arguments",
    [["who", "", "where"], ["--top=1", "", "who", "where"], ["--", "", "who", "where"]],
    ids=str,
)
def test_an_empty_text_is_named_and_the_others_are_read(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "texts", *arguments]) == 1
    out, err = capsys.readouterr()
    assert [line.partition(":")[0] for line in out.splitlines()[2:]] == ["who", "where"]
    assert err == (
        "torchcaps predict: there are no words in ''\ntorchcaps predict: error: 1 of "
        "3 texts could not be read\n"
    )


def test_an_empty_text_after_a_flag_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["predict", "texts", "--json", "", "who"]) == 1
    out, err = capsys.readouterr()
    assert [json.loads(line)["file"] for line in out.splitlines()] == ["who"]
    assert "there are no words in ''" in err


def test_json_has_null_for_what_is_not_finite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = load_pretrained("digits")
    with torch.no_grad():
        for weights in network.parameters():
            weights.mul_(1e30)  # finite, and squares of what they make are not
    network.save_pretrained(tmp_path, **network.extra)
    assert main(["predict", str(tmp_path), "one.png", "--json"]) == 0
    out, err = capsys.readouterr()
    row = json.loads(out, parse_constant=pytest.fail)  # of NaN and Infinity
    assert row["length"] is None
    assert set(row["probabilities"].values()) == set(row["poses"]["3"]) == {None}
    assert (
        "warning: the activations of 1 of 1 are not finite: their answers say nothing"
        in err
    )
    folder = RunFolder(tmp_path)
    folder.write_summary(
        {"last_epoch": {"val_loss": math.nan, "rows": (1.5, math.inf)}, "epochs": 3}
    )
    assert read_summary(folder) == {
        "last_epoch": {"val_loss": None, "rows": [1.5, None]},
        "epochs": 3,
    }


def test_images_get_the_shape_that_the_network_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "0123456789":
        (tmp_path / name).mkdir()
        for side in (5, 12):
            Image.new("RGB", (side, 9)).save(tmp_path / name / f"{side}.png")
    options = ["--data", "ImageFolder", "--data.root", str(tmp_path), "--split", "all"]
    assert main(["evaluate", "digits", *options, "--json"]) == 0
    out, err = capsys.readouterr()
    brought = (
        "note: images of another shape are converted to 8 x 8 pixels, grey, as the "
        "network takes them\n"
    )
    assert (json.loads(out)["images"], err) == (20, brought)
    assert main(["evaluate", "digits", *options, "--data.resize", "crop"]) == 0
    assert capsys.readouterr().err == brought + (
        "note: these images are resized with crop, but the network was trained with "
        "pad: add --data.resize pad\n"
    )
    assert main(["evaluate", "digits", *options, "--data.size", "9"]) == 1
    assert (
        "the images are (1, 9, 9), the network takes (1, 8, 8)"
        in capsys.readouterr().err
    )


def test_a_resize_that_data_do_not_take_is_not_advised(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ("--data", "Digits", "--data.size", "28", "--split", "validation")
    assert main(["evaluate", "mnist/capsnet_small", *given]) == 0
    assert "--data.resize" not in capsys.readouterr().err


def test_a_resumed_run_whose_images_have_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        "--data",
        "ImageFolder",
        "--data.root",
        "nowhere",
        "--run",
        str(tmp_path),
    ]
    RunFolder(tmp_path).config.write_text(
        as_yaml(typed(*options).plain()), encoding="utf-8"
    )
    error = told_by(capsys, "train", "--resume", str(tmp_path))
    assert "error: root nowhere does not exist" in error
    assert error.endswith(
        "; if the data have moved, name their new place with --data.root\n"
    )


def test_a_run_is_tested_on_images_that_have_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error asked for the name of a class that it did not name."""
    run, moved = tmp_path / "run", tmp_path / "moved"
    for number in range(20):
        folder = moved / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 12 * number).save(folder / f"{number}.png")
    network = create_model("capsnet_digits", classes=2)
    network.save_pretrained(run / "model", classes=["a", "b"])
    options = ("--data", "ImageFolder", "--data.root", "gone", "--run", str(run))
    RunFolder(run).config.write_text(as_yaml(typed(*options).plain()), encoding="utf-8")
    error = told_by(capsys, "evaluate", str(run))
    assert error.endswith("name their new place with --data.root FOLDER\n")
    assert main(["evaluate", str(run), "--data", str(moved)]) == 0


def test_all_texts_of_a_table_are_tested_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "all.csv").write_text(
        "text,label\n" + "who wrote it,0\nwhere is it,1\n" * 5
    )
    network = load_pretrained("texts")
    network.save_pretrained(tmp_path / "run", **network.extra)
    options = [
        "--data",
        "Text",
        "--data.root",
        str(tmp_path / "all.csv"),
        "--split",
        "all",
    ]
    assert main(["evaluate", str(tmp_path / "run"), *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 10


def test_a_saved_network_on_named_images(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["evaluate", "digits", "--data", "Digits"]) == 0
    assert "of 359 images" in capsys.readouterr().out


def test_ctrl_c_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(arguments: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "models", stopped)
    assert main(["models"]) == 130
    assert capsys.readouterr().err == "torchcaps models: stopped\n"


def test_check_imports_as_all_commands_do(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "told_module.py").write_text("")
    assert "must hold a folder for each" in told_by(
        capsys, "check", "digits", "--import", "told_module.py"
    )


def test_texts_are_told_by_where_they_are_and_how_they_begin(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("lines.txt").write_text(f"who wrote it\n{'a long text ' * 40}\n")
    try:
        assert main(["predict", "texts", "lines.txt"]) == 0
        first, second = [
            line
            for line in capsys.readouterr().out.splitlines()
            if not line.startswith("#")
        ]
        assert first.startswith("lines.txt:1: who wrote it: ")
        assert second.startswith("lines.txt:2: a long text a long")
        assert "…: " in second
        assert len(second) < 200
        assert main(["predict", "texts", "lines.txt", "where is it", "--json"]) == 0
        places = [
            json.loads(line).get("place")
            for line in capsys.readouterr().out.splitlines()
        ]
        assert places == ["lines.txt:1", "lines.txt:2", None]
    finally:
        Path("lines.txt").unlink()


def test_an_error_repeats_no_megabytes_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "names.csv"
    table.write_text("x" * 100_000 + "\n")
    error = told_by(capsys, "train", str(table), "--run", str(tmp_path / "run"))
    assert len(error) < 5_000
    assert "--data.text" in error


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = told_by(
            capsys, "explore", "digits", "--port", str(port), "--open", "false"
        )
    assert error == (
        f"torchcaps explore: error: port {port} of 127.0.0.1: it is in use; --port "
        "0 takes a free one\n"
    )
    error = told_by(capsys, "explore", "digits", "--host", "192.0.2.1", "--open", "no")
    assert "port 8765 of 192.0.2.1: " in error
    assert "--host" in error


def test_explore_leaves_out_what_it_cannot_show(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One run of series among others refused all."""
    opened: list[Explorer] = []
    monkeypatch.setattr(
        "torchcaps_lab.explore.serve", lambda explorer, *_: opened.append(explorer)
    )
    series = str(Path(__file__).parents[1] / "kinds" / "saved" / "series_capsnet")
    assert main(["explore", series, "digits"]) == 0
    assert opened[0].networks() == ["digits"]
    assert f"note: {series}: the page has nothing" in capsys.readouterr().err
    assert f"error: {series}: the page has" in told_by(capsys, "explore", series)


@pytest.mark.parametrize(
    "command",
    [
        "explain one --out out",
        "export digits --to new.onnx",
        "predict digits one.png --masks masks",
        "transfer one.png one.png --run digits --out new.png",
        "train Digits --run new",
        "convert one.onnx --to new",
    ],
)
def test_where_nothing_can_be_written(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a disk that is only read: some commands worked first, then failed with the
    words of the system.
    """
    monkeypatch.setattr("os.access", lambda *_: False)
    error = told_by(capsys, *command.split())
    assert "cannot be written, because" in error
    assert error.rstrip().rpartition(" ")[2] in (
        "--out",
        "--to",
        "--run",
        "--masks",
        "folder",
    )


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("train photos --device cuda", "did you mean --trainer.accelerator?"),
        ("train photos --img-size 64", "did you mean --data.size?"),
        ("predict photo.jpg", "it takes RUN IMAGES, in this order"),
        ("explain", "it takes RUN [FOLDER], in this order"),
        ("predict mnist/efficent_capsnet p.png", "mean mnist/efficient_capsnet?"),
        ("explain runs/nope", "there is no folder runs/nope"),
        (
            "explain mnist/efficient_capsnet --out x",
            "names no data: name some with --data",
        ),
        ("evaluate digits --data Digits --strange words.txt", "a decoder that learned"),
    ],
)
def test_a_first_try_is_told_what_to_type(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, hint: str
) -> None:
    """The hint came late, named what fails too, or there was none."""
    if "evaluate" in command:
        bare = create_model("capsnet_digits", channels=4, types=2, decoder_hidden=None)
        bare.save_pretrained(folder / "bare", classes=list("0123456789"))
        command = command.replace("digits", "bare")
    assert hint in told_by(capsys, *command.split())


@pytest.mark.parametrize(
    "command",
    [
        "check {}",
        "train {}",
        "evaluate {}",
        "explain {}",
        "predict {} one.png",
        "train --resume {}",
        "explore {}",
        "export {} --to x.onnx",
        "evaluate digits {}",
        "predict digits {}",
        "train --config {}",
    ],
)
def test_a_path_that_is_missing_is_named_with_what_is_like_it(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    """They said "[Errno 2] No such file", or had no hint."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (folder / "my_photos" / "first").mkdir(parents=True, exist_ok=True)
    error = told_by(capsys, *command.format("my_fotos/first").split())
    assert "my_fotos/first" in error
    assert "did you mean my_photos/first?" in error
    assert "Errno" not in error
    assert len(error.splitlines()) <= 2


def test_an_image_that_is_missing_is_named_in_python(folder: Path) -> None:
    classifier = Classifier.open("digits")
    with pytest.raises(FileNotFoundError, match=r"no file onne\.png .* mean one\.png"):
        classifier("onne.png")


def test_another_folder_is_tested_on_behind_the_run(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A folder with the name of a data set, too, as in ``train FOLDER``."""
    digits = str(folder / "digits")
    monkeypatch.chdir(tmp_path)
    for name in "0123456789":
        Path("mnist", name).mkdir(parents=True)
        Image.new("L", (8, 8), int(name)).save(f"mnist/{name}/one.png")
    assert main(["evaluate", digits, "mnist", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 10
    assert main(["explain", digits, "mnist", "--out", "page"]) == 0
    both = told_by(capsys, "evaluate", digits, "mnist", "--data", "Digits")
    assert "both name the data" in both


def test_a_resumed_run_keeps_its_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It trained nothing, after the data were read, and named weights."""
    run = str(tmp_path / "run")
    small = ("--model_args.channels", "4", "--model_args.types", "2")
    once = ("--epochs", "1", "--report", "false", "--batch_size", "512")
    assert main(["train", "Digits", *small, *once, "--run", run]) == 0
    error = told_by(capsys, "train", "--resume", run, "--model", "capsnet_small")
    assert "model was capsnet_digits, is capsnet_small" in error
    error = told_by(capsys, "train", "--resume", run, "--model_args.types", "3")
    assert "model_args.types was 2, is 3" in error
    with pytest.raises(ValueError, match="model was capsnet_digits, is capsnet_small"):
        train("Digits", run=run, resume=True, model="capsnet_small", show=None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Digits", {"epoch": 3}), "did you mean epochs"),
        (("Digits", {"image_size": 3}), "did you mean size"),
        (("Digits", {"device": "cuda"}), "did you mean trainer.accelerator"),
        ((None, {}), "data must be the path of a folder"),
        ((torch.zeros(4, 8, 8), {}), "the labels are missing"),
        (([torch.zeros(8, 8)], {"labels": [0, 1]}), "1 image and 2 labels"),
    ],
    ids=["epoch", "image_size", "device", "None", "one array", "labels"],
)
def test_a_training_in_python_says_what_to_give(
    arguments: tuple[object, dict[str, object]], message: str
) -> None:
    data, options = arguments
    with pytest.raises(ValueError, match=message):
        train(data, show=None, **options)


def test_images_in_a_list_with_labels_beside_them_are_trained_on(
    tmp_path: Path,
) -> None:
    """The default network was larger than images of 8 pixels, and a list was no
    data.
    """
    images = [torch.full((8, 8), value / 20) for value in range(20)]
    labels = [int(value > 9) for value in range(20)]
    how = {"run": tmp_path / "run", "epochs": 1, "report": False, "show": None}
    classifier = train(images, labels, **how)
    assert classifier.summary["model"] == "capsnet_digits"


def test_python_says_what_to_give(folder: Path) -> None:
    with pytest.raises(TypeError, match=r"Classifier\.open\(path\) opens a saved one"):
        Classifier("photos/cats")
    with pytest.raises(ValueError, match=r"give image_shape=\(channels, height, width"):
        create_model("capsnet_digits", in_chans=1)
    with pytest.raises(ValueError, match="forward_features of the network returns"):
        create_model("capsnet_digits", features_only=True)
