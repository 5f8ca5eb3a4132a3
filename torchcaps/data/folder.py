"""A folder of the user's own images."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from torchcaps.data.base import (
    TEST_SEED,
    ImageData,
    ImageSet,
    Resize,
    check_share,
    register_dataset,
    stratified_split,
)

if TYPE_CHECKING:
    from PIL.Image import Image


class _Files(NamedTuple):
    paths: list[Path]
    labels: Tensor  # int64 (N,)
    classes: tuple[str, ...]

    def subset(self, indices: Tensor) -> "_Files":
        return _Files([self.paths[i] for i in indices.tolist()], self.labels[indices], self.classes)


@register_dataset("folder")
class ImageFolder(ImageData):
    """The images in a folder: one sub-folder per class, named after it.

    Where `root` holds the folders `train` and `test`, those are the splits (with one sub-folder per class
    each), and so is `val` for validation if it is there. Otherwise a share of each class is the test set,
    the same for every `seed`.

    Every file inside a class folder, however deep, whose suffix Pillow can open is an image of that class;
    hidden files and folders are skipped. Of moving images the first frame counts. Images are turned the way
    their EXIF orientation says, 16-bit grey is scaled to 8 bit, transparent parts show black. All images
    are kept in memory, one byte per pixel and channel.

    Args:
        root: the folder.
        size: height and width of the images, one number for both. Default: their own size, which must then
            be the same for all.
        channels: 1 makes every image grey, 3 colour. Default: 1 if the files are all grey, else 3.
        resize: how an image gets to `size`: keep its aspect ratio and `pad` with black, keep it and `crop`
            the centre, or `stretch`.
        test: share of the images that are the test set, the same in every class; not used where `root`
            holds `test`.
        validation: share of the training images put aside for validation, the same in every class; 0 puts
            none aside. Not used where `root` holds `val`.
        seed: chooses which images those are; nothing else does.

    Raises:
        FileNotFoundError: there is no `root`.
        NotADirectoryError: `root` is not a folder.
        ValueError: an argument is out of range, the folders are not as above, there are fewer than two
            classes, or a class has no images. Reading the images raises it for a file that Pillow cannot
            read and for one of another size where no `size` is given.
    """

    def __init__(
        self,
        root: str,
        size: int | tuple[int, int] | None = None,
        channels: Literal[1, 3] | None = None,
        resize: Resize = "pad",
        test: float = 0.2,
        validation: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__(validation, seed)
        check_share("test", test)
        check_resize(resize)
        if channels not in (None, 1, 3):
            raise ValueError(f"channels must be 1, 3 or None, got {channels}")
        self.root = Path(root).expanduser()
        self.size = (size, size) if isinstance(size, int) else size
        if self.size is not None and min(self.size) < 1:
            raise ValueError(f"size must be at least 1 x 1 pixel, got {size}")
        self.channels = channels
        self.resize: Resize = resize
        self._train, self._validation, self._test = _list_splits(self.root, test)

    def load_train(self) -> ImageSet:
        """Read the training images."""
        return self._read(self._train)

    def load_validation(self) -> ImageSet | None:
        """Read the images in `val`, if that folder is there."""
        return None if self._validation is None else self._read(self._validation)

    def load_test(self) -> ImageSet:
        """Read the test images."""
        return self._read(self._test)

    @cached_property
    def _image_shape(self) -> tuple[int, int, int]:
        channels = self.channels or (1 if self._all_grey() else 3)
        if self.size is not None:
            return channels, *self.size
        width, height = _open_image(self._train.paths[0], channels).size
        return channels, height, width

    def _all_grey(self) -> bool:
        # This opens the test files too but reads no more than their headers.
        splits = (self._train, self._validation, self._test)
        return all(_is_grey(path) for files in splits if files is not None for path in files.paths)

    def _read(self, files: _Files) -> ImageSet:
        images = torch.empty((len(files.paths), *self._image_shape), dtype=torch.uint8)
        for row, path in zip(images, files.paths, strict=True):
            image = _open_image(path, self._image_shape[0])
            if self.size is None:
                self._check_size(image, path)
            row.copy_(_to_tensor(image, self._image_shape, self.resize))
        return ImageSet(images, files.labels, files.classes, tuple(str(path) for path in files.paths))

    def _check_size(self, image: "Image", path: Path) -> None:
        _, height, width = self._image_shape
        if image.size != (width, height):
            raise ValueError(
                f"images must have one size: {self._train.paths[0]} has {height} x {width} pixels "
                f"(height x width) but {path} has {image.height} x {image.width}; pass size to resize them"
            )


def load_image(path: str | Path, image_shape: tuple[int, int, int], resize: Resize = "pad") -> Tensor:
    """Read one image the way `ImageFolder` does.

    Args:
        path: a file that Pillow can read.
        image_shape: channels (1: grey, 3: colour), height and width of the result.
        resize: `pad` with black, `crop` the centre or `stretch`.

    Returns:
        uint8 (C, H, W).

    Raises:
        ValueError: the file is not an image, or is broken; an argument is out of range.
    """
    check_resize(resize)
    if len(image_shape) != 3 or image_shape[0] not in (1, 3) or min(image_shape) < 1:
        raise ValueError(f"image_shape must be (1 or 3, height, width), got {image_shape}")
    return _to_tensor(_open_image(Path(path), image_shape[0]), image_shape, resize)


def fit_image(image: "Image", image_shape: tuple[int, int, int], resize: Resize = "pad") -> Tensor:
    """Make a PIL image into uint8 (C, H, W) the way `load_image` does with that of a file; raises what it raises."""
    return _to_tensor(_in_mode(image, image_shape[0]), image_shape, resize)


def _list_splits(root: Path, test: float) -> tuple[_Files, _Files | None, _Files]:
    if not root.exists():
        raise FileNotFoundError(f"root {root} does not exist")
    if not root.is_dir():
        raise NotADirectoryError(f"root {root} is not a folder")
    train, validation, test_folder = root / "train", root / "val", root / "test"
    if train.is_dir() and test_folder.is_dir():
        files = _list_files(train)
        return (
            files,
            _list_files(validation, files.classes) if validation.is_dir() else None,
            _list_files(test_folder, files.classes),
        )
    if train.is_dir() and validation.is_dir():
        # Otherwise these two would pass for the classes.
        raise ValueError(f"{root} holds train and val but no test")
    files = _list_files(root)
    rest, held_out = stratified_split(files.labels, test, TEST_SEED)
    return files.subset(rest), None, files.subset(held_out)


def _list_files(folder: Path, expected: tuple[str, ...] | None = None) -> _Files:
    """The images of each class folder; `expected` are the classes that `train` next to `folder` has."""
    classes = tuple(sorted(path.name for path in folder.iterdir() if path.is_dir() and not _hidden(path)))
    if expected is not None and classes != expected:
        raise ValueError(f"{folder} must hold the class folders of train, {expected}, got {classes}")
    if len(classes) < 2:
        raise ValueError(f"{folder} must hold a folder for each of two or more classes, got {classes}")
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = image_files(folder / name)
        if not found:
            raise ValueError(f"class folder {folder / name} holds no images")
        paths += found
        labels += [label] * len(found)
    return _Files(paths, torch.tensor(labels), classes)


def image_files(folder: Path) -> list[Path]:
    """The files below a folder, however deep, whose suffix Pillow can open, sorted; nothing that is hidden."""
    suffixes = _image_suffixes()
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in suffixes and path.is_file() and not _hidden(path.relative_to(folder))
    )


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _image_suffixes() -> set[str]:
    from PIL import Image

    return {suffix for suffix, kind in Image.registered_extensions().items() if kind in Image.OPEN}


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn whatever breaks while Pillow reads `path` into a `ValueError` that names it."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise  # They name it and say what is wrong.
    except Exception as error:  # Pillow's readers raise many types: OSError, SyntaxError, struct.error, ...
        raise ValueError(f"cannot read the image {path}: {error}") from error


def _is_grey(path: Path) -> bool:
    from PIL import Image

    with _naming(path), Image.open(path) as image:
        return Image.getmodebase(image.mode) == "L"


def _open_image(path: Path, channels: int) -> "Image":
    """The whole image, upright, in the mode L (1 channel) or RGB (3 channels)."""
    from PIL import Image

    with _naming(path), Image.open(path) as source:
        return _in_mode(source, channels)


def _in_mode(source: "Image", channels: int) -> "Image":
    """An image, upright, in the mode L (1 channel) or RGB (3 channels)."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(source)  # This reads all of a file.
    if image.mode == "F":
        raise ValueError("floating-point pixels have no fixed range, expected 8 or 16 bit")
    if image.mode.startswith("I"):
        image = _to_8_bit(image)
    if image.getbands()[-1] == "A" or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "black"), image)
    return image.convert("L" if channels == 1 else "RGB")


def _to_8_bit(image: "Image") -> "Image":
    import numpy as np
    from PIL import Image

    # Pillow gives 16-bit grey as I;16 or, depending on its version and on the format, as 32-bit I.
    pixels = np.asarray(image)
    if pixels.min() < 0 or pixels.max() > 65535:
        raise ValueError(f"pixels must be 16 bit, 0..65535, got {pixels.min()}..{pixels.max()}")
    return Image.fromarray((pixels / 257).round().astype(np.uint8))


def _to_tensor(image: "Image", image_shape: tuple[int, int, int], resize: Resize) -> Tensor:
    import numpy as np
    from PIL import ImageOps

    channels, height, width = image_shape
    if image.size != (width, height):
        if resize == "pad":
            image = ImageOps.pad(image, (width, height), color=0)
        elif resize == "crop":
            image = ImageOps.fit(image, (width, height))
        else:
            image = image.resize((width, height))
    pixels = torch.from_numpy(np.array(image))  # (H, W) or (H, W, 3)
    return pixels.reshape(height, width, channels).permute(2, 0, 1).contiguous()


def check_resize(resize: str) -> None:
    """Raise a `ValueError` unless there is such a way to resize."""
    if resize not in get_args(Resize):
        raise ValueError(f"resize must be one of {', '.join(get_args(Resize))}, got {resize!r}")
