"""A web page about a trained network: what it gets right and wrong, and what its capsules learned."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.data.base import ImageSet
from torchcaps.explain import figures
from torchcaps.explain.findings import Findings, evaluating, examine
from torchcaps.explain.flow import class_shares, share_maps
from torchcaps.explain.layers import observe_layers, peak_activation
from torchcaps.explain.places import grids, layer_extents, origin
from torchcaps.explain.poses import default_sweep, perturb
from torchcaps.models.base import CapsuleClassifier, ImageClassifier

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MISTAKES = 24
_SAMPLES = 20
_COLUMNS = 10  # images in the figure of the layers
_POSE_NUMBERS = 32  # of a pose, up to which each number gets a map

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 1100px; margin: 2em auto; padding: 0 1em; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2em; border-bottom: 1px solid #ddd; }
p { max-width: 46em; } img { max-width: 100%; height: auto; }
table { border-collapse: collapse; } td, th { padding: .2em 1em .2em 0; text-align: left; vertical-align: top; }
tr { border-bottom: 1px solid #eee; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
td { overflow-wrap: anywhere; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(420px, 1fr)); gap: 1em; }
"""


class _Section(NamedTuple):
    """A heading, what to see below it, and the pictures by file name, described for those who cannot see them."""

    heading: str
    text: str
    pictures: dict[str, tuple[str, "Figure"]]
    table: str = ""
    wide: bool = False  # pictures one below the other, not side by side


def write_report(
    folder: str | Path,
    model: ImageClassifier,
    image_set: ImageSet,
    summary: dict[str, Any],
    metrics: Sequence[dict[str, float]],
    batch_size: int = 256,
) -> Path:
    """Writes ``report/index.html`` and its pictures. The same arguments give the same bytes.

    What the network cannot show is left out: poses without a decoder, assignments without capsules.

    Args:
        folder: where ``report`` is made; pictures of an earlier report in there are replaced.
        model: any network, on any device; it is left in the mode it came in.
        image_set: what to test it on.
        summary: shown as a table, in this order.
        metrics: rows for :func:`~torchcaps.explain.learning_curves`; may be empty.
        batch_size: how many images at a time.

    Returns:
        The path of ``index.html``.

    Raises:
        ValueError: if there are no images, or they do not fit the network.
    """
    findings = examine(model, image_set, batch_size)
    report = Path(folder) / "report"
    report.mkdir(parents=True, exist_ok=True)
    for old in _old_pictures(report):
        old.unlink()
    body = [f"<h1>What this {escape(type(model).__name__)} learned</h1>", _summary(summary, findings)]
    with evaluating(model) as device:
        for section in _sections(model, image_set, findings, metrics, device):
            for name, (_, figure) in section.pictures.items():
                figure.savefig(report / name)
            body.append(_html(section))
    index = report / "index.html"
    index.write_text(_page("\n".join(body)), encoding="utf-8", errors="backslashreplace")
    return index


def _old_pictures(report: Path) -> list[Path]:
    names = (
        "learning_curves",
        "confusion_matrix",
        "worst_mistakes",
        "reconstructions",
        "perturbation_???",
        "layer_activations",
        "layer_types",
        "layer_poses",
        "assignments",
    )
    return [path for name in names for path in report.glob(f"{name}.png")]


def _sections(
    model: ImageClassifier,
    image_set: ImageSet,
    findings: Findings,
    metrics: Sequence[dict[str, float]],
    device: torch.device,
) -> Iterator[_Section]:
    """The sections that this network and these metrics have something to show in."""
    if figures.has_curves(metrics):
        yield _learning(metrics)
    yield _confusion(findings, image_set.classes)
    yield _mistakes(findings, image_set)
    if isinstance(model, CapsuleClassifier):
        if model.decoder is not None:
            yield _reconstructions(model, image_set, findings, device)
            yield _perturbations(model, image_set, findings, device)
        if grids(observe_layers(model, image_set[0].images.to(device))):
            yield _layer_by_layer(model, image_set, findings, device)
            yield from _assignments(model, image_set, findings, device)


def _learning(metrics: Sequence[dict[str, float]]) -> _Section:
    routing = ""
    if any(name.startswith("assignment_entropy_") for row in metrics for name in row):
        routing = (
            " Below, the health of the routing on a few images, layer by layer. The entropy of the assignments is 1 "
            "while all parents get the same of each child, and falls to 0 as each child finds its one parent. A dead "
            "type of capsule is active nowhere in any of these images, and so of no use."
        )
    return _Section(
        "Learning curves",
        "How the network got better with each pass over the training images. Where the validation curve turns back "
        f"while training goes on improving, the network learns its training images by heart.{routing}",
        {"learning_curves.png": ("Loss and accuracy over the epochs", figures.learning_curves(metrics))},
    )


def _confusion(findings: Findings, classes: Sequence[str]) -> _Section:
    return _Section(
        "Which classes are taken for which",
        "Each row holds the images of one class, each column what the network said. Numbers on the diagonal are right; "
        "a dark cell beside it is a pair of classes that the network cannot tell apart well. Colours are stretched so "
        "that a few mistakes already show.",
        {"confusion_matrix.png": ("Confusion matrix", figures.confusion_matrix(findings.confusion, classes))},
    )


def _mistakes(findings: Findings, image_set: ImageSet) -> _Section:
    heading, wrong = "The worst mistakes", findings.mistakes(_MISTAKES)
    if not len(wrong):
        return _Section(heading, f"There are none: all {len(image_set)} images are classified correctly.", {})
    rows = [_mistake(findings, image_set, index) for index in wrong.tolist()]
    titles = [figures.mistake_title(true, said, high, low) for _, true, said, high, low in rows]
    figure = figures.worst_mistakes(image_set.__getitems__(wrong.tolist()).pictures, titles)
    return _Section(
        heading,
        f"The network is wrong about {int((findings.prediction != findings.labels).sum())} of {len(image_set)} images; "
        "these are the clearest cases, the worst first. In brackets: how sure it was of what it said, and how sure "
        "of the true class. Look for images that you would get wrong too, and for wrong labels.",
        {"worst_mistakes.png": ("The images of the worst mistakes", figure)},
        _table(
            ["", "file" if image_set.files else "image", "true class", "said", "activation", "of the true class"],
            [
                [str(place), name, true, said, f"{high:.3f}", f"{low:.3f}"]
                for place, (name, true, said, high, low) in enumerate(rows, 1)
            ],
        ),
    )


def _mistake(findings: Findings, image_set: ImageSet, index: int) -> tuple[str, str, str, float, float]:
    """File (or place in the set), true class, predicted class, and the activations of the predicted and the true."""
    true, said = int(findings.labels[index]), int(findings.prediction[index])
    name = image_set.files[index] if image_set.files else str(index)
    activation = findings.activation[index]
    return name, image_set.classes[true], image_set.classes[said], float(activation[said]), float(activation[true])


def _said(findings: Findings, image_set: ImageSet, index: int) -> str:
    """The title of an image: its class, and what it was taken for where that is another."""
    true, said = int(findings.labels[index]), int(findings.prediction[index])
    name = figures.shorten(image_set.classes[true], 14)
    return name if true == said else f"{name}\n→ {figures.shorten(image_set.classes[said], 12)}"


def _reconstructions(
    model: CapsuleClassifier, image_set: ImageSet, findings: Findings, device: torch.device
) -> _Section:
    chosen = findings.samples(_SAMPLES).tolist()
    batch = image_set.__getitems__(chosen)
    said = findings.prediction[chosen].to(device)
    decoded = model.decode(model.encode(batch.images.to(device)), said)
    figure = figures.reconstructions(batch.pictures, decoded, [_said(findings, image_set, index) for index in chosen])
    return _Section(
        "Reconstructions",
        "The first images of each class, and below each what the decoder draws from the "
        f"{_numbers(model.class_caps.out_pose)} of the most active capsule alone. What is missing below is what the "
        "capsule did not keep; an arrow marks an image that was taken for another class, and is drawn as one of that.",
        {"reconstructions.png": ("Images and their reconstructions", figure)},
    )


def _numbers(pose: tuple[int, ...]) -> str:
    return " x ".join(map(str, pose)) + " numbers"


def _perturbations(model: CapsuleClassifier, image_set: ImageSet, findings: Findings, device: torch.device) -> _Section:
    values = default_sweep()
    pictures = {}
    for index in findings.examples().tolist():  # one at a time: a sweep decodes D x V images
        batch = image_set[index]
        labels = batch.labels.to(device)
        grids = perturb(model, model.encode(batch.images.to(device)), labels, values.to(device))
        label = int(labels)
        title = f"class {figures.shorten(image_set.classes[label], 30)}"
        (figure,) = figures.perturbation_atlas(grids, values, [title])
        description = f"Reconstructions of class {image_set.classes[label]} as each pose dimension moves"
        pictures[f"perturbation_{label:03d}.png"] = (description, figure)
    return _Section(
        "What the dimensions of a pose mean",
        "The clearest image of each class, reconstructed from the capsule of that class while one number of its pose "
        "is moved: each row is one dimension, the middle column the untouched pose. A row in which the shape changes "
        "steadily has learned something about it, such as its thickness, its slant or the size of a loop. The number "
        "behind a row is the mean difference of its outermost images (1 is black against white): where it is small, "
        "the decoder makes little use of this dimension.",
        pictures,
    )


def _layer_by_layer(
    model: CapsuleClassifier, image_set: ImageSet, findings: Findings, device: torch.device
) -> _Section:
    chosen = findings.samples(max(1, min(_COLUMNS, len(findings.labels))))
    batch = image_set.__getitems__(chosen.tolist())
    images = batch.images.to(device)
    layers, extents = observe_layers(model, images), layer_extents(model, images)
    maps = {name: _with_types(capsules.activation) for name, capsules in grids(layers).items()}
    classes = next(reversed(layers.values())).capsules.activation
    titles = [_said(findings, image_set, index) for index in chosen.tolist()]
    telling = {name: int(part.flatten(0, -2).std(0).argmax()) for name, part in maps.items()}
    labels = {name: f"{name}\ntype {kind}" if maps[name].shape[-1] > 1 else name for name, kind in telling.items()}
    pictures = {
        "layer_activations.png": (
            "Images and the activations of their capsules, layer by layer",
            figures.activation_figure(
                batch.pictures,
                {labels[name]: maps[name][..., kind] for name, kind in telling.items()},
                titles,
                {labels[name]: extents[name] for name in maps},
                classes,
            ),
        )
    }
    example = int(findings.margin[chosen].argmax())
    picture, title = batch.pictures[example], titles[example]
    if any(part.shape[-1] > 1 for part in maps.values()):
        pictures["layer_types.png"] = (
            "The most active types of capsules of one image, layer by layer",
            figures.types_figure(picture, {name: part[example] for name, part in maps.items()}, title, extents),
        )
    poses, names = {}, {}
    for name, capsules in grids(layers).items():
        kind = int(peak_activation(capsules)[example].argmax())
        pose = capsules.pose[example] if capsules.activation.ndim == 3 else capsules.pose[example, :, :, kind]
        if pose[0, 0].numel() <= _POSE_NUMBERS:
            poses[name] = pose
            kinds = f", type {kind}" if maps[name].shape[-1] > 1 else ""
            names[name] = f"{name}{kinds}\n{pose.shape[0]} x {pose.shape[1]} positions"
    if poses:
        pictures["layer_poses.png"] = (
            "The poses of the most active type of capsule of one image, layer by layer",
            figures.pose_figure(picture, poses, names),
        )
    return _Section(
        "Layer by layer",
        "First, images from several classes and, from the lowest layer up, the activation of one type of capsule at "
        "each position: of the type that differs most between these images and places. The bars are the activations "
        "of the classes, the strongest in red. Then one image again: the most active types of each layer, and the "
        "numbers of the pose of the most active one at each position, in the rows and columns of its matrix (of a "
        "vector: in rows of four). A type that found something answers in few places; numbers of a pose that change "
        "steadily along a stroke describe it.",
        pictures,
        wide=True,
    )


def _with_types(activation: Tensor) -> Tensor:
    """(B, H, W, types), of one type where there is no such axis."""
    return activation if activation.ndim == 4 else activation.unsqueeze(-1)


def _assignments(
    model: CapsuleClassifier, image_set: ImageSet, findings: Findings, device: torch.device
) -> Iterator[_Section]:
    chosen = findings.samples(min(_SAMPLES, max(10, model.classes)))
    batch = image_set.__getitems__(chosen.tolist())
    images, said = batch.images.to(device), findings.prediction[chosen].to(device)
    layers, extents = observe_layers(model, images), layer_extents(model, images)
    maps = {}
    for name, shares in class_shares(layers).items():
        label, children = origin(layers, layers[name]), layers[name].children
        if children is not None and label in grids(layers):
            maps[label] = share_maps(shares, children.activation, said)
    if not maps:
        return
    titles = [_said(findings, image_set, index) for index in chosen.tolist()]
    even = 1 / model.classes
    text = (
        "At each position, the share of the active child capsules that routing assigned to the class that was said. "
        f"An even split would give every class {even:.2g}: red places spoke for this class, blue places for others. "
        "Each cell lies at the centre of what its children see, and they see more than the cell."
    )
    if len(maps) == 1:
        ((label, only),) = maps.items()
        figure = figures.assignment_figure(batch.pictures, only, titles, extents[label], even)
    else:
        figure = figures.flow_figure(batch.pictures, maps, titles, extents, even)
        text += (
            " The first row of maps is of the children of the classes themselves. Each row below it hands these shares "
            "on, from parents to their children, to the finer grid of the layer below: a child went where its parents "
            "went. Positions that no window sees have no colour."
        )
    picture = ("Images and maps of the shares", figure)
    yield _Section("Where each part of the image went", text, {"assignments.png": picture})


def _summary(summary: dict[str, Any], findings: Findings) -> str:
    """What the caller says about the run, then what was measured here."""
    measured: dict[str, Any] = {
        "images in this report": len(findings.labels),
        "accuracy on them": f"{findings.accuracy:.2%}",
        "error on them": f"{findings.error:.2%}",
        "mean activation of the true class": findings.true_activation,
        "images with no class above 0.5": f"{findings.undecided:.2%}",
    }
    if findings.entropy is not None:
        measured["entropy of the assignments (0 hard, 1 uniform)"] = findings.entropy
    return _table(None, [[str(name), _value(value)] for name, value in {**summary, **measured}.items()])


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)


def _table(header: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    head = [] if header is None else [line(header, "th")]
    return "\n".join(["<table>", *head, *(line(row, "td") for row in rows), "</table>"])


def _html(section: _Section) -> str:
    pictures = [
        f'<a href="{escape(name)}"><img loading="lazy" src="{escape(name)}" alt="{escape(description)}"></a>'
        for name, (description, _) in section.pictures.items()
    ]
    shown = "\n".join(pictures)
    if len(pictures) > 1 and not section.wide:
        shown = f'<div class="gallery">\n{shown}\n</div>'
    return "\n".join(
        part
        for part in (f"<h2>{escape(section.heading)}</h2>", f"<p>{escape(section.text)}</p>", shown, section.table)
        if part
    )


def _page(body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>torchcaps report</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )
