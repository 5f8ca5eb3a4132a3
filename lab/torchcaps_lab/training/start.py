"""A network that starts from the weights of another one, as far as they fit."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.models import load_pretrained
from torchcaps_lab.data.manifest import some
from torchcaps_lab.run_folder import RunFolder

Names = Mapping[str, tuple[Sequence[str], Sequence[str]]]
"""What weights have a row for each of, by the argument of networks that counts them: the
names of a new network and those of a saved one.
"""


def start_from(
    network: nn.Module,
    source: str,
    named: Callable[[Mapping[str, Any]], Names],
    one_more: Callable[[str], nn.Module],
) -> str:
    """Copy the weights of a saved network into a new one, in place, wherever name and
    shape are the same.

    Weights of a class, or of a word, are kept for that of the same name. All others
    keep the values that they were drawn with.

    Args:
        network: the new network.
        source: the folder of a run, or of a saved network; or the name of one in the
            package.
        named: from what was kept with the saved network to the names of both.
        one_more: from an argument to the new network with one name of it more, which
            shows what belongs to a name.

    Returns:
        A line for the user: what is kept, and what is new.

    Raises:
        ValueError: if no weight fits.
    """
    saved = load_pretrained(_model(source))
    new = network.state_dict()
    old = saved.state_dict()
    axes = {}
    news = {}
    for argument, (names, known) in named(saved.extra).items():
        if list(names) != list(known):
            old_names = {*known}
            news[argument] = [name for name in names if name not in old_names]
            for weight, axis in _axes(new, one_more(argument)).items():
                axes[weight] = axis, names, known
    kept = {}
    for name in [name for name in new if name in old]:
        if name in axes:
            rows = _of_names(new[name], old[name], *axes[name])
        else:
            rows = old[name] if old[name].shape == new[name].shape else None
        if rows is not None:
            kept[name] = rows
    if not any(tensor.is_floating_point() for tensor in kept.values()):
        raise ValueError(
            f"start: no weight of {source}, a {type(saved).__name__}, fits the "
            f"{type(network).__name__} to train"
        )
    network.load_state_dict(kept, strict=False)
    return _summary(source, new, kept, axes, news)


def _model(source: str) -> str:
    """The network of a run, or what was named."""
    folder = RunFolder(Path(source))
    return str(folder.model) if folder.model.is_dir() else source


def _axes(new: Mapping[str, Tensor], one_more: nn.Module) -> dict[str, int]:
    """The axis of the names in each weight that has one: it is longer where there is
    one name more.
    """
    axes = {}
    for name, tensor in one_more.state_dict().items():
        if name in new and tensor.ndim == new[name].ndim:
            sizes = zip(new[name].shape, tensor.shape, strict=True)
            differing = [axis for axis, (a, b) in enumerate(sizes) if a != b]
            if differing:
                axes[name] = differing[0]
    return axes


def _of_names(
    new: Tensor, old: Tensor, axis: int, names: Sequence[str], known: Sequence[str]
) -> Tensor | None:
    """The new weight with the rows of the names that both networks have; None if it is
    not a row for each name, or no name is in both.
    """
    place_of = {name: place for place, name in enumerate(known)}
    both = [place for place, name in enumerate(names) if name in place_of]
    rest = [size for place, size in enumerate(new.shape) if place != axis]
    old_rest = [size for place, size in enumerate(old.shape) if place != axis]
    lengths = new.shape[axis], old.shape[axis]
    if not both or lengths != (len(names), len(known)) or rest != old_rest:
        return None
    to = torch.tensor(both)
    source = torch.tensor([place_of[names[place]] for place in both])
    return new.index_copy(axis, to, old.index_select(axis, source).to(new))


def _summary(
    source: str,
    new: Mapping[str, Tensor],
    kept: Mapping[str, Tensor],
    axes: Collection[str],
    news: Mapping[str, Sequence[str]],
) -> str:
    """What is kept of the source, by the names of modules, and what is new."""
    fresh = [name for name in new if name not in kept]
    whole = [name for name in _modules(kept) if name not in _modules(fresh)]
    partly = [name for name in _modules(kept) if name in _modules(fresh)]
    parts = [*whole, *(f"parts of {name}" for name in partly)]
    line = f"starts from {source}: kept {some(parts)}"
    if fresh:
        line += f"; new: {some(fresh if partly else _modules(fresh))}"
    if any(name in kept for name in axes):
        for argument, names in news.items():
            line += f"; new {argument}: {some(names)}" if names else ""
    return line


def _modules(names: Sequence[str] | Mapping[str, Tensor]) -> list[str]:
    """The parts of a network that have these weights, in order, without repetition."""
    return list(dict.fromkeys(name.partition(".")[0] for name in names))
