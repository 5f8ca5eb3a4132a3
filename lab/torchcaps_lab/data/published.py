"""Files that were published: found, checked, downloaded where they are missing."""

import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from torchcaps.spec import settings
from torchcaps_lab.data.base import DataSet, find_data_dir
from torchcaps_lab.data.streams import digest_of


@settings
class PublishedData(DataSet):
    """Images in files that were published, which are downloaded where they are missing.

    Attributes:
        folders: sub-folders of `data_dir` in which files are looked for, before
            `data_dir` itself; downloads go to the first.
        mirrors: addresses of folders that files are downloaded from, tried one after
            the other.
        digests: the digests of the published files, such as ``sha256:...``; files of
            other names are not checked.
        most: limits of a download: bytes, and
        seconds: in total.

    Args:
        data_dir: folder of the data sets. Default: the environment variable
            TORCHCAPS_DATA, else torchcaps in the user's cache folder.
        download: whether to download what is missing.
    """

    folders: ClassVar[tuple[str, ...]] = ()
    mirrors: ClassVar[tuple[str, ...]] = ()
    digests: ClassVar[dict[str, str]] = {}
    most: ClassVar[int] = 1 << 28
    seconds: ClassVar[float] = 3600

    data_dir: str | Path | None = None
    download: bool = True

    def __post_init__(self) -> None:
        self.data_dir = find_data_dir(self.data_dir)

    @property
    def _places(self) -> list[Path]:
        home = find_data_dir(self.data_dir)
        return [*(home / folder for folder in self.folders), home]

    def _find(self, *names: str) -> Path | None:
        """The first file of one of these names."""
        for place, name in product(self._places, names):
            if (place / name).is_file():
                return place / name
        return None

    def _download(self, name: str, missing: Sequence[str]) -> Path:
        """Downloads a file, because files are ``missing``.

        Raises:
            FileNotFoundError: `download` is False.
            ConnectionError: no mirror serves the file intact.
        """
        searched = (
            f"{' and '.join(missing)} not found in "
            f"{' and '.join(map(str, self._places))}"
        )
        advice = (
            "Name a folder that holds the files with data_dir or the environment "
            "variable TORCHCAPS_DATA."
        )
        if not self.download:
            raise FileNotFoundError(f"{searched}, and download is False. {advice}")
        import pooch

        failures = []
        for mirror in self.mirrors:
            try:
                # pooch moves a file to its place only when the hash is right, in one
                # step.
                path = self._places[0]
                download = BoundedDownload(self.most, self.seconds)
                return Path(
                    pooch.retrieve(
                        mirror + name,
                        self.digests[name],
                        name,
                        path,
                        downloader=download,
                    )
                )
            # No connection or no such file; a wrong hash.
            except (
                OSError,
                ValueError,
            ) as error:
                failures.append(f"  {mirror}{name}: {error}")
        raise ConnectionError(
            "\n".join([f"{searched}, and downloading failed:", *failures, advice])
        )

    def _check(self, path: Path) -> Path:
        """The path, if that is the published file of its name; else raises a
        `ValueError`.
        """
        algorithm, _, expected = self.digests.get(path.name, "").partition(":")
        if algorithm and (got := digest_of(path, algorithm)) != expected:
            raise ValueError(
                f"{path} is not the published file of {type(self).__name__}: "
                f"its {algorithm} digest is {got}, expected {expected}"
            )
        return path


class BoundedDownload:
    """A downloader for `pooch.retrieve` with limits on time and size.

    Args:
        most: bytes.
        seconds: in total; a silent server is given up after half a minute.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self.most = most
        self.seconds = seconds

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        """Downloads the file at ``url``.

        Raises:
            ConnectionError: it is not served, or not within these limits.
        """
        import requests
        from urllib3.exceptions import HTTPError

        end = time.monotonic() + self.seconds
        done = 0
        try:
            with (
                requests.get(url, stream=True, timeout=30) as response,
                Path(output_file).open("wb") as file,
            ):
                response.raise_for_status()
                # read1, because read waits for a whole piece, however slow.
                while piece := response.raw.read1(1 << 16, decode_content=True):
                    done += file.write(piece)
                    if done > self.most:
                        raise ConnectionError(
                            f"more than {self.most:,} bytes were served, which cannot "
                            "be the file"
                        )
                    if time.monotonic() > end:
                        raise ConnectionError(
                            f"{done:,} bytes in {self.seconds:,.0f} seconds, then "
                            "given up"
                        )
        except HTTPError as error:
            raise ConnectionError(str(error)) from error
