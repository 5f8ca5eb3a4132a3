"""CUDA graphs where they pay: replayed steps do not wait for Python."""

from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from torchcaps_lab.training.learner import Learner
from torchcaps_lab.training.speed import Speed, predict

COMPILING = 25.0
"""Seconds that compiling takes: CapsNet and a small MatrixCapsNet on an H100, PyTorch
2.11.
"""

GAIN = 2.7e-3
"""Seconds that graphs save in each step there: CapsNet with 128 images, which gains
least of both, takes 5.8 ms without them and 3.1 ms with them.
"""

WARM_UP = 3
"""Steps until a graph is replayed: one compiles, one records, one replays."""


def graphs_pay(
    device: str,
    steps: float,
    processes: int = 1,
    group: int = 1,
    ramps: bool = False,
) -> bool:
    """Return whether graphs save more time in a training than compiling takes.

    Only on a GPU, where Python is slower than the kernels. Several processes, gradients
    that are added up and settings that change would need graphs of their own.

    Args:
        device: the type of the device, such as ``"cuda"``.
        steps: the steps that are still to be made.
        processes: the processes that train together.
        group: batches whose gradients are added up before a step.
        ramps: whether settings of the network change during the training.

    Example:
        >>> from torchcaps_lab.training.graphs import graphs_pay
        >>> graphs_pay("cuda", 1_000), graphs_pay("cuda", 20_000)
        (False, True)
    """
    single = processes == 1 and group == 1 and not ramps
    return device == "cuda" and single and steps * GAIN > COMPILING


class Graphs(Callback):
    """Compiles the network of a training for CUDA graphs at its start, if they pay and
    nothing else was chosen.

    If that fails, the training goes on without. Either way a sentence tells.

    Args:
        show: shows a sentence; None shows none.
    """

    def __init__(self, show: Callable[[str], None] | None) -> None:
        self.show = show or (lambda sentence: None)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Compiles, and makes the first steps on a batch without any effect."""
        if not isinstance(pl_module, Learner) or pl_module.speed.compile is not None:
            return
        steps = trainer.estimated_stepping_batches - trainer.global_step
        if not graphs_pay(
            trainer.strategy.root_device.type,
            steps,
            trainer.world_size,
            trainer.accumulate_grad_batches,
            bool(pl_module.optimisation.ramp),
        ):
            return
        pl_module.run = Speed(compile="reduce-overhead").step()
        loader: Any = trainer.train_dataloader
        batch = trainer.strategy.batch_to_device(next(iter(loader)))
        try:
            with trainer.precision_plugin.train_step_context():
                for _ in range(WARM_UP):
                    pl_module.step_without_effect(batch)
        # Compilers and drivers may raise anything.
        except Exception as error:
            pl_module.run = predict
            torch.compiler.reset()  # frees the memory of graphs
            self.show(f"steps are not compiled, since that failed: {_reason(error)}")
            return
        self.show(
            f"steps are replayed as CUDA graphs, which pays for {steps:,.0f} steps; "
            "--speed.compile off trains without"
        )


def _reason(error: Exception) -> str:
    """The first line of what a compiler said, without what torch puts around it."""
    cause = getattr(error, "inner_exception", error)
    return str(cause).strip().partition("\n")[0] or type(cause).__name__
