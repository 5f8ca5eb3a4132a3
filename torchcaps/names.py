"""What to install for something that is missing."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needing(what: str, requirement: str) -> Iterator[None]:
    """Inside the ``with`` block a missing module is an error that says what to install.

    Args:
        what: needs the module, for the message: a plural.
        requirement: that pip installs it by, such as ``torchcaps[mixture]``.

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
