"""``torchcaps explain``."""

import csv
from pathlib import Path

from torchcaps_lab.cli.runs import look_parser, open_run


def command(arguments: list[str]) -> None:
    """Draw the report of a trained network: reconstructions, perturbations, mistakes, assignment maps."""
    from torchcaps_lab.training import RunFolder, read_summary

    parser = look_parser("explain", "Draw the report of a run.")
    parser.add_argument(
        "--out",
        type=str,
        help="folder to write 'report/' into; default: the run, or 'explain-SPLIT' in it for other images",
    )
    options = parser.parse_args(arguments)
    folder = RunFolder(Path(options.run))
    own = options.split == "test" and options.data is None
    out = Path(options.out) if options.out else folder.path if own else folder.path / f"explain-{options.split}"
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder, and {out} is a file")
    if not options.out and options.data is not None and not folder.config.is_file():
        raise ValueError(f"--out must name a folder for the report: {options.run} is not the folder of a run")
    classifier, images = open_run(parser, options)
    summary = read_summary(folder) if folder.summary.is_file() else {}
    metrics = _read_metrics(folder.metrics) if folder.metrics.is_file() else []
    page = classifier.task.report(out, classifier.network, classifier.prepared(images), summary, metrics)
    if page is None:
        raise ValueError(f"the task {classifier.task.name!r} of this run draws no report")
    print(page)


def _read_metrics(path: Path) -> list[dict[str, float]]:
    """The rows of the epochs, counted from one; earlier versions counted from zero."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    except (ValueError, TypeError, csv.Error) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    return [{**row, "epoch": place} for place, row in enumerate(rows, 1)]
