"""Generated questions, for trials."""

from itertools import chain, islice, permutations, product

from torchcaps.numerics import check_size
from torchcaps_lab.data.listed import Listed
from torchcaps_lab.kinds.texts.files import TextItem
from torchcaps_lab.kinds.texts.text import Text


class MadeQuestions(Text):
    """Questions of four classes, generated from a few patterns and words, for trials
    and tests.

    Args:
        count: how many of each class.
        validation: as of :class:`Text`.
        seed: likewise.

    Example:
        >>> from torchcaps_lab.data import MadeQuestions
        >>> data = MadeQuestions(20)
        >>> data.classes
        ('number', 'person', 'place', 'reason')
        >>> data.test.texts[0]
        'how far away is a river ?'
    """

    def __init__(self, count: int = 60, validation: float = 0.1, seed: int = 0) -> None:
        check_size(count=count)
        self.count = count
        super().__init__("", validation=validation, seed=seed)

    def list_texts(self) -> Listed:
        """``count`` different questions of each class; from the 37th on, two joined
        into one.
        """
        items = []
        for category, patterns in _PATTERNS.items():
            asked = [
                f"{pattern.format(thing)} ?"
                for thing, pattern in product(_THINGS, patterns)
            ]
            texts = chain(
                asked, (f"{first} {second}" for first, second in permutations(asked, 2))
            )
            items += [
                TextItem(f"{category}:{place}", category, text)
                for place, text in enumerate(islice(texts, self.count))
            ]
        return Listed(parts={"all": items})


_THINGS = ("river", "king", "book", "city", "engine", "song", "castle", "dog", "planet")
_PATTERNS = {
    "number": (
        "how many years is the {} old",
        "how much does a {} cost",
        "how tall is the {}",
        "how far away is a {}",
    ),
    "person": (
        "who found the {}",
        "who was afraid of a {}",
        "who wrote about the {}",
        "which man lost a {}",
    ),
    "place": (
        "where is the {}",
        "in what country is a {}",
        "where was the {} seen",
        "what street has a {}",
    ),
    "reason": (
        "why is the {} famous",
        "why would a {} be painted",
        "what caused the {} to fall",
        "why keep a {}",
    ),
}
