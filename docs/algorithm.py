"""Draws the picture of ``algorithm.md`` and prints its table: ``python -m
docs.algorithm``, from the root.
"""

import argparse
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from docs.guide import style

MIB = 2**20
PICTURE = "algorithm.png"
BLUE, ORANGE, PINK, GREEN = style.COLOURS[:4]


T = 3
"""Steps of routing."""


def sizes() -> dict[str, float]:
    """MiB of each tensor in EM ConvCaps1, one image: 14x14x32 children of 4x4, 6x6
    windows of 3x3, 32 parents each.
    """
    G = 14 * 14 * 32
    B = 6 * 6
    I = 3 * 3 * 32
    J = 32
    P = 4 * 4
    H = 4 * 4
    numbers = {
        "children": G * (P + 1),
        "transforms": I * J * 4 * 4,
        "votes": B * I * J * H,
        "assignments": B * I * J,
        "normalisers": B * I,
        "Gaussians": B * J * (2 * H + 1),
        "moments": B * J * (2 * H + 1),
    }
    return {name: 4 * count / MIB for name, count in numbers.items()}


def traffic() -> tuple[float, float]:
    """MiB that a forward pass moves at least: with stored votes, and fused. The
    transforms are read once in both.

    Stored: children read once, votes written once, read by each of T - 1 comparisons
    and T sums; assignments written
    and read in each step but the first. Fused: children read in each of T + (T - 1)
    passes; Gaussians read twice and normalisers written and read in each step but the
    first. Both write the moments T times.
    """
    size = sizes()
    both = size["transforms"] + T * size["moments"]
    normalisers = (T - 1) * 2 * size["normalisers"]
    stored = (
        size["children"]
        + (1 + (T - 1) + T) * size["votes"]
        + (T - 1) * 2 * size["assignments"]
    )
    stored += (T - 1) * size["Gaussians"] + normalisers
    fused = (
        (2 * T - 1) * size["children"] + (T - 1) * 2 * size["Gaussians"] + normalisers
    )
    return both + stored, both + fused


def text() -> str:
    """The table of the page."""
    lines = [f"{name:12} {value:8.2f} MiB" for name, value in sizes().items()]
    stored, fused = traffic()
    lines += [
        f"moved, votes stored   {stored:6.1f} MiB",
        f"moved, fused          {fused:6.1f} MiB",
    ]
    return "\n".join([*lines, f"ratio                 {stored / fused:6.1f}", ""])


AREA = 9.5
"""Of a tensor in the picture, a MiB."""


def tensor(
    axes: Axes,
    x: float,
    y: float,
    mib: float,
    colour: str,
    name: str,
    wide: float = 1.0,
) -> None:
    """A box whose area is the tensor's size, its label above it."""
    height = (AREA * mib / wide) ** 0.5
    width = wide * height
    axes.add_patch(
        Rectangle(
            (x - width / 2, y),
            width,
            height,
            facecolor=colour,
            edgecolor=style.INK,
            linewidth=0.8,
        )
    )
    axes.text(
        x,
        y + height + 0.5,
        f"{name}\n{mib:.2f} MiB",
        ha="center",
        va="bottom",
        fontsize=8.5,
    )


def unit(axes: Axes, x: float, label: str, width: float = 14) -> None:
    """A stage of the computation on the chip."""
    box = FancyBboxPatch(
        (x - width / 2, 1.6),
        width,
        4.6,
        boxstyle="round,pad=0.2,rounding_size=0.8",
        facecolor="white",
        edgecolor=style.INK,
        linewidth=1,
    )
    axes.add_patch(box)
    axes.text(x, 3.9, label, ha="center", va="center", fontsize=9)


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    width: float = 1.2,
    label: str = "",
    colour: str = style.INK,
    side: float = 0.8,
) -> None:
    """From start to end, with a label beside its middle."""
    look = {
        "arrowstyle": "-|>",
        "color": colour,
        "linewidth": width,
        "shrinkA": 0,
        "shrinkB": 0,
    }
    look["mutation_scale"] = 9 + 1.5 * width
    axes.annotate("", end, start, arrowprops=look)
    if label:
        x = (start[0] + end[0]) / 2
        y = (start[1] + end[1]) / 2
        axes.text(
            x + side,
            y,
            label,
            fontsize=8.5,
            va="center",
            ha="left" if side > 0 else "right",
            color=colour,
        )


def strips(axes: Axes, title: str) -> None:
    """The two places: memory above, the chip below."""
    for y, height, colour, name in (
        (0, 8, "#E8F1F8", "chip"),
        (13.5, 18, "#F3F3F3", "memory"),
    ):
        axes.add_patch(Rectangle((0, y), 100, height, facecolor=colour, linewidth=0))
        axes.text(
            0.8,
            y + height - 0.6,
            name,
            fontsize=9,
            color=style.GREY,
            va="top",
            style="italic",
        )
    axes.set(xlim=(0, 100), ylim=(-0.5, 32), aspect="equal")
    axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold")
    axes.axis("off")


def draw_stored(axes: Axes, size: dict[str, float], moved: float) -> None:
    """Votes written once, and read in every comparison and every sum."""
    strips(
        axes,
        f"Votes stored: {moved:.0f} MiB an image move between memory and chip in "
        "three steps",
    )
    tensor(axes, 8, 15, size["children"], BLUE, "children $u$")
    tensor(axes, 21, 15, size["transforms"], GREEN, "transforms $W$")
    tensor(axes, 46, 15, size["votes"], ORANGE, "votes $V$", wide=2.0)
    tensor(axes, 73, 15, size["assignments"], PINK, "assignments $R$")
    tensor(axes, 91, 15, size["moments"], BLUE, "parents")
    for x, label in (
        (16, "form\n$u_i W_{ij}$"),
        (43, "compare\n$l_{ij}$"),
        (63, "softmax\nover $j$"),
        (86, "sum\n$N, S, Q$"),
    ):
        unit(axes, x, label)
    arrow(axes, (8, 15), (12, 6.6))
    arrow(axes, (21, 15), (19, 6.6))
    arrow(axes, (22.5, 6.6), (38, 14.9), 4, "write 1x", ORANGE, 1.5)
    arrow(axes, (46, 14.9), (44, 6.6), 6, "read 2x", ORANGE, 1.5)
    arrow(
        axes,
        (56, 14.9),
        (80, 6.6),
        8,
        "read 3x",
        ORANGE,
        -4.5,
    )
    arrow(axes, (50.3, 4), (55.7, 4))
    arrow(axes, (66, 6.6), (71.5, 14.9), 2, colour=PINK)
    arrow(axes, (75, 14.9), (84, 6.6), 2, colour=PINK)
    arrow(axes, (91, 6.6), (91, 14.9))


def draw_fused(axes: Axes, size: dict[str, float], moved: float) -> None:
    """Votes formed, compared, shared out and added up on the chip."""
    strips(
        axes,
        f"Fused: {moved:.1f} MiB an image; the votes are formed again in each pass "
        "and never leave the chip",
    )
    tensor(axes, 8, 15, size["children"], BLUE, "children $u$")
    tensor(axes, 21, 15, size["transforms"], GREEN, "transforms $W$")
    tensor(axes, 60, 15, size["normalisers"], PINK, "normalisers $Z$")
    tensor(axes, 91, 15, size["moments"], BLUE, "parents")
    for x, label in (
        (16, "form a tile\nof $u_i W_{ij}$"),
        (40, "compare\n$l_{ij}$"),
        (63, "$R_{ij} =$\n$e^{l_{ij} - Z_i}$"),
        (86, "sum\n$N, S, Q$"),
    ):
        unit(axes, x, label)
    arrow(
        axes,
        (8, 15),
        (12, 6.6),
        1.6,
        "read in each\nof 5 passes",
        BLUE,
        -1.2,
    )
    arrow(axes, (21, 15), (19, 6.6), 1.6, "stays in\nthe caches", GREEN, 1.5)
    for start, end in ((23.3, 32.7), (47.3, 55.7), (70.3, 78.7)):
        arrow(axes, (start, 4), (end, 4), 3, colour=ORANGE)
    axes.text(
        28,
        4.7,
        "votes of\none tile",
        ha="center",
        va="bottom",
        fontsize=8.5,
        color=ORANGE,
    )
    arrow(
        axes,
        (45, 6.6),
        (58.7, 14.9),
        1.2,
        "first pass of a step",
        PINK,
        -1.5,
    )
    arrow(axes, (61, 14.9), (63, 6.6), 1.2, "second pass", PINK, 1.2)
    arrow(axes, (91, 6.6), (91, 14.9), 1.6, "write", BLUE, 1.2)
    look = {
        "arrowstyle": "-|>",
        "color": BLUE,
        "linewidth": 1.2,
        "connectionstyle": "angle,angleA=180,angleB=90,rad=5",
    }
    note = "Gaussians of the parents, for the next step"
    axes.annotate(
        note,
        (36, 6.6),
        (95, 28),
        fontsize=8.5,
        color=BLUE,
        va="center",
        ha="right",
        arrowprops=look,
    )
    axes.annotate(
        "",
        (91, 26.8),
        (91, 21.2),
        arrowprops={"arrowstyle": "-", "color": BLUE, "linewidth": 1.2},
    )


def draw(folder: Path) -> None:
    """Writes the picture."""
    stored, fused = traffic()
    figure, (above, below) = plt.subplots(2, 1, figsize=(9.2, 6.5))
    draw_stored(above, sizes(), stored)
    draw_fused(below, sizes(), fused)
    style.PICTURES = folder
    style.save(figure, PICTURE)


def main() -> None:
    """Draws, and prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.algorithm", description=__doc__
    )
    parser.add_argument(
        "--pictures",
        type=Path,
        default=Path(__file__).parent / "pictures",
        help="where it goes",
    )
    draw(parser.parse_args().pictures)
    sys.stdout.write(text())


if __name__ == "__main__":
    main()
