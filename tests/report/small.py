"""Small networks and images that the tests of this folder share; the same in each
run.
"""

import torch
from torch import Tensor, nn

from torchcaps import create_model
from torchcaps.models import CapsuleClassifier, ImageClassifier
from torchcaps_lab.data import Examples
from torchcaps_lab.evaluate import Findings, Verdict
from torchcaps_lab.report import Observation, Selection

TRAINED = Verdict(images=200, entropy=0.8, changed=0.2, explained=0.6)


def digits_net(**arguments: object) -> CapsuleClassifier:
    """Of vector capsules, with a decoder, for 1 x 8 x 8 images of 3 classes, in
    training mode.
    """
    torch.manual_seed(0)
    return create_model(
        "capsnet_digits",
        **{"channels": 8, "types": 2, "classes": 3, "pose_dim": 4, **arguments},
    )


def matrix_net(**arguments: object) -> CapsuleClassifier:
    """Of matrix capsules in four layers, three of them on a grid, for 1 x 23 x 26
    images of 3 classes.
    """
    torch.manual_seed(0)
    settings = {
        "channels": 4,
        "types": (2, 3, 2),
        "pose": (2, 2),
        "image_shape": (1, 23, 26),
        "classes": 3,
    }
    return create_model("matrixcapsnet", **{**settings, **arguments}).eval()


def plain_net(**arguments: object) -> ImageClassifier:
    """Without capsules, for 1 x 16 x 16 images or others of 3 classes."""
    torch.manual_seed(0)
    return create_model(
        "sharedcapsnet_cnn",
        **{"channels": (4, 4, 4, 4), "hidden": 4, "classes": 3, **arguments},
    )


def images_for(model: ImageClassifier, count: int = 20) -> Tensor:
    return torch.rand(
        count, *model.image_shape, generator=torch.Generator().manual_seed(1)
    )


def image_set(
    shape: tuple[int, int, int],
    count: int = 12,
    classes: tuple[str, ...] = ("a", "b", "c"),
    files: str | None = None,
) -> Examples:
    """Noise, the classes in turn; ``files`` becomes the names of the files, each with
    its number behind it.
    """
    images = torch.randint(
        256,
        (count, *shape),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(1),
    )
    names = (
        None if files is None else tuple(f"{files} {place}" for place in range(count))
    )
    return Examples(images, torch.arange(count) % len(classes), classes, names)


def look(model: nn.Module, images: Tensor, **options: object) -> Observation:
    return Observation(model, Selection(images, images, **options))


def answers(classes: int, labels: Tensor, predicted: Tensor) -> Findings:
    """Of a network that is sure of what it said."""
    return Findings(labels, torch.eye(classes)[predicted], None)
