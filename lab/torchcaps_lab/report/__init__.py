"""What a network learned: observed as tensors, told as exhibits of plain data, drawn as
pictures, a file each.

Matplotlib is imported by the functions that draw.
"""

from typing import Any

from torchcaps_lab.kinds import public
from torchcaps_lab.report.boxes import Boxed
from torchcaps_lab.report.canvas import new_figure, shorten
from torchcaps_lab.report.exhibit import (
    Exhibit,
    Picture,
    Table,
    list_exhibits,
    register_exhibit,
)
from torchcaps_lab.report.flow import class_maps, class_shares
from torchcaps_lab.report.observe import (
    Observation,
    Selection,
    Tested,
    select_examples,
    select_samples,
)
from torchcaps_lab.report.page import exhibits_of, exhibits_of_classifier, write_page
from torchcaps_lab.report.places import Extent, layer_extents

from torchcaps_lab.report import pictures  # isort: skip  # which registers them

__all__ = [
    "Boxed",
    "Exhibit",
    "Observation",
    "Picture",
    "Selection",
    "Table",
    "Tested",
    "exhibits_of_classifier",
    "list_exhibits",
    "new_figure",
    "register_exhibit",
    "shorten",
    "write_page",
]


def __getattr__(name: str) -> Any:
    """What the kinds of input show."""
    return public(name, __name__)
