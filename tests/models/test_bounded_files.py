"""A small file cannot ask for a large network: what its weights give reason for bounds
memory and time.
"""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchcaps.models import Network, create_model, load_pretrained
from torchcaps.models.outline import Outlining, TooLarge, outlined

MOST_MEGABYTES, MOST_SECONDS = 250, 10
"""Bounds of one refusal; it takes a fraction of a second on an idle machine."""


class LooksAtNumbers(Network):
    """A network of a user's that cannot be made on the device ``meta``."""

    def __init__(self, size: int = 4, layers: int = 1, example: int = 0) -> None:
        super().__init__()
        self.size = size
        self.layers = layers
        self.example = example
        self.scale = torch.linspace(0, 1, 3)[1].item()
        self.blocks = nn.ModuleList(nn.Linear(size, size) for _ in range(layers))
        if example:
            torch.ones(example, example).sum()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks[0](x) * self.scale


def peak() -> int:
    """The most memory that the process has had since the last call of
    :func:`forget_peak`, in bytes.
    """
    status = Path("/proc/self/status").read_text()
    return 1024 * next(
        int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")
    )


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def asks_for(folder: Path, network: nn.Module, **arguments: Any) -> Path:
    """A saved network whose configuration asks for something else than its weights are
    of.
    """
    network.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["arguments"] |= arguments
    (folder / "config.json").write_text(json.dumps(config))
    return folder


CAPSNET = {"channels": 4, "types": 2, "image_shape": (1, 20, 20)}


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").is_file(),
    reason="the peak of memory is read from Linux",
)
@pytest.mark.parametrize(
    ("network", "arguments"),
    [
        (create_model("capsnet", **CAPSNET), {"decoder_hidden": [1] * 200_000}),
        (create_model("capsnet", **CAPSNET), {"decoder_hidden": [10**6] * 3}),
        (create_model("capsnet", **CAPSNET), {"decoder_hidden": [50_000, 50_000]}),
        (
            create_model("capsnet", **CAPSNET),
            {"channels": 10**6, "types": 10**6, "classes": 10**6},
        ),
        (create_model("capsnet", **CAPSNET), {"image_shape": [1, 10**6, 10**6]}),
        (create_model("capsnet", **CAPSNET), {"classes": 10**6}),
        (create_model("capsnet", **CAPSNET), {"decoder_hidden": [[1] * 100] * 1000}),
        (create_model("attentioncapsnet"), {"blocks": [10**6, 10**6]}),
        (create_model("deepcaps"), {"dims": [1] * 3_000}),
        (create_model("capsnet", **CAPSNET), {"image_shape": [1, 5_000, 5_000]}),
        (
            create_model("capsnet_on_backbone", widths=(4, 4), types=2),
            {"blocks": 10**6},
        ),
        (
            create_model("capsnet_on_backbone", widths=(4, 4), types=2),
            {"image_shape": [3, 20_000, 20_000]},
        ),
        (create_model("scene_cnn"), {"widths": [1] * 100_000}),
        (LooksAtNumbers(), {"size": 50_000}),
        (LooksAtNumbers(), {"layers": 10**6}),
        (LooksAtNumbers(), {"example": 50_000}),
    ],
)
def test_a_small_file_takes_little(
    network: nn.Module, arguments: dict[str, Any], tmp_path: Path
) -> None:
    folder = asks_for(tmp_path / "x", network, **arguments)
    forget_peak()
    before = peak()
    begun = time.process_time()
    with pytest.raises(ValueError, match=r"x/config.json"):
        load_pretrained(folder)
    assert time.process_time() - begun < MOST_SECONDS
    assert (peak() - before) / 1e6 < MOST_MEGABYTES


def test_what_fits_its_weights_is_loaded(tmp_path: Path) -> None:
    """Also with examples of 64 maps of 512 pixels, tried once, and if numbers are
    looked at.
    """
    for network in (LooksAtNumbers(300, 20), LooksAtNumbers(4, 1, 4096)):
        network.save_pretrained(tmp_path / "x")
        again = load_pretrained(tmp_path / "x")
        assert all(
            torch.equal(tensor, again.state_dict()[name])
            for name, tensor in network.state_dict().items()
        )


def test_an_outline_takes_no_memory_and_no_numbers_are_drawn() -> None:
    torch.manual_seed(0)
    expected = torch.randn(3)
    torch.manual_seed(0)
    large = torch.Size((10**6, 10**6))
    with Outlining([large]), torch.device("meta"):
        outlines = (
            torch.ones(large),
            torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator()),
            torch.zeros(10**6, device="cpu").normal_(),
            nn.init.trunc_normal_(nn.Linear(10**5, 10**5).weight),
        )
    assert torch.equal(expected, torch.randn(3))
    assert all(tensor.is_meta for tensor in outlines)
    shapes = [tensor.shape for tensor in outlines]
    assert shapes == [large, (4, 5), (10**6,), (10**5, 10**5)]
    assert outlines[1].dtype == torch.float64


def test_what_looks_at_many_numbers_is_outlined_where_there_are_no_bounds() -> None:
    def make() -> nn.Module:
        return nn.Linear(5_000, int(torch.ones(5_000).sum()))

    assert outlined(make).weight.shape == (5_000, 5_000)
    with pytest.raises(RuntimeError, match="meta"):
        outlined(make, 100 * [torch.Size((5_000, 5_000))])


def test_tensors_are_counted_and_measured() -> None:
    shapes = [torch.Size((2, 3))]
    too_many = "too many layers: the file of weights holds 1 tensors of 6 numbers"
    with Outlining(shapes), pytest.raises(TooLarge, match=too_many):
        nn.ModuleList(nn.Linear(2, 2) for _ in range(10**4))
    assert torch.is_grad_enabled()
    with Outlining(10**4 * shapes):
        for _ in range(10**4):
            torch.zeros(1)
    with Outlining(shapes), torch.device("meta"):
        side = torch.ones(50_000)
        with pytest.raises(TooLarge, match="2,500,000,000 numbers at once"):
            side[:, None] + side
    assert side.is_meta
