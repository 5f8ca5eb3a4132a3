"""``torchcaps export``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchcaps.cli.plugins import add_import
from torchcaps.cli.runs import open_classifier
from torchcaps.models.whole import written_whole
from torchcaps.ops import use_backend

if TYPE_CHECKING:
    from torchcaps.classifier import Classifier

SUFFIXES = {"onnx": ".onnx", "torch-export": ".pt2"}
CLOSE = 1e-4
"""How far the answers of a file may be from those of the network."""

NOTES = "torchcaps.json"
"""What a file says of itself, as ``torch.export.load`` knows it; in an ONNX file it is the metadata ``torchcaps``."""


class Exported(nn.Module):
    """A classifier from the pixels of images to plain tensors: what a file holds.

    Args:
        classifier: whose preparation of images, the mean over crops included, becomes a part of the network.
    """

    def __init__(self, classifier: "Classifier") -> None:
        super().__init__()
        self.network = classifier.network
        self.preprocess = classifier.preprocess

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Activations (B, E), and poses (B, E, *pose) and reconstructions if the network has them, of (B, C, H, W)."""
        crops = self.preprocess.evaluate_crops(images)
        count = self.preprocess.crops
        prediction = self.network(crops.flatten(0, 1))
        activation = prediction.activation
        others = [None if prediction.capsules is None else prediction.capsules.pose, prediction.reconstruction]
        if count > 1:
            activation = activation.unflatten(0, (-1, count)).mean(1)
            others = [None if one is None else one.unflatten(0, (-1, count))[:, 0] for one in others]
        return (activation, *(one for one in others if one is not None))

    def names(self, images: Tensor) -> list[str]:
        """Of the tensors that :meth:`forward` gives."""
        prediction = self.network(self.preprocess.evaluate_crops(images).flatten(0, 1))
        found = {"activation": 1, "pose": prediction.capsules, "reconstruction": prediction.reconstruction}
        return [name for name, one in found.items() if one is not None]


def command(arguments: list[str]) -> None:
    """Write a network as an ONNX file or an exported program, for use without this package."""
    from torchcaps.training.parser import OptionParser

    parser = OptionParser(prog="torchcaps export", description="Write a network for use without this package.")
    add = parser.add_argument
    add("run", type=str, help="folder of a run, or of a saved network, or name of a trained one in the package")
    add("--format", type=str, choices=tuple(SUFFIXES), default="onnx", help="what to write")
    add("--to", type=str, help="file; default: named after the network, in the current folder")
    add_import(parser)
    options = parser.parse_args(arguments)
    classifier = open_classifier(options.run)
    path = Path(options.to or f"{type(classifier.network).__name__.lower()}{SUFFIXES[options.format]}")
    if not path.parent.is_dir():
        raise ValueError(f"--to: there is no folder {path.parent}")
    off = export(classifier, path, options.format)
    size = path.stat().st_size / 2**20
    print(f"{path}: {size:.1f} MiB, checked: its answers differ from the network's by at most {off:.1g}")
    print(f"it takes images (batch, {str(classifier.image_shape)[1:-1]}), float32 in [0, 1]; preparing them is in it")


def export(classifier: "Classifier", path: Path, form: str) -> float:
    """Writes a file for any number of images at a time, and compares its answers with those of the network.

    Args:
        classifier: what shall be in it.
        path: of the file.
        form: ``onnx`` or ``torch-export``. Both hold standard operators alone.

    Returns:
        The largest difference.

    Raises:
        ModuleNotFoundError: if ``onnx`` needs what is not installed.
        ValueError: if the answers of the file are others than those of the network.
    """
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(5, *classifier.image_shape, generator=generator)
    model = Exported(classifier).eval()
    with use_backend("naive"), torch.no_grad(), written_whole(path) as part:
        expected = model(images)
        write = _write_onnx if form == "onnx" else _write_program
        found = write(model, images, part, _notes(classifier, model.names(images[:2])))
        off = max(float((one - other).abs().max()) for one, other in zip(found, expected, strict=True))
        if not off <= CLOSE:
            raise ValueError(f"the answers of the {form} file are off by {off:g}, allowed is {CLOSE:g}")
    return off


def _notes(classifier: "Classifier", outputs: list[str]) -> dict[str, Any]:
    """What whoever uses the file needs to know."""
    calibration = classifier.calibration
    return {
        "classes": list(classifier.classes),
        "image_shape": list(classifier.image_shape),
        "pixels": "float32 in [0, 1]",
        "resize": classifier.resize,
        "prepared_inside": classifier.preprocess.config(),
        "outputs": outputs,
        "calibration": None if calibration is None else calibration.config(),
    }


def _batch() -> tuple[dict[int, Any]]:
    return ({0: torch.export.Dim("batch")},)


def _write_onnx(model: Exported, images: Tensor, path: Path, notes: dict[str, Any]) -> list[Tensor]:
    import onnxruntime

    program = torch.onnx.export(
        model,
        (images[:2],),
        dynamo=True,
        dynamic_shapes=_batch(),
        input_names=["images"],
        output_names=notes["outputs"],
        verbose=False,
    )
    if program is None:
        raise ValueError("the network could not be made into an ONNX file")
    program.model.metadata_props["torchcaps"] = json.dumps(notes)
    program.save(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return [torch.from_numpy(one) for one in session.run(None, {"images": images.numpy()})]


def _write_program(model: Exported, images: Tensor, path: Path, notes: dict[str, Any]) -> list[Tensor]:
    program = torch.export.export(model, (images[:2],), dynamic_shapes=_batch())
    with path.open("wb") as file:
        torch.export.save(program, file, extra_files={NOTES: json.dumps(notes)})
    with path.open("rb") as file:
        return list(torch.export.load(file).module()(images))
