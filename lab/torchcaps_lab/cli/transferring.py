"""Draw the class of one image with the pose of another, and the steps between."""

import inspect
import sys
from pathlib import Path

import torch
from matplotlib.backend_bases import FigureCanvasBase
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.models import CapsuleClassifier
from torchcaps.whole import check_writable
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.evaluate import transfer
from torchcaps_lab.evaluate.findings import evaluating


def check_out(out: str, *read: str) -> None:
    """Raises a `ValueError` unless the picture can be written, over no file that is
    read.
    """
    path = Path(out)
    forms = FigureCanvasBase.get_supported_filetypes()
    if form_of(out) not in forms:
        raise ValueError(
            "--out must be the name of a picture, "
            f"{', '.join(f'.{ending}' for ending in forms)}, got {out}"
        )
    if not path.parent.is_dir():
        raise ValueError(f"--out: folder {path.parent} does not exist")
    check_writable(path.parent, "name another place with --out")
    if any(
        path.exists() and Path(file).exists() and path.samefile(file) for file in read
    ):
        raise ValueError(f"--out must not be one of the input files, got {path}")


def form_of(file: str) -> str:
    """The format of a picture, by its suffix."""
    return Path(file).suffix.lower().removeprefix(".")


def check_decoder(classifier: Classifier) -> None:
    """Raises a `ValueError` unless the network can transfer poses; prints a note if
    little is to be expected of it.
    """
    network = classifier.network
    if not isinstance(network, CapsuleClassifier) or network.decoder is None:
        kind = type(network)
        if "decoder_hidden" in inspect.signature(kind).parameters:
            raise ValueError(
                f"this {kind.__name__} has no decoder: train one with "
                "--model_args.decoder_hidden"
            )
        raise ValueError(f"a {kind.__name__} takes {network.takes} and draws no images")
    part = network.pose_input
    if part is not None and part.kind == "pose":
        raise ValueError(
            "the decoder of this network gets only the pose, which also encodes the "
            "class, so it would draw the style image again. Train one with "
            "--model_args.decoder_input pose_and_class"
        )
    if part is None or part.kind == "masked":
        print(
            "note: each class of this network has its own pose dimensions, so the "
            "pose of another class means nothing to it; --model_args.decoder_input "
            "pose_and_class trains one whose classes share them",
            file=sys.stderr,
        )


def transferred(
    classifier: Classifier, pictures: Tensor, content_class: str | None, steps: int
) -> tuple[Tensor, list[int]]:
    """The reconstructed content and the steps of the transfer, (1 + steps, C, H, W);
    the classes of both images.
    """
    network = classifier.network
    assert isinstance(network, CapsuleClassifier)
    with evaluating(network) as device:
        capsules = network.encode(
            classifier.preprocess.evaluate_crops(pictures.to(device))[:, 0]
        )
    labels = capsules.activation.argmax(1)
    if content_class is not None:
        if content_class not in classifier.classes:
            raise ValueError(
                f"--content_class must be one of {', '.join(classifier.classes)}, got "
                f"{content_class!r}"
            )
        labels[0] = classifier.classes.index(content_class)
    content, style = (
        Capsules(capsules.pose[k : k + 1], capsules.activation[k : k + 1])
        for k in (0, 1)
    )
    again = transfer(network, content, content, labels[:1], labels[:1])[0]
    drawn = transfer(network, content, style, labels[:1], labels[1:], steps)[0]
    return torch.cat([again, drawn]).cpu(), labels.tolist()


def measured(images: Tensor) -> dict[str, dict[str, float]]:
    """Attributes of content, reconstruction, transferred image and style."""
    from torchcaps_lab.evaluate.attributes import ATTRIBUTES, attributes

    names = ("content", "again", "transferred", "style")
    rows = zip(names, attributes(images).tolist(), strict=True)
    return {name: dict(zip(ATTRIBUTES, row, strict=True)) for name, row in rows}
