"""What all tests share: one thread in each process, the same examples in each run,
kernels compiled beforehand.
"""

import os

# With tensors this small, threads only wait for each other. The variable is for the
# processes that tests start, too, and is set before torch starts any threads.
THREADS = os.environ["OMP_NUM_THREADS"] = os.environ.get("TORCHCAPS_THREADS", "1")

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import Tensor

settings.register_profile(
    "tests", deadline=None, derandomize=True, database=None
)  # the same everywhere, at any speed
settings.load_profile("tests")
torch.set_num_threads(int(THREADS))
# OpenMP's threads do not survive a fork: a child would wait for them forever.
os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton


@pytest.fixture(autouse=True, scope="module")
def small_reports() -> Iterator[None]:
    """Reports show up to 4 images, not 20, each of which has a picture of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchcaps_lab.report.observe._SAMPLES", 4)
        yield


@pytest.fixture(autouse=True, scope="session")
def unsynced() -> Iterator[None]:
    """Files are not waited for: a test does not outlive a loss of power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture
def torch_patch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Replaces functions of torch itself. When it is imported, Dynamo lists those that
    it can trace: one that is replaced then, it could not trace in any later test.
    """
    import_module("torch._dynamo")
    return monkeypatch


@pytest.fixture
def poisoned(torch_patch: pytest.MonkeyPatch) -> None:
    """Memory that nobody wrote to holds NaN."""

    def poison(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def make_poisoned(*args: Any, **kwargs: Any) -> Tensor:
            out = make(*args, **kwargs)
            return out.fill_(torch.nan) if out.is_floating_point() else out

        return make_poisoned

    for owner, name in (
        (torch, "empty"),
        (torch, "empty_like"),
        (torch.Tensor, "new_empty"),
    ):
        torch_patch.setattr(owner, name, poison(getattr(owner, name)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long is left out unless somebody asks for it.

    The tests of the whole package are the longest: they come first, so that processes
    end together on short ones.
    """
    items.sort(key=lambda item: item.path.parent.name != "tests")
    for item in _other_combinations(items):
        item.add_marker(pytest.mark.thorough)
    if "TORCHCAPS_SLOW" not in os.environ:
        for item in items:
            if item.get_closest_marker("slow") is not None:
                item.add_marker(
                    pytest.mark.skip(reason="takes long: TORCHCAPS_SLOW=1 runs it")
                )


def _other_combinations(items: list[pytest.Item]) -> list[pytest.Item]:
    """Of the tests over combinations of parameters, those beyond a few in which each
    value occurs. .ci/run has all combinations of what changed.
    """
    tests = defaultdict(dict)
    for item in items:
        combined = isinstance(item, pytest.Function) and hasattr(item, "callspec")
        if combined and not any(
            item.get_closest_marker(name) for name in ("thorough", "slow")
        ):
            tests[item.parent, item.originalname][item] = _values(item)
    results = []
    for combinations in tests.values():
        axes = [
            list(dict.fromkeys(axis))
            for axis in zip(*combinations.values(), strict=True)
        ]
        few = {
            tuple(axis[place % len(axis)] for axis in axes)
            for place in range(max(map(len, axes)))
        }
        results += [item for item, values in combinations.items() if values not in few]
    return results


def _values(item: pytest.Function) -> tuple[tuple[int, ...], ...]:
    """The value of each parameter, by identity; parameters that are given together are
    one.
    """
    left = {name: id(value) for name, value in item.callspec.params.items()}
    together = [mark.args[0] for mark in item.iter_markers("parametrize")]
    names = [
        [name.strip() for name in argnames.split(",")]
        if isinstance(argnames, str)
        else argnames
        for argnames in together
    ]
    values = [tuple(left.pop(name) for name in group) for group in names]
    return (*values, *((value,) for value in left.values()))


def pytest_configure(config: pytest.Config) -> None:
    """Compiles the kernels once, before processes start that would all do so at the
    same time, and asks whether they run here. The warning that they do not comes once
    in a process: no test gets it by chance.
    """
    from torchcaps.ops.fused import library, why_not

    if not hasattr(
        config, "workerinput"
    ):  # not in one of the processes that pytest-xdist starts
        with suppress(RuntimeError):
            library.build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config.stash[NO_KERNELS] = why_not("native")


NO_KERNELS = pytest.StashKey[str]()
"""Why the C++ kernels do not run here; empty if they do."""


@pytest.fixture
def kernels(request: pytest.FixtureRequest) -> None:
    """The C++ kernels run here: for tests of when they are chosen."""
    if reason := request.config.stash[NO_KERNELS]:
        pytest.skip(reason)


@contextmanager
def _skipped_without_kernels(item: pytest.Item) -> Iterator[None]:
    """Skips a test that asks for the C++ kernels where they cannot be compiled."""
    reason = item.config.stash[NO_KERNELS]
    try:
        yield
    except (AssertionError, RuntimeError, RuntimeWarning) as error:
        if reason and reason in str(error):
            pytest.skip(reason)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with _skipped_without_kernels(item):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _skipped_without_kernels(item):
        yield
