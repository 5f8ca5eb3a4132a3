import pytest
import torch

from recipes.multimnist import pair_error
from torchcaps.models import ImageClassifier, Prediction, create_model
from torchcaps_lab.data import Digits, Overlaid, Overlay, fixed_pairs


class Given(ImageClassifier):
    """Answers with the activations that it was given, image by image."""

    def __init__(self, activation):
        super().__init__((1, 12, 12), activation.shape[1])
        self.activation = activation
        self.place = 0

    def forward(self, images, target=None):
        self.place += len(images)
        return Prediction(
            self.activation[self.place - len(images) : self.place], None, None
        )


def test_no_credit_for_one_of_the_two():
    activation = torch.tensor([[0.9, 0.1, 0.8], [0.2, 0.9, 0.3], [0.9, 0.8, 0.1]])
    labels = torch.tensor([[2, 0], [0, 1], [0, 1]])
    pairs = Overlaid(torch.zeros(3, 1, 12, 12), torch.zeros(3, 2, 1, 12, 12), labels)
    assert pair_error(Given(activation), pairs, batch_size=2) == pytest.approx(100 / 3)


def test_pair_error_is_that_of_the_two_most_active():
    pairs = fixed_pairs(Overlay(Digits().test, 12, 2), 20, 0)
    network = create_model(
        "capsnet_digits",
        image_shape=(1, 12, 12),
        channels=4,
        types=1,
        decoder_hidden=[4],
    )
    predicted = network.eval()(pairs.images).activation.topk(2, dim=1).indices
    right = [
        set(first) == set(second)
        for first, second in zip(predicted.tolist(), pairs.labels.tolist(), strict=True)
    ]
    assert pair_error(network, pairs, batch_size=7) == pytest.approx(
        100 * (1 - sum(right) / 20)
    )


@pytest.mark.thorough
def test_training_learns_pairs(tmp_path):
    """A network that is given the same pairs again and again tells them."""
    digits = Digits().train
    few = digits.subset(torch.arange(40))
    pairs = fixed_pairs(Overlay(few, 10, 1), 40, 0)
    torch.manual_seed(0)
    network = create_model(
        "capsnet_digits",
        image_shape=(1, 10, 10),
        channels=16,
        types=4,
        decoder_hidden=None,
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    from torchcaps.losses import margin_loss

    mask = torch.zeros(40, 10).scatter_(1, pairs.labels, 1.0)
    for _ in range(120):
        loss = margin_loss(network(pairs.images).activation, mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert pair_error(network, pairs) < 20
