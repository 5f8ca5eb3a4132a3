"""Training: the Lightning module, its logs, and runs in folders, which can be killed
and resumed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchcaps.models.timm_package import declare_torchvision

if TYPE_CHECKING:
    from torchcaps_lab.options.reading import read_options
    from torchcaps_lab.run_folder import RunFolder, read_summary
    from torchcaps_lab.training.command_line import training_options
    from torchcaps_lab.training.fitting import quiet_lightning
    from torchcaps_lab.training.run import machine, train_with

# Lightning imports torchmetrics, which imports torchvision wherever it is installed.
# The modules of this package, which import Lightning, come after this line.
declare_torchvision()

__all__ = [
    "RunFolder",
    "machine",
    "quiet_lightning",
    "read_options",
    "read_summary",
    "train_with",
    "training_options",
]

_HOMES = {
    "RunFolder": "torchcaps_lab.run_folder",
    "machine": "torchcaps_lab.training.run",
    "quiet_lightning": "torchcaps_lab.training.fitting",
    "read_options": "torchcaps_lab.options.reading",
    "read_summary": "torchcaps_lab.run_folder",
    "train_with": "torchcaps_lab.training.run",
    "training_options": "torchcaps_lab.training.command_line",
}
"""The modules of the public names, imported on first use: folders and options of runs
are read without Lightning.
"""


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
