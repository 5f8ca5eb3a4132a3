"""Exported files: the same answers as the network's, for any batch, without this
package.
"""

import json
import logging
import re
import runpy
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.ops.test_compiled_and_exported import SMALLER
from tests.small_networks import shipped
from torchcaps.models import ImageClassifier, Prediction, create_model
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.cli import main
from torchcaps_lab.cli.exporting import (
    CLOSE,
    NOTES,
    Exported,
    _digamma,
    _off,
    _without_own_noise,
    export,
)
from torchcaps_lab.data import Preprocess, Scale, Words
from torchcaps_lab.kinds.images.reader import ImageReader

ROOT = Path(__file__).parents[2]
SLOW = pytest.mark.slow

pytestmark = pytest.mark.filterwarnings("ignore")  # the exporters' own


@pytest.fixture
def onnxruntime() -> object:
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)
    return pytest.importorskip("onnxruntime")


LARGER = {
    "matrixcapsnet": 4,
    "matrixcapsnet_cifar10": 2,
    "matrixcapsnet_small": 2,
    "scene_capsnet": 2,
}
"""Factors of the weights. Untrained, these networks' own answers in single precision
are up to 0.002 from those in double: parents are all but alike, and EM's standardised
costs, or what a scene's map leaves of two shares, are differences of rounding. Files of
trained ones (those in the package) are within 1e-5.
"""


def reader_of(network: Any) -> dict[str, Any]:
    """What a network of texts or series is saved with, to read them."""
    if network.takes == "words":
        words = Words(tuple(f"w{number}" for number in range(network.vocabulary)))
        return {"name": "texts", "words": words.config()}
    channels = network.in_channels
    return {"name": "series", "scale": Scale().config(), "channels": channels}


@SLOW
@pytest.mark.parametrize("form", ["onnx", "torch-export"])
@pytest.mark.parametrize("name", shipped())
def test_every_network(
    name: str, form: str, tmp_path: Path, onnxruntime: object
) -> None:
    """With images of two batch sizes that were not traced: 5 inside of export, 3
    here.
    """
    torch.manual_seed(0)
    network = create_model(name, **SMALLER.get(name, {}))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter *= LARGER.get(name, 1) if parameter.ndim > 1 else 1
    if network.takes != "images":
        network.extra["reader"] = reader_of(network)
    classifier = Classifier(network)
    file = tmp_path / "file"
    assert export(classifier, file, form) <= CLOSE
    images = torch.rand(3, *classifier.image_shape)
    if network.takes != "images":
        images = network.examples(9)[3:, ..., :5]
    if form == "onnx":
        inputs = {network.takes: images.numpy()}
        actual = torch.from_numpy(
            onnxruntime.InferenceSession(file).run(["activation"], inputs)[0]
        )
    else:
        actual = torch.export.load(file).module()(images)[0]
    with torch.no_grad():
        expected = network(images).activation
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "arguments", "lengths"),
    [
        (
            "text_capsnet_b",
            {"stride": 2, "word_dim": 8, "channels": 4, "types": 2},
            (9, 12, 7),
        ),
        # Of 16 moments there is one feature, and a program takes two or more.
        (
            "series_capsnet",
            {"strides": (2, 2, 2, 2), "channels": (4, 4, 4, 4)},
            (33, 100, 17),
        ),
    ],
)
def test_programs_take_other_lengths(
    name: str, arguments: dict[str, Any], lengths: Sequence[int], tmp_path: Path
) -> None:
    """The defect: strides fixed the length, or let only even ones through."""
    network = create_model(name, **arguments).eval()
    network.extra["reader"] = reader_of(network)
    file = tmp_path / "file"
    assert export(Classifier(network), file, "torch-export") <= CLOSE
    program = torch.export.load(file).module()
    longest = network.examples(4)
    for length in (longest.shape[-1], *lengths):
        inputs = longest[..., :length]
        with torch.no_grad():
            expected = network(inputs).activation
        torch.testing.assert_close(program(inputs)[0], expected, rtol=1e-4, atol=1e-4)


def test_answers_are_compared_at_two_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(model: Any, images: Any, part: Path, notes: Any) -> Any:
        part.touch()
        least = images.shape[-1]
        return lambda inputs: [
            values * (1 if inputs.shape[-1] == least else 2) for values in model(inputs)
        ]

    monkeypatch.setattr("torchcaps_lab.cli.exporting._write_program", write)
    network = create_model("series_capsnet", channels=(4,), strides=(1,)).eval()
    network.extra["reader"] = reader_of(network)
    with pytest.raises(ValueError, match="the answers of an exported program differ"):
        export(Classifier(network), tmp_path / "file.pt2", "torch-export")


def test_the_pixels_of_slots_are_written() -> None:
    network = create_model("slot_autoencoder", image_shape=(3, 8, 8), classes=3).eval()
    names = Exported(Classifier(network)).names(torch.rand(2, 3, 8, 8))
    assert {"masks", "assigned"} <= {*names}


@pytest.mark.thorough
def test_onnx_with_the_preparation_of_images(
    tmp_path: Path, onnxruntime: object
) -> None:
    torch.manual_seed(0)
    network = create_model("capsnet_digits", channels=4, types=2, decoder_hidden=(8,))
    preprocess = Preprocess(rescale=12, crop=8, standardise=True)
    network.save_pretrained(
        tmp_path / "saved",
        reader={
            "name": "images",
            "image_shape": [1, 16, 16],
            "preprocess": preprocess.config(),
        },
        classes=list("abcdefghij"),
    )
    file = tmp_path / "digits.onnx"
    assert main(["export", str(tmp_path / "saved"), "--to", str(file)]) == 0
    images = torch.rand(3, 1, 16, 16)
    session = onnxruntime.InferenceSession(file)
    notes = json.loads(session.get_modelmeta().custom_metadata_map["torchcaps"])
    assert (
        notes["outputs"]
        == [node.name for node in session.get_outputs()]
        == ["activation", "pose", "reconstruction"]
    )
    assert notes["classes"] == list("abcdefghij")
    assert notes["image_shape"] == [1, 16, 16]
    actual = session.run(["activation"], {"images": images.numpy()})[0]
    expected = Classifier.open(tmp_path / "saved").activations(images)
    torch.testing.assert_close(torch.from_numpy(actual), expected, rtol=1e-4, atol=1e-5)

    Image.fromarray((255 * images[0, 0]).byte().numpy()).save(tmp_path / "image.png")
    example = [
        sys.executable,
        str(ROOT / "examples" / "run_onnx.py"),
        str(file),
        str(tmp_path / "image.png"),
    ]
    output = subprocess.run(
        example, capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout
    assert output.splitlines()[0].startswith("abcdefghij"[int(np.argmax(actual[0]))])

    missing = subprocess.run(
        [*example[:-1], "no.png"], capture_output=True, text=True, cwd=tmp_path
    )
    assert missing.returncode == 1
    assert missing.stderr.startswith("no.png cannot be read: ")


@pytest.mark.parametrize("resize", ["pad", "crop", "stretch"])
def test_the_example_reads_pictures_as_the_training_does(
    resize: str, tmp_path: Path, onnxruntime: object
) -> None:
    pixels = torch.randint(256, (30, 20, 4), generator=torch.Generator().manual_seed(0))
    turned = Image.Exif()
    turned[0x0112] = 6
    file = tmp_path / "turned.png"
    Image.fromarray(pixels.byte().numpy()).save(file, exif=turned)
    reader = ImageReader((3, 12, 16), resize, background="white")
    read = runpy.run_path(str(ROOT / "examples" / "run_onnx.py"))["pixels_of"]
    actual = torch.from_numpy(read(str(file), reader.notes()))
    assert torch.equal(actual, reader.read(file).values)


def test_the_example_shows_classes_of_pixels(
    tmp_path: Path,
    onnxruntime: object,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It took each input for ``images``, and each answer for one number a class."""
    notes = {"classes": ["sea", "sky"], "image_shape": [1, 4, 5], "resize": "keep"}
    metadata = SimpleNamespace(custom_metadata_map={"torchcaps": json.dumps(notes)})
    activation = np.zeros((1, 2, 4, 5), np.float32)
    activation[0, 1, 2, 3] = 0.75
    session = SimpleNamespace(
        get_modelmeta=lambda: metadata,
        get_inputs=lambda: [SimpleNamespace(name="pixels")],
        run=lambda names, inputs: [activation[: len(inputs["pixels"])]],
    )
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: session)
    Image.new("L", (5, 4)).save(tmp_path / "image.png")
    example = runpy.run_path(str(ROOT / "examples" / "run_onnx.py"))
    example["main"]("cells.onnx", str(tmp_path / "image.png"))
    assert capsys.readouterr().out.splitlines() == ["sky: 0.750", "sea: 0.000"]


@pytest.mark.thorough
def test_a_program_of_standard_operators(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = create_model(
        "capsnet_digits",
        channels=4,
        types=2,
        decoder_hidden=None,
        routing={"name": "mean"},
    )
    export(Classifier(network), tmp_path / "digits.pt2", "torch-export")
    extra = {NOTES: ""}
    program = torch.export.load(tmp_path / "digits.pt2", extra_files=extra)
    called = {
        str(node.target) for node in program.graph.nodes if node.op == "call_function"
    }
    assert "aten.convolution.default" in called or "aten.conv2d.default" in called
    assert not [name for name in called if "torchcaps" in name]
    assert json.loads(extra[NOTES])["outputs"] == ["activation", "pose"]


@SLOW
def test_a_program_without_this_package(tmp_path: Path) -> None:
    torch.manual_seed(0)
    classifier = Classifier(
        create_model("capsnet_digits", channels=4, types=2, decoder_hidden=None)
    )
    file = tmp_path / "digits.pt2"
    export(classifier, file, "torch-export")
    torch.save(torch.rand(3, 1, 8, 8), tmp_path / "images.pt")
    code = (
        "import sys, torch\n"
        "program = torch.export.load(sys.argv[1])\n"
        "torch.save(program.module()(torch.load(sys.argv[2]))[0].detach(), "
        "sys.argv[3])\n"
        "assert 'torchcaps' not in sys.modules\n"
    )
    files = [str(tmp_path / name) for name in ("digits.pt2", "images.pt", "out.pt")]
    subprocess.run([sys.executable, "-c", code, *files], check=True, cwd=tmp_path)
    torch.testing.assert_close(
        torch.load(files[2]),
        classifier.activations(torch.load(files[1])),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.thorough
def test_digamma_by_what_onnx_has(onnxruntime: object) -> None:
    class Digamma(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.digamma(x)

    x = torch.tensor([1e-3, 0.1, 0.5, 1.0, 1.4616, 2.0, 7.5, 40.0, 1e4])
    table = {torch.ops.aten.digamma.default: _digamma}
    program = torch.onnx.export(
        Digamma(), (x,), dynamo=True, custom_translation_table=table, verbose=False
    )
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    actual = torch.from_numpy(
        session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    )
    torch.testing.assert_close(
        actual, torch.digamma(x.double()).float(), rtol=2e-6, atol=2e-6
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("form", "message"),
    [
        (
            "torch-export",
            "a Decides cannot be written as an exported program: Could not guard on "
            "data-dependent expression",
        ),
        pytest.param(
            "onnx",
            "a Decides cannot be written as an ONNX file: Could not guard on "
            "data-dependent",
            marks=SLOW,
        ),
    ],
)
def test_networks_that_cannot_be_traced_are_told_in_a_line(
    form: str, message: str, tmp_path: Path, onnxruntime: object
) -> None:
    class Decides(ImageClassifier):
        def __init__(
            self, image_shape: tuple[int, int, int] = (1, 2, 2), classes: int = 4
        ) -> None:
            super().__init__(image_shape, classes)

        def forward(
            self, images: torch.Tensor, target: torch.Tensor | None = None
        ) -> Prediction:
            return Prediction(
                images.flatten(1) * (1 if images.sum() > 3 else 2), None, None
            )

    with pytest.raises(ValueError, match=re.escape(message)) as actual:
        export(Classifier(Decides()), tmp_path / "file", form)
    assert "\n" not in str(actual.value)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_model(
        "capsnet_digits", channels=4, types=2, decoder_hidden=None
    ).save_pretrained(tmp_path / "saved")
    assert (
        main(
            [
                "export",
                str(tmp_path / "saved"),
                "--to",
                str(tmp_path / "nowhere" / "x.onnx"),
            ]
        )
        == 1
    )
    assert f"folder {tmp_path / 'nowhere'} does not exist" in capsys.readouterr().err


def test_writes_over_a_file_only_when_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def writes(classifier: Classifier, path: Path, form: str) -> float:
        path.write_text(form)
        return 0.0

    monkeypatch.setattr("torchcaps_lab.cli.exporting.export", writes)
    monkeypatch.chdir(tmp_path)
    command = ["export", "mnist/efficient_capsnet", "--format"]
    assert main([*command, "torch-export"]) == 0
    file = tmp_path / "efficientcapsnet.pt2"
    file.write_text("mine")
    assert main([*command, "torch-export"]) == 1
    assert (
        "efficientcapsnet.pt2 exists already: choose another file with --to, or add "
        "--overwrite" in (capsys.readouterr().err)
    )
    assert file.read_text() == "mine"
    assert main([*command, "torch-export", "--overwrite"]) == 0
    assert file.read_text() == "torch-export"


def test_the_name_of_a_file_says_its_format(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An ONNX file had the name of an exported program."""
    monkeypatch.setattr(
        "torchcaps_lab.cli.exporting.export",
        lambda classifier, path, form: float(path.write_text(form)),
    )
    command = ["export", "mnist/efficient_capsnet", "--to"]
    for name, form in (("a.pt2", "torch-export"), ("a.onnx", "onnx"), ("a", "onnx")):
        assert main([*command, str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text() == form


def test_a_name_of_another_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.pt2"
    assert (
        main(
            ["export", "mnist/efficient_capsnet", "--format", "onnx", "--to", str(file)]
        )
        == 1
    )
    assert (
        f"--to {file} is the name of an exported program, and --format is onnx"
        in capsys.readouterr().err
    )
    assert not file.exists()


def test_the_exporter_speaks_of_nothing_but_the_network(
    caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    with _without_own_noise():
        log.warning("torchvision is not installed. Skipping %s", "torchvision::nms")
        log.warning("something else")
        warnings.warn(
            "`isinstance(treespec, LeafSpec)` is deprecated, use",
            FutureWarning,
            stacklevel=1,
        )
        warnings.warn("a class is deprecated", FutureWarning, stacklevel=1)
    log.warning("torchvision is not installed, again")
    assert caplog.messages == ["something else", "torchvision is not installed, again"]
    assert [str(warning.message) for warning in recwarn] == ["a class is deprecated"]


@pytest.mark.thorough
@pytest.mark.parametrize("arguments", [[], ["digits.onnx"]])
def test_the_example_says_what_it_takes(
    arguments: list[str], onnxruntime: object
) -> None:
    example = [sys.executable, str(ROOT / "examples" / "run_onnx.py"), *arguments]
    done = subprocess.run(example, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: run_onnx.py [-h] model picture")


def test_an_export_says_at_once_that_it_takes_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """86 seconds passed without a word."""

    def broken(*_: object) -> float:
        raise ValueError("stopped")

    monkeypatch.setattr("torchcaps_lab.cli.exporting.export", broken)
    out = tmp_path / "digits.onnx"
    assert main(["export", "digits/capsnet_digits", "--to", str(out)]) == 1
    told = capsys.readouterr().err
    assert told.index(f"exporting CapsNet to {out} as onnx") < told.index("stopped")


def test_nan_in_any_output_is_seen() -> None:
    zeros, nans = torch.zeros(2), torch.full((2,), torch.nan)
    assert _off([zeros, zeros], [zeros, zeros]) == 0
    for outputs in ([zeros, nans], [nans, zeros]):
        assert not _off(outputs, [zeros, zeros]) <= CLOSE
