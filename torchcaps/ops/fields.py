"""Small objects made of tensors that can be cut into tiles: what similarities and rules are."""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, field
from numbers import Real
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from torchcaps.ops.checks import check_numbers

FieldsType = TypeVar("FieldsType", bound="Fields")


def axes(*layouts: str, default: Any = MISSING) -> Any:
    """Declares a tensor of a :class:`Fields` dataclass by its axes, one letter each.

    ``B`` rows of the batch, ``I`` children, ``J`` parents, ``H`` numbers of a vote; any other letter is an axis of its
    own. With several layouts the number of axes decides which one it is: ``axes("IJ", "BIJ")``.
    """
    return field(default=default, metadata={"axes": {len(layout): layout for layout in layouts}})


class Fields:
    """Base of frozen dataclasses that hold tensors, declared with :func:`axes`, and other ``Fields``.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, eq=False)
        ... class Centres(tc.ops.Fields):
        ...     centre: torch.Tensor = tc.ops.axes("BJH")
        ...
        >>> Centres(torch.zeros(2, 3, 4)).tensors[0].shape
        torch.Size([2, 3, 4])
    """

    _layouts: ClassVar[dict[str, dict[int, str]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Collects the declared tensors."""
        super().__init_subclass__(**kwargs)
        declared = {name: value for name, value in vars(cls).items() if isinstance(value, Field)}
        own = {name: value.metadata["axes"] for name, value in declared.items() if "axes" in value.metadata}
        cls._layouts = {**cls._layouts, **own}

    def items(self) -> Iterator[tuple[str, Tensor, str]]:
        """Name, tensor and axes of each tensor that is there, those of inner ``Fields`` too.

        Raises:
            TypeError: if a tensor has no declared axes, or something else stands where a tensor must be.
            ValueError: if it has another number of axes.
        """
        for name, value in vars(self).items():
            if isinstance(value, Fields):
                yield from value.items()
            elif isinstance(value, Tensor):
                yield name, value, self._layout(name, value)
            elif not self._may_be(name, value):
                raise TypeError(f"{name} of {type(self).__name__} must be a tensor, got {type(value).__name__}")

    def _may_be(self, name: str, value: Any) -> bool:
        """Whether a field may be this, which is no tensor: None, a number where it has no axes, anything undeclared."""
        layouts = self._layouts.get(name)
        return value is None or layouts is None or (0 in layouts and isinstance(value, Real))

    def _layout(self, name: str, value: Tensor) -> str:
        layouts = self._layouts.get(name)
        if layouts is None:
            raise TypeError(f'{type(self).__name__} holds a tensor without axes: write `{name}: Tensor = axes("BJH")`')
        if value.ndim not in layouts:
            expected = " or ".join(f"({', '.join(layout)})" for layout in layouts.values())
            raise ValueError(f"{name} of {type(self).__name__} must be {expected}, got shape {tuple(value.shape)}")
        return layouts[value.ndim]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that are there, in the order of :meth:`items`."""
        return tuple(tensor for _, tensor, _ in self.items())

    def map(self: FieldsType, function: Callable[[Tensor, str], Tensor]) -> FieldsType:
        """The same with ``function(tensor, axes)`` in place of each tensor."""
        values = dict(vars(self))
        for name, value in values.items():
            if isinstance(value, Fields):
                values[name] = value.map(function)
            elif isinstance(value, Tensor):
                values[name] = function(value, self._layout(name, value))
        return type(self)(**values)

    def fitting(self: FieldsType, shapes: "Shapes", dtype: torch.dtype) -> FieldsType:
        """The same in that dtype, with the shapes checked.

        Raises:
            ValueError: if a tensor has other sizes along its axes, is complex, or is on another device.
        """
        same = True
        for name, tensor, layout in self.items():
            if tensor.shape != shapes.of(layout, tensor.shape):
                raise ValueError(
                    f"{name} of {type(self).__name__} must be {shapes.words(layout)}, got shape {tuple(tensor.shape)}"
                )
            if tensor.dtype != dtype or tensor.device != shapes.device:
                check_numbers(f"{name} of {type(self).__name__}", tensor, shapes.device)
                same = False
        return self if same else self.map(lambda tensor, _: tensor.to(dtype))


class Shapes:
    """The shapes that tensors with given axes have in one call.

    Args:
        sizes: along the axes of each letter.
        device: of the tensors.
    """

    def __init__(self, sizes: dict[str, int], device: torch.device) -> None:
        self.sizes = sizes
        self.device = device
        self._known: dict[str, tuple[int, ...]] = {}

    def of(self, layout: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape along these axes; axes of another letter are as long as they are in ``shape``."""
        known = self._known.get(layout)
        if known is None:
            known = tuple(self.sizes.get(letter, size) for letter, size in zip(layout, shape, strict=True))
            if all(letter in self.sizes for letter in layout):
                self._known[layout] = known
        return known

    def words(self, layout: str) -> str:
        """The shape along these axes, for error messages."""
        return f"({', '.join(f'{one} = {self.sizes[one]}' if one in self.sizes else one for one in layout)})"


def cut(tensor: Tensor, layout: str, rows: slice, columns: slice) -> Tensor:
    """The view of a tensor with these axes that belongs to these rows of the batch and these children."""
    place = {"B": rows, "I": columns}
    return tensor[tuple(place.get(letter, slice(None)) for letter in layout)]
