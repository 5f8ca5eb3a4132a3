"""Graphs and points: sets whose elements are children (Xinyi & Chen 2019, CapsGNN; Qi
et al. 2017, PointNet).
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from scipy.spatial.transform import Rotation
from sklearn.model_selection import StratifiedKFold, train_test_split
from torch import Tensor
from torch.nn.functional import normalize

from recipes.kit.base import Picture, Recipe, Study, facts_of, lines_of, register_recipe
from recipes.kit.lab import Lab, facts_of_network, in_package
from recipes.kit.measures import half_interval, percent
from recipes.kit.options import TrainingOptions
from torchcaps.losses import MarginLoss, NegativeLogLikelihood
from torchcaps.models import PooledSet, SetCapsNet
from torchcaps.whole import check_file
from torchcaps_lab.report import new_figure

FACTS = facts_of("sets")
HEADS: dict[str, dict[str, dict[str, Any]]] = FACTS["heads"]
ROWS: dict[str, tuple[str, str]] = {}
"""The data and the head of each row."""

for _data in HEADS:
    for _head in HEADS[_data]:
        ROWS[f"{_data}: {_head}"] = _data, _head

GRAPHS = [row for row, (data, _) in ROWS.items() if data != "shapes"]
ACCURACY = "test accuracy"
MARGIN = "half of its 95 % interval over the folds"
VIEW = "test accuracy, {}"
PUBLISHED = {
    (row, ACCURACY): tuple(figure) for row, figure in FACTS["published"].items()
}
POINTS = 64
SHAPES = ("sphere", "box", "cylinder", "cone", "torus", "capsule", "ring")
VIEWS: dict[str, dict[str, Any]] = FACTS["views"]
"""How the test shapes are shown: where they differ from those of training."""


class Sets(NamedTuple):
    """A batch of sets.

    Args:
        elements: the elements, (B, N, C).
        present: whether each element belongs to its set or is padding, bool (B, N).
        edges: the edges between elements, (B, N, N), or None.
        labels: the class of each set, (B,).
    """

    elements: Tensor
    present: Tensor
    edges: Tensor | None
    labels: Tensor

    def of(self, places: Any) -> "Sets":
        """Some of them."""
        edges = None if self.edges is None else self.edges[places]
        elements = self.elements[places]
        present = self.present[places]
        return Sets(elements, present, edges, self.labels[places])


def read_graphs(folder: Path) -> Sets:
    """Graphs in the text files of the TU collection.

    The labels of a node are indicators; attributes, if there are any, are taken less
    their mean over the graph, and divided by what is then their deviation over all
    graphs.
    """

    def read(part: str, kind: type = int) -> Any:
        file = folder / f"{folder.name}_{part}.txt"
        return np.loadtxt(check_file(file), delimiter=",", dtype=kind, ndmin=1)

    graph = read("graph_indicator") - 1
    node = np.arange(len(graph)) - np.searchsorted(graph, graph)
    columns = read("node_labels").reshape(len(graph), -1).T
    features = [np.eye(column.max() + 1)[column] for column in columns]
    if (folder / f"{folder.name}_node_attributes.txt").is_file():
        attributes = read("node_attributes", float).reshape(len(graph), -1)
        nodes_of_graph = np.bincount(graph)
        means = [np.bincount(graph, column) / nodes_of_graph for column in attributes.T]
        attributes -= np.stack(means, 1)[graph]
        features.append(attributes / attributes.std(0))
    values = torch.as_tensor(np.concatenate(features, 1), dtype=torch.float32)
    G = graph.max() + 1
    N = node.max() + 1
    elements = torch.zeros(G, N, values.shape[1])
    elements[graph, node] = values
    present = torch.zeros(G, N, dtype=torch.bool)
    present[graph, node] = True
    edges = torch.zeros(G, N, N)
    start, end = (read("A") - 1).T
    edges[graph[start], node[start], node[end]] = 1
    _, labels = np.unique(read("graph_labels"), return_inverse=True)
    return Sets(elements, present, edges, torch.as_tensor(labels))


def graphs(name: str) -> Sets:
    """A data set of graphs: in the folder of the data sets, or in the installed package
    grakel; or made up.
    """
    if name == "made":
        return _rings(40)
    return read_graphs(in_package(name, "grakel", "tests/data"))


def _rings(count: int) -> Sets:
    """Made-up graphs of 4 to 7 equal nodes: rings, and paths."""
    edges = torch.zeros(count, 7, 7)
    present = torch.zeros(
        count,
        7,
        dtype=torch.bool,
    )
    labels = torch.arange(count) % 2
    for graph in range(count):
        n = 4 + graph // 2 % 4
        present[graph, :n] = True
        start = torch.arange(n - int(labels[graph]))
        end = (start + 1) % n
        edges[graph, start, end] = 1
        edges[graph, end, start] = 1
    return Sets(present[..., None].float(), present, edges, labels)


def shapes(
    count: int,
    seed: int,
    points: int = POINTS,
    tilt: tuple[float, float] = (0.0, 30.0),
    astray: float = 0.0,
) -> Sets:
    """Points on the surfaces of bodies from trimesh, stretched, turned, with noise, in
    the middle, of size 1.

    Args:
        count: the number of bodies of each of :data:`SHAPES`.
        seed: the seed of all bodies.
        points: the number of points on each body.
        tilt: the angle between the axis of a body and the vertical, from and to, in
            degrees.
        astray: the share of the points that lie anywhere.
    """
    from trimesh import creation, sample

    bodies = (
        creation.icosphere(),
        creation.box(),
        creation.cylinder(0.5, 1.5),
        creation.cone(0.7, 1.5),
        creation.torus(0.8, 0.25),
        creation.capsule(1.0, 0.5),
        creation.annulus(0.5, 1.0, 0.6),
    )
    random = np.random.default_rng(seed)
    clouds = []
    for body in bodies:
        body_seed = int(random.integers(2**31))
        surface, _ = sample.sample_surface(
            body,
            count * points,
            seed=body_seed,
        )
        cloud = np.array(surface).reshape(count, points, 3)
        cloud = cloud * random.uniform(0.7, 1.3, (count, 1, 3))
        angles = [
            random.uniform(0, 360, count),
            random.uniform(*tilt, count),
            random.uniform(0, 360, count),
        ]
        turns = Rotation.from_euler(
            "zxz",
            np.stack(angles, 1),
            degrees=True,
        )
        cloud = cloud @ turns.as_matrix().transpose(0, 2, 1)
        cloud += 0.03 * random.standard_normal(cloud.shape)
        lost = round(astray * points)
        cloud[:, :lost] = random.uniform(-1.5, 1.5, (count, lost, 3))
        cloud -= cloud.mean(1, keepdims=True)
        radius = np.sqrt((cloud**2).sum(2).mean(1))
        clouds.append(cloud / radius[:, None, None])
    elements = torch.as_tensor(np.concatenate(clouds), dtype=torch.float32)
    present = torch.ones(elements.shape[:2], dtype=torch.bool)
    labels = torch.arange(len(bodies)).repeat_interleave(count)
    return Sets(elements, present, None, labels)


@dataclass(frozen=True, kw_only=True)
class SetsSettings(TrainingOptions):
    """One preset.

    Attributes:
        shapes: the number of shapes of each kind to train on, and as many to test.
        rate: the learning rate at its peak.
        decay: the decay of the weights.
        hold_out: whether to measure validation parts of the folds that are trained on,
            not the tests: to choose settings.
        sets: for each data, its name, ``folds``, the ``epochs`` of its trainings,
            arguments that its networks share, and those of a class of networks.
    """

    shapes: int = 60
    rate: float = 0.02
    decay: float = 1e-3
    hold_out: bool = False
    sets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def fit(
    network: SetCapsNet | PooledSet,
    sets: Sets,
    settings: SetsSettings,
    epochs: int,
    seed: int,
) -> None:
    """Trains a network: capsules with the margin loss, others with cross-entropy, all
    else alike.
    """
    loss = MarginLoss() if isinstance(network, SetCapsNet) else NegativeLogLikelihood()
    optimizer = torch.optim.AdamW(
        network.parameters(), settings.rate, weight_decay=settings.decay
    )
    steps = epochs * math.ceil(len(sets.labels) / settings.batch_size)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.rate, steps)
    generator = torch.Generator().manual_seed(seed)
    network.train()
    for _ in range(epochs):
        order = torch.randperm(len(sets.labels), generator=generator)
        for places in order.split(settings.batch_size):
            batch = sets.of(places)
            optimizer.zero_grad()
            loss(network(*batch[:3]).activation, batch.labels).backward()
            optimizer.step()
            scheduler.step()
    network.eval()


@torch.no_grad()
def accuracy(network: SetCapsNet | PooledSet, sets: Sets) -> float:
    """Of a network, in percent."""
    batches = [sets.of(places) for places in torch.arange(len(sets.labels)).split(128)]
    right = [
        network(*batch[:3]).activation.argmax(1) == batch.labels for batch in batches
    ]
    return percent(torch.cat(right))


@register_recipe
class SetsOfChildren(Recipe[SetsSettings]):
    """Capsules and pooling, on the same features of elements."""

    name: ClassVar = "sets"
    rows: ClassVar = {row: HEADS[data][head] for row, (data, head) in ROWS.items()}
    lines: ClassVar = (
        *lines_of(
            ((row, ACCURACY) for row in GRAPHS),
            {},
            higher_is_better=True,
        ),
        *lines_of(
            ((row, MARGIN) for row in GRAPHS), {}, unit="points", higher_is_better=None
        ),
        *lines_of(
            (
                (row, VIEW.format(view))
                for row, view in product(ROWS, VIEWS)
                if row not in GRAPHS
            ),
            {},
            higher_is_better=True,
        ),
        *lines_of(PUBLISHED, PUBLISHED, higher_is_better=True, elsewhere=True),
    )
    settings: ClassVar = SetsSettings
    grows: ClassVar = True
    apart: ClassVar = True

    def run(self, lab: Lab, settings: SetsSettings) -> Study:
        """Trains and measures; of the graphs a network for each fold."""
        study = Study(lab, settings)
        for row in self.present(settings):
            data, _ = ROWS[row]
            start = time.perf_counter()
            measure = self._graphs if row in GRAPHS else self._shapes
            options = dict(settings.sets[data])
            network, figures = measure(study, row, options, self.rows[row])
            study.note(row, figures)
            facts = facts_of_network(network, time.perf_counter() - start)
            study.facts[row] = {
                "figures": figures,
                "run": row,
                **facts,
            }
        return study

    def _graphs(
        self,
        study: Study,
        row: str,
        options: dict[str, Any],
        head: Mapping[str, Any],
    ) -> Any:
        settings = study.settings
        seed = study.lab.seed
        sets = graphs(options["name"])
        labels = sets.labels.numpy()
        splitter = StratifiedKFold(options["folds"], shuffle=True, random_state=seed)
        accuracies = []
        for train, test in splitter.split(labels, labels):
            if settings.hold_out:
                train, test = train_test_split(
                    train,
                    test_size=1 / (options["folds"] - 1),
                    stratify=labels[train],
                    random_state=seed,
                )
            torch.manual_seed(seed)
            network = network_of(head, options, sets)
            fit(network, sets.of(train), settings, options["epochs"], seed)
            accuracies.append(accuracy(network, sets.of(test)))
        study.curves[row] = {"folds": accuracies}
        figures = {ACCURACY: mean(accuracies), MARGIN: half_interval(accuracies)}
        return network, figures

    def _shapes(
        self,
        study: Study,
        row: str,
        options: dict[str, Any],
        head: Mapping[str, Any],
    ) -> Any:
        settings = study.settings
        seed = study.lab.seed
        sets = shapes(settings.shapes, seed)
        torch.manual_seed(seed)
        network = network_of(head, options, sets)
        fit(network, sets, settings, options["epochs"], seed)
        test_seed = seed + (1000 if settings.hold_out else 2000)
        figures = {}
        for view, arguments in VIEWS.items():
            test = shapes(settings.shapes, test_seed, **arguments)
            figures[VIEW.format(view)] = accuracy(network, test)
        if isinstance(network, SetCapsNet):
            study.curves[row] = _shown(network, shapes(1, test_seed))
        return network, figures

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """Points of one shape of each kind, by how much they spoke for the answer."""
        for study, row in product(studies, ROWS):
            curves = study.curves.get(row, {})
            if "points" in curves:
                return {"points": Picture(_figure(curves), FACTS["caption"])}
        return {}


def network_of(
    head: Mapping[str, Any], options: Mapping[str, Any], sets: Sets
) -> SetCapsNet | PooledSet:
    """The network of a row for data."""
    kind = head["name"]
    arguments = {
        "in_features": sets.elements.shape[2],
        "classes": int(sets.labels.max()) + 1,
        "edges": sets.edges is not None,
        **options["shared"],
        **options.get(kind, {}),
    }
    arguments |= {key: value for key, value in head.items() if key != "name"}
    network = SetCapsNet if kind == "SetCapsNet" else PooledSet
    return network.from_config(arguments)


@torch.no_grad()
def _shown(network: SetCapsNet, sets: Sets) -> dict[str, Any]:
    """Points, the answers, and how much each point spoke for them: what its votes add
    along the pose of that class.
    """
    routed = network.route(*sets[:3])
    places = torch.arange(len(sets.labels))
    answer = routed.activation.argmax(1)
    votes = routed.votes.dense()[places, :, answer]
    direction = normalize(routed.pose[places, answer], dim=1)
    children = network.children_of(*sets[:3])
    share = routed.assignment[places, :, answer] * children.activation.flatten(1)
    added = torch.einsum("bih,bh,bi->bi", votes, direction, share).clamp(min=0)
    added = added.unflatten(1, (POINTS, -1)).sum(2)
    return {
        "points": (100 * sets.elements).round().div(100).tolist(),
        "spoke": (100 * added / added.amax(1, keepdim=True)).round().tolist(),
        "answer": answer.tolist(),
    }


def _figure(shown: Mapping[str, Any]) -> Any:
    """A box of axes for each shape."""
    figure = new_figure(11.0, 2.2)
    for number, shape in enumerate(SHAPES):
        axes = figure.add_subplot(
            1,
            len(SHAPES),
            number + 1,
            projection="3d",
        )
        points = tuple(zip(*shown["points"][number], strict=True))
        drawn = axes.scatter(
            *points,
            c=shown["spoke"][number],
            cmap="viridis_r",
            vmin=0,
            s=14,
            depthshade=False,
        )
        axes.set(xticks=[], yticks=[], zticks=[])
        axes.set_title(
            f"{shape},\nseen as {SHAPES[shown['answer'][number]]}", fontsize=9
        )
    figure.colorbar(drawn, ax=figure.axes, shrink=0.8, pad=0.02, label="% of the most")
    return figure
