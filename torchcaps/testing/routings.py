"""Checks of what every layer relies on in a routing algorithm."""

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from torchcaps.ops import Votes
from torchcaps.routing import LayerShape, Routed, Routing, as_capsules, create_routing
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

B = 3
I = 7
J = 4
M = 2
P = 3
D = 2
MASK = torch.tensor([[True, False, True, True, False, True, True]]).repeat(B, 1)


@dataclass
class Problem:
    """The inputs of a layer: children (B, I, M, P), their activations (B, I),
    transforms and coordinates.
    """

    children: Tensor
    activation: Tensor
    transforms: Tensor
    coordinates: Tensor

    @classmethod
    def make(
        cls,
        batch: int = B,
        children: int = I,
        parents: int = J,
        shared: bool = False,
        dtype: torch.dtype = torch.float64,
    ) -> "Problem":
        """Return random numbers, always the same."""
        generator = torch.Generator().manual_seed(0)
        shapes = (
            (batch, children, M, P),
            (batch, children),
            (1 if shared else children, parents, P, D),
            (children, M * D),
        )
        pose, logit, transforms, coordinates = (
            torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            for shape in shapes
        )
        return cls(pose, logit.sigmoid(), transforms, coordinates)

    @property
    def shape(self) -> LayerShape:
        """The shape that the layer gives its routing; with shared transforms, for any
        number of children.
        """
        I = None if len(self.transforms) == 1 else len(self.transforms)
        return LayerShape(I, self.transforms.shape[1], (M, P), (M, D))

    def of_children(self, index: Tensor) -> "Problem":
        """Return the problem with these children only, in this order; for shared
        transforms.
        """
        return Problem(
            self.children[:, index],
            self.activation[:, index],
            self.transforms,
            self.coordinates[index],
        )

    def of_examples(self, *places: int) -> "Problem":
        """Return the problem with these examples."""
        index = list(places)
        return replace(
            self, children=self.children[index], activation=self.activation[index]
        )

    def votes(self, **settings: Any) -> Votes:
        """Return the votes."""
        return Votes(self.children, self.transforms, self.coordinates, **settings)

    def leaves(self) -> "Problem":
        """Return the same numbers, as tensors that require gradients."""
        return Problem(
            *(tensor.detach().requires_grad_() for tensor in vars(self).values())
        )


def check_routing(
    routing: Routing | str, *, skip: Collection[str] = (), together: int = 2
) -> None:
    """Assert that a routing has everything that layers and networks rely on.

    Checked are configuration and ``repr``; copies that
    :meth:`~torchcaps.routing.Routing.bind` makes; shapes; that the order of the
    children does not matter and the examples of a batch are independent; float32,
    float64, and bfloat16 poses; one child, one parent, one example; finite numbers and
    gradients for poses and activations of 0, and for votes far apart; masked children;
    a pose of NaN, which must show in all parents of its example and in no other; equal
    results on all backends that support it; gradients against finite differences, and
    those of each example by ``torch.func``; resuming from earlier parents, or refusing
    to; and options with each other, as declared in the constructor: in settings in which
    any values of two of them meet, outputs and gradients are those of stored votes of
    which nothing is kept from step to step, on every backend, those of the routing that
    is made from its configuration and loaded, and those of finite differences; and the
    examples of a batch are independent. Options that do not go together are refused by
    the constructor, with the name of one of them.

    A routing that is not ``trainable`` is checked in evaluation mode, without
    gradients, one without ``exact_gradients`` not against finite differences, and one
    without ``separate_examples`` not for their independence. With batch normalisation,
    examples share statistics in training: their independence is checked in evaluation
    mode.

    Args:
        routing: as passed to a layer, or a registered name.
        skip: names of checks that do not hold for this routing: a function of this
            module without its underscore.
        together: how many options meet in all their values. From 3 on, whole numbers
            have their least values too.

    Raises:
        AssertionError: with the name of the check that failed, and by how much.
        TypeError: if ``routing`` is neither.
        ValueError: if a name in ``skip`` is not that of a check.
    """
    if not isinstance(routing, Routing | str):
        raise TypeError(
            f"routing must be a Routing or the name of one, got {routing!r}"
        )
    template = create_routing(routing) if isinstance(routing, str) else routing
    checks = by_name((*CHECKS, _options_together), skip)
    if "options_together" in checks:
        checks["options_together"] = partial(_options_together, together=together)
    for name, check in checks.items():
        attempt(check, template, template, name.replace("_", " "))


def _bound(template: Routing, problem: Problem) -> Routing:
    """A copy for the problem's layer, with noise added to its initial parameters."""
    routing = template.bind(problem.shape).to(problem.transforms.dtype)
    return with_noise(routing.train(template.trainable))


def _without_shared_statistics(routing: Routing) -> Routing:
    """The routing, set to evaluation mode if the examples of a batch share statistics
    in training.
    """
    if any(isinstance(module, _BatchNorm) for module in routing.modules()):
        return routing.eval()
    return routing


def _outputs(routed: Routed) -> dict[str, Tensor]:
    return {
        "the parents' pose": routed.pose,
        "the parents' activation": routed.activation,
        "the assignment": routed.assignment,
    }


def _results(
    routing: Routing, problem: Problem, mask: Tensor | None = None, **settings: Any
) -> dict[str, Tensor]:
    """Poses, activations and assignments, and the gradients of all inputs."""
    leaves = problem.leaves()
    routed = routing(leaves.votes(mask=mask, **settings), leaves.activation)
    return _of_parents(routing, leaves, routed)


def _of_parents(routing: Routing, leaves: Problem, routed: Routed) -> dict[str, Tensor]:
    """The parents, and the gradients of the leaves and of all parameters."""
    seen = _outputs(routed)
    if not routing.trainable:
        return seen
    inputs = {**vars(leaves), **dict(routing.named_parameters())}
    return with_gradients(
        seen, inputs, ("the parents' pose", "the parents' activation")
    )


def _configuration(template: Routing) -> None:
    config = template.config()
    again = type(template)(**config)
    if again.config() != config:
        raise AssertionError(f"made again from {config}, it has {again.config()}")
    if type(template).__name__ not in repr(template):
        raise AssertionError(f"its repr is {template!r}")
    for name in config:
        if f"{name}=" not in repr(template):
            raise AssertionError(f"its repr does not show {name}: {template!r}")


def _copies(template: Routing) -> None:
    problem = Problem.make()
    routing = _bound(template, problem)
    copied = template.bind(problem.shape)
    if {id(parameter) for parameter in routing.parameters()} & {
        id(parameter) for parameter in copied.parameters()
    }:
        raise AssertionError("two copies that bind made share parameters")
    if list(template.parameters()):
        raise AssertionError(
            "bind gave parameters to the routing itself, and not to the copy"
        )
    wanted = {name: tensor.shape for name, tensor in copied.state_dict().items()}
    for other in (LayerShape(None, 2, (M, D), (M, D)), LayerShape(I, 2, (3,), (1,))):
        again = template.bind(other).bind(problem.shape).state_dict()
        if {name: tensor.shape for name, tensor in again.items()} != wanted:
            raise AssertionError(
                "bind gave other parameters to a copy that another layer already had"
            )
    expected = _outputs(routing(problem.votes(), problem.activation))
    twin = copy.deepcopy(routing)
    assert_same(_outputs(twin(problem.votes(), problem.activation)), expected, 0.0)
    copied.to(problem.transforms.dtype).train(template.trainable).load_state_dict(
        routing.state_dict()
    )
    assert_same(_outputs(copied(problem.votes(), problem.activation)), expected, 0.0)


def _shapes(template: Routing) -> None:
    for batch, children, parents in (
        (B, I, J),
        (1, I, J),
        (B, 1, J),
        (B, I, 1),
        (1, 1, 1),
    ):
        problem = Problem.make(batch, children, parents)
        result = _results(_bound(template, problem), problem)
        expected = {
            "the parents' pose": (batch, parents, M * D),
            "the parents' activation": (batch, parents),
            "the assignment": (batch, children, parents),
        }
        for name, shape in expected.items():
            if result[name].shape != shape:
                raise AssertionError(
                    f"{name} has shape {tuple(result[name].shape)}, not {shape}"
                )
        assert_finite(result)


def _order_of_the_children(template: Routing) -> None:
    problem = Problem.make(shared=True)
    order = torch.randperm(I, generator=torch.Generator().manual_seed(3))
    routing = _bound(template, problem)
    expected = _results(routing, problem)
    result = _results(routing, problem.of_children(order))
    for name in (
        "the assignment",
        "the gradient of children",
        "the gradient of activation",
    ):
        if name in expected:
            expected[name] = expected[name][:, order]
    if "the gradient of coordinates" in expected:
        expected["the gradient of coordinates"] = expected[
            "the gradient of coordinates"
        ][order]
    assert_same(result, expected, TOLERANCE[torch.float64])


def _examples_of_a_batch(template: Routing) -> None:
    if not template.separate_examples:
        return
    problem = Problem.make()
    routing = _without_shared_statistics(_bound(template, problem))
    together = _outputs(routing(problem.votes(), problem.activation))
    for place in range(B):
        alone = problem.of_examples(place)
        expected = {
            name: tensor[place : place + 1] for name, tensor in together.items()
        }
        assert_same(
            _outputs(routing(alone.votes(), alone.activation)),
            expected,
            TOLERANCE[torch.float64],
        )


def _dtypes(template: Routing) -> None:
    exact = Problem.make(dtype=torch.float32)
    wide = Problem(*(tensor.double() for tensor in vars(exact).values()))
    routing = _bound(template, wide)
    expected = _results(routing, wide)
    result = _results(copy.deepcopy(routing).float(), exact)
    dtype = result["the parents' pose"].dtype
    if dtype != torch.float32:
        raise AssertionError(f"float32 poses give poses of {dtype}")
    assert_same(result, expected, TOLERANCE[torch.float32])
    half = Problem.make(dtype=torch.bfloat16)
    rounded = copy.deepcopy(routing).bfloat16()
    assert_finite(_results(rounded, half))
    capsules = as_capsules(
        rounded(half.votes(), half.activation), (M, D), torch.bfloat16
    )
    if capsules.pose.dtype != torch.bfloat16 or capsules.pose.shape != (B, J, M, D):
        raise AssertionError(
            f"bfloat16 poses give {capsules.pose.dtype} {tuple(capsules.pose.shape)}"
        )


def _zeros(template: Routing) -> None:
    for poses, activations in ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0)):
        problem = Problem.make(dtype=torch.float32)
        problem.children = problem.children * poses
        problem.activation = problem.activation * activations
        problem.coordinates = problem.coordinates * poses
        assert_finite(_results(_bound(template, problem), problem))


def _votes_far_apart(template: Routing) -> None:
    # Some votes are near no parent, and some parents near no vote.
    for scale in (3.0, 100.0):
        problem = Problem.make(dtype=torch.float32)
        problem.children = problem.children * scale
        assert_finite(_results(_bound(template, problem), problem))


def _children_that_are_not_there(template: Routing) -> None:
    problem = Problem.make(shared=True)
    routing = _bound(template, problem)
    mask = MASK
    places = mask[0].nonzero().squeeze(1)
    expected = _results(routing, problem.of_children(places))
    gone = Problem(*(tensor.clone() for tensor in vars(problem).values()))
    gone.children[~mask], gone.activation[~mask] = torch.nan, torch.nan
    result = _results(routing, gone, mask)
    assert_finite(result)
    for name in (
        "the assignment",
        "the gradient of children",
        "the gradient of activation",
    ):
        if name in result:
            if result[name][~mask].any():
                raise AssertionError(f"{name} is not 0 for a child that is not there")
            result[name] = result[name][:, places]
    if "the gradient of coordinates" in result:
        result["the gradient of coordinates"] = result["the gradient of coordinates"][
            places
        ]
    assert_same(result, expected, TOLERANCE[torch.float64])
    assert_finite(_results(routing, gone, torch.zeros_like(mask)))


def _not_a_number(template: Routing) -> None:
    problem = Problem.make()
    routing = _bound(template, problem)
    apart = _without_shared_statistics(copy.deepcopy(routing))
    expected = _outputs(apart(problem.votes(), problem.activation))
    problem.children[0, 1] = torch.nan
    for module in (apart, routing):
        result = _outputs(module(problem.votes(), problem.activation))
        for name in ("the parents' pose", "the parents' activation"):
            if not result[name][0].isnan().all():
                first = result[name][0].flatten().tolist()[:4]
                raise AssertionError(
                    f"{name} hides that a child's pose is NaN: {first}"
                )
            if module is apart:
                assert_same(
                    {name: result[name][1:]},
                    {name: expected[name][1:]},
                    TOLERANCE[torch.float64],
                )


def _backends(template: Routing) -> None:
    for shared in (False, True):
        problem = Problem.make(shared=shared)
        routing = _bound(template, problem)
        assert_same_on_backends(partial(_on_backend, routing, problem))


def _on_backend(routing: Routing, problem: Problem, backend: str) -> dict[str, Tensor]:
    return _results(routing, problem, backend=backend)


OF_A_CALL = ("shared", "masked", "coordinates", "activation")
"""What a call may have or not, beside the options of its routing."""


def _options_together(template: Routing, together: int = 2) -> None:
    """Options with each other, and with what a call may have or not."""
    of_routing = options_of(type(template), template.config(), least=together > 2)
    check_together(
        {**of_routing, **dict.fromkeys(OF_A_CALL, (False, True))},
        partial(_in_a_layer, template),
        partial(_same_whatever_is_kept, template),
        together,
    )


def _in_a_layer(template: Routing, row: Row) -> Routing:
    """A routing with these options, bound to the layer of the row's problem, which may
    not fit all of them.
    """
    problem = Problem.make(shared=row.get("shared", False))
    return _with_options(template, row).bind(problem.shape)


def _with_options(template: Routing, row: Row) -> Routing:
    """A routing with these options."""
    config = template.config()
    return type(template)(**{name: row.get(name, config[name]) for name in config})


def _same_whatever_is_kept(template: Routing, row: Row) -> None:
    """Assert that results are those of stored votes of which nothing is kept, on every
    backend, and those of a routing that was made from the configuration and loaded, and
    that no example changes another.
    """
    problem = Problem.make(shared=row.get("shared", False))
    template = _with_options(template, row)
    routing = _bound(template, problem)
    results = cache(partial(_results_with, row, problem, routing))
    assert_same(results("naive"), results("naive", fresh=True), ROUNDING)
    assert_same_on_backends(results)
    loaded = type(routing)(**routing.config()).bind(problem.shape)
    loaded.to(problem.transforms.dtype).train(routing.training)
    loaded.load_state_dict(routing.state_dict())
    assert_same(_results_with(row, problem, loaded, "naive"), results("naive"), 0.0)
    _gradients(template, undefined=False)
    _examples_among_others(template, problem, row)


def _examples_among_others(template: Routing, problem: Problem, row: Row) -> None:
    """Assert that an example has the same parents among copies of itself: these have
    the random numbers of the others, which it would not have alone.
    """
    if not template.separate_examples:
        return
    routing = _without_shared_statistics(_bound(template, problem))
    together = _outputs(_routed_with(row, problem, routing, "naive"))
    for place in range(B):
        copies = _routed_with(row, problem.of_examples(*[place] * B), routing, "naive")
        assert_same(
            {name: tensor[place] for name, tensor in _outputs(copies).items()},
            {name: tensor[place] for name, tensor in together.items()},
            TOLERANCE[torch.float64],
        )


def _results_with(
    row: Row, problem: Problem, routing: Routing, backend: str, fresh: bool = False
) -> dict[str, Tensor]:
    """Parents and gradients of a call with or without what the row says."""
    routing = copy.deepcopy(routing)
    if fresh:
        forgetful(routing)
    leaves = problem.leaves()
    return _of_parents(routing, leaves, _routed_with(row, leaves, routing, backend))


def _routed_with(row: Row, problem: Problem, routing: Routing, backend: str) -> Routed:
    """A call with or without what the row says; chance is the same each time."""
    votes = Votes(
        problem.children,
        problem.transforms,
        problem.coordinates if row.get("coordinates") else None,
        backend=backend,
        mask=MASK if row.get("masked") else None,
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return routing(votes, problem.activation if row.get("activation") else None)


def _gradients(template: Routing, undefined: bool = True) -> None:
    """Compare gradients with finite differences.

    Args:
        template: the routing.
        undefined: whether to try outputs without a gradient, too.
    """
    if not (template.trainable and template.exact_gradients):
        return
    problem = Problem.make(1, 3, 2)
    routing = _bound(template, problem)

    def parents(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        call = Problem(*tensors)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            routed = routing(call.votes(backend="naive"), call.activation)
        return routed.pose, routed.activation

    leaves = tuple(vars(problem.leaves()).values())
    # Fast: it compares the Jacobian in random directions, not number by number.
    torch.autograd.gradcheck(
        parents, leaves, fast_mode=True, check_undefined_grad=undefined
    )


def _gradients_of_each_example(template: Routing) -> None:
    """``vmap`` over ``grad``, as for differential privacy and influence functions."""
    if not template.trainable:
        return
    problem = Problem.make()
    routing = _bound(template, problem).eval()
    weights = {name: weight.detach() for name, weight in routing.named_parameters()}

    def objective(
        weights: dict[str, Tensor], children: Tensor, activation: Tensor
    ) -> Tensor:
        votes = Votes(children[None], problem.transforms, problem.coordinates)
        routed = torch.func.functional_call(routing, weights, (votes, activation[None]))
        return torch.add(routed.pose.square().sum(), routed.activation.sum())

    gradient = torch.func.grad(objective, (0, 1))
    together = torch.func.vmap(gradient, (None, 0, 0))(
        weights, problem.children, problem.activation
    )
    for row in range(B):
        inputs = problem.children[row], problem.activation[row]
        of_weights, of_children = gradient(weights, *inputs)
        expected = {**of_weights, "children": of_children}
        actual = {**together[0], "children": together[1]}
        assert_same(
            {f"the gradient of {name}": actual[name][row] for name in expected},
            {f"the gradient of {name}": expected[name] for name in expected},
            TOLERANCE[torch.float64],
        )


def _earlier_parents(template: Routing) -> None:
    problem = Problem.make()
    routing = _bound(template, problem)
    first = routing(problem.votes(), problem.activation)
    if not template.resumable:
        try:
            routing(problem.votes(), problem.activation, initial=first)
        except ValueError:
            return
        raise AssertionError("it is not resumable, but accepts initial=")
    assert_finite(_outputs(routing(problem.votes(), problem.activation, initial=first)))
    if hasattr(routing, "steps"):
        short = _with_steps(routing, 2)
        long = _with_steps(routing, 4)
        half = short(problem.votes(), problem.activation)
        result = short(problem.votes(), problem.activation, initial=half)
        assert_same(
            _outputs(result),
            _outputs(long(problem.votes(), problem.activation)),
            TOLERANCE[torch.float64],
        )


def _with_steps(routing: Routing, steps: int) -> Routing:
    changed: Any = copy.deepcopy(routing)
    changed.steps = steps
    return changed


CHECKS: tuple[Callable[[Routing], None], ...] = (
    _configuration,
    _copies,
    _shapes,
    _order_of_the_children,
    _examples_of_a_batch,
    _dtypes,
    _zeros,
    _votes_far_apart,
    _children_that_are_not_there,
    _not_a_number,
    _backends,
    _gradients,
    _gradients_of_each_example,
    _earlier_parents,
)
