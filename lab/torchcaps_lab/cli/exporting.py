"""Write a network as an ONNX file or an exported program, for use without this
package.
"""

import json
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.ops import use_backend
from torchcaps.optional_imports import needing
from torchcaps.whole import check_writable, opened, written_whole
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.data.transforms.preprocess import RANDOM

SUFFIXES = {"onnx": ".onnx", "torch-export": ".pt2"}
KINDS = {"onnx": "an ONNX file", "torch-export": "an exported program"}
CLOSE = 1e-4
"""Largest difference between the answers of a file and those of the network; for
numbers above 1, such as boxes in pixels, in shares of the largest.
"""

NOTES = "torchcaps.json"
"""Name of the notes in an exported program, for ``torch.export.load``; in an ONNX file,
the metadata ``torchcaps``.
"""


Answers = Callable[[Tensor], Iterable[Tensor]]
"""What a file answers."""


class Exported(nn.Module):
    """The module in a file: maps pixels of images, numbers of words, or series, to
    plain tensors.

    Args:
        classifier: its preprocessing, and the mean over crops, become part of the
            module.
    """

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.network = classifier.network
        self.preprocess = classifier.preprocess
        self.axes = (dict(classifier.reader.axes),)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Activations (B, E), and other outputs, see :meth:`names`, from images (B, C,
        H, W), words or series.
        """
        return tuple(self._outputs(images).values())

    def names(self, images: Tensor) -> list[str]:
        """The names of the tensors that :meth:`forward` returns."""
        return list(self._outputs(images))

    def _outputs(self, images: Tensor) -> dict[str, Tensor]:
        """The outputs by name: activations as the mean over all crops, everything else
        from the centre.
        """
        crops = self.preprocess.evaluate_crops(images)
        prediction = self.network(crops.flatten(0, 1))
        optional = {
            "pose": None if prediction.capsules is None else prediction.capsules.pose,
            "boxes": prediction.boxes,
            "reconstruction": prediction.reconstruction,
            "masks": prediction.masks,
            "assigned": prediction.assigned,
        }
        results = {
            "activation": prediction.activation,
            **{name: tensor for name, tensor in optional.items() if tensor is not None},
        }
        if crops.shape[1] == 1:
            return results
        results = {
            name: tensor.unflatten(0, crops.shape[:2])
            for name, tensor in results.items()
        }
        return {
            name: tensor.mean(1) if name == "activation" else tensor[:, 0]
            for name, tensor in results.items()
        }


def form_of(asked: str | None, path: str | None) -> str:
    """The format that was chosen, or else that of the suffix; a name without a suffix
    fits any format.
    """
    suffix = Path(path).suffix.lower() if path else ""
    meant = next((form for form, ending in SUFFIXES.items() if ending == suffix), None)
    if suffix and meant is None:
        ends = " or ".join(
            f"{ending} ({KINDS[form]})" for form, ending in SUFFIXES.items()
        )
        raise ValueError(f"--to must end in {ends}, got {path}")
    if asked and meant and asked != meant:
        raise ValueError(
            f"--to {path} is the name of {KINDS[meant]}, and --format is {asked}"
        )
    return asked or meant or "onnx"


def check_free(path: Path, overwrite: bool) -> None:
    """Raises an error unless a file can be written to the path."""
    if not path.parent.is_dir():
        raise ValueError(f"--to: folder {path.parent} does not exist")
    if path.is_dir():
        raise ValueError(f"--to must be a file, and {path} is a folder")
    if path.exists() and not overwrite:
        raise FileExistsError(
            f"{path} exists already: choose another file with --to, or add --overwrite"
        )
    check_writable(path.parent, "name another place with --to")


def export(classifier: Classifier, path: Path, form: str) -> float:
    """Writes a file for batches of any size, and compares its answers with those of the
    network.

    Args:
        classifier: the classifier to export.
        path: the path of the file.
        form: ``onnx`` or ``torch-export``. Both contain only standard operators.

    Returns:
        The largest difference.

    Raises:
        ModuleNotFoundError: if ``onnx`` needs a package that is not installed.
        ValueError: if the network cannot be traced, has an operator that the format
            lacks, or the answers of the file differ from those of the network.
    """
    model = Exported(classifier).eval()
    # Two are used for tracing, all for comparison.
    images = classifier.reader.trial(classifier.network, 5)
    trials = [images]
    if longer := [axis for axis in classifier.reader.axes if axis]:
        trials.append(_longer(images, longer))
    with use_backend("naive"), torch.no_grad(), written_whole(path) as part:
        expected = [model(trial) for trial in trials]
        write = _write_onnx if form == "onnx" else _write_program
        notes = _notes(classifier, model.names(images[:2]))
        try:
            answers = write(model, images[:2], part, notes)
            off = _worst(map(answers, trials), expected)
        # A program that takes one length alone asserts it.
        except (RuntimeError, AssertionError) as error:
            why = str(error.__cause__ or error).partition("\n")[0]
            name = type(classifier.network).__name__
            raise ValueError(
                f"a {name} cannot be written as {KINDS[form]}: {why}"
            ) from error
        if not off <= CLOSE:
            model.double()
            in_double = [
                trial.double() if trial.is_floating_point() else trial
                for trial in trials
            ]
            rounding_error = _worst(map(model, in_double), expected)
            model.float()
            more = ""
            if rounding_error > CLOSE:
                more = f"the network's own rounding errors are {rounding_error:g}: was it trained?"
            raise ValueError(
                (
                    f"the answers of {KINDS[form]} differ by {off:g}, and {CLOSE:g} "
                    f"is allowed {more}"
                ).rstrip()
            )
    return off


def _longer(inputs: Tensor, axes: Iterable[int]) -> Tensor:
    """Inputs of nearly twice the length, an odd one; padding stays at the end."""
    for axis in axes:
        twice = inputs.repeat_interleave(2, axis)
        inputs = twice.narrow(axis, 0, twice.shape[axis] - 1)
    return inputs


def _worst(
    actual: Iterable[Iterable[Tensor]], expected: Iterable[Iterable[Tensor]]
) -> float:
    """The largest difference over several batches."""
    return torch.tensor([*map(_off, actual, expected)]).max().item()


def _off(actual: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    """The largest difference, see :data:`CLOSE`."""
    pairs = zip(actual, expected, strict=True)
    differences = [
        float((result - wanted).abs().max() / wanted.abs().max().clamp_min(1))
        for result, wanted in pairs
    ]
    return torch.tensor(differences).max().item()  # NaN, if one of them is


def _notes(classifier: Classifier, outputs: list[str]) -> dict[str, Any]:
    """Information for users of the file."""
    calibration = classifier.calibration
    return {
        "classes": list(classifier.classes),
        **classifier.reader.notes(),
        "prepared_inside": {
            name: value
            for name, value in classifier.preprocess.config().items()
            if name not in RANDOM
        },
        "outputs": outputs,
        "calibration": None if calibration is None else calibration.config(),
        **dict.fromkeys(classifier.task.doubts),
        **{name: doubt.config() for name, doubt in classifier.doubts.items()},
    }


def _write_onnx(
    model: Exported, images: Tensor, part: Path, notes: dict[str, Any]
) -> Answers:
    with needing("ONNX files", "torchcaps-lab[export]"), _without_own_noise():
        import onnxruntime

        program = torch.onnx.export(
            model,
            (images,),
            dynamo=True,
            dynamic_shapes=model.axes,
            input_names=[model.network.takes],
            output_names=notes["outputs"],
            custom_translation_table={torch.ops.aten.digamma.default: _digamma},
            verbose=False,
        )
    if program is None:
        raise ValueError("the network could not be made into an ONNX file")
    program.model.metadata_props["torchcaps"] = json.dumps(notes)
    program.save(str(part))
    session = onnxruntime.InferenceSession(
        str(part), providers=["CPUExecutionProvider"]
    )

    def answers(inputs: Tensor) -> list[Tensor]:
        arrays = session.run(None, {model.network.takes: inputs.numpy()})
        return [*map(torch.from_numpy, arrays)]

    return answers


@contextmanager
def _without_own_noise() -> Iterator[None]:
    """Silences messages of torch's exporter about itself: skipped operators of
    torchvision, a deprecated class.
    """

    def of_networks(record: logging.LogRecord) -> bool:
        return "torchvision is not installed" not in record.getMessage()

    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    log.addFilter(of_networks)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore",
                r"`isinstance\(treespec, LeafSpec\)` is deprecated",
                FutureWarning,
            )
            yield
    finally:
        log.removeFilter(of_networks)


def _digamma(x: Any) -> Any:
    r"""The digamma function for numbers above 0, from operators of ONNX, to single
    precision.

    .. math:: \psi(x) = \psi(x + 6) - \sum_{k=0}^5 \frac{1}{x + k}, \quad
        \psi(y) \approx \log y - \frac{1}{2 y} - \frac{1}{12 y^2} + \frac{1}{120 y^4} - \frac{1}{252 y^6}

    Source: Abramowitz & Stegun 1964, 6.3.6 and 6.3.18.
    """
    from onnxscript import opset18 as onnx

    y = onnx.Add(x, 6.0)
    inverse = onnx.Reciprocal(y)
    square = onnx.Mul(inverse, inverse)
    series = onnx.Mul(
        square,
        onnx.Add(
            onnx.Mul(square, onnx.Add(onnx.Mul(square, -1 / 252), 1 / 120)), -1 / 12
        ),
    )
    total = onnx.Add(onnx.Sub(onnx.Log(y), onnx.Mul(inverse, 0.5)), series)
    for step in range(6):
        total = onnx.Sub(total, onnx.Reciprocal(onnx.Add(x, float(step))))
    return total


def _write_program(
    model: Exported, images: Tensor, part: Path, notes: dict[str, Any]
) -> Answers:
    # The least length is left to the exporter: convolutions with strides need a few.
    free = tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in model.axes)
    program = torch.export.export(model, (images,), dynamic_shapes=free)
    with part.open("wb") as file:
        torch.export.save(program, file, extra_files={NOTES: json.dumps(notes)})
    with opened(part) as file:
        return torch.export.load(file).module()
