"""Whether the routing of a network decides anything, and whether its decoder learned
anything.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.models.base import CapsuleClassifier, CapsuleNetwork, ClassifierNetwork
from torchcaps.numerics import resolution
from torchcaps.routing import Routing
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.evaluate.findings import in_parts, kept
from torchcaps_lab.evaluate.health import observed_health
from torchcaps_lab.evaluate.layers import layer_entropy
from torchcaps_lab.evaluate.poses import encoded
from torchcaps_lab.evaluate.steps import even_assignments

_UNSEEN, _EVEN = 0.9999, 0.995
"""Entropies, relative to that of even assignments: with ten parents, shares scatter by
2 % and by 15 % of an even one. The first cannot be seen in a map; the second is nothing
if the answers do not depend on it.
"""
_CHANGED = 0.01
"""Share of the answers: fewer are changed by noise alone where two classes are equally
active.
"""
_EXPLAINED = 0.1
"""Share of the variance. A decoder that draws the mean image whatever it is told
explains none of it; one that explains a tenth draws differences a third as strong as in
truth: digits at 7 % still are one grey bar to the eye, all alike.
"""
_MOST = 200
_AT_ONCE = 16
_OBSERVED = 64


@dataclass(frozen=True)
class Verdict:
    """What a look at a network's pictures would be worth.

    Attributes:
        images: how many it was measured on.
        entropy: :func:`~torchcaps_lab.evaluate.layer_entropy` of the layer whose routing
            is most decided, in [0, 1]; 1 is even, None without routing to several
            parents.
        changed: the share of the answers that change where all routings assign evenly;
            None where that cannot be tried, or there is one answer.
        explained: of the variance about the mean image, the share that reconstructions
            explain; None without a decoder or with fewer than two images.

    Example:
        >>> from torchcaps_lab.evaluate import Verdict
        >>> Verdict(images=200, entropy=0.9998, changed=0.0, explained=None).even
        True
    """

    images: int
    entropy: float | None
    changed: float | None
    explained: float | None

    @property
    def even(self) -> bool:
        """Whether routing decided nothing: assignments are even but for noise, or even
        ones give the same answers.
        """
        if self.entropy is None:
            return False
        return self.entropy > _UNSEEN or (
            self.entropy > _EVEN and (self.changed or 0.0) < _CHANGED
        )

    @property
    def blind(self) -> bool:
        """Whether the decoder learned nothing: all that it draws is about the same
        image.
        """
        return self.explained is not None and self.explained < _EXPLAINED

    @property
    def of_routing(self) -> str:
        """A sentence or two that say whether routing decided anything; empty for a
        network that does not route, or to one parent.
        """
        if self.entropy is None:
            return ""
        entropy = (
            f"The entropy of the assignments is {self.entropy:.4f}, where 1 is even"
        )
        if self.changed is None:
            tried = "Even assignments cannot be tested with this network."
        else:
            tried = (
                f"With even assignments instead, {self.changed:.1%} of {self.images:,} "
                "answers change."
            )
            if self.even and self.changed >= _CHANGED:
                tried += " Those were close decisions."
        if self.even:
            statement = (
                "Routing had no effect here: every child is shared almost evenly among "
                "the classes, so there is no map to show."
            )
        elif self.entropy > _EVEN:
            statement = (
                "Routing had little effect: the assignments are nearly even, but some "
                "answers depend on them."
            )
        elif self.changed is None or self.changed >= _CHANGED:
            statement = "Routing had an effect."
        else:
            statement = (
                "Routing had little effect: the assignments are not even, but the "
                "answers barely depend on them."
            )
        return f"{statement} {entropy}. {tried}"

    @property
    def of_decoder(self) -> str:
        """A sentence that says how much reconstructions explain; empty where that is
        not known.
        """
        if self.explained is None:
            return ""
        statement = (
            f"Reconstructions explain {max(self.explained, 0.0):.0%} of the "
            f"variance of {self.images} images"
        )
        if not self.blind:
            return f"{statement}."
        return (
            f"The decoder learned nothing: {statement[0].lower()}{statement[1:]} about their "
            f"mean, less than {_EXPLAINED:.0%}. It draws almost the same image for "
            "all of them, so reconstructions and the meaning of pose numbers are not "
            "shown."
        )


def judge(model: ClassifierNetwork, image_set: Examples) -> Verdict | None:
    """Measures on at most 200 images from all over a set whether routing and decoder of
    a network do anything.

    Even assignments are those of a single step of routing without evidence, as in
    :func:`~torchcaps_lab.evaluate.even_assignments`. The explained variance is, with x the
    images, y what is drawn of the pose of the most active class of each, and m the mean
    image,

    .. math:: 1 - \\frac{\\sum |x - y|^2}{\\sum |x - m|^2}

    Args:
        model: any network, on any device; it is left in the mode it came in.
        image_set: at least one image, prepared for it.
    """
    places = torch.linspace(0, len(image_set) - 1, min(_MOST, len(image_set))).long()
    batch = image_set.seen(places.tolist())
    if batch is None:
        return None
    if not isinstance(model, CapsuleNetwork):
        return Verdict(len(places), None, None, None)
    _, (entropies,) = observed_health(
        model, batch.inputs[:: max(1, len(places) // _OBSERVED)], layer_entropy
    )
    predicted = encoded(model, batch.inputs, _AT_ONCE).activation.argmax(1)
    changed = None
    routings = [module for module in model.modules() if isinstance(module, Routing)]
    stepwise = all("steps" in vars(routing) for routing in routings)
    if routings and stepwise and model.classes > 1:
        with even_assignments(model):
            now = encoded(model, batch.inputs, _AT_ONCE).activation.argmax(1)
        changed = (now != predicted).double().mean().item()
    entropy = min(
        (torch.cat(parts).mean().item() for parts in entropies.values()), default=None
    )
    return Verdict(
        len(places), entropy, changed, _explained(model, batch.inputs, batch.pictures)
    )


def _explained(model: CapsuleNetwork, images: Tensor, pictures: Tensor) -> float | None:
    """The share of the variance of pictures about their mean that reconstructions
    explain.
    """
    if not isinstance(model, CapsuleClassifier) or model.decoder is None:
        return None
    about_mean = pictures - pictures.mean(0)
    if about_mean.abs().max() <= resolution(pictures.abs().max()):
        return None
    spread = about_mean.double().square().sum().item()

    def drawn(part: Tensor) -> Tensor:
        capsules = model.encode(part)
        return kept(model.decode(capsules, capsules.activation.argmax(1)))

    parts = in_parts(model, images, drawn, _AT_ONCE)
    left = 0.0
    for reconstruction, shown in zip(parts, pictures.split(_AT_ONCE), strict=True):
        left += (reconstruction - shown).double().square().sum().item()
    return 1 - left / spread
