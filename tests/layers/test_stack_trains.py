"""Three routed layers on top of each other learn real digits."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from torchcaps import CapsLinear, PrimaryCaps, create_routing, margin_loss


@pytest.mark.parametrize("routing", ["dynamic", "kmeans"])
def test_three_routed_layers_learn(routing: str) -> None:
    torch.manual_seed(0)
    images, labels = (torch.tensor(part[:300]) for part in load_digits(return_X_y=True))
    images = (images.float() / 16).view(-1, 1, 8, 8)
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        PrimaryCaps(16, 4, 8, kernel_size=3, stride=2),
        CapsLinear(16, 12, 8, 8, routing=create_routing(routing)),
        CapsLinear(12, 12, 8, 8, routing=create_routing(routing)),
        CapsLinear(12, 10, 8, 16, routing=create_routing(routing)),
    )
    optimizer = torch.optim.Adam(network.parameters(), 5e-3)
    smallest = torch.inf
    for epoch in range(30):
        for batch in torch.randperm(300).split(60):
            optimizer.zero_grad()
            margin_loss(network(images[batch]).activation, labels[batch]).backward()
            smallest = min(smallest, network[0].weight.grad.norm().item())
            optimizer.step()
        with torch.no_grad():
            accuracy = (
                (network(images).activation.argmax(1) == labels).float().mean().item()
            )
        if epoch == 0:
            assert accuracy < 0.9, "learned at once: this test shows nothing"
        if accuracy > 0.95:
            break
    assert accuracy > 0.9
    assert smallest > 1e-6
