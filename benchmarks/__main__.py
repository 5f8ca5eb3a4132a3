"""``python -m benchmarks NAME ...`` is ``torchcaps bench NAME ...``, from a checkout that is not installed too."""

import sys

from torchcaps.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
