"""From a file of weights to a saved network."""

import tempfile
from pathlib import Path

from torchcaps.models.network import Network
from torchcaps.whole import check_writable, opened
from torchcaps_lab.conversion import efficient_capsnet, heinsen
from torchcaps_lab.conversion.base import (
    COUNTER,
    TRAINED,
    Converted,
    check_names,
    outline,
)


def convert(file: str | Path, folder: str | Path) -> Network:
    """Convert the weights of other authors to a network of this package, and save it.

    ============================== =========================================== ========================================
    network                        file                                        code that wrote it
    ============================== =========================================== ========================================
    ``EfficientCapsNet``           Keras weights, ``.h5``, of the form for     EscVM/Efficient-CapsNet
                                   MNIST, smallNORB or MultiMNIST
    ``HeinsenCapsNet``             torch state dict, ``.pt``, for smallNORB    glassroom/heinsen_routing, 2019
    ============================== =========================================== ========================================

    The kind of a file is recognised by its content. Nothing in it is executed: of a
    pickle only tensors are read.

    Args:
        file: the weights.
        folder: where the network is saved, as
            :meth:`~torchcaps.models.Network.save_pretrained` does; it must not exist,
            or be empty. It is there whole or not at all.

    Returns:
        The network, in evaluation mode.

    Raises:
        FileNotFoundError: if there is no such file.
        FileExistsError: if there is something in the folder.
        ModuleNotFoundError: if h5py is needed and not installed; it names the extra.
        ValueError: if the file is damaged, or holds another network, or other things
            than weights; it says which.
    """
    file = Path(file)
    folder = Path(folder)
    if not file.is_file():
        raise FileNotFoundError(f"{file} is not a file")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists already and is not empty")
    check_writable(folder, "choose another folder")
    converted = _read(file)
    network = _filled(file, converted)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=folder.parent, prefix=f".{folder.name}-"
    ) as beside:
        network.save_pretrained(
            Path(beside) / "model", **converted.extra, source=file.name
        )
        (Path(beside) / "model").replace(folder)
    network.extra = {**converted.extra, "source": file.name}
    return network.eval()


def _read(file: Path) -> Converted:
    with opened(file) as content:
        start = content.read(8)
    if start == b"\x89HDF\r\n\x1a\n":
        return efficient_capsnet.read(file)
    # A zip archive, or a pickle of protocol 2: how torch saves.
    if start[:2] in (b"PK", b"\x80\x02"):
        return heinsen.read(file)
    raise ValueError(
        f"{file} is neither Keras weights (HDF5) nor a torch state dict: it starts "
        f"with {start.hex(' ') or 'nothing'}"
    )


def _filled(file: Path, converted: Converted) -> Network:
    """The network with the weights in place; memory is taken once every shape that the
    file states was compared.
    """
    expected = {
        name: target
        for name, target in outline(file, converted.make).items()
        if not name.endswith(COUNTER)
    }
    weights = {
        name: stored
        for name, stored in converted.weights.items()
        if not name.endswith(COUNTER)
    }
    check_names(file, set(weights), set(expected))
    for name, stored in weights.items():
        shape = tuple(stored.layout(expected[name]).shape)
        if stored.shape != shape or not stored.dtype.startswith(("float", "bfloat")):
            raise ValueError(
                f"{file}: {stored.name} must be floating-point numbers {shape} for "
                f"{name}, "
                f"got {stored.dtype} {stored.shape}"
            )
    network = converted.make()
    numbers = converted.read()
    state = network.state_dict()
    for name, stored in weights.items():
        if numbers[stored.name].is_meta or not numbers[stored.name].isfinite().all():
            raise ValueError(
                f"{file}: {stored.name} holds NaN or infinite values, or none"
            )
        stored.layout(state[name]).copy_(numbers[stored.name])
    for name, tensor in state.items():
        if name.endswith(COUNTER):
            tensor.fill_(TRAINED)
    return network
