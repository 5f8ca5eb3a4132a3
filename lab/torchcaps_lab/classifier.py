"""A trained network, ready to be used: with its preprocessing, the names of its classes
and its task.
"""

import json
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias, cast, overload

import torch
from torch import Tensor

from torchcaps.models import ClassifierNetwork, Prediction, load_pretrained
from torchcaps.models.base import in_precision_of
from torchcaps.numerics import check_size
from torchcaps.optional_imports import needing
from torchcaps.whole import LARGEST_NOTE, network_folder, owned, read_json, write_whole
from torchcaps_lab.card import Card
from torchcaps_lab.data import Examples, Preprocess
from torchcaps_lab.data.reader import Read, Unread
from torchcaps_lab.look import Fit
from torchcaps_lab.report.cards import facts_card
from torchcaps_lab.tasks import Answer, Examination, Task, as_task
from torchcaps_lab.tasks.labels import finite_warning
from torchcaps_lab.tasks.things import finds_things, with_things

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image as PILImage

    Image: TypeAlias = str | Path | bytes | PILImage | np.ndarray | Tensor


class Classifier:
    """Classify images of any kind and size with a trained network.

    ``Classifier.open("runs/photos")`` opens a run of ``torchcaps train``; so does the
    folder of a saved network, the name of a trained network in the package,
    ``mnist/efficient_capsnet``, or a repository on the Hugging Face Hub. A classifier
    of a network at hand: ``Classifier(network, classes=[...])``.

        answer = tc.Classifier.open("runs/photos")("new.jpg")
        answer.classes, answer.probabilities["cat"], answer.poses["cat"]

    Args:
        network: the trained network, which is put into evaluation mode.
        classes: the names of the classes; default: those that were saved with the
            network, or else the numbers of the classes.
        preprocess: how the network's images are prepared; default: as was saved with
            it, or else not at all.
        image_shape: (C, H, W) of images before they are prepared; default: as saved, or
            else that of the network.
        task: what the network is for, its name, or its name and arguments; default: as
            saved, or else classification.
        resize: how images of another size get to ``image_shape``: keep the aspect ratio
            and ``pad`` with black, keep it and ``crop`` the centre, or ``stretch``; or
            cut out ``handwriting``; or ``keep`` their size, for a network of any size;
            default: as saved, or else ``pad``.

    Attributes:
        run: the folder of the run that it was opened from; None if it was not.

    Raises:
        ValueError: if there are not as many names as classes, there is no such task, or
            ``image_shape`` does not lead to what the network takes.

    Example:
        >>> from torchcaps_lab.data import Digits
        >>> digits = Digits().test
        >>> classifier = tc.Classifier(
        ...     tc.create_model("capsnet_digits"), classes=digits.classes
        ... )
        >>> answers = classifier.predict(digits.inputs[:2])
        >>> len(answers), len(answers[0].classes), answers[0].poses["3"].shape
        (2, 1, torch.Size([16]))
    """

    def __init__(
        self,
        network: ClassifierNetwork,
        *,
        classes: Sequence[str] | None = None,
        preprocess: Preprocess | None = None,
        image_shape: tuple[int, int, int] | None = None,
        task: Task | str | dict[str, Any] | None = None,
        resize: Fit | None = None,
    ) -> None:
        if not isinstance(network, ClassifierNetwork):
            raise TypeError(
                "network must be a network that classifies, got "
                f"{network if isinstance(network, str | Path) else type(network).__name__!r}"
                ": Classifier.open(path) opens a saved one or a run"
            )
        card = Card.of(network)
        self.network = network.eval()
        self.classes = tuple(
            classes or card.classes or (str(label) for label in range(network.classes))
        )
        self.task = as_task(task or card.task)
        self.reader = card.reader.changed(
            preprocess=preprocess, image_shape=image_shape, resize=resize
        )
        self.calibration = card.calibration
        self.doubts = dict(card.doubts)
        self.extra = dict(card.extra)
        self.run: Path | None = None
        self.named = bool(classes or card.classes)
        self.reader.check(network)
        if len(self.classes) != network.classes:
            raise ValueError(
                f"classes must name the {network.classes} classes of the network, got "
                f"{self.classes}"
            )
        if len(set(self.classes)) != network.classes:
            raise ValueError(f"classes must have different names, got {self.classes}")

    @property
    def card(self) -> Card:
        """What is saved with the network, so that it is opened as this classifier."""
        return Card(
            self.classes if self.named else None,
            self.task,
            self.reader,
            self.calibration,
            self.doubts,
            self.extra,
        )

    @property
    def preprocess(self) -> Preprocess:
        """How inputs are prepared for the network."""
        return self.reader.preprocess

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images that are read, before they are prepared."""
        shape: tuple[int, int, int] = getattr(self.reader, "image_shape", (1, 1, 1))
        return shape

    @property
    def resize(self) -> Fit | None:
        """How images get to ``image_shape``; None for other kinds of input."""
        fit: Fit | None = getattr(self.reader, "resize", None)
        return fit

    @classmethod
    def open(
        cls, source: str | Path, device: torch.device | str = "cpu"
    ) -> "Classifier":
        """Open a trained network; executes no code that comes with it.

        Args:
            source: the folder of a run, or of a saved network, or the name of a trained
                network in the package, or a repository ``owner/name`` on the Hub.
            device: the device to compute on.

        Raises:
            FileNotFoundError: if there is no network, or the run has not ended.
            TypeError: if the source is not a path.
            ValueError: if it is damaged, or needs a module that was not imported.
        """
        network = load_pretrained(source)
        try:
            classifier = cls(network).to(device)
        except (TypeError, LookupError, AttributeError, ArithmeticError) as error:
            raise ValueError(
                f"what was saved with the network in {source} is damaged: {error!r}"
            ) from error
        folder = Path(source)
        classifier.run = folder if network_folder(folder) != folder else None
        return classifier

    @property
    def summary(self) -> dict[str, Any]:
        """Return the summary of the run, ``summary.json``; empty without a run, or if
        it has not ended.

        Raises:
            ValueError: if the file is damaged.
        """
        path = None if self.run is None else self.run / "summary.json"
        if path is None or not path.is_file():
            return {}
        summary: dict[str, Any] = read_json(path, LARGEST_NOTE)
        return summary

    def _facts(self) -> dict[str, str]:
        """What people want to know of it first."""
        weights = sum(parameter.numel() for parameter in self.network.parameters())
        facts = {
            "network": f"{type(self.network).__name__}, {weights:,} parameters",
            "task": self.task.name,
        }
        facts["classes"] = (
            f"{len(self.classes)}: "
            f"{', '.join(self.classes[:5])}{', ...' * (len(self.classes) > 5)}"
        )
        facts |= self.reader.facts()
        accuracy = self.summary.get(f"test_{self.task.main.name}")
        if isinstance(accuracy, float):
            facts[f"test {self.task.main.name}"] = self.task.main.text(accuracy)
        return facts if self.run is None else {**facts, "run": str(self.run)}

    def __repr__(self) -> str:
        return (
            "<Classifier: "
            f"{'; '.join(f'{name} {fact}' for name, fact in self._facts().items())}>"
        )

    def _repr_html_(self) -> str:
        return facts_card(self._facts())

    def push_to_hub(
        self, repo: str, *, licence: str = "other", private: bool = False
    ) -> str:
        """Upload this classifier to the Hugging Face Hub, with a card;
        ``Classifier.open(repo)`` opens it again.

        The card has the network, the classes and the licence, and for a run its results
        on the test images and a picture of them. No image of the data is uploaded. Log
        in before: ``hf auth login``.

        Args:
            repo: ``owner/name``, made if it is missing.
            licence: the licence of the weights, by its name on the Hub, such as
                ``apache-2.0``.
            private: makes a repository that only its owner sees; one that is there
                stays as it is.

        Returns:
            The name of the repository, with its owner.

        Raises:
            ImportError: if ``huggingface_hub`` is not installed.
        """
        with needing("networks of the Hugging Face Hub", "torchcaps[hub]"):
            from huggingface_hub import HfApi

        api = HfApi()
        name: str = api.create_repo(repo, private=private, exist_ok=True).repo_id
        with TemporaryDirectory() as folder:
            self.network.save_pretrained(folder, **self.card.saved())
            # Of the pictures of a report, one that shows no image: those of the data
            # may be private.
            if self.run is None:
                picture = None
            else:
                picture = owned(self.run, "report", "confusion_matrix.png")
            drawn = picture is not None and picture.is_file()
            if picture is not None and drawn:
                shutil.copy(picture, folder)
            write_whole(Path(folder, "README.md"), self._card(name, licence, drawn))
            api.upload_folder(repo_id=name, folder_path=folder)
        return name

    def _card(self, repo: str, licence: str, drawn: bool) -> str:
        """The card of a repository on the Hub, its README.md."""
        head = {
            "license": licence,
            "library_name": "torchcaps",
            "tags": ["capsule-networks"],
        }
        figures = {
            name: f"{value:.4g}"
            for name, value in self.summary.items()
            if isinstance(value, float)
        }
        facts = {
            name: fact
            for name, fact in {**self._facts(), **figures}.items()
            if name != "run"
        }
        return "\n".join(
            [
                "---",
                *(f"{name}: {json.dumps(value)}" for name, value in head.items()),
                f"---\n\n# {repo.split('/')[-1]}\n",
                *(f"- {name}: {fact}" for name, fact in facts.items()),
                "\n```python\nimport torchcaps as tc\n\nclassifier = "
                f'tc.Classifier.open("{repo}")\n```\n',
                *(["![Confusion matrix](confusion_matrix.png)\n"] if drawn else []),
            ]
        )

    def to(self, device: torch.device | str) -> "Classifier":
        """Move the network to a device, and return this classifier."""
        self.network.to(device)
        return self

    @property
    def device(self) -> torch.device:
        """Return the device of the network."""
        return next((p.device for p in self.network.parameters()), torch.device("cpu"))

    # An array or a tensor is one image or several, by its axes.
    @overload
    def predict(
        self,
        images: "str | Path | bytes | PILImage",
        resize: Fit | None = None,
        batch_size: int = 64,
    ) -> Answer: ...

    @overload
    def predict(
        self,
        images: list[Any] | tuple[Any, ...],
        resize: Fit | None = None,
        batch_size: int = 64,
    ) -> list[Answer]: ...

    @overload
    def predict(
        self,
        images: "Image | Sequence[Image]",
        resize: Fit | None = None,
        batch_size: int = 64,
    ) -> Answer | list[Answer]: ...

    def predict(
        self,
        images: "Image | Sequence[Image]",
        resize: Fit | None = None,
        batch_size: int = 64,
    ) -> Answer | list[Answer]:
        """Classifies images.

        Args:
            images: one image, or several of any sizes: a list, or a tensor (B, C, H,
                W), or an array (B, H, W, C). One image is the path of a file, the
                bytes of one, a PIL image, an array (H, W) or (H, W, C), or a tensor
                (C, H, W). Numbers are bytes, 0..255, or floating point in [0, 1]. Grey
                images become colour for a network that takes three channels, colour
                ones grey for one that takes one, and transparent parts black. For a
                network that takes words, an image is a text; for one that takes series,
                the file of a sound, or an array or tensor (C, L).
            resize: how images of another size get to that of the network: ``pad``,
                ``crop``, ``stretch`` or ``handwriting``, or ``keep`` for a network of
                any size; default: as this classifier does, which is as it was trained.
            batch_size: how many crops of images at a time.

        Returns:
            One :class:`~torchcaps_lab.tasks.Answer` for one image, a list of them for
            several.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if an image cannot be read, or does not fit the network, or a
                text has no words; or ``batch_size`` is not a whole number, 1 or more.
            UserWarning: as a warning, if the network knows none of the words of a text,
                or activations are not finite.
        """
        several = _is_several(images)
        each: Iterable[Any] = cast(Iterable[Any], images) if several else [images]
        answers = [answer for _, answer in self.stream(each, resize, batch_size)]
        return answers if several else answers[0]

    __call__ = predict

    def stream(
        self,
        images: "Iterable[Image]",
        resize: Fit | None = None,
        batch_size: int = 64,
        skip: "Callable[[Image, Exception], None] | None" = None,
    ) -> "Iterator[tuple[Image, Answer]]":
        """Classify images one batch at a time, such as thousands of files, in the
        memory of one batch.

        Args:
            images: paths, or what else :meth:`predict` takes for one image.
            resize: the way to resize, as in :meth:`predict`.
            batch_size: how many crops of images at a time.
            skip: is called with each image that cannot be read, and the error; None
                raises the error.

        Yields:
            Each image with its answer, in their order.
        """
        size = self._at_once(batch_size)
        reader = self.reader
        batch: list[tuple[Any, Read]] = []
        for image in images:
            try:
                looked = self._look(image, resize)
            except (ValueError, OSError) as error:
                if skip is None:
                    raise
                skip(image, error)
                continue
            if batch and not reader.alike(batch[0][1].values, looked.values):
                yield from self._answered(batch)
                batch = []
            batch.append((image, looked))
            if len(batch) >= reader.most(looked.values, size):
                yield from self._answered(batch)
                batch = []
        if batch:
            yield from self._answered(batch)

    def trial(self) -> Answer:
        """Return the answer for a made-up input, which shows what is predicted."""
        (row,) = self.reader.trial(self.network, 1)
        ((_, answer),) = self._answered([(None, Read(row, ""))])
        return answer

    def _at_once(self, batch_size: int) -> int:
        """How many images make a batch of ``batch_size`` crops."""
        check_size(batch_size=batch_size)
        return max(1, batch_size // self.preprocess.crops)

    def _answered(self, batch: list[tuple[Any, Read]]) -> Iterator[tuple[Any, Answer]]:
        together = self.reader.collate([looked.values for _, looked in batch])
        prediction = self._predict(together)
        for line in finite_warning(prediction.activation, "their answers say nothing"):
            warnings.warn(line, stacklevel=3)
        answers = self.task.answers(prediction, self.classes)
        if finds_things(self.network):
            answers = with_things(
                self.network, self.task, self.classes, answers, self._ready(together)
            )
        more: dict[str, Sequence[Any]] = {}
        if self.calibration is not None:
            shares = self.calibration(prediction.activation).tolist()
            more["calibrated"] = [
                dict(zip(self.classes, row, strict=True)) for row in shares
            ]
        for doubt in self.doubts.values():
            pictures = self.preprocess.evaluate(together).pictures
            more |= doubt.of_answers(prediction, pictures)
        for place, ((image, looked), answer) in enumerate(
            zip(batch, answers, strict=True)
        ):
            yield (
                image,
                replace(
                    answer,
                    seen=looked.note or answer.seen,
                    # Of texts there is none.
                    picture=looked.values if looked.values.ndim == 3 else None,
                    **{name: values[place] for name, values in more.items()},
                ),
            )

    def _ready(self, values: Tensor) -> Tensor:
        """Inputs as the network takes them: prepared, in its precision."""
        prepared = self.preprocess.evaluate(values.to(self.device)).images
        return in_precision_of(self.network, prepared)

    def pixels(self, image: "Image", resize: Fit | None = None) -> Tensor:
        """Return one image in the form of this classifier, unprepared: float32
        ``image_shape`` in [0, 1].

        With ``resize="keep"`` it has the image's own height and width. For a text, the
        numbers of its words, int64 (L,). Raises what :meth:`predict` raises.
        """
        return self._look(image, resize).values

    def _look(self, image: "Image", resize: Fit | None) -> Read:
        """The pixels, and a note on how they were made, if that depends on the
        image.
        """
        if isinstance(image, Unread):
            raise image.error
        if resize == "keep":
            self.reader.check_fit(self.network, resize)
        return self.reader.read(image, resize)

    def activations(self, images: Tensor, batch_size: int = 128) -> Tensor:
        """Return the activations of the classes, float32 (B, E) on the CPU, averaged
        over the crops of an image.

        Args:
            images: (B, *image_shape), bytes or floating point in [0, 1]; they are
                prepared here.
            batch_size: how many crops of images at a time.

        Raises:
            ValueError: if the images are no tensor of this shape, or ``batch_size`` is
                not a whole number, 1 or more.
        """
        if not isinstance(images, Tensor):
            raise ValueError(
                f"images must be one tensor, got {type(images).__name__}: predict "
                "takes files and lists"
            )
        if images.shape[1:] != self.image_shape:
            raise ValueError(
                f"images must be (B, {str(self.image_shape)[1:-1]}), got "
                f"{tuple(images.shape)}"
            )
        parts = images.split(self._at_once(batch_size))
        batches_of_activations = [
            self._predict(self.reader.numbers(part)).activation.float().cpu()
            for part in parts
        ]
        if batches_of_activations:
            return torch.cat(batches_of_activations)
        return torch.empty(0, len(self.classes))

    def examine(
        self, images: Examples, batch_size: int = 128, crops: int | None = None
    ) -> Examination:
        """Test the network on images, as its task does.

        Args:
            images: not prepared yet.
            batch_size: how many at a time.
            crops: the number of crops of each image, 1 or 13; default: as saved with the network.

        Raises:
            ValueError: if the images do not fit the network or the task.
        """
        return self.task.examine(self.network, self.prepared(images, crops), batch_size)

    def prepared(self, images: Examples, crops: int | None = None) -> Examples:
        """Prepare images of a data set for the network; raises what :meth:`examine`
        raises.
        """
        images = self.reader.fitted(images)
        images = self.by_name(images)
        options = self.preprocess.config()
        return images.prepared(
            Preprocess.from_config(
                options if crops is None else {**options, "crops": crops}
            )
        )

    def by_name(self, images: Examples) -> Examples:
        """Return the same images with the network's labels for their classes, which are
        matched by name.

        Raises:
            ValueError: if there are images of a class that the network does not have.
                The classes of a network that was saved without their names go by their
                numbers, and then there must be as many.
        """
        if self.named:
            return images.in_classes(self.classes, "images for this network")
        if len(images.classes) != len(self.classes):
            raise ValueError(
                f"the images have {len(images.classes)} classes, "
                f"{list(images.classes)}, the network has "
                f"{len(self.classes)} without names"
            )
        return images

    @torch.no_grad()
    def _predict(self, pixels: Tensor) -> Prediction:
        """The prediction, with activations averaged over the crops of each image,
        everything else of the centre.

        The network computes in its own precision; what it predicts is float32, on the
        CPU.
        """
        crops = self.preprocess.evaluate_crops(pixels.to(self.device))
        prediction = self.network(in_precision_of(self.network, crops.flatten(0, 1)))

        def of_centre(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[:: crops.shape[1]].float().cpu()

        activation = (
            prediction.activation.unflatten(0, crops.shape[:2]).float().mean(1).cpu()
        )
        capsules = prediction.capsules
        if capsules is not None:
            pose = cast(Tensor, of_centre(capsules.pose))
            capsules = capsules._replace(pose=pose, activation=activation)
        return Prediction(
            activation,
            capsules,
            of_centre(prediction.reconstruction),
            of_centre(prediction.boxes),
            masks=of_centre(prediction.masks),
            assigned=of_centre(prediction.assigned),
        )


def _is_several(images: Any) -> bool:
    return isinstance(images, list | tuple) or getattr(images, "ndim", 0) == 4
