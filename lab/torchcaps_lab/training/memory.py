"""Whether a training fits into memory, counted before anything is made."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn

from torchcaps.models import ClassifierNetwork
from torchcaps.routing import Routing
from torchcaps_lab.options.declarations import Schedule
from torchcaps_lab.training.options import OptimizerFactory, Running, Subject

SMALLER_SIDES = (128, 96, 64, 48, 32)
"""Heights and widths that are tried to find one that fits."""

SMALLER_MODELS = ("capsnet_on_backbone", "capsnet_small", "capsnet_digits")
"""Networks that are tried, the largest first."""

_SAMPLES = (2, 4)
"""Numbers of examples whose activations are counted: batch normalisation refuses a
single one.
"""


class Need(NamedTuple):
    """The least memory that a training takes, in bytes.

    Args:
        weights: the parameters and buffers of the network.
        gradients: the gradients of the parameters that are trained.
        state: the state of the optimizer.
        activations: what the backward pass of one batch needs, without that of capsule
            layers, which depends on the device.
        largest: the largest tensor of the network, in words.
    """

    weights: int
    gradients: int
    state: int
    activations: int
    largest: str

    @property
    def step(self) -> int:
        """What a step of the training takes."""
        return self.weights + self.gradients + self.state + self.activations

    @property
    def rehearsal(self) -> int:
        """What the step with two images takes that a copy makes on the CPU, before the
        training.
        """
        return 2 * self.weights + self.gradients + self.state


def check_memory(
    subject: Subject, optimizer: OptimizerFactory, schedule: Schedule, running: Running
) -> Need:
    """Counts the memory of a training before its network is made.

    Raises:
        ValueError: if the machine has less: names the sizes, the largest tensor and, if
            there is one, what fits.
    """
    need = needed(
        subject.outline(), optimizer, schedule.batch_size, running.trainer.precision
    )
    have = available_memory()
    if have is not None and _on_the_machine(need, running) > have:
        advice = "; ".join(_what_fits(subject, optimizer, schedule, running, have))
        raise ValueError(
            _too_large(
                subject.architecture, need, schedule, have, "this machine has", advice
            )
        )
    return need


def check_device(
    need: Need, trainer: Trainer, subject: Subject, schedule: Schedule
) -> None:
    """Compares what a training needs with the free memory of the accelerator that it
    will run on.

    Several processes may share weights and batches in many ways, so what each of them
    takes is not known.

    Raises:
        ValueError: if that is less.
    """
    device = trainer.strategy.root_device
    if device.type != "cuda" or trainer.world_size > 1:
        return
    have, _ = torch.cuda.mem_get_info(device)
    if need.step > have:
        raise ValueError(
            _too_large(subject.architecture, need, schedule, have, f"{device} has", "")
        )


def needed(
    network: ClassifierNetwork,
    optimizer: OptimizerFactory,
    batch_size: int,
    precision: int | str | None,
) -> Need:
    """The memory of a training with a network on the device ``meta``.

    With a precision of 16 bits activations take half of what they do in the precision
    of the weights.
    """
    tensors = dict([*network.named_parameters(), *network.named_buffers()])
    gradients = sum(
        [weight.nbytes for weight in network.parameters() if weight.requires_grad]
    )
    sizes = [tensor.nbytes for tensor in tensors.values()]
    name = [*tensors][sizes.index(max(sizes))] if tensors else ""
    largest = ""
    if name:
        largest = f"{name} {tuple(tensors[name].shape)} alone has {_size(tensors[name].nbytes)}"
    weights = sum(sizes)
    activations = _activations(network, batch_size) // (
        2 if "16" in str(precision) else 1
    )
    return Need(
        weights,
        gradients,
        int(gradients * _state_share(optimizer)),
        activations,
        largest,
    )


def available_memory() -> int | None:
    """The bytes that this process can still take, with those in swap; None where the
    system does not say.

    The least of what the machine has, what the control group of the process may still
    take, and its own limit.
    """
    bounds = (_of_machine(), _of_group(), _of_process())
    return min((bound for bound in bounds if bound is not None), default=None)


def _on_the_machine(need: Need, running: Running) -> int:
    """What the machine must have; the steps of a training on an accelerator take memory
    there.
    """
    elsewhere = (
        running.trainer.accelerator != "cpu" and torch.accelerator.is_available()
    )
    return need.rehearsal if elsewhere else max(need.rehearsal, need.step)


def _too_large(
    model: str, need: Need, schedule: Schedule, have: int, whose: str, advice: str
) -> str:
    """The message."""
    parts = (
        f"weights {_size(need.weights)}, gradients {_size(need.gradients)}, optimizer "
        f"{_size(need.state)}, activations "
        f"of a batch of {schedule.batch_size} {_size(need.activations)}"
    )
    most = _size(max(need.step, need.rehearsal))
    return (
        f"{model} takes at least {most} to train ({parts}), and {whose} {_size(have)} "
        f"free; {need.largest}"
        + (
            f". These fit: {advice}"
            if advice
            else ". Choose a smaller network, smaller images or a smaller batch_size"
        )
    )


def _what_fits(
    subject: Subject,
    optimizer: OptimizerFactory,
    schedule: Schedule,
    running: Running,
    have: int,
) -> Iterator[str]:
    """Options with which the training fits: a smaller batch, smaller images, another
    network.
    """

    def fits(changed: Subject, batch_size: int, **arguments: Any) -> bool:
        with suppress(ValueError, TypeError):
            need = needed(
                changed.outline(**arguments),
                optimizer,
                batch_size,
                running.trainer.precision,
            )
            return _on_the_machine(need, running) <= have
        return False

    size = schedule.batch_size
    for half in range(1, size.bit_length()):
        if fits(subject, size >> half):
            yield f"--batch_size {size >> half}"
            break
    shape = subject.data.arguments(subject.preprocess).get("image_shape")
    if shape is not None:
        for side in SMALLER_SIDES:
            smaller = (shape[0], side, side)
            if side < max(shape[1:]) and fits(subject, size, image_shape=smaller):
                yield f"--data.size {side}"
                break
    for name in SMALLER_MODELS:
        if fits(replace(subject, model=name, model_args=None), size):
            yield f"--model {name}"
            break


def _activations(network: ClassifierNetwork, batch_size: int) -> int:
    """Bytes that are kept for the backward pass of a batch, outside of capsule layers.

    They are ``once + batch_size * each``: batch normalisation keeps its statistics once.
    """
    few, many = _SAMPLES
    kept_of_few = _bytes_kept(network, few)
    kept_of_others = _bytes_kept(network, many) - kept_of_few
    return kept_of_few + kept_of_others * (batch_size - few) // (many - few)


def _bytes_kept(network: ClassifierNetwork, samples: int) -> int:
    """Bytes that are kept for the backward pass of some examples, outside of capsule
    layers.

    What these keep depends on the backend, which depends on the device. 0 for a network
    that does not run on ``meta``.
    """
    ours = {weight.untyped_storage()._cdata for weight in network.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}
    inside: list[nn.Module] = []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not inside and storage._cdata not in ours:
            saved[storage._cdata] = storage
        return tensor

    shape: tuple[int, ...] | None = getattr(network, "image_shape", None)
    if shape is None:
        images = network.examples(samples)
    else:
        images = torch.zeros(samples, *shape, device="meta")
    target = torch.zeros(samples, dtype=torch.int64, device="meta")
    try:
        with (
            _watched(network, inside),
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        ):
            network.train()(images.to("meta"), target)
    # Networks of the user may do anything.
    except Exception:
        return 0
    return sum([storage.nbytes() for storage in saved.values()])


@contextmanager
def _watched(network: nn.Module, inside: list[nn.Module]) -> Iterator[None]:
    """Keeps the layers with a routing that are running in a list."""
    routed = [
        module
        for module in network.modules()
        if isinstance(getattr(module, "routing", None), Routing)
        and module is not network
    ]
    handles = [
        layer.register_forward_pre_hook(lambda layer, _: inside.append(layer))
        for layer in routed
    ]
    handles += [
        layer.register_forward_hook(lambda *_: inside.pop() and None, always_call=True)
        for layer in routed
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _state_share(optimizer: OptimizerFactory) -> float:
    """The numbers that an optimizer keeps for each parameter after a step: 2 for
    Adam.
    """
    weight = nn.Parameter(torch.zeros(16, 16))
    weight.grad = torch.zeros_like(weight)
    try:
        stepping = optimizer([weight])
        stepping.step()
    # Some want a closure, or a device: nothing is known of these.
    except Exception:
        return 0.0
    numbers = 0
    for state in stepping.state.values():
        tensors = [value for value in state.values() if isinstance(value, Tensor)]
        numbers += sum(tensor.numel() for tensor in tensors if tensor.ndim)
    return numbers / weight.numel()


def _of_machine() -> int | None:
    """What the machine has, with its swap."""
    with suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        kilobytes = {}
        for line in lines:
            name, _, value = line.partition(":")
            kilobytes[name] = int(value.split()[0])
        return 1024 * (kilobytes["MemAvailable"] + kilobytes["SwapFree"])
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


_GROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    (
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)
"""Where Linux states the memory of a control group: its folder, the limit, the use, and
in it that of cached files.
"""


def _of_group() -> int | None:
    """What the control group that a container runs in may still take; its cached files
    do not count.
    """
    for folder, limit, used, cached in _GROUPS:
        with suppress(OSError, ValueError, KeyError):
            most = int((Path(folder) / limit).read_text())
            lines = (Path(folder) / "memory.stat").read_text().splitlines()
            stated = dict(map(str.split, lines))
            return most - int((Path(folder) / used).read_text()) + int(stated[cached])
    return None


def _of_process() -> int | None:
    """What the limit of the process on its addresses leaves, as ``ulimit -v`` sets
    it.
    """
    with suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        if limit == resource.RLIM_INFINITY:
            return None
        return limit - pages * resource.getpagesize()
    return None


def _size(size: int) -> str:
    """Bytes for people."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
