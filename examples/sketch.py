"""A sketch of capsules, as overviews draw it: Flatten and Linear, tanh units, routing
by exp(-distance), binary digits.

    python examples/sketch.py

Some of it has a meaning. Routing weights exp(-distance), normalised over the parents, are
soft K-Means with the plain distance in place of its square: `euclidean` with
`distance="plain"`. Tanh units are poses between -1 and 1, whose length shows how sure they
are.

Some of it has none. A squash that returns its input times its length bounds nothing.
Weights that add outputs of earlier steps to their own softmax are no routing. Once all
pixels are flattened, no capsule has a place.

About fifteen seconds on a CPU.
"""

import torch
from torch import Tensor, nn

import torchcaps as tc
from torchcaps_lab.data import Digits, Examples, Preprocess


class Sketch(nn.Module):
    """Primary capsules from all pixels at once, class capsules by soft K-Means with the
    plain distance of their votes.

    Args:
        pixels: the number of pixels of an image.
        parts: the number of primary capsules.
        dim: the dimension of their poses.
        classes: the number of class capsules.
    """

    def __init__(
        self, pixels: int = 64, parts: int = 32, dim: int = 8, classes: int = 10
    ) -> None:
        super().__init__()
        self.primary = nn.Sequential(
            nn.Flatten(),
            nn.Linear(pixels, parts * dim),
            nn.Unflatten(1, (parts, dim)),
            nn.Tanh(),
        )
        routing = tc.create_routing("euclidean", steps=3, distance="plain")
        self.classes = tc.CapsLinear(
            parts,
            classes,
            dim,
            16,
            routing=routing,
        )

    def forward(self, images: Tensor) -> tc.Capsules:
        """From binary images (B, 1, H, W) to the poses (B, J, 16) of the classes, and
        their lengths (B, J).
        """
        return self.classes(self.primary(images))


def binary(digits: Examples) -> Tensor:
    """Pixels above half are 1, the others 0: on the command line,
    ``--preprocess.binarise true``.
    """
    return Preprocess(binarise=True).evaluate(digits.inputs.float() / 255).images


def main(epochs: int = 30, batch: int = 64) -> float:
    """Trains on the embedded digits with the cross-entropy of the lengths, and gives
    the accuracy on test images.
    """
    torch.manual_seed(0)
    digits = Digits(validation=0)
    images = binary(digits.train)
    labels = digits.train.labels
    model = Sketch()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(batch):
            lengths = model(images[chosen]).activation
            loss = nn.functional.cross_entropy(lengths, labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        classes = model(binary(digits.test))
    correct = classes.activation.argmax(1) == digits.test.labels
    return correct.double().mean().item()


if __name__ == "__main__":
    print(f"{main():.1%} of the test digits classified correctly")
