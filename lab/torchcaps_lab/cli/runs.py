"""Common functions of the commands that use a trained network."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torchcaps.spec import Spec, fit
from torchcaps.whole import seen_from
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.cli.parser import WrongUsage, data_at, lacks_name
from torchcaps_lab.cli.places import Split, packaged
from torchcaps_lab.data import DataSet, Examples
from torchcaps_lab.data.base import DATASETS
from torchcaps_lab.data.classes import UnknownClasses
from torchcaps_lab.data.table_form import columns_again
from torchcaps_lab.look import Place, values_of
from torchcaps_lab.options.reading import merged, read_options
from torchcaps_lab.run_folder import RunFolder
from torchcaps_lab.training.record import follow_record, images_apart, with_new_classes


def open_classifier(path: str, device: str = "cpu") -> Classifier:
    """Opens the network of a run, or a saved one; only modules from ``--import`` are
    imported for it.

    Raises:
        ValueError: if there is no such device; and what
            :meth:`~torchcaps.Classifier.open` raises.
    """
    classifier = Classifier.open(path)
    try:
        return classifier.to(device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {device}: {str(error).splitlines()[0]}") from error


def _take_classes(data: Spec, classifier: Classifier) -> None:
    """Fills in the classes of the network where the options of images name none, so
    that images may lack some.
    """
    if classifier.named and data.arguments.get("classes", ()) is None:
        data.arguments["classes"] = list(classifier.classes)


def _other_fit(data: Spec, classifier: Classifier) -> tuple[str, ...]:
    """A note, if images get to their size in another way than those that the network
    was trained on, and may get there in that way.
    """
    fit = data.arguments.get("resize")
    usual = classifier.resize
    if usual is None or fit in (None, usual) or usual == "keep":
        return ()
    return (
        f"these images are resized with {fit}, but the network was trained with "
        f"{usual}: add --data.resize {usual}",
    )


def other_data(
    run: str, folder: str | None, data: Any, split: Split | None
) -> tuple[Any, Split]:
    """Return the data that were named in place of those of a run, and which of them.

    Args:
        run: its folder, or that of a saved network, or its name.
        folder: a path that was named behind the run; None if none was.
        data: the option ``--data``, as typed.
        split: the option ``--split``; None if it was not given.

    Raises:
        WrongUsage: both name data.
        ValueError: there is no such data set, or no reader recognises what lies there.
    """
    if folder is None:
        if data is None or lacks_name(data):
            # Other arguments of the data of a run: --data.root MOVED.
            return data, split or "test"
        return _data_spec(run, data), split or "test"
    if data is not None and not lacks_name(data):
        raise WrongUsage(f"{folder} and --data both name the data: give one of them")
    place = Path(folder)
    value = {**(data or {}), "name": place if place.exists() else folder}
    named = _data_spec(run, value)
    kind = cast(type[DataSet], named.cls)
    takes_all = kind.test_on_all is not DataSet.test_on_all
    return named, split or ("all" if takes_all else "test")


def _data_spec(run: str, value: Any) -> Spec:
    """The data set that was named, which is read as that of the run."""
    classifier = open_classifier(run)
    classes = classifier.classes if classifier.named else ()
    known = _arguments_of_run(run, value, classifier)
    given = data_at(value, known, classifier.task.name, classes)
    spec: Spec = fit(DataSet, given, "--data")
    return spec


def _arguments_of_run(run: str, value: Any, classifier: Classifier) -> dict[str, Any]:
    """The arguments of other data that are those of a run: its columns, and how its
    examples were written.
    """
    given: Any = value
    if isinstance(value, Mapping):
        given = value.get("root", value.get("name"))
    path = Path(getattr(given, "text", given))
    config = RunFolder(Path(run)).config
    if not path.exists() or not config.is_file():
        return {}
    options = values_of(read_options(config).get("data"))
    columns = columns_again(Place(path), options)
    if "wide" in columns:
        series: dict[str, Any] = {"root": path, "values": ()}
        classifier.reader.complete(series)
        columns["values"] = series["values"]
    # One of the user's own may not be imported.
    kinds = dict(DATASETS.items())
    shared = kinds.get(options.get("name", ""), DataSet).shared
    return columns | {name: options[name] for name in shared if options.get(name)}


def is_of_run(data: Any) -> bool:
    """Whether the option ``--data`` names no other data than those of the run."""
    return data is None or isinstance(data, Mapping)


def open_run(
    run: str,
    named: Spec | DataSet | Mapping[str, Any] | None = None,
    split: Split = "test",
) -> tuple[Classifier, Examples]:
    """The network of a run, or a saved one, and unprepared images.

    Args:
        run: its folder, or with ``named`` that of a saved network, or its name.
        named: other images than those of the run; or arguments that replace those of
            the run's own, such as the place that they have moved to.
        split: which of them.

    Raises:
        WrongUsage: if all images of the run are wanted.
        FileNotFoundError: if there is no such network, or it is not a run and no images
            are named.
        ValueError: if there are no such images, or the options of the run name
            something that they may not.
    """
    folder = RunFolder(Path(run))
    of_run = is_of_run(named)
    if of_run and split == "all":
        raise WrongUsage(
            "--split all is for other images, named by --data, because the run was "
            "trained on some of its own"
        )
    if of_run:
        if not folder.path.exists() and not packaged(run):
            raise FileNotFoundError(f"there is no folder {run}{seen_from(folder.path)}")
        if not folder.config.is_file():
            open_classifier(run)
            raise FileNotFoundError(
                f"{run} is a saved network, which names no data: name some with --data"
            )
        recorded = read_options(folder.config)
        own = merged(recorded.get("data"), named or {})
        spec: Spec = fit(DataSet, own, f"{folder.config}: data")
        classifier = open_classifier(run)
        try:
            data: DataSet = spec.make()
            notes = follow_record(folder, data)
            images: Examples = getattr(data, split)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{error}; if the data have moved, name their new place with --data.root FOLDER"
            ) from error
    else:
        classifier = open_classifier(run)
        spec = cast(Spec, named)
        fitted = classifier.reader.complete(spec.arguments)
        _take_classes(spec, classifier)
        try:
            data = spec.make()
            images, notes = images_apart(folder, data, split)
        except UnknownClasses as error:
            advice = with_new_classes(
                folder, str(spec.arguments.get("root", "DATA")), error.names
            )
            raise ValueError(f"{error}\n  {advice}") from error
        notes = (*filter(None, [fitted]), *_other_fit(spec, classifier), *notes)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    if not len(images):
        raise ValueError(f"the {split} split is empty")
    return classifier, classifier.by_name(images)
