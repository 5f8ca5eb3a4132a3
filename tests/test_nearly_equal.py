"""Where numbers are divided by their own differences, differences of rounding count as
none.
"""

import pytest
import torch

import torchcaps as tc
from torchcaps.layers.initial import preserve_deviation
from torchcaps.mixture import GaussianMixture
from torchcaps.numerics import resolution
from torchcaps_lab.evaluate.verdict import _explained
from torchcaps_lab.kinds.objects.measures import adjusted_rand_index
from torchcaps_lab.kinds.series.series_set import Scale


def around(value: float, *shape: int) -> torch.Tensor:
    """A number, and its neighbours in float32."""
    noise = torch.randint(-1, 2, shape, generator=torch.Generator().manual_seed(0))
    return value * (1 + noise * torch.finfo(torch.float32).eps / 2)


def test_resolution() -> None:
    size = torch.tensor([0.0, -2.0])
    least = resolution(size)
    assert least[0] == 0
    assert 2 + least[1] / 64 > 2
    assert not resolution(size.requires_grad_()).requires_grad


@pytest.mark.parametrize("own", [True, False])
def test_a_constant_series_is_flat(own: bool) -> None:
    series = around(1e6, 1, 50)
    scale = Scale() if own else Scale.of([series])
    assert not scale(series).any()
    changing = series + torch.linspace(-1, 1, 50)
    scale = Scale() if own else Scale.of([changing])
    assert scale(changing).abs().max() > 1


def test_a_flat_picture_is_not_stretched() -> None:
    kornia = pytest.importorskip("kornia")
    from torchcaps_lab.data.transforms.strong import OPERATIONS

    flat = around(0.4, 1, 3, 8, 8)
    stretched = OPERATIONS["autocontrast"](kornia, flat, torch.ones(1))
    torch.testing.assert_close(stretched, flat)


@pytest.mark.parametrize("size", [64, 90, 127, 128, 211])
def test_one_object_in_one_slot_is_matched(size: int) -> None:
    whole = torch.ones(1, size, size, dtype=torch.int64)
    assert adjusted_rand_index(whole, whole) == 1
    other = whole.clone()
    other[0, 0, 0] = 0
    assert adjusted_rand_index(whole, other) == 0


def test_nothing_is_explained_of_equal_pictures() -> None:
    network = tc.create_model("capsnet_digits", classes=3, channels=4, types=2).eval()
    pictures = around(0.3, 4, 1, 8, 8)
    assert _explained(network, pictures, pictures) is None


@pytest.mark.parametrize("constant", ["children", "parents"])
def test_poses_that_do_not_differ_scale_no_transforms(constant: str) -> None:
    layer = tc.CapsConv2d(1, 2, 4, 4, 1, routing=tc.routing.MeanRouting())
    pose = torch.randn(2, 5, 5, 1, 4)
    if constant == "children":
        pose = around(0.1, 2, 5, 5, 1, 4)
    else:
        pose = 1e-9 * pose + 1
    before = layer.weight.clone()
    preserve_deviation(layer, tc.Capsules(pose, torch.ones(2, 5, 5, 1)))
    torch.testing.assert_close(layer.weight, before, rtol=0, atol=0)


@pytest.mark.parametrize("covariance_type", ["diag", "full"])
def test_a_component_of_rounding_is_singular(covariance_type: str) -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    points[20:] = 1e6 * (1 + 1e-16 * points[20:])
    mixture = GaussianMixture(
        2, covariance_type=covariance_type, reg_covar=0.0, random_state=0
    )
    with pytest.raises(ValueError, match="singular"):
        mixture.fit(points.numpy())


def test_features_that_follow_from_others_are_singular() -> None:
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    points = torch.cat([first, first @ first.new_tensor([[0.3], [0.7]])], 1)
    mixture = GaussianMixture(1, covariance_type="full", reg_covar=0.0)
    with pytest.raises(ValueError, match="singular"):
        mixture.fit(points.numpy())
