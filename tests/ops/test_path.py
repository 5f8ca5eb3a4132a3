"""The way of a training step through the package: one plan for all E-steps, and not too
many functions.
"""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest
import torch

import torchcaps as tc
from torchcaps.ops.fused import why_not

PACKAGE = str(Path(tc.__file__).parent)
FUNCTIONS, FILES = 60, 9
"""At most so many functions, in so many files, does one step of a layer with EM routing
enter.
"""


def entered(
    layer: tc.CapsLinear, children: tc.Capsules
) -> Counter[tuple[str, str, int]]:
    """How often each function of the package is entered in a training step."""
    seen: Counter[tuple[str, str, int]] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            seen[code.co_filename, code.co_name, code.co_firstlineno] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        parents = layer(children)
        (parents.pose.square().mean() + parents.activation.sum()).backward()
    finally:
        sys.setprofile(before)
    return seen


@pytest.mark.skipif(bool(why_not("native")), reason="no C++ kernels here")
def test_one_plan_for_all_steps() -> None:
    torch.manual_seed(0)
    layer = tc.CapsLinear(
        8,
        10,
        (4, 4),
        (4, 4),
        routing=tc.routing.EMRouting(steps=3),
    )
    children = tc.Capsules(
        torch.randn(4, 8, 4, 4, requires_grad=True), torch.rand(4, 8)
    )
    entered(layer, children)  # what is made once is made here
    seen = entered(layer, children)
    plans = sum(
        times
        for (file, name, _), times in seen.items()
        if name == "plan" and file.endswith("plan.py")
    )
    assert plans == 1
    assert len(seen) <= FUNCTIONS
    assert len({file for file, _, _ in seen}) <= FILES
