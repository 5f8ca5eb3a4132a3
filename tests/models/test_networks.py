"""Networks over other things than images, and how any network is saved and found
again.
"""

import importlib.util
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from inspect import getattr_static
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from torchcaps import (
    CapsConv1d,
    CapsConv3d,
    CapsHead,
    Capsules,
    ClassCaps,
    PrimaryCaps1d,
    PrimaryCaps3d,
    create_model,
    create_routing,
    load_pretrained,
    margin_loss,
)
from torchcaps.capsules import KeepsProperties
from torchcaps.models import (
    AttentionCapsNet,
    CapsNet,
    Network,
    SlotAutoencoder,
    SlotsOnBackbone,
    describe_models,
    register_model,
)
from torchcaps.models.registry import MODELS
from torchcaps.models.saved import NETWORKS
from torchcaps.ops import Votes
from torchcaps.routing import EMRouting, Routed, Routing
from torchcaps.routing.base import ROUTINGS
from torchcaps.spec import declared
from torchcaps.squashing import length
from torchcaps.testing import check_model
from torchcaps.whole import CONFIG_FILE
from torchcaps_lab import kinds


class TinyText(Network):
    """Words, convolutional capsules over them, classes."""

    def __init__(
        self, words: int, classes: int, width: int = 6, routing: Routing | None = None
    ) -> None:
        super().__init__()
        self.words = words
        self.classes = classes
        self.width = width
        self.embedding = nn.Embedding(words, width)
        self.primary_caps = PrimaryCaps1d(
            width, 3, 4, kernel_size=3, stride=1, padding=1
        )
        self.conv_caps = CapsConv1d(
            3, 3, 4, 4, 3, stride=2, routing=routing, competition="grid"
        )
        self.class_caps = ClassCaps(
            3, classes, 4, 4, axes=1, routing=EMRouting.preset("standardised")
        )

    @property
    def routing(self) -> Routing:
        return self.conv_caps.routing

    def forward(self, words: Tensor) -> Capsules:
        return self.class_caps(
            self.conv_caps(self.primary_caps(self.embedding(words).mT))
        )


class TinyVolume(Network):
    """Voxels, convolutional capsules over them, classes."""

    def __init__(self, classes: int = 3, pose: tuple[int, int] = (2, 2)) -> None:
        super().__init__()
        self.classes, self.pose = classes, pose
        self.primary_caps = PrimaryCaps3d(1, 2, pose, 3, 2, activation="learned")
        self.conv_caps = CapsConv3d(
            2, 3, pose, pose, 2, routing=EMRouting.preset("standardised")
        )
        self.class_caps = ClassCaps(
            3, classes, pose, pose, axes=3, routing=EMRouting.preset("standardised")
        )

    def forward(self, volumes: Tensor) -> Capsules:
        return self.class_caps(self.conv_caps(self.primary_caps(volumes)))


def words(*shape: int) -> Tensor:
    return torch.randint(11, shape, generator=torch.Generator().manual_seed(0))


def voxels(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "batches"),
    [
        (
            lambda: TinyText(11, 4, routing=create_routing("dynamic", steps=2)),
            [words(3, 9), words(3, 14)],
        ),
        pytest.param(
            TinyVolume,
            [voxels(3, 1, 7, 8, 9), voxels(3, 1, 9, 7, 12)],
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["text", "volume"],
)
def test_network_over_something_else(
    make: Any, batches: list[Tensor], tmp_path: Path
) -> None:
    """It learns, takes any size, and is saved and loaded."""
    torch.manual_seed(0)
    network = make()
    check_model(network, lambda batch: batches[0][:batch])
    optimizer = torch.optim.Adam(network.parameters(), 0.03)
    labels = torch.tensor([0, 1, 2])
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = margin_loss(network(batches[0]).activation, labels)
        loss.backward()
        assert all(
            parameter.grad.isfinite().all() for parameter in network.parameters()
        )
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    network.eval().save_pretrained(tmp_path, labels=["a", "b"])
    loaded = type(network).from_pretrained(tmp_path)
    assert not loaded.training
    assert loaded.extra == {"labels": ["a", "b"]}
    assert loaded.config() == network.config()
    for batch in batches:
        torch.testing.assert_close(loaded(batch), network(batch), rtol=0, atol=0)


class Holding(Network):
    def __init__(
        self, value: Any = None, attention: Any = None, routing: Any = None
    ) -> None:
        super().__init__()
        self.value = value
        self.attention = attention
        self.routing = routing

    def forward(self) -> None:
        """Nothing."""


class Layered(Network):
    def __init__(
        self,
        layers: Sequence[Routing | None],
        named: dict[str, Routing],
        routing: Routing | None = None,
    ) -> None:
        super().__init__()
        self.layers = layers
        self.named = named
        self.routing = routing

    def forward(self) -> None:
        """Nothing."""


class Bare(Network):
    def forward(self) -> None:
        """Nothing."""


class Passing(TinyVolume):
    def __init__(self, *, depth: int = 1, **options: Any) -> None:
        super().__init__(classes=7, **options)
        self.depth = depth


class Gathering(Network):
    def __init__(self, first: int, *rest: int) -> None:
        super().__init__()
        self.first = first

    def forward(self) -> None:
        """Nothing."""


class Forgetful(Network):
    def __init__(self, depth: int = 2) -> None:
        super().__init__()

    def forward(self) -> None:
        """Nothing."""


def round_trip(network: Network) -> Any:
    return type(network).from_config(json.loads(json.dumps(network.config())))


class TestConfiguration:
    @pytest.mark.parametrize(
        "value",
        [
            None,
            True,
            2.5,
            "name",
            (),
            (1, (2, None), "c"),
            {},
            {"name": "dynamic", "steps": 3},
            {"a": {"b": (1, {"name": None}), "c": {}}, "d": ({"e": 2.0},)},
        ],
        ids=str,
    )
    def test_round_trip(self, value: Any) -> None:
        again = round_trip(Holding(value, attention=value)).value
        assert again == value
        assert type(again) is type(value)

    def test_routings_wherever_a_type_hint_says_so(self) -> None:
        em = create_routing("em", steps=2)
        dynamic = create_routing("dynamic", bias=True)
        again = round_trip(Layered([em, None, dynamic], {"top": dynamic}, routing=em))
        routings = (*again.layers, again.named["top"], again.routing)
        for routing, expected in zip(
            routings, (em, None, dynamic, dynamic, em), strict=True
        ):
            assert type(routing) is type(expected)
            assert expected is None or routing.config() == expected.config()

    def test_a_routing_by_name(self) -> None:
        """Where no type hint says what it is, a routing is an argument that is called
        so.
        """
        assert (
            type(Holding.from_config({"routing": {"name": "em", "steps": 2}}).routing)
            is ROUTINGS["em"]
        )
        assert Holding.from_config({"attention": {"name": "em"}}).attention == {
            "name": "em"
        }

    def test_nothing_to_configure(self) -> None:
        assert Bare().config() == {}
        assert isinstance(round_trip(Bare()), Bare)

    def test_arguments_that_are_passed_on(self) -> None:
        network = Passing(depth=2, pose=(2, 3))
        assert network.config() == {"depth": 2, "pose": [2, 3]}
        assert (round_trip(network).pose, round_trip(network).classes) == ((2, 3), 7)
        assert Passing().config() == {"depth": 1}

    def test_arguments_without_names(self) -> None:
        assert Gathering(1).config() == {"first": 1}
        with pytest.raises(
            ValueError, match=r"Gathering took arguments without names, \(2, 3\)"
        ):
            Gathering(1, 2, 3).config()

    def test_an_argument_that_is_not_kept_is_told_before_the_training(self) -> None:
        with pytest.raises(
            ValueError, match="Forgetful must keep its argument 'depth' as an attribute"
        ):
            Forgetful.from_config({})
        with pytest.raises(
            ValueError, match="Forgetful must keep its argument 'depth' as an attribute"
        ):
            Forgetful(3).config()

    def test_numbers_of_numpy_are_saved_as_those_of_python(
        self, tmp_path: Path
    ) -> None:
        labels = np.array([0, 1, 2])
        create_model("capsnet_digits", classes=labels.max() + 1).save_pretrained(
            tmp_path
        )
        assert load_pretrained(tmp_path).classes == 3

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (
                torch.zeros(2),
                "value must be a name, a number, .* to be saved; got tensor",
            ),
            (len, "value must be .* got <built-in function len>"),
            ({1: "a"}, "value must have names for its values, got 1"),
            (
                (1, [Path()]),
                r"value must say by its type hint what it takes, .* got \(1, \[.*Path",
            ),
            (
                {"a": create_routing("em")},
                "value must say by its type hint what it takes, .* EMRouting",
            ),
        ],
        ids=["tensor", "function", "keys", "nested", "routing"],
    )
    def test_what_cannot_be_saved(
        self, value: Any, message: str, tmp_path: Path
    ) -> None:
        with pytest.raises(ValueError, match=f"(?s){message}"):
            Holding(value).save_pretrained(tmp_path / "net")
        assert not (tmp_path / "net").exists()


def load_module(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


MODULE = """
from torch import nn
from torchcaps.models import Network, register_model
from torchcaps.routing import DynamicRouting, register_routing

@register_routing("strange")
class Strange(DynamicRouting):
    pass

@register_model("stranger", "nowhere")
class Stranger(Network):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.width = width
        self.layer = nn.Linear(2, width)

    def forward(self, x):
        return self.layer(x)
"""


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Any]:
    registries = NETWORKS, MODELS, ROUTINGS
    before = [dict(registry) for registry in registries]
    path = tmp_path / "my_networks.py"
    path.write_text(MODULE)
    yield load_module(path, "my_networks")
    for registry, content in zip(registries, before, strict=True):  # as they were
        registry.clear()
        registry.update(content)
    for name in ("my_networks", "other_networks", "same_file"):
        sys.modules.pop(name, None)


class TestNames:
    def test_another_class_of_the_same_name(
        self, stranger: Any, tmp_path: Path
    ) -> None:
        second_file = tmp_path / "other.py"
        second_file.write_text(MODULE.replace('"strange"', '"other"'))
        with pytest.raises(
            ValueError,
            match=(
                r"'Stranger' exists already, my_networks\.Stranger: "
                r".*other_networks\.Str"
            ),
        ):
            load_module(second_file, "other_networks")
        assert NETWORKS["Stranger"] is stranger.Stranger
        with pytest.raises(ValueError, match="'CapsNet' exists already"):
            type("CapsNet", (Network,), {})
        assert NETWORKS["CapsNet"] is CapsNet

    @pytest.mark.parametrize("name", ["my_networks", "same_file"])
    def test_the_same_class_once_more(
        self, stranger: Any, name: str, tmp_path: Path
    ) -> None:
        """A module that is reloaded, or imported from its path under another name."""
        again = load_module(tmp_path / "my_networks.py", name)
        assert again.Stranger is not stranger.Stranger
        assert NETWORKS["Stranger"] is again.Stranger
        assert MODELS["stranger"].network is again.Stranger
        assert ROUTINGS["strange"] is again.Strange

    def test_two_configurations_of_one_name(self, stranger: Any) -> None:
        for network in (stranger.Stranger, CapsNet):
            with pytest.raises(
                ValueError, match="a model named 'stranger' exists already: a Stranger"
            ):
                register_model("stranger", "nowhere", width=4)(network)

    @pytest.mark.thorough
    def test_a_cell_that_is_run_again(self) -> None:
        """In a notebook, where modules have no files."""
        cell = MODULE.replace("Stranger", "Cell").replace('"stranger"', '"cell"')
        code = f"""
from torchcaps.models.saved import NETWORKS
exec({cell!r}, globals())
first = Cell
exec({cell!r}, globals())
print(NETWORKS["Cell"] is Cell, Cell is first)
"""
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert result.stdout.split() == ["True", "False"], result.stderr

    def test_all_weights_of_described_networks_are_counted_though_none_is_drawn(
        self,
    ) -> None:
        names = [
            "byerly",
            "capsnet_small",
            "efficient_capsnet_smallnorb",
            "matrixcapsnet_small",
            "text_encoder",
        ]
        rows = describe_models(names)
        networks = [create_model(name) for name in names]
        assert [row["parameters"] for row in rows] == [
            sum(parameter.numel() for parameter in net.parameters()) for net in networks
        ]

    def test_models_of_other_networks(self, stranger: Any) -> None:
        assert create_model("stranger", width=5).layer.out_features == 5
        (row,) = describe_models(["stranger"])
        assert (row["network"], row["parameters"]) == ("Stranger", 9)


class TestNotImported:
    def test_network(
        self, stranger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stranger.Stranger().save_pretrained(tmp_path / "net")
        monkeypatch.delitem(NETWORKS, "Stranger")
        with pytest.raises(
            ValueError,
            match=(
                r"config\.json: network 'Stranger' is not known; known are "
                r".*CapsNet.*\n  Import the module that "
                r"defines it \(my_networks\) first, on the command line with "
                r"--import my_networks"
            ),
        ) as caught:
            load_pretrained(tmp_path / "net")
        assert "damaged" not in str(caught.value)
        config = json.loads((tmp_path / "net" / CONFIG_FILE).read_text())
        del config["imports"]  # as files of today are
        (tmp_path / "net" / CONFIG_FILE).write_text(json.dumps(config))
        with pytest.raises(
            ValueError,
            match=(
                r"(?s)'Stranger' is not known.* Import the module .*--import "
                r"my_module"
            ),
        ):
            load_pretrained(tmp_path / "net")

    def test_routing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Mine(Routing):
            def route(self, votes: Votes, activation: Tensor | None) -> Routed:
                pose = votes.moments(weights=activation).mean
                return Routed(pose, length(pose), votes, None)

        monkeypatch.setitem(ROUTINGS, "mine", Mine)
        create_model("capsnet_digits", routing=Mine()).save_pretrained(tmp_path)
        assert isinstance(load_pretrained(tmp_path).routing, Mine)
        monkeypatch.delitem(ROUTINGS, "mine")
        with pytest.raises(
            ValueError,
            match=(
                rf"(?s)routing must be the name of .*'mine'.*\({__name__}\).*--import "
                rf"{__name__}"
            ),
        ):
            load_pretrained(tmp_path)
        with pytest.raises(
            ValueError, match=r"(?s)routing must be the name of .* got 'mine'.*dynamic"
        ):
            create_model("capsnet_digits", routing={"name": "mine"})

    def test_own_networks_need_no_import(self, tmp_path: Path) -> None:
        create_model("capsnet_digits").save_pretrained(tmp_path)
        assert "imports" not in json.loads((tmp_path / CONFIG_FILE).read_text())


def below(cls: type) -> Iterator[type]:
    for derived in cls.__subclasses__():
        yield derived
        yield from below(derived)


def test_a_routing_is_set_at_its_layer() -> None:
    """It was registered beside the one in use, and changed nothing."""
    for module in (create_model("capsnet_digits"), CapsHead(3)):
        with pytest.raises(AttributeError, match=r"class_caps\.routing = "):
            module.routing = create_routing("kmeans")
    kinds.load()
    for cls in below(KeepsProperties):
        public = cls.__module__.startswith("torchcaps") and cls.__name__[0] != "_"
        if public and "routing" in declared(cls).arguments:
            written = map(
                inspect.getsource, cls.__mro__[: cls.__mro__.index(nn.Module)]
            )
            is_property = isinstance(getattr_static(cls, "routing", None), property)
            assert is_property or any("self.routing = " in text for text in written)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (AttentionCapsNet, "attention"),
        (SlotAutoencoder, "slot_mixture"),
        (SlotsOnBackbone, "slot_mixture"),
    ],
)
def test_a_routing_is_given_by_name(kind: type, name: str) -> None:
    assert kind(routing=name).config()["routing"]["name"] == name
    with pytest.raises(TypeError, match=r"routing must be a Routing, .* got 5"):
        kind(routing=5)
