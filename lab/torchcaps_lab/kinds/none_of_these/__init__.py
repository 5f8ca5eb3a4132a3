"""None of these: images of no class that a network knows."""

from torchcaps_lab.kinds.none_of_these.pictures import NoneOfThese as NoneOfThese
from torchcaps_lab.kinds.none_of_these.strangers import Apart as Apart
from torchcaps_lab.kinds.none_of_these.strangers import Strangers as Strangers
from torchcaps_lab.kinds.none_of_these.strangers import (
    reconstruction_error,
    told_apart,
)
from torchcaps_lab.kinds.none_of_these.strangers import (
    reconstruction_errors as reconstruction_errors,
)

__all__ = ["reconstruction_error", "told_apart"]
