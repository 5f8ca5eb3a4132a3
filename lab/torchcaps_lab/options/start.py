"""Options of a run that another training starts from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torchcaps
from torchcaps.spec import declared
from torchcaps.whole import CONFIG_FILE, LARGEST_NOTE, RUN_FILE, read_json, seen_from
from torchcaps_lab.look import name_in
from torchcaps_lab.options.reading import merged, read_options

_OF_THE_NETWORK = ("model", "model_args", "routing")

_OF_THE_DATA = ("classes", "image_shape", "in_channels", "vocabulary")
"""Arguments of networks that the data decide."""


def with_start(
    options: Mapping[str, Any], guessed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the guessed options with those of the run that a training starts from.

    Its network, the size of its images and their preparation are taken over, unless the
    user gave other ones. A network for another task is not.

    Args:
        options: the options that the user gave.
        guessed: those that the data suggest.

    Raises:
        FileNotFoundError: if there is no such run and no such network.
    """
    start = name_in(options.get("start"))
    if start is None:
        return dict(guessed)
    run, description = _places(start)
    recorded = read_options(run) if run.is_file() else {}
    saved = read_json(description, LARGEST_NOTE)
    extra = saved.get("extra", {})
    wanted = merged(guessed, options)
    rest = dict(guessed)
    taken = {"data": _of_data(extra, wanted)}
    if _same_task(extra, wanted):
        network = _of_network(recorded.get("model") or Path(start).name, saved)
        if network and name_in(options.get("model")) in (None, network["model"]):
            # What was guessed is for another network.
            for option in _OF_THE_NETWORK:
                rest.pop(option, None)
            if "backbone" not in network["model_args"]:
                rest.pop("frozen_epochs", None)
            taken |= network
        preprocess = extra.get("reader", {}).get("preprocess")
        taken |= {} if preprocess is None else {"preprocess": preprocess}
    return merged(rest, taken)


def _places(start: str) -> tuple[Path, Path]:
    """The options of a run, and the description of its network or of a saved one."""
    packaged = Path(torchcaps.__file__).with_name("pretrained")
    for folder in (Path(start), packaged / start):
        for network in (folder / "model" / CONFIG_FILE, folder / CONFIG_FILE):
            if network.is_file():
                return folder / RUN_FILE, network
    raise FileNotFoundError(
        f"there is no run and no saved network {start} to start from"
        f"{seen_from(Path(start))}"
    )


def _of_network(own: str, saved: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a saved network: its class and its arguments.

    Args:
        own: the name that it may have; another one of its class does as well.
        saved: its description.
    """
    from torchcaps.models.registry import MODELS, list_models

    names = [
        name
        for name in (own, *list_models())
        if name in MODELS and MODELS[name].network.__name__ == saved.get("network")
    ]
    if not names:
        return {}
    arguments = dict(saved.get("arguments", {}))
    for name in _OF_THE_DATA:
        arguments.pop(name, None)
    routing = arguments.pop("routing", None)
    network = {"model": names[0], "model_args": arguments}
    return network | ({} if routing is None else {"routing": routing})


def _of_data(extra: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """How the network read its images, as arguments that the data set takes."""
    from torchcaps_lab.data.base import DATASETS

    reader = extra.get("reader", {})
    channels, *size = reader.get("image_shape", (None,))
    shape = {"size": size or None, "channels": channels}
    how = {name: reader.get(name) for name in ("resize", "range", "background")}
    if how["resize"] == "handwriting":
        # This reads photos of handwriting, and no data that a network is trained on.
        del how["resize"]
    name = name_in(options.get("data"))
    taken = declared(DATASETS.find(name)).arguments if name else {}
    open_shape = {
        key: value
        for key, value in shape.items()
        if key in taken and taken[key].default is None
    }
    return {
        key: value
        for key, value in {**open_shape, **how}.items()
        if value is not None and key in taken and taken[key].default != value
    }


def _same_task(extra: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Whether the network was trained for the task of the data."""
    from torchcaps_lab.data.base import DATASETS

    name = name_in(options.get("data"))
    of_data = getattr(DATASETS.find(name), "task", None) if name else None
    wanted = name_in(options.get("task")) or name_in(of_data)
    return wanted in (None, name_in(extra.get("task", {"name": "classification"})))
