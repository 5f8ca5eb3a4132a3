"""Test a trained network: accuracy, error, confusion matrix, or what its task
measures.
"""

from json import dumps
from typing import TYPE_CHECKING, Literal

from torchcaps.spec import Size, jsonable
from torchcaps_lab.cli.places import Existing, Split, Trained

if TYPE_CHECKING:
    from torchcaps_lab.data import DataSet


def command(
    run: Trained,
    folder: Existing | None = None,
    *,
    data: "DataSet | None" = None,
    split: Split | None = None,
    batch_size: Size = 128,
    crops: Literal[1, 13] | None = None,
    positive: str | None = None,
    json: bool = False,
    strange: str | None = None,
    false_alarms: float | None = None,
) -> None:
    """Test the network of a run.

    Args:
        run: folder of a run; with --data also of a saved network, or its name
        folder: other data, as --data FOLDER; all of its files are tested, except those
            that the run was trained on
        data: other data than that of the run: a folder or a file, or a data set, as in
            'torchcaps train'
        split: which of the images; default: test; all: of --data
        batch_size: images at a time
        crops: crops of each image to average; default: as trained
        positive: the class that sensitivity and AUC are about, if there are two;
            default: the second
        json: print JSON
        strange: a folder or a data set with images of none of the classes; prints how
            many of them pass for known
        false_alarms: share of the validation images that may be rejected, above 0 and
            below 1; fits the threshold again, and saves it with the network
    """
    from torchcaps_lab.cli.runs import open_run, other_data
    from torchcaps_lab.cli.strange import examine_strange, fit_again
    from torchcaps_lab.tasks.classification import two_class_text, with_positive

    data, split = other_data(run, folder, data, split)
    classifier, images = open_run(run, data, split)
    if false_alarms is None:
        figures = []
    else:
        figures = fit_again(classifier, run, data, false_alarms)
    if strange is None:
        apart = {}
    else:
        apart = examine_strange(classifier, images, strange, batch_size)
    findings = classifier.examine(images, batch_size, crops)
    if positive is None:
        details = findings.details
    else:
        details = with_positive(findings.details, positive, images.classes)
    if json:
        result = {
            "split": split,
            "images": len(images),
            "crops": crops or classifier.preprocess.crops,
            **findings.figures,
            **details,
            **apart,
            "classes": list(images.classes),
            "warnings": list(findings.warnings),
        }
        print(dumps(jsonable(result)))
        return
    print(
        "\n".join(
            [
                f"{split}: {findings.lines[0]}",
                *two_class_text(details),
                *findings.lines[1:],
                *figures,
            ]
        )
    )
    for shares in apart.values():
        print(
            f"{strange}: {shares['undetected']:.2%} of {shares['strange_images']:,} "
            f"images pass for known, AUC {shares['auc']:.4f}; false alarms: "
            f"{shares['false_alarms']:.2%} of {shares['known_images']:,} {split} images"
        )
    for line in findings.warnings:
        print(f"warning: {line}")
