"""Faults of numbers: differences of rounding, results that are none, networks that
guess in evaluation mode.
"""

import copy
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from benchmarks.faults import fault
from torchcaps.losses import margin_loss
from torchcaps.mixture import BinomialMixture, GaussianMixture, KMeans, SoftKMeans
from torchcaps.models import create_model
from torchcaps.ops import Votes
from torchcaps.routing import create_routing
from torchcaps.sklearn import CapsNetClassifier
from torchcaps_lab.data import Text
from torchcaps_lab.kinds.series.series_set import Scale

PLAIN = ("max_min", "dynamic", "kmeans", "euclidean", "mean")
"""Routings without parameters of their own, under which such parents stay alike."""

LOOSEST = 1e-6
"""What an input times 1 + 1e-12 may change, in float64."""


@fault(
    "parents that differ by rounding alone, input times 1 + 1e-12",
    "the same poses to 1e-6",
)
def differences_of_rounding(
    folder: Path, count: int, chance: random.Random
) -> Iterator[bool]:
    """Parents with the same votes, and series that are constant."""
    for _ in range(count):
        torch.manual_seed(chance.randrange(2**31))
        children = torch.randn(2, chance.randint(2, 40), 6, dtype=torch.float64)
        transforms = torch.randn(1, 1, 6, 5, dtype=torch.float64)
        alike = transforms * (1 + 4e-16 * torch.randn(1, 4, 6, 5))
        routing = create_routing(chance.choice(PLAIN))
        first = routing(Votes(children, alike)).pose
        second = routing(Votes(children * (1 + 1e-12), alike)).pose
        yield bool((first - second).norm() <= LOOSEST * first.norm())
        series = 10.0 ** chance.randint(-3, 7) * torch.ones(1, 30)
        series[:, ::3] *= 1 + torch.finfo(series.dtype).eps
        yield not Scale()(series).any()


@fault(
    "fewer distinct points than clusters, or features that overflow",
    "a warning or an error with a name, never converged",
)
def degenerate(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Every estimator on repeated points, but for rounding, and the classifier on one
    number of 1e200.
    """
    for _ in range(count):
        numbers = np.random.default_rng(chance.randrange(2**31))
        clusters = chance.randint(2, 6)
        points = numbers.uniform(1, 9, (chance.randint(1, clusters - 1), 3))
        rows = points[np.arange(8 * clusters) % len(points)]
        rows *= 1 + np.finfo(float).eps * numbers.integers(-1, 2, rows.shape)
        estimator: Any = chance.choice(
            (KMeans, SoftKMeans, GaussianMixture, BinomialMixture)
        )(clusters, random_state=0)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            estimator.fit(rows)
        warned = any(issubclass(one.category, ConvergenceWarning) for one in told)
        yield warned and not estimator.converged_
        rows = numbers.normal(size=(12, 3))
        rows[chance.randrange(12), chance.randrange(3)] = 10.0 ** chance.randint(
            180, 308
        )
        classifier = CapsNetClassifier(hidden=4, types=2, epochs=1, random_state=0)
        try:
            classifier.fit(rows, np.arange(12) % 2)
        except ValueError as error:
            yield "X holds" in str(error)
        else:
            yield bool(np.isfinite(classifier.loss_curve_).all())


@fault(
    "few steps of training, then evaluation",
    "the answers of training mode, nine of ten",
)
def both_modes(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Networks with the slow running values of their papers, after 10 to 60 steps."""
    sizes: dict[str, dict[str, Any]] = {
        "deepcaps": {
            "image_shape": (1, 16, 16),
            "channels": 16,
            "types": 4,
            "dims": (2, 4, 4),
            "decoder_channels": None,
        },
        "efficient_capsnet": {"channels": (8, 8, 8, 16), "decoder_hidden": None},
    }
    for number in range(count):
        name = [*sizes][number % len(sizes)]
        torch.manual_seed(chance.randrange(2**31))
        network = create_model(name, **sizes[name])
        labels = torch.arange(64) % 10
        noise = network.examples(64)
        images = 0.6 * noise[labels] + 0.4 * noise
        optimizer = torch.optim.Adam(network.parameters(), 1e-3)
        for _ in range(chance.randint(10, 60)):
            loss = margin_loss(network(images).activation, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield _agree(network, images)


def _agree(network: Any, images: Tensor) -> bool:
    with torch.no_grad():
        trained = copy.deepcopy(network)(images).activation.argmax(1)
        evaluated = network.eval()(images).activation.argmax(1)
    return bool((trained == evaluated).double().mean() > 0.9)


@fault(
    "test texts that differ from training ones in blanks, case or marks",
    "told as copies",
)
def copied_texts(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """One text of many is tested on with other blanks, another case or other marks."""
    changes = (
        lambda text: text.replace(" ", "  "),
        lambda text: f"\t{text}\r\n",
        str.upper,
        str.title,
        lambda text: f"{text}.",
        lambda text: f"\u201c{text}!\u201d",
        lambda text: text.replace(" ", "\u00a0"),
    )
    for number in range(count):
        root = folder / str(number)
        texts = [f"a film of {place} colours" for place in range(12)]
        for place, text in enumerate(texts):
            path = root / "train" / ("good", "bad")[place % 2] / f"{place}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        copied = chance.choice(changes)(chance.choice(texts[::2]))
        for name, text in (("good", copied), ("bad", "quite another one")):
            path = root / "test" / name / "new.txt"
            path.parent.mkdir(parents=True)
            path.write_text(text)
        yield any("test/good/new.txt" in note for note in Text(str(root)).notes())
