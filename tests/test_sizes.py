"""Sizes and steps that are none are refused by name, wherever they are given."""

import inspect
import math
from collections.abc import Iterator
from typing import Any

import pytest

import torchcaps as tc
from tests.small_networks import shipped
from torchcaps.layers import FullyConnectedDecoder, PoseNorm
from torchcaps.models.registry import MODELS
from torchcaps.numerics import (
    Finite,
    NotNegative,
    Positive,
    Share,
    check_series,
    check_size,
    check_sizes,
)
from torchcaps.routing import EMRouting, SpectralRouting
from torchcaps.spec import check, declared

NO_SIZES = (0, -1, math.inf, math.nan, 1.5, True)
LAYERS: dict[type, dict[str, Any]] = {
    tc.CapsLinear: {"in_capsules": 6, "out_capsules": 3, "in_pose": 4, "out_pose": 4},
    tc.CapsConv2d: {
        "in_types": 2,
        "out_types": 2,
        "in_pose": (2, 2),
        "out_pose": (2, 2),
        "kernel_size": 3,
        "stride": 1,
    },
    tc.ClassCaps: {
        "in_types": 2,
        "classes": 2,
        "in_pose": (2, 2),
        "out_pose": (2, 2),
    },
    tc.PrimaryCaps: {
        "in_channels": 2,
        "types": 2,
        "dim": 4,
        "kernel_size": 3,
        "stride": 1,
    },
    PoseNorm: {"types": 2, "pose": (2, 2)},
    FullyConnectedDecoder: {
        "in_features": 4,
        "image_shape": (1, 4, 4),
        "hidden": (4, 4),
    },
}
NETWORKS = sorted(
    {MODELS[name].network for name in shipped()}, key=lambda cls: cls.__name__
)


def wrong(value: Any) -> Iterator[Any]:
    """What is no size, in place of one, or of the first of several."""
    for number in NO_SIZES:
        yield (number, *value[1:]) if isinstance(value, tuple) else number


def is_size(value: Any) -> bool:
    numbers = value if isinstance(value, tuple) else (value,)
    return bool(numbers) and all(
        isinstance(number, int) and not isinstance(number, bool) for number in numbers
    )


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_layers(layer: type) -> None:
    for name, value in LAYERS[layer].items():
        for other in wrong(value):
            with pytest.raises(ValueError, match=rf"^{name} must be"):
                layer(**{**LAYERS[layer], name: other})
    if "init_std" in declared(layer).arguments:
        for other in (math.inf, math.nan, "0.1", True, -1.0):
            with pytest.raises(ValueError, match=r"^init_std must be"):
                layer(**LAYERS[layer], init_std=other)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_layers_name_what_is_missing(layer: type) -> None:
    for name in LAYERS[layer].keys() - {"in_capsules"}:
        with pytest.raises(ValueError, match=rf"^{name} must be"):
            layer(**{**LAYERS[layer], name: None})


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_layers_take_one_number_where_there_is_one(layer: type) -> None:
    names = LAYERS[layer].keys() & {
        "in_capsules",
        "out_capsules",
        "in_types",
        "out_types",
        "groups",
        "classes",
    }
    for name in names | (
        LAYERS[layer].keys() & {"in_channels", "types", "in_features"}
    ):
        with pytest.raises(
            ValueError, match=rf"^{name} must be a whole number, got \(2,\)"
        ):
            layer(**{**LAYERS[layer], name: (2,)})


def test_poses_have_one_axis_or_two() -> None:
    with pytest.raises(
        ValueError,
        match=(
            r"in_pose must be D for vectors or \(M, D\) for matrices, got \(2, 2, "
            r"2\)"
        ),
    ):
        tc.CapsLinear(6, 3, (2, 2, 2), (2, 2, 2))


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_networks(network: type) -> None:
    seen = 0
    for name, parameter in inspect.signature(network).parameters.items():
        if not is_size(parameter.default):
            continue
        seen += 1
        for other in wrong(parameter.default):
            with pytest.raises(ValueError, match=rf"^{name} must be"):
                network(**{name: other})
    assert seen >= 3


def test_what_starts_at_a_whole_number_is_learned() -> None:
    for routing, name in (
        (EMRouting(beta_u=1), "unit_cost"),
        (SpectralRouting(bias=1), "threshold"),
    ):
        assert routing.bind(3, 4).get_parameter(name).eq(1.0).all()


def test_sizes_and_finite_numbers() -> None:
    check_sizes(width=3, widths=[1, 2], nothing=())
    check_sizes(0, padding=0)
    check_size(0, padding=0)
    check_series(0, hidden=())
    check(Finite, -1.0, "scale")
    check(Share, 0, "none")
    check(Share, 1.0, "all")
    with pytest.raises(ValueError, match=r"widths must be at least 1, got \(3, 0\)"):
        check_sizes(widths=(3, 0))
    for wrong in ("3", None, 2.5, True):
        with pytest.raises(
            ValueError, match=f"width must be in whole numbers, got {wrong!r}"
        ):
            check_sizes(width=wrong)
    with pytest.raises(
        ValueError, match="hidden must be a sequence of whole numbers, got 5"
    ):
        check_series(0, hidden=5)
    for other in (None, "x", True, math.nan, math.inf):
        for hint in (Finite, Positive, Share):
            with pytest.raises(ValueError, match="scale must be"):
                check(hint, other, "scale")
    with pytest.raises(ValueError, match="scale must be at least 0, got -1"):
        check(NotNegative, -1, "scale")
    for other in (0, -1.0):
        with pytest.raises(ValueError, match="scale must be above 0"):
            check(Positive, other, "scale")
    for other in (-0.1, 1.1):
        with pytest.raises(ValueError, match=r"scale must be a share in \[0, 1\]"):
            check(Share, other, "scale")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "attentioncapsnet",
            {"channels": (8,)},
            r"channels must be 2 whole numbers, got \(8,\)",
        ),
        (
            "attentioncapsnet",
            {"pose": (4, 4, 4)},
            r"pose must be 2 whole numbers, got \(4, 4, 4\)",
        ),
        ("heinsen_smallnorb", {"pose": (4,)}, "pose must be 2"),
        ("matrixcapsnet_small", {"pose": ()}, "pose must be 2"),
        ("matrixcapsnet_cnn", {"channels": (8, 8, 8)}, "channels must be 2"),
        ("vbcapsnet", {"pose": 4}, "pose must be 2 whole numbers, got 4"),
        (
            "scene_cnn",
            {"channels": ()},
            r"channels must be one or more whole numbers, got \(\)",
        ),
        ("text_capsnet", {"widths": ()}, "widths must be one or more"),
        ("text_cnn", {"widths": 3}, "widths must be one or more whole numbers, got 3"),
        (
            "capsnet",
            {"image_shape": 28},
            r"image_shape must be \(channels, height, width\), got 28",
        ),
        ("efficient_capsnet", {"slope": math.nan}, "slope must be finite"),
        ("capsnet", {"pose_noise": math.inf}, "pose_noise must be finite"),
        ("capsnet", {"classes": None}, "classes must be a whole number, got None"),
        ("capsnet", {"types": None}, "types must be a whole number, got None"),
        (
            "matrixcapsnet_small",
            {"decoder_hidden": 5},
            "decoder_hidden must be a sequence of whole numbers, got 5",
        ),
        (
            "efficient_capsnet",
            {"primary_stride": None},
            "primary_stride must be a whole number, got None",
        ),
        (
            "efficient_capsnet",
            {"channels": 8},
            "channels must be one or more whole numbers, got 8",
        ),
        (
            "deepcaps",
            {"decoder_channels": 8},
            "decoder_channels must be a sequence of whole numbers, got 8",
        ),
        ("deepcaps", {"types": (4, 4)}, r"types must be a whole number, got \(4, 4\)"),
    ],
)
def test_arguments_of_networks_are_named(
    name: str, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tc.create_model(name, **arguments)
