"""Uses a file that ``torchcaps export`` wrote, without torchcaps and without torch:
onnxruntime, NumPy and Pillow.

    torchcaps export mnist/efficient_capsnet --to digits.onnx
    python examples/run_onnx.py digits.onnx digit.png

The picture keeps its shape, is brought to the network's size and padded with black.
``torchcaps predict`` does more for networks that read handwriting.
"""

import argparse
import json

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def main(model: str, picture: str) -> None:
    """Prints the classes of a picture, the most active first."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    notes = json.loads(session.get_modelmeta().custom_metadata_map["torchcaps"])
    if "image_shape" not in notes:
        raise SystemExit(f"{model} takes texts, this example shows pictures")
    channels, height, width = notes["image_shape"]
    mode = "L" if channels == 1 else "RGB"
    try:
        image = Image.open(picture).convert(mode)
    except OSError as error:
        raise SystemExit(f"{picture} cannot be read: {error}") from error
    image = ImageOps.pad(image, (width, height), color=0)
    pixels = np.asarray(image, dtype=np.float32) / 255
    pixels = pixels.reshape(height, width, channels)
    batch = pixels.transpose(2, 0, 1)[None]
    activations, *_ = session.run(None, {"images": batch})
    (activation,) = activations
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
