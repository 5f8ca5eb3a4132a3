"""What an exhibit is, and how it becomes JSON."""

import base64
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from io import BytesIO
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NamedTuple,
    TypeVar,
    dataclass_transform,
)

import numpy as np
import torch
from torch import Tensor

from torchcaps_lab.data.examples import Examples
from torchcaps_lab.kinds import SharedRegistry

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from torchcaps_lab.report.observe import Observation, Tested

Kind = TypeVar("Kind", bound="Exhibit")


class Table(NamedTuple):
    """Rows of words, each as long as the header, if there is one.

    Example:
        >>> from torchcaps_lab.report import Table
        >>> Table([["accuracy", "99.00 %"]], header=["measure", "value"]).rows[0]
        ['accuracy', '99.00 %']
    """

    rows: list[list[str]]
    header: list[str] | None = None


class Picture(NamedTuple):
    """A figure with the name of its file, described for those who cannot see it.

    Example:
        >>> from torchcaps_lab.report import Picture, new_figure
        >>> picture = Picture("cat.png", "A cat", new_figure(4, 3))
        >>> picture.file
        'cat.png'
    """

    file: str
    description: str
    figure: "Figure"


@dataclass(frozen=True, eq=False, kw_only=True)
class Exhibit:
    """Something to show: plain data that a picture, a page, a notebook or a browser
    draws in its own way.

    A subclass has :func:`register_exhibit` above it, which makes it a frozen dataclass,
    and stands in one file with how it is drawn. Its fields are numbers, text, tensors
    on the CPU or named tuples of these; one of images has ``metadata=PNG``. A class
    method ``of`` usually makes it of what it needs to know, or gives None where there
    is nothing to show. One with a place in reports also defines :meth:`of_images` or
    :meth:`of_test`, or is :class:`OfImages`.

    Attributes:
        title: its heading.
        text: what to see in it, in a few sentences.
        kind: the name that it is registered by.
        place: in the order of a report; None for one that is in none.
        drawings: the names of its pictures, as :meth:`pathlib.Path.glob` takes them.
        folded: whether a page shows only its title until that is clicked, unless it is
            the first.
        examples: the class of the examples whose test it shows.

    Example:
        >>> from torchcaps_lab.report import Exhibit, register_exhibit
        >>> @register_exhibit("all_lengths")
        ... class Lengths(Exhibit):
        ...     lengths: torch.Tensor
        >>> exhibit = Lengths(
        ...     title="Lengths",
        ...     text="How long they are.",
        ...     lengths=torch.tensor([0.5, 0.25]),
        ... )
        >>> exhibit.to_json()["lengths"]
        [0.5, 0.25]
    """

    title: str
    text: str
    kind: ClassVar[str] = ""
    place: ClassVar[float | None] = None
    drawings: ClassVar[str] = ""
    folded: ClassVar[bool] = False
    examples: ClassVar[type[Examples]] = Examples

    @classmethod
    def of_images(
        cls, shown: "Observation", examples: "Observation"
    ) -> "Exhibit | None":
        """What every report of images shows of this kind; None for nothing.

        Args:
            shown: of the images to show.
            examples: of one image of each class, titled with its name where that is
                known.
        """
        return None

    @classmethod
    def of_test(cls, tested: "Tested") -> "Iterable[Exhibit | None]":
        """What the report of a classifier shows of this kind; None for nothing.

        It is asked only of a test on examples of the class :attr:`examples`.
        """
        return ()

    def draw(self) -> "Iterator[Picture]":
        """Its pictures, each drawn when it is asked for; an exhibit without any has
        none.
        """
        yield from ()

    def table(self) -> Table | None:
        """What reads best in rows; None if nothing does."""
        return None

    def html(self) -> str | None:
        """What a page shows besides pictures and the table, as HTML in which all text
        is escaped; None for nothing.
        """
        return None

    def to_json(self) -> dict[str, Any]:
        """All of it as objects, lists, strings and numbers; :func:`json.dumps` takes it
        with ``allow_nan=False``.

        ``kind`` and each field, by name: images as PNG in ``data:`` addresses, all
        other tensors as nested lists of numbers with 6 digits, named tuples as objects.
        What is not finite is null.
        """
        parts = {}
        for part in fields(self):
            parts[part.name] = part.metadata.get("plain", plain)(
                getattr(self, part.name)
            )
        return {"kind": self.kind, **parts}


class OfImages(Exhibit):
    """An exhibit that every report shows of its images: a subclass defines
    ``of(observation)``, None for nothing.
    """

    @classmethod
    def of(cls, observation: "Observation") -> "Exhibit | None":
        """Make the exhibit of the images of an observation."""
        raise NotImplementedError(f"{cls.__name__} must define of(observation)")

    @classmethod
    def of_images(
        cls, shown: "Observation", examples: "Observation"
    ) -> "Exhibit | None":
        """Make the exhibit of the images to show."""
        return cls.of(shown)


EXHIBITS = SharedRegistry("kind of exhibit", Exhibit)
"""The exhibits that a report may show, by kind."""


@dataclass_transform(
    frozen_default=True,
    eq_default=False,
    kw_only_default=True,
    field_specifiers=(field,),
)
def register_exhibit(
    kind: str, place: float | None = None, drawings: str = ""
) -> Callable[[type[Kind]], type[Kind]]:
    """Make an :class:`Exhibit` a frozen dataclass, known by the name of its kind; a
    name taken is a `ValueError`.

    Args:
        kind: its name.
        place: in the order of reports, which show every exhibit that has one: the first
            of the package has 10, the next 20, and so on.
        drawings: the names of its pictures, as :meth:`pathlib.Path.glob` takes them: a
            new report replaces them.
    """

    def register(exhibit: type[Kind]) -> type[Kind]:
        if "__dataclass_fields__" not in vars(exhibit):
            exhibit = dataclass(frozen=True, eq=False, kw_only=True)(exhibit)
        EXHIBITS.register(kind)(exhibit)
        exhibit.kind = kind
        exhibit.place = place
        exhibit.drawings = drawings
        return exhibit

    return register


def list_exhibits() -> dict[str, type[Exhibit]]:
    """Return all exhibits by kind: those with a place first, in the order of a report."""
    return dict(
        sorted(
            EXHIBITS.items(),
            key=lambda named_kind: (
                math.inf if named_kind[1].place is None else named_kind[1].place
            ),
        )
    )


def plain(value: Any) -> Any:
    """The value in a form that JSON can hold: numbers that are not finite as None,
    unknown objects as their text.
    """
    if isinstance(value, Tensor):
        return _rounded(value) if value.is_floating_point() else value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {_text(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return _text(value)


def _text(value: Any) -> str:
    return (
        str(value).encode(errors="backslashreplace").decode()
    )  # names of files may hold undecoded bytes


def _rounded(numbers: Tensor) -> Any:
    """The numbers with 6 digits, in nested lists."""
    flat = [
        float(f"{number:.6g}") if math.isfinite(number) else None
        for number in numbers.flatten().tolist()
    ]
    return np.array(flat, dtype=object).reshape(numbers.shape).tolist()


def pngs(images: Tensor) -> Any:
    """Images (..., C, H, W) in [0, 1] as ``data:`` addresses, in nested lists."""
    if images.ndim > 3:
        return [pngs(image) for image in images]
    return "data:image/png;base64," + base64.b64encode(png(images)).decode()


PNG = {"plain": pngs}
"""The metadata of a field of images (..., C, H, W)."""


def pixels(image: Tensor) -> Tensor:
    """What is shown of an image (C, H, W), (H, W, 3) in [0, 1]: the first three
    channels in colours, of fewer one.
    """
    image = image.detach().cpu().float().clamp(0, 1)
    image = image[:3] if len(image) >= 3 else image[:1].expand(3, -1, -1)
    return image.permute(1, 2, 0)


def png(image: Tensor) -> bytes:
    """A PNG file with 8 bits a value, in grey if the image (C, H, W) has one or two
    channels; the same always.
    """
    from PIL import Image

    shown = pixels(image).nan_to_num().mul(255).round().to(torch.uint8)
    file = BytesIO()
    Image.fromarray((shown if len(image) >= 3 else shown[..., 0]).numpy()).save(
        file, "PNG"
    )
    return file.getvalue()
