"""Packs the network of a run into the package, with its card: ``python -m docs.box NAME
RUN --command ...``.

    python -m docs.box mnist/efficient_capsnet runs/mnist-efficient --resize handwriting
    \\
        --command 'torchcaps train --config examples/mnist-efficient.yaml --run runs/mnist-efficient'

The test images of the run are read once more: the card says what the stored weights do,
beside what the run said.
"""

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from torchcaps.models.pretrained import BOX, CARD_FILE, SUMS
from torchcaps.models.registry import MODELS
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.cli.parser import OptionParser
from torchcaps_lab.cli.runs import open_run
from torchcaps_lab.data import DataSet, Examples
from torchcaps_lab.data.made import LAYOUTS, arrange
from torchcaps_lab.report import Calibration, ask
from torchcaps_lab.tasks import SeveralLabels

SAME = {"scenes": "mnist"}
"""Networks of one kind of data whose images are another's."""

LICENCES = {
    "mnist": (
        "The images, which are not included: MNIST of Y. LeCun, C. Cortes and C. "
        "Burges, made of NIST's."
    ),
    "smallnorb": (
        "The images, which are not included, are for research, and may not be "
        "sold: smallNORB of F. J. Huang and "
        "Y. LeCun, New York University, which asks to cite Y. LeCun, F. J. Huang, "
        'L. Bottou, "Learning methods for '
        'generic object recognition with invariance to pose and lighting", CVPR '
        "2004."
    ),
    "digits": (
        'The images, which are not included: "Optical Recognition of Handwritten '
        'Digits" of E. Alpaydin and '
        "C. Kaynak, UCI Machine Learning Repository, CC BY 4.0, as scikit-learn "
        "has them."
    ),
    "trec": (
        "The questions, which are not included but for their words: X. Li and D. "
        'Roth, "Learning Question '
        'Classifiers", COLING 2002, University of Illinois, which asks to cite '
        "that paper."
    ),
}
INPUT = {
    "handwriting": (
        "A photo or a scan of one handwritten digit, of any size and colour, dark "
        "on light or light on dark. As MNIST "
        "was made: the ink is what differs from the ground, whose light and "
        "colour may change over the picture; it is "
        "cut out, brought to a box of 20 x 20 pixels with its shape kept, and put "
        "into 28 x 28 pixels with its centre "
        "of mass in the middle. Strokes thinner than MNIST's are widened. A "
        "picture of 28 x 28 pixels that is light on "
        "dark is taken as it is, and so is everything with `--resize pad`."
    ),
    "pad": (
        "An image of any size: its aspect ratio is kept, and it is padded with black."
    ),
    "keep": (
        "A picture of any size, light on dark, that keeps its size: digits are "
        "{size} pixels high."
    ),
    "text": (
        "A text, of which the first {longest} words are read: in small letters, "
        "cut at blanks, each punctuation mark "
        "for itself; one of {words:,} words, or an unknown one."
    ),
}
MEANINGS = {
    "trec": {
        "ABBR": "an abbreviation",
        "DESC": "a description or a reason",
        "ENTY": "a thing",
        "HUM": "a person or a group",
        "LOC": "a place",
        "NUM": "a number or a date",
    }
}
"""What names of classes stand for: what is asked for."""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", help="data/network")
    parser.add_argument("run", type=Path)
    parser.add_argument(
        "--command", required=True, help="that trains the like of it, for the card"
    )
    parser.add_argument("--note", default="", help="on the data, for the card")
    parser.add_argument(
        "--data",
        nargs="*",
        default=[],
        help="options of the test images, where the run is too old",
    )
    parser.add_argument(
        "--resize", default="pad", choices=("pad", "handwriting", "keep")
    )
    parser.add_argument(
        "--size",
        default="about 20",
        help="of digits, for the card, where pictures keep their size",
    )
    parser.add_argument(
        "--canvas",
        type=int,
        nargs=2,
        help="height and width to draw on, with --resize keep",
    )
    parser.add_argument(
        "--count",
        type=int,
        help="how many classes it tells at once, if not what it was trained on",
    )
    parser.add_argument(
        "--tested",
        type=int,
        help="how many of the test images are read once more; default: all",
    )
    parser.add_argument("--stored", default="float16")
    pack(parser.parse_args())


def pack(options: argparse.Namespace) -> None:
    """Writes the folder, and all sums anew."""
    classifier, test = open_run(str(options.run), images_of(options))
    network, kept = classifier.network, classifier.network.extra
    kept = {
        name: value
        for name, value in kept.items()
        if name not in ("resize", "calibration", "task")
    }
    kept["task"] = (
        SeveralLabels(options.count).saved()
        if options.count
        else classifier.task.saved()
    )
    calibration = (
        None if options.count else classifier.calibration or fitted(classifier, options)
    )
    kept["calibration"] = None if calibration is None else calibration.config()
    if data_of(options) in MEANINGS:
        kept["meanings"] = MEANINGS[data_of(options)]
    if options.canvas:
        kept["raw_image_shape"] = [classifier.image_shape[0], *options.canvas]
    folder = BOX / options.name
    network.save_pretrained(
        folder, stored=options.stored, resize=options.resize, **kept
    )
    config = folder / "config.json"
    if network.takes == "words":  # a word in each line takes as much room again
        config.write_text(
            json.dumps(json.loads(config.read_text()), ensure_ascii=False) + "\n",
            encoding="utf-8",
        )
    packed = Classifier.open(folder)
    some = test if options.tested is None else test.subset(torch.arange(options.tested))
    write_card(
        options,
        packed,
        {"test error": measured(classifier, packed, some)} | several(packed, test),
    )
    write_sums()


def data_of(options: argparse.Namespace) -> str:
    """The kind of data, the first part of the name."""
    return str(options.name.partition("/")[0])


def fitted(classifier: Classifier, options: argparse.Namespace) -> Calibration | None:
    """A calibration on the validation images of the run, which was made before runs had
    one.
    """
    validation = open_run(str(options.run), images_of(options), "validation")[1]
    return classifier.task.calibrate(
        classifier.network, classifier.prepared(validation)
    )


def images_of(options: argparse.Namespace) -> Any:
    """The images that the options name, None for those of the run."""
    parser = OptionParser(prog="pack", description="")
    parser.add_argument("--data", type=DataSet)
    return parser.parse_args(options.data).data


def measured(classifier: Classifier, packed: Classifier, test: Examples) -> str:
    """What the stored weights do on test images."""
    prepared, task = classifier.prepared(test), classifier.task
    before, after = (
        ask(one.network, prepared).activation for one in (classifier, packed)
    )
    said = [
        task.said(one) if isinstance(task, SeveralLabels) else one.argmax(1)
        for one in (before, after)
    ]
    other = (
        int((said[0] != said[1]).flatten(1).any(1).sum())
        if said[0].ndim > 1
        else int((said[0] != said[1]).sum())
    )
    figures = task.examine(packed.network, prepared).figures
    wrong = round(figures["error_percent"] * len(test) / 100)
    moved = float((after - before).abs().max())
    boxes = (
        f", boxes: IoU {figures['box_iou']:.3f}, mAP at 0.5 {figures['map_50']:.3f}"
        if "box_iou" in figures
        else ""
    )
    return (
        f"{figures['error_percent']:.2f} % ({wrong:,} of {len(test):,}) as "
        f"stored{boxes}; {other} answers are "
        "not those of the weights before, and no activation moved by more than "
        f"{moved:.1g}"
    )


def several(packed: Classifier, test: Examples) -> dict[str, str]:
    """Of a network that was trained on single digits and tells several: how many images
    of several it gets right.
    """
    task = packed.task
    if not isinstance(task, SeveralLabels) or task.count is None:
        return {}
    found = []
    for name, (rows, columns) in LAYOUTS.items():
        if rows * columns == task.count:
            images, present = arrange(test, (rows, columns), len(test))
            shape = (images.shape[1], images.shape[2], images.shape[3])
            said = task.said(
                Classifier(packed.network, image_shape=shape).activations(images)
            )
            wrong = int((said != present).any(1).sum())
            found.append(
                f"{name} {100 * wrong / len(test):.2f} % ({wrong:,} of "
                f"{len(test):,}) not both told"
            )
    return {
        f"error, {task.count} digits": f"of test digits of different classes: {'; '.join(found)}"
    }


def write_card(
    options: argparse.Namespace, packed: Classifier, tested: dict[str, str]
) -> None:
    """The card, of what the run said of itself."""
    data, model = data_of(options), options.name.rpartition("/")[2]
    what = "texts" if packed.network.takes == "words" else "images"
    summary = json.loads((options.run / "summary.json").read_text())
    images, network = summary["images"], packed.network
    meanings = network.extra.get("meanings")
    rows = {
        "data": (
            f"{summary['data']}: {images['train']:,} {what} trained on, "
            f"{images['validation']:,} to validate, "
            f"{images['test']:,} to test"
        )
        + (f"; {options.note}" if options.note else ""),
        **{
            **tested,
            "test error": (
                f"{summary['test_error_percent']:.2f} % after the last epoch; "
                f"{tested['test error']}"
            ),
        },
        "last epoch": figures(summary["last_epoch"]),
        "training": (
            f"{summary['epochs']} epochs, seed {summary['seed']}, "
            f"{summary['training_seconds']:,.0f} s on "
            f"{summary['hardware']} that others used; torchcaps "
            f"{summary['versions']['torchcaps']}, "
            f"torch {summary['versions']['torch']}"
        ),
        "command": f"`{options.command}`",
        "input": said_of_input(options, packed),
        **(
            {}
            if meanings is None
            else {
                "classes": ", ".join(
                    f"{name}: {text}" for name, text in meanings.items()
                )
            }
        ),
        "prepared": prepared(packed),
        "probabilities": f"{packed.calibration or 'not calibrated'}",
        "stored": (
            f"{sum(p.numel() for p in network.parameters()):,} parameters in "
            f"{options.stored}"
        )
        + (
            ""
            if getattr(network, "decoder", None) is None
            else ", those of its decoder among them"
        ),
        "licence": (
            "The weights: Apache-2.0, as the package. "
            f"{LICENCES.get(SAME.get(data, data), '')}"
        ).strip(),
    }
    table = "\n".join(f"| {name} | {text} |" for name, text in rows.items())
    text = (
        f"# {options.name}\n\n`{model}`: {MODELS[model].source}.\n\n| | "
        f"|\n|---|---|\n{table}\n"
    )
    (BOX / options.name / CARD_FILE).write_text(text, encoding="utf-8")


def said_of_input(options: argparse.Namespace, packed: Classifier) -> str:
    """What may be given to it."""
    words = packed.words
    if words is not None:
        return INPUT["text"].format(longest=words.longest, words=len(words))
    if packed.image_shape[0] not in (1, 3):
        return "Pairs of images, as the data has them."
    return INPUT[options.resize].format(size=options.size)


def figures(last: dict[str, Any]) -> str:
    """The accuracies and losses of an epoch."""
    kept = {
        name: value
        for name, value in last.items()
        if name.startswith(("train_", "val_"))
    }
    return ", ".join(f"{name} {value:.4g}" for name, value in kept.items())


def prepared(packed: Classifier) -> str:
    """What is done with pixels before the network sees them."""
    if packed.words is not None:
        return "the numbers of the words"
    preprocess, (channels, height, width) = packed.preprocess, packed.image_shape
    steps = [f"{channels} x {height} x {width} in [0, 1]"]
    if preprocess.rescale is not None:
        steps.append(f"rescaled to {preprocess.rescale} x {preprocess.rescale}")
    if preprocess.crop is not None:
        steps.append(f"the {preprocess.crop} x {preprocess.crop} pixels in the middle")
    if preprocess.mean is not None:
        steps.append(
            f"each channel less {preprocess.mean}, divided by {preprocess.deviation}"
        )
    if preprocess.standardise:
        steps.append("each image standardised")
    return ", ".join(steps)


def write_sums() -> None:
    """The digests of all files in the box, as ``sha256sum`` writes them."""
    files = sorted(
        path for path in BOX.rglob("*") if path.is_file() and path.name != SUMS
    )
    lines = [
        (
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  "
            f"{path.relative_to(BOX).as_posix()}"
        )
        for path in files
    ]
    (BOX / SUMS).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
