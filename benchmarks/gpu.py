"""``python -m benchmarks gpu``: is it right on a GPU, how fast, and what falls short.

Values and gradients of every routing on four layers, and of every network for images,
are compared with stored votes in float64 on the CPU. Then layers and networks are
timed: step by step in Python, compiled (``torch.compile``), and as a CUDA graph; beside
stored votes, slot attention as textbooks have it, and the convolutions of CapsNet alone.
A profile shows what the processor does in a step before the GPU has anything to do. It
takes at most six minutes on one GPU, and needs torch, triton and numpy alone. With
``--device cpu`` it runs small sizes with the kernels of the CPU, to try the command
itself.
"""

import argparse
import copy
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import torchcaps as tc
from benchmarks import host, slots
from benchmarks.cases import (
    CASES,
    MATRIXCAPSNET,
    Case,
    NetworkCase,
    SlotsCase,
    YardstickCase,
    call_of,
    class_caps,
    with_batch,
)
from benchmarks.measure import peak_on_gpu, timed
from benchmarks.report import MIB
from torchcaps.models import ClassifierNetwork
from torchcaps.routing import create_routing, list_routings

TOLERANCE = 2e-3
"""The most that a tensor may differ, as a share of its length: EM routing's gradients
are steep. More is right where stored votes in float32 are a third as far off.
"""
CHECKING, TIMING = 150.0, 330.0
"""Seconds after which no further check, and no further time, is begun."""
ON_CPU = ("capsnet_digits", "sharedcapsnet_cnn")
"""Networks that are checked with ``--device cpu``: small ones."""

AIMS = {
    ("DigitCaps 128", "eager"): 1.5,
    ("DigitCaps 128", "graph"): 0.35,
    ("DigitCaps 2048", "eager"): 4.0,
    ("ConvCaps1 64", "eager"): 6.0,
    ("MatrixCapsNet 64-8-16 64", "eager"): 10.0,
    ("MatrixCapsNet 64-8-16 64", "graph"): 3.0,
    ("CapsNet 128", "eager"): 4.0,
    ("CapsNet 128", "graph"): 2.6,
}
"""Milliseconds of a training step on an H100."""


@dataclass(frozen=True)
class Timing:
    """Milliseconds of a forward pass and of a training step, and the step's peak memory.

    Args:
        case: the layer or network, and its batch.
        way: how it ran.
        forward: None where it was not measured.
        step: likewise.
        memory: MiB beyond what was there before; None on a CPU.
    """

    case: str
    way: str
    forward: float | None
    step: float | None
    memory: float | None

    def __str__(self) -> str:
        values = {"forward": self.forward, "step": self.step, "MiB": self.memory}
        times = [
            f"{name} {'       -' if value is None else f'{value:8.3f}'}"
            for name, value in values.items()
        ]
        return f"{self.case:26s} {self.way:10s} " + "  ".join(times)


Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Trial:
    """One layer or network to time.

    Args:
        name: of it, with the batch.
        case: what is timed.
        stored: whether it is timed with stored votes, too.
        profiled: whether the processor's time is looked into.
    """

    name: str
    case: Case
    stored: bool = True
    profiled: bool = False


def trials(small: bool) -> list[Trial]:
    """What is timed; ``small``: at sizes for trying the command."""
    few = 2 if small else 64
    digits = [4] if small else [128, 2048]
    matrix = NetworkCase("matrixcapsnet", few, MATRIXCAPSNET)
    return [
        *(
            Trial(
                f"DigitCaps {batch}",
                with_batch(CASES["digitcaps"], batch),
                profiled=batch == digits[0],
            )
            for batch in digits
        ),
        *_heads(small),
        *_slots(small),
        Trial(f"ConvCaps1 {few}", with_batch(CASES["convcaps1"], few)),
        Trial(f"MatrixCapsNet 64-8-16 {few}", matrix),
        Trial(f"CapsNet {2 * few}", with_batch(CASES["capsnet"], 2 * few)),
    ]


def _heads(small: bool) -> Iterator[Trial]:
    """Class capsules over maps of 32 types, whose places share their transforms."""
    sizes = ((2, 3, 5),) if small else ((128, 7, 10), (8, 14, 100), (8, 7, 1000))
    for batch, side, classes in sizes:
        for name in ("dynamic", "kmeans"):
            routing = partial(create_routing, name)
            # Routing to 1000 classes would store 6 GB of votes.
            yield Trial(
                f"Head {name} {batch} x {side}x{side}, {classes}",
                class_caps(batch, side, classes, routing, coordinates=True),
                stored=classes < 1000,
                profiled=classes == sizes[0][-1],
            )


def _slots(small: bool) -> Iterator[Trial]:
    """Slot attention, ours and the textbook's with the same weights."""
    tiny = slots.Sizes(2, 16, 8, 3)
    for sizes in [tiny] if small else slots.SIZES["cuda"]:
        batch, count, dim, parents = sizes
        name = f"{batch} x {count} x {dim}, {parents}"
        for kind in ("Slots", "Textbook"):
            layer = partial(_slot_layer, kind, sizes)
            yield Trial(
                f"{kind} {name}",
                SlotsCase(kind, batch, layer, (count, dim)),
                stored=False,
                profiled=sizes in (tiny, slots.SIZES["cuda"][0]),
            )


def _slot_layer(kind: str, sizes: slots.Sizes) -> nn.Module:
    textbook = slots.Textbook(sizes)
    return slots.ours(textbook, sizes) if kind == "Slots" else textbook


def _milliseconds(call: Callable[[], object], device: str) -> float:
    """The median of several calls."""
    for _ in range(2 if device == "cpu" else 5):
        call()
    if device == "cuda":
        from triton.testing import do_bench

        return float(do_bench(call, warmup=20, rep=150, return_mode="median"))
    return 1000 * statistics.median([timed(call, device) for _ in range(3)])


def _graph(call: Callable[[], object]) -> Callable[[], object]:
    """The call as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def time_trial(trial: Trial, way: str, device: str) -> Timing:
    """One trial in one way.

    Args:
        trial: the layer or network.
        way: ``eager``, ``compiled``, ``graph`` (a CUDA graph of the eager step), or
            ``naive`` for stored votes.
        device: ``cuda`` or ``cpu``.
    """
    backend = "naive" if way == "naive" else _backend(device)
    options = {"fullgraph": True} if way == "compiled" else {}
    step = call_of(trial.case, backend, True, device, **options)
    if way == "graph":
        return Timing(trial.name, way, None, _milliseconds(_graph(step), device), None)
    forward = call_of(trial.case, backend, False, device, **options)
    return Timing(
        trial.name,
        way,
        _milliseconds(forward, device),
        _milliseconds(step, device),
        peak_on_gpu(step) / MIB if device == "cuda" else None,
    )


def _backend(device: str) -> str | None:
    """The kernels of Triton on a GPU, and what is chosen on a CPU."""
    return "triton" if device == "cuda" else None


def timings(device: str, show: Callable[[str], None], until: float) -> Iterator[Timing]:
    """All trials in all ways; one that fails is shown, and left out."""
    small = device == "cpu"
    ways = ["eager", "graph", "naive", "compiled"]
    if small:
        ways = ["eager", "naive"]
    batch = 4 if small else 128
    plain = Trial(f"CapsNet's CNN {batch}", YardstickCase("yardstick", batch))
    pairs = [
        (trial, way)
        for way in ways
        for trial in trials(small)
        if trial.stored or way != "naive"
    ]
    for trial, way in [(plain, "eager"), *pairs]:
        if time.monotonic() > until:
            show(f"time is up before {trial.name} {way}")
            return
        try:
            timing = time_trial(trial, way, device)
        except Exception as error:
            show(f"{trial.name} {way}: {type(error).__name__}: {str(error)[:200]}")
            continue
        show(str(timing))
        yield timing


def profiles(device: str, show: Callable[[str], None]) -> dict[str, Any]:
    """What the processor does in an eager training step, by trial."""
    results = {}
    for trial in trials(device == "cpu"):
        if not trial.profiled:
            continue
        try:
            step = call_of(trial.case, _backend(device), True, device)
            result = results[trial.name] = host.profile(step, device)
        except Exception as error:
            show(f"{trial.name} profile: {type(error).__name__}: {str(error)[:200]}")
            continue
        shares = ", ".join(f"{k} {v:.3f}" for k, v in result["milliseconds"].items())
        launches = result["launches of Triton"]
        each = result["microseconds a launch"]
        show(f"HOST {trial.name}: {shares} ms; {launches} launches of {each} us")
    return results


def _checked_layers(name: str) -> Iterator[tuple[str, nn.Module, Inputs]]:
    """Four small layers with a routing, and their children in float64."""
    routing = create_routing(name)
    matrix = (4, 4)
    window: Any = {"competition": "window"} if routing.within_window else {}
    layers: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
        "vectors": (partial(tc.CapsLinear, 96, 10, 8, 16), (16, 96)),
        "matrices": (partial(tc.CapsLinear, 50, 9, matrix, matrix), (12, 50)),
        "windows": (
            partial(tc.CapsConv2d, 6, 5, matrix, matrix, 3, 2, **window),
            (4, 9, 9, 6),
        ),
        "places": (partial(tc.ClassCaps, 6, 10, 8, 16), (4, 5, 5, 6)),
    }
    for kind, (make, shape) in layers.items():
        torch.manual_seed(0)
        layer: Any = make(routing=create_routing(name)).double()
        poses = torch.randn(*shape, *layer.in_pose, dtype=torch.float64) * 0.5
        activation = torch.rand(*shape, dtype=torch.float64)
        yield kind, layer, (poses, activation)


def _checked_networks(device: str) -> Iterator[tuple[str, nn.Module, Inputs]]:
    """Networks with two images in float64, in evaluation mode: nothing is drawn."""
    for name in ON_CPU if device == "cpu" else tc.list_models(takes="images"):
        torch.manual_seed(0)
        network = tc.create_model(name).double().eval()
        yield name, network, (network.examples(2).double(),)


def _outputs(module: nn.Module, inputs: Inputs) -> Sequence[Tensor]:
    """Poses and activations of a layer; what a network says of the classes."""
    if isinstance(module, ClassifierNetwork):
        return (module(*inputs).activation,)
    parents: tc.Capsules = module(tc.Capsules(*inputs))
    return parents


def _results(layer: nn.Module, inputs: Inputs, backend: str) -> list[Tensor]:
    """What a layer or network returns, and all gradients, for fixed gradients from
    above.
    """
    inputs = tuple(tensor.clone().requires_grad_() for tensor in inputs)
    with tc.use_backend(backend):
        parents = _outputs(layer, inputs)
    generator = torch.Generator().manual_seed(1)
    upstream = [
        torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
        for tensor in parents
    ]
    torch.autograd.backward(list(parents), upstream)
    grads = [tensor.grad for tensor in (*inputs, *layer.parameters())]
    return [*parents, *(tensor for tensor in grads if tensor is not None)]


def _difference(tensor: Tensor, expected: Tensor) -> float:
    """As a share of the length of what is expected."""
    expected = expected.detach()
    error = (tensor.detach().double().cpu() - expected).norm()
    least = 1e-3 * math.sqrt(max(1, expected.numel()))
    return float(error / expected.norm().clamp(min=least))


def _worst(results: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference of all tensors."""
    pairs = zip(results, expected, strict=True)
    differences = [_difference(result, right) for result, right in pairs]
    return float(torch.tensor(differences).max())  # NaN if one is


def _rounding(layer: nn.Module, inputs: Inputs) -> float:
    """What float32 makes of a layer with stored votes: steep gradients magnify it."""
    expected = _results(copy.deepcopy(layer), inputs, "naive")
    rounded = tuple(tensor.float() for tensor in inputs)
    return _worst(_results(copy.deepcopy(layer).float(), rounded, "naive"), expected)


def _subjects(device: str) -> Iterator[tuple[str, nn.Module, Inputs]]:
    """What is checked, with a name, and its inputs in float64."""
    for routing in list_routings():
        if create_routing(routing).trainable:
            for kind, layer, inputs in _checked_layers(routing):
                yield f"{routing}, {kind}", layer, inputs
    yield from _checked_networks(device)


def check(device: str, show: Callable[[str], None], until: float) -> list[str]:
    """What is wrong: a line for each routing, layer, network and backend that differs
    from stored votes in float64.
    """
    backends = ("auto", "triton") if device == "cuda" else ("auto",)
    wrong: list[str] = []
    compared = 0
    for name, module, inputs in _subjects(device):
        if time.monotonic() > until:
            wrong.append(f"time was up before {name}")
            break
        expected = _results(copy.deepcopy(module), inputs, "naive")
        for backend in backends:
            try:
                moved = copy.deepcopy(module).to(device, torch.float32)
                given = tuple(tensor.to(device, torch.float32) for tensor in inputs)
                results = _results(moved, given, backend)
            except ValueError:
                continue  # a backend that was asked for by name does not know it
            except Exception as error:
                wrong.append(f"{name}, {backend}: {error!r:.200}")
                continue
            worst = _worst(results, expected)
            compared += 1
            if not worst < TOLERANCE and not worst < 3 * _rounding(module, inputs):
                wrong.append(f"{name}, {backend}: off by {worst:.1e}")
    show(f"{compared} compared with stored votes in float64, {len(wrong)} differ")
    for line in wrong:
        show(f"WRONG {line}")
    return wrong


def short_of(results: Sequence[Timing]) -> list[str]:
    """A line for each aim that was missed."""
    lines = []
    for timing in results:
        aim = AIMS.get((timing.case, timing.way))
        if aim is not None and timing.step is not None and timing.step > aim:
            lines.append(
                f"{timing.case}, {timing.way}: {timing.step:.2f} ms, aim {aim} ms"
            )
    return lines


def run(options: argparse.Namespace, show: Callable[[str], None]) -> None:
    """Checks, times and profiles, and says what falls short.

    Raises:
        ValueError: if there is no GPU and none was waived.
    """
    device = options.device
    begin = time.monotonic()
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no GPU here: --device cpu tries the command itself")
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False  # three digits are not enough to compare
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    show(f"{name}, PyTorch {torch.__version__}, milliseconds, medians")
    wrong = check(device, show, begin + CHECKING)
    torch.backends.cudnn.allow_tf32 = True  # as trainings have it
    results = list(timings(device, show, begin + TIMING))
    profiled = profiles(device, show)
    short = short_of(results) if device == "cuda" else []
    for line in short:
        show(f"SHORT {line}")
    if options.out is not None:
        content = {
            "device": name,
            "torch": torch.__version__,
            "wrong": wrong,
            "short": short,
            "timings": [asdict(timing) for timing in results],
            "profiles": profiled,
        }
        options.out.write_text(json.dumps(content, indent=1) + "\n")
