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
from torchcaps.capsules import Capsules
from torchcaps.layers import CapsLinear
from torchcaps.losses import margin_loss
from torchcaps.mixture import BinomialMixture, GaussianMixture, KMeans, SoftKMeans
from torchcaps.models import create_model
from torchcaps.ops import Votes
from torchcaps.routing import EMRouting, create_routing
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
        warned = any(
            issubclass(warning.category, ConvergenceWarning) for warning in told
        )
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


@fault("numbers that float32 and float16 round, by their routing", "within the bound")
def bounds(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """What the docstrings of routings state of their rounding, on random votes."""
    for _ in range(count):
        torch.manual_seed(chance.randrange(2**31))
        backend = chance.choice(("naive", "chunked", "native"))
        yield _small_mass(backend, 10 ** chance.uniform(-25, -10))
        yield _cost_floor(backend, 10 ** chance.uniform(-1.5, 1))
        yield _first_axis(backend, 10 ** chance.uniform(-5, 0))
        yield _gradient_of_small_floor(10 ** chance.uniform(-4, -2))
        yield _released_lengths(10 ** chance.uniform(-10, 3))
        yield _half_precision(chance.choice(("heinsen_2019", "spectral", "em")))


def _routed(routing: Any, children: Tensor, transforms: Tensor, backend: str) -> Any:
    return routing(Votes(children, transforms, backend=backend))


def _small_mass(backend: str, mass: float) -> bool:
    """EM: below 1.1e-19, a parent has pose 0 in float32; above, that of float64."""
    children = torch.randn(1, 6, 4, dtype=torch.float64)
    transforms = torch.randn(6, 3, 4, 4, dtype=torch.float64)
    weights = torch.full((1, 6), mass, dtype=torch.float64)
    routing = create_routing("em", steps=1).bind(3, 4)
    exact = routing.double()(Votes(children, transforms, backend="naive"), weights)
    votes = Votes(children.float(), transforms.float(), backend=backend)
    pose = routing.float()(votes, weights.float()).pose.double()
    # Each of three parents has a third of the mass of six children.
    if 2 * mass < 1e-19:
        return not pose.any()
    return 2 * mass < 1.2e-19 or _near(pose, exact.pose, 1e-4)


def _cost_floor(backend: str, scale: float) -> bool:
    """Standardised EM with ``cost_floor=0.001``: four digits of the gradients."""
    routing = EMRouting.preset("standardised", cost_floor=0.001)
    layer: Any = CapsLinear(20, 8, (2, 3), (2, 3), routing=routing, backend=backend)
    inputs = scale * torch.randn(3, 20, 2, 3, dtype=torch.float64)
    along = torch.randn(3, 8, dtype=torch.float64)
    results = []
    for dtype in (torch.float64, torch.float32):
        pose = inputs.to(dtype).requires_grad_()
        parents = layer.to(dtype)(Capsules(pose, torch.ones(3, 20, dtype=dtype)))
        loss = parents.pose.square().sum() + (parents.activation * along).sum()
        results.append(torch.autograd.grad(loss, pose)[0].double())
    return _near(results[1], results[0], 2e-3)


def _first_axis(backend: str, gap: float) -> bool:
    """Spectral: the pose is off by the resolution over the gap between two axes."""
    axes = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))[0]
    values = torch.tensor([1, (1 - gap) ** 0.5, *[0.1] * 6], dtype=torch.float64)
    sides = torch.linalg.qr(torch.randn(30, 8, dtype=torch.float64))[0]
    children = (sides * values @ axes.mT)[None]
    transforms = torch.eye(8, dtype=torch.float64)[None, None]
    routing = create_routing("spectral").bind(1, 8)
    exact = _routed(routing.double(), children, transforms, "naive").pose
    rounded = _routed(routing.float(), children.float(), transforms.float(), backend)
    resolution = torch.finfo(torch.float32).eps * float(values.square().sum()) / gap
    pose = rounded.pose.double()
    apart = torch.minimum((pose - exact).norm(dim=-1), (pose + exact).norm(dim=-1))
    return bool((apart <= 8 * resolution).all())


def _gradient_of_small_floor(floor: float) -> bool:
    """Slot mixtures: the gradient is that of small differences."""
    routing = create_routing("slot_mixture", variance_floor=floor).bind(4, 6).double()
    children = torch.randn(1, 20, 6, dtype=torch.float64).requires_grad_()
    along = torch.randn(1, 4, 6, dtype=torch.float64)
    eye = torch.eye(6, dtype=torch.float64)[None, None].expand(1, 4, 6, 6)

    def loss(points: Tensor) -> Tensor:
        pose: Tensor = _routed(routing, points, eye, "naive").pose
        return (pose * along).sum()

    (gradient,) = torch.autograd.grad(loss(children), children)
    step = 1e-5 * torch.randn_like(children)
    with torch.no_grad():
        change = loss(children + step) - loss(children - step)
    expected = 2 * (gradient * step).sum()
    return bool((change - expected).abs() <= 1e-3 * (gradient.abs() * step.abs()).sum())


def _released_lengths(scale: float) -> bool:
    """Interests as released: parents have length 1, whatever the size of the votes."""
    routing = create_routing("interests", form="released").bind(3, 1)
    children = scale * torch.randn(2, 9, 1)
    routed = _routed(routing, children, torch.ones(1, 3, 1, 1), "naive")
    return _near(routed.activation, torch.ones(2, 3), 1e-3)


def _half_precision(name: str) -> bool:
    """Float16: inputs, outputs and weights alone are rounded."""
    layer: Any = CapsLinear(20, 5, 8, 8, routing=create_routing(name)).half()
    children = torch.randn(3, 20, 8).half()
    ones = torch.ones(3, 20).half()
    rounded = layer(Capsules(children, ones))
    exact = layer.double()(Capsules(children.double(), ones.double()))
    return _near(rounded.pose.double(), exact.pose, 2e-3) and _near(
        rounded.activation.double(), exact.activation, 2e-3
    )


def _near(actual: Tensor, expected: Tensor, share: float) -> bool:
    """Whether a tensor is as expected, up to a share of its length."""
    return bool((actual - expected).norm() <= share * expected.norm())
