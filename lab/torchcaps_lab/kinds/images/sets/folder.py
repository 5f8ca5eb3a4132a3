"""A folder of the user's own images."""

import shlex
from pathlib import Path

from torchcaps.spec import argument, settings
from torchcaps.whole import expanded
from torchcaps_lab.data.base import register_dataset
from torchcaps_lab.data.files import ClassFolders, Listing, list_folder
from torchcaps_lab.kinds.images.sets.files import ImageListing
from torchcaps_lab.kinds.images.sets.listed import ListedImages


@register_dataset("folder")
@settings
class ImageFolder(ListedImages):
    """The images in a folder: one sub-folder per class, named after it.

    Where `root` holds the folders `train` and `test`, those are the splits (with one
    sub-folder per class each), and so is `val` for validation if it is there;
    `training`, `valid`, `validation` and `testing` are known as well, in upper and
    lower case. Their classes are matched by name: `test` and `val` may lack some of
    those of `train`. With `train` and `val` alone, `val` is what is tested on.
    Otherwise a share of each class is the test set, the same for every `seed`. Which
    images are put aside depends on their contents, so that it hardly changes with the
    folder; a run keeps the names and digests of its images, and is tested on the same.

    Every file inside a class folder, however deep, whose suffix is that of an image is
    an image of that class; hidden files and folders are skipped, links are followed. Of
    moving images the first frame counts. Images are turned the way their EXIF
    orientation says, 16-bit grey is scaled to 8 bit, transparent parts show ``background``, black. All
    files are read when images are first asked for, those to test on too: a broken one
    is known before anything is trained. `torchcaps check` tells the same beforehand.
    The images are kept in memory, one byte per pixel and channel, or in a file that is
    mapped into it.

    Args:
        root: the folder.
        class_folders: which folders are the classes where folders hold folders, the
            ``outer`` or the ``inner`` ones; default: the outer ones, unless they hold
            the same folders.

    Raises:
        FileNotFoundError: there is no `root`.
        NotADirectoryError: `root` is not a folder.
        ValueError: an argument is out of range, the folders are not as above, there are
            fewer than two classes, or a class has no images. Reading the images raises
            it for files that cannot be read and for one of another size where no `size`
            is given.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from torchcaps_lab.data import ImageFolder
        >>> with tempfile.TemporaryDirectory() as photos:
        ...     for name in ("cats/1", "cats/2", "dogs/1", "dogs/2"):
        ...         (Path(photos) / name).parent.mkdir(exist_ok=True)
        ...         Image.new("RGB", (40, 30), "gold").save(
        ...             Path(photos) / f"{name}.png"
        ...         )
        ...     data = ImageFolder(photos, size=32, test=0.5, validation=0.0)
        ...     print(data.classes, tuple(data.train.inputs.shape))
        ('cats', 'dogs') (2, 3, 32, 32)
    """

    root: str | Path
    class_folders: ClassFolders | None = argument(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.root = expanded(self.root)
        self.advice = f"torchcaps check {self.root} lists all"
        self.names_alike = (
            f"{shlex.join(['torchcaps', 'check', str(self.root)])} names them"
        )
        _ = self.listed  # problems of the folders are reported at once

    def list_items(self) -> Listing:
        """The files of each class."""
        listing = ImageListing(
            self.named,
            root=Path(self.root),
            skip_empty=self.skip_broken,
            class_folders=self.class_folders,
        )
        return list_folder(listing)
