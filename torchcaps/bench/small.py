"""Up to which size storing the votes is fastest: training steps of ``naive`` and of the fused backend."""

from pathlib import Path
from typing import NamedTuple

import torch

from torchcaps.bench import report
from torchcaps.bench.cases import LinearCase, call_of
from torchcaps.bench.measure import Spread, interleaved
from torchcaps.bench.suite import Options, Show
from torchcaps.ops.plan import FUSED

POWERS = range(8, 21)
ROUTINGS = ("dynamic", "em")
PARENTS, DIM = 8, 8


class Size(NamedTuple):
    """A layer whose votes have ``numbers`` numbers, with its times."""

    routing: str
    numbers: int
    naive: list[float]
    fused: list[float]

    @property
    def ratio(self) -> Spread:
        """naive / fused, round by round."""
        return Spread.of([a / b for a, b in zip(self.naive, self.fused, strict=True)])


def layer(routing: str, power: int) -> LinearCase:
    """A layer whose votes have ``2 ** power`` numbers: 8 parents of 8 numbers; about as many children as images."""
    pairs = 2**power // (PARENTS * DIM)
    batch = 2 ** ((pairs.bit_length() - 1) // 2)
    return LinearCase("small", batch, routing, 3, PARENTS, (1, DIM), DIM, pairs // batch)


def small(options: Options, show: Show, powers: range = POWERS) -> list[Size]:
    """Measures all sizes with both routings."""
    torch.set_num_threads(options.threads)
    sizes = []
    for routing in ROUTINGS:
        show(f"measuring {routing} routing at 2^{powers[0]} to 2^{powers[-1]} numbers")
        for power in powers:
            case = layer(routing, power)
            names = ("naive", FUSED[options.device])
            calls = {name: call_of(case, name, True, options.device) for name in names}
            times = interleaved(calls, options.runs, options.device, options.seconds)
            sizes.append(Size(routing, case.votes, *times.values()))
    return sizes


def crossover(sizes: list[Size], routing: str) -> int | None:
    """The largest size at which storing the votes was faster, with this routing; None if it never was."""
    stored = [size.numbers for size in sizes if size.routing == routing and size.ratio.median < 1]
    return max(stored, default=None)


def small_table(sizes: list[Size], fused: str) -> str:
    """A row for each size."""
    rows = [
        (
            f"{size.routing} 2^{size.numbers.bit_length() - 1}",
            *(report.milliseconds(Spread.of(values).median) for values in (size.naive, size.fused)),
            report.times(size.ratio),
        )
        for size in sizes
    ]
    lines = [report.table(("votes", "naive ms", f"{fused} ms", f"naive / {fused}"), rows)]
    for routing in dict.fromkeys(size.routing for size in sizes):
        most = crossover(sizes, routing)
        found = "never" if most is None else f"up to 2^{most.bit_length() - 1} numbers"
        lines.append(f"{routing} routing: storing the votes is faster {found}")
    return "\n".join(lines)


def draw_small(sizes: list[Size], fused: str, path: Path) -> None:
    """Time against the numbers of the votes, a panel for each routing."""
    routings = list(dict.fromkeys(size.routing for size in sizes))
    made, axes = report.figure(4.2 * len(routings), 3.4, len(routings))
    for axis, routing in zip(axes, routings, strict=True):
        here = [size for size in sizes if size.routing == routing]
        numbers = [size.numbers for size in here]
        for name, all_times in (("naive", [s.naive for s in here]), (fused, [s.fused for s in here])):
            spreads = [Spread.of([1e3 * value for value in times]) for times in all_times]
            colour = report.COLOURS[name]
            axis.plot(numbers, [s.median for s in spreads], "o-", color=colour, label=name, markersize=4)
            axis.fill_between(numbers, [s.low for s in spreads], [s.high for s in spreads], color=colour, alpha=0.2)
        axis.set(yscale="log", title=f"{routing} routing", xlabel="numbers of the votes", ylabel="training step, ms")
        axis.set_xscale("log", base=2)
        axis.legend(frameon=False)
    report.save(made, path)
