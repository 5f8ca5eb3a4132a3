"""Weights that others trained: files in their layouts, and files that are something
else.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

from torchcaps import create_model, load_pretrained
from torchcaps.models import HeinsenCapsNet, Network
from torchcaps_lab.cli import main
from torchcaps_lab.conversion import convert

Arrays = dict[str, np.ndarray]


def keras(network: Network) -> tuple[Arrays, Arrays]:
    """The arrays of Efficient-CapsNet and of its decoder as Keras names and lays them
    out, running statistics last.
    """
    state = network.state_dict()
    arrays: Arrays = {}
    running: Arrays = {}
    kind = (
        "batch_normalization" if network.norm == "batch" else "instance_normalization"
    )
    for number, place in enumerate((*range(0, 12, 3), None)):
        name = "primary_caps.conv" if place is None else f"features.{place}"
        arrays[f"conv2d_{number}/kernel:0"] = (
            state[f"{name}.weight"].permute(2, 3, 1, 0).numpy()
        )
        arrays[f"conv2d_{number}/bias:0"] = state[f"{name}.bias"].numpy()
        if place is not None:
            norm = f"features.{place + 2}"
            arrays[f"{kind}_{number}/gamma:0"] = state[f"{norm}.weight"].numpy()
            arrays[f"{kind}_{number}/beta:0"] = state[f"{norm}.bias"].numpy()
            if network.norm == "batch":
                running[f"{kind}_{number}/moving_mean:0"] = state[
                    f"{norm}.running_mean"
                ].numpy()
                running[f"{kind}_{number}/moving_variance:0"] = state[
                    f"{norm}.running_var"
                ].numpy()
    arrays["fc_caps/W:0"] = state["class_caps.weight"].transpose(0, 1).numpy()
    arrays["fc_caps/b:0"] = state["class_caps.routing.offset"].T[..., None].numpy()
    decoder: Arrays = {}
    layers = [
        name for name in state if name.startswith("decoder") and name.endswith("weight")
    ]
    for number, name in enumerate(
        sorted(layers, key=lambda name: "linear" not in name)
    ):
        weight = state[name]
        kernel = weight.T if weight.ndim == 2 else weight.permute(2, 3, 1, 0)
        decoder[f"layer_{number}/kernel:0"] = kernel.numpy()
        decoder[f"layer_{number}/bias:0"] = state[
            name.replace("weight", "bias")
        ].numpy()
    return {**arrays, **running}, decoder


def write_keras(path: Path, *models: Arrays) -> Path:
    """As `save_weights` of Keras 2 does."""
    with h5py.File(path, "w") as file:
        names = [f"model_{number}" for number in range(len(models))]
        file.attrs["layer_names"] = np.array(
            [b"input_1", *(name.encode() for name in names)]
        )
        file.create_group("input_1").attrs["weight_names"] = np.array([])
        for name, arrays in zip(names, models, strict=True):
            group = file.create_group(name)
            group.attrs["weight_names"] = np.array([array.encode() for array in arrays])
            for array, values in arrays.items():
                group.create_dataset(array, data=values)
    return path


def random_efficient(
    name: str = "efficient_capsnet_smallnorb", **arguments: Any
) -> Network:
    torch.manual_seed(0)
    network = create_model(name, **arguments)
    for tensor in network.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(0.01, 0.3)
    return network.eval()


HEINSEN = {"convolve": "features", "compute_a": "activations", "compute_mu": "poses"}


def random_heinsen(classes: int = 5) -> tuple[Network, dict[str, Tensor]]:
    """A network and its weights as Heinsen's code saves them."""
    torch.manual_seed(0)
    network = create_model("heinsen_smallnorb", classes=classes).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    state, theirs = network.state_dict(), {}
    for name, own in HEINSEN.items():
        theirs |= {
            key.replace(own, name, 1): tensor
            for key, tensor in state.items()
            if key.startswith(f"{own}.")
        }
    for number, layer in enumerate(("part_caps", "class_caps")):
        theirs[f"routings.{number}.CONST_one"] = torch.tensor(1.0)
        theirs[f"routings.{number}.W"] = state[f"{layer}.weight"]
        theirs[f"routings.{number}.B"] = state[f"{layer}.routing.bias"].unflatten(
            -1, (4, 4)
        )
        theirs[f"routings.{number}.beta_use"] = state[f"{layer}.routing.benefit"]
        theirs[f"routings.{number}.beta_ign"] = state[f"{layer}.routing.cost"]
    return network, theirs


def expect_the_same(network: Network, folder: Path) -> None:
    loaded = load_pretrained(folder)
    assert loaded.config() == network.config()
    images = torch.rand(
        2, *network.image_shape, generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        actual = loaded(images)
        expected = network(images)
    assert torch.equal(actual.activation, expected.activation)
    assert torch.equal(actual.capsules.pose, expected.capsules.pose)
    if expected.reconstruction is not None:
        assert torch.equal(actual.reconstruction, expected.reconstruction)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("efficient_capsnet", {}),
        (
            "efficient_capsnet",
            {"image_shape": (3, 28, 28), "classes": 4, "decoder_hidden": None},
        ),
        ("efficient_capsnet_smallnorb", {}),
        ("efficient_capsnet_multimnist", {"decoder_hidden": None}),
    ],
    ids=["mnist", "no-decoder", "smallnorb", "multimnist"],
)
def test_efficient_capsnet(
    name: str, arguments: dict[str, Any], tmp_path: Path
) -> None:
    network = random_efficient(name, **arguments)
    body, decoder = keras(network)
    file = write_keras(
        tmp_path / "weights.h5", *([body, decoder] if decoder else [body])
    )
    converted = convert(file, tmp_path / "made" / "network")
    assert not converted.training
    expect_the_same(network, tmp_path / "made" / "network")
    assert converted.extra["source"] == "weights.h5"
    assert ("reader" in converted.extra) == name.endswith("smallnorb")


def test_heinsen(tmp_path: Path) -> None:
    network, theirs = random_heinsen()
    torch.save(theirs, tmp_path / "weights.pt")
    converted = convert(tmp_path / "weights.pt", tmp_path / "network")
    assert isinstance(converted, HeinsenCapsNet)
    expect_the_same(network, tmp_path / "network")
    assert load_pretrained(tmp_path / "network").extra["classes"][1] == "human"


class Evil:
    """A pickle that writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def changed(change: Callable[[Arrays], None]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        body, decoder = keras(random_efficient())
        body = {name: array.copy() for name, array in body.items()}
        change(body)
        return write_keras(folder / "x.h5", body, decoder)

    return make


def other(
    change: Callable[[dict[str, Tensor]], Any], zipped: bool = True
) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        theirs = {name: tensor.clone() for name, tensor in random_heinsen()[1].items()}
        result = change(theirs)
        complete = theirs if result is None else result
        torch.save(complete, folder / "x.pt", _use_new_zipfile_serialization=zipped)
        return folder / "x.pt"

    return make


UNTOUCHED = changed(lambda body: None)
THE_SAME = other(lambda state: None)


def cut(make: Callable[[Path], Path], share: float) -> Callable[[Path], Path]:
    def shorter(folder: Path) -> Path:
        path = make(folder)
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])
        return path

    return shorter


def content(data: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "x.h5").write_bytes(data)
        return folder / "x.h5"

    return make


def evil_pickle(folder: Path) -> Path:
    (folder / "x.pt").write_bytes(pickle.dumps(Evil(folder / "written"), protocol=2))
    return folder / "x.pt"


def linked(name: str) -> Callable[[Path], Path]:
    """A tensor, or a group, that lies in another file."""

    def make(folder: Path) -> Path:
        path = UNTOUCHED(folder)
        path.rename(folder / "other.h5")
        with h5py.File(UNTOUCHED(folder), "a") as file:
            del file[name]
            file[name] = h5py.ExternalLink("other.h5", name)
        return path

    return make


def soft_linked(folder: Path) -> Path:
    path = UNTOUCHED(folder)
    with h5py.File(path, "a") as file:
        file.move("model_0", "elsewhere")
        file["model_0"] = h5py.SoftLink("/elsewhere")
    return path


def unwritten(shape: tuple[int, ...], **options: Any) -> Callable[[Path], Path]:
    """Transforms of which only the size was written."""

    def make(folder: Path) -> Path:
        path = UNTOUCHED(folder)
        with h5py.File(path, "a") as file:
            del file["model_0/fc_caps/W:0"]
            file.create_dataset("model_0/fc_caps/W:0", shape, np.float32, **options)
        return path

    return make


def lying(folder: Path) -> Path:
    """In the layout of 2019, a size that is larger than the file, in all places where
    it is stated.
    """
    path = other(
        lambda state: state.update({"compute_a.0.bias": torch.zeros(77_777)}),
        zipped=False,
    )(folder)
    true, false = (
        b"J" + number.to_bytes(4, "little") for number in (77_777, 2**31 - 1)
    )
    content = path.read_bytes()
    assert content.count(true) == 2
    path.write_bytes(content.replace(true, false))
    return path


def compressed(folder: Path) -> Path:
    path = THE_SAME(folder)
    with ZipFile(path) as stored:
        parts = {name: stored.read(name) for name in stored.namelist()}
    with ZipFile(path, "w", ZIP_DEFLATED) as smaller:
        for name, part in parts.items():
            smaller.writestr(
                name, part + bytes(10**7) if name.endswith("/data/0") else part
            )
    return path


def sparse(
    change: Callable[[Tensor], Tensor], zipped: bool = True
) -> Callable[[Path], Path]:
    name = "routings.0.beta_use"
    return other(
        lambda state: state.update({name: change(state[name].reshape(1, -1))}), zipped
    )


BAD = {
    "empty": (
        content(b""),
        "neither Keras weights .* nor a torch state dict: it starts with nothing",
    ),
    "text": (content(b"weights, weights"), "it starts with 77 65"),
    "cut at a tenth": (cut(UNTOUCHED, 0.1), "is damaged"),
    "cut near the end": (cut(UNTOUCHED, 0.98), "is damaged"),
    "only the signature": (content(b"\x89HDF\r\n\x1a\n" + bytes(600)), "is damaged"),
    "other kernels": (
        changed(
            lambda body: body.update(
                {"conv2d_0/kernel:0": np.zeros((3, 3, 2, 32), np.float32)}
            )
        ),
        r"not a published form .* got \(3, 8\)",
    ),
    "other widths": (
        changed(
            lambda body: body.update(
                {"conv2d_1/kernel:0": np.zeros((3, 3, 32, 60), np.float32)}
            )
        ),
        r"model_0/conv2d_1/kernel:0 .* \(3, 3, 32, 64\) for features.3.weight, got "
        r"float32 \(3, 3, 32, 60\)",
    ),
    "one layer less": (
        changed(
            lambda body: [body.pop(f"conv2d_2/{name}:0") for name in ("kernel", "bias")]
        ),
        "got 4, 4",
    ),
    "no bias": (
        changed(lambda body: body.pop("conv2d_2/bias:0")),
        "it lacks features.6.bias",
    ),
    "one more": (
        changed(lambda body: body.update({"fc_caps/c:0": np.zeros(3, np.float32)})),
        "besides, class_caps.c",
    ),
    "no capsules": (
        changed(lambda body: [body.pop(f"fc_caps/{name}:0") for name in "Wb"]),
        "got 0 and 2",
    ),
    "NaN": (
        changed(lambda body: body["conv2d_4/bias:0"].fill(np.nan)),
        "conv2d_4/bias:0 holds NaN or infinite values",
    ),
    "integers": (
        changed(lambda body: body.update({"fc_caps/b:0": np.zeros((5, 16, 1), int)})),
        "int64 .*, no weights",
    ),
    "a second prior": (
        changed(
            lambda body: body.update({"fc_caps/b:0": np.zeros((5, 16, 2), np.float32)})
        ),
        r"fc_caps/b:0 must be .* \(5, 16, 1\) for class_caps.routing.offset, got "
        r"float32 \(5, 16, 2\)",
    ),
    "a link": (linked("model_0/fc_caps/W:0"), "is not there, or elsewhere"),
    "a group that is a link": (linked("model_0"), "is not there, or elsewhere"),
    "a group that is a soft link": (soft_linked, "is not there, or elsewhere"),
    "more than there is": (
        unwritten((10**6, 16, 8, 16)),
        "does not hold so many numbers",
    ),
    "more than there is, chunked": (
        unwritten((10**6, 16, 8, 16), chunks=(1, 16, 8, 16)),
        "not hold so many numbers",
    ),
    "code": (
        evil_pickle,
        "holds .*; expected tensors by name, and nothing was executed",
    ),
    "an unfinished pickle": (content(b"\x80\x02("), "nothing was executed|is damaged"),
    "expanded": (
        other(
            lambda state: state.update(
                {"routings.1.W": torch.zeros(1).expand(10**6, 10**5, 4, 4)}
            )
        ),
        "routings.1.W states .*, and the file does not hold so many numbers",
    ),
    "expanded, in a file of 2019": (
        other(
            lambda state: state.update(
                {"routings.1.W": torch.zeros(1).expand(10**6, 10**5, 4, 4)}
            ),
            zipped=False,
        ),
        "routings.1.W states .*, and the file does not hold so many numbers",
    ),
    "a size that is too large": (lying, "does not hold so many numbers"),
    "compressed": (compressed, "states .* bytes, and has"),
    "sparse": (
        sparse(torch.Tensor.to_sparse),
        "must hold dense tensors|tensors that are not dense",
    ),
    "sparse, in a file of 2019": (
        sparse(torch.Tensor.to_sparse, zipped=False),
        "must hold dense tensors|not dense",
    ),
    "meta": (
        other(
            lambda state: state.update(
                {"compute_a.1.bias": state["compute_a.1.bias"].to("meta")}
            )
        ),
        "infinite values, or none",
    ),
    "code in a state dict": (
        other(lambda state: state.update(x=Evil(Path("written")))),
        "nothing was executed",
    ),
    "cut state dict": (cut(THE_SAME, 0.5), "is damaged"),
    "a list": (
        other(lambda state: [1, 2]),
        "must hold a state dict, tensors by name, got list",
    ),
    "numbers": (other(lambda state: {"routings.1.W": 3}), "must hold a state dict"),
    "another network": (
        other(lambda state: {"fc.weight": torch.zeros(3)}),
        "not Heinsen's network .*fc.weight",
    ),
    "one tensor less": (
        other(lambda state: state.__delitem__("routings.0.B")),
        "lacks part_caps.routing.bias",
    ),
    "one tensor more": (
        other(lambda state: state.update(y=torch.zeros(1))),
        "besides, y",
    ),
    "another shape": (
        other(
            lambda state: state.update({"convolve.1.weight": torch.zeros(64, 3, 3, 3)})
        ),
        r"convolve.1.weight must be .* for features.1.weight, got float32 \(64, 3, 3, "
        r"3\)",
    ),
    "infinite": (
        other(lambda state: state["compute_a.1.bias"].__setitem__(0, torch.inf)),
        "NaN or infinite values",
    ),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_bad_files(
    make: Callable[[Path], Path],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A clear error; nothing in the file is executed, and nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    file = make(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match=message) as raised:
        convert(file, tmp_path / "network")
    assert "weights_only" not in str(raised.value)  # torch's advice is to execute it
    assert sorted(tmp_path.iterdir()) == before


def test_folders_that_are_taken(tmp_path: Path) -> None:
    torch.save(random_heinsen()[1], tmp_path / "weights.pt")
    with pytest.raises(FileExistsError, match="is not empty"):
        convert(tmp_path / "weights.pt", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pt is not a file"):
        convert(tmp_path / "nowhere.pt", tmp_path / "network")


def test_an_interruption_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    torch.save(random_heinsen()[1], tmp_path / "weights.pt")
    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(OSError, match="no space left"):
        convert(tmp_path / "weights.pt", tmp_path / "network")
    assert [path.name for path in tmp_path.iterdir()] == ["weights.pt"]


def test_without_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = UNTOUCHED(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"pip install 'torchcaps-lab\[convert\]'"
    ):
        convert(file, tmp_path / "network")


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(random_heinsen()[1], tmp_path / "weights.pt")
    assert (
        main(
            ["convert", str(tmp_path / "weights.pt"), "--to", str(tmp_path / "network")]
        )
        == 0
    )
    assert (
        capsys.readouterr().out
        == f"HeinsenCapsNet, 271,688 parameters: {tmp_path / 'network'}\n"
    )
    assert (
        main(
            ["convert", str(tmp_path / "weights.pt"), "--to", str(tmp_path / "network")]
        )
        == 1
    )
    assert "torchcaps convert: error: " in capsys.readouterr().err
