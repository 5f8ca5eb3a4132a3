"""``python -m benchmarks``: prints every table."""

import argparse

from benchmarks import digitcaps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9, help="counted runs of each call")
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    options = parser.parse_args()
    digitcaps.report(options.runs, options.threads)


if __name__ == "__main__":
    main()
