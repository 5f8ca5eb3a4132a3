"""Small objects made of tensors, which say what shapes these must have and can be cut
into tiles.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, field, fields
from numbers import Real
from operator import itemgetter
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from torchcaps.numerics import as_variables

FieldsType = TypeVar("FieldsType", bound="Fields")


def axes(*layouts: str, default: Any = MISSING) -> Any:
    """Declare a tensor of a :class:`Fields` dataclass by its axes, one letter each.

    ``B`` rows of the batch, ``I`` children, ``J`` parents, ``H`` numbers of a vote; any
    other letter is an axis of its own. With several layouts the number of axes decides
    which one it is: ``axes("IJ", "BIJ")``.
    """
    return field(
        default=default, metadata={"axes": {len(layout): layout for layout in layouts}}
    )


class Fields:
    """Base of frozen dataclasses that hold tensors, declared with :func:`axes`, and
    other ``Fields``.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, eq=False)
        ... class Centres(tc.ops.Fields):
        ...     centre: torch.Tensor = tc.ops.axes("BJH")
        >>> Centres(torch.zeros(2, 3, 4)).tensors[0].shape
        torch.Size([2, 3, 4])
    """

    _layouts: ClassVar[dict[str, dict[int, str]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Collects the declared tensors."""
        super().__init_subclass__(**kwargs)
        declared = {
            name: value for name, value in vars(cls).items() if isinstance(value, Field)
        }
        layouts = {
            name: value.metadata["axes"]
            for name, value in declared.items()
            if "axes" in value.metadata
        }
        cls._layouts = {**cls._layouts, **layouts}

    def items(self) -> Iterator[tuple[str, Tensor, str]]:
        """Name, tensor and axes of each tensor that is there, those of inner ``Fields``
        too.

        Raises:
            TypeError: if a tensor has no declared axes, or something else stands where
                a tensor must be.
            ValueError: if it has another number of axes.
        """
        cls = type(self).__name__
        for name, value in self._values():
            layouts = self._layouts.get(name)
            if isinstance(value, Fields):
                yield from value.items()
            elif isinstance(value, Tensor):
                if layouts is None:
                    raise TypeError(
                        f"{cls} holds a tensor without axes: write `{name}: Tensor = "
                        'axes("BJH")`'
                    )
                if value.ndim not in layouts:
                    expected = " or ".join(
                        f"({', '.join(layout)})" for layout in layouts.values()
                    )
                    raise ValueError(
                        f"{name} of {cls} must be {expected}, got shape "
                        f"{tuple(value.shape)}"
                    )
                yield name, value, layouts[value.ndim]
            elif not (
                value is None
                or layouts is None
                or (0 in layouts and isinstance(value, Real))  # without axes, a number
            ):
                raise TypeError(
                    f"{name} of {cls} must be a tensor, got {type(value).__name__}"
                )

    def _values(self) -> Iterator[tuple[str, Any]]:
        """The declared fields; every torch.compile traces this, unlike ``vars(self)``."""
        dataclass: Any = self  # which its subclasses are
        for declared in fields(dataclass):
            yield declared.name, getattr(self, declared.name)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that are there, in the order of :meth:`items`."""
        return tuple(map(itemgetter(1), self.items()))

    def with_tensors(self: FieldsType, tensors: Iterable[Any]) -> FieldsType:
        """The same with these in place of its tensors, in the order of
        :attr:`tensors`.
        """
        following = iter(tensors)
        values: dict[str, Any] = {}
        for name, value in self._values():
            if isinstance(value, Fields):
                value = value.with_tensors(following)
            elif isinstance(value, Tensor):
                value = next(following)
            values[name] = value
        return type(self)(**values)

    def map(self: FieldsType, function: Callable[[Tensor, str], Tensor]) -> FieldsType:
        """The same with ``function(tensor, axes)`` in place of each tensor."""
        return self.with_tensors(
            [function(tensor, layout) for _, tensor, layout in self.items()]
        )

    def fitting(
        self: FieldsType,
        sizes: Mapping[str, int],
        device: torch.device,
        dtype: torch.dtype,
    ) -> FieldsType:
        """The same in that dtype, with the shapes checked.

        Args:
            sizes: along the axes of each letter; axes of another letter may have any.
            device: where the tensors must be.
            dtype: the dtype of the result.

        Raises:
            ValueError: if a tensor has other sizes along its axes, is complex, or is on
                another device.
        """
        same = True
        for name, tensor, layout in self.items():
            for letter, size in zip(layout, tensor.shape, strict=True):
                if sizes.get(letter, size) != size:
                    words = ", ".join(
                        f"{axis} = {sizes[axis]}" if axis in sizes else axis
                        for axis in layout
                    )
                    raise ValueError(
                        f"{name} of {type(self).__name__} must be ({words}), got "
                        f"shape {tuple(tensor.shape)}"
                    )
            if tensor.dtype != dtype or tensor.device != device:
                check_numbers(f"{name} of {type(self).__name__}", tensor, device)
                same = False
        if same:
            return self
        # With gradients even in a context without: it may be used outside of it.
        with as_variables():
            return self.map(lambda tensor, _: tensor.to(dtype))


def cut(tensor: Tensor, layout: str, rows: slice, columns: slice) -> Tensor:
    """The view of a tensor with these axes that belongs to these rows of the batch and
    these children.
    """
    place = {"B": rows, "I": columns}
    return tensor[tuple(place.get(letter, slice(None)) for letter in layout)]


def check_numbers(name: str, tensor: Tensor, device: torch.device) -> None:
    """Checks that a tensor is real and on this device; a scalar may be on any.

    Raises:
        TypeError: if it is no tensor.
        ValueError: if it is not real, or elsewhere.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if tensor.is_complex():
        raise ValueError(f"{name} must be real, got {tensor.dtype}")
    if tensor.device != device and tensor.ndim:
        raise ValueError(
            f"{name} must be on {device}, where the children are, got {tensor.device}"
        )
