"""What a training takes is counted before its network is made, and compared with what
there is.
"""

import resource
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchcaps as tc
from tests.runs import status
from torchcaps.models import ClassifierNetwork
from torchcaps.routing import Routing
from torchcaps_lab.data import Digits
from torchcaps_lab.options.declarations import Schedule, TrainerOptions
from torchcaps_lab.training import memory
from torchcaps_lab.training.options import OptimizerFactory, Running, Subject

ADAM: OptimizerFactory = partial(torch.optim.Adam, lr=1e-3)
CPU = Running(trainer=TrainerOptions(accelerator="cpu"))


def need(
    subject: Subject,
    optimizer: OptimizerFactory = ADAM,
    batch_size: int = 128,
    precision: str = "32-true",
) -> memory.Need:
    return memory.needed(subject.outline(), optimizer, batch_size, precision)


def test_weights_gradients_and_state_are_those_of_a_training() -> None:
    subject = Subject(data=Digits(), model="capsnet_digits")
    network = subject.network(0)
    weights = sum(tensor.nbytes for tensor in network.state_dict().values())
    actual = need(subject)
    assert (actual.weights, actual.gradients, actual.state) == (
        weights,
        weights,
        2 * weights,
    )
    plain = need(subject, partial(torch.optim.SGD, lr=0.1))
    momentum = need(subject, partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    assert (plain.state, momentum.state) == (0, weights)
    network.requires_grad_(False)
    assert memory.needed(network.to("meta"), ADAM, 2, "32-true").gradients == 0


@pytest.mark.parametrize(
    "model",
    [
        "capsnet_digits",
        "deepcaps",
        pytest.param("capsnet_small_cnn", marks=pytest.mark.thorough),
        pytest.param("capsnet_on_backbone", marks=pytest.mark.thorough),
    ],
)
def test_activations_are_those_that_a_step_keeps(model: str) -> None:
    """Outside of capsule layers, which keep more where vectors are longer.

    The capsule layers of DeepCaps are outside, too, where they form votes: on a CPU,
    einsum copies some that it does not copy on ``meta``.
    """
    subject = Subject(data=Digits(size=16 if model != "deepcaps" else 32), model=model)
    network = subject.network(0).train()
    counted = {}
    for batch in (4, 8):
        really = kept_outside_of_capsule_layers(network, batch)
        counted[batch] = need(subject, batch_size=batch).activations
        if model == "deepcaps":
            assert 0.9 * really < counted[batch] <= really
        else:
            assert counted[batch] == really
    halves = need(subject, batch_size=4, precision="bf16-mixed").activations
    assert halves == counted[4] // 2


def kept_outside_of_capsule_layers(network: ClassifierNetwork, batch: int) -> int:
    """The bytes that the forward pass keeps for the backward pass on a CPU."""
    weights = {weight.untyped_storage()._cdata for weight in network.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}
    running: list[nn.Module] = []
    hooks = []
    # The network itself names the routing of its last layer.
    for module in list(network.modules())[1:]:
        if isinstance(getattr(module, "routing", None), Routing):
            hooks += [
                module.register_forward_pre_hook(
                    lambda layer, _: running.append(layer)
                ),
                module.register_forward_hook(lambda *_: running.pop() and None),
            ]

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if not running and storage._cdata not in weights:
            storages[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(
            torch.zeros(batch, *network.image_shape),
            torch.zeros(batch, dtype=torch.int64),
        )
    for hook in hooks:
        hook.remove()
    return sum(storage.nbytes() for storage in storages.values())


def test_what_does_not_fit_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 500_000_000)
    subject = Subject(data=Digits(size=64), model="capsnet")
    monkeypatch.setattr(
        Subject, "network", lambda *_: pytest.fail("a network was made")
    )
    with pytest.raises(
        ValueError,
        match=r"capsnet takes at least \d\.\d GB to train \(weights .* GB, gradients",
    ) as error:
        memory.check_memory(subject, ADAM, Schedule(), CPU)
    message = str(error.value)
    assert "class_caps.weight (18432, 10, 8, 16) alone has 94.4 MB" in message
    assert "this machine has 0.5 GB free" in message
    assert "These fit: --data.size 32; --model capsnet_small" in message
    assert (
        status(
            "train",
            "Digits",
            "--data.size",
            "64",
            "--model",
            "capsnet",
            "--run",
            str(tmp_path / "run"),
        )
        == 1
    )
    with pytest.raises(ValueError, match="These fit"):
        tc.train("Digits", size=64, model="capsnet", run=tmp_path / "run", show=None)
    assert not (tmp_path / "run").exists()


@pytest.mark.thorough
def test_a_smaller_batch_is_advised_where_activations_are_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = Subject(data=Digits(size=32), model="deepcaps")
    monkeypatch.setattr(
        memory, "available_memory", lambda: need(subject, batch_size=50).step
    )
    with pytest.raises(ValueError, match="These fit: --batch_size 32;"):
        memory.check_memory(subject, ADAM, Schedule(batch_size=128), CPU)


def test_what_fits_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject(data=Digits(), model="capsnet_digits")
    actual = need(subject)
    for have in (max(actual.step, actual.rehearsal), None):
        monkeypatch.setattr(memory, "available_memory", lambda have=have: have)
        assert memory.check_memory(subject, ADAM, Schedule(), CPU) == actual


def test_a_routing_of_the_caller_stays_as_it_is() -> None:
    routing = tc.create_routing("heinsen_2019")
    need(Subject(data=Digits(), model="capsnet_digits", routing=routing))
    assert not any(weight.is_meta for weight in routing.parameters())


def test_memory_that_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    have = memory.available_memory()
    assert have is None or 2**20 < have < 2**50
    limit = 2**45
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert limit - 2**43 < (memory._of_process() or 0) < limit
    group = {
        "memory.max": "1000",
        "memory.current": "700",
        "memory.stat": "anon 500\ninactive_file 150",
    }
    for name, text in group.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(
        memory,
        "_GROUPS",
        ((tmp_path, "memory.max", "memory.current", "inactive_file"),),
    )
    assert memory._of_group() == memory.available_memory() == 450
    (tmp_path / "memory.max").write_text("max")
    assert memory._of_group() is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"classes": 10**9},
            r"capsnet_small does not fit into memory: its weights take \d+\.\d GB, "
            r".*weight \(",
        ),
        (
            {"classes": 10**18},
            "capsnet_small does not fit into memory: a size is too large",
        ),
    ],
)
def test_create_model_says_what_is_too_large(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tc.create_model("capsnet_small", **arguments)


def test_optimizers_that_cannot_step_alone_count_nothing() -> None:
    assert memory._state_share(partial(torch.optim.LBFGS, lr=1.0)) == 0
    assert memory._state_share(partial(torch.optim.RMSprop, lr=1.0)) == 1
