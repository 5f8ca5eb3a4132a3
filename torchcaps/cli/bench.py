"""``torchcaps bench``."""

from functools import partial

from torchcaps.cli.plugins import without_imports


def command(arguments: list[str]) -> None:
    """Measure speed and memory of every backend beside the limits of the machine."""
    from torchcaps.bench import command as bench

    bench.main(without_imports(arguments), partial(print, flush=True))
