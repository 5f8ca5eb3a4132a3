"""Capsules over volumes: balls, cubes and octahedra among blobs, of any size and at any
place, told apart.

    python examples/volumes.py

The same layers as over images, with one more axis. Needs scikit-image (`pip install
'torchcaps-lab[poses]'`); about ten seconds on a CPU.
"""

import numpy as np
import torch
from skimage.data import binary_blobs
from skimage.morphology import ball, octahedron
from torch import Tensor, nn

import torchcaps as tc

SIZE = 14
SHAPES = ("ball", "cube", "octahedron")


def figure(label: int, radius: int) -> np.ndarray:
    """A solid of 2 radius + 1 voxels along each axis."""
    shape = SHAPES[label]
    if shape == "ball":
        return ball(radius).astype(float)
    if shape == "octahedron":
        return octahedron(radius).astype(float)
    side = 2 * radius + 1
    return np.ones((side, side, side))


def volumes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Volumes (B, 1, D, H, W) in [0, 1], and which solid is in each (B,)."""
    random = np.random.default_rng(seed)
    labels = random.integers(len(SHAPES), size=count)
    filled = np.zeros((count, 1, SIZE, SIZE, SIZE), dtype=np.float32)
    for volume, label in zip(filled[:, 0], labels, strict=True):
        volume += 0.3 * binary_blobs(
            SIZE,
            blob_size_fraction=0.2,
            n_dim=3,
            volume_fraction=0.2,
            rng=random,
        )
        solid = figure(label, int(random.integers(3, 6)))
        side = len(solid)
        x, y, z = random.integers(SIZE - side + 1, size=3)
        place = volume[x : x + side, y : y + side, z : z + side]
        np.maximum(place, solid, out=place)
    return torch.from_numpy(filled), torch.from_numpy(labels)


def network() -> nn.Sequential:
    """From volumes to class capsules, poses (B, 3, 8)."""
    routing = tc.create_routing("dynamic", steps=2)
    return nn.Sequential(
        nn.Conv3d(1, 8, 3, stride=2),  # (B, 8, 6, 6, 6)
        nn.BatchNorm3d(8),
        nn.ReLU(),
        # poses (B, 4, 4, 4, 4, 6)
        tc.PrimaryCaps3d(
            8,
            types=4,
            dim=6,
            kernel_size=3,
            stride=1,
        ),
        tc.CapsConv3d(
            4,
            4,
            in_pose=6,
            out_pose=6,
            kernel_size=2,
            stride=2,
            routing=routing,
            init_std=None,
        ),
        tc.CapsLinear(
            2**3 * 4,
            len(SHAPES),
            in_pose=6,
            out_pose=8,
            routing=routing,
        ),
    )


def main(steps: int = 150, batch: int = 32) -> float:
    """Trains on new volumes in each step, and gives the accuracy on others."""
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(steps):
        images, labels = volumes(batch, seed=step + 1)
        loss = tc.margin_loss(model(images).activation, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    images, labels = volumes(300, seed=0)
    with torch.no_grad():
        classes = model(images)
    correct = classes.activation.argmax(1) == labels
    return correct.double().mean().item()


if __name__ == "__main__":
    accuracy = main()
    chance = 1 / len(SHAPES)
    print(
        f"{accuracy:.1%} of 300 volumes classified correctly (by chance: {chance:.1%})"
    )
