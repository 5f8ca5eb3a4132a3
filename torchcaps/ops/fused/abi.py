"""The records that the C++ kernels take: ``Torchcaps...`` of the C++ source, field by field.

They are packed as bytes: to fill a ``ctypes.Structure`` by names takes longer.
"""

import struct
from collections.abc import Iterable
from typing import Any

INPUTS = ("children", "transforms", "coordinates", "weights", "log_partition", "parents", "precision", "log_weight")


class Record:
    """Fields of 8 bytes each: whole numbers, addresses, and real numbers.

    Args:
        names: of the fields.
        reals: which of them are real numbers.
    """

    def __init__(self, *names: str, reals: tuple[str, ...] = ()) -> None:
        self._places = {name: place for place, name in enumerate(names)}
        self._struct = struct.Struct("=" + "".join("d" if name in reals else "q" for name in names))

    def pack(self, first: Iterable[float], *named: Iterable[tuple[str, Any]]) -> bytes:
        """The bytes, from the first fields and others by name: a tensor as its address, and 0 for what is not there."""
        values, places = [*first], self._places
        values += [0] * (len(places) - len(values))
        for fields in named:
            for name, field in fields:
                if field is not None:
                    values[places[name]] = field if type(field) in _NUMBERS else field.data_ptr()
        return self._struct.pack(*values)


_NUMBERS = (int, bool, float)


CALL = Record(
    *("images", "grid", "windows", "I", "J", "M", "P", "D", "shared", "similarity"),
    *("orphan", "hard", "parts", "threads", *INPUTS, "sites"),
    *("mass", "sum", "scatter", "mean", "rest", "scores", "reduced"),
    *(*(f"grad_{name}" for name in INPUTS), "grad_scores"),
    *("logits", "shares", "flow", "adds", "votes", "formed", "terms", "count"),
)
TERM = Record("coefficient", "constant", "slope", "centre", "rest", "parents")
AGREEMENT = Record(
    *("steps", "accumulate", "constant", "bias", "sums", "alphas", "alpha", "pose"),
    *("grad_alpha", "grad_pose", "grad_sums", "grad_bias", "coefficients", "room"),
    reals=("constant",),
)
GAUSSIANS = Record(
    *("rows", "H", "threads", "floor", "mass", "sum", "scatter", "mean", "variance", "precision", "log_determinant"),
    *("grad_mean", "grad_variance", "grad_precision", "grad_log_determinant", "grad_mass", "grad_sum", "grad_scatter"),
    reals=("floor",),
)
