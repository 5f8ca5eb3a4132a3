"""Settings of routings that their authors' code has: one small network on digits, with
each.

    python examples/routing_variants.py

Kernel density routing stops once the density settles. The first routing of Heinsen
shares its parameters over all parents, so that any number of them will do. Soft K-Means
is trained, and then assigns every child to one class alone. About ten seconds on a CPU.
"""

import torch
from torch import Tensor, nn

import torchcaps as tc
from torchcaps_lab.data import Digits

VARIANTS = {
    "kernel density, until it settles": tc.create_routing(
        "kernel_density", steps=4, settled=0.05
    ),
    "Heinsen 2019, any number of parents": tc.create_routing(
        "heinsen_2019", any_parents=True
    ),
    "K-Means, soft": tc.create_routing("kmeans"),
}


class Network(nn.Module):
    """Primary capsules from all pixels at once, and class capsules with a routing.

    Args:
        routing: the routing of the class capsules.
    """

    def __init__(self, routing: tc.routing.Routing) -> None:
        super().__init__()
        self.primary = nn.Sequential(nn.Linear(64, 128), nn.Unflatten(1, (16, 8)))
        self.classes = tc.CapsLinear(16, 10, 8, 16, routing=routing)

    def forward(self, images: Tensor) -> tc.Capsules:
        """From images (B, 1, 8, 8) to class capsules, poses (B, 10, 16)."""
        return self.classes(tc.squash(self.primary(images.flatten(1))))


def accuracy(network: Network) -> float:
    """The share of the test images that the network classifies correctly."""
    test = Digits().test
    with torch.no_grad():
        activation = network.eval()(test.inputs / 255).activation
    return (activation.argmax(1) == test.labels).double().mean().item()


def trained(routing: tc.routing.Routing, epochs: int = 8, batch: int = 64) -> Network:
    """The network, trained with the cross-entropy of the activations."""
    torch.manual_seed(0)
    train = Digits(validation=0).train
    images = train.inputs / 255
    network = Network(routing)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(batch):
            activation = network(images[chosen]).activation
            loss = nn.functional.cross_entropy(10 * activation, train.labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network


def main(epochs: int = 8) -> dict[str, float]:
    """The accuracy with each variant."""
    networks = {name: trained(each, epochs) for name, each in VARIANTS.items()}
    accuracies = {name: accuracy(network) for name, network in networks.items()}
    network = networks["K-Means, soft"]
    hard = tc.create_routing("hard_kmeans", metric="inner").eval()
    network.classes.routing = hard.bind(10, 16)
    return {**accuracies, "K-Means, hard": accuracy(network)}


if __name__ == "__main__":
    for variant, share in main().items():
        print(f"{share:.1%}  {variant}")
