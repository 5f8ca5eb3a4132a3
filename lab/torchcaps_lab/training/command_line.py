"""The options of a training as plain values, as they stand in YAML. Reading them does
not need Lightning.
"""

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any, NamedTuple, cast

from torchcaps.spec import Argument, Spec, UnknownOption, complete, declared, fit, meant
from torchcaps.whole import expanded
from torchcaps_lab.options.declarations import OURS, Schedule, trainer_arguments
from torchcaps_lab.options.reading import merged
from torchcaps_lab.training.options import Optimisation, Running, Subject

GROUPS = (Subject, Optimisation, Schedule, Running)
"""The groups of options of a training, which are on one level on the command line and
in YAML.
"""

OPTIMIZER = {"name": "Adam", "lr": 1e-3}
"""The default here; there is none in Python."""


class TrainingParts(NamedTuple):
    """The objects that the options of a training describe, in the order of
    :data:`GROUPS`.
    """

    subject: Subject
    optimisation: Optimisation
    schedule: Schedule
    running: Running


@dataclass(frozen=True)
class TrainingOptions:
    """The options of a training, checked and complete: see :func:`training_options`.

    Args:
        groups: the groups of options, in the order of :data:`GROUPS`.
        run: the folder of the run, if the options name one.
        imported: modules that the user named for import.

    Example:
        >>> from torchcaps_lab.training.command_line import training_options
        >>> options = training_options(
        ...     {"data": "Digits", "routing": {"name": "em", "steps": 2}}
        ... )
        >>> options.plain()["routing"]["steps"], options.plain()["epochs"]
        (2, 20)
    """

    groups: tuple[Spec, ...]
    run: str | None = None
    imported: tuple[str, ...] = ()

    def make(self) -> TrainingParts:
        """Create the objects that the options describe.

        Raises:
            ValueError: if they do not fit together.
        """
        return TrainingParts._make(group.make() for group in self.groups)

    def plain(self) -> dict[str, Any]:
        """Return all options by name, ready for JSON and YAML."""
        values: dict[str, Any] = {}
        for group in self.groups:
            values |= group.plain()
        return {
            **({} if self.run is None else {"run": self.run}),
            "import": list(self.imported),
            **values,
        }


def option_arguments() -> dict[str, Argument]:
    """The options of a training by name."""
    arguments: dict[str, Argument] = {}
    for group in GROUPS:
        arguments |= declared(group).arguments
    return arguments


def training_options(values: Mapping[str, Any]) -> TrainingOptions:
    """Check options by name, as in a file, and fill in the others.

    A thing is its name, or a dict of ``name`` and arguments: names are those of data
    sets, tasks, routings and losses, of optimizers and schedulers of torch, and of
    classes in modules that were imported before. Nothing is imported and
    nothing is called for it: :meth:`TrainingOptions.make` does that.

    Raises:
        ValueError: if there is no option of a name, one is missing, or does not fit;
            says which.
    """
    arguments = option_arguments()
    values = dict(values)
    imported = tuple(values.pop("import", ()))
    run = values.pop("run", None)
    if run is not None:
        # Shells leave --run=~/mine as it is.
        run = str(expanded(fit(str, run, "run")))
    if unknown := [name for name in values if name not in arguments]:
        raise ValueError(
            f"there is no option {unknown[0]}{meant(unknown[0], arguments)}"
        )
    values["optimizer"] = merged(OPTIMIZER, values.get("optimizer", {}))
    groups = []
    for group in GROUPS:
        of_group = {
            name: value
            for name, value in values.items()
            if name in declared(group).arguments
        }
        try:
            groups.append(Spec(group, complete(group, of_group, ""), "the options"))
        except UnknownOption as error:
            raise ValueError(f"{_instead(error) or error}") from None
    return TrainingOptions(tuple(groups), run, imported)


def _instead(unknown: UnknownOption) -> str:
    """What to say of an option that is one of another place; empty if it is of none."""
    option, name = unknown.option, unknown.name
    of_trainer = option == f"trainer.{name}"
    if of_trainer and name in OURS:
        source = OURS[name] and f", from {OURS[name]}"
        return f"there is no option {option}; torchcaps sets it itself{source}"
    if places := [place for place in _places(name) if place != option]:
        return (
            f"there is no option {option}; did you mean {places[0]}?\n  {unknown.taken}"
        )
    if of_trainer and not unknown.near and name in trainer_arguments():
        return (
            f"there is no option {option}; other arguments of Lightning's Trainer go "
            f"into trainer.extra: trainer.extra.{name}"
        )
    return ""


def _places(name: str) -> list[str]:
    """Where a training has an option of this name: at the top, or in a group."""
    options = option_arguments()
    places = [name] if name in options else []
    for group, argument in options.items():
        hint = argument.hint
        if is_dataclass(hint) and name in declared(cast(Any, hint)).arguments:
            places.append(f"{group}.{name}")
    return places
