import torch
from sklearn.datasets import load_digits

from torchcaps import create_model
from torchcaps_lab.data import Digits


def test_splits_hold_every_digit_of_the_source_once() -> None:
    data = Digits(validation=0.1)
    splits = (data.train, data.validation, data.test)
    source = load_digits()
    expected = torch.tensor(source.images * 255 / 16).round().to(torch.uint8).flatten(1)
    rows = torch.cat([part.inputs.flatten(1) for part in splits])
    labels = torch.cat([part.labels for part in splits])

    def in_order(images: torch.Tensor, numbers: torch.Tensor) -> list[list[int]]:
        return sorted(torch.cat([images.long(), numbers[:, None]], dim=1).tolist())

    assert len(rows) == 1797
    assert in_order(rows, labels) == in_order(expected, torch.tensor(source.target))


def test_shape_range_and_classes() -> None:
    data = Digits()
    assert data.image_shape == (1, 8, 8)
    assert data.classes == tuple("0123456789")
    assert (int(data.train.inputs.min()), int(data.train.inputs.max())) == (0, 255)


def test_the_default_network_takes_them() -> None:
    """That of other data sets has larger kernels than these images are."""
    data = Digits()
    network = create_model(
        data.model, image_shape=data.image_shape, classes=len(data.classes)
    )
    assert network(data.train.inputs[:2] / 255).activation.shape == (2, 10)


def test_a_fifth_of_each_digit_is_the_test_set() -> None:
    counts = torch.bincount(torch.tensor(load_digits().target))
    assert (Digits().test.labels.bincount() - counts / 5).abs().max() <= 0.5
