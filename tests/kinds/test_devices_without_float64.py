"""Figures of tensors on a device without float64, such as Apple's: what needs it is
computed on the CPU.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from torchcaps.models import Prediction
from torchcaps_lab.data import Batch
from torchcaps_lab.evaluate import dead_capsules
from torchcaps_lab.kinds.objects.measures import adjusted_rand_index, best_overlap
from torchcaps_lab.tasks import Segmentation
from torchcaps_lab.training.learner import Mean


class Elsewhere(Tensor):
    """A tensor that is on such a device until it is brought to the CPU."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = super().__torch_function__(func, types, args, kwargs)
        if func is Tensor.cpu:
            return result.as_subclass(Tensor)
        if isinstance(result, Tensor) and result.dtype == torch.float64:
            raise TypeError(f"{func.__name__} makes float64")
        return result


def elsewhere(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(Elsewhere)


LABELS = elsewhere(torch.arange(24).view(2, 3, 4) % 3)


@pytest.mark.parametrize("measure", [adjusted_rand_index, best_overlap])
def test_slots_and_objects(measure: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert measure(LABELS, (LABELS + 1) % 3).tolist() == [1, 1]


def test_pixels_of_classes() -> None:
    activation = elsewhere(torch.eye(3)[LABELS.cpu()].movedim(-1, 1))
    images = elsewhere(torch.rand(2, 1, 3, 4))
    batch = Batch(images, LABELS, elsewhere(torch.arange(2)), images)
    measured = Segmentation().measure(Prediction(activation, None, None), batch)
    assert measured["iou"].tolist() == [1, 1]


def test_dead_capsules() -> None:
    assert dead_capsules(elsewhere(torch.tensor([[0.0, 1.0]]))) == 0.5


def test_a_mean_over_an_epoch_keeps_its_dtype() -> None:
    mean = Mean()
    mean.update(torch.ones(3, dtype=torch.float64), 3)
    assert mean.total.dtype == torch.float32
    assert mean.compute() == 1
