"""``python -m benchmarks.faults ...`` is ``torchcaps bench faults ...``."""

import sys

from torchcaps.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "faults", *sys.argv[1:]]))
