"""What PyTorch's own tools do with every network: ``torch.func``, data parallelism,
saving of what networks return.
"""

import copy
import inspect
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.utils import _pytree

import torchcaps as tc
from tests.small_networks import SMALLER, shipped
from torchcaps import CapsLinear, create_model
from torchcaps.layers import PositionCode, SlotCaps
from torchcaps.models import SpatialBroadcastDecoder
from torchcaps.routing import SlotAttentionRouting

QUICK = (
    "capsnet_digits",
    "efficient_capsnet_smallnorb",
    "series_capsnet",
    "slot_autoencoder",
    "text_capsnet",
)
"""Networks that each run checks; a thorough one checks all."""
EVERY = pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough)
        for name in shipped()
    ],
)
OTHER_KINDS = sorted({*shipped()} - {*shipped("images")})
"""Networks of series, texts and pixels."""
STARTS = {"routing": SlotAttentionRouting(start="normal"), "starts": 2}
SLOWLY_MAPPED = pytest.mark.filterwarnings("ignore:There is a performance drop because")
"""torch maps a GRU cell and the gradient of ``unfold`` example by example."""


def small(name: str) -> nn.Module:
    torch.manual_seed(0)
    return create_model(name, **SMALLER.get(name, {})).double().eval()


def examples_of(network: Any, count: int) -> Tensor:
    batch: Tensor = network.examples(count)
    return batch.double() if batch.is_floating_point() else batch


def tensors(output: Any) -> list[Tensor]:
    leaves = _pytree.tree_leaves(output)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def of_one_example(network: nn.Module) -> tuple[dict[str, Tensor], Any]:
    """The weights of a network, and a loss of these and an example."""

    def objective(weights: dict[str, Tensor], example: Tensor) -> Tensor:
        prediction = functional_call(network, weights, (example[None],))
        return prediction.activation.square().sum()

    weights = {key: weight.detach() for key, weight in network.named_parameters()}
    return weights, objective


@SLOWLY_MAPPED
@EVERY
def test_gradients_of_each_example(name: str) -> None:
    """``vmap`` over ``grad``, as for differential privacy and influence functions."""
    network = small(name).requires_grad_()
    examples = examples_of(network, 2)
    weights, objective = of_one_example(network)
    together = vmap(grad(objective), (None, 0))(weights, examples)
    parameters = list(network.parameters())
    for row, example in enumerate(examples):
        loss = network(example[None]).activation.square().sum()
        alone = torch.autograd.grad(loss, parameters, materialize_grads=True)
        for gradient, expected in zip(together.values(), alone, strict=True):
            torch.testing.assert_close(gradient[row], expected, rtol=1e-6, atol=1e-9)


def test_gradients_of_each_example_without_running_values() -> None:
    """As torch's notes on batch normalisation and ``torch.func`` have it."""
    network = small("efficient_capsnet").train()
    torch.func.replace_all_batch_norm_modules_(network)
    examples = examples_of(network, 2)
    weights, objective = of_one_example(network)
    together = vmap(grad(objective), (None, 0))(weights, examples)
    alone = grad(objective)(weights, examples[1])
    for key, gradient in together.items():
        torch.testing.assert_close(gradient[1], alone[key], rtol=1e-6, atol=1e-9)


@SLOWLY_MAPPED
@EVERY
def test_an_ensemble_in_one_call(name: str) -> None:
    """The recipe of torch's tutorial on ensembles, with a network without numbers."""
    members = [small(name) for _ in range(2)]
    with torch.no_grad():
        for parameter in members[1].parameters():
            parameter.mul_(1.1)
    weights, buffers = stack_module_state(members)
    skeleton = small(name).to("meta")
    examples = examples_of(skeleton, 2)

    def answers(weights: Any, buffers: Any) -> list[Tensor]:
        return tensors(functional_call(skeleton, (weights, buffers), (examples,)))

    together = vmap(answers)(weights, buffers)
    each = [tensors(member(examples)) for member in members]
    for answer, expected in zip(together, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(answer, torch.stack(expected), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "name",
    [
        # Tracing takes seconds: the others in a thorough run.
        "series_capsnet",
        *(
            pytest.param(name, marks=pytest.mark.thorough)
            for name in ("scene_cnn", "scene_capsnet", *OTHER_KINDS)
            if name != "series_capsnet"
        ),
    ],
)
def test_networks_of_other_kinds_export_with_any_batch(name: str) -> None:
    """tests/ops/test_compiled_and_exported.py has those of images."""
    network = small(name)
    program = torch.export.export(
        network,
        (examples_of(network, 3),),
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    ).module()
    more = examples_of(network, 5)
    answers = zip(tensors(program(more)), tensors(network(more)), strict=True)
    for answer, expected in answers:
        torch.testing.assert_close(answer, expected)


class ActivationOf(nn.Module):
    """The activation alone: ``torch.jit.trace`` takes no result with a part that is
    None.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, examples: Tensor) -> Tensor:
        activation: Tensor = self.network(examples).activation
        return activation


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.trace:FutureWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
@EVERY
def test_a_trace_takes_any_batch(name: str) -> None:
    network = small(name)
    examples = examples_of(network, 2)
    traced = torch.jit.trace(ActivationOf(network), examples, check_trace=False)
    more = examples_of(network, 5)
    torch.testing.assert_close(traced(more), network(more).activation)


def replica_of(module: nn.Module) -> nn.Module:
    """What ``torch.nn.DataParallel`` makes of a module: its parameters are tensors, and
    none is registered.
    """
    replica: nn.Module = module._replicate_for_data_parallel()
    replica.__dict__["_former_parameters"] = former = {}
    for name, child in module.named_children():
        replica._modules[name] = replica_of(child)
    for name, parameter in module._parameters.items():
        if parameter is None:
            replica._parameters[name] = None
        else:
            replica.__dict__[name] = former[name] = parameter.view_as(parameter)
    return replica


@EVERY
def test_replicas_of_data_parallel(name: str) -> None:
    network = small(name)
    examples = examples_of(network, 2)
    replica = replica_of(network)
    assert not list(replica.parameters())
    pairs = zip(tensors(replica(examples)), tensors(network(examples)), strict=True)
    for answer, expected in pairs:
        torch.testing.assert_close(answer, expected)


def test_a_replica_of_slots_keeps_the_precision_of_its_weights() -> None:
    slots = tc.Slots(3, features=6, dim=8).eval()
    features = torch.randn(2, 9, 6, dtype=torch.bfloat16)
    assert replica_of(slots)(features).pose.dtype == slots(features).pose.dtype


def convolutions_of(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d):
            yield name, module


@EVERY
def test_backward_hooks_of_convolutions(name: str) -> None:
    """As Grad-CAM's: no later layer changes in place what a hooked one gave."""
    network = small(name).requires_grad_()
    reached = set()
    for place, module in convolutions_of(network):
        module.register_full_backward_hook(lambda *_, place=place: reached.add(place))
    examples = examples_of(network, 2)
    if examples.is_floating_point():
        examples.requires_grad_()
    sum(tensor.sum() for tensor in tensors(network(examples))).backward()
    assert reached == {place for place, _ in convolutions_of(network)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")  # of the operators
@EVERY
def test_quantized_linear_layers(name: str) -> None:
    """Their weights are methods."""
    network = small(name).float()
    examples = network.examples(3)
    exact = tensors(network(examples))
    smaller = torch.ao.quantization.quantize_dynamic(network, {nn.Linear})
    for answer, expected in zip(tensors(smaller(examples)), exact, strict=True):
        if expected.is_floating_point():
            assert (answer - expected).norm() <= 0.05 * expected.norm()


RETURNED = {
    "a capsule layer": lambda: tc.CapsLinear(5, 3, 4, 4)(torch.randn(2, 5, 4)),
    "a network": lambda: small("capsnet_digits")(torch.rand(2, 1, 8, 8).double()),
    "slots of interests": lambda: SlotCaps(8, 5, 3)(torch.randn(2, 7, 8)),
    "a decoder of slots": lambda: SpatialBroadcastDecoder(8, 4, 3)(
        torch.randn(2, 5, 8), 6, 6
    ),
}


@pytest.mark.parametrize("kind", RETURNED)
def test_what_a_module_returns_is_saved_and_loaded_without_running_code(
    kind: str,
) -> None:
    returned = RETURNED[kind]()
    file = BytesIO()
    torch.save(returned, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert type(loaded) is type(returned)
    for tensor, expected in zip(tensors(loaded), tensors(returned), strict=True):
        assert torch.equal(tensor, expected)


def returned_classes() -> set[type]:
    """The named tuples that a forward method here says it returns."""
    modules = [
        cls
        for cls in subclasses_of(nn.Module)
        if cls.__module__.startswith("torchcaps.") and "forward" in vars(cls)
    ]
    returned = {
        inspect.get_annotations(cls.forward, eval_str=True).get("return")
        for cls in modules
    }
    return {cls for cls in returned if hasattr(cls, "_fields")}


def subclasses_of(cls: type) -> Iterator[type]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from subclasses_of(subclass)


def test_every_named_tuple_of_a_module_can_be_in_an_exported_program() -> None:
    names = {cls.__name__ for cls in returned_classes()}
    assert {"Capsules", "Prediction", "Drawing", "SlotAnswer"} <= names
    for cls in returned_classes() - {tc.routing.Routed}:  # holds votes, not tensors
        assert cls in _pytree.SUPPORTED_NODES, cls


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_a_program_that_takes_capsules_loads_without_running_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer = tc.CapsLinear(5, 3, 4, 4).eval()
    children = tc.Capsules(torch.randn(2, 5, 4), torch.rand(2, 5))
    file = BytesIO()
    torch.export.save(torch.export.export(layer, (children,)), file)
    file.seek(0)
    loads = torch.load
    safely = []

    def noted(*args: Any, **options: Any) -> Any:
        safely.append(options.get("weights_only", True))
        return loads(*args, **options)

    monkeypatch.setattr(torch, "load", noted)
    program = torch.export.load(file).module()
    assert all(safely)
    torch.testing.assert_close(program(children).pose, layer(children).pose)


def test_the_code_of_positions_is_made_where_the_maps_are() -> None:
    code = PositionCode(8)
    maps = torch.randn(2, 8, 3, 4)
    expected = code(maps)
    torch.set_default_device("meta")
    try:
        actual = code(maps)
    finally:
        torch.set_default_device(None)
    assert torch.equal(actual, expected)


def test_slots_start_alike_under_any_default_dtype() -> None:
    """What they start from in evaluation is drawn once, always the same."""
    expected = tc.Slots(3, features=6, dim=8).routing.first.noise
    torch.set_default_dtype(torch.float64)
    try:
        noise = tc.Slots(3, features=6, dim=8).routing.first.noise
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(noise, expected.double())


def test_routing_that_normalises_goes_on_without_running_values() -> None:
    layer = CapsLinear(6, 3, 4, 4, routing="variational_bayes")
    poses = torch.randn(5, 6, 4)
    expected = layer.train()(poses).pose
    torch.func.replace_all_batch_norm_modules_(layer)
    for mode in (True, False):
        torch.testing.assert_close(layer.train(mode)(poses).pose, expected)


def test_counts_of_batches_may_be_nowhere() -> None:
    with torch.device("meta"):
        network = create_model("sharedcapsnet_maps", batch_norm=True)
    network.load_state_dict(network.state_dict())
    with FakeTensorMode():
        network = create_model("sharedcapsnet_maps", batch_norm=True)
        network.load_state_dict(network.state_dict())


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize(
    ("name", "arguments"), [("self_routing_resnet20", {}), ("slot_autoencoder", STARTS)]
)
def test_built_without_memory(
    name: str, arguments: dict[str, Any], assign: bool
) -> None:
    """What is always the same is no part of the file, and stands nowhere before it is
    loaded.
    """
    arguments = SMALLER[name] | arguments
    network: Any = create_model(name, **arguments).eval()
    with torch.device("meta"):
        again: Any = create_model(name, **arguments).eval()
    if not assign:
        again.to_empty(device="cpu")
        for buffer in again.buffers():
            buffer.fill_(7)
    again.load_state_dict(network.state_dict(), assign=assign)
    images = network.examples(2)
    for loaded_network in (again, copy.deepcopy(again).to("cpu")):
        assert torch.equal(
            loaded_network(images).capsules.pose, network(images).capsules.pose
        )
