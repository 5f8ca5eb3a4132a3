"""A learning rate that is found before the training."""

import copy
import math
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from statistics import fmean
from typing import Any

import torch

from torchcaps_lab.options.declarations import Schedule
from torchcaps_lab.training.learner import Learner, with_gradients
from torchcaps_lab.training.loaders import train_loader
from torchcaps_lab.training.memory import check_memory
from torchcaps_lab.training.options import Optimisation, Running, Subject

LEAST = 1e-6
LARGEST = 1.0
STEPS = 100

SMOOTH = 5
"""Steps that a mean of the loss is over: single batches may have a loss of 0."""

HOPELESS = 4
"""Times the least mean, beyond which larger rates are not tried."""


def find_rate(
    subject: Subject, optimisation: Optimisation, schedule: Schedule, running: Running
) -> float:
    """A tenth of the rate at which the loss is least, in 100 steps whose rate grows
    from 1e-6 to 1 (Smith 2017).

    The network that makes these steps, on the CPU, is thrown away, and so is a copy of
    the loss: the training begins with its own weights. The same options find the same
    rate.

    Raises:
        ValueError: if the loss is not finite at the least rates already.
    """
    torch.manual_seed(schedule.seed)
    optimisation = replace(optimisation, loss=copy.deepcopy(optimisation.loss))
    optimisation.weigh(subject.data.train)
    check_memory(subject, optimisation.optimizer, schedule, running)
    network = subject.network(schedule.seed).train()
    learner = Learner(
        network,
        optimisation,
        subject.purpose(),
        subject.preprocess,
        schedule.seed,
        running.speed,
    )
    optimizer = optimisation.optimizer(network.parameters())
    loader = train_loader(
        subject.data.train, schedule.batch_size, schedule.seed, sampler=schedule.sampler
    )
    rates = torch.logspace(math.log10(LEAST), math.log10(LARGEST), STEPS).tolist()
    losses = list[float]()
    means = list[float]()
    for rate, batch in zip(rates, chain.from_iterable(repeat(loader)), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss: Any = optimizer.step(
            partial(
                with_gradients,
                learner.task,
                network,
                learner.criteria,
                learner.seen(batch, 0),
            )
        )
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            break
        if len(losses) >= SMOOTH:
            means.append(fmean(losses[-SMOOTH:]))
            if means[-1] > HOPELESS * min(means):
                break
    if not means:
        raise ValueError(
            f"lr find: the loss is {losses[-1]} at a rate of "
            f"{rates[len(losses) - 1]:.1g} already"
        )
    return float(f"{rates[means.index(min(means)) + SMOOTH // 2] / 10:.2g}")
