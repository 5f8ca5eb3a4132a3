"""Options of a training on a folder of pictures without labels."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchcaps_lab.kinds.images.sets.files import image_files
from torchcaps_lab.look import Guess, epochs_for

OBJECTS: dict[str, Any] = {
    "task": "objects",
    "model": "slot_autoencoder",
    "batch_size": 32,
    "optimizer": {"name": "Adam", "lr": 1e-3},
    "scheduler": {"name": "OneCycleLR", "max_lr": 1e-3, "pct_start": 0.1},
    "scheduler_interval": "step",
    "trainer": {"gradient_clip_val": 1.0},
}
"""How a network learns to take pictures apart."""

_STEPS = 6_000
"""Updates, of a small folder as of a large one: slots find nothing in the first few
hundred, however often they saw the pictures.
"""


def guess_pictures(root: Path, given: Mapping[str, Any]) -> Any:
    """Options for the pictures of a folder and its sub-folders, and why.

    Args:
        root: the folder.
        given: options that were given beside it.

    Raises:
        ValueError: if it is no folder.
    """
    if not root.is_dir():
        raise ValueError(f"task 'objects' takes a folder of pictures, {root} is a file")
    count = len(image_files(root))
    train = count * 4 // 5 * 9 // 10
    batch = min(OBJECTS["batch_size"], max(train, 1))
    epochs = epochs_for(train // batch, _STEPS, (1, _STEPS))
    data = {"name": "PictureFolder", "root": str(root)}
    options = {**OBJECTS, "data": data, "batch_size": batch, "epochs": epochs}
    why = {
        "data": f"PictureFolder, {count:,} pictures without labels in {root}",
        "model": "slot_autoencoder, 7 slots: one for the ground and six for objects, "
        "--data.slots changes it",
        "batch_size": f"{batch}",
        "epochs": f"{epochs}, about {_STEPS:,} steps",
    }
    return Guess(options, why)
