"""Draw the report of a trained network: reconstructions, perturbations, mistakes,
assignment maps.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from torchcaps.whole import check_writable, owned
from torchcaps_lab.cli.places import Existing, Split, Trained
from torchcaps_lab.run_folder import RunFolder, read_metrics, read_summary

if TYPE_CHECKING:
    from torchcaps_lab.data import DataSet


def command(
    run: Trained,
    folder: Existing | None = None,
    *,
    data: "DataSet | None" = None,
    split: Split | None = None,
    out: str | None = None,
) -> None:
    """Draw the report of a run.

    Args:
        run: folder of a run; with --data also of a saved network, or its name
        folder: other data, as --data FOLDER; all of its files are shown, except those
            that the run was trained on
        data: other data than that of the run: a folder or a file, or a data set, as in
            'torchcaps train'
        split: which of the images; default: test; all: of --data
        out: folder to write 'report/' into; default: the run, or 'explain-SPLIT' in it
            for other images
    """
    from torchcaps_lab.cli.runs import is_of_run, open_run, other_data

    data, split = other_data(run, folder, data, split)
    of_run = RunFolder(Path(run))
    on_test_images = split == "test" and is_of_run(data)
    if out:
        place = Path(out)
    else:
        place = of_run.path if on_test_images else of_run.path / f"explain-{split}"
    if not out:
        owned(of_run.path, place.relative_to(of_run.path).as_posix())
    if place.exists() and not place.is_dir():
        raise ValueError(f"--out must be a folder, and {place} is a file")
    if not out and not is_of_run(data) and not of_run.config.is_file():
        raise ValueError(
            f"--out must name a folder for the report: {run} is not the folder of a run"
        )
    check_writable(place, "name another folder with --out")
    classifier, images = open_run(run, data, split)
    recorded = read_summary(of_run) if of_run.summary.exists() else {}
    summary = {**recorded, "run": run}  # it may have moved since
    if not on_test_images:
        # These were found on the test images of the run.
        for name in ("verdict", "routing"):
            summary.pop(name, None)
    metrics = read_metrics(of_run) if of_run.metrics.exists() else []
    page = classifier.task.report(
        place, classifier.network, classifier.prepared(images), summary, metrics
    )
    if page is None:
        raise ValueError(
            f"the task {classifier.task.name!r} of this run draws no report"
        )
    print(page)
