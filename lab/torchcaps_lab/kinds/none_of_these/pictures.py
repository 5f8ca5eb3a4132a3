"""Images that a network takes for none of its classes, and why."""

from collections.abc import Iterator
from dataclasses import field

import torch
from torch import Tensor

from torchcaps.models.base import ClassifierNetwork
from torchcaps_lab.kinds.none_of_these.strangers import (
    Strangers,
    reconstruction_error,
    reconstruction_errors,
)
from torchcaps_lab.report.canvas import Fill, shorten, show, stacked
from torchcaps_lab.report.exhibit import PNG, Exhibit, Picture, register_exhibit
from torchcaps_lab.report.observe import Observation, Selection, Tested

_SHOWN = 10
_TRIED = 1000
"""Images of a test that are tried: the strangest of them are shown."""


@register_exhibit("none_of_these", place=75, drawings="none_of_these.png")
class NoneOfThese(Exhibit):
    """Images of which the most active class draws something else: the images, what it
    draws, and the difference.

    Attributes:
        pictures: (B, C, H, W).
        reconstructions: the reconstructions of the most active class of each, (B, C, H,
            W).
        differences: between the two, from none, 0, to 1, (B, C, H, W).
        predicted: the most active class of each.
        strangeness: the share of the validation images that are less strange, (B,).
        known: whether each is of the classes all the same, bool (B,).

    Example:
        >>> from torchcaps_lab.report import Observation, Selection, Strangers
        >>> from torchcaps_lab.report.pictures import NoneOfThese
        >>> strangers = Strangers(
        ...     threshold=0.3, false_alarms=0.05, quantiles=(0.1, 0.4), images=500
        ... )
        >>> images = torch.rand(2, 1, 8, 8)
        >>> observation = Observation(
        ...     tc.create_model("capsnet_digits"), Selection(images, images)
        ... )
        >>> NoneOfThese.of(observation, strangers).reconstructions.shape
        torch.Size([2, 1, 8, 8])
    """

    pictures: Tensor = field(metadata=PNG)
    reconstructions: Tensor = field(metadata=PNG)
    differences: Tensor = field(metadata=PNG)
    predicted: tuple[str, ...]
    strangeness: Tensor
    known: Tensor

    @classmethod
    def of(
        cls,
        observation: Observation,
        strangers: Strangers,
        more: str = "",
    ) -> "NoneOfThese | None":
        """Make the exhibit of images that are asked about their most active classes;
        None without a decoder.

        Args:
            observation: the observation of the images.
            strangers: says which of them are known.
            more: is said of them, after all else.
        """
        if (
            not observation.decodes
            or observation.reconstructions.shape != observation.selection.pictures.shape
        ):
            return None
        pictures = observation.selection.pictures.cpu().float()
        drawn = observation.reconstructions
        error = reconstruction_error(pictures, drawn)
        names = observation.selection.classes
        accepted = strangers.known(error)
        text = (
            "The decoder draws each image from its most active class. If the "
            "difference is large, the image belongs to none of these classes. An "
            "image is known if it is at most as strange as "
            f"{1 - strangers.false_alarms:.3g} of {strangers.images:,} validation "
            f"images. {more}"
        )
        return cls(
            title="None of these classes, and why",
            text=text.strip(),
            pictures=pictures,
            reconstructions=drawn,
            differences=(pictures - drawn).abs(),
            predicted=tuple(
                names[label] if names else str(label)
                for label in observation.target.tolist()
            ),
            strangeness=strangers.strangeness(error),
            known=accepted,
        )

    @classmethod
    def of_test(cls, tested: Tested) -> "Iterator[NoneOfThese | None]":
        """The strangest of the test images, at most 10 of 1,000, if the network has a
        threshold.
        """
        saved = tested.model.extra.get("strangers")
        if saved is not None:
            yield _strangest(tested.model, tested, Strangers.from_config(saved))

    def draw(self) -> Iterator[Picture]:
        """The images, and below each what its class draws and the difference."""
        rows: dict[str, Fill] = {
            "image": lambda axes, place: show(axes, self.pictures[place]),
            "drawn": lambda axes, place: show(axes, self.reconstructions[place]),
            "difference": lambda axes, place: show(axes, self.differences[place]),
        }
        named_shares = zip(self.predicted, self.strangeness.tolist(), strict=True)
        titles = [
            f"no {shorten(name, 10)}\n{share:.1%}" for name, share in named_shares
        ]
        yield Picture(
            "none_of_these.png",
            "Images of no class, and why",
            stacked(self.pictures, titles, rows),
        )


def _strangest(
    model: ClassifierNetwork, tested: Tested, strangers: Strangers
) -> NoneOfThese | None:
    images = tested.images
    places = torch.linspace(0, len(images) - 1, min(_TRIED, len(images))).long()
    errors = reconstruction_errors(model, images.subset(places))
    if errors is None:
        return None
    unknown = ~strangers.known(errors)
    chosen = errors.where(unknown, -1.0).argsort(descending=True)[
        : min(_SHOWN, int(unknown.sum()))
    ]
    if not len(chosen):
        return None
    batch = images.__getitems__(places[chosen].tolist())
    selection = Selection(batch.inputs, batch.pictures, classes=tuple(images.classes))
    more = (
        f"{int(unknown.sum())} of {len(places):,} test images were rejected as none "
        "of the classes, and these are the strangest. Above each are the nearest "
        "class and the share of the validation images that are less strange."
    )
    return NoneOfThese.of(
        Observation(model, selection, verdict=tested.verdict), strangers, more
    )
