"""Seeds are mixed by arithmetic that is the same everywhere, not by Python's hash."""

import itertools
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from torchcaps.models import create_model
from torchcaps_lab.data import Digits, mixed_seed
from torchcaps_lab.options.declarations import Schedule, TrainerOptions
from torchcaps_lab.training.fitting import Fitting
from torchcaps_lab.training.learner import Learner
from torchcaps_lab.training.options import Optimisation

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
    seeds = [
        mixed_seed(*numbers)
        for numbers in itertools.product(range(8), range(50), range(8))
    ]
    assert len(set(seeds)) == len(seeds)


def test_a_batch_starts_from_the_mixed_seed(tmp_path: Path) -> None:
    network = create_model("capsnet_digits", channels=4, types=2, decoder_hidden=None)
    drawn = []
    network.register_forward_pre_hook(
        lambda model, _: drawn.append(torch.rand(3)) if model.training else None
    )
    learner = Learner(
        network, Optimisation(optimizer=partial(torch.optim.SGD, lr=0.1)), seed=5
    )
    images = Digits().train.subset(torch.arange(8))
    Fitting(
        learner,
        images,
        images,
        tmp_path,
        Schedule(epochs=2, batch_size=4),
        TrainerOptions("cpu"),
    ).run()
    seeds = [
        mixed_seed(5, epoch, 0) + batch for epoch in range(2) for batch in range(2)
    ]
    expected = [
        torch.rand(3, generator=torch.Generator().manual_seed(seed)) for seed in seeds
    ]
    assert torch.equal(torch.stack(drawn), torch.stack(expected))


def test_nothing_in_the_package_hashes_for_a_seed() -> None:
    code = [
        path.read_text()
        for path in (ROOT / "lab" / "torchcaps_lab" / "training").glob("*.py")
    ]
    assert not any("hash(" in text for text in code)


@pytest.mark.thorough
def test_every_process_agrees() -> None:
    code = "from torchcaps_lab.data import mixed_seed; print(mixed_seed(3, 1, 4))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == mixed_seed(3, 1, 4)
