"""Capsules over sequences: which of three beats a noisy signal holds, wherever it is
and however long the signal.

    python examples/sequences.py

The layers are those over images, with one axis less. A mask leaves out what is behind the
end of shorter signals. A few seconds on a CPU.
"""

import torch
from torch import Tensor, nn

import torchcaps as tc

LONGEST = 64
BEATS = {
    "rise and fall": (0.0, 0.5, 1.0, 1.0, 0.5, 0.0, 0.0, 0.0),
    "up, then down": (0.0, 1.0, 1.0, 0.0, 0.0, -1.0, -1.0, 0.0),
    "down, then up": (0.0, -1.0, -1.0, 0.0, 0.0, 1.0, 1.0, 0.0),
}


def signals(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Signals (B, 1, L), how long each is (B,), with noise behind its end, and which
    beat it holds (B,).
    """
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(
        len(BEATS),
        (count,),
        generator=random,
    )
    lengths = torch.randint(
        24,
        LONGEST + 1,
        (count,),
        generator=random,
    )
    noisy = 0.2 * torch.randn(
        count,
        1,
        LONGEST,
        generator=random,
    )
    beats = torch.tensor(list(BEATS.values())).repeat_interleave(2, dim=1)
    for number in range(count):
        signal = noisy[number, 0]
        beat = beats[labels[number]]
        length = int(lengths[number])
        start = int(
            torch.randint(
                length - 15,
                (),
                generator=random,
            )
        )
        signal[start : start + 16] += beat
        signal[length:] = 3 * torch.randn(LONGEST - length, generator=random)
    return noisy, lengths, labels


class Listener(nn.Module):
    """From signals to class capsules."""

    def __init__(self) -> None:
        super().__init__()
        self.primary = tc.PrimaryCaps1d(
            1,
            types=8,
            dim=8,
            kernel_size=9,
            stride=2,
        )
        routing = tc.create_routing("dynamic", steps=2)
        self.convolution = tc.CapsConv1d(
            8,
            8,
            in_pose=8,
            out_pose=8,
            kernel_size=5,
            stride=2,
            routing=routing,
            init_std=None,
        )
        self.classes = tc.CapsLinear(
            None,
            len(BEATS),
            in_pose=8,
            out_pose=8,
            transforms="shared",
            routing=routing,
        )

    def forward(self, signals: Tensor, lengths: Tensor) -> tc.Capsules:
        """Only windows that end before the signal does take part."""
        children = self.primary(signals)  # poses (B, 28, 8, 8)
        windows = torch.arange(children.activation.shape[1])
        ends = 2 * windows + 9
        inside = ends <= lengths[:, None]
        mask = inside[..., None].expand(-1, -1, 8)
        phrases = self.convolution(children, mask)  # poses (B, 12, 8, 8)
        return self.classes(phrases, self.convolution.out_mask(mask))


def main(steps: int = 200, batch: int = 64) -> float:
    """Trains on new signals in each step, and gives the accuracy on others."""
    torch.manual_seed(0)
    model = Listener()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(steps):
        noisy, lengths, labels = signals(batch, seed=step + 1)
        classes = model(noisy, lengths)
        loss = tc.margin_loss(classes.activation, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    noisy, lengths, labels = signals(500, seed=0)
    with torch.no_grad():
        classes = model(noisy, lengths)
    correct = classes.activation.argmax(1) == labels
    return correct.double().mean().item()


if __name__ == "__main__":
    accuracy = main()
    chance = 1 / len(BEATS)
    print(
        f"{accuracy:.1%} of 500 signals classified correctly (by chance: {chance:.1%})"
    )
