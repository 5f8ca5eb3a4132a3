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
from torchcaps.models.allowance import Allowance, Header, TooLarge

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


def test_memory_is_known_before_it_is_taken_and_counted_while_it_is() -> None:
    allowance = Allowance(Header({"weight": (2, 3)}))
    with allowance:
        for _ in range(3):
            torch.ones(1000, 1000)  # given back at once
        tensor = torch.ones(500, 1000)
        same = tensor.view(-1)
        tensor.mul_(2)
        assert allowance.taken == tensor.nbytes == same.nbytes
        assert allowance.taken_in_all == 3 * 4_000_000 + tensor.nbytes
        with pytest.raises(
            TooLarge,
            match="40,000,000,000 bytes beside 2,000,000: the file of weights holds 1",
        ):
            torch.ones(100_000, 100_000)
        with pytest.raises(TooLarge):
            tensor.view(-1)[:, None] + tensor.view(
                -1
            )  # of two small ones, each within what is allowed
        assert allowance.taken == tensor.nbytes
    assert float(same.sum()) == 2 * 500_000


def test_numbers_that_are_drawn_elsewhere_are_drawn() -> None:
    torch.manual_seed(0)
    expected = torch.randn(3), torch.empty(2).normal_()
    torch.manual_seed(0)
    with Allowance(Header({})):
        drawn = torch.randn(3), torch.empty(2).normal_()
        outline = (
            torch.randn(4, 5, device="meta", dtype=torch.float64),
            torch.empty(3, device="meta").uniform_(-1, 1),
        )
    assert all(map(torch.equal, expected, drawn))
    assert [(tensor.shape, tensor.dtype, tensor.is_meta) for tensor in outline] == [
        ((4, 5), torch.float64, True),
        ((3,), torch.float32, True),
    ]
