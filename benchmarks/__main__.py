"""``python -m benchmarks NAME ...``: the parts of ``torchcaps bench``, cases of its suite, ``training``, ``gpu``."""

import sys
from functools import partial

from benchmarks import gpu
from torchcaps.bench import command
from torchcaps.bench.cases import CASES


def main(arguments: list[str]) -> None:
    """Runs what the first argument names; the suite without one. The others are options of ``torchcaps bench``."""
    show = partial(print, flush=True)
    name, rest = (
        ("suite", arguments) if not arguments or arguments[0].startswith("-") else (arguments[0], arguments[1:])
    )
    if name == "gpu":
        gpu.main(rest)
    elif name == "training":
        from benchmarks import training  # which needs Lightning

        training.main(rest)
    elif name in CASES:
        command.main(["suite", "--cases", name, *rest], show, "python -m benchmarks")
    else:
        command.main([name, *rest], show, "python -m benchmarks")


if __name__ == "__main__":
    main(sys.argv[1:])
