"""The pictures of a report, a file each: what it says, as plain data, and how it is
drawn.

Every file in this folder is imported, and so what it registers is there; the classes
are handed on from here.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from torchcaps_lab.kinds import public
from torchcaps_lab.report.exhibit import EXHIBITS

for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
_PICTURES = {
    kind.__name__: kind
    for kind in dict.values(EXHIBITS)  # without those of the kinds of input
    if kind.__module__.startswith(f"{__name__}.")
}
__all__ = sorted(_PICTURES)


def __getattr__(name: str) -> Any:
    if name in _PICTURES:
        return _PICTURES[name]
    return public(name, __name__)
