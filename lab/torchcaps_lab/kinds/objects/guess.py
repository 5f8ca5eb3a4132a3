"""Options of a training on pictures without labels."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchcaps.spec import Given
from torchcaps_lab.kinds.images.guess import looked_at
from torchcaps_lab.kinds.objects.sets import pictures_and_masks
from torchcaps_lab.look import Guess, epochs_for, value_of

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

_AT_ONCE: dict[str, Any] = {
    "task": {"name": "objects", "area": 1.0},
    "model_args": {"ground": True, "starts": 4},
    "routing": {
        "name": "slots",
        "start": "normal",
        "steps": 5,
        "gradient": "last",
        "first_sharpness": 8.0,
    },
}
"""With these, ``slot_autoencoder`` does not have to learn the ground of each picture
before it finds objects, the slot of an object leaves the ground alone, and a bad start
costs no object.
"""

_STEPS = 6_000
"""Updates, of a small folder as of a large one: slots find nothing in the first few
hundred, however often they saw the pictures.
"""


def guess_pictures(pictures: Any, given: Mapping[str, Any]) -> Any:
    """Options for the pictures of a folder and its sub-folders, or of a program, and
    why.

    Args:
        pictures: the path of the folder; or what :class:`Pictures` takes.
        given: options that were given beside it.

    Raises:
        ValueError: if it is no folder, or has no length.
    """
    data: dict[str, Any]
    of_data: dict[str, str] = {}
    if isinstance(pictures, Path):
        if not pictures.is_dir():
            raise ValueError(
                f"task 'objects' takes a folder of pictures, {pictures} is a file"
            )
        files, _ = pictures_and_masks(pictures)
        count = len(files)
        data = {"name": "PictureFolder", "root": str(pictures)}
        looked_at(files).add_range(data, of_data)
        where = f" in {pictures}"
    elif hasattr(pictures, "__len__"):
        count = len(pictures)
        data = {"name": "Pictures", "pictures": Given(pictures)}
        where = ""
    else:
        raise ValueError(
            "task 'objects' takes a folder, an array or a list of pictures, got "
            f"{type(pictures).__name__}"
        )
    train = count * 4 // 5 * 9 // 10
    batch = min(OBJECTS["batch_size"], max(train, 1))
    epochs = epochs_for(train // batch, _STEPS, (1, _STEPS))
    options = {**OBJECTS, "data": data, "batch_size": batch, "epochs": epochs}
    why = {
        "data": f"{data['name']}, {count:,} pictures without labels{where}",
        **of_data,
        "model": "slot_autoencoder, 7 slots: one for the ground and six for objects, "
        "--data.slots changes it",
        "batch_size": f"{batch}",
        "epochs": f"{epochs}, about {_STEPS:,} steps",
    }
    if value_of(given.get("model", OBJECTS["model"])) == OBJECTS["model"]:
        options |= _AT_ONCE
        why |= {
            "task.area": "1: objects pay for their pixels, and leave the ground to one "
            "slot",
            "model_args": "ground: one slot has the median colour of each picture; "
            "starts: of 4 tries to take a picture apart, the best counts",
            "routing": "first_sharpness 8: slots collect different places at once",
        }
    return Guess(options, why)
