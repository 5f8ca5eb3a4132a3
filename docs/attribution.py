"""Draws the picture of docs/attribution.md by running its code: ``python -m
docs.attribution``, from the root.
"""

import re
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn

from torchcaps import margin_loss
from torchcaps_lab.data import Examples

matplotlib.use("Agg")

PAGE = Path(__file__).with_suffix(".md")
PICTURE = Path(__file__).parent / "pictures" / "attribution.png"


EPOCHS = 8
BATCH = 32
SEED = 0


def computed() -> dict[str, Any]:
    """The names that the code of the page defines, with its network trained."""
    torch.manual_seed(SEED)
    names: dict[str, Any] = {}
    page = PAGE.read_text(encoding="utf-8")
    definitions, *methods = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(definitions, PAGE.name, "exec"), names)
    train(names["network"], names["digits"].train)
    for block in methods:
        exec(compile(block, PAGE.name, "exec"), names)
    return names


def train(network: nn.Module, digits: Examples) -> None:
    """Trains by the margin loss."""
    images = digits.inputs.float() / 255
    labels = torch.as_tensor(digits.labels)
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(images)).split(BATCH):
            loss = margin_loss(network(images[rows]).activation, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def draw(names: dict[str, Any]) -> None:
    """Draws a row for each image, with a column for each method."""
    columns: dict[str, Tensor] = {
        "integrated gradients": names["pixels"].sum(1),
        "Grad-CAM": names["cam"].sum(1),
        "conductance": names["conductance"],
        "routing map": names["routing"],
    }
    images = names["images"][:, 0]
    figure, axes = plt.subplots(
        len(images),
        len(columns) + 1,
        figsize=(8, 6.4),
        layout="constrained",
    )
    for row, image in zip(axes, images, strict=True):
        row[0].imshow(image, cmap="gray")
    axes[0, 0].set_title("image", fontsize=10)
    for place, (title, maps) in enumerate(columns.items(), 1):
        axes[0, place].set_title(title, fontsize=10)
        for axis, values in zip(axes[:, place], maps.detach(), strict=True):
            bound = float(values.abs().max())
            axis.imshow(values, cmap="RdBu_r", vmin=-bound, vmax=bound)
    for axis in axes.flat:
        axis.set_axis_off()
    figure.savefig(PICTURE, dpi=90)


if __name__ == "__main__":
    draw(computed())
