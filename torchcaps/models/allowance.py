"""What the constructor of a saved network may make: no more than the weights in its
file give reason for.
"""

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

SPARE_BYTES = 2**28
TIMES_WEIGHTS = 4
"""Memory at one time: this much, as one example of large images takes, and so many
times that of the weights.
"""

TIMES_OVER = 16
"""All memory that is taken and given back: so many times the most at one time."""

SPARE_STEPS, STEPS_EACH = 2_000, 40
"""Operations on tensors: so many, and so many for each tensor in the file. Networks of
the package take up to 30.
"""

DRAWS = (
    "aten::normal_",
    "aten::uniform_",
    "aten::random_",
    "aten::bernoulli_",
    "aten::randn",
    "aten::rand",
)
"""Operations that draw numbers: on ``meta`` there are none to draw, but torch imports
its compiler for it.
"""

_OF_EMPTY = ("dtype", "layout", "device", "pin_memory")


class TooLarge(ValueError):
    """A configuration asks for more than the weights beside it give reason for."""


class Header(NamedTuple):
    """What a file of weights says about its tensors.

    Args:
        shapes: the shapes of the tensors, by name.
    """

    shapes: Mapping[str, tuple[int, ...]]

    @property
    def elements(self) -> int:
        """The numbers in all tensors."""
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())


def read_header(path: Path) -> Header:
    """Names and shapes of the tensors in a file of safetensors, which must hold their
    bytes; none of these is read.

    Raises:
        ValueError: if the file is damaged: names it.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            return Header(
                {name: tuple(file.get_slice(name).get_shape()) for name in names}
            )
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


class Allowance(TorchDispatchMode):
    """Counts operations and memory while a network is made, and ends it before it takes
    more than it may.

    Where a network is made on the device ``meta``, the memory is counted that it would
    take elsewhere. Where it is made on another device, each operation runs on ``meta``
    first, so that its memory is known before it is taken.

    Args:
        header: the header of the file of weights.

    Raises:
        TooLarge: inside, at the operation that is one too many.
    """

    def __init__(self, header: Header) -> None:
        super().__init__()
        weights = header.elements * torch.get_default_dtype().itemsize
        self.most, self.most_steps = (
            SPARE_BYTES + TIMES_WEIGHTS * weights,
            SPARE_STEPS + STEPS_EACH * len(header.shapes),
        )
        self.why = (
            f"the file of weights holds {len(header.shapes)} tensors of "
            f"{header.elements:,} numbers"
        )
        self.steps = self.taken = self.taken_in_all = 0
        self._alive: dict[int, tuple[weakref.ref, int]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keeps torch from importing its compiler, which takes seconds, to exempt the
        next method from it.
        """
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        kwargs = kwargs or {}
        self.steps += 1
        if self.steps > self.most_steps:
            raise TooLarge(f"its arguments ask for too many layers: {self.why}")
        if func._schema.name in DRAWS and _runs_on_meta(args, kwargs):
            if isinstance(args[0], Tensor):
                return args[0]
            func = torch.ops.aten.empty.memory_format
            kwargs = {name: kwargs.get(name) for name in _OF_EMPTY}
        counted = not _taking_no_memory.get() and any(
            returned.alias_info is None for returned in func._schema.returns
        )
        if counted and not _runs_on_meta(args, kwargs):
            self._check(_storages(_foreseen(func, args, kwargs)))
        result = func(*args, **kwargs)
        if counted:
            self._keep(_storages(result))
        return result

    def _check(self, storages: list[torch.UntypedStorage]) -> None:
        """Raises an error if so much more memory is too much."""
        more = sum(storage.nbytes() for storage in storages)
        if (
            self.taken + more > self.most
            or self.taken_in_all + more > TIMES_OVER * self.most
        ):
            raise TooLarge(
                f"its arguments ask for {more:,} bytes beside {self.taken:,}: "
                f"{self.why}"
            )

    def _keep(self, storages: list[torch.UntypedStorage]) -> None:
        """Counts memory that is new, until it is given back."""
        new = [storage for storage in storages if storage._cdata not in self._alive]
        self._check(new)
        for storage in new:
            key = storage._cdata
            size = storage.nbytes()
            self.taken += size
            self.taken_in_all += size
            self._alive[key] = weakref.ref(storage, partial(self._release, key)), size

    def _release(self, key: int, _: object) -> None:
        self.taken -= self._alive.pop(key)[1]


_taking_no_memory: ContextVar[bool] = ContextVar("taking_no_memory", default=False)


@contextmanager
def taking_no_memory() -> Iterator[None]:
    """What runs on the device ``meta`` inside runs there always, and is not counted by
    an :class:`Allowance`.
    """
    token = _taking_no_memory.set(True)
    try:
        yield
    finally:
        _taking_no_memory.reset(token)


def _runs_on_meta(args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether the arguments of an operation lie on ``meta``, or its result will."""
    devices = [
        leaf.device.type
        for leaf in tree_leaves((args, kwargs))
        if isinstance(leaf, Tensor)
    ]
    return "meta" in devices or getattr(kwargs.get("device"), "type", "") == "meta"


def _foreseen(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """What an operation will return, on the device ``meta``; None if nobody can
    know.
    """
    if any(parameter.name == "device" for parameter in func._schema.arguments):
        chosen = {"device": torch.device("meta")}
    else:
        chosen = {}
    args, kwargs = tree_map_only(Tensor, _on_meta, (args, dict(kwargs)))
    try:
        return func(*args, **{**kwargs, **chosen})
    except (
        NotImplementedError,
        RuntimeError,
    ):  # it depends on numbers, or fails in any case
        return None


def _on_meta(tensor: Tensor) -> Tensor:
    """A tensor of the same shape, strides and type without memory."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
    )


def _storages(result: Any) -> list[torch.UntypedStorage]:
    """The memory of the tensors in the result of an operation."""
    if isinstance(result, Tensor):
        tensors = [result]
    else:
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    return [tensor.untyped_storage() for tensor in tensors]
