"""Finds the masks that lie beside pictures."""

from collections.abc import Iterator, Mapping
from itertools import islice, permutations
from pathlib import Path

from torchcaps_lab.kinds.images.decoding.bands import Bands
from torchcaps_lab.kinds.images.decoding.picture import image_suffixes, opened
from torchcaps_lab.kinds.pixels.masks import picture_of
from torchcaps_lab.look import Place

_FEW_VALUES = 32
"""Different values of pixels that a mask may have."""

_FEW = 4
"""Folders, or files of a case, of which any two may be pictures and their masks."""

_TRIED = 8
"""Pairs of pictures that are looked at, and pairs of folders."""

Folders = Mapping[Path, Mapping[str, Path]]
"""The images in each folder, by their names without suffix."""


def masks_in(folder: Path) -> set[Path]:
    """Return the images in a folder and its sub-folders that look like masks of others:
    in a folder of their own, or beside their pictures.
    """
    folders = folders_of_images(Place(folder))
    masks = {path for beside in masks_beside_pictures(folders) for path in beside}
    for _, inside in folders_of_masks(folders):
        masks |= {*folders[inside].values()}
    return masks


def folders_of_images(place: Place) -> Folders:
    """The images at a place, the folders with the most first."""
    folders: dict[Path, dict[str, Path]] = {}
    for path in place.with_suffix(*image_suffixes()):
        folders.setdefault(path.parent, {})[path.stem] = path
    # The largest first, which are to train on.
    return dict(sorted(folders.items(), key=lambda row: -len(row[1])))


def folders_of_masks(folders: Folders) -> Iterator[tuple[Path, Path]]:
    """The folders of pictures and those of what looks like their masks, by the same
    names.
    """
    for images, masks in islice(_pairs_of_folders(folders), _TRIED):
        marked = {picture_of(stem): path for stem, path in folders[masks].items()}
        if _are_masks(marked, folders[images]):
            yield images, masks


def masks_beside_pictures(folders: Folders) -> Iterator[list[Path]]:
    """What looks like the masks of pictures in the same folder."""
    for marked, pictures in _may_be_beside(folders):
        if _are_masks(marked, pictures):
            yield [*marked.values()]


def _may_be_beside(
    folders: Folders,
) -> Iterator[tuple[dict[str, Path], dict[str, Path]]]:
    """What may be masks in the folders of their pictures, and these, by the same names:
    files whose names end as those of masks do; and one of a few names that every folder
    has, where each is a case.
    """
    for pictures in islice(folders.values(), _TRIED):
        marked = {
            picture_of(stem): path
            for stem, path in pictures.items()
            if picture_of(stem) in pictures.keys() - {stem}
        }
        if marked and 3 * len(marked) >= len(pictures):
            yield marked, {**pictures}
    names = {frozenset(pictures) for pictures in folders.values()}
    if len(names) == 1 < len(folders):
        of_case = sorted(names.pop())
        for picture, mask in permutations(of_case if len(of_case) <= _FEW else (), 2):
            yield (
                {str(folder): files[mask] for folder, files in folders.items()},
                {str(folder): files[picture] for folder, files in folders.items()},
            )


def _pairs_of_folders(folders: Folders) -> Iterator[tuple[Path, Path]]:
    """The folders that may hold pictures and their masks, by the names in them: of a
    few, which are all or are in one folder or have one name; and of those whose names
    begin with that of the other.
    """
    groups: dict[Path | str, list[Path]] = {}
    for folder in folders:
        for shared in (folder.parent, folder.name):
            groups.setdefault(shared, []).append(folder)
    if len(folders) <= _FEW:
        groups = {"": [*folders]}
    pairs: list[tuple[Path, Path]] = []
    for group in groups.values():
        if len(group) <= _FEW:
            pairs += permutations(group, 2)
            continue
        for folder in group:
            ends = range(1, len(folder.name))
            begun = (folder.with_name(folder.name[:end]) for end in ends)
            pairs += [(first, folder) for first in begun if first in folders]
    for images, masks in pairs:
        if {*map(picture_of, folders[masks])} == folders[images].keys():
            yield images, masks


def _are_masks(marked: Mapping[str, Path], pictures: Mapping[str, Path]) -> bool:
    """Whether files look like the masks of pictures, by the names of these."""
    stems = sorted(marked)
    return {*stems} <= pictures.keys() and all(
        _is_mask_of(marked[stem], pictures[stem]) for stem in stems[:_TRIED]
    )


def _is_mask_of(mask: Path, picture: Path) -> bool:
    """Whether a file has few values of pixels, one as large has many."""
    try:
        with opened(mask) as values, opened(picture) as shown:
            if isinstance(values, Bands) or isinstance(shown, Bands):
                return False
            return (
                values.size == shown.size
                and values.getcolors(_FEW_VALUES) is not None
                and shown.getcolors(_FEW_VALUES) is None
            )
    except (OSError, ValueError):
        return False
