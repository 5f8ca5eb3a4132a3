"""Images to look at closely, chosen from a set."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.data.base import ImageSet
from torchcaps.report.findings import Findings
from torchcaps.report.poses import check_labels

COLUMNS = 10
"""Images in a row of pictures."""

_SAMPLES = 20


@dataclass(frozen=True, eq=False)
class Selection:
    """B images, and what to ask a network about each.

    It needs no labels. An image of several classes may be in it several times, with another target each time.

    Attributes:
        images: as the network takes them, (B, C, H, W).
        pictures: to draw, in [0, 1], with the same height and width, (B, C, H, W).
        target: the class that each image is asked about, (B,); None for the most active one.
        titles: one an image, with a line break where one is allowed; () for empty ones.
        order: positions of all images, int64 (B,): the first are shown where there is no room for all. None for the
            order of the images.
        example: the position of the image to show where there is room for one.
        about: what the target is, to be read behind "the capsule of".
        note: a sentence or two about these images and their titles.

    Raises:
        ValueError: if there are no images, or shapes or numbers do not fit.

    Example:
        >>> from torchcaps.report import Selection
        >>> images = torch.rand(2, 1, 8, 8)
        >>> selection = Selection(images, images, target=torch.tensor([3, 1]), titles=("a 3", "a 1"))
        >>> len(selection), selection.title(0)
        (2, 'a 3')
    """

    images: Tensor
    pictures: Tensor
    target: Tensor | None = None
    titles: tuple[str, ...] = ()
    order: Tensor | None = None
    example: int = 0
    about: str = "the class in question"
    note: str = ""

    def __post_init__(self) -> None:
        count = len(self.images)
        if self.images.ndim != 4 or not count:
            raise ValueError(f"images must be (B, C, H, W) of at least one image, got {tuple(self.images.shape)}")
        if len(self.pictures) != count or self.pictures.shape[2:] != self.images.shape[2:]:
            raise ValueError(
                f"pictures must be one for each of {count} images and of their size, "
                f"got {tuple(self.pictures.shape)} for {tuple(self.images.shape)}"
            )
        if self.target is not None:
            check_labels(self.target, count)
        if self.titles and len(self.titles) != count:
            raise ValueError(f"titles must be one for each of {count} images, got {len(self.titles)}")
        if self.order is not None and sorted(self.order.tolist()) != list(range(count)):
            raise ValueError(f"order must hold each position of {count} images once, got {self.order.tolist()}")
        if not 0 <= self.example < count:
            raise ValueError(f"example must be the position of one of {count} images, got {self.example}")

    def __len__(self) -> int:
        return len(self.images)

    def title(self, place: int) -> str:
        """The title of one image."""
        return self.titles[place] if self.titles else ""

    def titles_at(self, chosen: Tensor | None = None) -> tuple[str, ...]:
        """The titles of the images at these positions; of all by default."""
        return tuple(self.title(place) for place in (range(len(self)) if chosen is None else chosen.tolist()))

    def first(self, count: int) -> Tensor:
        """Positions of at most ``count`` images, the first ones by the order, ascending."""
        order = torch.arange(len(self)) if self.order is None else self.order
        return order[:count].sort().values


def select_samples(findings: Findings, image_set: ImageSet) -> Selection:
    """The first images of each class, up to 20 together, asked about the class that was said; sorted by class.

    The example is the clearest of the first ten.
    """
    chosen = findings.samples(_SAMPLES)
    rank = {index: place for place, index in enumerate(findings.ranked().tolist())}
    order = torch.tensor(sorted(range(len(chosen)), key=lambda place: rank[int(chosen[place])]))
    first = order[:COLUMNS].sort().values
    batch = image_set.__getitems__(chosen.tolist())
    return Selection(
        batch.images,
        batch.pictures,
        target=findings.prediction[chosen],
        titles=tuple(_title(findings, image_set, index) for index in chosen.tolist()),
        order=order,
        example=int(first[findings.margin[chosen[first]].argmax()]),
        about="the class that was said",
        note="These are the first images of each class; an arrow marks one that was taken for another class, and is "
        "drawn as one of that.",
    )


def select_examples(findings: Findings, image_set: ImageSet, most: int = 20) -> Selection:
    """The clearest image of each class that has images, asked about that class and titled with its name.

    Args:
        findings: about these images.
        image_set: the images.
        most: of more classes than this, half of those shown are the most mistaken ones and half the surest.
    """
    chosen = findings.examples(most)
    some = len(findings.labels.unique()) > most
    batch = image_set.__getitems__(chosen.tolist())
    target = findings.labels[chosen]
    titles = tuple(image_set.classes[label] for label in target.tolist())
    return Selection(
        batch.images,
        batch.pictures,
        target,
        titles,
        about="its class",
        note=f"These are the clearest images of {most} classes, half of them those with the most mistakes and half the "
        "surest."
        if some
        else "These are the clearest images of each class.",
    )


def _title(findings: Findings, image_set: ImageSet, index: int) -> str:
    """The title of an image: its class, and what it was taken for where that is another."""
    true, said = int(findings.labels[index]), int(findings.prediction[index])
    name = one_line(image_set.classes[true])
    return name if true == said else f"{name}\n→ {one_line(image_set.classes[said])}"


def one_line(name: str) -> str:
    """The name without line breaks."""
    return " ".join(name.split())
