"""Texts that a program has in lists."""

from typing import Any

from torchcaps_lab.data.listed import Listed, list_labelled
from torchcaps_lab.kinds.texts.files import TextItem
from torchcaps_lab.kinds.texts.text import Text


class TextList(Text):
    """Texts and their labels that a program has.

    Args:
        inputs: a list of texts.
        labels: for each a whole number or a name, or a row of 0 with one 1.
        test: the share to test on, as of :class:`Text`.
        validation: the share for validation, likewise.
        seed: chooses the validation texts.
        longest: as of :class:`Text`.
        most: likewise.
        least: likewise.
        lower: likewise.

    Raises:
        ValueError: there are no texts, not one label for each, or one is no text.

    Example:
        >>> from torchcaps_lab.data import TextList
        >>> texts = [
        ...     f"it was {word} {n}" for n in range(10) for word in ("dull", "fun")
        ... ]
        >>> TextList(texts, ["no", "yes"] * 10).classes
        ('no', 'yes')
    """

    def __init__(
        self,
        inputs: Any = None,
        labels: Any = None,
        test: float = 0.2,
        validation: float = 0.1,
        seed: int = 0,
        longest: int = 512,
        most: int = 50_000,
        least: int = 1,
        lower: bool = True,
    ) -> None:
        self.inputs = inputs
        self.labels = labels
        how: Any = {"test": test, "validation": validation, "seed": seed}
        super().__init__(
            "", longest=longest, most=most, least=least, lower=lower, **how
        )

    def list_texts(self) -> Listed:
        """The texts, each with its number as name."""
        return list_labelled(self.inputs, self.labels, "TextList", _item)


def _item(name: str, label: str, text: Any) -> TextItem:
    if not isinstance(text, str):
        raise ValueError(f"text {name} must be a text, got {text!r:.60}")
    return TextItem(name, label, text)
