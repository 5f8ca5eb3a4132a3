"""Finds the first number in a network that is not finite."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from torchcaps.models import ClassifierNetwork
from torchcaps_lab.data import Batch
from torchcaps_lab.tasks import Criteria, Task


class TrainingDiverged(FloatingPointError):
    """The loss or a weight is no longer finite; the last checkpoint is from before
    that.

    Example:
        >>> from torchcaps_lab.training.diverged import TrainingDiverged
        >>> issubclass(TrainingDiverged, FloatingPointError)
        True
    """


def not_finite(state: Mapping[str, Tensor]) -> list[str]:
    """The names of weights and buffers with numbers that are not finite."""
    return [
        name
        for name, tensor in state.items()
        if tensor.is_floating_point() and not bool(tensor.isfinite().all())
    ]


@torch.no_grad()
def first_not_finite(
    model: ClassifierNetwork, task: Task, batch: Batch, criteria: Criteria
) -> str:
    """Runs a batch through a network and says where the first number that is not finite
    appears.

    Checked in this order: the images, the weights, the first layer whose output is not
    finite (of nested layers, the innermost), the activations of the classes, the parts
    of the loss.
    """
    if not bool(batch.inputs.isfinite().all()):
        return "images of the batch are not finite"
    if bad := not_finite(model.state_dict()):
        return f"weights are not finite since a step before: {', '.join(bad[:3])}" + (
            ", ..." if len(bad) > 3 else ""
        )
    faults: list[str] = []

    def watch(name: str, module: nn.Module) -> Any:
        def look(_module: nn.Module, _arguments: Any, output: Any) -> None:
            if not faults and not all(
                bool(tensor.isfinite().all()) for tensor in _tensors(output)
            ):
                faults.append(
                    f"layer {name} ({type(module).__name__}) is the first whose "
                    "output is not finite"
                )

        return module.register_forward_hook(look)

    hooks = [watch(name, module) for name, module in model.named_modules() if name]
    try:
        prediction, parts = task.loss(model, model, batch, criteria)
    finally:
        for hook in hooks:
            hook.remove()
    if not faults and not bool(prediction.activation.isfinite().all()):
        faults.append("activations of the classes are not finite")
    faults += [
        f"{name} is {part.item()}"
        for name, part in parts.items()
        if not bool(part.isfinite().all())
    ]
    return "; ".join(faults[:2]) or "repeating the batch does not show where"


def _tensors(output: Any) -> list[Tensor]:
    """The floating-point tensors in the output of a layer."""
    return [
        leaf
        for leaf in tree_leaves(output)
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]
