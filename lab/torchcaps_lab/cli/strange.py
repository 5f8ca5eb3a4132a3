"""Images of no class: the threshold of a network, fitted again, and what it tells of
strangers.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchcaps.models.network import CONFIG_FILE, network_folder
from torchcaps.spec import Spec, fit
from torchcaps.whole import LARGEST_NOTE, owned, read_json, write_whole
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.cli.runs import open_run
from torchcaps_lab.data import DataSet, Examples
from torchcaps_lab.report.strangers import check_false_alarms, told_apart

NOTHING = (
    "is recognised by: this needs a classification, a decoder that learned to "
    "reconstruct, and at least 20 validation images"
)


def fit_again(
    classifier: Classifier,
    run: str,
    data: Any,
    false_alarms: float,
    imported: Sequence[str],
) -> str:
    """Fits the threshold on validation images, and keeps it with the network; says
    where.

    Raises:
        ValueError: if ``false_alarms`` is out of range, or there is nothing to tell
            strangers by.
    """
    check_false_alarms(false_alarms)
    _, images = open_run(run, data, "validation", imported)
    strangers = classifier.task.fit_strangers(
        classifier.network, classifier.prepared(images), false_alarms
    )
    if strangers is None:
        raise ValueError(
            f"--false_alarms: there is nothing that an image of no class {NOTHING}"
        )
    classifier.strangers = strangers
    folder = network_folder(Path(run))
    file = owned(Path(run), *folder.relative_to(run).parts, CONFIG_FILE)
    if not file.is_file():
        return f"{strangers}; not saved: {run} comes with the package"
    config = read_json(file, LARGEST_NOTE)
    config["extra"]["strangers"] = strangers.config()
    write_whole(file, json.dumps(config, indent=2) + "\n")
    return f"{strangers}; saved in {folder / CONFIG_FILE}"


def examine_strange(
    classifier: Classifier,
    images: Examples,
    strange: str,
    batch_size: int,
) -> dict[str, float]:
    """How well the network tells strangers from its own images.

    Args:
        classifier: a classifier with a threshold.
        images: unprepared images of its classes.
        strange: a folder, with all its sub-folders, a file, a pattern or a data set, of
            which the test images.
        batch_size: images at a time.

    Raises:
        ValueError: if there is no threshold, or there are no such images.
    """
    if classifier.strangers is None:
        decodes = getattr(classifier.network, "decoder", None) is not None
        advice = "this network has no decoder: train one that has"
        if decodes:
            advice = "try --false_alarms 0.05"
        raise ValueError(
            f"--strange: nothing was fitted that an image of no class {NOTHING}; {advice}"
        )
    if Path(strange).exists() or any(sign in strange for sign in "*?["):
        strange_errors = _errors(
            classifier, list(classifier.reader.named([strange])), None, batch_size
        )
    else:
        spec: Spec = fit(DataSet, strange, "--strange")
        strange_errors = _errors(classifier, _each(spec.make().test), "pad", batch_size)
    known_errors = _errors(classifier, _each(images), "pad", batch_size)
    apart = told_apart(known_errors, strange_errors, classifier.strangers.threshold)
    return {
        "known_images": len(known_errors),
        "strange_images": len(strange_errors),
        **apart._asdict(),
    }


def _each(images: Examples) -> Iterable[Tensor]:
    return chain.from_iterable(batch.inputs for batch in images.batches(128))


def _errors(
    classifier: Classifier,
    images: Iterable[Any],
    resize: Any,
    batch_size: int,
) -> Tensor:
    """Measure the error of each image, (N,)."""
    answers = (answer for _, answer in classifier.stream(images, resize, batch_size))
    return torch.tensor([answer.error for answer in answers], dtype=torch.float32)
