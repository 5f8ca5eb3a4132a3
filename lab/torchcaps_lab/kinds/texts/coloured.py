"""How much each word of a text spoke for each class."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps_lab.evaluate.findings import evaluating, kept
from torchcaps_lab.evaluate.layers import observe_layers
from torchcaps_lab.kinds.texts.encoder import TextEncoder
from torchcaps_lab.kinds.texts.ngram_capsules import TextCapsNet
from torchcaps_lab.kinds.texts.pooled import TextPooled
from torchcaps_lab.report.flow import class_shares

ROUTED = (TextCapsNet, TextEncoder, TextPooled)
"""The networks that show which class each word spoke for."""


class _Branch(nn.Module):
    """One of the networks side by side in a :class:`~torchcaps_lab.kinds.texts.TextCapsNet`, as
    a network of its own.
    """

    def __init__(self, model: TextCapsNet, place: int) -> None:
        super().__init__()
        self.model = model
        self.place = place

    def forward(self, words: Tensor) -> Capsules:
        return self.model.branches[self.place](*self.model.vectors(words))


def word_shares(model: nn.Module, words: Tensor) -> Tensor | None:
    r"""How much each word spoke for each class, (B, L, E), at most the activation of
    the class.

    With :math:`s_{ij}` the share of primary capsule i that routing handed on to class j
    (:func:`~torchcaps_lab.report.class_shares`) and :math:`a_i` its activation, a word
    has the sum of :math:`a_i s_{ij}` over the capsules that see it, each divided by how
    many words it sees; a capsule of features from several places counts at each of them
    with the share of its squared length that comes from there. A word with twice an
    even share of what the class got from the text, or more, gets the activation of that
    class, and others as much less as they spoke less for it: where all spoke alike,
    each gets half of the activation.

    Args:
        model: a network that takes words, left in the mode that it came in.
        words: (B, L).

    Returns:
        None for a network of which that is not known, such as one without capsules.
    """
    shares = shares_and_activation(model, words)
    return None if shares is None else shares[0]


def shares_and_activation(
    model: nn.Module, words: Tensor
) -> tuple[Tensor, Tensor] | None:
    """What :func:`word_shares` gives, and the activations of the classes, (B, E)."""
    if not isinstance(model, ROUTED):
        return None
    with evaluating(model) as device:
        words = words.to(device)
        of_words = [
            _of_words(mass, words != 0, *reach)
            for mass, reach in _contributions(model, words)
        ]
        total = torch.stack(of_words).sum(0)
        activation = model(words).activation
    even = total.sum(1, keepdim=True) / (words != 0).sum(1)[:, None, None]
    shares = (total / even.clamp_min(1e-30) / 2).clamp_max(1) * activation[:, None]
    return kept(shares), kept(activation)


def _contributions(
    model: TextCapsNet | TextEncoder | TextPooled, words: Tensor
) -> Iterator[tuple[Tensor, tuple[int, int]]]:
    """What the lowest capsules of each place gave to each class, (B, places, E), and
    what they see, side by side.
    """
    if isinstance(model, TextCapsNet):
        for place, reach in enumerate(model.reaches):
            yield _lowest(_Branch(model, place), words).sum(-2), reach
    elif isinstance(model, TextEncoder):
        yield _lowest(model, words).sum(-2), model.reach
    else:  # of each capsule, as much as of its features come from there
        shares_of_types = _lowest(model, words).split(model.types, 1)
        for width, capsules, places in zip(
            model.widths, shares_of_types, model.places_of(words), strict=True
        ):
            yield places.to(capsules).mT @ capsules, (width, 1)


def _lowest(model: nn.Module, words: Tensor) -> Tensor:
    """What each of the lowest routed capsules gave to each class, (B, *sites, E)."""
    layers = observe_layers(model, words)
    name, shares = list(class_shares(layers).items())[-1]
    children = layers[name].children
    assert children is not None
    return shares * children.activation[..., None]


def _of_words(mass: Tensor, present: Tensor, width: int, stride: int) -> Tensor:
    """What places (B, places, E) gave, shared out over the words that each of them
    sees, (B, L, E).
    """
    L = present.shape[1]
    places = torch.arange(mass.shape[1], device=mass.device)[:, None] * stride
    word = torch.arange(L, device=mass.device)
    sees = ((word >= places) & (word < places + width)).to(mass)  # [places, L]
    sees = sees * present[:, None].to(mass)
    sees = sees / sees.sum(-1, keepdim=True).clamp_min(1)
    return sees.transpose(1, 2) @ mass


def pieces_of(text: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    """The text cut where its words start; where not all of them are here, dots at the
    end.
    """
    starts = [start for start, _ in spans]
    ends = [*starts[1:], spans[-1][1]]
    pieces = [text[start:end] for start, end in zip(starts, ends, strict=True)]
    if len(text[ends[-1] :].strip()):
        pieces[-1] += " …"
    return pieces
