"""Memory that a training step frees serves the next one, and goes back to the system in the end.

All in a process of its own: one that has run other tests has room of theirs between its blocks.
"""

import json
import platform
import resource
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from torchcaps import create_model
from torchcaps.data import Batch, Digits
from torchcaps.training import Learner, Optimisation, Schedule, Speed, TrainerOptions, fit
from torchcaps.training.memory import kept_memory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="an allocator that is not glibc's"),
]

NUMBERS = 10 * 2**20
"""40 MiB: glibc takes blocks above 32 MiB from the system one by one, whatever it was asked for before."""
PAGES = 4 * NUMBERS // resource.getpagesize()


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Greedy(Learner):
    """Needs a large block in each step, and counts the page faults of all but the first."""

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        torch.ones(NUMBERS)
        now = faults()
        self.pages = now - self.seen if batch_idx else 0
        self.seen = now


def pages_of_a_step(folder: Path, speed: Speed) -> int:
    images = Digits().train.subset(torch.arange(24))
    network = create_model("capsnet_digits", channels=4, types=2, decoder_hidden=(8,))
    greedy = Greedy(network, Optimisation(optimizer=partial(torch.optim.SGD, lr=0.01)), speed=speed)
    fit(greedy, images, images.subset(torch.arange(0)), folder, Schedule(epochs=1, batch_size=8), TrainerOptions("cpu"))
    return greedy.pages


def measure() -> dict[str, float]:
    """Pages of a step with and without kept memory, and what is in memory meanwhile and behind, in blocks."""
    with tempfile.TemporaryDirectory() as folder:
        kept, returned = (pages_of_a_step(Path(folder, str(keep)), Speed(keep_memory=keep)) for keep in (True, False))
    before = resident()
    with kept_memory():
        blocks = [torch.ones(NUMBERS), torch.ones(NUMBERS)]
        del blocks
        meanwhile = resident()
    found = {"kept": kept / PAGES, "returned": returned / PAGES}
    return {
        **found,
        **{
            name: (now - before) / (4 * NUMBERS)
            for name, now in zip(("meanwhile", "behind"), (meanwhile, resident()), strict=True)
        },
    }


@pytest.fixture(scope="module")
def measured() -> dict[str, float]:
    lines = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True).stdout.splitlines()
    found: dict[str, float] = json.loads(lines[-1])
    return found


def test_a_step_takes_no_new_pages(measured: dict[str, float]) -> None:
    assert measured["kept"] < 0.1


def test_unless_it_shall(measured: dict[str, float]) -> None:
    if "[always]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        pytest.skip("pages are 512 times as large here")
    assert measured["returned"] > 0.9


def test_all_goes_back_behind(measured: dict[str, float]) -> None:
    assert measured["meanwhile"] > 1
    assert measured["behind"] < 0.25


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(measure())}\n")
