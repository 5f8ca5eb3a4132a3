"""Checks of what training, saving and the command line rely on in a network."""

import copy
import json
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchcaps.losses import margin_loss
from torchcaps.models import (
    CapsuleNetwork,
    ClassifierNetwork,
    Network,
    create_model,
    load_pretrained,
)
from torchcaps.spec import declared
from torchcaps.testing.compare import attempt, by_name

BATCH = 3


@dataclass
class Subject:
    """The network that is checked, and how to make batches for it; each check works on
    its own copy.
    """

    network: Network
    batch: Callable[[Network, int], Tensor]

    def copy(self) -> Network:
        """Return the same network, without gradients."""
        twin = copy.deepcopy(self.network)
        twin.zero_grad()
        return twin

    def changed(self, **changes: Any) -> Network:
        """Return a fresh network with other arguments."""
        return type(self.network).from_config({**self.network.config(), **changes})


def check_model(
    model: Network | str,
    inputs: Callable[[int], Tensor] | None = None,
    *,
    skip: Collection[str] = (),
) -> None:
    """Assert that a network has everything that training, saving and the command line
    rely on.

    Checked are the configuration; forward and backward, with a gradient for every
    parameter; training and evaluation mode; one example alone and in a batch; autocast
    to bfloat16; saving and loading; ``torch.export``; and for a
    :class:`~torchcaps.models.ClassifierNetwork`, which has examples, shapes and ranges
    of its prediction, another number of classes and another image shape if it has one,
    its ``other_sizes`` if it claims to take any, and errors for its ``misfits``.

    Args:
        model: a network, which is not changed, or a registered name.
        inputs: makes a batch, given the number of examples; not needed for a
            classifier, which has examples; the checks of classifiers are left out
            then.
        skip: names of checks that do not hold for this network: a function of this
            module without its underscore.

    Raises:
        AssertionError: with the name of the check that failed, and what is off.
        TypeError: if ``model`` is neither.
        ValueError: if the network is not a classifier and ``inputs`` is missing, or a
            name in ``skip`` is not that of a check.
    """
    checks = by_name(CHECKS, skip)
    if not isinstance(model, Network | str):
        raise TypeError(f"model must be a network or the name of one, got {model!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = create_model(model) if isinstance(model, str) else model
        if inputs is None and not isinstance(network, ClassifierNetwork):
            raise ValueError(
                f"{type(network).__name__} is not an image classifier: inputs must "
                "make a batch for it"
            )
        make = inputs
        subject = Subject(
            network, _examples if make is None else lambda _, batch: make(batch)
        )
        if inputs is not None:
            checks = {
                name: check
                for name, check in checks.items()
                if check not in OF_CLASSIFIERS
            }
        for name, check in checks.items():
            torch.manual_seed(0)
            attempt(check, subject, network, name)


def _examples(network: Network, batch: int) -> Tensor:
    assert isinstance(network, ClassifierNetwork)
    return network.examples(batch)


def _tensors(output: Any) -> list[Tensor]:
    """All floating-point tensors in the output of a network."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, list | tuple):
        return [tensor for part in output for tensor in _tensors(part)]
    return []


def _expect_finite(output: Any, where: str) -> list[Tensor]:
    tensors = _tensors(output)
    if not tensors:
        raise AssertionError(
            f"{where} it returns no tensor that could be trained, but "
            f"{type(output).__name__}"
        )
    for number, tensor in enumerate(tensors):
        if not tensor.isfinite().all():
            raise AssertionError(
                f"{where} tensor {number} of its output holds NaN or infinite values"
            )
    return tensors


def _expect_close(actual: Any, expected: Any, where: str, tolerance: float) -> None:
    pairs = list(zip(_tensors(actual), _tensors(expected), strict=True))
    for number, (first, second) in enumerate(pairs):
        if first.shape != second.shape:
            raise AssertionError(
                f"{where} tensor {number} of its output is {tuple(first.shape)}, not "
                f"{tuple(second.shape)}"
            )
        error = 0.0
        if first.numel():
            error = (first - second).abs().max().item()
        allowed = tolerance * max(
            1.0, second.abs().max().item() if second.numel() else 0.0
        )
        if not error <= allowed:  # NaN included
            raise AssertionError(
                f"{where} tensor {number} of its output is off by {error:.3g} "
                f"({allowed:.3g} is allowed)"
            )


def _objective(network: Network, batch: Tensor, output: Any) -> Tensor:
    """A scalar that depends on the whole output: losses of a classifier, or a
    random sum of all tensors.
    """
    if not isinstance(network, ClassifierNetwork) or output.activation.ndim > 2:
        marks = (torch.randn_like(tensor) for tensor in _tensors(output))
        return torch.stack(
            [
                (tensor * mark).sum()
                for tensor, mark in zip(_tensors(output), marks, strict=True)
            ]
        ).sum()
    labels = torch.arange(len(batch)) % network.classes
    loss = margin_loss(output.activation, labels)
    if output.reconstruction is not None:
        loss = loss + (output.reconstruction - batch).square().mean()
    if output.features is not None:
        loss = loss + (output.features.drawn - output.features.true).square().mean()
    return loss


def _learn(network: Network, batch: Tensor) -> None:
    """Assert that a training step gives every parameter a gradient."""
    network.train().zero_grad()
    output = network(batch)
    _expect_finite(output, "in training")
    _objective(network, batch, output).backward()
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None or not (parameter.grad != 0).any():
            raise AssertionError(f"its parameter {name} gets no gradient")
        if not parameter.grad.isfinite().all():
            raise AssertionError(
                f"the gradient of its parameter {name} holds NaN or infinite values"
            )


def _configuration(subject: Subject) -> None:
    config = subject.network.config()
    again = type(subject.network).from_config(json.loads(json.dumps(config)))
    if again.config() != config:
        raise AssertionError(f"made again from {config}, it has {again.config()}")
    ours, theirs = (
        {n: t.shape for n, t in network.state_dict().items()}
        for network in (subject.network, again)
    )
    if ours != theirs:
        raise AssertionError(
            f"made again from its configuration, its weights are {theirs}, not {ours}"
        )


def _learning(subject: Subject) -> None:
    _learn(subject.copy(), subject.batch(subject.network, BATCH))


def _one_example(subject: Subject) -> None:
    """Check that in evaluation mode, an example gives the same alone as in a batch, and
    each time.
    """
    network = subject.copy().eval()
    batch = subject.batch(network, BATCH)
    with torch.no_grad():
        together = network(batch)
        _expect_close(network(batch), together, "in evaluation, the second time,", 0.0)
        for number in range(BATCH):
            alone = network(batch[number : number + 1])
            expected = [tensor[number : number + 1] for tensor in _tensors(together)]
            _expect_close(alone, expected, f"example {number} alone:", 1e-3)


def _training_and_evaluation(subject: Subject) -> None:
    network = subject.copy()
    batch = subject.batch(subject.network, BATCH)
    for mode in (True, False):
        network.train(mode)
        _expect_finite(network(batch), "in training" if mode else "in evaluation")
    for name, parameter in network.named_parameters():
        if not torch.equal(parameter, subject.network.get_parameter(name)):
            raise AssertionError(f"a forward pass changed its parameter {name}")


def _autocast(subject: Subject) -> None:
    network = subject.copy()
    batch = subject.batch(network, BATCH)
    with torch.autocast(batch.device.type, torch.bfloat16):
        output = network(batch)
        _expect_finite(output, "under autocast")
        loss = _objective(network, batch, output)
    loss.backward()
    for name, parameter in network.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            raise AssertionError(
                f"under autocast the gradient of its parameter {name} holds NaN or "
                "infinite values"
            )


def _saving(subject: Subject) -> None:
    network = subject.copy().eval()
    batch = subject.batch(network, 2)
    extra: dict[str, Any] = {"names": ["a", "b"]}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        network.save_pretrained(folder, **extra)
        loaded = load_pretrained(folder)
        if type(loaded) is not type(network):
            raise AssertionError(f"the loaded network is a {type(loaded).__name__}")
        if loaded.training:
            raise AssertionError("the loaded network is not in evaluation mode")
        if loaded.extra != extra or loaded.config() != network.config():
            raise AssertionError(f"loaded, it has {loaded.extra} and {loaded.config()}")
        _expect_close(loaded(batch), network(batch), "loaded,", 0.0)


def _export(subject: Subject) -> None:
    network = subject.copy().eval()
    batch = subject.batch(network, 2)
    with torch.no_grad():
        program = torch.export.export(network, (batch,))
        _expect_close(program.module()(batch), network(batch), "exported,", 1e-4)


def _prediction(subject: Subject) -> None:
    network = subject.copy()
    assert isinstance(network, ClassifierNetwork)
    _predict(network, subject.batch(network, BATCH))


def _predict(network: ClassifierNetwork, inputs: Tensor) -> None:
    """Assert shapes and ranges of a prediction."""
    target = network(inputs).activation.argmax(1)
    prediction = network(inputs, target)
    shape = (len(inputs), network.classes)
    if prediction.activation.shape != network.activation_shape(inputs):
        raise AssertionError(
            f"activations are {tuple(prediction.activation.shape)}, not (inputs, "
            f"classes) = {network.activation_shape(inputs)}"
        )
    if not ((prediction.activation >= 0) & (prediction.activation <= 1)).all():
        raise AssertionError("activations do not lie in [0, 1]")
    if isinstance(network, CapsuleNetwork):
        if prediction.capsules is None or prediction.capsules.pose.shape[:2] != shape:
            raise AssertionError(
                f"capsules must have poses (inputs, classes, ...) = {shape}, got "
                f"{prediction.capsules}"
            )
        if not torch.equal(prediction.capsules.activation, prediction.activation):
            raise AssertionError("the activations are not those of its capsules")
        _expect_routed(network, inputs)
    if (
        prediction.reconstruction is not None
        and prediction.reconstruction.shape != inputs.shape
    ):
        raise AssertionError(
            f"reconstructions are {tuple(prediction.reconstruction.shape)}, inputs "
            f"{tuple(inputs.shape)}"
        )


def _expect_routed(network: CapsuleNetwork, inputs: Tensor) -> None:
    """Assert that ``route``, which evaluation reads, gives the activations of the
    network.
    """
    network = copy.deepcopy(network).eval()
    with torch.no_grad():
        _expect_close(
            network.route(inputs).activation,
            network(inputs).activation,
            "the activations of route:",
            1e-5,
        )


def _other_images_and_classes(subject: Subject) -> None:
    arguments = declared(type(subject.network)).arguments
    if "image_shape" not in arguments or "classes" not in arguments:
        return
    config = subject.network.config()
    channels, *extents = config["image_shape"]
    grown = [extent + 2 - axis for axis, extent in enumerate(extents)]
    shape = (channels + 1, *grown)
    classes = config["classes"] + 1
    network: Any = subject.changed(image_shape=shape, classes=classes)
    if (network.image_shape, network.classes) != (shape, classes):
        raise AssertionError(
            f"asked for {shape} and {classes} classes, it has {network.image_shape}, "
            f"{network.classes}"
        )
    images = subject.batch(network, 2)
    _predict(network, images)
    _learn(network, images)


def _any_size(subject: Subject) -> None:
    network = subject.copy().eval()
    assert isinstance(network, ClassifierNetwork)
    for inputs in network.other_sizes(2):
        size = "x".join(map(str, inputs.shape[2:]))
        if not network.any_size:
            problem = f"without any_size = True, inputs of {size}"
            _expect_error(network, inputs, problem)
            continue
        activation = network(inputs).activation
        if activation.shape != network.activation_shape(inputs):
            raise AssertionError(
                f"for inputs of {size}, activations are {tuple(activation.shape)}"
            )


def _images_that_do_not_fit(subject: Subject) -> None:
    network = subject.copy().eval()
    assert isinstance(network, ClassifierNetwork)
    for problem, inputs in network.misfits().items():
        _expect_error(network, inputs, problem)


def _expect_error(network: Network, inputs: Tensor, problem: str) -> None:
    try:
        network(inputs)
    except ValueError:
        return
    except Exception as error:
        raise AssertionError(
            f"{problem} must raise a ValueError, but raise {error!r}"
        ) from error
    raise AssertionError(f"{problem} must raise a ValueError, but are accepted")


OF_CLASSIFIERS: tuple[Callable[[Subject], None], ...] = (
    _prediction,
    _other_images_and_classes,
    _any_size,
    _images_that_do_not_fit,
)

CHECKS: tuple[Callable[[Subject], None], ...] = (
    _configuration,
    _learning,
    _one_example,
    _training_and_evaluation,
    _autocast,
    _saving,
    _export,
    *OF_CLASSIFIERS,
)
