"""The data of the page: looks of networks at single images, and their exhibits."""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from torchcaps.models import box_area
from torchcaps.routing import Routing
from torchcaps.routing.base import ROUTINGS
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.data import Batch, Examples
from torchcaps_lab.evaluate import exchangeable_routings, other_routing
from torchcaps_lab.evaluate.findings import evaluating
from torchcaps_lab.evaluate.verdict import Verdict, judge
from torchcaps_lab.report import (
    Exhibit,
    Extent,
    Observation,
    Selection,
    layer_extents,
    list_exhibits,
)
from torchcaps_lab.report.exhibit import plain, pngs
from torchcaps_lab.report.pictures.assignments import Assignments
from torchcaps_lab.report.pictures.class_activations import ClassActivations
from torchcaps_lab.report.pictures.class_pose import ClassPose
from torchcaps_lab.report.pictures.pose_swap import PoseSwap
from torchcaps_lab.report.pictures.routing_steps import RoutingSteps
from torchcaps_lab.tasks import SeveralLabels
from torchcaps_lab.tasks.things import counts_things, true_things

MOST_STEPS = 20
"""Steps of routing that the page offers."""

MOST_LOOKS = 256
"""How many looks are kept, of all browsers; each has the latest one, the one before and
one to swap poses with.
"""

MOST_LETTERS = 10_000
"""Longer texts are refused."""


Label = int | tuple[int, ...] | None
"""The class of an input, if that is known; where there may be several, all of them,
ascending: ``()`` if there are known to be none.
"""


@dataclass(frozen=True, eq=False)
class Look:
    """One image, seen by one network.

    Attributes:
        network: the name of the network.
        observation: the observation of that image only.
        label: its class or classes, if that is known.
        counted: whether the label has each class as often as it is in the image.
        made: what was made of it already, ready for JSON.

    Example:
        >>> from torchcaps_lab.report import Observation, Selection
        >>> from torchcaps_lab.explore import Look
        >>> image = torch.rand(1, 1, 8, 8)
        >>> look = Look(
        ...     "digits",
        ...     Observation(tc.create_model("capsnet_digits"), Selection(image, image)),
        ...     label=3,
        ... )
        >>> look.observation.activation.shape
        torch.Size([1, 10])
    """

    network: str
    observation: Observation
    label: Label = None
    counted: bool = False
    made: dict[tuple[Any, ...], Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Shown:
    """One input of which a network shows all that there is at once.

    Args:
        network: the name of the network.
        answer: what the page shows.
        why_no_pose: why the input has no poses of classes, for messages.
    """

    network: str
    answer: dict[str, Any]
    why_no_pose: str


class _Opened:
    """A network over images whose class capsules are shown, and facts about it that are
    computed once.
    """

    reads = False
    """Whether it takes texts."""

    apart = False
    """Whether its task shows images in its own way."""

    def __init__(
        self,
        name: str,
        classifier: Classifier,
        samples: "Callable[[], Examples | None] | None",
    ) -> None:
        self.name = name
        self.classifier = classifier
        self.network: Any = classifier.network
        self._samples = samples

    @cached_property
    def samples(self) -> Examples | None:
        """Its test images."""
        return None if self._samples is None else self._samples()

    @cached_property
    def places(self) -> dict[int, list[int]]:
        """Indices of the samples of each class."""
        if self.samples is None or self.samples.labels.ndim > 1:
            return {}
        return {
            label: (self.samples.labels == label).nonzero()[:, 0].tolist()
            for label in range(len(self.classifier.classes))
        }

    @cached_property
    def extents(self) -> Mapping[str, Extent]:
        """Extents of its layers on a grid."""
        image = torch.zeros(1, *self.classifier.image_shape)
        with evaluating(self.network) as device:
            return layer_extents(
                self.network,
                self.classifier.preprocess.evaluate(image).images.to(device),
            )

    @cached_property
    def verdict(self) -> Verdict | None:
        """Whether its routing and its decoder do anything; None without test images to
        try it on.
        """
        if self.samples is None or not len(self.samples):
            return None
        return judge(self.network, self.samples.prepared(self.classifier.preprocess))

    @cached_property
    def routings(self) -> list[str]:
        """Other routings that its classes can be routed by."""
        return exchangeable_routings(self.network)

    @property
    def routing(self) -> Any:
        """The one that is told of."""
        return self.network.routing

    @property
    def decodes(self) -> bool:
        """Whether its decoder draws poses of classes."""
        blind = self.verdict is not None and self.verdict.blind
        return getattr(self.network, "decoder", None) is not None and not blind

    def warm_up(self) -> None:
        """Finds what the first look would wait for."""
        _ = self.extents

    def there(self, activation: Tensor) -> list[int]:
        """The labels of the classes that it predicts, from their activations (E,)."""
        task = self.classifier.task
        if isinstance(task, SeveralLabels):
            present = task.predicted_classes(activation[None])[0]
        else:
            present = torch.arange(len(activation)) == activation.argmax()
        return present.nonzero()[:, 0].tolist()

    def look(
        self, pixels: Tensor, label: Label = None, counted: bool = False
    ) -> "Look | _Shown":
        """A look at unprepared pixels (C, H, W); a `ValueError` if its activations or
        poses are not finite.
        """
        view = self.classifier.preprocess.evaluate(pixels[None])
        classes = self.classifier.classes
        selection = Selection(view.images, view.pictures, classes=classes)
        observation = Observation(self.network, selection, self.extents, self.verdict)
        # The network runs here, where no comparison can have given it another routing.
        check_finite(self.name, "activations", observation.activation)
        if observation.classes is not None:
            check_finite(self.name, "poses", observation.classes.pose)
        return Look(self.name, observation, label, counted)

    def read(self, text: str, label: Label = None) -> _Shown:
        """A look at a text, with what each of its words speaks for; a `ValueError` if
        the network takes none.
        """
        words = self.classifier.reader.followed(self.network, text)
        check_finite(self.name, "activations", words.activation)
        answer = {
            "label": label,
            "text": text,
            "there": self.there(words.activation),
            "activations": words.to_json(),
        }
        return _Shown(self.name, answer, "is of a text, which has no pictures")

    def sample(self, place: int) -> "Look | _Shown":
        """A look at one of its samples."""
        assert self.samples is not None
        example = self.samples[place]
        # A network without a capsule for each thing says which classes there are, and
        # not how often.
        counted = example.parts is not None and counts_things(self.network)
        label = _counted(example) if counted else _label(example.labels[0])
        return self.look(example.inputs[0], label, counted)


class _OfTexts(_Opened):
    """A network whose words are followed to the classes."""

    reads = True
    extents: Mapping[str, Extent] = {}
    verdict = None
    routings: list[str] = []  # noqa: RUF012

    def sample(self, place: int) -> _Shown:
        """A look at one of its test texts."""
        assert self.samples is not None
        label = _label(self.samples.labels[place])
        return self.read(self.samples.written(place), label)


class _TakenApart(_Opened):
    """A network whose task shows images in its own way, without classes."""

    apart = True
    extents: Mapping[str, Extent] = {}
    verdict = None
    routings: list[str] = []  # noqa: RUF012
    decodes = False

    @property
    def routing(self) -> Any:
        """The first one that there is."""
        modules = self.network.modules()
        return next(module for module in modules if isinstance(module, Routing))

    def look(
        self, pixels: Tensor, label: Label = None, counted: bool = False
    ) -> _Shown:
        """A look at unprepared pixels (C, H, W), as the task shows them."""
        view = self.classifier.preprocess.evaluate(pixels[None])
        picture = view.pictures[0]
        shown = self.classifier.task.explored(self.network, view.images, picture)
        answer = {"apart": shown.to_json(), "empty": not bool(picture.any())}
        return _Shown(self.name, answer, "is of a picture without classes")

    def sample(self, place: int) -> _Shown:
        """A look at one of its test images."""
        assert self.samples is not None
        return self.look(self.samples[place].inputs[0])


def _label(labels: Tensor) -> Label:
    """The label of one input: a class, or a mask (E,) of its classes."""
    return tuple(labels.nonzero()[:, 0].tolist()) if labels.ndim else int(labels)


def _counted(batch: Batch) -> tuple[int, ...]:
    """The classes of the first image of a batch, each as often as it is there."""
    labels, boxes = true_things(batch)
    return tuple(sorted(labels[0][box_area(boxes[0]) > 0].tolist()))


def _opened(
    name: str, classifier: Classifier, samples: "Callable[[], Examples | None] | None"
) -> _Opened:
    """A network as the page shows it; a `ValueError` if there is nothing to show."""
    if why := why_unexplored(name, classifier):
        raise ValueError(why)
    if classifier.task.explores:
        return _TakenApart(name, classifier, samples)
    kind_of_look = _OfTexts if classifier.reader.written else _Opened
    return kind_of_look(name, classifier, samples)


def why_unexplored(name: str, classifier: Classifier) -> str:
    """Return why there is nothing to explore in a network; empty if there are capsules
    over images, or which lead from words to classes, or something that its task shows.
    """
    why = classifier.reader.unexplored(classifier.network)
    if classifier.task.explores or not why:
        return ""
    kind = type(classifier.network).__name__
    return f"{name}: the page has nothing to show of {kind}, {why}"


def check_finite(network: str, description: str, numbers: Tensor) -> None:
    """Raise a `ValueError` if what a network gives an input is not finite."""
    if not numbers.isfinite().all():
        raise ValueError(
            f"{network} gives this input {description} that are not finite, so nothing "
            "can be shown"
        )


class Explorer:
    """Opened networks, and their latest looks at images.

    All exhibits of an image use one look, and each exhibit is made once. Several
    threads may use an explorer.

    Args:
        classifiers: the networks, all with capsules, by the names to show.
        samples: functions that read images to try, unprepared, by the names of some of
            the networks.

    Raises:
        ValueError: if there are no networks, or one has no capsules.

    Example:
        >>> from torchcaps_lab.explore import Explorer
        >>> explorer = Explorer(
        ...     {"digits": tc.Classifier(tc.create_model("capsnet_digits"))}
        ... )
        >>> explorer.networks()
        ['digits']
    """

    def __init__(
        self,
        classifiers: Mapping[str, Classifier],
        samples: "Mapping[str, Callable[[], Examples | None]] | None" = None,
    ) -> None:
        if not classifiers:
            raise ValueError("classifiers must hold at least one network, got none")
        readers = samples or {}
        # The page asks by the names that it can write: a folder's need not be text.
        self._networks = {
            plain(name): _opened(plain(name), classifier, readers.get(name))
            for name, classifier in classifiers.items()
        }
        self._looks: OrderedDict[str, Look | _Shown] = OrderedDict()
        self._count = secrets.randbits(
            40
        )  # a page that was open before the server started has numbers of its own
        self._lock = RLock()

    def networks(self) -> list[str]:
        """Return the names of the networks, the initial one first."""
        return list(self._networks)

    def warm_up(self) -> None:
        """Loads what the first look would wait for: test images of the first network,
        extents of layers, kernels.
        """
        opened = next(iter(self._networks.values()))
        # Raised again when they are asked for.
        with self._lock, suppress(ValueError, OSError):
            self._described(opened)
            opened.warm_up()

    def network(self, name: str) -> dict[str, Any]:
        """Return everything that the page shows about a network; reads its test images.

        Raises:
            ValueError: if there is no such network.
        """
        with self._lock:
            return self._described(self._opened(name))

    def look(self, network: str, file: bytes, name: str = "the picture") -> str:
        """Show a network the picture in a file, and return the number of the look.

        Raises:
            ValueError: if there is no such network, or the bytes are not a picture, or
                it is too large, or what the network gives it is not finite.
        """
        with self._lock:
            opened = self._opened(network)
            pixels = opened.classifier.reader.uploaded(file, name)
            return self._store(opened.look(pixels))

    def read(self, network: str, text: str, label: Label = None) -> str:
        """Show a network a text, and return the number of the look.

        Args:
            network: its name.
            text: at most :data:`MOST_LETTERS` letters.
            label: its class or classes, where that is known.

        Raises:
            ValueError: if there is no such network or it takes pictures, or the text
                has no words or too many letters, or what the network gives it is not
                finite.
        """
        with self._lock:
            opened = self._opened(network)
            if len(text) > MOST_LETTERS:
                raise ValueError(
                    f"a text must have at most {MOST_LETTERS:,} letters, got "
                    f"{len(text):,}"
                )
            return self._store(opened.read(text, label))

    def sample(self, network: str, label: int | None = None, number: int = 0) -> str:
        """Show a network one of its test images, or texts, and return the number of the
        look.

        Args:
            network: its name.
            label: the class of the image, from 0; None for any.
            number: which of them, modulo how many there are.

        Raises:
            ValueError: if there is no such network or class, or it has no test images,
                or what the network gives the image is not finite.
        """
        with self._lock:
            opened = self._opened(network)
            if opened.samples is None or not len(opened.samples):
                raise ValueError(f"there are no test images for {network}")
            places: Sequence[int] = range(len(opened.samples))
            if label is not None:
                places = opened.places.get(label, ())
            if not places:
                classes = [label for label, places in opened.places.items() if places]
                raise ValueError(
                    f"class must be one of {classes}, which have test images, got "
                    f"{label}"
                )
            return self._store(opened.sample(places[number % len(places)]))

    def forget(self, look: str) -> None:
        """Drops a look that nobody asks about any more, so that those of others are
        kept longer; or does nothing.
        """
        with self._lock:
            self._looks.pop(look, None)

    def answer(self, look: str) -> dict[str, Any]:
        """The first results of a look: network, label, activations, and which classes
        are predicted.

        For an image also boxes, if the network predicts them, and whether it is of any
        class, if that is known; for a text, how its words support the classes.

        Raises:
            ValueError: if there is no such look.
        """
        taken = self._any_look(look)
        header = {"look": look, "network": taken.network}
        if isinstance(taken, _Shown):
            return {**header, **taken.answer}
        seen = taken.observation
        opened = self._networks[taken.network]
        least = getattr(opened.classifier.task, "threshold", 0.5)
        class_boxes: Any = list_exhibits()["class_boxes"]
        boxes = self._exhibit(
            look, "boxes", None, lambda seen: class_boxes.of(seen, least)
        )
        none = None
        for doubt in opened.classifier.doubts.values():
            none = self._exhibit(look, "none", None, doubt.shown)
        return {
            **header,
            "label": taken.label,
            "counted": taken.counted,
            "there": opened.there(seen.activation[0]),
            "activations": self._exhibit(
                look, "activations", None, ClassActivations.of
            ),
            "boxes": boxes,
            "none": none,
            "empty": not bool(seen.selection.pictures.any()),
        }

    def has_poses(self, look: str) -> bool:
        """Whether there are poses of classes to show of a look."""
        return isinstance(self._any_look(look), Look)

    def pose(self, look: str, target: int) -> dict[str, Any] | None:
        """:class:`~torchcaps_lab.report.pictures.ClassPose`; None without a decoder."""
        return self._exhibit(look, "pose", target, ClassPose.of)

    def assignments(self, look: str, target: int) -> dict[str, Any] | None:
        """:class:`~torchcaps_lab.report.pictures.Assignments`; None if no children lie
        on a grid.
        """
        return self._exhibit(look, "assignments", target, Assignments.of)

    def routing(self, look: str) -> dict[str, Any] | None:
        """:class:`~torchcaps_lab.report.pictures.RoutingSteps`; None if no votes can be
        seen.
        """
        return self._exhibit(look, "routing", None, RoutingSteps.of)

    def decode(
        self, look: str, pose: list[float], target: int | None = None
    ) -> list[str]:
        """Draw a pose in the capsule of a class, or of each class, as ``data:``
        addresses.

        Raises:
            ValueError: if there is no such look or class, or the pose has another size
                or is not finite.
            RuntimeError: if the network has no decoder.
        """
        numbers = torch.tensor([pose], dtype=torch.float32)
        if not numbers.isfinite().all():
            raise ValueError("pose must be finite numbers")
        with self._lock:
            taken = self._look(look)
            count = len(self._networks[taken.network].classifier.classes)
            targets = torch.arange(count) if target is None else torch.tensor([target])
            return pngs(
                taken.observation.draw(numbers.expand(len(targets), -1), targets)
            )

    def compare(
        self, look: str, target: int, routing: str | None, steps: int | None
    ) -> dict[str, Any]:
        """Route the same image and transforms to the classes with another routing:
        activations, assignments, pose.

        Args:
            look: the number of the look.
            target: the class to ask about.
            routing: one of those that :meth:`network` lists; None for the network's
                own.
            steps: how many; None for the default of the routing.

        Raises:
            ValueError: if there is no such look, class or routing, or the routing
                cannot take this number of steps.
        """
        if steps is not None and not 1 <= steps <= MOST_STEPS:
            raise ValueError(f"steps must be 1 to {MOST_STEPS}, got {steps}")

        def made(taken: Look) -> dict[str, Any]:
            with other_routing(self._networks[taken.network].network, routing, steps):
                seen = _new_observation(taken.observation, target)
                shown = {
                    "activations": ClassActivations.of(seen),
                    "assignments": Assignments.of(seen),
                }
                drawn = None
                if taken.observation.decodes:
                    drawn = pngs(seen.reconstructions[0])
            return {
                name: exhibit and exhibit.to_json() for name, exhibit in shown.items()
            } | {"picture": drawn}

        return self._once(look, ("compare", target, routing, steps), made)

    def swap(
        self, look: str, target: int, other: str, other_target: int
    ) -> dict[str, Any] | None:
        """:class:`~torchcaps_lab.report.pictures.PoseSwap` of two looks; None without a
        decoder.

        Raises:
            ValueError: if there are no such looks or classes, or they belong to two
                networks.
        """
        with self._lock:
            first = self._look(look)
            second = self._look(other)
            if first.network != second.network:
                raise ValueError(
                    f"poses are swapped within one network, got {first.network} and "
                    f"{second.network}"
                )
            exhibit = PoseSwap.of(
                _asked_about(first, target), _asked_about(second, other_target)
            )
            return None if exhibit is None else exhibit.to_json()

    def _described(self, opened: _Opened) -> dict[str, Any]:
        network = opened.network
        classifier = opened.classifier
        routing = opened.routing
        verdict = opened.verdict
        return {
            "name": opened.name,
            "model": type(network).__name__,
            "classes": list(classifier.classes),
            "image_shape": list(classifier.image_shape),
            "decodes": opened.decodes,
            "decides": verdict is None or not verdict.even,
            "verdict": None
            if verdict is None
            else {"routing": verdict.of_routing, "decoder": verdict.of_decoder},
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            "routing": type(routing).__name__,
            "steps": getattr(routing, "steps", None),
            "routings": [
                {
                    "name": parameter,
                    "steps": getattr(ROUTINGS[parameter](), "steps", None),
                }
                for parameter in opened.routings
            ],
            "draws": not opened.reads and classifier.image_shape[0] in (1, 3),
            "reads": opened.reads,
            "apart": opened.apart,
            "scenes": counts_things(network),
            "samples": 0 if opened.samples is None else len(opened.samples),
            "sorted": bool(opened.places),
            "meanings": network.extra.get("meanings", {}),
        }

    def _opened(self, network: str) -> _Opened:
        if network not in self._networks:
            raise ValueError(
                f"network must be one of {list(self._networks)}, got {network!r}"
            )
        return self._networks[network]

    def _any_look(self, look: str) -> Look | _Shown:
        with self._lock:
            if look not in self._looks:
                raise ValueError(f"look {look!r} is forgotten: show it again")
            self._looks.move_to_end(look)
            return self._looks[look]

    def _look(self, look: str) -> Look:
        taken = self._any_look(look)
        if isinstance(taken, _Shown):
            raise ValueError(f"look {look!r} {taken.why_no_pose}")
        return taken

    def _store(self, look: Look | _Shown) -> str:
        """Stores a look and returns its number; of too many looks the oldest is
        dropped.
        """
        self._count += 1
        number = str(self._count)
        self._looks[number] = look
        while len(self._looks) > MOST_LOOKS:
            self.forget(next(iter(self._looks)))
        return number

    def _exhibit(
        self,
        look: str,
        kind: str,
        target: int | None,
        make: "Callable[[Observation], Exhibit | None]",
    ) -> Any:
        """An exhibit of a look, for JSON, made once."""

        def made(taken: Look) -> dict[str, Any] | None:
            exhibit = make(
                taken.observation if target is None else _asked_about(taken, target)
            )
            return None if exhibit is None else exhibit.to_json()

        return self._once(look, (kind, target), made)

    def _once(
        self, look: str, key: tuple[Any, ...], make: Callable[[Look], Any]
    ) -> Any:
        """What is made of a look, when it is first asked for."""
        with self._lock:
            taken = self._look(look)
            if key not in taken.made:
                taken.made[key] = make(taken)
            return taken.made[key]


def _asked_about(look: Look, target: int) -> Observation:
    """The look, asked about a class; raises a `ValueError` if there is no such
    class.
    """
    asked = look.observation.asked(torch.tensor([target]))
    _ = asked.target
    return asked


def _new_observation(observation: Observation, target: int) -> Observation:
    """A new look at the same image, asked about a class."""
    chosen = observation.asked(torch.tensor([target])).selection
    return Observation(observation.model, chosen, observation.extents)
