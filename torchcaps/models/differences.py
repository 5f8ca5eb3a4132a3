"""Changes in a network what depends on one of its arguments, and nothing else."""

from collections.abc import Mapping
from functools import partial
from types import FunctionType
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""Attributes of a module that are no settings: its tensors and children, hooks, whether
it trains.
"""

_NUMBERS = (int, float, complex, str, bytes, type, type(None))


def take_differences(network: nn.Module, before: nn.Module, after: nn.Module) -> None:
    """Give a network what two others do not have in common, in place.

    All its modules stay the same objects, with their hooks, and so do their parameters
    and buffers, whether they learn and whatever they hold, unless shapes or settings of
    the two others differ there. What differs comes from ``after``, to the device and in
    the precision of what it replaces. A layer that somebody has made another kind of
    since, as ``torch.nn.utils.parametrize`` does, is replaced as a whole if it differs,
    and one that was removed stays removed.

    Args:
        network: what is changed.
        before: one that was made with its arguments; its numbers do not matter, it may
            be on the meta device.
        after: one that was made with others, which gives parts of itself away.
    """
    differences = _Differences(next(network.parameters(), None))
    differences.take_own(network, before, after)
    differences.take_children(network, before, after)


class _Differences:
    """Takes over differences, and knows what was taken: modules and tensors may stand
    in several places.

    Args:
        like: a tensor on the device and in the precision of what replaces nothing.
    """

    def __init__(self, like: Tensor | None) -> None:
        self.like = like
        self.modules: dict[tuple[int, int], nn.Module] = {}
        self.tensors: dict[int, Tensor] = {}

    def take(
        self, mine: nn.Module | None, before: nn.Module, after: nn.Module
    ) -> nn.Module | None:
        """The module that is in the place of ``mine`` from now on."""
        if mine is None:
            return None
        place = id(mine), id(after)
        if place not in self.modules:
            self.modules[place] = mine
            if _differs(before, after) and not _is_as_made(mine, before, after):
                self.modules[place] = self._placed(after, mine)
            else:
                self.take_own(mine, before, after)
                self.take_children(mine, before, after)
        return self.modules[place]

    def _placed(self, new: nn.Module, old: nn.Module) -> nn.Module:
        like = next(old.parameters(), self.like)
        if like is not None:
            new = new.to(like.device, like.dtype)
        return new.train(old.training)

    def _moved(self, new: Tensor | None, old: Tensor | None) -> Tensor | None:
        """A tensor on the device and in the precision of another one."""
        if new is None or old is None or is_lazy(new):
            return new
        if id(new) not in self.tensors:
            moved = new.detach().to(
                old.device, old.dtype if new.is_floating_point() else new.dtype
            )
            self.tensors[id(new)] = (
                nn.Parameter(moved, new.requires_grad)
                if isinstance(new, nn.Parameter)
                else moved
            )
        return self.tensors[id(new)]

    def take_own(self, mine: nn.Module, before: nn.Module, after: nn.Module) -> None:
        """Tensors and settings of a module itself."""
        for store in ("_parameters", "_buffers"):
            tensors: dict[str, Tensor | None] = getattr(after, store)
            for name in _different(getattr(before, store), tensors):
                old = getattr(mine, store).get(name)
                new = self._moved(tensors.get(name), self.like if old is None else old)
                _put(getattr(mine, store), name, new, name in tensors)
        mine._non_persistent_buffers_set ^= (
            before._non_persistent_buffers_set ^ after._non_persistent_buffers_set
        )
        settings = _settings(after)
        for name in _different(_settings(before), settings):
            _put(vars(mine), name, settings.get(name), name in settings)

    def take_children(
        self, mine: nn.Module, before: nn.Module, after: nn.Module
    ) -> None:
        """Children of a module, and theirs."""
        for name in [
            *before._modules,
            *(name for name in after._modules if name not in before._modules),
        ]:
            was = before._modules.get(name)
            new = after._modules.get(name)
            if was is None or new is None:
                if was is not new:
                    mine._modules.pop(name, None)
                if new is not None:
                    mine._modules[name] = self._placed(new, mine)
            elif name in mine._modules:
                mine._modules[name] = self.take(mine._modules[name], was, new)


def _differs(first: nn.Module, second: nn.Module) -> bool:
    """Whether two modules are of other kinds, or have other tensors or settings, those
    of their children apart.
    """
    stores = (
        _settings,
        lambda module: module._parameters,
        lambda module: module._buffers,
    )
    return type(first) is not type(second) or any(
        _different(store(first), store(second)) for store in stores
    )


def _is_as_made(mine: nn.Module, before: nn.Module, after: nn.Module) -> bool:
    """Whether a module has the kind of the two others, and all their tensors by
    name.
    """
    stores = ("_parameters", "_buffers")
    all_there = all(
        vars(mine)[store].keys() >= vars(before)[store].keys() for store in stores
    )
    return type(mine) is type(before) is type(after) and all_there


def _put(store: dict[str, Any], name: str, value: Any, replaces: bool) -> None:
    """Set a value, in the place of the old one in the order of names, or remove it."""
    if replaces:
        store[name] = value
    else:
        store.pop(name, None)


def _settings(module: nn.Module) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if name not in _OF_EVERY_MODULE
    }


def _different(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """The names of what two modules do not have in common."""
    same = {
        name
        for name in first.keys() & second.keys()
        if _essence(first[name]) == _essence(second[name])
    }
    return [name for name in {**first, **second} if name not in same]


def _essence(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """What two values have in common that mean the same; of tensors the shape, nothing
    of modules, which have names, and of hooks.

    Args:
        value: an attribute of a module.
        inside: what contains the value, by identity.
    """
    if isinstance(value, nn.Module | RemovableHandle) or id(value) in inside:
        return None
    if isinstance(value, Tensor):
        return None if is_lazy(value) else (value.shape, value.dtype)
    if isinstance(value, _NUMBERS):
        return type(value), repr(value)
    inner = (*inside, id(value))
    if isinstance(value, Mapping):
        return {name: _essence(part, inner) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_essence(part, inner) for part in value]
    if isinstance(value, partial):
        return _essence([value.func, value.args, value.keywords], inner)
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [value.__code__, *_essence(cells, inner)]
    attributes = vars(value) if hasattr(value, "__dict__") else None
    return type(value), _essence(attributes, inner)
