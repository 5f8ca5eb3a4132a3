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
from benchmarks.cases import DIGITCAPS, EM, YardstickCase
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
        times = [f"{name} {_number(value)}" for name, value in self._values()]
        return f"{self.case:26s} {self.way:10s} " + "  ".join(times)

    def _values(self) -> Sequence[tuple[str, float | None]]:
        return ("forward", self.forward), ("step", self.step), ("MiB", self.memory)


def _number(value: float | None) -> str:
    return "       -" if value is None else f"{value:8.3f}"


Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Trial:
    """One layer or network to time.

    Args:
        name: of it, with the batch.
        build: makes the module.
        inputs: makes what it takes.
        objective: from the module and its inputs to a number.
        stored: whether it is timed with stored votes, too.
        profiled: whether the processor's time is looked into.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    objective: Callable[..., Tensor]
    stored: bool = True
    profiled: bool = False


def _of_layer(module: nn.Module, *inputs: Tensor) -> Tensor:
    parents = module(tc.Capsules(*inputs))
    return parents.pose.square().sum() + parents.activation.sum()


def _of_slots(module: nn.Module, features: Tensor) -> Tensor:
    answer = module(features)
    pose: Tensor = answer.pose if isinstance(answer, tc.Capsules) else answer
    return pose.square().mean()


def _of_capsnet(module: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    output = module(images, labels)
    loss = tc.margin_loss(output.activation, labels)
    return loss + 0.0005 * tc.reconstruction_loss(output.reconstruction, images)


def _of_matrixcapsnet(module: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return tc.spread_loss(module(images).activation, labels, 0.5)


def _of_yardstick(module: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(module(images), labels)


def _children(batch: int, *shape: int, pose: tuple[int, ...]) -> Inputs:
    poses = torch.randn(batch, *shape, *pose) * 0.3
    return poses, torch.rand(batch, *shape)


def _images(batch: int, size: int, classes: int) -> Inputs:
    return torch.rand(batch, 1, size, size), torch.arange(batch) % classes


def trials(small: bool) -> list[Trial]:
    """What is timed; ``small``: at sizes for trying the command."""
    few = 2 if small else 64
    matrix = (4, 4)
    conv = partial(tc.CapsConv2d, 32, 32, matrix, matrix, 3, 2)
    network = partial(
        tc.create_model,
        "matrixcapsnet",
        image_shape=(1, 32, 32),
        classes=5,
        channels=64,
        types=(8, 16, 16),
    )
    capsnet = partial(tc.create_model, "capsnet", image_shape=(1, 28, 28), classes=10)
    digits = [4] if small else [128, 2048]
    layers = [
        Trial(
            f"DigitCaps {batch}",
            DIGITCAPS,
            partial(_children, batch, 1152, pose=(8,)),
            _of_layer,
            profiled=batch == digits[0],
        )
        for batch in digits
    ]
    return [
        *layers,
        *_heads(small),
        *_slots(small),
        Trial(
            f"ConvCaps1 {few}",
            lambda: conv(routing=EM()),
            partial(_children, few, 14, 14, 32, pose=matrix),
            _of_layer,
        ),
        Trial(
            f"MatrixCapsNet 64-8-16 {few}",
            network,
            partial(_images, few, 32, 5),
            _of_matrixcapsnet,
        ),
        Trial(
            f"CapsNet {2 * few}",
            capsnet,
            partial(_images, 2 * few, 28, 10),
            _of_capsnet,
        ),
    ]


def _heads(small: bool) -> Iterator[Trial]:
    """Class capsules over maps of 32 types, whose places share their transforms."""
    sizes = ((2, 3, 5),) if small else ((128, 7, 10), (8, 14, 100), (8, 7, 1000))
    for batch, side, classes in sizes:
        for name in ("dynamic", "kmeans"):
            # Routing to 1000 classes would store 6 GB of votes.
            yield Trial(
                f"Head {name} {batch} x {side}x{side}, {classes}",
                partial(_head, name, classes),
                partial(_children, batch, side, side, 32, pose=(8,)),
                _of_layer,
                stored=classes < 1000,
                profiled=classes == sizes[0][-1],
            )


def _head(routing: str, classes: int) -> nn.Module:
    return tc.ClassCaps(32, classes, 8, 16, routing=create_routing(routing))


def _slots(small: bool) -> Iterator[Trial]:
    """Slot attention, ours and the textbook's with the same weights."""
    tiny = slots.Sizes(2, 16, 8, 3)
    for sizes in [tiny] if small else slots.SIZES["cuda"]:
        batch, count, dim, parents = sizes
        name = f"{batch} x {count} x {dim}, {parents}"
        for kind in ("Slots", "Textbook"):
            yield Trial(
                f"{kind} {name}",
                partial(_slot_layer, kind, sizes),
                partial(_features, sizes),
                _of_slots,
                stored=False,
                profiled=sizes in (tiny, slots.SIZES["cuda"][0]),
            )


def _features(sizes: slots.Sizes) -> Inputs:
    return (torch.randn(*sizes[:3]),)


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
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - begin))
    return statistics.median(times)


def _memory(call: Callable[[], object], device: str) -> float | None:
    if device == "cpu":
        return None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _calls(
    trial: Trial, device: str, **compiling: Any
) -> tuple[Callable[[], None], ...]:
    """The forward pass and the training step, on the device."""
    torch.manual_seed(0)
    module = trial.build().to(device)
    inputs = tuple(tensor.to(device) for tensor in trial.inputs())
    for tensor in inputs:
        if tensor.is_floating_point() and trial.objective in (_of_layer, _of_slots):
            tensor.requires_grad_()
    leaves = [
        tensor for tensor in (*module.parameters(), *inputs) if tensor.requires_grad
    ]
    objective: Callable[..., Tensor] = partial(trial.objective, module)
    if compiling:
        torch.compiler.reset()  # of the limit of compilations
        objective = torch.compile(objective, **compiling)

    def forward() -> None:
        with torch.no_grad():
            objective(*inputs)

    def step() -> None:
        for leaf in leaves:
            leaf.grad = None
        objective(*inputs).backward()

    return forward, step


def _graph(call: Callable[[], None]) -> Callable[[], object]:
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
    backend = "naive" if way == "naive" else ("triton" if device == "cuda" else None)
    with tc.use_backend(backend):
        options = {"fullgraph": True} if way == "compiled" else {}
        forward, step = _calls(trial, device, **options)
        if way == "graph":
            return Timing(
                trial.name, way, None, _milliseconds(_graph(step), device), None
            )
        return Timing(
            trial.name,
            way,
            _milliseconds(forward, device),
            _milliseconds(step, device),
            _memory(step, device),
        )


def timings(device: str, show: Callable[[str], None], until: float) -> Iterator[Timing]:
    """All trials in all ways; one that fails is shown, and left out."""
    small = device == "cpu"
    ways = ["eager", "graph", "naive", "compiled"]
    if small:
        ways = ["eager", "naive"]
    yardstick = YardstickCase("yardstick", 128)
    batch = 4 if small else 128
    plain = Trial(
        f"CapsNet's CNN {batch}",
        yardstick.build,
        partial(_images, batch, 28, 10),
        _of_yardstick,
    )
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
            with tc.use_backend("triton" if device == "cuda" else None):
                _, step = _calls(trial, device)
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
    matrix = (4, 4)
    shapes = {
        "vectors": ((16, 96), (8,)),
        "matrices": ((12, 50), matrix),
        "windows": ((4, 9, 9, 6), matrix),
        "places": ((4, 5, 5, 6), (8,)),
    }
    for kind, (shape, pose) in shapes.items():
        torch.manual_seed(0)
        routing = create_routing(name)
        if kind == "vectors":
            layer: nn.Module = tc.CapsLinear(96, 10, 8, 16, routing=routing)
        elif kind == "matrices":
            layer = tc.CapsLinear(50, 9, matrix, matrix, routing=routing)
        elif kind == "places":
            layer = tc.ClassCaps(6, 10, 8, 16, routing=routing)
        else:
            conv = partial(tc.CapsConv2d, 6, 5, matrix, matrix, 3, 2, routing=routing)
            layer = conv(competition="window") if routing.within_window else conv()
        poses = torch.randn(*shape, *pose, dtype=torch.float64) * 0.5
        activation = torch.rand(*shape, dtype=torch.float64)
        yield kind, layer.double(), (poses, activation)


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
