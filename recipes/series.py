"""Capsules over time: speakers of vowels, exercises with a watch, spoken digits of
speakers never heard in training.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, cast
from zipfile import ZipFile

import torch
import torch.nn.functional as F
from torch import Tensor

from recipes.kit.base import (
    Key,
    Picture,
    Recipe,
    Study,
    facts_of,
    lines_of,
    register_recipe,
)
from recipes.kit.charts import Dots, dot_panels
from recipes.kit.lab import Trained, data_of
from recipes.kit.measures import half_interval
from recipes.kit.options import TrainingOptions, option
from torchcaps.whole import opened
from torchcaps_lab.data import Examples, Series, find_data_dir
from torchcaps_lab.report import list_exhibits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPSULES = "capsules"
CNN = "CNN of equal size"
ROCKET = "MiniRocket"
VOWELS = "JapaneseVowels"
WATCH = "watch"
DIGITS = "spoken digits"
ACCURACY, DIFFERENCE = "test accuracy", "accuracy above that of the CNN"
FACTS = facts_of("series")
NETWORKS: dict[str, dict[str, Any]] = FACTS["heads"]
DATA = {VOWELS: "JapaneseVowels", WATCH: "Watch", DIGITS: "SpokenDigits"}
GROUPS: dict[str, tuple[list[str], list[str]]] = FACTS["groups"]
"""Whom settings were chosen on, and who is tested: a third of these with each seed,
never seen by its networks.
"""

ROWS = {
    f"{data}: {network}": (data, network) for data, network in product(DATA, NETWORKS)
}
KEYS = [
    (f"{data}: {kind}", ACCURACY) for data, kind in product(DATA, (*NETWORKS, ROCKET))
]
PAIRS = [(f"{data}: {CAPSULES}", DIFFERENCE) for data in DATA]


class JapaneseVowels(Series):
    """Two vowels of nine speakers, 12 channels: which speaker it is; from aeon, with
    the published splits.
    """

    def __init__(self, validation: float = 0.1, seed: int = 0) -> None:
        import aeon

        root = Path(aeon.__file__).with_name("datasets") / "data" / "JapaneseVowels"
        super().__init__(str(root), validation=validation, seed=seed)


class Watch(Series):
    """Seven exercises of ten subjects, acceleration and turning of a watch on the
    wrist; from seglearn.
    """

    def __init__(
        self, test_groups: tuple[str, ...] = (), validation_groups: tuple[str, ...] = ()
    ) -> None:
        super().__init__(
            "", test_groups=test_groups, validation_groups=validation_groups
        )

    def list_series(self) -> Any:
        """Whole recordings, of 947 to 2,618 moments."""
        from seglearn.datasets import load_watch

        watch = load_watch()
        recordings = zip(watch["X"], watch["y"], watch["subject"], strict=True)
        rows = []
        for number, (values, label, subject) in enumerate(recordings):
            name = f"watch:{number}"
            category = watch["y_labels"][int(label)]
            series = torch.tensor(values.T, dtype=torch.float32)
            rows.append((name, category, series, str(int(subject))))
        return self.listed_of(rows)


class SpokenDigits(Series):
    """The 3,000 digits of the Free Spoken Digit Dataset:
    ``digits-sound/recordings.zip`` in the folder of data sets.
    """

    def __init__(
        self, test_groups: tuple[str, ...] = (), validation_groups: tuple[str, ...] = ()
    ) -> None:
        root = find_data_dir(None) / "digits-sound" / "recordings.zip"
        more: dict[str, Any] = {"standardise": "each"}
        super().__init__(
            str(root),
            test_groups=test_groups,
            validation_groups=validation_groups,
            **more,
        )

    def list_series(self) -> Any:
        """The sounds by their names, DIGIT_SPEAKER_NUMBER.wav."""
        return self.listed_of(_sounds(Path(self.root)))


@cache
def _sounds(archive: Path) -> tuple[tuple[str, str, Tensor, str], ...]:
    """Name, digit, values and speaker of each sound in an archive, in the order of the
    names.
    """
    with (
        TemporaryDirectory() as folder,
        opened(archive) as file,
        ZipFile(file) as packed,
    ):
        packed.extractall(folder)
        items: list[Any] = Series(Path(folder) / "recordings").listed.items
    rows = [(item.name, item.category, item.values, item.group) for item in items]
    return tuple(sorted(rows, key=itemgetter(0)))


@dataclass(frozen=True, kw_only=True)
class SeriesSettings(TrainingOptions):
    """One preset: how networks are trained on each collection.

    Attributes:
        of: the options of each collection that differ from those of the preset.
        rocket: whether MiniRocket is measured too.
    """

    of: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rocket: bool = True


@register_recipe
class SeriesRecipe(Recipe[SeriesSettings]):
    """Capsules over time against their twin and MiniRocket, on people who were not seen
    in training.
    """

    name: ClassVar = "series"
    rows: ClassVar = ROWS
    lines: ClassVar = (
        *lines_of(KEYS, {}, higher_is_better=True),
        *lines_of(PAIRS, {}, higher_is_better=True, unit="points"),
    )
    settings: ClassVar = SeriesSettings

    def options(self, settings: SeriesSettings, row: str) -> dict[str, Any]:
        """The network and the collection of the row."""
        name, kind = ROWS[row]
        options = {**NETWORKS[kind], **settings.of.get(name, {})}
        options["data"] = settings.data or option(DATA[name])
        return settings.options(**options)

    def train(
        self,
        study: Study,
        row: str,
        stop_at: float | None,
    ) -> Trained:
        """Trains without the people that are tested with this seed."""
        name, options = self.job(study.settings, row, stop_at)
        collection, _ = ROWS[row]
        options["data"] = divided(options["data"], collection, study.lab.seed)
        return study.lab.train(name, options)

    def measure(
        self,
        study: Study,
        row: str,
        shared: Any,
    ) -> dict[str, float]:
        """The test accuracy, and for capsules nothing more until the twin is there."""
        return {ACCURACY: study.trained[row].test_accuracy}

    def finish(self, study: Study, shared: Any) -> None:
        """MiniRocket, and the differences of capsules and twin with the same people."""
        for name in dict.fromkeys(ROWS[row][0] for row in study.trained):
            ours, twin = (
                study.figures[f"{name}: {kind}", ACCURACY] for kind in NETWORKS
            )
            study.note(f"{name}: {CAPSULES}", {DIFFERENCE: ours - twin})
            if study.settings.rocket:
                data = divided(option(DATA[name]), name, study.lab.seed)
                accuracy = rocket(data, study.lab.seed)
                study.note(f"{name}: {ROCKET}", {ACCURACY: accuracy})
        trained = study.trained[f"{DIGITS}: {CAPSULES}"]
        study.pictures["moments"] = Picture(moments(trained), self.captions["moments"])

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """The accuracies over all seeds, and series of the first."""
        figure = accuracies([study.figures for study in studies])
        return {"accuracy": Picture(figure, self.caption), **studies[0].pictures}


def divided(
    data: Mapping[str, Any],
    name: str,
    seed: int,
) -> dict[str, Any]:
    """A collection with the people that are tested, and validated on, with this
    seed.
    """
    chosen, tested = GROUPS[name]
    if not tested or data["name"] != DATA[name]:
        return dict(data)
    return {
        **data,
        "test_groups": list(tested[seed % 3 :: 3]),
        "validation_groups": [chosen[seed % len(chosen)]],
    }


def rocket(data: Mapping[str, Any], seed: int) -> float:
    """Accuracy in percent of MiniRocket and ridge regression, on series padded with
    zeros to the longest.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from aeon.classification.convolution_based import MiniRocketClassifier

    source = data_of(data)
    train = source.train
    test = source.test
    longest = max(row.shape[1] for row in (*_scaled(train), *_scaled(test)))
    classifier = MiniRocketClassifier(random_state=seed)
    classifier.fit(_padded(train, longest), train.labels.numpy())
    answers = classifier.predict(_padded(test, longest))
    return 100 * float((answers == test.labels.numpy()).mean())


def _scaled(series: Examples) -> Iterator[Tensor]:
    """The series, (C, L) each, as networks see them."""
    for index in range(len(series)):
        (values,) = series[index].inputs
        yield values[:-1]


def _padded(series: Examples, length: int) -> Any:
    """The scaled series with zeros to a length, as one array (N, C, L)."""
    rows = [F.pad(row, (0, length - row.shape[1])) for row in _scaled(series)]
    return torch.stack(rows).double().numpy()


def moments(trained: Trained, count: int = 4) -> "Figure":
    """Test series of the first classes, and which class each of their moments spoke
    for.
    """
    series = trained.classifier.prepared(trained.data.test)
    places = []
    titles = []
    for label in range(min(count, len(series.classes))):
        index = int((series.labels == label).nonzero()[0])
        (answer,) = trained.network(series[index].inputs).activation.detach()
        places.append(index)
        titles.append(
            f"{series.classes[label]}: predicted "
            f"{series.classes[int(answer.argmax())]} ({float(answer.max()):.2f})"
        )
    exhibit: Any = list_exhibits()["series"]
    (picture,) = exhibit.of(trained.network, series, places, titles).draw()
    return cast("Figure", picture.figure)


def accuracies(figures: Sequence[Mapping[Key, float]]) -> "Figure":
    """Accuracies of all kinds on each collection: mean and 95 % interval over the
    seeds.
    """
    measured = {row.rpartition(": ")[2] for row, _ in figures[0]}
    kinds = [kind for kind in (*NETWORKS, ROCKET) if kind in measured]
    panels = []
    for name in DATA:
        if (f"{name}: {CAPSULES}", ACCURACY) in figures[0]:
            keys = [(f"{name}: {kind}", ACCURACY) for kind in kinds]
            panels.append(Dots.over(f"{name}, % right", figures, keys, half_interval))
    return dot_panels(kinds, panels)
