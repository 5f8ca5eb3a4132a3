"""``torchcaps bench predict``: time and memory of a network, predicted from rates measured on this machine.

Convolutions, linear and routed layers and batch normalisations are timed one by one, with 16 and with 32 inputs of the
sizes that they have in the network; their time is taken as linear in the batch. Everything else is counted while the
network runs once: each call costs the time of the smallest call, plus its bytes at the bandwidth of a product of
numbers in the cache; the backward pass costs twice as much. The optimizer moves seven numbers for each weight. Memory
is linear in the batch, too. Batches of up to 32 are timed as they are. ``--check`` also measures the whole step, in the
same rounds.

With ``--tflops`` and ``--gbs`` the table also has an estimate for another device, on paper: for each layer the longer
of arithmetic and memory traffic, both at half the rate that the maker states, plus launches. Nothing checks this
estimate.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

import torchcaps as tc
from torchcaps.bench import measure, report
from torchcaps.bench.cases import NetworkCase, call_of
from torchcaps.bench.options import folder, new_folder, positive, rate
from torchcaps.bench.suite import Show
from torchcaps.routing import Routing

PROBES = 16, 32
"""Images in the timed calls of one layer, unless the batch is smaller than the larger of them."""

REACHED = 0.5
"""Share of the rates stated by a device's maker that the estimate on paper counts on."""

LAUNCH = 5e-6
"""Seconds for each call on a GPU, in the estimate on paper."""

_NUMBERS = 2**18
_TIMED = (nn.modules.conv._ConvNd, nn.Linear, nn.modules.batchnorm._BatchNorm)


@dataclass
class Layer:
    """A layer that is timed alone, with its inputs from a run of the network."""

    name: str
    module: nn.Module
    given: tuple[Any, ...]
    named: dict[str, Any]
    operations: float = 0.0
    """Of one image, forward; two for each multiply-add."""

    moved: float = 0.0
    """Bytes of inputs, results and weights of a call, divided by its images."""

    def call(self, training: bool) -> Callable[[], object]:
        """Runs it forward, or forward and backward."""
        leaves = [one for one in (*self.module.parameters(), *_tensors((self.given, self.named))) if one.requires_grad]

        def run() -> object:
            with torch.set_grad_enabled(training):
                output = self.module(*self.given, **self.named)
            results = [one for one in _tensors(output) if one.requires_grad]
            if results:
                upstream = [torch.ones_like(one) for one in results]
                torch.autograd.grad(results, leaves, upstream, allow_unused=True)
            return None

        return run


class _Count(TorchDispatchMode):
    """Counts calls that make new tensors, and the bytes they read and write, outside layers that are timed alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = self.calls = 0
        self.bytes = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if not self.inside and not func.is_view:
            self.calls += 1
            self.bytes += sum(one.nbytes for one in _tensors((args, kwargs, found)))
        return found


def _tensors(values: Any) -> list[Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, Tensor)]


@dataclass
class Parts:
    """What a network computes for ``images`` images: its layers, and everything else."""

    images: int
    weights: int
    layers: list[Layer] = field(default_factory=list)
    calls: int = 0
    bytes: float = 0.0
    """Read and written outside the layers, forward."""

    @property
    def bytes_of_weights(self) -> int:
        """In float32."""
        return 4 * self.weights


def parts_of(case: NetworkCase) -> Parts:
    """Runs a network once and records its layers and other calls."""
    torch.manual_seed(0)
    network, inputs = case.build(), case.inputs("cpu")
    found = Parts(case.batch, sum(weight.numel() for weight in network.parameters()))
    count, handles = _Count(), []

    def enter(name: str, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not count.inside:
            copies = tree_map(_alone, (given, named))
            times = sum(layer.module is module for layer in found.layers)
            again = f", {times + 1}" if times else ""
            found.layers.append(Layer(f"{name} ({type(module).__name__}){again}", module, *copies))
        count.inside += 1

    def leave(*_: Any) -> None:
        count.inside -= 1

    for name, module in network.named_modules():
        routed = module is not network and isinstance(getattr(module, "routing", None), Routing)
        if routed or isinstance(module, _TIMED):
            before = lambda module, given, named, name=name: enter(name, module, given, named)  # noqa: E731
            handles += [module.register_forward_pre_hook(before, with_kwargs=True)]
            handles += [module.register_forward_hook(leave)]
    with count:
        case.loss(case.forward(network, inputs), inputs)
    for handle in handles:
        handle.remove()
    found.calls, found.bytes = count.calls, count.bytes
    for layer in found.layers:
        _describe(layer, case.batch)
    return found


def _alone(value: Any) -> Any:
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def _describe(layer: Layer, images: int) -> None:
    """Counts the operations and bytes of a layer; votes are stored, so that torch can count their products."""
    with FlopCounterMode(display=False) as counter, tc.use_backend("naive"):
        output = layer.module(*layer.given, **layer.named)
    layer.operations = counter.get_total_flops() / images
    tensors = (*_tensors((layer.given, layer.named, output)), *layer.module.parameters())
    layer.moved = sum(one.nbytes for one in tensors) / images


@dataclass
class Rates:
    """What was measured: for each number of images, seconds of each layer, forward and in a training step; rates."""

    images: list[int]
    layers: dict[str, list[tuple[float, float]]]
    overhead: float
    bandwidth: float
    peaks: list[int]
    """Bytes of a training step beyond weights and images; empty if the system does not give them."""

    def times(self, parts: Parts, batch: int) -> tuple[float, float]:
        """Seconds of the forward pass and of a training step with Adam, of a batch."""
        other = parts.calls * self.overhead + batch / parts.images * parts.bytes / self.bandwidth
        forward, training = (
            self._grown(
                [sum(times[place][way] for times in self.layers.values()) for place in range(len(self.images))], batch
            )
            for way in (0, 1)
        )
        return forward + other, training + 3 * other + 7 * parts.bytes_of_weights / self.bandwidth

    def memory(self, batch: int) -> int | None:
        """Bytes of a training step beyond weights and images, without those of the optimizer."""
        return int(self._grown(self.peaks, batch)) if self.peaks else None

    def _grown(self, values: Sequence[float], batch: int) -> float:
        """Extrapolates measured values to a batch, by a straight line through the last two."""
        if len(self.images) == 1:
            return values[-1] * batch / self.images[-1]
        slope = (values[-1] - values[-2]) / (self.images[-1] - self.images[-2])
        return values[-1] + slope * (batch - self.images[-1])


def rounds(calls: dict[str, Callable[[], object]], runs: int) -> dict[str, list[float]]:
    """Seconds of each call in each round, after one round to warm up."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    found: dict[str, list[float]] = {name: [] for name in calls}
    for place in range(runs + 1):
        for name, call in calls.items():
            start = clock()
            call()
            if place:
                found[name].append(clock() - start)
    return found


def calls_of(several: Sequence[Parts]) -> dict[str, Callable[[], object]]:
    """The calls that are timed for the rates."""
    left, right, one = torch.rand(_NUMBERS), torch.rand(_NUMBERS), torch.rand(1)
    calls: dict[str, Callable[[], object]] = {
        "overhead": lambda: [one.add(1) for _ in range(200)],
        "bandwidth": lambda: [left.mul(right) for _ in range(10)],
    }
    for parts in several:
        for layer in parts.layers:
            for training in (False, True):
                calls[f"{layer.name} {parts.images} {training}"] = layer.call(training)
    return calls


def rates_of(several: Sequence[Parts], seconds: dict[str, list[float]], peaks: list[int]) -> Rates:
    """Rates from the medians of the times."""
    median = {name: statistics.median(values) for name, values in seconds.items()}
    layers = {
        name: [(median[f"{name} {parts.images} False"], median[f"{name} {parts.images} True"]) for parts in several]
        for name in (layer.name for layer in several[0].layers)
    }
    bandwidth = 10 * 3 * 4 * _NUMBERS / median["bandwidth"]
    return Rates([parts.images for parts in several], layers, median["overhead"] / 200, bandwidth, peaks)


def step_of(case: NetworkCase) -> Callable[[], object]:
    """A whole training step with Adam."""
    torch.manual_seed(0)
    network, inputs = case.build(), case.inputs("cpu")
    optimizer = torch.optim.Adam(network.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        case.loss(case.forward(network, inputs), inputs).backward()
        optimizer.step()

    return step


def on_paper(parts: Parts, batch: int, flops: float, bandwidth: float, devices: int) -> tuple[float, float]:
    """Seconds of the forward pass and of a training step on devices that share the batch, by their makers' figures."""
    share, flops, bandwidth = batch / devices, REACHED * flops, REACHED * bandwidth
    layers = sum(share * max(one.operations / flops, one.moved / bandwidth) for one in parts.layers)
    other = share / parts.images * parts.bytes / bandwidth
    launches = LAUNCH * (parts.calls + 4 * len(parts.layers))
    exchange = 2 * parts.bytes_of_weights / bandwidth if devices > 1 else 0.0
    adam = 7 * parts.bytes_of_weights / bandwidth
    return layers + other + launches, 3 * (layers + other + launches) + adam + exchange


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", nargs="+", default=["capsnet_small"], help="names of networks; default: capsnet_small")
    add("--shape", type=positive, nargs=3, default=(1, 28, 28), metavar=("C", "H", "W"), help="default: 1 28 28")
    add("--classes", type=positive, default=10, help="default: 10")
    add("--batch", type=positive, nargs="+", default=[128], help="images in a step; default: 128")
    add("--runs", type=positive, default=5, help="counted rounds; default: 5")
    add("--threads", type=positive, default=torch.get_num_threads(), help="of torch")
    add("--check", action="store_true", help="also measure the whole step and its memory")
    add("--rates", type=Path, help="predict.json of an earlier run, whose rates are used instead of new ones")
    add("--no-memory", dest="memory", action="store_false", help="predict times only")
    add("--tflops", type=rate, help="TFLOP/s of another device, at the precision of the training")
    add("--gbs", type=rate, help="GB/s of its memory")
    add("--devices", type=positive, default=1, help="how many of these devices share the batch; default: 1")
    add("--out", type=folder, help="folder for results; default: a new one in runs/")
    return parser


def main(arguments: list[str], show: Show, program: str) -> None:
    """Predicts, shows a table and writes ``predict.json``; see :func:`torchcaps.bench.command.main`."""
    parser = _parser(program)
    options = parser.parse_args(arguments)
    _check(parser, options)
    torch.set_num_threads(options.threads)
    measure.full_float32()
    about = report.environment("cpu", options.threads, report.command_line())
    show(report.heading(about))
    known = _known(options.rates)
    rows, rates = [], {}
    for name in options.model:
        for batch in options.batch:
            key = f"{name} {'x'.join(map(str, options.shape))} {options.classes} {min(batch, PROBES[-1])}"
            if known is not None and key not in known:
                raise ValueError(f"--rates {options.rates} has no rates for {key}, only for {', '.join(known)}")
            row, rates[key] = predicted(name, batch, options, None if known is None else known[key])
            rows.append(row)
    show("\n" + table_of(rows))
    if options.tflops is not None:
        show(f"\non paper: an estimate for {options.devices} x {options.tflops:g} TFLOP/s, {options.gbs:g} GB/s")
    out = options.out or new_folder("predict")
    report.write_json(out / "predict.json", **about, rows=rows, rates={key: vars(one) for key, one in rates.items()})
    show(f"\nresults: {out}")


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exits with an error unless the options fit together."""
    if (options.tflops is None) != (options.gbs is None):
        parser.error("--tflops and --gbs belong together")
    if options.check and options.rates:
        parser.error("--check measures the rates, too: leave out --rates")


def _known(path: Path | None) -> dict[str, Any] | None:
    """The rates of an earlier run; None without one."""
    if path is None:
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text())["rates"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--rates {path} must be the predict.json of an earlier run: {error!r}") from error
    return found


def predicted(
    name: str, batch: int, options: argparse.Namespace, known: dict[str, Any] | None
) -> tuple[dict[str, Any], Rates]:
    """A row of the table, seconds and bytes, predicted and with ``--check`` measured; and the rates."""
    shape = (options.shape[0], options.shape[1], options.shape[2])
    whole = NetworkCase(name, batch, shape, options.classes)
    probes = [replace(whole, batch=images) for images in (PROBES if batch > PROBES[-1] else (batch,))]
    several = [parts_of(case) for case in probes]
    calls: dict[str, Callable[[], object]] = {} if known else calls_of(several)
    if options.check:
        calls |= {"whole forward": call_of(whole, "auto", False), "whole training": step_of(whole)}
    seconds = rounds(calls, options.runs)
    rates = Rates(**known) if known else rates_of(several, seconds, _peaks(probes, options))
    forward, training = rates.times(several[-1], batch)
    row = {"model": name, "batch": batch, "forward": forward, "training": training, "memory": rates.memory(batch)}
    if options.check:
        peaks = _peaks([whole], options)
        row |= {f"measured {way}": statistics.median(seconds[f"whole {way}"]) for way in ("forward", "training")}
        row |= {"measured memory": peaks[0]} if peaks else {}
    if options.tflops is not None:
        found = on_paper(several[-1], batch, 1e12 * options.tflops, 1e9 * options.gbs, options.devices)
        row |= {"paper forward": found[0], "paper training": found[1]}
    return row, rates


def _peaks(cases: Sequence[NetworkCase], options: argparse.Namespace) -> list[int]:
    found = [measure.peak_memory(case, "auto", True, "cpu", options.threads) for case in cases if options.memory]
    return [peak for peak in found if peak is not None] if None not in found else []


def table_of(rows: list[dict[str, Any]]) -> str:
    """A row for each network and batch: predicted values, and behind them measured ones with their ratio."""
    cells = []
    for row in rows:
        line = [row["model"], str(row["batch"])]
        for what in ("forward", "training", "memory"):
            if row[what] is None:
                line.append("")
                continue
            said = (lambda value: f"{value / report.MIB:.0f} MiB") if what == "memory" else _milliseconds
            told = row.get(f"measured {what}")
            line.append(said(row[what]) + (f" / {said(told)} = {row[what] / told:.2f}" if told else ""))
        line += [_milliseconds(row[f"paper {way}"]) for way in ("forward", "training") if f"paper {way}" in row]
        cells.append(line)
    titles = ["model", "batch", "forward", "training step", "memory", "forward, on paper", "training step, on paper"]
    return report.table(titles[: len(cells[0])], cells)


def _milliseconds(seconds: float) -> str:
    return f"{report.milliseconds(seconds)} ms"
