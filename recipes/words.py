"""Capsules that classify texts: questions, film reviews; trained on one class, tested
on two (Zhao et al. 2018).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, cast

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
from recipes.kit.options import TrainingOptions
from torchcaps_lab.data import TextSet, joined
from torchcaps_lab.report import list_exhibits
from torchcaps_lab.tasks import SeveralLabels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ZHAO = "Zhao et al. 2018, table 2, with pretrained word vectors"
KIM = "Kim 2014, CNN-rand, recalled"

CNN, SOFTMAX = "CNN, a sigmoid for each class", "CNN, softmax"
CAPSULES = "capsules, form A"
CAPSULES_B = "capsules, form B"
ENCODER = "routing encoder"
POOLED = "capsules of maxima"
NETWORKS: dict[str, dict[str, Any]] = facts_of("words")["heads"]
ROWS = {f"TREC: {network}": network for network in NETWORKS}

ACCURACY = "test accuracy"
MOST_ACTIVE, ABOVE = (
    "two questions in one, the two most active",
    "two questions in one, exactly those above 0.5",
)
TOLD = {MOST_ACTIVE: SeveralLabels(count=2), ABOVE: SeveralLabels(threshold=0.5)}
"""How two classes are predicted: knowing that there are two, and not knowing it."""

PUBLISHED = {
    (f"TREC: {CAPSULES_B}", ACCURACY): (92.8, ZHAO),
    (f"TREC: {SOFTMAX}", ACCURACY): (91.2, KIM),
}
KEYS = list(product(ROWS, (ACCURACY, *TOLD)))


@dataclass(frozen=True, kw_only=True)
class WordsSettings(TrainingOptions):
    """One preset: how every network is trained, and on what it is tested.

    Attributes:
        sizes: model arguments of all networks.
        capsules: more arguments of the networks with capsules.
        ngrams: more arguments of the networks with capsules over n-grams.
        ngram_epochs: the training epochs of the networks with capsules over n-grams;
            None for ``epochs``.
        pairs: the number of joined texts that are tested.
    """

    sizes: Mapping[str, Any] = field(default_factory=dict)
    capsules: Mapping[str, Any] = field(default_factory=dict)
    ngrams: Mapping[str, Any] = field(default_factory=dict)
    ngram_epochs: int | None = None
    pairs: int = 2000


@register_recipe
class WordsRecipe(Recipe[WordsSettings]):
    """Trains on texts of one class each, and tests also on two texts joined into
    one.
    """

    name: ClassVar = "words"
    rows: ClassVar = ROWS
    lines: ClassVar = lines_of(KEYS, PUBLISHED, higher_is_better=True)
    settings: ClassVar = WordsSettings

    def options(self, settings: WordsSettings, row: str) -> dict[str, Any]:
        """The network of the row."""
        kind = ROWS[row]
        network = NETWORKS[kind]
        sizes = {**settings.sizes, **network.get("model_args", {})}
        epochs = settings.epochs
        if kind in (CAPSULES, CAPSULES_B, ENCODER):
            sizes |= settings.capsules
        if kind in (CAPSULES, CAPSULES_B):
            sizes |= settings.ngrams
            epochs = settings.ngram_epochs or epochs
        return settings.options(**{**network, "model_args": sizes, "epochs": epochs})

    def begin(self, study: Study) -> TextSet:
        """Joined questions, the same for all networks."""
        return joined(data_of(study.settings.data).test, study.settings.pairs)

    def measure(
        self,
        study: Study,
        row: str,
        joined_texts: TextSet,
    ) -> dict[str, float]:
        """Accuracy on questions of one class and of two."""
        trained = study.trained[row]
        texts = trained.classifier.prepared(joined_texts)
        figures = {ACCURACY: trained.test_accuracy}
        for name, task in TOLD.items():
            examined = task.examine(trained.network, texts)
            figures[name] = 100 * examined.figures["accuracy"]
        return figures

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """The joined questions over all seeds, and those in colour of the first."""
        figure = pairs([study.figures for study in studies])
        return {"pairs": Picture(figure, self.caption), **studies[0].pictures}

    def finish(self, study: Study, joined_texts: TextSet) -> None:
        """Some of the joined questions in colour."""
        for row, trained in study.trained.items():
            network = ROWS[row]
            if network in (CAPSULES, ENCODER, POOLED):
                caption = self.captions["colours"].format(network=network)
                words = network.lower().replace(",", "").split()
                figure = _coloured(trained, joined_texts)
                study.pictures["-".join(["colours", *words])] = Picture(figure, caption)


def pairs(figures: Sequence[Mapping[Key, float]]) -> "Figure":
    """Joined questions that each network classified correctly, with and without the
    count: mean and deviation.
    """
    rows = [row for row in ROWS if (row, MOST_ACTIVE) in figures[0]]
    panels = []
    for name in TOLD:
        keys = [(row, name) for row in rows]
        panels.append(Dots.over(f"{name}, % of pairs", figures, keys))
    return dot_panels([ROWS[row] for row in rows], panels)


def _coloured(trained: Trained, pairs: TextSet, count: int = 8) -> "Figure":
    """The first joined questions that are not too long, each word in the colour of the
    class that it supports.
    """
    classifier = trained.classifier
    network: Any = classifier.network
    reader: Any = classifier.reader
    chosen = [text for text in pairs.texts if len(text) < 110][:count]
    titles = [
        f"predicted: {', '.join(answer.top(2))}"
        for _, answer in classifier.stream(chosen)
    ]
    exhibit: Any = list_exhibits()["words"]
    shown = exhibit.of(network, reader.words, chosen, titles, pairs.classes)
    return cast("Figure", shown.figure())
