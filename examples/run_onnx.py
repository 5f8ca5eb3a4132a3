"""Uses a file that ``torchcaps export`` wrote, without torchcaps and without torch:
onnxruntime, NumPy and Pillow.

    torchcaps export mnist/efficient_capsnet --to digits.onnx
    python examples/run_onnx.py digits.onnx digit.png

The picture is read as the training read its pictures: turned upright by its Exif data,
with a colour behind transparent parts, and cropped, stretched, or else padded with black
to the network's size. ``torchcaps predict`` does more for networks that read handwriting,
and for pixels of more than 8 bit.
"""

import argparse
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def pixels_of(picture: str, notes: Mapping[str, Any]) -> np.ndarray:
    """The pixels of a file, float32 (C, H, W) in [0, 1], by the notes of a network."""
    channels, height, width = notes["image_shape"]
    with Image.open(picture) as stored:
        image = ImageOps.exif_transpose(stored)
    if image.mode.startswith(("I", "F")):
        raise SystemExit(f"{picture} has pixels of more than 8 bit")
    behind = Image.new("RGBA", image.size, notes.get("background", "black"))
    image = Image.alpha_composite(behind, image.convert("RGBA"))
    image = image.convert("L" if channels == 1 else "RGB")
    size = (width, height)
    if notes["resize"] == "crop":
        image = ImageOps.fit(image, size)
    elif notes["resize"] == "stretch":
        image = image.resize(size)
    else:
        image = ImageOps.pad(image, size, color=0)
    pixels = np.asarray(image, dtype=np.float32) / 255
    return pixels.reshape(height, width, channels).transpose(2, 0, 1)


def main(model: str, picture: str) -> None:
    """Prints the classes of a picture, the most active first."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    notes = json.loads(session.get_modelmeta().custom_metadata_map["torchcaps"])
    (taken,) = session.get_inputs()
    if "image_shape" not in notes:
        raise SystemExit(f"{model} takes {taken.name}, this example shows pictures")
    try:
        batch = pixels_of(picture, notes)[None]
    except OSError as error:
        raise SystemExit(f"{picture} cannot be read: {error}") from error
    activations, *_ = session.run(None, {taken.name: batch})
    # a class for each pixel is as active as at its best pixel
    activation = activations.reshape(len(notes["classes"]), -1).max(axis=1)
    most_active = np.argsort(-activation)[:3]
    for label in most_active:
        name = notes["classes"][label]
        print(f"{name}: {activation[label]:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Says what an exported network sees in a picture."
    )
    parser.add_argument(
        "model", help="a file that torchcaps export --format onnx wrote"
    )
    parser.add_argument("picture", help="an image file")
    options = parser.parse_args()
    main(options.model, options.picture)
