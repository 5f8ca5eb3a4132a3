"""``torchcaps transfer``."""

import inspect
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchcaps.models.whole import written_whole
from torchcaps.numerics import jsonable
from torchcaps_lab.cli.plugins import add_import
from torchcaps_lab.cli.runs import open_classifier

if TYPE_CHECKING:
    from torch import Tensor

    from torchcaps_lab.classifier import Classifier


def command(arguments: list[str]) -> None:
    """Draw the class of one image with the pose of another, and the steps between."""
    from torchcaps_lab.cli.parser import OptionParser
    from torchcaps_lab.report.canvas import strip

    parser = OptionParser(
        prog="torchcaps transfer", description="Draw the class of one image with the pose of another."
    )
    add = parser.add_argument
    add("content", type=str, help="image file whose class is kept")
    add("style", type=str, help="image file whose pose is taken: slant, thickness, width, ...")
    add("--run", "--model", type=str, required=True, help="folder of a run, or of a saved network, with a decoder")
    add("--steps", type=int, default=1, help="pictures on the way from the content's own pose to that of the style")
    add("--content_class", type=str, help="class to draw; default: the predicted class of the content")
    add("--out", type=str, default="transfer.png", help="picture to write")
    add(
        "--resize",
        choices=("pad", "crop", "stretch", "handwriting"),
        help="how images are fitted to the network; default: as it was trained",
    )
    add("--device", type=str, default="cpu", help="where to compute: cpu, cuda, cuda:1, ...")
    add("--json", action="store_true", help="print JSON, with the attributes that were measured")
    add_import(parser)
    options = parser.parse_args(arguments)
    _check_options(options)
    classifier = open_classifier(options.run, options.device)
    _check(classifier)
    pictures = torch.stack([classifier.pixels(file, options.resize) for file in (options.content, options.style)])
    drawn, labels = _transfer(classifier, pictures, options.content_class, options.steps)
    names = [classifier.classes[label] for label in labels]
    titles = [
        f"content\n{names[0]}",
        "drawn\nagain",
        *[""] * (options.steps - 1),
        "with that\npose",
        f"style\n{names[1]}",
    ]
    with written_whole(Path(options.out)) as part:
        strip(torch.cat([pictures[:1], drawn, pictures[1:]]), titles).savefig(part, format=_form(options.out))
    _report(options, names, torch.cat([pictures[:1], drawn[:1], drawn[-1:], pictures[1:]]))


def _check_options(options: Any) -> None:
    """Raises a `ValueError` unless the options fit together and the picture can be written."""
    from matplotlib.backend_bases import FigureCanvasBase

    if options.steps < 1:
        raise ValueError(f"--steps must be at least 1, got {options.steps}")
    out, forms = Path(options.out), FigureCanvasBase.get_supported_filetypes()
    if _form(options.out) not in forms:
        raise ValueError(f"--out must be the name of a picture, {', '.join(f'.{one}' for one in forms)}, got {out}")
    if not out.parent.is_dir():
        raise ValueError(f"--out: there is no folder {out.parent}")
    if any(out.exists() and Path(file).exists() and out.samefile(file) for file in (options.content, options.style)):
        raise ValueError(f"--out must be another file than those that are read, got {out}")


def _form(file: str) -> str:
    """The format of a picture, by its suffix."""
    return Path(file).suffix.lower().removeprefix(".")


def _check(classifier: "Classifier") -> None:
    """Raises a `ValueError` unless the network can transfer poses; prints a note if little is to be expected of it."""
    from torchcaps.models import CapsuleClassifier

    network = classifier.network
    if network.takes != "images":
        raise ValueError(f"a {type(network).__name__} takes words and draws no images")
    told = network.told if isinstance(network, CapsuleClassifier) else None
    if told is None:
        takes = "decoder_hidden" in inspect.signature(type(network)).parameters
        advice = ": train one with --model_args.decoder_hidden" if takes else ", and never has"
        raise ValueError(f"this {type(network).__name__} has no decoder{advice}")
    if told == "pose":
        raise ValueError(
            "the decoder of this network is told the pose alone, which says the class as well: the style image would "
            "be drawn again. Train one with --model_args.decoder_input pose_and_class"
        )
    if told == "masked":
        print(
            "note: in this network each class has pose dimensions of its own, so the pose of another class means "
            "nothing to it; --model_args.decoder_input pose_and_class trains one whose classes share them",
            file=sys.stderr,
        )


def _transfer(
    classifier: "Classifier", pictures: "Tensor", content_class: str | None, steps: int
) -> "tuple[Tensor, list[int]]":
    """The reconstructed content and the steps of the transfer, (1 + steps, C, H, W); the classes of both images."""
    from torchcaps.capsules import Capsules
    from torchcaps.models import CapsuleClassifier
    from torchcaps_lab.report import transfer
    from torchcaps_lab.report.findings import evaluating

    network = classifier.network
    assert isinstance(network, CapsuleClassifier)
    with evaluating(network) as device:
        capsules = network.encode(classifier.preprocess.evaluate_crops(pictures.to(device))[:, 0])
    labels = capsules.activation.argmax(1)
    if content_class is not None:
        if content_class not in classifier.classes:
            raise ValueError(f"--content_class must be one of {', '.join(classifier.classes)}, got {content_class!r}")
        labels[0] = classifier.classes.index(content_class)
    content, style = (Capsules(capsules.pose[k : k + 1], capsules.activation[k : k + 1]) for k in (0, 1))
    again = transfer(network, content, content, labels[:1], labels[:1])[0]
    drawn = transfer(network, content, style, labels[:1], labels[1:], steps)[0]
    return torch.cat([again, drawn]).cpu(), labels.tolist()


def _report(options: Any, names: list[str], images: "Tensor") -> None:
    """Prints what was drawn; as JSON also attributes of content, reconstruction, transferred image and style."""
    said = {"content": names[0], "style": names[1], "picture": options.out}
    if options.json:
        from torchcaps_lab.report.attributes import ATTRIBUTES, attributes

        measured = {
            name: dict(zip(ATTRIBUTES, row, strict=True))
            for name, row in zip(("content", "again", "transferred", "style"), attributes(images).tolist(), strict=True)
        }
        print(json.dumps(jsonable({**said, "attributes": measured})))
        return
    print(f"{names[0]} of {options.content} with the pose of {names[1]} of {options.style}: {options.out}")
