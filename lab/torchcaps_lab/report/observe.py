"""Images to look at closely, and one look at what a network does with them; all that is
shown of them comes from it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.models.base import CapsuleClassifier, ClassifierNetwork, in_precision_of
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.evaluate.findings import (
    Findings,
    Metrics,
    evaluating,
    in_parts,
    kept,
)
from torchcaps_lab.evaluate.layers import Layer, observe_layers
from torchcaps_lab.evaluate.poses import draw_poses, perturb
from torchcaps_lab.evaluate.targets import check_labels, check_target
from torchcaps_lab.evaluate.verdict import Verdict, judge
from torchcaps_lab.report.flow import class_maps, class_shares
from torchcaps_lab.report.places import (
    Extent,
    layer_extents,
    on_a_grid,
    origin,
    placed_capsules,
)

COLUMNS = 10
"""Images in a row of pictures."""


_SAMPLES = 20

NamedBox = tuple[str, tuple[float, ...]]
"""The name of a class, and left, top, right, bottom of a thing in pixels."""


@dataclass(frozen=True, eq=False)
class Selection:
    """B images, and what to ask a network about each.

    It needs no labels. An image of several classes may be in it several times, with
    another target each time.

    Attributes:
        images: as the network takes them, (B, C, H, W).
        pictures: to draw, in [0, 1], with the same height and width, (B, C, H, W).
        target: the class that each image is asked about, (B,); None for the most active
            one.
        titles: one an image, with a line break where one is allowed; () for empty ones.
        order: positions of all images, int64 (B,): the first are shown where there is
            no room for all. None for the order of the images.
        example: the position of the image to show where there is room for one.
        about: what the target is, to be read behind "the capsule of".
        note: a sentence or two about these images and their titles.
        classes: the names of the classes; () for their numbers.
        things: what is really in each image, and where; () where that is not known.

    Raises:
        ValueError: if there are no images, or shapes or numbers do not fit.

    Example:
        >>> from torchcaps_lab.report import Selection
        >>> images = torch.rand(2, 1, 8, 8)
        >>> selection = Selection(
        ...     images, images, target=torch.tensor([3, 1]), titles=("a 3", "a 1")
        ... )
        >>> len(selection), selection.title(0)
        (2, 'a 3')
    """

    images: Tensor
    pictures: Tensor
    target: Tensor | None = None
    titles: tuple[str, ...] = ()
    order: Tensor | None = None
    example: int = 0
    about: str = "the selected class"
    note: str = ""
    classes: tuple[str, ...] = ()
    things: tuple[tuple[NamedBox, ...], ...] = ()

    def __post_init__(self) -> None:
        count = len(self.images)
        if self.images.ndim != 4 or not count:
            raise ValueError(
                "images must be (B, C, H, W) of at least one image, got "
                f"{tuple(self.images.shape)}"
            )
        if (
            len(self.pictures) != count
            or self.pictures.shape[2:] != self.images.shape[2:]
        ):
            raise ValueError(
                f"pictures must be one for each of {count} images and of their size, "
                f"got {tuple(self.pictures.shape)} for {tuple(self.images.shape)}"
            )
        if self.target is not None:
            check_labels(self.target, count)
        if self.titles and len(self.titles) != count:
            raise ValueError(
                f"titles must be one for each of {count} images, got {len(self.titles)}"
            )
        if self.things and len(self.things) != count:
            raise ValueError(
                f"things must be those of each of {count} images, got "
                f"{len(self.things)}"
            )
        if self.order is not None and sorted(self.order.tolist()) != list(range(count)):
            raise ValueError(
                f"order must hold each position of {count} images once, got "
                f"{self.order.tolist()}"
            )
        if not 0 <= self.example < count:
            raise ValueError(
                f"example must be the position of one of {count} images, got "
                f"{self.example}"
            )

    def __len__(self) -> int:
        return len(self.images)

    def title(self, place: int) -> str:
        """The title of one image."""
        return self.titles[place] if self.titles else ""

    def name(self, label: int) -> str:
        """The name of a class, or its number."""
        return one_line(self.classes[label]) if self.classes else str(label)

    def titles_at(self, chosen: Tensor | None = None) -> tuple[str, ...]:
        """The titles of the images at these positions; of all by default."""
        return tuple(
            self.title(place)
            for place in (range(len(self)) if chosen is None else chosen.tolist())
        )

    def first(self, count: int) -> Tensor:
        """Positions of at most ``count`` images, the first ones by the order,
        ascending.
        """
        order = torch.arange(len(self)) if self.order is None else self.order
        return order[:count].sort().values


def select_samples(findings: Findings, image_set: Examples) -> Selection | None:
    """The first images of each class, up to 20 together, asked about the class that was
    said; sorted by class. None if they cannot be shown.

    The example is the clearest of the first ten.
    """
    chosen = findings.samples(_SAMPLES)
    rank = {index: place for place, index in enumerate(findings.ranked().tolist())}
    order = torch.tensor(
        sorted(range(len(chosen)), key=lambda place: rank[int(chosen[place])])
    )
    first = order[:COLUMNS].sort().values
    batch = image_set.seen(chosen.tolist())
    if batch is None:
        return None
    return Selection(
        batch.inputs,
        batch.pictures,
        target=findings.prediction[chosen],
        titles=tuple(_title(findings, image_set, index) for index in chosen.tolist()),
        order=order,
        example=int(first[findings.margin[chosen[first]].argmax()]),
        about="the predicted class",
        note=(
            "These are the first images of each class. An arrow marks an image that "
            "was assigned to another class, and it is drawn as that class."
        ),
        classes=tuple(image_set.classes),
    )


def select_examples(
    findings: Findings, image_set: Examples, most: int = 20
) -> Selection | None:
    """The clearest image of each class that has images, asked about that class and
    titled with its name; None if they cannot be shown.

    Args:
        findings: about these images.
        image_set: the images.
        most: of more classes than this, half of those shown are the most mistaken ones
            and half the surest.
    """
    chosen = findings.examples(most)
    some = len(findings.labels.unique()) > most
    batch = image_set.seen(chosen.tolist())
    if batch is None:
        return None
    target = findings.labels[chosen]
    titles = tuple(image_set.classes[label] for label in target.tolist())
    return Selection(
        batch.inputs,
        batch.pictures,
        target,
        titles,
        about="its class",
        note=(
            f"These are the clearest images of {most} classes. Half of the classes "
            "have the most mistakes, and half are the surest."
        )
        if some
        else "These are the clearest images of each class.",
        classes=tuple(image_set.classes),
    )


def _title(findings: Findings, image_set: Examples, index: int) -> str:
    """The title of an image: its class, and what it was taken for where that is
    another.
    """
    true = int(findings.labels[index])
    predicted = int(findings.prediction[index])
    name = one_line(image_set.classes[true])
    if true == predicted:
        return name
    return f"{name}\n→ {one_line(image_set.classes[predicted])}"


def one_line(name: str) -> str:
    """The name without line breaks."""
    return " ".join(name.split())


class _ObservedLayers(NamedTuple):
    """What is kept of a run, on the CPU.

    Args:
        capsules: by the names of :func:`~torchcaps_lab.report.places.placed_capsules`.
        maps: the maps of :func:`~torchcaps_lab.report.class_maps`, by the same names.
        leaky: whether children may go to no class.
    """

    capsules: dict[str, Capsules]
    maps: dict[str, Tensor]
    leaky: bool


class Observation:
    """What a network does with the images of a selection.

    The network runs when something is first asked for, once over the images, in
    evaluation mode and on its own device, and is left in the mode it came in. Capsules
    and the shares of the classes are kept, on the CPU; votes and assignments are
    dropped after each few images, because those of a convolution are large.

    Args:
        model: any network of torchcaps layers, in any precision; without capsules there
            is only an :attr:`activation`.
        selection: the images.
        extents: those of another look at images of the same size; None: they are found
            when they are asked for.
        verdict: the verdict of :func:`~torchcaps_lab.evaluate.judge`: what decides and
            draws nothing is not shown; None: all is.

    Example:
        >>> from torchcaps_lab.report import Observation, Selection
        >>> images = torch.rand(2, 1, 8, 8)
        >>> observation = Observation(
        ...     tc.create_model("capsnet_digits"), Selection(images, images)
        ... )
        >>> list(observation.capsules), observation.reconstructions.shape
        (['primary_caps', 'class_caps'], torch.Size([2, 1, 8, 8]))
    """

    def __init__(
        self,
        model: nn.Module,
        selection: Selection,
        extents: Mapping[str, Extent] | None = None,
        verdict: Verdict | None = None,
    ) -> None:
        self.model = model
        self.verdict = verdict
        self.selection = selection
        self._extents = extents

    def asked(self, target: Tensor) -> "Observation":
        """The same look, with each image asked about another class: labels (B,).
        Nothing runs again.
        """
        again = Observation(
            self.model,
            replace(self.selection, target=target),
            self.extents,
            self.verdict,
        )
        vars(again).update(
            _observed_layers=self._observed_layers, activation=self.activation
        )
        return again

    @property
    def capsules(self) -> dict[str, Capsules]:
        """The capsules of each layer, lowest first, the classes last; empty for a
        network without capsules.

        Children that no layer made are in it as ``name.children``, of the layer that
        took them.
        """
        return self._observed_layers.capsules

    @property
    def grids(self) -> dict[str, Capsules]:
        """The ones of :attr:`capsules` that lie at positions of the image, more than
        one.
        """
        return {
            name: capsules
            for name, capsules in self.capsules.items()
            if on_a_grid(capsules.activation)
        }

    @property
    def classes(self) -> Capsules | None:
        """The class capsules, poses (B, E, *pose); None for a network without
        capsules.
        """
        return next(reversed(self.capsules.values()), None)

    @cached_property
    def activation(self) -> Tensor:
        """The activations of the classes, (B, E)."""
        if self.classes is not None:
            return self.classes.activation

        def answer(images: Tensor) -> Tensor:
            return kept(self.model(images).activation)

        return torch.cat([*in_parts(self.model, self.selection.images, answer)])

    @cached_property
    def target(self) -> Tensor:
        """The class that each image is asked about, (B,).

        Raises:
            ValueError: if the network has no such class.
        """
        target = self.selection.target
        if target is None:
            return self.activation.argmax(1)
        check_target(target, self.activation)
        return target.cpu()

    @property
    def maps(self) -> dict[str, Tensor]:
        """Where in the image each class took its children, (B, H', W', E), by the name
        of the children.

        Of :func:`~torchcaps_lab.report.class_maps`, from the children of the classes
        down; for children on a grid.
        """
        return self._observed_layers.maps

    @property
    def leaky(self) -> bool:
        """Whether children may go to no class, of
        :class:`~torchcaps.ops.Competition`.
        """
        return self._observed_layers.leaky

    @property
    def even(self) -> float:
        """The share of a class if all got the same: 1 / E, or 1 / (E + 1) with an
        :attr:`leaky`.
        """
        return 1 / (self.activation.shape[1] + self.leaky)

    @cached_property
    def extents(self) -> Mapping[str, Extent]:
        """The part of the image that each grid covers:
        :func:`~torchcaps_lab.report.layer_extents`. Runs it again.
        """
        if self._extents is not None:
            return self._extents
        with evaluating(self.model) as device:
            return layer_extents(self.model, self.selection.images[:1].to(device))

    @property
    def decodes(self) -> bool:
        """Whether the network has a decoder that, as far as is known, learned
        something.
        """
        learned = self.verdict is None or not self.verdict.blind
        return (
            learned
            and isinstance(self.model, CapsuleClassifier)
            and self.model.decoder is not None
        )

    @cached_property
    def reconstructions(self) -> Tensor:
        """What the capsule of the :attr:`target` alone describes, (B, C, H, W).

        Raises:
            RuntimeError: if the network has no decoder.
        """
        model, classes = self._decoder()
        with evaluating(model) as device:
            return kept(
                model.decode(
                    _for_decoder(model, classes, device), self.target.to(device)
                )
            )

    def sweeps(self, values: Tensor) -> Iterator[Tensor]:
        """For each image what :func:`~torchcaps_lab.evaluate.perturb` makes of its
        :attr:`target`, (D, V, C, H, W).

        One image at a time, because it decodes D x V images.

        Raises:
            RuntimeError: if the network has no decoder.
        """
        model, classes = self._decoder()
        for place in range(len(self.selection)):
            row = slice(place, place + 1)
            with evaluating(model) as device:
                capsules = _for_decoder(
                    model, Capsules(classes.pose[row], classes.activation[row]), device
                )
                target = self.target[row].to(device)
                images = kept(perturb(model, capsules, target, values.to(device))[0])
            yield images

    def draw(self, poses: Tensor, target: Tensor) -> Tensor:
        """What the decoder draws from poses (N, D) in the capsules of classes (N,):
        images (N, C, H, W).

        Raises what :func:`~torchcaps_lab.evaluate.draw_poses` raises.
        """
        model, _ = self._decoder()
        with evaluating(model) as device:
            return kept(draw_poses(model, poses.to(device), target.to(device)))

    def _decoder(self) -> tuple[CapsuleClassifier, Capsules]:
        if (
            not isinstance(self.model, CapsuleClassifier)
            or self.model.decoder is None
            or self.classes is None
        ):
            raise RuntimeError(f"this {type(self.model).__name__} has no decoder")
        return self.model, self.classes

    @cached_property
    def _observed_layers(self) -> _ObservedLayers:
        def look(images: Tensor) -> _ObservedLayers:
            return _keep(observe_layers(self.model, images))

        parts = []
        for part in in_parts(self.model, self.selection.images, look):
            parts.append(part)
            if not part.capsules:
                break  # and none will come
        capsules = {}
        for name in parts[0].capsules:
            pairs = zip(*(part.capsules[name] for part in parts), strict=True)
            capsules[name] = Capsules(*map(torch.cat, pairs))
        maps = {}
        for name in parts[0].maps:
            maps[name] = torch.cat([part.maps[name] for part in parts])
        return _ObservedLayers(capsules, maps, parts[0].leaky)


def _keep(layers: dict[str, Layer]) -> _ObservedLayers:
    """What is kept of one run over some images."""
    capsules = {
        name: Capsules(*map(kept, observed))
        for name, observed in placed_capsules(layers).items()
    }
    maps, leaky = {}, False
    if layers and (routed := next(reversed(layers.values())).routed):
        leaky = routed[0].votes.competition.leaky
        for name, shares in class_shares(layers).items():
            label = origin(layers, layers[name])
            children = layers[name].children
            if children is not None and on_a_grid(children.activation):
                maps[label] = class_maps(shares, children.activation).cpu()
    return _ObservedLayers(capsules, maps, leaky)


def _for_decoder(
    model: CapsuleClassifier, capsules: Capsules, device: torch.device
) -> Capsules:
    """Capsules that were kept, as the decoder takes them."""
    return Capsules(*(in_precision_of(model, part.to(device)) for part in capsules))


@dataclass(frozen=True, eq=False)
class Tested:
    """A network that was tested on images of one class each, for a report.

    Attributes:
        model: any network.
        images: the images that it was tested on.
        findings: about these images.
        summary: what the run says of itself; may be empty.
        metrics: the metrics of the training; may be empty.

    Example:
        >>> from torchcaps_lab.data import Digits
        >>> from torchcaps_lab.evaluate import examine
        >>> from torchcaps_lab.report import Tested
        >>> network, digits = tc.create_model("capsnet_digits"), Digits().test
        >>> tested = Tested(
        ...     network, digits, examine(network, digits), summary={}, metrics=[]
        ... )
        >>> len(tested.examples.selection)  # one of each class
        10
    """

    model: ClassifierNetwork
    images: Examples
    findings: Findings
    summary: Mapping[str, Any]
    metrics: Metrics

    @cached_property
    def shown(self) -> Observation | None:
        """The images of :func:`select_samples`."""
        return self._observed(select_samples)

    @cached_property
    def examples(self) -> Observation | None:
        """The images of :func:`select_examples`."""
        return self._observed(select_examples)

    def _observed(
        self, select: Callable[[Findings, Examples], Selection | None]
    ) -> Observation | None:
        selection = select(self.findings, self.images)
        if selection is None:
            return None
        return Observation(self.model, selection, verdict=self.verdict)

    @cached_property
    def verdict(self) -> Verdict | None:
        """Whether routing and decoder do anything, as the run found or else measured
        now; None for texts.
        """
        saved = self.summary.get("verdict")
        return judge(self.model, self.images) if saved is None else Verdict(**saved)
