"""What all layers of capsules have in common: what tools hook into them may pass plain tuples."""

from typing import Any

from torch import nn

from torchcaps.capsules import from_pair


class CapsuleLayer(nn.Module):
    """Base of modules that return :class:`~torchcaps.Capsules`.

    A forward hook may return a plain tuple (pose, activation), as those of Captum do: callers get capsules all the
    same. What a layer takes, each turns into capsules itself, by :func:`~torchcaps.capsules.from_pair`.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs hooks and :meth:`forward`, and returns capsules."""
        return from_pair(super().__call__(*args, **kwargs))
