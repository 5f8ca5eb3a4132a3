"""Figures. Each function returns a matplotlib figure of its own; nothing global is touched, no window opens."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.explain.places import Extent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

_COLUMNS = 10  # pictures in a row
_NUMBERED = 20  # classes up to which a confusion matrix has room for numbers
_HEALTH = {  # what the names of metrics begin with, the title of their panel, and its unit
    "assignment_entropy_": ("entropy of the assignment", "0 hard, 1 even"),
    "dead_capsules_": ("dead capsules", "share of the types"),
}
_SPLITS = {"train": ("training", "C0"), "val": ("validation", "C1"), "test": ("test", "C2")}


def new_figure(width: float, height: float, layout: Literal["compressed", "constrained"] = "compressed") -> "Figure":
    """A figure; "constrained" leaves pictures in even columns but may cut off labels beside them."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=110, layout=layout)


def shorten(name: str, limit: int = 24) -> str:
    """The name on one line, cut to a number of characters."""
    name = " ".join(name.split()).encode(errors="replace").decode()  # names of files may hold undecoded bytes
    return name if len(name) <= limit else name[: limit - 1] + "…"


def _curves(metrics: Sequence[dict[str, float]], quantity: str) -> dict[str, tuple[list[float], list[float]]]:
    """Epochs and values of one quantity, for each split that has any."""
    found = {}
    for split in _SPLITS:
        key = f"{split}_{quantity}"
        points = [(row.get("epoch", place), row[key]) for place, row in enumerate(metrics) if row.get(key) is not None]
        if points:
            found[split] = ([point[0] for point in points], [point[1] for point in points])
    return found


def _panels(metrics: Sequence[dict[str, float]]) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
    """What there is to draw: the loss, and accuracy or else error."""
    panels = {quantity: curves for quantity in ("loss", "accuracy", "error") if (curves := _curves(metrics, quantity))}
    if "accuracy" in panels:
        panels.pop("error", None)
    return panels


def _health(metrics: Sequence[dict[str, float]]) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
    """Epochs and values of what :class:`~torchcaps.training.RoutingHealth` logged: by quantity, by layer."""
    names = dict.fromkeys(name for row in metrics for name in row)
    panels: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for prefix, (quantity, _) in _HEALTH.items():
        for name in names:
            if name.startswith(prefix):
                points = [(row.get("epoch", place), row[name]) for place, row in enumerate(metrics) if name in row]
                curves = panels.setdefault(quantity, {})
                curves[name.removeprefix(prefix)] = ([point[0] for point in points], [point[1] for point in points])
    return panels


def has_curves(metrics: Sequence[dict[str, float]]) -> bool:
    """Whether :func:`learning_curves` has anything to draw."""
    return bool(_panels(metrics) or _health(metrics))


def learning_curves(metrics: Sequence[dict[str, float]]) -> "Figure":
    """Loss and accuracy (or error) over the epochs, for training, validation and test images; below, the routing.

    Args:
        metrics: a row an epoch, with ``epoch`` and some of ``train_loss``, ``val_loss``, ``train_accuracy``,
            ``val_accuracy``, ``val_error``, ..., ``assignment_entropy_<layer>``, ``dead_capsules_<layer>``. What a row
            does not hold is left out.

    Raises:
        ValueError: if no row holds any of these.
    """
    from matplotlib.ticker import MaxNLocator

    panels, health = _panels(metrics), _health(metrics)
    if not panels and not health:
        raise ValueError("metrics must hold values such as train_loss or val_accuracy, got none")
    columns = max(len(panels), len(health))
    rows = bool(panels) + bool(health)
    figure = new_figure(5 * columns, 3.4 * rows, "constrained" if rows > 1 else "compressed")
    for place, (quantity, curves) in enumerate(panels.items()):
        axes = figure.add_subplot(rows, columns, place + 1)
        for split, (epochs, values) in curves.items():
            name, colour = _SPLITS[split]
            _draw_curve(axes, epochs, values, name, colour)
        if quantity != "accuracy" and _spreads(curves):
            axes.set_yscale("log")
        axes.set(ylabel=quantity, title=quantity)
        axes.legend(frameon=False, loc="lower right" if quantity == "accuracy" else "upper right")
    layers = list(dict.fromkeys(layer for curves in health.values() for layer in curves))
    for place, (quantity, curves) in enumerate(health.items()):
        axes = figure.add_subplot(rows, columns, (rows - 1) * columns + place + 1)
        for rank, (layer, (epochs, values)) in enumerate(curves.items()):
            width = 1.5 * (len(curves) - rank)  # so that curves that lie on each other can all be seen
            _draw_curve(axes, epochs, values, layer, f"C{(2 + layers.index(layer)) % 10}", width)
        axes.set(ylabel=dict(_HEALTH.values())[quantity], title=quantity, ylim=(-0.04, 1.04))
        axes.legend(frameon=False, loc="best")
    for axes in figure.axes:
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    return figure


def _draw_curve(
    axes: "Axes", epochs: list[float], values: list[float], name: str, colour: str, width: float = 1.5
) -> None:
    marker = "o" if len(values) <= 40 else ""
    axes.plot(epochs, values, color=colour, label=name, marker=marker, markersize=3, linewidth=width)


def _spreads(curves: dict[str, tuple[list[float], list[float]]]) -> bool:
    """Whether the values are positive and more than a factor of 20 apart."""
    values = [value for _, series in curves.values() for value in series if math.isfinite(value)]
    return bool(values) and min(values) > 0 and max(values) > 20 * min(values)


def confusion_matrix(counts: Tensor, classes: Sequence[str]) -> "Figure":
    """How often each class was taken for each other.

    Colours are shares of a row, on a scale that shows small shares too.

    Args:
        counts: (E, E), rows true, columns predicted.
        classes: their names.

    Raises:
        ValueError: if ``counts`` does not fit ``classes``.
    """
    from matplotlib.colors import PowerNorm

    E = len(classes)
    if counts.shape != (E, E):
        raise ValueError(f"counts must be (E, E) = {(E, E)}, got shape {tuple(counts.shape)}")
    counts = counts.cpu()
    share = counts.double() / counts.sum(1, keepdim=True).clamp(min=1)
    side = min(max(0.5 * E, 2), 12)
    label = 0.1 * min(max((len(name) for name in classes), default=0), 24)
    figure = new_figure(side + label + 1.8, side + label + 0.9)
    axes = figure.add_subplot()
    picture = axes.imshow(share.numpy(), cmap="Blues", norm=PowerNorm(0.5, 0, 1))
    _name_classes(axes, classes)
    _rule(axes, E)
    if E <= _NUMBERED:
        for row in range(E):
            for column in range(E):
                colour = "white" if share[row, column] > 0.4 else "black" if counts[row, column] else "0.75"
                text = str(int(counts[row, column]))
                axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=9 if len(text) < 5 else 7)
    bar = figure.colorbar(picture, ax=axes, label="share of the true class", shrink=0.9, fraction=0.05)
    bar.set_ticks([0, 0.01, 0.1, 0.25, 0.5, 1], labels=["0", "1 %", "10 %", "25 %", "50 %", "100 %"])
    return figure


def _name_classes(axes: "Axes", classes: Sequence[str]) -> None:
    """Names along both axes; of very many classes every so many."""
    step = math.ceil(len(classes) / 60)
    places = list(range(0, len(classes), step))
    names = [shorten(classes[place]) for place in places]
    size = 9 if len(classes) <= 30 else 7
    wide = max(map(len, names), default=0) > 3
    axes.set_xticks(places, names, rotation=90 if wide else 0, fontsize=size, parse_math=False)
    axes.set_yticks(places, names, fontsize=size, parse_math=False)
    axes.set_xlabel("said", fontsize=11)
    axes.set_ylabel("true", fontsize=11)


def _rule(axes: "Axes", count: int) -> None:
    """Thin lines between the cells of a matrix."""
    for place in range(1, count):
        for line in (axes.axhline, axes.axvline):
            line(place - 0.5, color="white", linewidth=min(1.0, 20 / count))


def _picture(image: Tensor) -> Tensor:
    """An image (C, H, W) as (H, W, 3): colours for three channels, else the first channel in grey."""
    image = image.detach().cpu().float().clamp(0, 1)
    image = image if len(image) == 3 else image[:1].expand(3, -1, -1)
    return image.permute(1, 2, 0)


def _show(axes: "Axes", image: Tensor, **options: Any) -> None:
    """Draws an image without ticks, its pixel (y, x) covering [y, y + 1] by [x, x + 1]."""
    height, width = image.shape[-2:]
    axes.imshow(_picture(image).numpy(), extent=(0, width, height, 0), interpolation="nearest", **options)
    axes.set(xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set_color("0.8")


def _title(axes: "Axes", text: str, fontsize: float = 9) -> None:
    axes.set_title(text, fontsize=fontsize, parse_math=False)


def _title_width(text: str, fontsize: float = 9) -> float:
    """Width of the widest line in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=fontsize)
    widths = [text_to_path.get_text_width_height_descent(line, font, False)[0] for line in text.split("\n")]
    return max(widths) / 72


def _stacked(
    count: int, titles: Sequence[str], labels: Sequence[str], draw: Sequence[Callable[["Axes", int], Any]]
) -> "Figure":
    """Columns of pictures, a row for each label, wrapped after so many columns; ``draw`` fills one of a row's axes."""
    if len(titles) != count:
        raise ValueError(f"titles must be one for each of {count} images, got {len(titles)}")
    if not count:
        raise ValueError("images must hold at least one image")
    columns, blocks = min(count, _COLUMNS), math.ceil(count / _COLUMNS)
    rows = len(labels)
    lines = 1 + max(title.count("\n") for title in titles)
    figure = new_figure(1.25 * columns + 0.5, blocks * (1.25 * rows + 0.17 * lines) + 0.1)
    grid = figure.add_gridspec(rows * blocks, columns)
    for place in range(count):
        block, column = divmod(place, columns)
        for row, (label, fill) in enumerate(zip(labels, draw, strict=True)):
            axes = figure.add_subplot(grid[block * rows + row, column])
            fill(axes, place)
            if column == 0:
                axes.set_ylabel(label, fontsize=9)
            if row == 0:
                _title(axes, titles[place])
    return figure


def reconstructions(images: Tensor, reconstructions: Tensor, titles: Sequence[str]) -> "Figure":
    """Images, and below each what a capsule made of it.

    Args:
        images: (N, C, H, W) in [0, 1]; of 2 or more than 3 channels the first is shown.
        reconstructions: (N, C, H, W).
        titles: one an image.

    Raises:
        ValueError: if shapes or numbers differ, or there are no images.
    """
    if images.shape != reconstructions.shape:
        raise ValueError(
            f"reconstructions must have the shape of images, {tuple(images.shape)}, got {tuple(reconstructions.shape)}"
        )
    rows: list[Callable[[Axes, int], Any]] = [
        lambda axes, place: _show(axes, images[place]),
        lambda axes, place: _show(axes, reconstructions[place]),
    ]
    return _stacked(len(images), titles, ["image", "reconstruction"], rows)


def _mosaic(tiles: Tensor, side: int = 44) -> tuple[Tensor, float, float]:
    """Images (R, V, C, H, W) as one picture (h, w, 3) on grey, and the height and width of a cell in it.

    Small images are enlarged, pixel by pixel, to about ``side`` pixels.
    """
    R, V, C, H, W = tiles.shape
    enlarge = max(1, round(side / max(H, W)))
    flat = F.interpolate(tiles.detach().cpu().float().reshape(R * V, C, H, W), scale_factor=float(enlarge))
    pictures = torch.stack([_picture(image) for image in flat]).permute(0, 3, 1, 2)
    gap = max(2, round(0.05 * enlarge * max(H, W)))
    pictures = F.pad(pictures, (gap, gap, gap, gap), value=0.6).unflatten(0, (R, V))
    mosaic = pictures.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)
    return mosaic, mosaic.shape[0] / R, mosaic.shape[1] / V


def perturbation_grid(grids: Tensor, values: Tensor, title: str = "") -> "Figure":
    """The image of one capsule as its pose moves: a row for each pose dimension, a column for each value.

    The number behind a row is how far its last image is from its first: the mean absolute difference of their pixels.

    Args:
        grids: (D, V, C, H, W), one image of what :func:`~torchcaps.explain.perturb` returns.
        values: (V,), what was added.
        title: above it.

    Raises:
        ValueError: if shapes do not fit.
    """
    if grids.ndim != 5 or values.shape != grids.shape[1:2]:
        raise ValueError(
            f"grids must be (D, V, C, H, W) with values (V,), got shapes {tuple(grids.shape)} and {tuple(values.shape)}"
        )
    D, V = grids.shape[:2]
    mosaic, height, width = _mosaic(grids)
    figure = new_figure(0.44 * V + 1.3, 0.44 * D * height / width + (1.0 if title else 0.7))
    axes = figure.add_subplot()
    axes.imshow(mosaic.numpy(), extent=(0, V, D, 0), aspect=height / width, interpolation="nearest")
    axes.set_xticks(
        [place + 0.5 for place in range(V)], [f"{value:+.3g}" if value else "0" for value in values.tolist()]
    )
    axes.set_yticks([place + 0.5 for place in range(D)], [str(place) for place in range(D)])
    axes.tick_params(length=0, labelsize=8)
    change = (grids[:, -1] - grids[:, 0]).detach().abs().flatten(1).mean(1).tolist()
    for place, text in enumerate(["change", *(f"{value:.3f}" for value in change)]):
        axes.text(V + 0.15, place - 0.5 if place else -0.15, text, fontsize=8, va="center", color="0.3")
    axes.set_xlabel("added to the pose", fontsize=9)
    axes.set_ylabel("pose dimension", fontsize=9)
    for side in axes.spines.values():
        side.set_visible(False)
    if title:
        _title(axes, title, fontsize=11)
    return figure


def perturbation_atlas(grids: Tensor, values: Tensor, titles: Sequence[str]) -> list["Figure"]:
    """The :func:`perturbation_grid` of several images: a figure for each, because one for all is too tall to read.

    Args:
        grids: (N, D, V, C, H, W), as :func:`~torchcaps.explain.perturb` returns it.
        values: (V,).
        titles: one an image.

    Raises:
        ValueError: if shapes or numbers do not fit.
    """
    if len(titles) != len(grids):
        raise ValueError(f"titles must be one for each of {len(grids)} grids, got {len(titles)}")
    return [perturbation_grid(grid, values, title) for grid, title in zip(grids, titles, strict=True)]


def worst_mistakes(images: Tensor, titles: Sequence[str]) -> "Figure":
    """Images with what was said about each.

    Args:
        images: (N, C, H, W) in [0, 1].
        titles: one an image, such as :func:`mistake_title` makes.

    Raises:
        ValueError: if numbers differ or there are no images.
    """
    count = len(images)
    if len(titles) != count or not count:
        raise ValueError(f"titles must be one for each image, of one at least, got {len(titles)} for {count}")
    lines = 1 + max(title.count("\n") for title in titles)
    cell = max(1.7, max(map(_title_width, titles)) + 0.15)
    columns = min(count, max(1, int(10.5 / cell)))
    rows = math.ceil(count / columns)
    figure = new_figure(cell * columns + 0.2, rows * (1.5 + 0.16 * lines), "constrained")
    grid = figure.add_gridspec(rows, columns)
    for place, title in enumerate(titles):
        axes = figure.add_subplot(grid[divmod(place, columns)])
        _show(axes, images[place])
        _title(axes, title)
    return figure


def mistake_title(true: str, said: str, said_activation: float, true_activation: float) -> str:
    """Such as "true 4 → said 9 (0.81 / 0.12)", broken into lines that fit above a small picture."""
    activations = f"({said_activation:.2f} / {true_activation:.2f})"
    if len(true) + len(said) <= 8:
        return f"true {true} → said {said}\n{activations}"
    return f"true {shorten(true)}\n→ said {shorten(said, 22)}\n{activations}"


def assignment_figure(
    images: Tensor,
    maps: Tensor,
    titles: Sequence[str],
    extent: Extent | None = None,
    even: float | None = None,
) -> "Figure":
    """Images, and below each its assignment map laid over it.

    Args:
        images: (N, C, H, W) in [0, 1].
        maps: (N, H', W'), of :func:`~torchcaps.explain.assignment_maps`.
        titles: one an image.
        extent: the part of the image that a map covers, of :func:`~torchcaps.explain.map_extent`; None for all of it.
        even: the share that is neither much nor little, 1 / E: red is more, blue is less. None for one colour scale
            from the smallest to the largest share.

    Raises:
        ValueError: if numbers do not fit or there are no images.
    """
    return flow_figure(images, {"share": maps}, titles, {} if extent is None else {"share": extent}, even)


def flow_figure(
    images: Tensor,
    maps: Mapping[str, Tensor],
    titles: Sequence[str],
    extents: Mapping[str, Extent] | None = None,
    even: float | None = None,
) -> "Figure":
    """Images, and below each a row of :func:`assignment_figure` for every layer of children, on one colour scale.

    Args:
        images: (N, C, H, W) in [0, 1].
        maps: (N, H', W') each, of :func:`~torchcaps.explain.share_maps`, by the label of the row; NaN stays uncoloured.
        titles: one an image.
        extents: of :func:`~torchcaps.explain.layer_extents`, by the same labels; without one, all of the image.
        even: as in :func:`assignment_figure`.

    Raises:
        ValueError: if numbers do not fit or there are no images.
    """
    from matplotlib.cm import ScalarMappable

    _check_maps(images, maps)
    values = torch.cat([part.detach().cpu().float().flatten() for part in maps.values()])
    values = values[values.isfinite()]
    values = values if len(values) else torch.zeros(1)
    scale = ScalarMappable(_share_scale(values, even), "viridis" if even is None else "RdBu_r")

    def overlay(label: str) -> Callable[["Axes", int], None]:
        def draw(axes: "Axes", place: int) -> None:
            _show(axes, 0.25 + _picture(images[place]).mean(2)[None] / 2)  # grey and paler, so that colours stand out
            colours = scale.to_rgba(maps[label][place].detach().cpu().float().numpy(), alpha=0.8)
            _lay(axes, colours, images[place], (extents or {}).get(label))

        return draw

    rows: list[Callable[[Axes, int], Any]] = [
        lambda axes, place: _show(axes, images[place]),
        *(overlay(label) for label in maps),
    ]
    figure = _stacked(len(images), titles, ["image", *maps], rows)
    bar = figure.colorbar(scale, ax=figure.axes, label="share of the children", fraction=0.03, aspect=30, pad=0.01)
    if even is not None:
        low, high = _share_range(values, even)
        ticks = [low, (low + even) / 2, even, (even + high) / 2, high]
        bar.set_ticks(ticks, labels=[f"{tick:.2g}" for tick in ticks])
    return figure


def _check_maps(images: Tensor, maps: Mapping[str, Tensor]) -> None:
    for part in maps.values():
        if part.ndim != 3 or len(part) != len(images):
            raise ValueError(f"maps must be ({len(images)}, H', W'), one an image, got shape {tuple(part.shape)}")


def _lay(axes: "Axes", cells: Any, image: Tensor, extent: Extent | None, **options: Any) -> None:
    """Lays a map over an image or beside it, each cell where it belongs."""
    height, width = image.shape[-2:]
    left, right, bottom, top = extent or Extent(0.0, float(width), float(height), 0.0)
    axes.imshow(cells, extent=(left, right, bottom, top), interpolation="nearest", **options)
    axes.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[])


def _frame(axes: "Axes", colour: str = "0.8") -> None:
    axes.set(xticks=[], yticks=[], facecolor="0.93")
    for side in axes.spines.values():
        side.set_color(colour)


def activation_figure(
    images: Tensor,
    maps: Mapping[str, Tensor],
    titles: Sequence[str],
    extents: Mapping[str, Extent] | None = None,
    classes: Tensor | None = None,
) -> "Figure":
    """Images, and below each the activations of its capsules layer by layer, every layer on a colour scale of its own.

    Args:
        images: (N, C, H, W) in [0, 1]; at most ten look well.
        maps: activations (N, H', W') by the label of the row, such as those of one type of each layer.
        titles: one an image.
        extents: the part of the image that each map covers, by the same labels; without one, all of it.
        classes: activations of the class capsules (N, E), as bars in the last row.

    Raises:
        ValueError: if numbers do not fit or there are no images.
    """
    _check_maps(images, maps)
    if len(titles) != len(images) or not len(images):
        raise ValueError(f"titles must be one for each image, of one at least, got {len(titles)} for {len(images)}")
    N, height = len(images), images.shape[-2] / images.shape[-1]
    rows = 1 + len(maps) + (classes is not None)
    lines = 1 + max(title.count("\n") for title in titles)
    figure = new_figure(1.1 * N + 1.6, 1.15 * height * rows + 0.17 * lines + 0.3, "constrained")
    grid = figure.add_gridspec(rows, N)
    for place in range(N):
        axes = figure.add_subplot(grid[0, place])
        _show(axes, images[place])
        _title(axes, titles[place])
        if place == 0:
            axes.set_ylabel("image", fontsize=9)
    for row, (label, part) in enumerate(maps.items(), 1):
        part = part.detach().cpu().float()
        drawn = []
        for place in range(N):
            axes = figure.add_subplot(grid[row, place])
            _lay(axes, part[place].numpy(), images[place], (extents or {}).get(label), **_heat(part))
            _frame(axes)
            drawn.append(axes)
        drawn[0].set_ylabel(label, fontsize=9)
        figure.colorbar(drawn[0].images[0], ax=drawn, fraction=0.03, aspect=10, pad=0.01, label="activation")
    if classes is not None:
        shown = classes.detach().cpu().float()
        top = max(shown.max().item(), 1e-6)
        for place in range(N):
            axes = figure.add_subplot(grid[rows - 1, place])
            best = int(shown[place].argmax())
            colours = ["C3" if index == best else "0.6" for index in range(shown.shape[1])]
            axes.bar(range(shown.shape[1]), shown[place].tolist(), color=colours)
            axes.set(xticks=[best], ylim=(0, 1.05 * top), box_aspect=0.7 * height)
            axes.tick_params(labelsize=8, length=2)
            if place:
                axes.set_yticks([])
        figure.axes[-N].set_ylabel("classes", fontsize=9)
    return figure


def _heat(values: Tensor) -> dict[str, Any]:
    """Colours for activations, from none to the largest."""
    return {"cmap": "magma", "vmin": 0.0, "vmax": max(values.max().item(), 1e-6)}


def types_figure(
    image: Tensor,
    activations: Mapping[str, Tensor],
    title: str = "",
    extents: Mapping[str, Extent] | None = None,
    count: int = 8,
) -> "Figure":
    """One image and, layer by layer, where its most active types of capsules are active.

    Args:
        image: (C, H, W) in [0, 1].
        activations: (H', W', types) by layer.
        title: above the image.
        extents: the part of the image that each map covers; without one, all of it.
        count: how many types of each layer, those with the largest activations.

    Raises:
        ValueError: if activations have another number of axes.
    """
    parts = {label: part.detach().cpu().float() for label, part in activations.items()}
    for label, part in parts.items():
        if part.ndim != 3:
            raise ValueError(f"activations of {label} must be (H', W', types), got shape {tuple(part.shape)}")
    columns = 1 + min(count, max(part.shape[-1] for part in parts.values()))
    height = image.shape[-2] / image.shape[-1]
    figure = new_figure(1.15 * columns + 1.4, (1.15 * height + 0.4) * len(parts) + 0.2, "constrained")
    grid = figure.add_gridspec(len(parts), columns)
    axes = figure.add_subplot(grid[0, 0])
    _show(axes, image)
    _title(axes, title)
    for row, (label, part) in enumerate(parts.items()):
        peak = part.flatten(0, 1).amax(0)
        drawn = []
        for column, kind in enumerate(peak.argsort(descending=True, stable=True)[:count].tolist(), 1):
            axes = figure.add_subplot(grid[row, column])
            _lay(axes, part[..., kind].numpy(), image, (extents or {}).get(label), **_heat(part))
            _frame(axes)
            _title(axes, f"type {kind}", fontsize=8)
            drawn.append(axes)
        drawn[0].set_ylabel(label, fontsize=9)
        figure.colorbar(drawn[0].images[0], ax=drawn, fraction=0.03, aspect=10, pad=0.01, label="activation")
    return figure


def pose_figure(
    image: Tensor,
    poses: Mapping[str, Tensor],
    titles: Mapping[str, str] | None = None,
    extents: Mapping[str, Extent] | None = None,
) -> "Figure":
    """One image and, layer by layer, the numbers of the pose of one type of capsule at every position.

    Args:
        image: (C, H, W) in [0, 1].
        poses: (H', W', M, D) of matrix or (H', W', D) of vector capsules, by layer.
        titles: of the layers, by the same labels; else the labels.
        extents: the part of the image that each map covers; without one, all of it.

    Raises:
        ValueError: if poses have another number of axes.
    """
    blocks = {}
    for label, pose in poses.items():
        if pose.ndim not in (3, 4):
            raise ValueError(f"poses of {label} must be (H', W', M, D) or (H', W', D), got shape {tuple(pose.shape)}")
        blocks[label] = _pose_block(pose.detach().cpu().float())
    rows = max(block.shape[0] for block in blocks.values())
    widths = [1.6, *(0.62 * block.shape[1] + 0.9 for block in blocks.values())]
    figure = new_figure(sum(widths), max(0.7 * rows * image.shape[-2] / image.shape[-1], 1.6) + 0.5, "constrained")
    parts = figure.subfigures(1, len(widths), width_ratios=widths, squeeze=False)[0]
    axes = parts[0].add_subplot()
    _show(axes, image)
    for part, (label, block) in zip(parts[1:], blocks.items(), strict=True):
        part.suptitle((titles or {}).get(label, label), fontsize=9, parse_math=False)
        largest = max(block.abs().max().item(), 1e-6)
        for row in range(block.shape[0]):
            for column in range(block.shape[1]):
                axes = part.add_subplot(block.shape[0], block.shape[1], row * block.shape[1] + column + 1)
                cells = block[row, column]
                if cells.isnan().all():
                    axes.set_axis_off()
                    continue
                scale = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}
                _lay(axes, cells.numpy(), image, (extents or {}).get(label), **scale)
                _frame(axes)
        bar = part.colorbar(part.axes[0].images[0], ax=part.axes, fraction=0.05, aspect=25, pad=0.02)
        bar.set_label("pose", fontsize=8)
        bar.ax.tick_params(labelsize=7)
    return figure


def _pose_block(pose: Tensor) -> Tensor:
    """Maps of a pose's numbers in rows and columns, (rows, columns, H', W'); those of vectors in rows of four."""
    if pose.ndim == 4:
        return pose.permute(2, 3, 0, 1)
    columns = min(4, pose.shape[-1])
    missing = -pose.shape[-1] % columns
    return F.pad(pose, (0, missing), value=torch.nan).permute(2, 0, 1).unflatten(0, (-1, columns))


def _share_range(maps: Tensor, even: float | None) -> tuple[float, float]:
    """The smallest and the largest share; a fifth to either side of ``even`` at least, so that noise stays pale."""
    low, high = maps.min().item(), maps.max().item()
    return (low, high) if even is None else (min(low, 0.8 * even), max(high, 1.2 * even))


def _share_scale(maps: Tensor, even: float | None) -> "Normalize":
    """That range, with ``even`` in the middle of the colours."""
    from matplotlib.colors import Normalize, TwoSlopeNorm

    low, high = _share_range(maps, even)
    return Normalize(low, high) if even is None else TwoSlopeNorm(even, low, high)
