"""The class of one image with the pose of another: digits drawn with the width and the
slant of other digits.

    python examples/transfer.py

The decoder gets the class apart from the pose, and noise on the pose keeps it from
hiding the class there. The digits are those that come with scikit-learn. About half a
minute on a CPU.
"""

import torch
from torch import Tensor

import torchcaps as tc
from torchcaps_lab.data import Digits
from torchcaps_lab.evaluate import transfer


def loss_of(
    network: tc.models.CapsuleClassifier,
    images: Tensor,
    labels: Tensor,
) -> Tensor:
    """How wrong the classes are, and a tenth of how far the drawings are from the
    images.
    """
    capsules = network.encode(images)
    drawn = network.decode(capsules, labels)
    wrong = tc.margin_loss(capsules.activation, labels)
    distance = (drawn - images).square().flatten(1)
    return wrong + 0.1 * distance.sum(1).mean()


def trained(epochs: int, batch: int = 64) -> tc.models.CapsuleClassifier:
    """A network that classifies digits and draws them from their poses."""
    torch.manual_seed(0)
    digits = Digits(validation=0).train
    pixels = digits.inputs.float() / 255
    network = tc.create_model(
        "capsnet_digits",
        decoder_input="pose_and_class",
        pose_noise=0.4,
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    for _ in range(epochs):
        order = torch.randperm(len(digits))
        for chosen in order.split(batch):
            images = pixels[chosen]
            labels = digits.labels[chosen]
            loss = loss_of(network, images, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network.eval()


@torch.no_grad()
def mixed(
    network: tc.models.CapsuleClassifier,
    content: Tensor,
    style: Tensor,
) -> tuple[Tensor, Tensor]:
    """Images with the class of ``content`` and the pose of ``style``, (B, 1, 8, 8), and
    whether the network still takes them for that class, (B,).
    """
    contents = network.encode(content)
    styles = network.encode(style)
    drawn = transfer(
        network,
        contents,
        styles,
        target=contents.activation.argmax(1),
        style_target=styles.activation.argmax(1),
    )
    images = drawn[:, -1]
    again = network.encode(images)
    classes = again.activation.argmax(1)
    return images, classes == contents.activation.argmax(1)


def main(epochs: int = 15) -> float:
    """The share of 100 drawn digits that keep their class."""
    network = trained(epochs)
    images = Digits().test.inputs.float() / 255
    content, style = images[:200].chunk(2)
    _, keep = mixed(network, content, style)
    return keep.double().mean().item()


if __name__ == "__main__":
    share = main()
    print(f"{share:.1%} of 100 digits with another's pose keep their class")
