import torch

from recipes.two_digits import set_accuracy


class TestSetAccuracy:
    present = torch.tensor([[1, 1, 0, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 0, 1, 1]]).bool()
    activation = torch.tensor(
        [
            [0.9, 0.8, 0.1, 0.2],  # right
            [0.3, 0.45, 0.2, 0.4],  # right, neither above 0.5
            [0.9, 0.6, 0.55, 0.1],  # one of two
            [0.1, 0.2, 0.6, 0.5],  # right, but the second is not above 0.5
        ]
    )

    def test_by_hand(self):
        assert set_accuracy(self.activation, self.present) == 75.0
        assert set_accuracy(self.activation, self.present, above=0.5) == 25.0

    def test_rows_with_different_numbers_of_classes(self):
        present = torch.tensor([[1, 0, 0, 0], [0, 1, 1, 1]]).bool()
        activation = torch.tensor([[0.9, 0.8, 0.7, 0.6], [0.5, 0.7, 0.6, 0.4]])
        assert set_accuracy(activation, present) == 50.0
