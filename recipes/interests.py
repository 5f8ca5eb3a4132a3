"""Interests of users: which film comes next (Li et al. 2019, MIND; Cen et al. 2020,
ComiRec).
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import InitVar
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from recipes.kit.base import Picture, Recipe, Study, facts_of, lines_of, register_recipe
from recipes.kit.charts import Dots, dot_panels
from recipes.kit.lab import in_package
from recipes.kit.measures import by_groups, half_interval, percent
from recipes.kit.options import TrainingOptions
from torchcaps.capsules import Capsules
from torchcaps.layers import CapsLinear
from torchcaps.models import Prediction, TextClassifier, register_model
from torchcaps.numerics import Finite, Size
from torchcaps.routing import InterestRouting, Routing, interests_of, label_aware
from torchcaps.spec import settings
from torchcaps_lab.data import (
    DataSet,
    Examples,
    Preprocess,
    TextSet,
    Words,
    register_dataset,
)
from torchcaps_lab.report import ask

RESERVED = 2
"""Numbers of words begin with this one."""

MOST = 50
HIT, GAIN = f"HR@{MOST}", f"NDCG@{MOST}"
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
        made: users with made-up histories, this many, in place of real ones.
        longest: how many films before the next one are read, the last ones.
        every: train on every this many-th film of a user.
    """

    gives = "words"
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
        films = sorted({film for history in self.histories for film in history})
        return Words(tuple(films), longest=self.longest)

    def _set(self, places: Sequence[tuple[int, int]]) -> Examples:
        """Histories that end before a film: of (user, number of films before it)."""
        label = {film: number for number, film in enumerate(self.words.vocabulary)}
        texts = [
            " ".join(self.histories[user][max(0, end - self.longest) : end])
            for user, end in places
        ]
        labels = torch.tensor(
            [label[self.histories[user][end]] for user, end in places]
        )
        return TextSet.of(texts, labels, self.words.vocabulary, self.words)

    def load_train(self) -> Examples:
        """All films but a user's last two, each with those before it."""
        users = enumerate(self.histories)
        return self._set(
            [
                (user, end)
                for user, films in users
                for end in range(len(films) - 3, 0, -self.every)
            ]
        )

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

    def arguments(self, preprocess: Preprocess) -> dict[str, Any]:
        """The number of films."""
        return {"vocabulary": len(self.words)}

    def kept(self) -> dict[str, Any]:
        """The films."""
        return {"words": self.words.config(), "raw_image_shape": list(self.image_shape)}


def _read() -> list[list[str]]:
    users: dict[str, list[tuple[float, int, str]]] = {}
    with in_package("ml-100k/ml-100k.inter", "recbole", "dataset_example").open(
        encoding="utf-8"
    ) as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            film = int(row["item_id:token"])
            users.setdefault(row["user_id:token"], []).append(
                (float(row["timestamp:float"]), film, f"film{film}")
            )
    return [
        [film for *_, film in sorted(users[user])] for user in sorted(users, key=int)
    ]


def _made(users: int) -> list[list[str]]:
    """Users with two of six interests, each of ten films, in any order."""
    generator = torch.Generator().manual_seed(0)
    orders = (
        torch.randperm(6, generator=generator)[:2, None] * 10 + torch.arange(10)
        for _ in range(users)
    )
    return [
        [
            f"film{film}"
            for film in own.flatten()[torch.randperm(20, generator=generator)].tolist()
        ]
        for own in orders
    ]


class NextFilm(TextClassifier):
    r"""Embeddings of films; a user is one vector or several, and likes what is close to
    one of them.

    .. math:: p(e) = \operatorname{softmax}_e \big( \max_j \langle v_j, e \rangle + b_e \big)

    over the films e that the user does not have. With a sharpness p, training takes for
    v what :func:`~torchcaps.routing.label_aware` makes of the interests and the film
    that comes next, as published. Then each interest learns what comes next if it is
    one of its own films, and their scores cannot be compared in use.
    """

    sharpness: float | None = None

    def __init__(
        self, vocabulary: int, classes: int, word_dim: int, dropout: float
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

    def interests_of(self, vectors: Tensor, there: Tensor) -> Tensor:
        """The interests (B, J, D) of users, given their films (B, L, D) and how many
        there are, bool (B, L).
        """
        raise NotImplementedError

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """The probability of each film to be the next."""
        vectors, there = self.vectors(images)
        users = self.interests_of(self.drop(vectors).mT, there)
        if target is not None and self.training and self.sharpness is not None:
            users = label_aware(users, self.items[target], self.sharpness)[:, None]
        scores = (users @ self.items.T).amax(1) + self.bias
        seen = torch.zeros(
            len(images),
            RESERVED + self.vocabulary,
            dtype=torch.bool,
            device=images.device,
        )
        scores = scores.masked_fill(
            seen.scatter(1, images, True)[:, RESERVED:], -math.inf
        )
        return Prediction(scores.softmax(-1), None, None)


@register_model("interests_mean", "a user is a map of the mean of the films")
@settings
class MeanOfFilms(NextFilm):
    """One interest: the mean of the films, mapped.

    Args:
        vocabulary: number of films.
        classes: the same.
        word_dim: dimension of an embedding.
        dropout: share of its numbers that are left out in training.
    """

    vocabulary: int = 1000
    classes: int = 1000
    word_dim: int = 64
    dropout: float = 0.2

    def __post_init__(self) -> None:
        self.map = nn.Linear(self.word_dim, self.word_dim, bias=False)

    def interests_of(self, vectors: Tensor, there: Tensor) -> Tensor:
        """One interest each."""
        return self.map(
            vectors.sum(1, keepdim=True) / there.sum(1).clamp(min=1)[:, None, None]
        )


@register_model(
    "interests",
    "a user is a few interests, capsules to which the films are routed; after Li et "
    "al. 2019",
)
@settings
class Interests(NextFilm):
    """Interests are parents, films their children; of users with few films fewer.

    Args:
        vocabulary: number of films.
        classes: the same.
        word_dim: dimension of an embedding.
        dropout: share of its numbers that are left out in training.
        interests: how many at most, J.
        sharpness: p, to train what the interests say of the next film; None: what they
            say in use.
        routing: any that masks pairs; default: interests in 3 steps, from learned
            parents.
    """

    vocabulary: int = 1000
    classes: int = 1000
    word_dim: int = 64
    dropout: float = 0.2
    interests: Size = 4
    sharpness: Finite | None = None
    routing: InitVar[Routing | None] = None

    def __post_init__(self, routing: Routing | None) -> None:
        D, routing = self.word_dim, routing or InterestRouting()
        self.capsules = CapsLinear(
            None, self.interests, D, D, transforms="subspace", routing=routing
        )
        self.map = nn.Linear(D, D, bias=False)

    def interests_of(self, vectors: Tensor, there: Tensor) -> Tensor:
        """Poses of capsules."""
        pairs = there[..., None] & interests_of(there.sum(1), self.interests)[:, None]
        return self.map(
            self.capsules(Capsules(vectors, there.to(vectors.dtype)), pairs).pose
        )


@register_model(
    "interests_attention",
    "a user is a few means of the films, each with weights of its own; Cen et al. 2020",
)
@settings
class AttentionToFilms(NextFilm):
    r"""Self-attention, :math:`V = \operatorname{softmax}(W_2 \tanh(W_1 H))^T H` over
    the films H.

    Args:
        vocabulary: number of films.
        classes: the same.
        word_dim: dimension of an embedding.
        dropout: share of its numbers that are left out in training.
        interests: how many, J.
        sharpness: p, to train what the interests say of the next film; None: what they
            say in use.
    """

    vocabulary: int = 1000
    classes: int = 1000
    word_dim: int = 64
    dropout: float = 0.2
    interests: Size = 4
    sharpness: Finite | None = None

    def __post_init__(self) -> None:
        D = self.word_dim
        self.map = nn.Sequential(
            nn.Linear(D, D, bias=False),
            nn.Tanh(),
            nn.Linear(D, self.interests, bias=False),
        )

    def interests_of(self, vectors: Tensor, there: Tensor) -> Tensor:
        """Weighted means."""
        scores = self.map(vectors)
        shares = scores.masked_fill(
            ~there[..., None], torch.finfo(scores.dtype).min
        ).softmax(1)
        return shares.mT @ vectors


@register_recipe
class FilmInterests(Recipe[TrainingOptions]):
    """One vector a user, or several: mean pooling, capsules, self-attention."""

    name: ClassVar = "interests"
    rows: ClassVar = HEADS
    lines: ClassVar = lines_of(
        ((head, measure) for head in HEADS for measure in (HIT, GAIN)),
        {},
        higher_is_better=True,
    )
    grows: ClassVar = True

    def measure(self, study: Study, row: str, given: Any) -> Mapping[str, float]:
        """Whether the next film is among the first of those that a user does not have,
        and how far up.
        """
        trained = study.trained[row]
        test = trained.data.test
        activation = ask(trained.network, test).activation
        own = activation.gather(1, test.labels[:, None])
        rank = (activation > own).sum(1)  # 0 is the first
        hit = rank < MOST
        study.curves[row] = by_groups({HIT: ~hit})
        gain = hit / (rank + 2).double().log2()
        return {HIT: percent(hit), GAIN: percent(gain)}

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """Means over the seeds, and how far each row is above mean pooling."""
        figures = [one.figures for one in studies]
        rows = [row for row in HEADS if any((row, HIT) in one for one in figures)]
        means = Dots.over(
            f"{HIT}, %", figures, [(row, HIT) for row in rows], half_interval
        )
        above = Dots.above("mean pooling", figures, rows, HIT)
        return {"hits": Picture(dot_panels(rows, [means, above]), self.caption)}
