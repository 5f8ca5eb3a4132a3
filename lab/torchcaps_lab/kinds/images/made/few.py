"""Data sets of which few images are trained on."""

from torchcaps.numerics import check_size
from torchcaps_lab.data.base import TEST_SEED, DataSet, stratified_split
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.kinds.images.made.base import MadeOf, Part
from torchcaps_lab.look import Fit


class Few(MadeOf):
    """A data set of which few images are trained on, and few validated on; the test
    images are all of them.

    They are drawn at random, the same share of each class; which ones says ``draw``,
    not the seed of a training. The task is that of the data set.

    Args:
        data: the data set; which images are put aside for validation is its affair.
        train: about how many images to train on; all if there are fewer.
        validation: about how many to validate on, likewise.
        draw: another whole number, other images.

    Raises:
        ValueError: `train` is less than 1, or `validation` less than 0.

    Example:
        >>> from torchcaps_lab.data import Digits, Few
        >>> data = Few(Digits(), train=100, validation=50)
        >>> len(data.train), len(data.test)
        (100, 359)
    """

    def __init__(
        self,
        data: DataSet,
        train: int = 1000,
        validation: int = 1000,
        draw: int = TEST_SEED,
    ) -> None:
        super().__init__(data)
        check_size(train=train)
        check_size(0, validation=validation)
        self.few_train = train
        self.few_validation = validation
        self.draw = draw
        vars(self)["task"] = data.task  # elsewhere it belongs to a class

    @property
    def resize(self) -> Fit:
        """The way of the data set to resize."""
        return self.data.resize

    def made(self, images: Examples, part: Part) -> Examples:
        """About as many images as asked for, at random, the same share of each class,
        in their order.
        """
        count = {
            "train": self.few_train,
            "validation": self.few_validation,
            "test": len(images),
        }[part]
        if count >= len(images):
            return images
        return images.subset(
            stratified_split(images.labels, count / len(images), self.draw)[1]
        )
