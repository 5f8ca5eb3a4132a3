"""Write a network as an ONNX file or an exported program, for use without this
package.
"""

import sys
from pathlib import Path
from typing import Literal

from torchcaps_lab.cli.places import Trained


def command(
    run: Trained,
    *,
    format: Literal["onnx", "torch-export"] | None = None,
    to: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write a network for use without this package.

    Args:
        run: folder of a run, or of a saved network, or name of a trained one in the
            package
        format: format; default: that of the suffix of --to, else onnx
        to: file to write; default: named after the network, in the current folder
        overwrite: overwrite an existing file
    """
    from torchcaps_lab.cli import exporting
    from torchcaps_lab.cli.runs import open_classifier

    form = exporting.form_of(format, to)
    classifier = open_classifier(run)
    path = Path(
        to or f"{type(classifier.network).__name__.lower()}{exporting.SUFFIXES[form]}"
    )
    exporting.check_free(path, overwrite)
    kind = type(classifier.network).__name__
    print(
        f"exporting {kind} to {path} as {form}: a large network takes minutes",
        file=sys.stderr,
        flush=True,
    )
    off = exporting.export(classifier, path, form)
    size = path.stat().st_size / 2**20
    print(
        f"{path}: {size:.1f} MiB, checked: its answers differ from the network's by "
        f"at most {off:.1g}"
    )
    print(f"it takes {classifier.reader}")
