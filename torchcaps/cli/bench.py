"""``torchcaps bench``."""

from functools import partial

from torchcaps.cli.plugins import without_imports


def command(arguments: list[str]) -> None:
    """Measure speed and memory beside the physical limit, with every backend."""
    from torchcaps.bench import command as bench

    bench.main(without_imports(arguments), partial(print, flush=True))
