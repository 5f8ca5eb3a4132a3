"""Packs the network of a run into the package, with its card: ``python -m docs.box NAME RUN --command ...``.

    python -m docs.box mnist/efficient_capsnet runs/mnist-efficient --resize handwriting \\
        --command 'torchcaps train --config examples/mnist-efficient.yaml --run runs/mnist-efficient'

The test images of the run are read once more: the card says what the stored weights do, beside what the run said.
"""

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from torchcaps.classifier import Classifier
from torchcaps.cli.runs import look_parser, open_run
from torchcaps.data import ImageSet
from torchcaps.models.pretrained import BOX, CARD_FILE, SUMS
from torchcaps.models.registry import MODELS

LICENCES = {
    "mnist": "The images, which are not included: MNIST of Y. LeCun, C. Cortes and C. Burges, made of NIST's.",
    "smallnorb": (
        "The images, which are not included, are for research, and may not be sold: smallNORB of F. J. Huang and "
        "Y. LeCun, New York University, which asks to cite Y. LeCun, F. J. Huang, L. Bottou, \"Learning methods for "
        "generic object recognition with invariance to pose and lighting\", CVPR 2004."
    ),
    "digits": (
        "The images, which are not included: \"Optical Recognition of Handwritten Digits\" of E. Alpaydin and "
        "C. Kaynak, UCI Machine Learning Repository, CC BY 4.0, as scikit-learn has them."
    ),
}  # fmt: skip
INPUT = {
    "handwriting": (
        "A photo or a scan of one handwritten digit, of any size and colour, dark on light or light on dark. As MNIST "
        "was made: the ink is what differs from the ground, whose light and colour may change over the picture; it is "
        "cut out, brought to a box of 20 x 20 pixels with its shape kept, and put into 28 x 28 pixels with its centre "
        "of mass in the middle. Strokes thinner than MNIST's are widened. A picture of 28 x 28 pixels that is light on "
        "dark is taken as it is, and so is everything with `--resize pad`."
    ),
    "pad": "An image of any size: its aspect ratio is kept, and it is padded with black.",
}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", help="data/network")
    parser.add_argument("run", type=Path)
    parser.add_argument("--command", required=True, help="that trains the like of it, for the card")
    parser.add_argument("--data", nargs="*", default=[], help="options of the test images, where the run is too old")
    parser.add_argument("--resize", default="pad", choices=INPUT)
    parser.add_argument("--stored", default="float16")
    pack(parser.parse_args())


def pack(options: argparse.Namespace) -> None:
    """Writes the folder, and all sums anew."""
    arguments = [str(options.run), *options.data]
    looked = look_parser("pack", "", arguments)
    classifier, test = open_run(looked, looked.parse_args(arguments))
    folder = BOX / options.name
    network = classifier.network
    calibration = classifier.calibration
    kept = {name: value for name, value in network.extra.items() if name not in ("resize", "calibration")}
    kept["calibration"] = None if calibration is None else calibration.config()
    before = classifier.activations(test.images)
    network.save_pretrained(folder, stored=options.stored, resize=options.resize, **kept)
    packed = Classifier.open(folder)
    after = packed.activations(test.images)
    write_card(options, packed, measured(test, before, after))
    write_sums()


def measured(test: ImageSet, before: torch.Tensor, after: torch.Tensor) -> str:
    """What the stored weights do on the test images."""
    wrong = int((after.argmax(1) != test.labels).sum())
    other = int((after.argmax(1) != before.argmax(1)).sum())
    most = float((after - before).abs().max())
    return (
        f"{100 * wrong / len(test.labels):.2f} % ({wrong:,} of {len(test.labels):,}) as stored; {other} answers are "
        f"not those of the weights before, and no activation moved by more than {most:.1g}"
    )


def write_card(options: argparse.Namespace, packed: Classifier, tested: str) -> None:
    """The card, of what the run said of itself."""
    data, _, model = options.name.partition("/")
    summary = json.loads((options.run / "summary.json").read_text())
    images, network = summary["images"], packed.network
    rows = {
        "data": f"{summary['data']}: {images['train']:,} images trained on, {images['validation']:,} to validate, "
        f"{images['test']:,} to test",
        "test error": f"{summary['test_error_percent']:.2f} % after the last epoch; {tested}",
        "last epoch": figures(summary["last_epoch"]),
        "training": f"{summary['epochs']} epochs, seed {summary['seed']}, {summary['training_seconds']:,.0f} s on "
        f"{summary['hardware']} that others used; torchcaps {summary['versions']['torchcaps']}, "
        f"torch {summary['versions']['torch']}",
        "command": f"`{options.command}`",
        "input": INPUT[options.resize]
        if network.image_shape[0] in (1, 3)
        else "Pairs of images, as the data has them.",
        "prepared": prepared(packed),
        "stored": f"{sum(p.numel() for p in network.parameters()):,} parameters in {options.stored}"
        + ("" if getattr(network, "decoder", None) is None else ", those of its decoder among them"),
        "licence": f"The weights: Apache-2.0, as the package. {LICENCES.get(data, '')}".strip(),
    }
    table = "\n".join(f"| {name} | {text} |" for name, text in rows.items())
    text = f"# {options.name}\n\n`{model}`: {MODELS[model].source}.\n\n| | |\n|---|---|\n{table}\n"
    (BOX / options.name / CARD_FILE).write_text(text, encoding="utf-8")


def figures(last: dict[str, Any]) -> str:
    """The accuracies and losses of an epoch."""
    kept = {name: value for name, value in last.items() if name.startswith(("train_", "val_"))}
    return ", ".join(f"{name} {value:.4g}" for name, value in kept.items())


def prepared(packed: Classifier) -> str:
    """What is done with pixels before the network sees them."""
    preprocess, (channels, height, width) = packed.preprocess, packed.image_shape
    steps = [f"{channels} x {height} x {width} in [0, 1]"]
    if preprocess.rescale is not None:
        steps.append(f"rescaled to {preprocess.rescale} x {preprocess.rescale}")
    if preprocess.crop is not None:
        steps.append(f"the {preprocess.crop} x {preprocess.crop} pixels in the middle")
    if preprocess.standardise:
        steps.append("each image standardised")
    return ", ".join(steps)


def write_sums() -> None:
    """The digests of all files in the box, as ``sha256sum`` writes them."""
    files = sorted(path for path in BOX.rglob("*") if path.is_file() and path.name != SUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(BOX).as_posix()}" for path in files]
    (BOX / SUMS).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
