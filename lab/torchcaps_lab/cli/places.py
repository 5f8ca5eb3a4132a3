"""Arguments that name something on the disk, which is looked for before torch is
imported.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torchcaps
from torchcaps.spec import Within
from torchcaps.whole import expanded, folder_instead, is_there, seen_from


def packaged(name: str) -> bool:
    """Whether a network of this name comes with the package."""
    return Path(torchcaps.__file__).with_name("pretrained").joinpath(name).is_dir()


@dataclass(frozen=True)
class There(Within):
    """For ``Annotated``: what must exist; a network may also be one of the package, or
    ``owner/name`` on the Hub.
    """

    network: bool = False

    def check(self, place: str, value: Any) -> None:
        """Raises a ValueError that names the place if there is nothing, or a file in
        place of the folder of a network.
        """
        path = expanded(value)
        if self.network and not packaged(value) and is_there(path.is_file):
            raise ValueError(f"{place}: {folder_instead(path)}")
        named = self.network and (
            packaged(value) or (len(path.parts) == 2 and not path.is_absolute())
        )
        if not named and not is_there(path.exists):
            neighbours = ""
            if self.network:
                neighbours = ", and no network of that name comes with the package"
            raise ValueError(
                f"{place} {str(value)[:4000]} does not exist"
                f"{neighbours}{seen_from(path)}"
            )


Existing = Annotated[str, There()]
Trained = Annotated[str, There(network=True)]
Split = Literal["test", "validation", "train", "all"]
