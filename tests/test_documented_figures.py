"""Each figure of the README and of what the recipes say is that of a result, or stands
among those that are none.
"""

import json
import re
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from docs.where_routing_pays import MARKS

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
FIGURE = r"[+-]?\d[\d,]*(?:\.\d+)?"
UNIT = (
    rf"(?=(?:(?:,| to| and| or| against) {FIGURE})* ?(?:%|points|parameters|million))"
)
CLAIM = re.compile(rf"(?<![\w.,-])(?:{FIGURE}{UNIT}|\d+(?:[.,]\d+)+)")
"""Numbers that are likely results: shares, points, parameters, and all with a comma or
decimals.
"""


@cache
def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def result(recipe: str) -> Any:
    """Of the quick preset, unless the name says more."""
    name = recipe if recipe.endswith("-paper") else f"{recipe}-quick"
    return read(f"recipes/{name}")


def rows(recipe: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["row"], row["measure"]): row for row in result(recipe)["rows"]}


def ours(recipe: str, measure: str, *of: str) -> list[float]:
    """The means over the seeds, of rows of a recipe."""
    return [mean(rows(recipe)[row, measure]["ours"]) for row in of]


def published(recipe: str, measure: str, *of: str) -> list[float]:
    return [rows(recipe)[row, measure]["published"] for row in of]


def parameters(recipe: str, *of: str) -> list[float]:
    return [result(recipe)["facts"][0][row]["parameters"] for row in of]


def of_routings(measure: str, *names: str) -> list[float]:
    return ours("routings", measure, *names)


def ends(values: list[float]) -> list[float]:
    return [min(values), max(values)]


def accuracy(*names: str) -> list[float]:
    return [100 * read(name)["test_accuracy"] for name in names]


def trained(*names: str) -> list[float]:
    """Parameters, accuracies, and minutes of training."""
    results = [read(name) for name in names]
    times = [one["training_seconds"] / 60 for one in results]
    return [*(one["parameters"] for one in results), *accuracy(*names), *times]


WHOLE = "two-digits-paper"
ABOVE, BESIDE = "one above the other, the most active", "side by side, the most active"
CLEAN = "single digit, accuracy"
TWIN, DYNAMIC, KMEANS = (
    "convolutional twin, pooled",
    "dynamic, accumulating, 3 steps",
    "inner-product K-Means, 3 steps",
)
DYNAMIC = "dynamic, accumulating, 3 steps"
LONGER = {
    "K-Means, three steps": (KMEANS, f"{KMEANS}, 50 epochs"),
    "dynamic routing, accumulating, three steps": (DYNAMIC, f"{DYNAMIC}, 50 epochs"),
    "class maps, a plain network": (
        "class maps, pooled by log-mean-exp",
        "class maps, 50 epochs",
    ),
}
"""Rows of 10 and of 50 epochs, by their names in docs/recipes.md."""
VARIANT = "variant of K-Means: {}"
SQUASHED_INSIDE = VARIANT.format("squashed in between, too")
CAPS, CNN = "matrix capsules", "convolutional network"
EM = ("1 step", "2 steps", "matrix pose, 3 steps, spread loss, coordinates", "5 steps")
CAPS_EM, CAPS_DYNAMIC = "MatrixCapsNet, EM routing", "CapsNet, dynamic routing, 3 steps"
EXACT = "two questions in one, exactly those above 0.5"
STYLE = ("slant", "thickness")
OTHERS = {"mnist-em": CAPS_EM, "fashion": CAPS_DYNAMIC, "cifar10": CAPS_DYNAMIC}
EVIDENT = "K-Means, 3 steps, evidence"
SLOTS = (
    "slots",
    "slots, without MLP",
    "slots, without GRU",
    "slots, without GRU and MLP",
    "slot mixture",
    "EM routing",
    "dynamic routing",
)
OF_ONE_SEED = ("slots, learned queries", "slots, textured grounds")
WITHOUT_COLOURS = (
    "K-Means of the features of slots",
    "K-Means of colours and places",
    "slots of ImageNet features, textured grounds",
    "K-Means of ImageNet features, textured grounds",
)
PHOTO_HEADS = (
    "mean of the features, linear layer",
    "class maps",
    "dynamic, 1 step",
    "dynamic, 3 steps",
    "dynamic, evidence alone",
    "dynamic, 3 steps, evidence",
    "K-Means, 1 step",
    "K-Means, 3 steps",
    "K-Means, evidence alone",
    EVIDENT,
)
LONG = "MNIST, dynamic routing, epochs: 40"
EFFICIENT = "MNIST, Efficient-CapsNet, epochs: 40"
TURNED = "smallNORB, Efficient-CapsNet, turned and erased, epochs: 24"
STRETCHED = "MNIST, dynamic routing, turned and stretched, epochs: 40"
BAYES = [
    f"smallNORB, variational Bayes in {steps}, epochs: 24"
    for steps in ("3 steps", "1 step")
]
EM_LONG = "smallNORB, EM in 2 steps, turned and erased, epochs: 48"
WIDER = "CIFAR-10, capsules on a wider residual network, epochs: 24"
RESIDUAL = [
    f"{data}, capsules on a residual network, epochs: {epochs}"
    for data, epochs in (("Fashion-MNIST", 12), ("MultiMNIST", 24), ("CIFAR-10", 40))
]
PAPER, PAIR = "reconstruction weighted as in the paper", ("CapsNet", "CNN")
STEPS = [
    VARIANT.format("1 step"),
    VARIANT.format("2 steps"),
    KMEANS,
    VARIANT.format("4 steps"),
    VARIANT.format("5 steps"),
]
SQUASHES = [
    VARIANT.format(f"squash {one}")
    for one in ("sabour", "tanh", "exponential", "rational")
]
CHANGES = (
    ("squash with a learned constant", "squash learned"),
    ("the same, with a learned constant", "squashed in between, learned"),
    ("softmax over the children", "softmax over children"),
    ("hard assignment, straight-through (one seed)", "straight-through"),
)
HEADS = tuple(
    (name, name.removesuffix(" (one seed)").removesuffix(", a plain head"))
    for name in (
        "mean of the features, two dense layers (one seed)",
        "class maps, a plain head",
        "pooled capsules, shared transforms, K-Means (one seed)",
        "capsules at all places, K-Means, 1 step (one seed)",
        "capsules at all places, K-Means, 3 steps",
        "capsules at all places, K-Means with evidence",
        "capsules at all places, dynamic, 3 steps (one seed)",
    )
)
WITH_AND_WITHOUT = (
    "capsules at all places, K-Means, 3 steps",
    "capsules at all places, K-Means with evidence",
)
DECODING, ONE_TRANSFORM = (
    "CNN that squashes and decodes",
    "CapsNet, one transform, no routing",
)
OVERLAPPING = (
    ("CapsNet, 3 steps, 30 epochs", "CapsNet, 3 steps"),
    ("class maps, a plain head", "class maps"),
    *(
        (name, name)
        for name in (*WITH_AND_WITHOUT, "capsules at all places, dynamic, 3 steps")
    ),
)
"""Rows of tables in docs/recipes.md, and of ``two-digits``, ``top-two-fashion`` and
``multimnist``.
"""
PHOTO_PAIRS = "top-two-cifar10"
SCALAR = "scalar capsules, 1 step"
ARTICLE = "MatrixCapsNet, as in the article"
BEST = ("variational_bayes", "dynamic", "self_attention", "kmeans", "sparse_attention")
PHOTOS, PHOTOS_CNN = (
    [f"photos500-capsnet_on_backbone{kind}-seed{seed}" for seed in (0, 1, 2)]
    for kind in ("", "_cnn")
)


def of_compute(*of: str) -> list[float]:
    """Published test errors, then ours, by seeds."""
    seeds = [one for row in of for one in rows("compute")[row, "test error"]["ours"]]
    return [*published("compute", "test error", *of), *seeds]


def by_seeds(row: str) -> list[float]:
    """Test accuracies of ``compute``, by seeds, and the longest training."""
    return [
        *(100 - one for one in of_compute(row)[1:]),
        max(rows("compute")[row, "minutes of training"]["ours"]),
    ]


def spread(values: list[float]) -> list[float]:
    """The mean and the range of some seeds."""
    return [mean(values), *ends(values)]


def in_the_table(row: str) -> list[float]:
    """Mean and range of the test accuracies of ``compute``, the published one, and the
    longest training.
    """
    *accuracies, minutes = by_seeds(row)
    return [*spread(accuracies), 100 - of_compute(row)[0], minutes]


def of_slots(row: str, measure: str = "FG-ARI") -> list[float]:
    """A figure of ``object-discovery``, by the seeds that were run."""
    values: list[float | None] = rows("object-discovery")[row, measure]["ours"]
    return [value for value in values if value is not None]


def of_pixels(row: str) -> list[float]:
    return of_slots(row, "FG-ARI, assigned pixels")


def attack(name: str, *of: str) -> list[float]:
    return ours("adversarial", f"accuracy, {name}", *of)


def found(*of: str) -> list[float]:
    return ours(WHOLE, ABOVE, *of)


def pairs(row: str, recipe: str = "top-two-fashion") -> list[float]:
    """Single images, and two in one, of a row."""
    return [
        *ours(recipe, "single images", row),
        *ours(recipe, "two, side by side", row),
        *ours(recipe, "two, one above the other", row),
    ]


def overlapping(row: str) -> list[float]:
    """Parameters, and pairs not both found, of a row of ``multimnist``."""
    return [
        *parameters("multimnist", row),
        *ours("multimnist", "exact-pair test error", row),
    ]


def under_transforms(row: str) -> list[float]:
    """Accuracies of ``affine``, with and without transforms."""
    return [
        *ours("affine", "affine test accuracy", row),
        *ours("affine", "clean test accuracy (placed at random)", row),
    ]


def more(recipe: str, measure: str, one: str, other: str) -> float:
    first, second = ours(recipe, measure, one, other)
    return first - second


def gained(data: str) -> list[float]:
    """What the networks of ``routing-health`` gain over their twins of one step."""
    differences = {
        row: one
        for (row, measure), one in rows("routing-health").items()
        if "difference" in measure
    }
    return [
        mean(difference["ours"])
        for row, difference in differences.items()
        if row.startswith(f"{data}: ")
    ]


def swapped() -> list[float]:
    """The points that ``hard_kmeans`` loses, by seeds."""
    hard, soft = (
        rows("routings")[name, "test error"]["ours"]
        for name in ("hard_kmeans", "euclidean")
    )
    return [first - second for first, second in zip(hard, soft, strict=True)]


SAID: dict[str, list[tuple[str, list[float]]]] = {
    "README.md": [
        (
            "CapsNet, dynamic routing | {} ({} to {}), three seeds | | {} | {} |",
            in_the_table(LONG),
        ),
        (
            "Efficient-CapsNet, self-attention | {} ({} to {}), three seeds | | {} | "
            "{} |",
            in_the_table(TURNED),
        ),
        (
            "Bayes in three steps | {} ({} to {}), three seeds | without routing: {} "
            "({} to {}) | {} | {} |",
            [
                *spread(by_seeds(BAYES[0])[:-1]),
                *spread(by_seeds(BAYES[1])[:-1]),
                *in_the_table(BAYES[0])[-2:],
            ],
        ),
        (
            "residual network | {}, one seed | | {} | {} |",
            [in_the_table(RESIDUAL[1])[place] for place in (0, 3, 4)],
        ),
        (
            "ImageNet weights | {} ({} to {}), three seeds | a linear layer: {} ({} to {}) | "
            "| {} |",
            [
                *spread(accuracy(*PHOTOS)),
                *spread(accuracy(*PHOTOS_CNN)),
                max(read(name)["training_seconds"] for name in (*PHOTOS, *PHOTOS_CNN))
                / 60,
            ],
        ),
    ],
    "docs/recipes.md": [
        (
            "with reconstruction | {} and {} % | {} and {} % |",
            [
                value
                for of in (published, ours)
                for value in of(
                    "mnist-dynamic",
                    "test error",
                    f"1 step, {PAPER}",
                    f"3 steps, {PAPER}",
                )
            ],
        ),
        *(
            (
                f"{words} {{}} % | {{}} %; {{}}, {{}}, {{}} % |",
                [
                    *published(WHOLE, ABOVE, row),
                    *ours("two-digits", ABOVE, row),
                    *rows(WHOLE)[row, ABOVE]["ours"],
                ],
            )
            for words, row in (("pooled | about", TWIN), ("K-Means | over", KMEANS))
        ),
        (
            "inside | about {} % | {}, {}, {} % (paper preset) |",
            [
                *published(WHOLE, ABOVE, SQUASHED_INSIDE),
                *rows(WHOLE)[SQUASHED_INSIDE, ABOVE]["ours"],
            ],
        ),
        (
            "accumulating | | {} %; {}, {}, {} % |",
            [
                *ours("two-digits", ABOVE, DYNAMIC),
                *rows(WHOLE)[DYNAMIC, ABOVE]["ours"],
            ],
        ),
        *(
            (
                f"| {row} | {{}} | {{}} ({{}} to {{}}) | {{}} ({{}} to {{}}) |",
                [len(of_slots(row)), *spread(of_slots(row)), *spread(of_pixels(row))],
            )
            for row in SLOTS
        ),
        *(
            (
                f"| {row} | {{}} | {{}} | {{}} |",
                [len(of_slots(row)), *of_slots(row), *of_pixels(row)],
            )
            for row in OF_ONE_SEED
        ),
        *(
            (f"| {row} | {{}} | {{}} | |", [len(of_slots(row)), *of_slots(row)])
            for row in WITHOUT_COLOURS
        ),
        *(
            (
                f"| {row} | {{}} % | {{}} % | {{}} % |",
                [
                    *ours("photo-heads", "single images", row),
                    *ours("photo-heads", "two, side by side", row),
                    *ours("photo-heads", "two, one above the other", row),
                ],
            )
            for row in PHOTO_HEADS
        ),
        *(
            (
                f"| {steps} | {{}} % | {{}} % | {{}} % |",
                ours(
                    "em-floor",
                    "error on held-out toys",
                    *(f"{steps}, floor {floor}" for floor in ("0", "0.3", "1")),
                ),
            )
            for steps in ("1 step", "2 steps", "3 steps")
        ),
        (
            "Evidence finds {} points more pairs side by side and {} points more one "
            "above the other",
            [
                ours("photo-heads", layout, EVIDENT)[0]
                - ours("photo-heads", layout, "K-Means, 3 steps")[0]
                for layout in ("two, side by side", "two, one above the other")
            ],
        ),
        (
            "They recognise {} points fewer single photos",
            [
                ours("photo-heads", "single images", EVIDENT)[0]
                - ours("photo-heads", "single images", "class maps")[0]
            ],
        ),
        (
            "not both found | CapsNet | {} % | {} % |",
            [
                *published("multimnist", "exact-pair test error", "CapsNet, 3 steps"),
                *ours("multimnist", "exact-pair test error", "CapsNet, 3 steps"),
            ],
        ),
        (
            "digits under affine transforms ({} and {} %)",
            ours(
                "affine",
                "validation accuracy at the end of training (placed at random)",
                *PAIR,
            ),
        ),
        *(
            (
                f"| {name} | {{}} % (affNIST) | {{}} % (",
                [
                    *published("affine", "affine test accuracy", name),
                    *ours("affine", "affine test accuracy", name),
                ],
            )
            for name in PAIR
        ),
        (
            "gets pose and class | none | {} %, its slant follows with r = {}, "
            "thickness {} |",
            [
                mean(rows("transfer")["decoder told pose and class", measure]["ours"])
                for measure in (
                    "content's class seen",
                    *(f"correlation with the style's {one}" for one in STYLE),
                )
            ],
        ),
        (
            "2, 3 and 5 steps | {}, {}, {} and {} % | {}, {}, {} and {} % |",
            [
                *published("smallnorb-em", "test error", *EM),
                *ours("smallnorb-em", "test error", *EM),
            ],
        ),
        (
            "| | CNN | {} % | {} % | | `mnist-em`",
            [
                *published("smallnorb-em", "test error", CNN),
                *ours("smallnorb-em", "test error", CNN),
            ],
        ),
        (
            "EM, dynamic, dynamic routing | {}, {}, {} % | {}, {}, {} % |",
            [
                value
                for of in (published, ours)
                for recipe, row in OTHERS.items()
                for value in of(recipe, "test error", row)
            ],
        ),
        (
            "further and stretched | {} % | {}, {}, {}; {}, {}, {} % |",
            of_compute(LONG, STRETCHED)[1:],
        ),
        (
            "Fashion-MNIST, MultiMNIST, CIFAR-10 | {}, {}, {} % | {}, {}, {} % |",
            [
                value
                for one in (published, ours)
                for value in one("compute", "test error", *RESIDUAL)
            ],
        ),
        (
            "erased, three seeds | {}; {} % | {}, {}; {}, {}, {} % |",
            of_compute(EFFICIENT, TURNED),
        ),
        (
            "EM in 2 steps, smallNORB, turned and erased | {} % | {} % |",
            of_compute(EM_LONG),
        ),
        ("no routing | {} % | {}, {}, {}; {}, {}, {} % |", of_compute(*BAYES)[1:]),
        (
            "self-attention has {} %, and without routing {} %",
            ours("compute", "test error", *BAYES),
        ),
        (
            "held-out toys, gave {} %, the mean of three seeds,",
            ours("compute", "test error", TURNED),
        ),
        (
            "its paper, is at {} % after 48 epochs, turned and erased. - **MNIST, "
            "Efficient-CapsNet** is still above the published error after 40 epochs. - "
            "**CIFAR-10** is at {} % after 40 epochs, and a wider network at {} % "
            "after 24",
            ours("compute", "test error", EM_LONG, RESIDUAL[-1], WIDER),
        ),
        (
            "FGSM, epsilon {}, white box (without attack {} and {} %) | EM routing, "
            "CNN | curves | {}, {} % |",
            [
                0.01,
                *attack("no attack", CAPS, CNN),
                *attack("FGSM 0.01, untargeted, white box", CAPS, CNN),
            ],
        ),
        *(
            (
                f"{start} {{}}; {{}} % |",
                [
                    *ours("words", "test accuracy", f"TREC: {row}"),
                    *ours("words", EXACT, f"TREC: {row}"),
                ],
            )
            for start, row in (
                ("capsules of maxima | none |", "capsules of maxima"),
                ("(form B, trained word vectors) |", "capsules, form A"),
                ("(softmax) |", "CNN, a sigmoid for each class"),
            )
        ),
        (
            "| capsules, form A | {} % (form B",
            published("words", "test accuracy", "TREC: capsules, form B"),
        ),
        (
            "| CNN | {} % (softmax)",
            published("words", "test accuracy", "TREC: CNN, softmax"),
        ),
        ("3 steps | | {} to {} points |", ends(gained("MNIST"))),
        ("2, 3 and 5 steps | | {}, {}, {} points |", gained("smallNORB")),
        (
            "most stay (claimed) | {}, {}, {} % |",
            ours(
                "routing-health",
                "test images whose class the routing changes",
                *(f"smallNORB: {row}" for row in EM[1:]),
            ),
        ),
        (
            "{} parameters against the CNN's {}, equal accuracy without transforms: "
            "{} points less",
            [
                *parameters("affine", *PAIR),
                more("affine", "affine test accuracy", "CNN", "CapsNet"),
            ],
        ),
        (
            "as a CapsNet does keeps {} % under transforms, of {} % without",
            under_transforms(DECODING),
        ),
        (
            "no routing keeps {} %, of {} % ({} % published, on affNIST)",
            [
                *under_transforms(ONE_TRANSFORM),
                *published("affine", "affine test accuracy", ONE_TRANSFORM),
            ],
        ),
        (
            "and {} epochs did not bring them",
            [result("affine")["facts"][0][DECODING]["epochs"]],
        ),
        ("images**, {} against {} parameters.", parameters("adversarial", CAPS, CNN)),
        (
            "FGSM at {}, white box | {} and {} % | | random",
            [
                0.1,
                *attack("FGSM 0.1, untargeted, white box", CAPS, CNN),
            ],
        ),
        (
            "random signs of {} | {} and {} % |",
            [0.1, *attack("random signs 0.1", CAPS, CNN)],
        ),
        (
            "| FGSM at {}, white box | {} and {} % | | BIM",
            [0.01, *attack("FGSM 0.01, untargeted, white box", CAPS, CNN)],
        ),
        (
            "BIM at {}, white box | {} and {} % |",
            [0.01, *attack("BIM 0.01, untargeted, white box", CAPS, CNN)],
        ),
        (
            "from one**, {} against {} parameters, three seeds: {} to {} points more",
            [
                *parameters(WHOLE, DYNAMIC, TWIN),
                *(more(WHOLE, ABOVE, one, TWIN) for one in (DYNAMIC, KMEANS)),
            ],
        ),
        (
            "above the other, three seeds | {} % | {} % | | side by side, three seeds | "
            "{} % | {} % | | one above the other, {} parameters (quick preset, one seed) "
            "| {} % | {} % |",
            [
                *found(STEPS[0], KMEANS),
                *ours(WHOLE, BESIDE, STEPS[0], KMEANS),
                *parameters("two-digits", STEPS[0]),
                *ours(
                    "two-digits",
                    ABOVE,
                    STEPS[0],
                    VARIANT.format("none (3 steps, squash half)"),
                ),
            ],
        ),
        *(
            (
                f"| {name} | {{}} % | {{}} % | {{}} % | {{}} % |",
                [
                    *ours(WHOLE, ABOVE, row, longer),
                    *ours(WHOLE, BESIDE, row, longer),
                ],
            )
            for name, (row, longer) in LONGER.items()
        ),
        (
            "| sharpness that rises from {} to {} (one seed) | {} % |",
            [0.25, 4, *found(VARIANT.format("sharpness from 0.25 to 4"))],
        ),
        (
            "They find {} % one above the other and {} % side by side (three seeds)",
            [*found(SCALAR), *ours(WHOLE, BESIDE, SCALAR)],
        ),
        ("| 1 to 5 steps | {}, {}, {}, {}, {} % |", found(*STEPS)),
        *(
            (f"| {name} | {{}} % |", found(VARIANT.format(row)))
            for name, row in CHANGES
        ),
        *(
            (f"| {name} | {{}} % | {{}} % | {{}} % |", pairs(row))
            for name, row in HEADS
        ),
        *(
            (f"| {name} | {{}} | {{}} % |", overlapping(row))
            for name, row in OVERLAPPING
        ),
        (
            "K-Means misses fewer pairs with each of the five seeds, by {} points",
            [more("multimnist", "exact-pair test error", *WITH_AND_WITHOUT)],
        ),
        *(
            (f"| photos: {row} | {{}} % | {{}} % | {{}} % |", pairs(row, PHOTO_PAIRS))
            for row in dict.fromkeys(row for row, _ in rows(PHOTO_PAIRS))
        ),
        (
            "Published are {} % side by side for capsules and {} % for a network",
            published(
                PHOTO_PAIRS,
                "two, side by side",
                "pooled capsules, shared transforms, K-Means",
                "mean of the features, two dense layers",
            ),
        ),
        (
            "{} steps of {} images, with the settings of the article that explains EM "
            "routing, end at {} % test error without a floor and at {} % with {}",
            [
                2000,
                8,
                *ours("mnist-em", "test error", ARTICLE, f"{ARTICLE}, cost_floor 0.3"),
                0.3,
            ],
        ),
        (
            "The paper reports {} % side by side for its capsules and {} % for its network",
            published(
                "top-two-fashion",
                "two, side by side",
                "pooled capsules, shared transforms, K-Means",
                "mean of the features, two dense layers",
            ),
        ),
        (
            "instead of {} | {} % | | squash by tanh | {} % | | squash by 1 - exp(-n) | "
            "{} % | | squash by n / (1 + n) | {} % |",
            [0.5, *found(*SQUASHES)],
        ),
        (
            "squashed parents, as in dynamic routing | {} % |",
            found(SQUASHED_INSIDE),
        ),
        (
            "dynamic routing without accumulation | {} % |",
            found("dynamic, not accumulating, 3 steps"),
        ),
        (
            "layers, with a bias | {} % | | squash between the layers, without a bias | "
            "{} % | | no squash between the layers, with a bias | {} % |",
            ours(
                "depth",
                "test error",
                *(
                    f"8 layers, {kind}"
                    for kind in ("squashed, bias", "squashed", "not squashed, bias")
                ),
            ),
        ),
        (
            "They have {} to {} % test error, and {} to {} % under affine",
            [
                *ends(of_routings("test error", *BEST)),
                *ends(of_routings("error under affine transforms", *BEST)),
            ],
        ),
        (
            "The mean of the votes has {} and {} %",
            [
                *of_routings("test error", "mean"),
                *of_routings("error under affine transforms", "mean"),
            ],
        ),
        (
            "nearly uniform (entropy {} to {})",
            ends(of_routings("entropy of the assignment", *BEST)),
        ),
        (
            "decide (entropy {} to {})",
            ends(of_routings("entropy of the assignment", "em", "heinsen_2019")),
        ),
        ("loses {} to {} points of accuracy", ends(swapped())),
        (
            "goes from {} % (`homogeneous`) to {} % (`spectral`)",
            of_routings("expected calibration error", "homogeneous", "spectral"),
        ),
        (
            "nearly all of them to {} to {} %",
            ends(
                [
                    mean(row["ours"])
                    for row in rows("routings").values()
                    if (
                        row["measure"] == "the same, temperature fitted"
                        and row["row"] != "self_routing"
                    )
                ]
            ),
        ),
    ],
}
"""Words around figures, which stand as ``{}``, and what these are."""

NONE = {
    "README.md": ["Python 3.10 or newer", "Apache-2.0"],
    "docs/recipes.md": [
        "5,000 digits of MNIST",
        "n²/(0.5+n²) inside",
        "without most rows of floor 0.1",
        "a `cost_floor` of 0.3",
        "learn from 5,000 photos",
        "| no floor | floor 0.3 |",
    ],
}
"""Figures that are no results: of others, of data, of settings."""


def text_of(document: str) -> str:
    """Without code, paths and what another test compares, in one line."""
    text = (ROOT / document).read_text(encoding="utf-8")
    begin, end = map(re.escape, MARKS)
    for left_out in (f"{begin}.*?{end}", "```.*?```", r"\]\([^)]*\)", r'src="[^"]*"'):
        text = re.sub(left_out, " ", text, flags=re.DOTALL)
    return " ".join(text.split())


def pattern(words: str) -> str:
    return re.escape(words).replace(re.escape("{}"), rf"({FIGURE})")


def is_rounded(figure: str, value: float) -> bool:
    decimals = len(figure.partition(".")[2])
    return abs(float(figure.replace(",", "")) - value) <= 0.5 * 10**-decimals + 1e-9


def complaints(text: str, document: str) -> list[str]:
    """Figures that are not those of their results, words that are not found, and
    figures that nobody vouches for.
    """
    results, told = [], text
    for words, values in SAID[document]:
        places = list(re.finditer(pattern(words), text))
        if len(places) != 1 or len(values) != places[0].re.groups:
            results.append(f"{len(places)} times, of {len(values)} figures: {words}")
            continue
        for group, value in enumerate(values, start=1):
            results += (
                []
                if is_rounded(places[0][group], value)
                else [f"{places[0][group]} is {value}: {words}"]
            )
            start, end = places[0].span(group)
            told = f"{told[:start]}{'_' * (end - start)}{told[end:]}"
    for words in NONE[document]:
        results += [] if words in told else [f"not found: {words}"]
        told = told.replace(words, " ")
    return results + [
        f"of no result: {told[place.start() - 40 : place.end() + 30]}"
        for place in CLAIM.finditer(told)
    ]


@pytest.mark.parametrize("document", SAID)
def test_figures_are_those_of_results(document: str) -> None:
    assert not complaints(text_of(document), document)


@pytest.mark.parametrize("document", SAID)
def test_no_digit_can_be_another(document: str) -> None:
    text = text_of(document)
    for words, _ in SAID[document]:
        (place,) = re.finditer(pattern(words), text)
        for group in range(1, place.re.groups + 1):
            last = place.end(group) - 1
            assert complaints(
                f"{text[:last]}{(int(text[last]) + 1) % 10}{text[last + 1 :]}", document
            ), place[0]


def test_a_new_figure_needs_a_result() -> None:
    text = text_of("README.md")
    for claim in (
        "Capsules find 97 %.",
        "0.5 points more",
        "of 1,234,567",
        "3 million",
    ):
        assert complaints(f"{text} {claim}", "README.md"), claim


def test_the_table_of_scenes_is_what_was_measured() -> None:
    """Means and ranges of all seeds, by row."""
    measured: dict[str, list[list[float]]] = {}
    for line in read("recipes/scenes-quick")["rows"]:
        measured.setdefault(line["row"], []).append(line["ours"])
    lines = (ROOT / "docs/scenes.md").read_text().splitlines()
    for row, columns in measured.items():
        (line,) = [line for line in lines if line.startswith(f"| {row} |")]
        cells = line.strip("| ").split(" | ")[1:]
        for cell, values in zip(cells, columns, strict=True):
            figures = re.findall(r"[0-9.]+", cell)
            expected = mean(values), min(values), max(values)
            for figure, value in zip(figures, expected, strict=True):
                assert is_rounded(figure, value), (row, cell)


def test_evidence_finds_more_overlapping_pairs_with_every_seed() -> None:
    without, with_evidence = (
        rows("multimnist")[row, "exact-pair test error"]["ours"]
        for row in WITH_AND_WITHOUT
    )
    assert len(without) == 5
    differences = [
        first - second for first, second in zip(without, with_evidence, strict=True)
    ]
    assert min(differences) > 0
