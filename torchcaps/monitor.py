"""The health of the routing while a network trains."""

from collections import defaultdict

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from torchcaps.data import ImageSet
from torchcaps.explain.assignments import dead_capsules
from torchcaps.explain.findings import evaluating
from torchcaps.explain.layers import layer_entropy, observe_layers, peak_activation

_AT_ONCE = 16
"""Images that are observed together: the assignments of a convolutional layer are larger than its capsules."""


def routing_health(model: nn.Module, images: Tensor, threshold: float = 0.01) -> dict[str, float]:
    """Entropy of the assignment and share of dead capsules of each layer.

    Runs in evaluation mode and without gradients; the network and all random number generators are left as they were.

    Args:
        model: any network of torchcaps layers.
        images: (B, C, H, W), at least one, on the device of the network.
        threshold: a type of capsule whose activation is nowhere above it, in none of the images, counts as dead.

    Returns:
        ``assignment_entropy_<layer>``, see :func:`~torchcaps.explain.layer_entropy`, averaged over the images, for each
        layer that routes, and ``dead_capsules_<layer>``, see :func:`~torchcaps.explain.dead_types`, for each layer of
        capsules; both in [0, 1]. Empty for a network without capsules.
    """
    entropies: dict[str, list[Tensor]] = defaultdict(list)
    peaks: dict[str, list[Tensor]] = defaultdict(list)
    devices = [images.device] if images.device.type == "cuda" else []
    with evaluating(model), torch.random.fork_rng(devices):
        for part in images.split(_AT_ONCE):
            for name, layer in observe_layers(model, part).items():
                peaks[name].append(peak_activation(layer.capsules).float())
                if layer.routed:
                    entropies[name].append(layer_entropy(layer).float())
    health = {f"assignment_entropy_{name}": torch.cat(parts).mean().item() for name, parts in entropies.items()}
    dead = {f"dead_capsules_{name}": dead_capsules(torch.cat(parts), threshold) for name, parts in peaks.items()}
    return {**health, **dead}


class RoutingHealth(Callback):
    """Logs :func:`routing_health` of the same few images at the end of each epoch.

    Stands before :class:`~torchcaps.training.History` in the list of callbacks, which writes what was logged so far.
    Every process observes the same images at the same time; what is logged is their mean.

    Args:
        images: where they come from: those for validation, or those for training where there are none.
        count: how many, the first of the set; all if there are fewer.
        threshold: of the activation, for dead capsules.

    Raises:
        ValueError: if there are no images, or ``count`` is less than 1.
    """

    def __init__(self, images: ImageSet, count: int = 64, threshold: float = 0.01) -> None:
        if count < 1 or not len(images):
            raise ValueError(f"there must be images to observe, got count={count} of {len(images)} images")
        self.images = images.__getitems__(list(range(min(count, len(images))))).images
        self.threshold = threshold

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Observes and logs."""
        model = getattr(pl_module, "model", pl_module)
        precision = trainer.precision_plugin
        images = precision.convert_input(self.images.to(pl_module.device))
        with precision.forward_context():
            health = routing_health(model, images, self.threshold)
        for name, value in health.items():
            pl_module.log(name, value, on_step=False, on_epoch=True, batch_size=1, sync_dist=True)
