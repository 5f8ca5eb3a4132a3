"""What is special to the networks over series."""

import pytest
import torch
from torch.nn import functional as F

from torchcaps import create_model, create_routing, list_models
from torchcaps.models import CapsuleNetwork
from torchcaps.ops import use_backend
from torchcaps.testing import check_model
from torchcaps_lab.kinds.series.pictures import moment_shares

NAMES = list_models(takes="series")
SMALL = {
    "in_channels": 2,
    "classes": 3,
    "channels": (6, 8),
    "strides": (1, 2),
}
PADDED = ("dynamic", "euclidean", "em", "kmeans")


def trained_statistics(name: str, **more: object) -> torch.nn.Module:
    torch.manual_seed(0)
    network = create_model(name, **SMALL, **more)
    network(network.examples(4))
    return network.eval()


@pytest.mark.parametrize("name", NAMES)
def test_everything_that_training_relies_on(name: str) -> None:
    check_model(create_model(name, **SMALL))


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_no_answer_whatever_stands_in_it(name: str) -> None:
    network = trained_statistics(name)
    series = torch.randn(2, 2, 9)
    there = torch.ones(2, 1, 9)
    alone = network(series).activation
    padded = F.pad(torch.cat([series, there], 1), (0, 6))
    padded[:, :2, 9:] = 100.0
    torch.testing.assert_close(network(padded).activation, alone)


@pytest.mark.parametrize("routing", PADDED)
def test_any_routing_leaves_padding_out(routing: str) -> None:
    network = trained_statistics("series_capsnet", routing=create_routing(routing))
    series = torch.randn(2, 2, 9)
    padded = F.pad(torch.cat([series, torch.ones(2, 1, 9)], 1), (0, 6))
    torch.testing.assert_close(network(padded).activation, network(series).activation)


@pytest.mark.parametrize("name", NAMES)
def test_statistics_of_training_leave_padding_out(name: str) -> None:
    networks = [create_model(name, **SMALL) for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    series = torch.randn(3, 2, 9)
    networks[0](series)
    networks[1](F.pad(torch.cat([series, torch.ones(3, 1, 9)], 1), (0, 20)))
    for norms in zip(networks[0].norms, networks[1].norms, strict=True):
        torch.testing.assert_close(
            norms[0].norm.running_mean, norms[1].norm.running_mean
        )
        torch.testing.assert_close(norms[0].norm.running_var, norms[1].norm.running_var)


def test_capsules_and_twin_are_of_equal_size() -> None:
    for channels, classes in ((12, 9), (6, 7), (40, 10)):
        sizes = [
            sum(
                parameter.numel()
                for parameter in create_model(
                    name, in_channels=channels, classes=classes
                ).parameters()
            )
            for name in NAMES
        ]
        assert max(sizes) / min(sizes) < 1.05


def test_what_moments_give_adds_up_to_the_activation() -> None:
    """After one step of routing to means the pose is the mean of the votes, and so is
    its length along it.
    """
    network = trained_statistics(
        "series_capsnet", routing=create_routing("euclidean", steps=1)
    )
    assert isinstance(network, CapsuleNetwork)
    series = torch.randn(1, 2, 11)
    shares = moment_shares(network, series)
    assert shares is not None
    assert shares.shape == (1, 11, 3)
    assert float(shares.max()) == 1
    assert float(shares.min()) >= 0
    total = shares[:, ::2].sum(1)
    activation = network(series).activation
    torch.testing.assert_close(total / total.sum(), activation / activation.sum())
    assert moment_shares(trained_statistics("series_cnn"), series) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel_size": 4}, "kernel_size must be odd"),
        ({"strides": (1,)}, "strides must be 2 whole numbers"),
        ({"dropout": 1.0}, r"dropout must be a share in \[0, 1\)"),
    ],
)
def test_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_model("series_cnn", **{**SMALL, **arguments})


@pytest.mark.parametrize(
    ("series", "message"),
    [
        (torch.zeros(2, 4, 5), r"series must be \(B, 2, L\), or \(B, 3, L\)"),
        (torch.zeros(2, 2, 0), "with L at least 1"),
        (torch.zeros(2, 2, 5, dtype=torch.int64), "must be floating point"),
        (torch.full((2, 2, 5), torch.nan), "NaN or infinite"),
    ],
)
def test_series_that_do_not_fit(series: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_model("series_cnn", **SMALL)(series)


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_an_exported_program_takes_any_batch_and_length(name: str) -> None:
    """With two classes as with two examples: nothing may take one for the other."""
    torch.manual_seed(0)
    sizes = {"channels": (4, 4, 4), "strides": (1, 2, 2)}
    network = create_model(name, in_channels=3, classes=2, **sizes).eval()
    free = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC}
    with use_backend("naive"), torch.no_grad():
        traced = torch.export.export(
            network, (ending_early(2, 12),), dynamic_shapes=(free,)
        )
        program = traced.module()
        for batch, length in ((2, 12), (5, 9), (1, 30), (3, 6)):
            rows = ending_early(batch, length)
            expected = network(rows).activation
            torch.testing.assert_close(program(rows).activation, expected)


def ending_early(batch: int, length: int) -> torch.Tensor:
    """Series of three channels. All but the first end one moment earlier."""
    present = torch.ones(batch, 1, length)
    present[1:, :, -1] = 0
    return torch.cat([torch.randn(batch, 3, length), present], 1)
