"""Model files: whatever is wrong with one, a ValueError names the file and what it
is.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from torchcaps import create_routing
from torchcaps.models import (
    CapsNet,
    ImageClassifier,
    SharedCapsNet,
    create_model,
    load_pretrained,
)
from torchcaps.models.saved import _write_weights
from torchcaps.whole import CONFIG_FILE, WEIGHTS_FILE


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    create_model(
        "capsnet_digits", channels=4, types=2, decoder_hidden=(8,)
    ).save_pretrained(tmp_path)
    return tmp_path


def damage(folder: Path, **arguments: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["network"] = arguments.pop("network", config["network"])
    config["arguments"].update(arguments)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "arguments",
    [
        {"channels": 0},
        {"channels": float("inf")},
        {"channels": float("nan")},
        {"channels": -3},
        {"channels": 10**12},
        {"channels": 10**6, "types": 10**6, "pose_dim": 10**6},
        {"stride": 0},
        {"kernel_size": 0},
        {"classes": 0},
        {"classes": 2.5},
        {"image_shape": [1, 0, 8]},
        {"image_shape": [1, float("inf"), 8]},
        {"image_shape": 3},
        {"decoder_hidden": [0]},
        {"routing": {"name": "dynamic", "steps": 10**9}},
        {"routing": {"name": "dynamic", "steps": float("nan")}},
        {"routing": {"name": "dynamic", "surprise": 1}},
        {"routing": {"name": "unheard of"}},
        {"routing": {"steps": 3}},
        {"routing": "unheard of"},
        {"classes": "ten"},
        {"network": "ResNet"},
        {"network": None},
        {"surprise": 1},
    ],
    ids=str,
)
def test_configurations(saved: Path, arguments: dict) -> None:
    damage(saved, **arguments)
    with pytest.raises(ValueError, match=r"config\.json"):
        load_pretrained(saved)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        "3",
        "{",
        "[" * 99_999,
        "\xff",
        "\xff\xfe\x00",
        '{"network": []}',
        '{"network": "CapsNet"}',
        '{"network": "CapsNet", "arguments": 3}',
        '{"network": "CapsNet", "arguments": {}, "extra": 5}',
    ],
)
def test_what_is_no_configuration(saved: Path, text: str) -> None:
    (saved / "config.json").write_bytes(text.encode("latin1"))
    with pytest.raises(ValueError, match=r"config\.json") as told:
        load_pretrained(saved)
    assert str(told.value).count("config.json") == 1
    assert "ValueError" not in str(told.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state: {**state, "conv.weight": state["conv.weight"] * torch.nan},
            "conv.weight holds numbers that are",
        ),
        (
            lambda state: {**state, "conv.bias": state["conv.bias"] / 0},
            "conv.bias holds numbers that are not finite",
        ),
        (
            lambda state: {**state, "conv.bias": state["conv.bias"].half()},
            "conv.bias must be torch.float32, got .*float16",
        ),
        (
            lambda state: {**state, "conv.bias": state["conv.bias"].long()},
            "conv.bias must be torch.float32, got .*int64",
        ),
        (
            lambda state: {**state, "conv.bias": torch.zeros(5)},
            r"conv.bias must be \(4,\), got \(5,\)",
        ),
        (
            lambda state: {**state, "surprise": torch.zeros(5)},
            "surprise belongs to no layer",
        ),
        (
            lambda state: {
                name: tensor for name, tensor in state.items() if name != "conv.bias"
            },
            "conv.bias is missing",
        ),
        (lambda state: {}, r"class_caps\.\w+ is missing, and"),
    ],
)
def test_weights(saved: Path, change, message: str) -> None:
    path = saved / "model.safetensors"
    save_file(change(load_file(path)), path)
    with pytest.raises(ValueError, match=rf"model\.safetensors.*{message}"):
        load_pretrained(saved)


def test_weights_that_are_cut(saved: Path) -> None:
    path = saved / "model.safetensors"
    content = path.read_bytes()
    for end in (0, 4, 8, 50, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:end])
        with pytest.raises(ValueError, match=re.escape(str(path))):
            load_pretrained(saved)
    for header in (b"\xff" * 8, (10**15).to_bytes(8, "little")):
        path.write_bytes(header + content[8:])
        with pytest.raises(ValueError, match=re.escape(str(path))):
            load_pretrained(saved)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_network_in_half_precision_is_stored_as_it_is(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    network = create_model(
        "capsnet_digits", channels=4, types=2, decoder_hidden=None
    ).to(dtype)
    network.save_pretrained(tmp_path)
    loaded = load_pretrained(tmp_path).state_dict()
    for name, tensor in network.state_dict().items():
        assert loaded[name].dtype == torch.float32
        assert torch.equal(loaded[name], tensor.float())


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("loading", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("saving", [torch.float32, torch.float64])
def test_a_network_has_the_type_of_its_file_whatever_the_default_one(
    saving: torch.dtype, loading: torch.dtype, tmp_path: Path
) -> None:
    with default_dtype(saving):
        network = create_model("capsnet_digits", channels=4, types=2)
        network.save_pretrained(tmp_path)
    with default_dtype(loading):
        loaded = load_pretrained(tmp_path)
        assert torch.get_default_dtype() == loading
        loaded.reset_classifier(3)
        images = torch.rand(2, 1, 8, 8, dtype=saving)
        assert loaded(images).capsules.pose.dtype == saving
    for name, tensor in load_pretrained(tmp_path).state_dict().items():
        assert tensor.dtype == saving
        assert torch.equal(tensor, network.state_dict()[name])


def test_a_network_of_a_default_type_of_16_bits_is_stored_in_it(
    tmp_path: Path,
) -> None:
    with default_dtype(torch.bfloat16):
        network = create_model("capsnet_digits", channels=4, types=2)
        network.save_pretrained(tmp_path)
    loaded = load_pretrained(tmp_path).state_dict()
    for name, tensor in network.state_dict().items():
        assert torch.equal(loaded[name], tensor.float())


def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    network = create_model("capsnet_digits", channels=4, types=2, decoder_hidden=None)
    network.conv.half()
    for wrong in (network, network.double()):
        with pytest.raises(
            ValueError,
            match=r"weights must be torch\.float32 to be saved, got torch\.float",
        ):
            wrong.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_numbers_that_no_file_may_hold_are_not_saved(tmp_path: Path) -> None:
    routing = create_routing("kmeans", sharpness=2e6)
    network = create_model("sharedcapsnet", routing=routing)
    with pytest.raises(ValueError, match=r"routing\.sharpness must be a number up to"):
        network.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def other_width(network: nn.Module) -> nn.Module:
    network.conv = nn.Conv2d(1, 6, 3)
    return network


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")  # of the operators
@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (
            lambda network: torch.ao.quantization.quantize_dynamic(network),
            r"decoder\.\S+_packed_params belongs to no layer, and",
        ),
        (
            lambda network: weight_norm(network.conv) and network,
            r"conv\.\S+original0 belongs to no layer",
        ),
        (other_width, r"conv\.\w+ must be \(4.*\), got \(6.*\)"),
    ],
    ids=["quantized", "weight norm", "another layer"],
)
def test_a_network_with_other_layers_is_not_saved(
    changed: Callable[[nn.Module], nn.Module], problem: str, tmp_path: Path
) -> None:
    network = changed(create_model("capsnet_digits", channels=4, types=2))
    with pytest.raises(ValueError, match=rf"not what its arguments make: {problem}"):
        network.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_network_whose_routings_differ_is_not_saved(tmp_path: Path) -> None:
    """The defect: all layers were loaded with the steps of one of them."""
    arguments = {"vocabulary": 50, "word_dim": 8, "types": 3, "parts": 3, "pose_dim": 4}
    network = create_model("text_encoder", **arguments)
    network.routing.steps = 1
    with pytest.raises(ValueError, match=r"not what its .* must be \w+\(steps="):
        network.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_weights_that_are_not_finite_are_not_saved(saved: Path) -> None:
    network = load_pretrained(saved)
    before = (saved / WEIGHTS_FILE).read_bytes()
    with torch.no_grad():
        network.conv.weight[0] = torch.nan
    with pytest.raises(ValueError, match=r"conv\.weight holds numbers that are not"):
        network.save_pretrained(saved)
    assert (saved / WEIGHTS_FILE).read_bytes() == before


def test_files_of_another_network(saved: Path, tmp_path: Path) -> None:
    for name, arguments in (("capsnet_digits", {"classes": 7}), ("sharedcapsnet", {})):
        create_model(name, **arguments).save_pretrained(tmp_path / name)
        (saved / CONFIG_FILE).write_bytes((tmp_path / name / CONFIG_FILE).read_bytes())
        with pytest.raises(
            ValueError, match=rf"{WEIGHTS_FILE} does not fit .*{CONFIG_FILE}"
        ):
            load_pretrained(saved)


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
def test_missing_file(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{saved} holds no {name}"):
        load_pretrained(saved)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_of_a_saved_network_names_its_folder(saved: Path, name: str) -> None:
    with pytest.raises(
        FileNotFoundError, match=f"{name} is a file.* its folder: {saved}$"
    ):
        load_pretrained(saved / name)


@pytest.mark.parametrize(
    "name", ["config.yaml", "summary.json", "model/model.safetensors", "checkpoints/a"]
)
def test_a_file_of_a_run_names_the_run(saved: Path, tmp_path: Path, name: str) -> None:
    run = tmp_path / "runs" / "one"
    shutil.copytree(saved, run / "model")
    (run / "checkpoints").mkdir()
    for file in ("config.yaml", "summary.json", "checkpoints/a"):
        (run / file).touch()
    with pytest.raises(
        FileNotFoundError, match=f"{name} is a file. Give the folder of the run: {run}$"
    ):
        load_pretrained(run / name)


def test_weights_of_torch_name_what_loads_them(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save({}, path)
    with pytest.raises(
        FileNotFoundError, match=r"weights.pt is a file.*load_state_dict"
    ):
        load_pretrained(path)


def test_missing_folder(saved: Path) -> None:
    for path in (saved / "nowhere", "nowhere", "a/b/c"):
        with pytest.raises(
            FileNotFoundError,
            match=f"{path} is not a folder with a saved network, .*mnist/",
        ):
            load_pretrained(path)
    for name in ("x" * 5000, "x/" + "y" * 5000):
        with pytest.raises(
            FileNotFoundError,
            match=r"x+.* is not a folder .* which has .*mnist/efficient_capsnet",
        ):
            load_pretrained(name)


def test_wrong_class(saved: Path) -> None:
    assert isinstance(CapsNet.from_pretrained(saved), CapsNet)
    assert isinstance(ImageClassifier.from_pretrained(saved), CapsNet)
    with pytest.raises(
        ValueError, match=f"{saved} holds a CapsNet, not a SharedCapsNet"
    ):
        SharedCapsNet.from_pretrained(saved)


def test_weights_are_written_as_the_package_would(tmp_path: Path) -> None:
    state = {
        "b": torch.randn(3, 4),
        "a": torch.arange(3),
        "c": torch.ones(5).bool(),
        "é": torch.zeros(0, 3).bfloat16(),
    }
    _write_weights(state, tmp_path / "own")
    read = load_file(tmp_path / "own")
    assert read.keys() == state.keys()
    assert all(
        torch.equal(read[name], tensor) and read[name].dtype == tensor.dtype
        for name, tensor in state.items()
    )
