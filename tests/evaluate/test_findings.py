"""What a network does with a set of images, in numbers."""

import pytest
import torch
from sklearn.metrics import confusion_matrix, recall_score
from torch import Tensor, nn

from tests.report.small import digits_net, image_set, plain_net
from torchcaps.models import ImageClassifier, Prediction
from torchcaps_lab.evaluate import Findings, assignment_entropy, examine

SHAPE = (1, 8, 8)
HAND_MADE = Findings(
    labels=torch.tensor([0, 0, 1, 1, 1]),
    activation=torch.tensor(
        [
            [0.9, 0.1, 0.0],
            [0.2, 0.8, 0.3],
            [0.1, 0.4, 0.0],
            [0.5, 0.3, 0.1],
            [0.0, 0.6, 0.1],
        ]
    ),
    entropy=None,
)


def test_figures_of_a_hand_made_example() -> None:
    assert HAND_MADE.prediction.tolist() == [0, 1, 1, 0, 1]
    assert HAND_MADE.confusion.tolist() == [[1, 1, 0], [1, 2, 0], [0, 0, 0]]
    assert HAND_MADE.accuracy == pytest.approx(0.6)
    assert HAND_MADE.error == pytest.approx(0.4)
    assert HAND_MADE.true_activation == pytest.approx((0.9 + 0.2 + 0.4 + 0.3 + 0.6) / 5)
    assert HAND_MADE.undecided == pytest.approx(0.4)  # 0.4 and 0.5 at most
    torch.testing.assert_close(
        HAND_MADE.margin, torch.tensor([0.8, -0.6, 0.3, -0.2, 0.5])
    )


def test_the_interval_of_a_perfect_test_has_half_an_image_wrong() -> None:
    labels = torch.arange(20) % 2
    activation = torch.nn.functional.one_hot(labels).float()
    perfect = Findings(labels=labels, activation=activation, entropy=None)
    assert perfect.interval == pytest.approx(1.96 * (0.025 * 0.975 / 20) ** 0.5)


def test_confusion_and_shares_of_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(2)
    actual = Findings(
        torch.randint(4, (60,), generator=generator),
        torch.rand(60, 5, generator=generator),
        None,
    )
    predicted = actual.prediction
    classes = list(range(5))
    assert (
        actual.confusion.tolist()
        == confusion_matrix(actual.labels, predicted, labels=classes).tolist()
    )
    recalls = recall_score(actual.labels, predicted, labels=classes[:4], average=None)
    assert [row.recall for row in actual.per_class[:4]] == pytest.approx(
        recalls.tolist()
    )


def test_choices_of_a_hand_made_example() -> None:
    assert HAND_MADE.mistakes(5).tolist() == [1, 3]
    assert HAND_MADE.mistakes(1).tolist() == [1]
    assert HAND_MADE.examples().tolist() == [0, 4]  # class 2 has no images
    assert HAND_MADE.samples(3).tolist() == [0, 1, 2]
    assert HAND_MADE.samples(2).tolist() == [0, 2]
    assert HAND_MADE.samples(9).tolist() == [0, 1, 2, 3, 4]


def test_one_class_is_never_mistaken() -> None:
    findings = Findings(
        torch.zeros(2, dtype=torch.int64), torch.tensor([[0.4], [0.7]]), None
    )
    assert findings.accuracy == 1
    assert findings.mistakes(5).tolist() == []
    assert findings.examples().tolist() == [1]


@pytest.mark.parametrize("batch_size", [4, 1000])
def test_findings_do_not_depend_on_the_batches(batch_size: int) -> None:
    model = digits_net()
    images = image_set(SHAPE, 10)
    findings = examine(model, images, batch_size)
    batch = images.__getitems__(list(range(10)))
    with torch.no_grad():
        torch.testing.assert_close(
            findings.activation, model.eval()(batch.inputs).activation
        )
        entropy = assignment_entropy(model.route(batch.inputs).assignment).mean().item()
    assert findings.entropy == pytest.approx(entropy, rel=1e-5)
    assert torch.equal(findings.labels, images.labels)


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-5), (torch.bfloat16, 0.05)]
)
def test_networks_in_any_precision(dtype: torch.dtype, bound: float) -> None:
    expected, actual = (
        examine(digits_net().to(precision), image_set(SHAPE, 10))
        for precision in (torch.float32, dtype)
    )
    torch.testing.assert_close(
        actual.activation, expected.activation, rtol=0, atol=bound
    )


def test_counts_add_up_and_the_diagonal_is_the_accuracy() -> None:
    findings = examine(digits_net(), image_set(SHAPE, 30))
    assert int(findings.confusion.sum()) == 30
    assert (
        findings.confusion.sum(1).tolist()
        == torch.bincount(image_set(SHAPE, 30).labels, minlength=3).tolist()
    )
    assert int(findings.confusion.trace()) / 30 == pytest.approx(findings.accuracy)


def test_a_network_without_capsules_has_no_entropy() -> None:
    findings = examine(plain_net(), image_set((1, 16, 16), 6))
    assert findings.entropy is None
    assert findings.activation.shape == (6, 3)


class Moody(ImageClassifier):
    """Answers only in evaluation mode and without gradients."""

    def __init__(self) -> None:
        super().__init__((1, 8, 8), 3)
        self.inner = nn.Dropout()

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        if self.training or self.inner.training or torch.is_grad_enabled():
            raise RuntimeError("not now")
        return Prediction(images.flatten(1)[:, :3], None, None)


def test_modes_are_set_and_restored_one_by_one() -> None:
    model = Moody().train()
    model.inner.eval()
    examine(model, image_set(SHAPE, 30))
    assert model.training
    assert not model.inner.training


def test_modes_are_restored_after_an_error() -> None:
    model = digits_net().train()
    with pytest.raises(ValueError, match="images must be"):
        examine(model, image_set((3, 8, 8)))
    assert all(module.training for module in model.modules())


def test_misfits_are_named() -> None:
    with pytest.raises(ValueError, match="image_set holds no images"):
        examine(digits_net(), image_set(SHAPE, 0))
    with pytest.raises(
        ValueError, match="image_set has 2 classes, but the model has 3"
    ):
        examine(digits_net(), image_set(SHAPE, classes=("a", "b")))
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        examine(digits_net(), image_set(SHAPE, 30), 0)
    with pytest.raises(
        TypeError, match="model must be a ClassifierNetwork, got Linear"
    ):
        examine(nn.Linear(2, 2), image_set(SHAPE, 30))


def test_figures_of_two_classes() -> None:
    """The AUC is the share of pairs of images in which that of the positive class has
    the larger share.
    """
    torch.manual_seed(0)
    activation = torch.rand(30, 2)
    labels = torch.arange(30) % 3 // 2
    findings = Findings(labels, activation, entropy=None)
    share = activation[:, 1] / activation.sum(1)
    pairs = share[labels == 1][:, None] > share[labels == 0]
    figures = findings.of_positive(1)
    of_negative = findings.of_positive(0)
    assert figures.auc == pytest.approx(pairs.double().mean().item())
    assert figures.sensitivity == findings.per_class[1].recall
    assert figures.specificity == findings.per_class[0].recall
    assert of_negative == (
        pytest.approx(figures.auc),
        figures.specificity,
        figures.sensitivity,
    )


def test_two_classes_of_which_one_has_no_images() -> None:
    findings = Findings(
        torch.zeros(4, dtype=torch.int64), torch.rand(4, 2), entropy=None
    )
    auc, sensitivity, specificity = findings.of_positive(1)
    assert auc is None
    assert sensitivity is None
    assert specificity is not None


def test_there_must_be_two_classes() -> None:
    with pytest.raises(
        ValueError, match="positive must be 0 or 1 of 2 classes, got 1 of 3"
    ):
        Findings(
            torch.zeros(4, dtype=torch.int64), torch.rand(4, 3), entropy=None
        ).of_positive(1)
