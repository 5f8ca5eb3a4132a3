"""``python -m benchmarks``: prints the tables."""

import argparse

from benchmarks import digitcaps, matrixcapsnet

CASES = {"digitcaps": digitcaps.report, "matrixcapsnet": matrixcapsnet.report}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="case", help="digitcaps, matrixcapsnet; default: all")
    parser.add_argument("--runs", type=int, default=9, help="counted runs of each call")
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    options = parser.parse_args()
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"case must be one of {', '.join(CASES)}, got {', '.join(sorted(unknown))}")
    for name in options.cases or CASES:
        CASES[name](options.runs, options.threads)


if __name__ == "__main__":
    main()
