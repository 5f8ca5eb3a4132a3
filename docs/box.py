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
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchcaps.models.pretrained import BOX, CARD_FILE, SUMS
from torchcaps.models.registry import MODELS
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.cli import OptionParser
from torchcaps_lab.cli.runs import open_run
from torchcaps_lab.data import DataSet, Examples, Scenes, arrange
from torchcaps_lab.data.reader import Reader
from torchcaps_lab.evaluate import Calibration, ask
from torchcaps_lab.look import counted
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
    "nuclei": (
        "The images, which are not included: the training set of the 2018 Data Science "
        "Bowl, CC0, of which J. C. Caicedo et al. tell, Nature Methods 16, 2019."
    ),
    "shapes": "The images are made by the package.",
    "tetrominoes": "The images are made by the package.",
    "multi_dsprites": "The images are made by the package.",
    "trec": (
        "The questions, which are not included except for their words: X. Li and D. "
        'Roth, "Learning Question '
        'Classifiers", COLING 2002, University of Illinois, which asks to cite '
        "that paper."
    ),
}
INPUT = {
    "handwriting": (
        "A photo or a scan of one handwritten digit, of any size and colour, "
        "dark on light or light on dark. It is prepared as MNIST was. Ink is "
        "what differs from the background, whose light and colour may vary. The "
        "digit is cut out, scaled into a box of 20 x 20 pixels and centred by "
        "its mass in 28 x 28 pixels. Strokes thinner than MNIST's are widened. "
        "A picture of 28 x 28 pixels that is light on dark is used unchanged, "
        "and so is everything with `--resize pad`."
    ),
    "nuclei": (
        "A crop of a fluorescence image with one to eight nuclei, such as 128 x 128 "
        "pixels of one of 256 x 256. Prepare it as in training: brightness from 0 at "
        "the darkest pixel to 1 at the brightest, and the square root of that. Its "
        "aspect ratio is kept, and it is padded with black."
    ),
    "pad": (
        "An image of any size. Its aspect ratio is kept, and it is padded with black."
    ),
    "keep": (
        "A picture of any size, light on dark, that keeps its size. Its digits "
        "should be {size} pixels high."
    ),
    "text": (
        "A text, of which the first {longest} words are read: lower-cased and "
        "split at white space, with each punctuation mark as a word. It knows "
        "{words:,} words."
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
    network = classifier.network
    folder = BOX / options.name
    network.save_pretrained(
        folder,
        stored=options.stored,
        **saved_with(classifier, options),
    )
    config = folder / "config.json"
    # A word in each line takes as much room again.
    if classifier.reader.written:
        text = json.dumps(json.loads(config.read_text()), ensure_ascii=False)
        config.write_text(text + "\n", encoding="utf-8")
    packed = Classifier.open(folder)
    tested = test
    if options.tested is not None:
        tested = test.subset(torch.arange(options.tested))
    figures_of_test = {
        "test error": tested_in_words(options, classifier, packed, tested)
    }
    write_card(options, packed, figures_of_test | several(packed, test))
    write_sums()


def saved_with(classifier: Classifier, options: argparse.Namespace) -> dict[str, Any]:
    """What is saved beside the weights: all that the run saved, with another task,
    calibration and size of images where the options say so.
    """
    card = replace(classifier.card, reader=reader_of(classifier, options))
    if options.count:
        card = replace(card, task=SeveralLabels(options.count), calibration=None)
    elif card.calibration is None:
        card = replace(card, calibration=fitted(classifier, options))
    data = data_of(options)
    if data in MEANINGS:
        card = card.with_extra("meanings", MEANINGS[data])
    return card.saved()


def reader_of(classifier: Classifier, options: argparse.Namespace) -> Reader:
    """The reader of the run, with the fit and the size that the options say."""
    if classifier.reader.written:
        return classifier.reader
    channels, *_ = classifier.image_shape
    shape = (channels, *options.canvas) if options.canvas else None
    return classifier.reader.changed(resize=options.resize, image_shape=shape)


def data_of(options: argparse.Namespace) -> str:
    """The kind of data, the first part of the name."""
    return str(options.name.partition("/")[0])


def fitted(classifier: Classifier, options: argparse.Namespace) -> Calibration | None:
    """A calibration on the validation images of the run, which was made before runs had
    one.
    """
    _, validation = open_run(str(options.run), images_of(options), "validation")
    prepared = classifier.prepared(validation)
    return classifier.task.calibrate(classifier.network, prepared)


def images_of(options: argparse.Namespace) -> Any:
    """The images that the options name, None for those of the run."""
    parser = OptionParser(prog="pack", description="")
    parser.add_argument("--data", type=DataSet)
    return parser.parse_args(options.data).data


def tested_in_words(
    options: argparse.Namespace,
    classifier: Classifier,
    packed: Classifier,
    test: Examples,
) -> str:
    """What the run said of its test images, and what the stored weights do on them."""
    summary = json.loads((options.run / "summary.json").read_text())
    if "test_error_percent" in summary:
        of_run = f"{summary['test_error_percent']:.2f} % after the last epoch"
        return f"{of_run}; {measured(classifier, packed, test)}"
    task = classifier.task
    lines = task.examine(packed.network, packed.prepared(test)).lines
    of_run = f"{task.main.name} {summary[f'test_{task.main.name}']:.4g}"
    return f"{of_run} after the last epoch; as stored {', '.join(lines)}"


def measured(classifier: Classifier, packed: Classifier, test: Examples) -> str:
    """What the stored weights do on test images."""
    prepared = classifier.prepared(test)
    task = classifier.task
    before = ask(classifier.network, prepared).activation
    after = ask(packed.network, prepared).activation
    changed = answers(task, before) != answers(task, after)
    changed_images = int(changed.reshape(len(test), -1).any(1).sum())
    figures = task.examine(packed.network, prepared).figures
    wrong = round(figures["error_percent"] * len(test) / 100)
    moved = float((after - before).abs().max())
    boxes = ""
    if "box_iou" in figures:
        iou = figures["box_iou"]
        precision = figures["map_50"]
        boxes = f", boxes: IoU {iou:.3f}, mAP at 0.5 {precision:.3f}"
    return (
        f"{figures['error_percent']:.2f} % ({wrong:,} of {len(test):,}) as "
        f"stored{boxes}; storing changed {counted(changed_images, 'answers')}, and "
        "no activation by more than "
        f"{moved:.1g}"
    )


def answers(task: Any, activation: Tensor) -> Tensor:
    """The predicted class of each image, or of several labels, which are predicted."""
    if isinstance(task, SeveralLabels):
        return task.predicted_classes(activation)
    return activation.argmax(1)


def several(packed: Classifier, test: Examples) -> dict[str, str]:
    """Of a network that was trained on single digits and tells several: how many images
    of several it gets right.
    """
    task = packed.task
    if not isinstance(task, SeveralLabels) or task.count is None:
        return {}
    errors = []
    for name, (rows, columns) in Scenes.layouts().items():
        if rows * columns != task.count:
            continue
        images, present = arrange(test, (rows, columns), len(test))
        channels, height, width = images.shape[1:]
        classifier = Classifier(packed.network, image_shape=(channels, height, width))
        predicted = task.predicted_classes(classifier.activations(images))
        wrong = int((predicted != present).any(1).sum())
        share = 100 * wrong / len(test)
        errors.append(
            f"{name} {share:.2f} % ({wrong:,} of {len(test):,}) not both found"
        )
    text = f"of test digits of different classes: {'; '.join(errors)}"
    return {f"error, {task.count} digits": text}


def write_card(
    options: argparse.Namespace, packed: Classifier, tested: dict[str, str]
) -> None:
    """The card, of what the run reported of itself."""
    data = data_of(options)
    model = options.name.rpartition("/")[2]
    summary = json.loads((options.run / "summary.json").read_text())
    network = packed.network
    rows = {
        "data": data_in_words(summary, packed.reader.written),
        **tested,
        "last epoch": figures(summary["last_epoch"]),
        "training": (
            f"{counted(summary['epochs'], 'epochs')}, seed {summary['seed']}, "
            f"{summary['training_seconds']:,.0f} s on "
            f"{summary['hardware']}, on a shared machine; torchcaps "
            f"{summary['versions']['torchcaps']}, "
            f"torch {summary['versions']['torch']}"
        ),
        "command": f"`{options.command}`",
        "input": said_of_input(options, packed),
    }
    if options.note:
        rows["data"] += f"; {options.note}"
    meanings = network.extra.get("meanings")
    if meanings is not None:
        classes = [f"{name}: {text}" for name, text in meanings.items()]
        rows["classes"] = ", ".join(classes)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    stored = f"{parameters:,} parameters in {options.stored}"
    if getattr(network, "decoder", None) is not None:
        stored += ", those of its decoder among them"
    licence = LICENCES.get(SAME.get(data, data), "")
    rows |= {
        "prepared": prepared(packed),
        "probabilities": f"{packed.calibration or 'not calibrated'}",
        "stored": stored,
        "licence": f"The weights: Apache-2.0, as the package. {licence}".strip(),
    }
    table = "\n".join(f"| {name} | {text} |" for name, text in rows.items())
    text = (
        f"# {options.name}\n\n`{model}`: {MODELS[model].source}.\n\n| | "
        f"|\n|---|---|\n{table}\n"
    )
    (BOX / options.name / CARD_FILE).write_text(text, encoding="utf-8")


def data_in_words(summary: dict[str, Any], texts: bool) -> str:
    """The data of a run, and how many examples trained, validated and tested."""
    kind = "texts" if texts else "images"
    count = summary["examples"]
    return (
        f"{summary['data']}: {count['train']:,} {kind} to train on, "
        f"{count['validation']:,} to validate, "
        f"{count['test']:,} to test"
    )


def said_of_input(options: argparse.Namespace, packed: Classifier) -> str:
    """What may be given to it."""
    if packed.reader.written:
        words = packed.reader.words
        return INPUT["text"].format(longest=words.longest, words=len(words))
    if packed.image_shape[0] not in (1, 3):
        return "Pairs of images, as in the data."
    of_data = INPUT.get(data_of(options), INPUT[options.resize])
    return of_data.format(size=options.size)


def figures(last: dict[str, Any]) -> str:
    """The accuracies and losses of an epoch."""
    values = [
        f"{name} {value:.4g}"
        for name, value in last.items()
        if name.startswith(("train_", "val_"))
    ]
    return ", ".join(values)


def prepared(packed: Classifier) -> str:
    """What is done with pixels before the network sees them."""
    if packed.reader.written:
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
    lines = []
    for path in files:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        lines.append(f"{digest}  {path.relative_to(BOX).as_posix()}")
    (BOX / SUMS).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
