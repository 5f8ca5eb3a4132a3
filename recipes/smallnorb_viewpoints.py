"""Viewpoints not seen in training: heads on one backbone, of which some route (Hinton,
Sabour & Frosst 2018).
"""

import json
from collections.abc import Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import lightning as L
import torch
from torch import Tensor

import recipes.convnet  # noqa: F401  its networks
from recipes.kit.base import Key, Recipe, Study, facts_of, lines_of, register_recipe
from recipes.kit.lab import Trained, data_of
from recipes.kit.measures import by_groups
from recipes.kit.options import TrainingOptions
from torchcaps.models import ImageClassifier
from torchcaps.whole import LARGEST_NOTE, read_json, write_whole
from torchcaps_lab.data import Examples, Preprocess, SmallNORB
from torchcaps_lab.evaluate import ask

HINTON = "Hinton, Sabour & Frosst 2018, table 2, recalled"
VIEWPOINTS = ("azimuth", "elevation")
FACTS = facts_of("smallnorb-viewpoints")
HEADS: dict[str, dict[str, Any]] = FACTS["heads"]

FAMILIAR, NOVEL = "familiar views of other toys", "novel views of other toys"
SAME = "novel views of the same toys"
ENTROPY = "entropy of the couplings"
TESTS = {FAMILIAR: "familiar", NOVEL: "novel", SAME: "novel_of_same_toys"}
"""The measures, errors in percent, with the ``test_viewpoints`` of their images."""

ROWS = {
    f"{viewpoints}, {head}": {**HEADS[head], "data": {"viewpoints": viewpoints}}
    for viewpoints, head in product(VIEWPOINTS, HEADS)
}
PUBLISHED: dict[Key, float] = {}
"""Errors of another implementation."""

for _row, (_familiar, _novel) in FACTS["published"].items():
    PUBLISHED[_row, FAMILIAR] = _familiar
    PUBLISHED[_row, NOVEL] = _novel


class Views(NamedTuple):
    """Images to test on, prepared, and which toy each one shows, numbered from 0."""

    images: Examples
    toys: Tensor

    def thinned(self) -> "Views":
        """Every third image, for the curves."""
        chosen = torch.arange(0, len(self.toys), 3)
        return Views(self.images.subset(chosen), self.toys[chosen])

    def answer(self, network: ImageClassifier) -> tuple[Tensor, float | None]:
        """Whether the network takes each image for another class, (N,), and the mean
        entropy of its couplings.
        """
        asked = ask(network, self.images)
        return asked.activation.argmax(1) != self.images.labels, asked.entropy


def share(wrong: Tensor) -> float:
    """In percent."""
    return 100 * int(wrong.sum()) / len(wrong)


@cache
def views(data: str, preprocess: str, test: str) -> Views:
    """The images of a test, given the options ``data`` and ``preprocess`` in JSON."""
    source = data_of({**json.loads(data), "test_viewpoints": test})
    images = source.test
    toys = torch.zeros_like(images.labels)
    if isinstance(source, SmallNORB):
        toys = source.info("test")[:, 0]
    toys_of_classes = torch.stack([images.labels, toys], 1)
    _, numbers = toys_of_classes.unique(dim=0, return_inverse=True)
    prepared = images.prepared(Preprocess.from_config(json.loads(preprocess)))
    return Views(prepared, numbers)


class Curve(L.Callback):
    """Writes the errors in percent after each epoch, by epoch and measure, into a file
    of JSON.
    """

    def __init__(self, path: Path, tests: Mapping[str, Views]) -> None:
        self.path = path
        self.tests = tests

    def on_train_epoch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule
    ) -> None:
        """Tests, and adds the epoch to the file, which a resumed training continues."""
        network: Any = pl_module.model
        by_epoch = read_json(self.path, LARGEST_NOTE) if self.path.is_file() else {}
        errors = {}
        for name, test in self.tests.items():
            wrong, _ = test.answer(network)
            errors[name] = share(wrong)
        by_epoch[str(trainer.current_epoch)] = errors
        write_whole(self.path, json.dumps(by_epoch))


@register_recipe
class SmallNORBViewpoints(Recipe[TrainingOptions]):
    """Heads trained alike on a third of the viewpoints: how well do they know the
    others?
    """

    name: ClassVar = "smallnorb-viewpoints"
    rows: ClassVar = ROWS
    lines: ClassVar = (
        *lines_of(product(ROWS, TESTS), {}),
        *lines_of(
            [(row, ENTROPY) for row, options in ROWS.items() if "routing" in options],
            {},
            unit="",
            higher_is_better=None,
        ),
        *lines_of(PUBLISHED, PUBLISHED, HINTON, elsewhere=True),
    )
    grows: ClassVar = True

    def tests(self, settings: TrainingOptions, row: str) -> dict[str, Views]:
        """The images to test a row on, by measure."""
        options = self.options(settings, row)
        data = json.dumps(options["data"], sort_keys=True)
        preprocess = json.dumps(options["preprocess"], sort_keys=True)
        return {
            measure: views(data, preprocess, test) for measure, test in TESTS.items()
        }

    def train(
        self,
        study: Study,
        row: str,
        stop_at: float | None,
    ) -> Trained:
        """Trains the network of a row, and tests it on a third of the images of other
        toys after each epoch.
        """
        name, options = self.job(study.settings, row, stop_at)
        tests = self.tests(study.settings, row)
        thinned = {measure: tests[measure].thinned() for measure in (FAMILIAR, NOVEL)}
        curve = Curve(study.lab.folder(name).path / "curve.json", thinned)
        return study.lab.train(name, options, [curve])

    def measure(
        self,
        study: Study,
        row: str,
        shared: Any,
    ) -> dict[str, float]:
        """The errors at the end; the curves have those after each epoch, and how many
        images of each toy were wrong.
        """
        trained = study.trained[row]
        wrong = {}
        toys = {}
        figures = {}
        for name, test in self.tests(study.settings, row).items():
            wrong[name], entropy = test.answer(trained.network)
            toys[name] = test.toys
            figures[name] = share(wrong[name])
            if name == NOVEL and entropy is not None:
                figures[ENTROPY] = entropy
        epochs = read_json(trained.folder / "curve.json", LARGEST_NOTE).values()
        curves = {}
        for name in (FAMILIAR, NOVEL):
            curves[name] = [errors[name] for errors in epochs]
        study.curves[row] = {"epochs": curves, **by_groups(wrong, toys)}
        return figures
