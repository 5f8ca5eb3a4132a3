"""Inputs that a network does not know: its doubts, fitted again and tried on some."""

import copy
import json
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchcaps.spec import Spec, fit
from torchcaps.whole import (
    CONFIG_FILE,
    LARGEST_NOTE,
    network_folder,
    owned,
    read_json,
    write_whole,
)
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.cli.runs import open_run
from torchcaps_lab.data import DataSet, Examples
from torchcaps_lab.tasks.doubt import DOUBTS, Doubt, check_false_alarms

_NOTHING = "there is nothing that an image of no class is recognised by"


def fit_again(
    classifier: Classifier, run: str, data: Any, false_alarms: float
) -> list[str]:
    """Fit the doubts of a classifier on validation images, keep them with the network,
    and say where.

    Raises:
        ValueError: if ``false_alarms`` is out of range, or a doubt cannot be fitted.
    """
    check_false_alarms(false_alarms)
    _, images = open_run(run, data, "validation")
    examples = classifier.prepared(images)
    if not classifier.task.doubts:
        raise ValueError(f"--false_alarms: {_no_doubt(classifier)}")
    lines = []
    for name in classifier.task.doubts:
        kind: type[Doubt] = DOUBTS.find(name)
        doubt = kind.fit(classifier.network, examples, false_alarms)
        if doubt is None:
            reason = kind.unfit(classifier.network, examples)
            because = f"; {reason}" if reason else ""
            raise ValueError(f"--false_alarms: {_NOTHING}: {kind.needs}{because}")
        classifier.doubts[name] = doubt
        lines.append(f"{doubt}; {_save_doubt(name, doubt, run)}")
    return lines


def _no_doubt(classifier: Classifier) -> str:
    """Why the task of a classifier has nothing to doubt with."""
    return f"{_NOTHING}: task {classifier.task.name!r} has no such threshold"


def _save_doubt(name: str, doubt: Doubt, run: str) -> str:
    """Keeps a doubt with the network of a run, and says where."""
    folder = network_folder(Path(run))
    file = owned(Path(run), *folder.relative_to(run).parts, CONFIG_FILE)
    if not file.is_file():
        return f"not saved: {run} comes with the package"
    config = read_json(file, LARGEST_NOTE)
    config["extra"][name] = doubt.config()
    write_whole(file, json.dumps(config, indent=2) + "\n")
    return f"saved in {folder / CONFIG_FILE}"


def _unfitted(classifier: Classifier) -> str:
    """Why a classifier has no doubt, and what to do."""
    if not classifier.task.doubts:
        return _no_doubt(classifier)
    kind: type[Doubt] = DOUBTS.find(classifier.task.doubts[0])
    return (
        "nothing was fitted that an image of no class is recognised by: "
        f"{kind.needs}; --false_alarms 0.05 fits it, or tells why it cannot"
    )


def examine_strange(
    classifier: Classifier, images: Examples, strange: str, batch_size: int
) -> dict[str, dict[str, float]]:
    """How well each doubt of a classifier tells strangers from its own images.

    Args:
        classifier: a classifier with a doubt.
        images: unprepared images of its classes.
        strange: a folder, with all its sub-folders, a file, a pattern or a data set, of
            which the test images.
        batch_size: images at a time.

    Raises:
        ValueError: if there is no doubt, or there are no such images.
    """
    if not classifier.doubts:
        raise ValueError(f"--strange: {_unfitted(classifier)}")
    if Path(strange).exists() or any(sign in strange for sign in "*?["):
        strange_errors = _errors(
            classifier, list(classifier.reader.named([strange])), None, batch_size
        )
    else:
        spec: Spec = fit(DataSet, strange, "--strange")
        strange_errors = _errors_of(classifier, spec.make().test, batch_size)
    known_errors = _errors_of(classifier, images, batch_size)
    counts = {"known_images": len(known_errors), "strange_images": len(strange_errors)}
    return {
        name: {**counts, **doubt.apart(known_errors, strange_errors)}
        for name, doubt in classifier.doubts.items()
    }


def _errors_of(classifier: Classifier, images: Examples, batch_size: int) -> Tensor:
    """Measure the error of each image of a data set, (N,)."""
    of_examples = copy.copy(classifier)
    of_examples.reader = classifier.reader.of_examples()
    each = chain.from_iterable(batch.inputs for batch in images.batches(128))
    return _errors(of_examples, each, "pad", batch_size)


def _errors(
    classifier: Classifier, images: Iterable[Any], resize: Any, batch_size: int
) -> Tensor:
    """Measure the error of each image, (N,)."""
    answers = (answer for _, answer in classifier.stream(images, resize, batch_size))
    return torch.tensor([answer.error for answer in answers], dtype=torch.float32)
