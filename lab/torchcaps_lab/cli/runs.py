"""Common functions of the commands that use a trained network."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcaps.spec import Spec, fit
from torchcaps_lab.cli.plugins import add_import

if TYPE_CHECKING:
    from torchcaps_lab.classifier import Classifier
    from torchcaps_lab.cli.parser import OptionParser
    from torchcaps_lab.data import ImageData, ImageSet

SPLITS = ("test", "validation", "train", "all")


def open_classifier(path: str, device: str = "cpu") -> "Classifier":
    """Opens the network of a run, or a saved one; only modules from ``--import`` are imported for it.

    Raises:
        ValueError: if there is no such device; and what :meth:`~torchcaps.Classifier.open` raises.
    """
    from torchcaps_lab.classifier import Classifier

    config = Path(path) / "config.yaml"
    classifier = Classifier.open(path)
    if "resize" not in classifier.network.extra and config.is_file():  # saved before networks stored it
        classifier.resize = _recorded_resize(config) or classifier.resize
    try:
        return classifier.to(device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {device}: {str(error).splitlines()[0]}") from error


def _recorded_resize(config: Path) -> Any:
    """The option ``resize`` of a training; None if it has none."""
    from torchcaps_lab.training.reading import merged, read_options

    try:
        return merged({}, read_options(config)["data"])["resize"]
    except (ValueError, KeyError, TypeError):
        return None


def look_parser(command: str, description: str) -> "OptionParser":
    """The options of a command that reads a run."""
    from torchcaps_lab.cli.parser import OptionParser
    from torchcaps_lab.data import ImageData

    parser = OptionParser(prog=f"torchcaps {command}", description=description)
    parser.add_argument("run", type=str, help="folder of a run; with --data also of a saved network, or its name")
    parser.add_argument("--data", type=ImageData, help="other images than those of the run, as in 'torchcaps train'")
    parser.add_argument("--split", choices=SPLITS, default="test", help="which of the images; all: of --data")
    add_import(parser)
    return parser


def _take_shape(data: Spec, classifier: "Classifier") -> tuple[str, ...]:
    """Fills in the size and channels that the network takes where the options of images name none; a note on it."""
    channels, height, width = classifier.image_shape
    arguments: dict[str, Any] = data.arguments
    shape = {"size": (height, width), "channels": channels}
    missing = {name: value for name, value in shape.items() if name in arguments and arguments[name] is None}
    if not missing or channels not in (1, 3):
        return ()
    for name, value in missing.items():
        arguments[name] = value
    colour = "grey" if channels == 1 else "colour"
    return (f"images of another shape are brought to what the network takes, {height} x {width} pixels, {colour}",)


def _other_fit(data: "ImageData", classifier: "Classifier") -> tuple[str, ...]:
    """A note, if images get to their size in another way than those that the network was trained on."""
    fit, usual = getattr(data, "resize", None), classifier.resize
    if fit in (None, usual) or usual == "keep":
        return ()
    return (f"resize {fit} fits these images to the network, it was trained with {usual}: --data.resize {usual}",)


def open_run(parser: "OptionParser", options: Any) -> "tuple[Classifier, ImageSet]":
    """The network of a run, or a saved one, and the unprepared images that the options name.

    Raises:
        FileNotFoundError: if there is no such network, or it is not a run and no images are named.
        ValueError: if there are no such images, or the options of the run name something that they may not.
    """
    from torchcaps_lab.data import ImageData
    from torchcaps_lab.training import RunFolder, follow_record, images_apart, read_options

    folder = RunFolder(Path(options.run))
    own = options.data is None
    if own and options.split == "all":
        parser.error("--split all is for other images, named by --data: the run was trained on some of its own")
    if own:
        if not folder.config.is_file():
            raise FileNotFoundError(
                f"{options.run} is not the folder of a run, which names its images: a saved network needs --data"
            )
        recorded = read_options(folder.config, getattr(options, "import"))
        options.data = fit(ImageData, recorded.get("data"), f"{folder.config}: data")
    classifier = open_classifier(options.run)
    fitted = () if own else _take_shape(options.data, classifier)
    try:
        data: ImageData = options.data.make()
        if own:
            notes = follow_record(folder, data)
            images: ImageSet = getattr(data, options.split)
        else:
            images, notes = images_apart(folder, data, options.split)
            notes = (*fitted, *_other_fit(data, classifier), *notes)
    except FileNotFoundError as error:
        if not own:
            raise
        raise FileNotFoundError(f"{error}; --data with a class and --data.root say where they are now") from error
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    if not len(images):
        raise ValueError(f"the {options.split} split is empty")
    return classifier, images
