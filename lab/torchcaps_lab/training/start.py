"""A network that starts from the weights of another one, as far as they fit."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from torchcaps.models import load_pretrained
from torchcaps_lab.data.manifest import some
from torchcaps_lab.run_folder import RunFolder


def start_from(
    network: nn.Module,
    source: str,
    classes: Sequence[str],
    one_more: nn.Module,
) -> str:
    """Copy the weights of a saved network into a new one, in place, wherever name and
    shape are the same.

    Weights of a class are kept for the class of the same name. All others keep the
    values that they were drawn with.

    Args:
        network: the new network.
        source: the folder of a run, or of a saved network; or the name of one in the
            package.
        classes: the names of the classes of the new network.
        one_more: the new network for one class more, which shows what belongs to a
            class.

    Returns:
        A line for the user: what is kept, and what is new.

    Raises:
        ValueError: if no weight fits.
    """
    saved = load_pretrained(_model(source))
    known = saved.extra.get("classes") or ()
    same_classes = list(known) == list(classes)
    new = network.state_dict()
    old = saved.state_dict()
    axes = {} if same_classes else _class_axes(new, one_more)
    kept = {}
    for name in [name for name in new if name in old]:
        if name in axes:
            rows = _of_classes(new[name], old[name], axes[name], classes, known)
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
    return _told(source, new, kept, axes, [c for c in classes if c not in known])


def _model(source: str) -> str:
    """The network of a run, or what was named."""
    folder = RunFolder(Path(source))
    return str(folder.model) if folder.model.is_dir() else source


def _class_axes(new: Mapping[str, Tensor], one_more: nn.Module) -> dict[str, int]:
    """The axis of the classes in each weight that has one: it is longer where there is
    one class more.
    """
    axes = {}
    for name, tensor in one_more.state_dict().items():
        if name in new and tensor.ndim == new[name].ndim:
            sizes = zip(new[name].shape, tensor.shape, strict=True)
            differing = [axis for axis, (a, b) in enumerate(sizes) if a != b]
            if differing:
                axes[name] = differing[0]
    return axes


def _of_classes(
    new: Tensor,
    old: Tensor,
    axis: int,
    classes: Sequence[str],
    known: Sequence[str],
) -> Tensor | None:
    """The new weight with the rows of the classes that both networks have; None if it
    is not a row for each class, or no class is in both.
    """
    both = [name for name in classes if name in known]
    rows_of_classes = (new.shape[axis], old.shape[axis]) == (len(classes), len(known))
    rest = [size for place, size in enumerate(new.shape) if place != axis]
    old_rest = [size for place, size in enumerate(old.shape) if place != axis]
    if not both or not rows_of_classes or rest != old_rest:
        return None
    to = torch.tensor([list(classes).index(name) for name in both])
    source = torch.tensor([list(known).index(name) for name in both])
    return new.index_copy(axis, to, old.index_select(axis, source).to(new))


def _told(
    source: str,
    new: Mapping[str, Tensor],
    kept: Mapping[str, Tensor],
    axes: Mapping[str, int],
    new_classes: Sequence[str],
) -> str:
    """What is kept of the source, by the names of modules, and what is new."""
    fresh = [name for name in new if name not in kept]
    whole = [name for name in _modules(kept) if name not in _modules(fresh)]
    partly = [name for name in _modules(kept) if name in _modules(fresh)]
    parts = [*whole, *(f"parts of {name}" for name in partly)]
    line = f"starts from {source}: kept {some(parts)}"
    if fresh:
        line += f"; new: {some(fresh if partly else _modules(fresh))}"
    if new_classes and any(name in kept for name in axes):
        line += f"; new classes: {some(new_classes)}"
    return line


def _modules(names: Sequence[str] | Mapping[str, Tensor]) -> list[str]:
    """The parts of a network that have these weights, in order, without repetition."""
    return list(dict.fromkeys(name.partition(".")[0] for name in names))
