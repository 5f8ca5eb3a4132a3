"""What the commands have in common that look at a trained network."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcaps.cli.plugins import add_import, import_named

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from torchcaps.classifier import Classifier
    from torchcaps.data import ImageData, ImageSet

SPLITS = ("test", "validation", "train")


def open_classifier(path: str, device: str = "cpu") -> "Classifier":
    """The network of a run, for which the run's own modules are imported, or a saved one, for which nothing is.

    Raises:
        ValueError: if there is no such device; and what :meth:`~torchcaps.Classifier.open` raises.
    """
    from torchcaps.classifier import Classifier

    config = Path(path) / "config.yaml"
    for module in recorded_imports(config) if config.is_file() else []:
        import_named(module)
    classifier = Classifier.open(path)
    if "resize" not in classifier.network.extra and config.is_file():  # saved before networks kept it
        data = recorded_options(config).get("data")
        arguments = data.get("init_args") if isinstance(data, dict) else None
        classifier.resize = (arguments or {}).get("resize", classifier.resize)
    try:
        return classifier.to(device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {device}: {str(error).splitlines()[0]}") from error


def recorded_imports(config: Path) -> list[str]:
    """The modules that the options of a training name, as ``--import`` did; none if the file is no such options."""
    return list(recorded_options(config).get("import") or [])


def recorded_options(config: Path) -> dict[str, Any]:
    """The options of a training as they are written; none if the file is no such options."""
    import yaml

    try:
        options = yaml.safe_load(config.read_text())
    except (ValueError, yaml.YAMLError):
        return {}
    return options if isinstance(options, dict) else {}


def look_parser(command: str, description: str, arguments: list[str]) -> "ArgumentParser":
    """The options of a command that looks at a run; first, the run's own modules are imported."""
    from torchcaps.data import ImageData
    from torchcaps.training.parser import OptionParser

    # To know which argument is the run takes the parser, and to make that takes the imports.
    configs = (Path(argument) / "config.yaml" for argument in arguments)
    config = next((path for path in configs if path.is_file()), None)
    for module in [] if config is None else recorded_imports(config):
        import_named(module)
    parser = OptionParser(prog=f"torchcaps {command}", description=description)
    parser.add_argument("run", type=str, help="folder of a run")
    parser.add_argument("--data", type=ImageData | None, help="other images than those of the run")
    parser.add_argument("--split", type=str, choices=SPLITS, default="test", help="which images")
    parser.add_argument("--batch_size", type=int, default=128, help="images at a time")
    add_import(parser)
    return parser


def open_run(parser: "ArgumentParser", options: Any) -> "tuple[Classifier, ImageSet]":
    """The network of a run and the images that the options name, not prepared yet.

    Raises:
        ValueError: if there are no such images.
    """
    from torchcaps.training import RunFolder

    folder = RunFolder(Path(options.run)).existing()
    classifier = open_classifier(options.run)
    if options.data is None:
        import yaml

        recorded = yaml.safe_load(folder.config.read_text())["data"]
        options = parser.parse_object({"run": options.run, "split": options.split, "data": recorded})
    data: ImageData = parser.instantiate(options).data
    images: ImageSet = getattr(data, options.split)
    if not len(images):
        raise ValueError(f"the {options.split} split is empty")
    return classifier, images
