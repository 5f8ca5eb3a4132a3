"""Seeds are mixed by arithmetic that is the same everywhere, not by Python's hash."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchcaps.data import mixed_seed
from torchcaps.models import create_model
from torchcaps.training import Learner, Optimisation

ROOT = Path(__file__).parents[2]


def splitmix(state: int) -> int:
    """Steele, Lea & Flood 2014, figure 17, in integers of any size."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


@pytest.mark.parametrize("numbers", [(0,), (0, 0), (1, 2, 3), (2**62, 5), (-1, 7)])
def test_it_is_splitmix64(numbers: tuple[int, ...]) -> None:
    state = 0
    for number in numbers:
        state = splitmix((state + number + 0x9E3779B97F4A7C15) % 2**64)
    assert mixed_seed(*numbers) == state % 2**63


def test_seeds_of_epochs_and_processes_differ() -> None:
    seeds = [mixed_seed(*numbers) for numbers in itertools.product(range(8), range(50), range(8))]
    assert len(set(seeds)) == len(seeds)


def test_an_epoch_starts_from_the_mixed_seed() -> None:
    network = create_model("capsnet_digits", channels=4, types=2, decoder_hidden=None)
    learner = Learner(network, Optimisation(optimizer=torch.optim.SGD), seed=5)
    learner.on_train_epoch_start()
    drawn = torch.rand(3)
    torch.manual_seed(mixed_seed(5, 0, 0))
    assert torch.equal(drawn, torch.rand(3))


def test_nothing_in_the_package_hashes_for_a_seed() -> None:
    code = [path.read_text() for path in (ROOT / "torchcaps" / "training").glob("*.py")]
    assert not any("hash(" in text for text in code)


def test_every_process_agrees() -> None:
    code = "from torchcaps.data import mixed_seed; print(mixed_seed(3, 1, 4))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) == mixed_seed(3, 1, 4)
