"""The first stage of fine-tuning: what stands on a backbone learns alone, on features
that are computed once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from torchcaps.models.backbone import Backbone
from torchcaps_lab.data import Batch
from torchcaps_lab.training.learner import Learner, with_gradients
from torchcaps_lab.training.loaders import Loaders, Shard, train_loader

VIEWS = 4
"""Views of each image, changed at random as in any training, that the epochs of a head
see in turn.
"""


class Kept(Backbone):
    """A backbone's place-holder, which remembers its features by the keys of images,
    and computes those of new keys alone.

    Args:
        backbone: whose features these are.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        self.memory: dict[tuple[int, int], Tensor] = {}
        self.keys: list[tuple[int, int]] = []

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """The features of images (B, C, H, W), whose B ``keys`` were set before."""
        new = [place for place, key in enumerate(self.keys) if key not in self.memory]
        if new:
            self.memory.update(
                zip(
                    [self.keys[place] for place in new],
                    self.backbone(images[new]),
                    strict=True,
                )
            )
        return torch.stack([self.memory[key] for key in self.keys])


def check_backbone(network: nn.Module) -> None:
    """Raises a `ValueError` unless a network stands on a backbone, its ``features``."""
    if not isinstance(getattr(network, "features", None), Backbone):
        raise ValueError(
            "frozen_epochs needs a network on a backbone, such as "
            "capsnet_on_backbone, got a " + type(network).__name__
        )


@contextmanager
def _kept_features(network: nn.Module) -> Iterator[Kept]:
    """Inside the ``with`` block a network remembers the features of its backbone, which
    is in evaluation mode.
    """
    modes = [(module, module.training) for module in network.modules()]
    backbone = cast(Backbone, network.features)
    network.features = features = Kept(backbone)
    features.eval()
    try:
        yield features
    finally:
        network.features = backbone
        for module, mode in modes:
            module.training = mode


def train_head(
    learner: Learner,
    loaders: Loaders,
    device: torch.device,
    clip: float | None = None,
    on_step: Callable[[int, int], None] = lambda *_: None,
) -> None:
    """Trains all of a network but its backbone for ``frozen_epochs``, with the loss and
    the optimizer of its training.

    The learning rate falls from the optimizer's own to 0, along half a cosine. The
    features of :data:`VIEWS` views of each image stay in memory, so that all later
    epochs cost what the head costs. Every process does the same.

    Args:
        learner: the learner whose network stands on a backbone.
        loaders: the loaders of the training.
        device: where to train.
        clip: the largest norm of the gradients; None and 0 do not clip, as in Lightning.
        on_step: called after each step with the number of steps so far, and of those that
            take all the time: they compute the features.
    """
    network = learner.model.to(device)
    how = loaders.schedule
    head = [
        weight
        for name, weight in network.named_parameters()
        if not name.startswith("features.")
    ]
    images = learner.speed.near(loaders.train, device)
    loader = train_loader(images, how.batch_size, how.seed, sampler=how.sampler)
    optimizer = learner.optimisation.optimizer(head)
    falling = CosineAnnealingLR(optimizer, how.frozen_epochs * len(loader))

    def with_clipped(batch: Batch) -> Any:
        loss = with_gradients(learner.task, network, learner.criteria, batch)
        if clip:
            nn.utils.clip_grad_norm_(head, clip)
        return loss

    done = 0
    with _kept_features(network) as features:
        for epoch in range(how.frozen_epochs):
            view = epoch % VIEWS
            cast(Shard, loader.sampler).set_epoch(epoch)
            for batch in loader:
                batch = learner.transfer_batch_to_device(batch, device, 0)
                if loaders.composition is not None:
                    batch = loaders.composition(batch, view, how.seed)
                features.keys = [(view, place) for place in batch.indices.tolist()]
                optimizer.step(partial(with_clipped, learner.seen(batch, view)))
                falling.step()
                on_step(done := done + 1, min(VIEWS, how.frozen_epochs) * len(loader))
