"""The extra of this package that something needs."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needing_extra(what: str, extra: str) -> Iterator[None]:
    """Inside the ``with`` block a missing module is an error that says what to install.

    Args:
        what: needs the module, for the message: a plural.
        extra: of this package that installs it.

    Raises:
        ModuleNotFoundError: if a module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} need {error.name}, which is not installed: pip install 'torchcaps[{extra}]'", name=error.name
        ) from error
