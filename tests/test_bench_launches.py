"""How many operations a GPU is given for a layer or a network."""

import os

import pytest
import torch

if (
    not torch.cuda.is_available()
):  # before anything imports triton, as torch._dynamo does
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from benchmarks.launches import CASES, launches

# Ratchets: as it was when they were set. The aims of a training step were 25, 80, 250
# and 110; step by step in PyTorch it were 94, 528, 1586 and 188 by the same count, and
# 106, 410, 1298 and 228 on an H100.
MOST = {
    "DigitCaps": (8, 21),
    "ConvCaps1 32-32": (13, 32),
    "MatrixCapsNet 64-8-16": (73, 149),
    "CapsNet": (47, 105),
    "Head, dynamic": (22, 37),
    "Head, kmeans": (45, 112),
    "Head, kmeans, evidence": (48, 123),
    "Slots": (127, 331),
}


@pytest.mark.parametrize("case", CASES)
def test_launches_are_few(case: str) -> None:
    counted = launches(case)
    assert (counted.forward, counted.step) <= MOST[case]
    assert counted.step <= MOST[case][1]
    assert counted.step > counted.forward > 0
