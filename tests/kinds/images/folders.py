"""Folders of images: in order, and one with a file of each kind of trouble."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

BROKEN = {
    "a/empty.png": "the file is empty",
    "a/text.png": "it is not an image of a kind that is read: AVIF, BMP",
    "a/truncated.jpg": "image file is truncated",
    "a/cut.png": "image file is truncated",
    "a/flipped.png": "broken data stream",
    "a/bomb.png": "2500000000 pixels",
    "b/float.tif": "floating-point pixels must lie in",
}
"""Files that are no images, or only parts of some, and what is said of them."""

LEFT_OUT = {
    "a/notes.txt": ".txt is not a kind of image that is read",
    "a/photo.heic": ".heic is not a kind of image that is read",
    "a/noname": "its name has no suffix, which tells the kind of an image",
    "a/nothing.png": "it links to nothing",
    "a/itself.png": "it links to nothing",
    "a/loop": "which is read already",
    "b/pipe.png": "it is not a readable file",
    "readme.png": "it lies in no class folder",
}
"""What is not taken for an image of a class, and why."""

READ = (
    *(
        "b/moving.gif",
        "b/sixteen.png",
        "b/cmyk.jpg",
        "b/palette.png",
        "b/turned.jpg",
        "b/Größe 猫 \n.png",
    ),
    *("b/jpeg in truth.png", "b/\udcff.png", "b/linked/inside.png", "b/large.png"),
)
"""Images that are odd and all the same read."""


def write(folder: Path, files: dict[str, bytes]) -> Path:
    """Files with these contents."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def save(
    path: Path, value: int, mode: str = "L", size: tuple[int, int] = (8, 8)
) -> Path:
    """An image of its own for each value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("L", size, value % 256)
    image.putpixel((0, 0), 255 - value // 256)
    image.convert(mode).save(path)
    return path


def make_root(
    root: Path, count: int = 30, classes: tuple[str, ...] = ("a", "b"), start: int = 0
) -> Path:
    for label, name in enumerate(classes):
        for i in range(count):
            save(root / name / f"{i:03}.png", start + 1000 * label + i)
    return root


LIMIT = 5_000
"""Of `PIL.Image.MAX_IMAGE_PIXELS`, so that the large image here is one that Pillow
warns of.
"""


def make_troubles(root: Path, good: int = 12) -> Path:
    """Two classes of so many good images each, and all the trouble in the world."""
    random = np.random.default_rng(0)

    def picture(width: int = 10, height: int = 8) -> Image.Image:
        return Image.fromarray(
            random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        )

    for name in "ab":
        (root / name).mkdir(parents=True)
        for number in range(good):
            picture().save(root / name / f"{number:02}.png")
    _make_broken(root / "a", picture())
    Image.fromarray(np.full((8, 10), 7, np.float32)).save(root / "b" / "float.tif")
    _make_left_out(root, picture())
    _make_odd(root / "b", [picture() for _ in range(8)])
    for junk in (
        "a/.DS_Store",
        "a/._00.png",
        "b/Thumbs.db",
        "__MACOSX/._00.png",
        ".git/00.png",
    ):
        (root / junk).parent.mkdir(exist_ok=True)
        (root / junk).write_bytes(b"junk")
    return root


def _make_broken(folder: Path, picture: Image.Image) -> None:
    picture.resize((50, 40)).save(folder / "truncated.jpg")
    picture.save(folder / "cut.png")
    for name in ("truncated.jpg", "cut.png"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) * 2 // 3])
    picture.save(folder / "flipped.png")
    content = bytearray((folder / "flipped.png").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (folder / "flipped.png").write_bytes(content)
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.png").write_text("hello")
    (folder / "bomb.png").write_bytes(png_that_says(50_000, 50_000, rows=1))


def _make_left_out(root: Path, picture: Image.Image) -> None:
    for name in ("a/notes.txt", "a/photo.heic", "a/noname"):
        (root / name).write_text("hello")
    (root / "a" / "nothing.png").symlink_to("nowhere.png")
    (root / "a" / "itself.png").symlink_to("itself.png")
    (root / "a" / "loop").symlink_to("..", target_is_directory=True)
    os.mkfifo(root / "b" / "pipe.png")
    picture.save(root / "readme.png")


def _make_odd(folder: Path, pictures: list[Image.Image]) -> None:
    first, second, third, fourth, fifth, sixth, seventh, eighth = pictures
    first.save(folder / "moving.gif", save_all=True, append_images=[second])
    Image.fromarray(np.arange(80, dtype=np.uint16).reshape(8, 10) * 800).save(
        folder / "sixteen.png"
    )
    third.convert("CMYK").save(folder / "cmyk.jpg")
    fourth.quantize(8).save(folder / "palette.png", transparency=bytes(range(8)))
    exif = Image.Exif()
    exif[0x0112] = 6
    fifth.save(folder / "turned.jpg", exif=exif)
    sixth.save(folder / "Größe 猫 \n.png")
    seventh.save(folder / "jpeg in truth.png", format="JPEG")
    eighth.save(folder / "\udcff.png")
    elsewhere = folder.parent.parent / "elsewhere"
    elsewhere.mkdir()
    second.save(elsewhere / "inside.png")
    (folder / "linked").symlink_to(elsewhere, target_is_directory=True)
    (folder / "large.png").write_bytes(png_that_says(90, 80, rows=80))


def png_that_says(width: int, height: int, rows: int) -> bytes:
    """A grey picture of few bytes that says it has this size, and has so many black
    rows.
    """

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data))
            + name
            + data
            + struct.pack(">I", zlib.crc32(name + data))
        )

    packer = zlib.compressobj(1)
    packed = (
        b"".join(packer.compress(bytes(width + 1)) for _ in range(rows))
        + packer.flush()
    )
    header = chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def icon_of(picture: bytes) -> bytes:
    """An icon that says it has 16 x 16 pixels, and holds a picture."""
    return (
        struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(picture), 22)
        + picture
    )


def tiff_in_tiles(side: int, tile: int) -> bytes:
    """A grey picture of few bytes that is cut out of one tile of that side."""
    data = zlib.compress(bytes(tile * tile))
    tags = {
        256: side,
        257: side,
        258: 8,
        259: 8,
        262: 1,
        277: 1,
        322: tile,
        323: tile,
        324: 8,
        325: len(data),
    }
    rows = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items()]
    return b"".join(
        [
            b"II*\0",
            struct.pack("<I", 8 + len(data)),
            data,
            struct.pack("<H", len(rows)),
            *rows,
            bytes(4),
        ]
    )
