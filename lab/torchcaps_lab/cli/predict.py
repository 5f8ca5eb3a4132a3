"""Classify images, series or texts: class, probability, length of its capsule; as text,
CSV or JSON.
"""

import sys
from pathlib import Path
from typing import Any

from torchcaps.spec import Size
from torchcaps_lab.cli.places import Trained
from torchcaps_lab.look import Fit


def command(
    run: Trained,
    images: list[str],
    *,
    resize: Fit | None = None,
    top: Size | None = None,
    device: str = "cpu",
    batch_size: Size = 64,
    csv: bool = False,
    json: bool = False,
    boxes: str | None = None,
    masks: str | None = None,
) -> None:
    """Classify image files, texts or series with the network of a run.

    Args:
        run: folder of a run, or of a saved network, or name of a trained one in the
            package
        images: image files, folders (with all their sub-folders) or patterns; for a
            network that takes words: texts, files with a text in each line, folders of
            .txt files; for one that takes series: .ts, .arff, .csv, sounds
        resize: how images are fitted to the network; keep: not at all, for networks of
            any size; default: as it was trained
        top: print this many classes, the most active first; default: the predicted ones
        device: where to compute: cpu, cuda, cuda:1, ...
        batch_size: images at a time
        csv: print a table with a line for each predicted class
        json: print one JSON object a line, with all lengths, probabilities and poses
        boxes: folder to write pictures into, with a box around each thing of the
            predicted classes
        masks: folder to write the class of each pixel into, as images with indexed
            colours, and laid over the pictures
    """
    from torchcaps_lab.cli import answers
    from torchcaps_lab.cli.runs import open_classifier
    from torchcaps_lab.data.manifest import readable

    if csv and json:
        raise ValueError("--csv and --json exclude each other")
    if not run:
        raise ValueError("run must not be empty")
    for name, folder in (("boxes", boxes), ("masks", masks)):
        if folder is not None:
            answers.check_folder(name, Path(folder))
    classifier = open_classifier(run, device)
    answers.check_resize(classifier, resize)
    if boxes is not None:
        answers.check_drawn(
            classifier, "--boxes", "boxes", lambda answer: answer.things
        )
    if masks is not None:
        per_pixel = "a class for each pixel"
        answers.check_drawn(
            classifier, "--masks", per_pixel, lambda answer: answer.mask
        )
    with answers.said_plainly():
        files = list(classifier.reader.named(images))
    bad: list[str] = []

    def skip(file: Any, error: Exception) -> None:
        bad.append(str(file))
        print(
            f"torchcaps predict: {getattr(file, 'place', '')}{readable(str(error))}",
            file=sys.stderr,
        )

    show = (answers.as_json if json else answers.as_csv if csv else answers.as_text)(
        classifier, top
    )
    drawing = (
        [] if boxes is None else [answers.draw_boxes(classifier, Path(boxes), resize)]
    )
    drawing += (
        [] if masks is None else [answers.draw_masks(classifier, Path(masks), resize)]
    )
    with answers.said_plainly():
        for file, answer in classifier.stream(files, resize, batch_size, skip):
            show(file if isinstance(file, str) else str(file), answer)
            for draw in drawing:
                draw(str(file), answer)
    if bad:
        raise ValueError(
            f"{len(bad)} of {len(files)} {classifier.reader.items} could not be read"
        )
