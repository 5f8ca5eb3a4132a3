"""Checks of what networks rely on in a layer of capsules."""

import copy
import inspect
import pickle
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from torchcaps.capsules import Capsules
from torchcaps.ops import use_backend
from torchcaps.routing import Routing, create_routing
from torchcaps.testing.compare import (
    ROUNDING,
    TOLERANCE,
    assert_finite,
    assert_same,
    assert_same_on_backends,
    attempt,
    by_name,
    with_gradients,
    with_noise,
)
from torchcaps.testing.options import Row, check_together, forgetful, options_of

Tensors = dict[str, Tensor]

SCALES = (1e-3, 1.0, 1e3)
"""Of the poses that half precision is checked with."""


@dataclass
class Subject:
    """The layer that is checked, in float64, with noise in its parameters, and its
    children.

    Args:
        layer: the layer.
        children: its children, in float64.
        make: makes such a layer, for other options; None if there is only this one.
        together: how many options meet in all their values.
    """

    layer: nn.Module
    children: Capsules
    make: Callable[..., nn.Module] | None = None
    together: int = 2

    @classmethod
    def of(cls, layer: nn.Module, children: Capsules, *options: Any) -> "Subject":
        """Return it for a copy of a layer as it was made."""
        return cls(with_noise(copy.deepcopy(layer).double()), children, *options)

    @property
    def routings(self) -> list[Routing]:
        """All its routings."""
        return [
            module for module in self.layer.modules() if isinstance(module, Routing)
        ]

    @property
    def learns(self) -> bool:
        """Whether all its routings are trainable."""
        return all(routing.trainable for routing in self.routings)

    @property
    def differentiates(self) -> bool:
        """Whether gradients of all its routings are the derivatives."""
        return all(routing.exact_gradients for routing in self.routings)

    @property
    def separates(self) -> bool:
        """Whether all its routings keep the examples of a batch apart."""
        return all(routing.separate_examples for routing in self.routings)

    @property
    def masked(self) -> bool:
        """Whether it can be told which children are not there."""
        return "mask" in inspect.signature(self.layer.forward).parameters

    def copy(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """Return the same layer, in training if it can train."""
        return copy.deepcopy(self.layer).to(dtype).train(self.learns)

    def without_shared_statistics(self) -> nn.Module:
        """Return the same layer, in evaluation if the examples of a batch share
        statistics in training.
        """
        layer = self.copy()
        shared = any(
            isinstance(module, _BatchNorm) or _follows(module)
            for module in layer.modules()
        )
        return layer.eval() if shared else layer

    def as_dtype(self, dtype: torch.dtype, scale: float = 1.0) -> Capsules:
        """Return the children, their poses multiplied."""
        return Capsules(
            (self.children.pose * scale).to(dtype), self.children.activation.to(dtype)
        )


def check_layer(
    layer: nn.Module | Callable[..., nn.Module],
    children: Capsules,
    *,
    skip: Collection[str] = (),
    together: int = 2,
) -> None:
    """Assert that a layer of capsules, alone, has everything that a network of such
    layers relies on.

    Checked are pickling, copies and ``state_dict``; shapes, for one example and for
    none too; that the examples of a batch are independent; float32 against float64;
    bfloat16, and float16 but for poses in the thousands; autocast, under which routing
    stays in float32; finite numbers and gradients for poses and activations of 0;
    masked children, of which nothing may be seen; a pose of NaN, which must show in all
    parents that depend on it and in no other example; shapes of meta tensors; equal
    results on all backends that support it, forward and backward; and gradients along
    random directions against finite differences.

    Given a class, or a ``functools.partial`` of one, it checks the layer that this makes,
    and the declared options that it was not given with each other, and with those of the
    routing: as in :func:`~torchcaps.testing.check_routing`.

    A layer whose routing is not ``trainable`` is checked in evaluation mode, without
    gradients. With statistics of batches, the independence of examples is checked in
    evaluation mode.

    Args:
        layer: maps :class:`~torchcaps.Capsules` to capsules; not changed. It may take a
            mask, as those here do. Or what makes such a layer.
        children: a few for it, of two examples or more.
        skip: names of checks that do not hold for this layer: a function of this module
            without its underscore.
        together: how many options meet in all their values. From 3 on, whole numbers
            have their least values too.

    Raises:
        AssertionError: with the name of the check that failed, and by how much.
        ValueError: if a name in ``skip`` is not that of a check.
    """
    checks = by_name(CHECKS, skip)
    make = None if isinstance(layer, nn.Module) else layer
    made = layer if isinstance(layer, nn.Module) else layer()
    children = Capsules(*(field.detach().double() for field in children))
    subject = Subject.of(made, children, make, together)
    for name, check in checks.items():
        attempt(check, subject, made, name)


def _follows(module: nn.Module) -> bool:
    """Whether a module keeps statistics of batches: it has buffers of its own."""
    return bool(list(module.buffers(recurse=False)))


def _outputs(parents: Capsules) -> dict[str, Tensor]:
    return {
        "the parents' pose": parents.pose,
        "the parents' activation": parents.activation,
    }


def _called(layer: nn.Module, children: Capsules, mask: Tensor | None) -> Capsules:
    """The parents; a layer of one's own may take no mask."""
    parents: Capsules = layer(children) if mask is None else layer(children, mask)
    return parents


def _results(
    layer: nn.Module,
    children: Capsules,
    mask: Tensor | None = None,
    gradients: bool = True,
) -> dict[str, Tensor]:
    """Poses and activations, and the gradients of children and parameters."""
    pose, activation = (
        field.detach().clone().requires_grad_(gradients) for field in children
    )
    capsules = Capsules(pose, activation)
    seen = _outputs(_called(layer, capsules, mask))
    if not gradients:
        return seen
    inputs = {
        "the children's pose": pose,
        "the children's activation": activation,
        **dict(layer.named_parameters()),
    }
    return with_gradients(seen, inputs)


def _copies(subject: Subject) -> None:
    layer = subject.without_shared_statistics()
    expected = _outputs(layer(subject.children))
    assert_same(
        _outputs(pickle.loads(pickle.dumps(layer))(subject.children)), expected, 0.0
    )
    copied = copy.deepcopy(layer)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    copied.load_state_dict(layer.state_dict())
    assert_same(_outputs(copied(subject.children)), expected, 0.0)


def _shapes(subject: Subject) -> None:
    layer = subject.without_shared_statistics()
    sites = None
    for batch in (len(subject.children.pose), 1, 0):
        parents = layer(Capsules(*(field[:batch] for field in subject.children)))
        if (
            parents.pose.shape[: parents.activation.ndim] != parents.activation.shape
            or len(parents.pose) != batch
        ):
            shapes = tuple(parents.pose.shape), tuple(parents.activation.shape)
            raise AssertionError(
                f"{batch} examples give poses {shapes[0]} and activations {shapes[1]}"
            )
        if sites is not None and parents.pose.shape[1:] != sites:
            raise AssertionError(
                f"{batch} examples give poses {tuple(parents.pose.shape)}, not (B, "
                f"*{tuple(sites)})"
            )
        sites = parents.pose.shape[1:]


def _examples_of_a_batch(subject: Subject) -> None:
    if not subject.separates:
        return
    layer = subject.without_shared_statistics()
    together = _outputs(layer(subject.children))
    for row in range(len(subject.children.pose)):
        alone = _outputs(
            layer(Capsules(*(field[row : row + 1] for field in subject.children)))
        )
        expected = {name: tensor[row : row + 1] for name, tensor in together.items()}
        assert_same(alone, expected, TOLERANCE[torch.float64])


def _dtypes(subject: Subject) -> None:
    rounded = subject.as_dtype(torch.float32)
    # Statistics of a batch as small as this leave few digits.
    layer = subject.without_shared_statistics().float()
    result = _results(layer, rounded, gradients=subject.learns)
    expected = _results(
        copy.deepcopy(layer).double(),
        Capsules(*(f.double() for f in rounded)),
        None,
        subject.learns,
    )
    assert_same(result, expected, TOLERANCE[torch.float32])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for scale in SCALES[: 2 if dtype == torch.float16 else 3]:
            result = _results(
                subject.copy(dtype),
                subject.as_dtype(dtype, scale),
                None,
                subject.learns,
            )
            assert_finite(
                {
                    f"{name}, {dtype} times {scale:g},": tensor
                    for name, tensor in result.items()
                }
            )
            for name in ("the parents' pose", "the parents' activation"):
                if result[name].dtype != dtype:
                    raise AssertionError(
                        f"{dtype} children: {name} is {result[name].dtype}"
                    )


def _autocast(subject: Subject) -> None:
    for scale in SCALES:
        layer = subject.copy(torch.float32)
        children = subject.as_dtype(torch.float32, scale)
        expected = _outputs(copy.deepcopy(layer)(children))
        with torch.autocast("cpu", torch.bfloat16):
            parents = layer(children)
            low = layer(subject.as_dtype(torch.bfloat16, scale))
        assert_same(_outputs(parents), expected, 1e-6)
        assert_finite(_outputs(low))
        for name, tensor in _outputs(low).items():
            if tensor.dtype != torch.float32:
                raise AssertionError(f"under autocast, {name} is {tensor.dtype}")
        if subject.learns:
            total = torch.stack([tensor.sum() for tensor in (*parents, *low)]).sum()
            gradients = torch.autograd.grad(
                total,
                list(layer.parameters()),
                materialize_grads=True,
                allow_unused=True,
            )
            names = (f"the gradient of {name}" for name, _ in layer.named_parameters())
            assert_finite(dict(zip(names, gradients, strict=True)))


def _zeros(subject: Subject) -> None:
    for poses, activations in ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0)):
        children = Capsules(
            subject.children.pose * poses, subject.children.activation * activations
        )
        assert_finite(_results(subject.copy(), children, None, subject.learns))


def _children_that_are_not_there(subject: Subject) -> None:
    if not subject.masked:
        return
    children = subject.children
    layer: Any = subject.without_shared_statistics()
    mask = torch.ones_like(children.activation, dtype=torch.bool)
    everywhere = _results(layer, children, mask, subject.learns)
    assert_same(everywhere, _results(layer, children, None, subject.learns), ROUNDING)
    mask.view(len(mask), -1)[:, ::3] = False
    expected = _results(layer, children, mask, subject.learns)
    gone = Capsules(*(field.clone() for field in children))
    gone.pose[~mask], gone.activation[~mask] = torch.nan, torch.nan
    result = _results(layer, gone, mask, subject.learns)
    assert_finite(result)
    assert_same(result, expected, TOLERANCE[torch.float64])
    for name in ("pose", "activation") if subject.learns else ():
        if result[f"the gradient of the children's {name}"][~mask].any():
            raise AssertionError(
                f"the gradient of the {name} of a child that is not there is not 0"
            )
    assert_finite(_results(layer, gone, torch.zeros_like(mask), subject.learns))
    if hasattr(layer, "route"):
        of_votes = layer.route(gone, mask).votes.mask
        if of_votes is None or int((~of_votes).sum()) < int((~mask).sum()):
            raise AssertionError("its votes were not told which children are not there")


def _not_a_number(subject: Subject) -> None:
    layer = subject.without_shared_statistics()
    expected = _outputs(layer(subject.children))
    first = (0,) * subject.children.activation.ndim
    pose = subject.children.pose.clone()
    pose[first] *= 2
    moved = _outputs(layer(subject.children._replace(pose=pose)))
    pose[first] = torch.nan
    children = subject.children._replace(pose=pose)
    for module in (layer, subject.copy()):
        result = _outputs(module(children))
        for name, tensor in result.items():
            depends = moved[name][0] != expected[name][0]
            hidden = int((depends & ~tensor[0].isnan()).sum())
            if hidden:
                raise AssertionError(
                    f"{name} hides that a child's pose is NaN, in {hidden} places "
                    "that depend on it"
                )
    assert_same(
        {name: tensor[1:] for name, tensor in _outputs(layer(children)).items()},
        {name: tensor[1:] for name, tensor in expected.items()},
        TOLERANCE[torch.float64],
    )


def _meta(subject: Subject) -> None:
    layer = subject.without_shared_statistics()
    expected = _outputs(layer(subject.children))
    result = _outputs(
        layer.to("meta")(Capsules(*(field.to("meta") for field in subject.children)))
    )
    for name, tensor in expected.items():
        if not result[name].is_meta or result[name].shape != tensor.shape:
            raise AssertionError(
                f"of meta tensors, {name} is {result[name].device} "
                f"{tuple(result[name].shape)}"
            )


def _backends(subject: Subject) -> None:
    def results(backend: str) -> Any:
        with use_backend(backend):
            return _results(subject.copy(), subject.children, None, subject.learns)

    assert_same_on_backends(results)


OF_ROUTING = "routing."
"""Before the names of options of the routing."""


def _options_together(subject: Subject) -> None:
    """Options of a layer and of its routing with each other, with a mask and without."""
    make = subject.make
    if make is None:
        return
    least = subject.together > 2
    options = options_of(make, least=least)
    routing = _routing_of(make)
    if routing is not None:
        of_routing = options_of(type(routing), routing.config(), least=least)
        options |= {OF_ROUTING + name: values for name, values in of_routing.items()}
    if subject.masked:
        options["masked"] = [False, True]
    check_together(
        options,
        partial(_with_options, make, routing),
        partial(_same_whatever_is_kept, make, routing, subject.children),
        subject.together,
    )


def _routing_of(make: Callable[..., nn.Module]) -> Routing | None:
    """The routing that a layer is made with, if it is given one."""
    routing = make.keywords.get("routing") if isinstance(make, partial) else None
    return create_routing(routing) if isinstance(routing, str) else routing


def _with_options(
    make: Callable[..., nn.Module], routing: Routing | None, row: Row
) -> nn.Module:
    """A layer with these options."""
    of_layer = {
        name: value
        for name, value in row.items()
        if name != "masked" and not name.startswith(OF_ROUTING)
    }
    if routing is not None:
        config = {
            name: row.get(OF_ROUTING + name, value)
            for name, value in routing.config().items()
        }
        of_layer["routing"] = type(routing)(**config)
    return make(**of_layer)


def _same_whatever_is_kept(
    make: Callable[..., nn.Module],
    routing: Routing | None,
    children: Capsules,
    row: Row,
) -> None:
    """Assert that results are those of stored votes of which nothing is kept, on every
    backend, and those of a layer that was made alike and loaded, and that no example
    changes another.
    """
    subject = Subject.of(_with_options(make, routing, row), children)
    mask = None
    if row.get("masked"):
        mask = torch.ones_like(children.activation, dtype=torch.bool)
        mask.view(len(mask), -1)[:, ::3] = False

    def results(layer: nn.Module, backend: str) -> Tensors:
        with use_backend(backend), torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            return _results(layer, children, mask, subject.learns)

    on_backend = cache(lambda backend: results(subject.copy(), backend))
    actual = on_backend("naive")
    assert_same(actual, results(forgetful(subject.copy()), "naive"), ROUNDING)
    assert_same_on_backends(on_backend)
    loaded = _with_options(make, routing, row).double().train(subject.learns)
    loaded.load_state_dict(subject.layer.state_dict())
    assert_same(results(loaded, "naive"), actual, 0.0)
    _examples_among_others(subject, mask)


def _examples_among_others(subject: Subject, mask: Tensor | None) -> None:
    """Assert that an example has the same parents among copies of itself."""
    if not subject.separates:
        return
    layer = subject.without_shared_statistics()

    def outputs(children: Capsules) -> Tensors:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            return _outputs(_called(layer, children, mask))

    together = outputs(subject.children)
    size = len(subject.children.pose)
    for place in range(size):
        copies = outputs(
            Capsules(*(field[[place] * size] for field in subject.children))
        )
        assert_same(
            {name: tensor[place] for name, tensor in copies.items()},
            {name: tensor[place] for name, tensor in together.items()},
            TOLERANCE[torch.float64],
        )


def _gradients(subject: Subject) -> None:
    if not (subject.learns and subject.differentiates):
        return
    layer: Any = subject.without_shared_statistics()
    named = dict(layer.named_parameters())

    def parents(
        pose: Tensor, activation: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        state = dict(zip(named, parameters, strict=True))
        result = torch.func.functional_call(layer, state, (Capsules(pose, activation),))
        return result.pose, result.activation

    leaves = [field.clone().requires_grad_() for field in subject.children]
    torch.autograd.gradcheck(parents, (*leaves, *named.values()), fast_mode=True)


CHECKS: tuple[Callable[[Subject], None], ...] = (
    _copies,
    _shapes,
    _examples_of_a_batch,
    _dtypes,
    _autocast,
    _zeros,
    _children_that_are_not_there,
    _not_a_number,
    _meta,
    _backends,
    _gradients,
    _options_together,
)
