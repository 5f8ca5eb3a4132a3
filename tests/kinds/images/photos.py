"""Photos of handwriting, made of MNIST's digits: turned, inverted, coloured, shaded,
noisy, off the centre, any size.

``mnist_digits.npz`` holds the first five test images of each digit.
"""

from pathlib import Path

import numpy as np
from PIL import Image

DIGITS = Path(__file__).with_name("mnist_digits.npz")


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Bytes (50, 28, 28) and labels (50,)."""
    with np.load(DIGITS) as result:
        return result["images"], result["labels"]


def photo(digit: np.ndarray, seed: int) -> Image.Image:
    """A picture of a digit on paper."""
    draw = np.random.default_rng(seed)
    width, height = (int(extent) for extent in draw.integers(90, 420, 2))
    side = int(draw.uniform(0.35, 0.95) * min(width, height))
    turned = Image.fromarray(digit).resize((side, side), Image.Resampling.BICUBIC)
    turned = turned.rotate(draw.uniform(-15, 15), Image.Resampling.BICUBIC)
    ink = np.zeros((height, width))
    top = draw.integers(0, height - side + 1)
    left = draw.integers(0, width - side + 1)
    ink[top : top + side, left : left + side] = np.asarray(turned) / 255
    paper, pen = _colours(draw)
    picture = paper + ink[..., None] * (pen - paper)
    picture *= _light(draw, height, width)[..., None]
    picture += draw.normal(0, 0.03, picture.shape)
    return Image.fromarray((255 * picture.clip(0, 1)).round().astype(np.uint8))


def _colours(draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Of the paper and the ink, one of them light and the other dark: each third
    picture is light on dark.
    """
    light = draw.uniform(0.7, 1, 3)
    dark = draw.uniform(0, 0.4, 3)
    return (dark, light) if draw.random() < 1 / 3 else (light, dark)


def _light(draw: np.random.Generator, height: int, width: int) -> np.ndarray:
    """From one side to the other by up to a third less."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    angle = draw.uniform(0, 2 * np.pi)
    along = np.cos(angle) * (x - 0.5) + np.sin(angle) * (y - 0.5)
    return 1 - draw.uniform(0, 1 / 3) * (along + 0.7) / 1.4
