"""Networks over words: padding changes nothing, any length, and each layer is what it
says.
"""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.small_networks import one_of_each
from torchcaps import (
    create_model,
    create_routing,
    list_models,
    list_routings,
    margin_loss,
)
from torchcaps.models.registry import MODELS
from torchcaps.testing import check_model
from torchcaps_lab.kinds.texts import TextCapsNet, TextClassifier, TextPooled
from torchcaps_lab.kinds.texts.words import PADDING, RESERVED, UNKNOWN, Words

NAMES = [
    name
    for name in list_models(takes="words")
    if MODELS[name].network.__module__.startswith("torchcaps_lab.")
]
SLOW = pytest.mark.slow
SMALL = {"vocabulary": 30, "classes": 3, "word_dim": 8}


def network(name: str, **more: object) -> TextClassifier:
    torch.manual_seed(0)
    return create_model(name, **SMALL, **more).double().eval()


def some_words(*shape: int) -> Tensor:
    return torch.randint(
        UNKNOWN, RESERVED + 30, shape, generator=torch.Generator().manual_seed(1)
    )


def test_the_numbers_are_those_of_the_data() -> None:
    assert NAMES == [
        "text_capsnet",
        "text_capsnet_b",
        "text_cnn",
        "text_encoder",
        "text_pooled",
    ]
    assert Words(("a",)).read(["a b"])[0].numbers.tolist() == [RESERVED, UNKNOWN]


@pytest.mark.parametrize("name", one_of_each(NAMES))
def test_everything_that_training_relies_on(name: str) -> None:
    check_model(create_model(name, **SMALL))


@pytest.mark.parametrize("name", [*NAMES, "stride"])
@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_padding_changes_no_answer_and_no_gradient(name: str, length: int) -> None:
    model = network("text_capsnet", stride=2) if name == "stride" else network(name)
    words = some_words(3, length)
    outcomes = []
    for behind in (0, 1, 7):
        model.zero_grad()
        prediction = model(F.pad(words, (0, behind)))
        prediction.activation.square().sum().backward()
        outcomes.append(
            (
                prediction.activation,
                [parameter.grad.clone() for parameter in model.parameters()],
            )
        )
    for other in outcomes[1:]:
        torch.testing.assert_close(other, outcomes[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_texts_of_many_lengths_in_one_batch(name: str) -> None:
    model = network(name)
    words = some_words(4, 9)
    lengths = (9, 1, 4, 6)
    for row, length in zip(words, lengths, strict=True):
        row[length:] = PADDING
    together = model(words).activation
    for row, length, answer in zip(words, lengths, together, strict=True):
        torch.testing.assert_close(
            model(row[None, :length]).activation[0], answer, rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("name", one_of_each(NAMES))
@torch.no_grad()
def test_long_texts_and_none(name: str) -> None:
    model = network(name)
    assert model(some_words(1, 3000)).activation.isfinite().all()
    assert model(torch.zeros(2, 5, dtype=torch.int64)).activation.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_what_are_no_words(name: str) -> None:
    model = network(name)
    for wrong, message in (
        (torch.rand(2, 5), "whole numbers, int64, got torch.float32"),
        (some_words(5), r"\(B, L\), with L at least 1, got shape \(5,\)"),
        (some_words(2, 0), r"got shape \(2, 0\)"),
        (torch.full((2, 5), 32), "words must lie in 0..31, got 32 to 32"),
        (torch.full((2, 5), -1), "got -1 to -1"),
    ):
        with pytest.raises(ValueError, match=message):
            model(wrong)
    for name_of, value in (("dropout", 1.0), ("hidden_words", -0.1)):
        with pytest.raises(ValueError, match=f"{name_of} must be a share"):
            create_model(name, **{name_of: value})


def test_the_maximum_of_each_feature_over_the_text() -> None:
    model = network("text_cnn", widths=(2,), channels=5)
    words = some_words(1, 4)
    x = model.embedding(words)[0]
    windows = torch.stack(
        [
            torch.cat([x[place], x[place + 1] if place < 3 else 0 * x[0]])
            for place in range(4)
        ]
    )
    weight = model.convolutions[0].weight.movedim(1, 2).flatten(1)
    features = (windows @ weight.T + model.convolutions[0].bias).relu().amax(0)
    scores = features @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(words).activation[0], scores.sigmoid())
    soft = network("text_cnn", output="softmax")
    torch.testing.assert_close(soft(words).activation.sum(), torch.tensor(1.0).double())


def test_form_b_is_the_mean_of_its_branches() -> None:
    model = network("text_capsnet_b")
    words = some_words(2, 6)
    assert isinstance(model, TextCapsNet)
    assert model.widths == (3, 4, 5)
    poses = [branch(*model.vectors(words)).pose for branch in model.branches]
    prediction = model(words)
    torch.testing.assert_close(prediction.capsules.pose, torch.stack(poses).mean(0))
    torch.testing.assert_close(
        prediction.activation, prediction.capsules.pose.norm(dim=-1)
    )


def test_capsules_of_the_maxima_over_the_text() -> None:
    model = network("text_pooled", widths=(2, 3), types=4, dim=5)
    words = some_words(2, 6)
    words[1, 4:] = PADDING
    assert isinstance(model, TextPooled)
    children = model.children_of(words)
    places = model.places_of(words)
    assert children.pose.shape == (2, 8, 5)
    for row in range(2):
        length = int((words[row] != PADDING).sum())
        x = F.pad(model.embedding(words[row, :length]), (0, 0, 0, 2))
        for branch, width in enumerate((2, 3)):
            windows = torch.stack(
                [x[place : place + width].T.flatten() for place in range(length)]
            )
            layer = model.convolutions[branch]
            features = (
                windows @ layer.weight.flatten(1).T + layer.bias
            ).relu()  # [length, types x dim]
            torch.testing.assert_close(
                children.pose[row, 4 * branch : 4 * branch + 4].flatten(),
                features.amax(0),
            )
            share = torch.zeros(4, 6).double()
            for kind in range(4):
                for column in range(5 * kind, 5 * kind + 5):
                    share[kind, features[:, column].argmax()] += (
                        features[:, column].max() ** 2
                    )
            torch.testing.assert_close(
                places[branch][row], share / share.sum(1, keepdim=True)
            )
    expected = model.class_caps(children).activation
    torch.testing.assert_close(model(words).activation, expected)


@pytest.mark.parametrize("name", ["text_capsnet", "text_encoder", "text_pooled"])
@pytest.mark.parametrize(
    "routing",
    [name for name in list_routings() if name in ("kmeans", "mean", "max_min")],
)
def test_other_routings(name: str, routing: str) -> None:
    model = network(name, routing=create_routing(routing))
    assert type(model.routing) is type(create_routing(routing))
    words = some_words(2, 5)
    torch.testing.assert_close(
        model(F.pad(words, (0, 4))).activation, model(words).activation
    )


def test_words_are_hidden_in_training_alone() -> None:
    model = network("text_cnn", hidden_words=0.9, dropout=0.0)
    words = some_words(2, 50)
    model.train()
    unknown = model.embedding.weight[UNKNOWN]
    vectors, _ = model.vectors(words)
    share = (vectors.movedim(1, 2) == unknown).all(-1).double().mean()
    assert 0.8 < share < 1
    model.eval()
    vectors, _ = model.vectors(words)
    torch.testing.assert_close(vectors.movedim(1, 2), model.embedding(words))


def test_what_dynamic_routing_learns_from_a_fresh_start() -> None:
    """Capsules of different words differ at the start: a few steps tell two words
    apart.
    """
    for name in ("text_capsnet", "text_encoder", "text_pooled"):
        torch.manual_seed(0)
        model = create_model(
            name, vocabulary=10, classes=2, word_dim=16, dropout=0.0, hidden_words=0.0
        )
        words = torch.tensor([[2, 4, 5], [3, 4, 5]])
        labels = torch.tensor([0, 1])
        optimizer = torch.optim.Adam(model.parameters(), 5e-3)
        for _ in range(25):
            optimizer.zero_grad()
            margin_loss(model(words).activation, labels).backward()
            optimizer.step()
        assert torch.equal(model(words).activation.argmax(1), labels), name


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param("text_capsnet", marks=SLOW), "text_encoder", "text_pooled"]
)
def test_exports_with_any_batch_and_length(name: str) -> None:
    model = network(name)
    shapes = {
        0: torch.export.Dim("batch"),
        1: torch.export.Dim("words", min=2, max=600),
    }
    program = torch.export.export(model, (some_words(2, 7),), dynamic_shapes=(shapes,))
    for words in (some_words(3, 11), some_words(2, 40)):
        prediction = program.module()(words)
        torch.testing.assert_close(
            prediction.activation, model(words).activation, rtol=1e-9, atol=1e-12
        )
