"""Imports of packages that need not be installed."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needing(what: str, requirement: str) -> Iterator[None]:
    """Name the package to install if a module is missing inside the ``with`` block.

    Args:
        what: what needs the module, in the plural, such as ``estimators``.
        requirement: what pip is to install, such as ``torchcaps[mixture]``.

    Raises:
        ModuleNotFoundError: if a module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} need {error.name}, which is not installed: pip install "
            f"{shlex.quote(requirement)}",
            name=error.name,
        ) from error
