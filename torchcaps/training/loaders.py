"""Batches of one process: the same training for any number of processes."""

from dataclasses import replace
from typing import Any

import lightning as L
from torch.utils.data import DataLoader, DistributedSampler

from torchcaps.data import Batch, ImageSet
from torchcaps.training.options import Schedule
from torchcaps.training.speed import Speed


def _same(batch: Any) -> Any:
    """Batches come whole from :meth:`ImageSet.__getitems__`."""
    return batch


def train_loader(images: ImageSet, batch_size: int, seed: int, rank: int = 0, processes: int = 1) -> DataLoader:
    """Shuffled batches of one process: its shard of batches that are the same for any number of processes.

    Batches are full: the few images that are left over in an epoch come up in others.

    Args:
        images: the training images.
        batch_size: over all processes together; made smaller if there are fewer images.
        seed: of the order, together with the epoch.
        rank: of this process.
        processes: how many there are.

    Raises:
        ValueError: if the batch cannot be shared out evenly, or there is not one image for each process.
    """
    if batch_size < 1 or batch_size % processes:
        raise ValueError(f"batch_size must be a multiple of the {processes} processes, got {batch_size}")
    if len(images) < processes:
        raise ValueError(f"{len(images)} training images cannot be shared out to {processes} processes")
    share = min(batch_size, len(images) // processes * processes) // processes
    sampler: DistributedSampler[Batch] = DistributedSampler(images, processes, rank, seed=seed, drop_last=True)
    return DataLoader(images, share, sampler=sampler, drop_last=True, collate_fn=_same)


def evaluation_loader(images: ImageSet, batch_size: int) -> DataLoader:
    """All images in order, in every process: exact figures, and no image counted twice."""
    return DataLoader(images, batch_size, collate_fn=_same)


class Loaders(L.LightningDataModule):
    """Makes the loaders once the processes are known, and puts training images together anew in each epoch."""

    def __init__(self, train: ImageSet, validation: ImageSet, schedule: Schedule, speed: Speed) -> None:
        super().__init__()
        self.composition = train.composition
        self.sets = replace(train, composition=None), validation
        self.schedule = schedule
        self.speed = speed

    def train_dataloader(self) -> DataLoader:
        """This process's shard of the training images."""
        assert self.trainer is not None
        rank, processes = self.trainer.global_rank, self.trainer.world_size
        images = self._near(self.sets[0])
        return train_loader(images, self.schedule.batch_size, self.schedule.seed, rank, processes)

    def val_dataloader(self) -> DataLoader:
        """All validation images."""
        return evaluation_loader(self._near(self.sets[1]), self.schedule.batch_size)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Puts the images of a training step together, on the device."""
        assert self.trainer is not None
        if self.composition is None or not self.trainer.training:
            return batch
        return self.composition(batch, self.trainer.current_epoch, self.schedule.seed)

    def _near(self, images: ImageSet) -> ImageSet:
        assert self.trainer is not None
        return self.speed.near(images, self.trainer.strategy.root_device)
