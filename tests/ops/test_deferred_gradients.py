"""Gradients of the votes are passed on once for all steps, whoever asks for them."""

import platform
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import torchcaps as tc
from torchcaps.ops import PARENTS, Gaussian, InnerProduct, Votes
from torchcaps.ops.fused import deferred
from torchcaps.ops.fused import library as kernel_library
from torchcaps.ops.fused import passes as kernels
from torchcaps.ops.fused.compiling import FLAGS, UNITS, find_compiler
from torchcaps.ops.windows import in_windows

pytestmark = pytest.mark.skipif(
    bool(tc.ops.fused.why_not("native")), reason="no C++ kernels here"
)


def tensors(
    rows: int, dtype: torch.dtype = torch.float64, pose: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)

    def random(*shape: int) -> Tensor:
        return (
            torch.randn(*shape, generator=generator, dtype=torch.float64)
            .mul(0.4)
            .to(dtype)
            .requires_grad_()
        )

    width = 16 if pose == 1 else pose
    return (
        random(rows, 40, pose, 8 if pose == 1 else pose),
        random(40, 5, 8 if pose == 1 else pose, width),
        random(rows, 40).detach().abs().requires_grad_(),
    )


def dynamic(votes: Votes, weights: Tensor | None) -> Tensor:
    """Three steps of a dynamic routing; the votes are there before the token is."""
    moments = votes.moments(weights=weights)
    for _ in range(2):
        moments = votes.moments(InnerProduct(moments.sum.tanh()), weights)
    return moments.sum.square().sum() + moments.mass.sin().sum()


def gaussian(votes: Votes, weights: Tensor | None) -> Tensor:
    """Three steps of an EM routing that looks at the log-partition too."""
    moments = votes.moments(weights=weights, scatter=True)
    total = moments.mass.new_zeros(())
    for _ in range(2):
        similarity = Gaussian(
            moments.mean, 1 / (moments.variance + 0.3), moments.mass.tanh()
        )
        total = total + votes.logits(similarity).square().sum() + moments.variance.sum()
        moments = votes.moments(similarity, weights, scatter=True)
    return total + moments.mean.square().sum() + moments.variance.sum()


def gradients(
    backend: str,
    routing: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    **votes: Any,
) -> tuple[Tensor, ...]:
    with tc.use_backend(backend):
        loss = routing(Votes(inputs[0], inputs[1], **votes), inputs[2])
        return torch.autograd.grad(loss, inputs)


@pytest.fixture
def passed_on(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many terms came together each time that the gradients of votes were passed
    on.
    """
    counts: list[int] = []
    work = kernels.pass_on
    monkeypatch.setattr(
        kernels,
        "pass_on",
        lambda call, terms, *rest: (
            counts.append(len(terms)),
            work(call, terms, *rest),
        )[1],
    )
    return counts


@pytest.mark.parametrize(
    ("routing", "pose", "terms"),
    [(dynamic, 1, 5), (gaussian, 1, 5), (gaussian, 4, 5), (dynamic, 3, 4)],
)
@pytest.mark.parametrize("rows", [1, 3, 5, 16, 37])
def test_all_steps_together_give_the_gradients_of_stored_votes(
    routing: Callable[..., Tensor],
    pose: int,
    terms: int,
    rows: int,
    passed_on: list[int],
) -> None:
    inputs = tensors(rows, pose=pose)
    expected, actual = (
        gradients(backend, routing, inputs) for backend in ("naive", "native")
    )
    for value, expected_value in zip(actual, expected, strict=True):
        torch.testing.assert_close(value, expected_value, rtol=1e-9, atol=1e-11)
    assert passed_on == [
        terms
    ]  # logits that are looked at by themselves share their coefficients with the step


@pytest.mark.parametrize(("images", "threads"), [(1, 2), (3, 2), (5, 1)])
@pytest.mark.parametrize("routing", [dynamic, gaussian])
def test_windows_and_coordinates(
    routing: Callable[..., Tensor], images: int, threads: int
) -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return (
            torch.randn(*shape, generator=generator, dtype=torch.float64)
            .mul(0.4)
            .requires_grad_()
        )

    sites = torch.tensor(
        [[start + step for step in range(6)] for start in (0, 1, 3, 5)],
        dtype=torch.int32,
    )
    inputs = (
        random(images, 11, 2, 3),
        random(6, 4, 3, 4),
        random(images, 11).detach().abs().requires_grad_(),
    )
    coordinates = random(6, 8)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        results = [
            gradients(
                backend,
                routing,
                (*inputs, coordinates),
                coordinates=coordinates,
                sites=sites,
            )
            for backend in ("naive", "native")
        ]
    finally:
        torch.set_num_threads(before)
    for actual, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


def competing(
    rows: int = 20, pose: int = 1
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Children, transforms and weights; mean, precision and log_weight, none of them in
    one piece.
    """
    generator = torch.Generator().manual_seed(rows)
    size = 16 if pose == 1 else pose * pose
    mean, spread = torch.randn(
        2, 5, rows, size, generator=generator, dtype=torch.float64
    ).transpose(1, 2)
    log_weight = torch.randn(5, rows, generator=generator, dtype=torch.float64).T
    return tensors(rows, pose=pose), tuple(
        tensor.detach().requires_grad_()
        for tensor in (mean, spread.square() + 0.3, log_weight)
    )


def normalised(
    votes: Votes,
    similarity: Gaussian,
    weights: Tensor | None,
    partition: Tensor | None = None,
    used: bool = True,
) -> Tensor:
    """A step whose log-partition is found by itself, as image-wide competition finds it,
    and looked at if ``used``.
    """
    source = votes.source
    log_partition = source.log_partition(similarity, False)
    partition = log_partition.tanh() + 2.0 if used and partition is None else partition
    moments = source.moments(similarity, weights, PARENTS, partition, True)
    loss = (
        moments.mass.sin().sum() + moments.mean.square().sum() + moments.variance.sum()
    )
    return loss + log_partition.square().sum() if used else loss


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool]]:
    """Of each pass over the votes: whether it had logits at hand, and whether it found
    gradients of the similarity.
    """
    seen: list[tuple[bool, bool]] = []
    work = kernels._run
    monkeypatch.setattr(
        kernels,
        "_run",
        lambda which, call, **fields: (
            seen.append(
                (
                    fields.get("logits") is not None,
                    fields.get("grad_parents") is not None,
                )
            ),
            work(which, call, **fields),
        )[1],
    )
    return seen


@pytest.mark.parametrize("pose", [1, 3, 4])
@pytest.mark.parametrize("rows", [1, 2, 5, 16, 37])
def test_logits_are_written_down_once_and_parents_get_gradients_once(
    rows: int, pose: int, passes: list[tuple[bool, bool]]
) -> None:
    inputs, parents = competing(rows, pose)
    results = {}
    for backend in ("naive", "native"):
        with tc.use_backend(backend):
            loss = normalised(
                Votes(inputs[0], inputs[1]), Gaussian(*parents), inputs[2]
            )
            results[backend] = torch.autograd.grad(
                loss, (*inputs, *parents), retain_graph=True
            )
    again = torch.autograd.grad(loss, (*inputs, *parents))
    for expected, actual, same in zip(
        results["naive"], results["native"], again, strict=True
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(same, actual, rtol=0, atol=0)
    forward = [(True, False)] * 2
    backward = [(True, False), (True, True), (False, False)]
    assert passes == [*forward, *backward, *backward]


@pytest.mark.parametrize(
    ("most", "written"), [(20 * 40 * 5, True), (20 * 40 * 5 - 1, False)]
)
def test_logits_are_written_down_without_gradients_too_unless_they_are_many(
    most: int,
    written: bool,
    passes: list[tuple[bool, bool]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deferred, "_LOGITS", most)
    inputs, parents = competing()
    results = []
    for backend in ("naive", "native"):
        with tc.use_backend(backend), torch.no_grad():
            results.append(
                normalised(Votes(inputs[0], inputs[1]), Gaussian(*parents), inputs[2])
            )
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-11)
    assert passes == [(written, False)] * 2


@pytest.mark.parametrize(
    "context", [torch.enable_grad, torch.no_grad, torch.inference_mode]
)
def test_logits_of_other_numbers_are_not_taken_for_these(
    context: Callable[[], AbstractContextManager[None]],
) -> None:
    inputs, parents = competing()
    given = PARENTS, torch.full((20, 40), 2.0, dtype=torch.float64)
    with tc.use_backend("native"), context():
        votes = Votes(inputs[0], inputs[1])
        changed = Gaussian(*(tensor.detach().clone() for tensor in parents))
        expected = votes.source.moments(
            Gaussian(changed.mean + 1, *changed.tensors[1:]), None, *given, True
        )
        votes.source.log_partition(changed, False)
        changed.mean.add_(1)
        actual = votes.source.moments(changed, None, *given, True)
        torch.testing.assert_close(actual.sum, expected.sum, rtol=0, atol=0)
        votes.source.log_partition(
            Gaussian(*(tensor.detach() for tensor in parents)), False
        )
        actual = votes.source.moments(changed, None, *given, True)  # of their own
        torch.testing.assert_close(actual.sum, expected.sum, rtol=0, atol=0)


@pytest.mark.parametrize(
    "asked", ["children", "weights", "parents", "partition given", "partition unused"]
)
def test_some_gradients_of_a_step_with_a_log_partition(asked: str) -> None:
    inputs, parents = competing()
    given = (
        torch.full((20, 40), 2.0, dtype=torch.float64)
        if asked == "partition given"
        else None
    )
    wanted = {
        "children": inputs[:1],
        "weights": inputs[2:],
        "parents": parents,
    }.get(asked, (*inputs, *parents))
    results = []
    for backend in ("naive", "native"):
        with tc.use_backend(backend):
            loss = normalised(
                Votes(*inputs[:2]),
                Gaussian(*parents),
                inputs[2],
                given,
                asked != "partition unused",
            )
            results.append(torch.autograd.grad(loss, wanted))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


def test_logits_are_as_they_were_under_another_number_of_threads() -> None:
    generator = torch.Generator().manual_seed(0)
    sites = torch.tensor(
        [[start + step for step in range(6)] for start in (0, 1, 3, 5)],
        dtype=torch.int32,
    )
    children = torch.randn(
        7, 11, 2, 3, generator=generator, dtype=torch.float64
    ).requires_grad_()
    transforms = torch.randn(
        6, 4, 3, 4, generator=generator, dtype=torch.float64
    ).requires_grad_()
    parents = [
        torch.rand(28, 4, 8, generator=generator, dtype=torch.float64).requires_grad_()
        for _ in range(2)
    ]
    parents += [torch.zeros(28, 4, dtype=torch.float64, requires_grad=True)]
    results, before = [], torch.get_num_threads()
    for backend, threads in (
        ("naive", (2, 2, 2)),
        ("native", (2, 1, 2)),
        ("native", (1, 2, 3)),
    ):
        with tc.use_backend(backend):
            source = Votes(children, transforms, sites=sites).source
        try:
            torch.set_num_threads(threads[0])
            partition = source.log_partition(Gaussian(*parents), False)
            torch.set_num_threads(threads[1])
            by_child = torch.full((7, 11), 1.5, dtype=torch.float64) + partition.mean()
            by_child = by_child if source.indexed else in_windows(by_child, sites)
            moments = source.moments(Gaussian(*parents), None, PARENTS, by_child, True)
            torch.set_num_threads(threads[2])
            loss = moments.mean.sin().sum() + moments.variance.sum()
            results.append(torch.autograd.grad(loss, (children, transforms, *parents)))
        finally:
            torch.set_num_threads(before)
    for expected, *others in zip(*results, strict=True):
        for actual in others:
            torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


def test_parents_alone_leave_nothing_behind(passed_on: list[int]) -> None:
    children, transforms, _ = tensors(5)
    centre = torch.randn(5, 5, 16, dtype=torch.float64, requires_grad=True)
    with tc.use_backend("native"):
        votes = Votes(children, transforms)
        moments = votes.moments(InnerProduct(centre))
        (alone,) = torch.autograd.grad(
            moments.sum.square().sum(), centre, retain_graph=True
        )
    assert passed_on == []
    both = torch.autograd.grad(moments.sum.square().sum(), [centre, transforms])
    torch.testing.assert_close(both[0], alone, rtol=0, atol=0)
    assert passed_on == [2]


def test_a_second_backward_pass_gives_the_same_and_so_do_two_losses_apart() -> None:
    inputs = tensors(20)
    with tc.use_backend("native"):
        votes = Votes(inputs[0], inputs[1])
        first = votes.moments(weights=inputs[2])
        second = votes.moments(
            InnerProduct(torch.ones(20, 5, 16, dtype=torch.float64)), inputs[2]
        )
        losses = first.sum.square().sum(), second.sum.sin().sum()
        together = torch.autograd.grad(losses[0] + losses[1], inputs, retain_graph=True)
        again = torch.autograd.grad(losses[0] + losses[1], inputs, retain_graph=True)
        apart = [
            torch.autograd.grad(loss, inputs) for loss in losses
        ]  # neither graph is kept
    for value, same, *parts in zip(together, again, *apart, strict=True):
        torch.testing.assert_close(same, value, rtol=0, atol=0)
        torch.testing.assert_close(parts[0] + parts[1], value, rtol=1e-12, atol=1e-13)


def test_tensors_that_are_thawed_later_have_gradients() -> None:
    children, transforms, _ = (tensor.detach() for tensor in tensors(6))
    centre = torch.ones(6, 5, 16, dtype=torch.float64, requires_grad=True)
    with tc.use_backend("native"):
        votes = Votes(children, transforms)
        votes.moments(InnerProduct(centre)).sum.sum().backward()
        transforms.requires_grad_()
        votes.moments(InnerProduct(centre)).sum.sum().backward()
    assert transforms.grad is not None
    assert children.grad is None


def test_checkpoints_and_second_derivatives() -> None:
    inputs = tensors(18)
    plain = gradients("native", dynamic, inputs)
    with tc.use_backend("native"):
        saved = checkpoint(
            lambda *given: dynamic(Votes(*given[:2]), given[2]),
            *inputs,
            use_reentrant=False,
        )
        for actual, expected in zip(
            torch.autograd.grad(saved, inputs), plain, strict=True
        ):
            torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    small = tuple(
        tensor.detach()[:2, :6].requires_grad_() for tensor in (inputs[0], inputs[2])
    )
    transforms = inputs[1].detach()[:6].requires_grad_()
    for backend in ("naive", "native"):
        with tc.use_backend(backend):
            loss = dynamic(Votes(small[0], transforms), small[1])
        first = torch.autograd.grad(loss, transforms, create_graph=True)[0]
        second = torch.autograd.grad(first.square().sum(), (small[0], transforms))
        if backend == "naive":
            expected_second = second
    for actual, expected in zip(second, expected_second, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


def test_another_number_of_threads_in_the_middle() -> None:
    inputs = tensors(40)
    expected = gradients("naive", dynamic, inputs)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with tc.use_backend("native"):
            votes = Votes(inputs[0], inputs[1])
            first = votes.moments(weights=inputs[2])
            first.sum.register_hook(lambda grad: torch.set_num_threads(1))
            moments = votes.moments(InnerProduct(first.sum.tanh()), inputs[2])
            moments = votes.moments(InnerProduct(moments.sum.tanh()), inputs[2])
            result = torch.autograd.grad(
                moments.sum.square().sum() + moments.mass.sin().sum(), inputs
            )
    finally:
        torch.set_num_threads(before)
    for actual, value in zip(result, expected, strict=True):
        torch.testing.assert_close(actual, value, rtol=1e-9, atol=1e-11)


def variances(votes: Votes) -> Tensor:
    return votes.moments(scatter=True).variance


def poses(votes: Votes) -> Tensor:
    """By all steps at once."""
    return tc.routing.DynamicRouting()(votes).pose


def agreed(votes: Votes, weights: Tensor) -> Tensor:
    return poses(votes).square().sum() + votes.moments(weights=weights).sum.sum()


def turned(tensor: Tensor) -> Tensor:
    return (
        tensor
        if tensor.ndim < 2
        else tensor.transpose(0, -1).contiguous().transpose(0, -1)
    )


def moved(tensor: Tensor) -> Tensor:
    return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)


def negated(tensor: Tensor) -> Tensor:
    """The same numbers, as the negative of what lies in memory."""
    if not tensor.is_floating_point():
        return tensor
    return torch._neg_view(-tensor)


@pytest.mark.parametrize("given_back", [turned, moved, negated])
@pytest.mark.parametrize("routing", [dynamic, gaussian, agreed])
def test_hooks_may_give_back_saved_tensors_with_other_strides_and_places(
    routing: Callable[..., Tensor], given_back: Callable[[Tensor], Tensor]
) -> None:
    inputs = tensors(2, torch.float32)
    expected = gradients("native", routing, inputs)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor.detach(), given_back
    ):
        actual = gradients("native", routing, inputs)
    torch.testing.assert_close(actual, expected)


def sums(votes: Votes) -> Tensor:
    return votes.moments(scatter=True).sum


def scores(votes: Votes) -> Tensor:
    mean = torch.ones(2, 5, 16)
    return votes.logits(Gaussian(mean, mean, mean[..., 0]))


@pytest.mark.parametrize("arriving", [turned, negated])
@pytest.mark.parametrize("result", [sums, scores, variances, poses])
def test_gradients_may_arrive_with_other_strides_and_as_negatives(
    result: Callable[[Votes], Tensor], arriving: Callable[[Tensor], Tensor]
) -> None:
    """Complex numbers bring negatives: the imaginary part of a conjugate is one."""
    children, transforms, _ = tensors(2, torch.float32)
    with tc.use_backend("native"):
        computed = result(Votes(children, transforms))
        upstream = torch.randn_like(computed)
        expected, actual = (
            torch.autograd.grad(
                computed, (children, transforms), gradient, retain_graph=True
            )
            for gradient in (upstream, arriving(upstream))
        )
    torch.testing.assert_close(actual, expected)


def test_whoever_looks_on_sees_operators() -> None:
    children, transforms, _ = tensors(4, torch.float32)
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with tc.use_backend("native"), Watch():
        Votes(children, transforms).moments().sum.sum().backward()
    assert "torchcaps.moments.default" in seen
    assert "torchcaps.moments_backward.default" in seen
    with tc.use_backend("native"), pytest.warns():
        traced = torch.jit.trace(
            lambda pose, weight: Votes(pose, weight).moments().sum,
            (children, transforms),
        )
    assert "torchcaps::moments" in str(traced.graph)


def test_views_that_only_stand_for_other_numbers() -> None:
    children, transforms, _ = (tensor.detach() for tensor in tensors(4))
    mirrored = torch.complex(children, children).conj().imag
    assert mirrored.is_neg()
    with tc.use_backend("native"):
        actual = Votes(mirrored, transforms).moments().sum
        torch.testing.assert_close(
            actual, Votes(-children, transforms).moments().sum, rtol=0, atol=0
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_few_rows_that_leave_lanes_empty(rows: int, dtype: torch.dtype) -> None:
    inputs = tensors(rows, dtype)
    expected = gradients(
        "naive",
        dynamic,
        tuple(tensor.detach().double().requires_grad_() for tensor in inputs),
    )
    actual = gradients("native", dynamic, inputs)
    for value, expected_value in zip(actual, expected, strict=True):
        bound = 1e-12 if dtype == torch.float64 else 2e-6
        assert (
            value - expected_value
        ).abs().max() <= bound * expected_value.abs().max()


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="levels of x86-64")
@pytest.mark.parametrize(
    ("level", "size"), [("x86-64-v2", 16), ("x86-64-v3", 32), ("x86-64-v4", 64)]
)
def test_vectors_of_every_size(
    level: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    able = {"DEFAULT": 16, "AVX2": 32, "AVX512": 64}.get(
        torch.backends.cpu.get_cpu_capability(), 0
    )
    if able < size:
        pytest.skip(f"this processor does not run {level}")
    compiler = find_compiler()
    built = tmp_path / "native.so"
    assert compiler is not None
    subprocess.run(
        [
            *compiler,
            *FLAGS,
            f"-march={level}",
            "-shared",
            *map(str, UNITS),
            "-o",
            str(built),
        ],
        check=True,
    )
    library = kernel_library._loaded(built)
    monkeypatch.setattr(kernels, "library", lambda: library)
    assert library.vector_bytes == size
    for routing, pose in ((dynamic, 1), (dynamic, 3), (gaussian, 1), (gaussian, 4)):
        for rows in (1, 2, 3, 4, 7, 16, 37):
            wide = tensors(rows, pose=pose)
            narrow = tuple(tensor.detach().float().requires_grad_() for tensor in wide)
            expected = gradients("naive", routing, wide)
            for inputs, bound in ((wide, 1e-11), (narrow, 5e-6)):
                for gradient, expected_gradient in zip(
                    gradients("native", routing, inputs), expected, strict=True
                ):
                    assert (
                        gradient - expected_gradient
                    ).abs().max() <= bound * expected_gradient.abs().max()
