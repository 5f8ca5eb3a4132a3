from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nobody wrote to holds NaN."""

    def poison(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def make_poisoned(*args: Any, **kwargs: Any) -> Tensor:
            out = make(*args, **kwargs)
            return out.fill_(torch.nan) if out.is_floating_point() else out

        return make_poisoned

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poison(getattr(owner, name)))
