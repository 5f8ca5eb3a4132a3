"""Loaders of batches, such that any number of processes trains in the same way."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from torchcaps_lab.data import Batch, Examples, mixed_seed
from torchcaps_lab.options.declarations import SamplerName, Schedule
from torchcaps_lab.training.options import one_class_each
from torchcaps_lab.training.speed import Speed


def _same(batch: Any) -> Any:
    """Returns the batch, which :meth:`Examples.__getitems__` made already."""
    return batch


def balanced_order(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Draw as many indices as labels (N,), in which all classes occur equally often, up
    to one.

    All images of a class occur before any of them is repeated.
    """
    members = [(labels == label).nonzero().squeeze(1) for label in labels.unique()]
    counts = torch.full((len(members),), len(labels) // len(members))
    counts[
        torch.randperm(len(members), generator=generator)[: len(labels) % len(members)]
    ] += 1
    drawn = []
    for count, group in zip(counts.tolist(), members, strict=True):
        rounds = [
            group[torch.randperm(len(group), generator=generator)]
            for _ in range(-(-count // len(group)))
        ]
        drawn.append(torch.cat([*rounds, group[:0]])[:count])
    order = torch.cat(drawn)
    return order[torch.randperm(len(order), generator=generator)]


class Shard(DistributedSampler[int]):
    """One process's shard of a random order, which depends only on the seed and the
    epoch.

    Args:
        images: the images.
        draw: draws the order of their indices with a ``generator``.
        processes: how many there are.
        rank: the rank of this process.
        seed: the seed of the order, together with the epoch.
    """

    def __init__(
        self,
        images: Examples,
        draw: Callable[..., Tensor],
        processes: int,
        rank: int,
        seed: int,
    ) -> None:
        super().__init__(images, processes, rank, seed=seed, drop_last=True)
        self.draw = draw

    def __iter__(self) -> Iterator[int]:
        # In their sum, epoch 1 of seed 0 would have the order of epoch 0 of seed 1.
        seed = mixed_seed(self.seed, self.epoch)
        order = self.draw(generator=torch.Generator().manual_seed(seed))
        order = order[: self.total_size]
        return iter(order[self.rank :: self.num_replicas].tolist())


def train_loader(
    images: Examples,
    batch_size: int,
    seed: int,
    rank: int = 0,
    processes: int = 1,
    sampler: SamplerName = "shuffled",
    group: int = 1,
) -> DataLoader:
    """Shuffled batches for one process: its shard of batches that are the same for any
    number of processes.

    Batches and groups of batches are always full; the few images left over in an epoch
    occur in other epochs.

    Args:
        images: the training images.
        batch_size: over all processes together; made smaller if there are fewer images,
            or if it cannot be shared out evenly.
        seed: the seed of the order, together with the epoch.
        rank: the rank of this process.
        processes: how many there are.
        sampler: ``shuffled``, each image once, or ``balanced``, each class equally
            often.
        group: batches whose gradients are accumulated before each step; all batches if
            there are fewer.

    Raises:
        ValueError: if there is not one image for each process, or classes that cannot
            be balanced.
    """
    if len(images) < processes:
        raise ValueError(
            f"{len(images)} training {images.what} cannot be shared out to {processes} "
            "processes"
        )
    share = max(1, min(batch_size, len(images)) // processes)
    if sampler == "balanced":
        labels = one_class_each(images, "sampler").cpu()
        draw: Callable[..., Tensor] = partial(balanced_order, labels)
    else:
        draw = partial(torch.randperm, len(images))
    order = Shard(images, draw, processes, rank, seed)
    batches = len(order) // share
    order.num_samples = (batches // group * group or batches) * share
    order.total_size = order.num_samples * processes
    return DataLoader(images, share, sampler=order, collate_fn=_same)


def evaluation_loader(images: Examples, batch_size: int) -> DataLoader:
    """All images in order, in every process, so that figures are exact and no image
    counts twice.
    """
    return DataLoader(images, batch_size, collate_fn=_same)


class Loaders(L.LightningDataModule):
    """Makes the loaders once the processes are known, and applies compositions to
    training images in each epoch.

    Example:
        >>> from torchcaps_lab.data import Digits
        >>> from torchcaps_lab.training.loaders import Loaders
        >>> from torchcaps_lab.training.speed import Speed
        >>> from torchcaps_lab.options.declarations import Schedule
        >>> digits = Digits()
        >>> loaders = Loaders(
        ...     digits.train, digits.validation, Schedule(batch_size=64), Speed()
        ... )
        >>> loaders.schedule.batch_size  # trainer.fit(learner, loaders)
        64
    """

    def __init__(
        self, train: Examples, validation: Examples, schedule: Schedule, speed: Speed
    ) -> None:
        super().__init__()
        self.composition = train.composition
        self.train = replace(train, composition=None)
        self.validation = validation
        self.schedule = schedule
        self.speed = speed

    def train_dataloader(self) -> DataLoader:
        """This process's shard of the training images."""
        assert self.trainer is not None
        rank = self.trainer.global_rank
        processes = self.trainer.world_size
        images = self._near(self.train)
        how = self.schedule
        group = self.trainer.accumulate_grad_batches
        return train_loader(
            images, how.batch_size, how.seed, rank, processes, how.sampler, group
        )

    def val_dataloader(self) -> DataLoader:
        """All validation images."""
        return evaluation_loader(self._near(self.validation), self.schedule.batch_size)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Applies the composition to the images of a training step, on the device."""
        assert self.trainer is not None
        if self.composition is None or not self.trainer.training:
            return batch
        return self.composition(batch, self.trainer.current_epoch, self.schedule.seed)

    def _near(self, images: Examples) -> Examples:
        assert self.trainer is not None
        return self.speed.near(images, self.trainer.strategy.root_device)
