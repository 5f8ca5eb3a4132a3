"""What is special to the networks that give each pixel a class."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from torchcaps import create_model, create_routing, list_models
from torchcaps.models import SegCaps, Segmenter
from torchcaps.testing import check_model

SMALL = {
    "segcaps": {
        "channels": (4, 3),
        "types": (2, 2, 3),
        "dim": 4,
        "class_dim": 5,
    },
    "unet": {"channels": (3, 4, 5)},
}
SHAPES = {2: (3, 13, 10), 3: (2, 5, 7, 6)}


def small(name: str, axes: int = 2, **more: object) -> Segmenter:
    torch.manual_seed(0)
    network: Segmenter = create_model(
        name, image_shape=SHAPES[axes], classes=4, **{**SMALL[name], **more}
    )
    return network


def test_all_networks_over_pixels_are_tried() -> None:
    assert list_models(takes="pixels") == sorted(SMALL)


@pytest.mark.parametrize("axes", SHAPES)
@pytest.mark.parametrize("name", SMALL)
def test_everything_that_training_relies_on(name: str, axes: int) -> None:
    check_model(small(name, axes), skip=("export",))


@pytest.mark.parametrize("axes", SHAPES)
@pytest.mark.parametrize("name", SMALL)
def test_every_pixel_has_activations_and_all_parameters_learn(
    name: str, axes: int
) -> None:
    network = small(name, axes)
    images = torch.rand(2, *SHAPES[axes])
    activation = network(images).activation
    assert activation.shape == (2, 4, *SHAPES[axes][1:])
    assert activation.min() >= 0
    assert activation.max() <= 1
    (activation.log().sum(1) * torch.rand(2, *SHAPES[axes][1:])).sum().backward()
    assert [
        name
        for name, parameter in network.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    ] == []


@pytest.mark.parametrize("name", SMALL)
def test_a_larger_image_changes_nothing_far_from_its_edges(name: str) -> None:
    """Grids halve twice: an image whose corner lies on a multiple of 4 is seen in the
    same way in a larger one.
    """
    network = small(name).eval()
    large = torch.rand(1, 3, 64, 64)
    whole = network(large).activation
    part = network(large[..., :48, :48]).activation
    torch.testing.assert_close(whole[..., :16, :16], part[..., :16, :16])


def test_the_length_of_the_class_capsule_is_the_activation() -> None:
    prediction = small("segcaps")(torch.rand(2, 3, 9, 9))
    assert prediction.capsules is not None
    torch.testing.assert_close(
        prediction.capsules.pose.norm(dim=-1).movedim(-1, 1), prediction.activation
    )


@pytest.mark.parametrize("routing", ["em", "kmeans", "self_attention", "mean"])
def test_other_routings_do_as_well(routing: str) -> None:
    activation = small("segcaps", routing=create_routing(routing))(
        torch.rand(1, 3, 9, 8)
    ).activation
    assert activation.isfinite().all()


def test_recomputing_gives_the_same_gradients() -> None:
    networks = [small("segcaps", recompute=recompute) for recompute in (False, True)]
    images = torch.rand(2, 3, 9, 8)
    for network in networks:
        network(images).activation[:, 0].sum().backward()
    for stored, recomputed in zip(
        *(network.parameters() for network in networks), strict=True
    ):
        torch.testing.assert_close(stored.grad, recomputed.grad)
    states = [network.state_dict() for network in networks]
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value)


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ([0], TypeError),
        (torch.zeros(2, dtype=torch.int64), ValueError),
        (torch.zeros(9, 8, dtype=torch.int64), ValueError),
        (torch.zeros(2, 9, 8), ValueError),
    ],
)
def test_targets_that_do_not_fit(target: Any, error: type[Exception]) -> None:
    network = small("segcaps", decoder=(4,))
    with pytest.raises(error, match="target must be"):
        network(torch.rand(2, 3, 9, 8), target)


STEP = """
import resource, sys, torch, torchcaps as tc
torch.set_num_threads(1)
network = tc.create_model("segcaps", image_shape=(1, 512, 512), recompute=sys.argv[1] == "True")
optimizer = torch.optim.Adam(network.parameters())
activation = network(torch.rand(1, 1, 512, 512)).activation
torch.nn.functional.nll_loss(activation.log(), torch.randint(2, (1, 512, 512))).backward()
optimizer.step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere the peak is told in other units"
)
@pytest.mark.parametrize("recompute", [False, True])
def test_a_training_step_of_512_by_512_takes_less_than_2_gb(recompute: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STEP, str(recompute)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) * 2**20 < 2e9


def test_the_reconstruction_is_of_the_pixels_that_are_not_background() -> None:
    network = small("segcaps", decoder=(6,))
    assert isinstance(network, SegCaps)
    target = torch.randint(4, (2, 9, 8))
    images = torch.rand(2, 3, 9, 8)
    drawn = network(images, target).reconstruction
    assert drawn is not None
    assert drawn.shape == images.shape
    assert torch.equal((drawn > 0).all(1), target > 0)
    capsules = network.encode(images)
    other = capsules._replace(
        pose=torch.where(
            (torch.arange(4) == target[..., None])[..., None], capsules.pose, 7.0
        )
    )
    torch.testing.assert_close(
        network.decode(other, target), network.decode(capsules, target)
    )
    with pytest.raises(RuntimeError, match="this SegCaps was built without a decoder"):
        small("segcaps").decode(capsules)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(2, 3, 9), r"images must be \(B, 3, H, W\), got shape \(2, 3, 9\)"),
        (
            torch.rand(2, 1, 9, 9),
            r"images must be \(B, 3, H, W\), got shape \(2, 1, 9, 9\)",
        ),
        (torch.zeros(2, 3, 9, 9, dtype=torch.uint8), "images must be floating point"),
        (torch.full((2, 3, 9, 9), torch.nan), "images hold NaN"),
    ],
)
def test_other_images_are_refused(images: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small("unet")(images)


def test_an_even_window_of_the_class_capsules_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="class_kernel_size must be odd, got 2"):
        small("segcaps", class_kernel_size=2)


def test_shapes_of_neither_images_nor_volumes_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match=(
            r"image_shape must be \(C, H, W\), or \(C, D, H, W\) of volumes, got "
            r"\(1, 5\)"
        ),
    ):
        create_model("segcaps", image_shape=(1, 5))
