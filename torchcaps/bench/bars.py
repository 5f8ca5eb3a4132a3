"""The bars: targets for speed and memory, beside what was measured."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from torchcaps.bench.cases import FEW_IMAGES
from torchcaps.bench.measure import Spread
from torchcaps.bench.suite import Row
from torchcaps.ops.plan import FUSED

MATMUL_RATE = 200e9
"""Operations a second of a matrix product on the machine that the bars in seconds are meant for."""

PORT_SECONDS, PORT_RATE = 1.1, MATMUL_RATE
"""Forward and backward of DigitCaps in the fastest public port measured, where a matrix product ran at that rate."""


class Bar(NamedTuple):
    """One figure and its bound.

    Args:
        what: the figure.
        value: median and range; for memory, the same value three times.
        sense: whether the median has to be at most or at least the bound; empty for a figure without a bound.
        bound: of the median.
        unit: ``x`` for ratios.
    """

    what: str
    value: Spread
    sense: Literal["<=", ">=", "<", ""]
    bound: float
    unit: str = "x"

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None for a figure without a bound."""
        middle = self.value.median
        return {"<=": middle <= self.bound, ">=": middle >= self.bound, "<": middle < self.bound, "": None}[self.sense]


def bars(rows: list[Row], device: str) -> list[Bar]:
    """The figures that these rows give."""
    found = {(row.case, row.training, row.backend): row for row in rows}
    fused = FUSED[device]
    return [*(_gpu if device == "cuda" else _cpu)(found, fused)]


Found = dict[tuple[str, bool, str], Row]


def _cpu(found: Found, fused: str) -> Iterator[Bar]:
    for training, what in ((False, "forward"), (True, "forward + backward")):
        if row := _good(found, "DigitCaps", training, fused):
            count = row.work.operations
            title = f"DigitCaps {what} / its arithmetic ({_giga(count)})"
            yield Bar(title, row.times_arithmetic(count), "<=", 3.5 if training else 3)
            if training:
                rounds = zip(row.matmul_rate, row.seconds, strict=True)
                ratio = Spread.of([PORT_SECONDS * PORT_RATE / (rate * seconds) for rate, seconds in rounds])
                yield Bar("fastest public port, at this matmul rate / DigitCaps forward + backward", ratio, "", 0)
    for batch in FEW_IMAGES:
        for training in (False, True):
            yield from _against("naive", found, fused, f"DigitCaps, batch {batch}", training, 3 if batch >= 4 else 1)
    for training in (False, True):
        yield from _against("chunked", found, fused, "poses of 32", training, 2)
    for case in ("ConvCaps1", "ConvCaps2"):
        if row := _good(found, case, True, fused):
            operations = row.work.operations + row.work.again
            title = f"{case} training step / its arithmetic, votes formed in every pass ({_giga(operations)})"
            yield Bar(title, row.times_arithmetic(operations), "<=", 3.5)
    yield from _against("naive", found, fused, "ConvCaps1", True, 4)
    naive, row = _good(found, "ConvCaps1", True, "naive"), _good(found, "ConvCaps1", True, fused)
    if naive and row and naive.peak and row.peak is not None:
        share = row.peak / naive.peak
        yield Bar(f"ConvCaps1 training step, extra memory, {fused} / naive", _exactly(share), "<=", 0.1)
    if row := _good(found, "matrixcapsnet", True, fused):
        yield from _matrixcapsnet(row)
    yardstick, row = _good(found, "yardstick", True, "cnn"), _good(found, "capsnet", True, fused)
    if yardstick and row:
        yield Bar("CapsNet training step / CNN yardstick's", row.ratio(yardstick), "<=", 1.08)


def _matrixcapsnet(row: Row) -> Iterator[Bar]:
    operations = row.work.operations + row.work.again
    arithmetic = f"its arithmetic, votes formed in every pass ({_giga(operations / row.batch)} an image)"
    yield Bar(f"MatrixCapsNet training step / {arithmetic}", row.times_arithmetic(operations), "", 0)
    seconds = Spread.of([s * rate / MATMUL_RATE for s, rate in zip(row.seconds, row.matmul_rate, strict=True)])
    yield Bar("MatrixCapsNet training step, as if a matrix product ran at 200 GFLOP/s", seconds, "<=", 0.14, "s")
    if row.peak is not None:
        alive = (row.tensors + row.peak) / 1e6
        yield Bar("MatrixCapsNet training step, live tensors", _exactly(alive), "<", 250, "MB")


def _gpu(found: Found, fused: str) -> Iterator[Bar]:
    for case in ("DigitCaps", "ConvCaps1", "ConvCaps2"):
        yield from _against("naive", found, fused, case, True, 8)
        if (row := _good(found, case, True, fused)) and row.peak is not None:
            title = f"{case} training step, extra memory / inputs, results and weights"
            yield Bar(title, _exactly(row.peak / row.tensors), "<", 2)
    for (case, training, backend), row in found.items():
        if backend == fused and training and row.seconds:
            share = row.times_limit
            inverse = Spread(1 / share.median, 1 / share.high, 1 / share.low)
            yield Bar(f"{case} training step, share of the limit", inverse, ">=", 0.5)


def _against(other: str, found: Found, fused: str, case: str, training: bool, bound: float) -> Iterator[Bar]:
    slow, row = _good(found, case, training, other), _good(found, case, training, fused)
    if slow and row:
        step = "training step" if training else "forward"
        yield Bar(f"{case} {step}, {other} / {fused}", slow.ratio(row), ">=", bound)


def _good(found: Found, case: str, training: bool, backend: str) -> Row | None:
    row = found.get((case, training, backend))
    return row if row is not None and row.seconds else None


def _exactly(value: float) -> Spread:
    return Spread(value, value, value)


def _giga(operations: float) -> str:
    return f"{operations / 1e9:.2f} GFLOP"
