"""How the guide's pictures look: the colours of Okabe & Ito, which colour-blind readers
can tell apart.
"""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from PIL import Image

# In this order because the first three mix to grey.
COLOURS = ("#0072B2", "#E69F00", "#CC79A7", "#009E73", "#56B4E9", "#D55E00")
INK, GREY = "#222222", "#8A8A8A"
MARKERS = ("o", "s", "^", "D")

PICTURES = Path(__file__).parent / "pictures"

plt.rcParams.update(
    {
        "figure.dpi": 110,
        "figure.constrained_layout.use": True,
        "figure.constrained_layout.h_pad": 0.08,
        "font.size": 10,
        "axes.titlesize": 10.5,
        "axes.labelsize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": INK,
        "axes.prop_cycle": plt.cycler(color=COLOURS),
        "legend.frameon": False,
        "legend.fontsize": 9,
        "lines.linewidth": 1.8,
        "savefig.facecolor": "white",
    }
)


def panels(
    columns: int, width: float = 8.0, height: float = 2.9, **arguments: Any
) -> tuple[Figure, Any]:
    """A figure with this many axes side by side, sizes in inches."""
    return plt.subplots(1, columns, figsize=(width, height), **arguments)


def save(figure: Figure, name: str) -> None:
    """Writes a picture of at most 256 colours into the folder of pictures, and closes
    the figure.
    """
    PICTURES.mkdir(parents=True, exist_ok=True)
    rendered(figure).quantize(256, dither=Image.Dither.NONE).save(
        PICTURES / name, optimize=True
    )


def rendered(figure: Figure) -> Image.Image:
    """The figure as an image; closes it."""
    figure.canvas.draw()
    image = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
    plt.close(figure)
    return image


def animate(frames: list[Image.Image], milliseconds: list[int], name: str) -> None:
    """Writes frames as a GIF that runs for ever, with one palette for all."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    palette = _palette([frames[0], frames[len(frames) // 2], frames[-1]])
    first, *following = (
        frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames
    )
    first.save(
        PICTURES / name,
        save_all=True,
        append_images=following,
        duration=milliseconds,
        loop=0,
        optimize=False,
        disposal=1,
    )


def _palette(frames: list[Image.Image], colours: int = 64) -> Image.Image:
    """An image with the colours of these frames as its palette; what is almost white is
    white.
    """
    width, height = frames[0].size
    together = Image.new("RGB", (width, height * len(frames)))
    for row, frame in enumerate(frames):
        together.paste(frame, (0, row * height))
    image = together.quantize(colours, dither=Image.Dither.NONE)
    entries = np.array(image.getpalette()).reshape(-1, 3)
    entries[(entries > 245).all(1)] = 255
    image.putpalette(entries.ravel().tolist())
    return image


def blend(assignment: Any) -> np.ndarray:
    """The colours of the clusters, mixed as the assignments (..., clusters) say."""
    share = np.asarray(assignment)
    return np.clip(
        share @ np.array([to_rgb(colour) for colour in COLOURS[: share.shape[-1]]]),
        0,
        1,
    )


def centres(
    axes: Axes, points: Any, label: str | None = None, size: float = 130
) -> None:
    """Cluster centres: stars in the colours of their clusters."""
    for number, (x, y) in enumerate(np.asarray(points)):
        axes.scatter(
            x,
            y,
            marker="*",
            s=size,
            color=COLOURS[number],
            edgecolor=INK,
            linewidth=0.9,
            zorder=5,
            label=label if number == 0 else None,
        )


def ellipse(
    axes: Axes,
    mean: Any,
    covariance: Any,
    colour: str,
    deviations: float = 2.0,
    **style: Any,
) -> None:
    """The curve this many standard deviations from the mean of a 2-D Gaussian;
    variances or a matrix.
    """
    matrix = np.asarray(covariance)
    matrix = np.diag(matrix) if matrix.ndim == 1 else matrix
    variances, axis = np.linalg.eigh(matrix)
    width, height = 2 * deviations * np.sqrt(variances)
    angle = float(np.degrees(np.arctan2(axis[1, 0], axis[0, 0])))
    look = {"fill": False, "edgecolor": colour, "linewidth": 1.8, "zorder": 4, **style}
    axes.add_patch(
        Ellipse(
            tuple(np.asarray(mean)),
            width,
            height,
            angle=angle,
            **look,
        )
    )


def bare(axes: Axes) -> None:
    """No ticks: where the place matters and not the number."""
    axes.set_xticks([])
    axes.set_yticks([])
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#CCCCCC")
