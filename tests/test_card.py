"""What is saved with a network, and what earlier versions saved."""

from typing import Any

import pytest
import torch

import torchcaps as tc
from torchcaps import list_models
from torchcaps_lab.card import Card
from torchcaps_lab.data import Digits, Preprocess, Series, Text, Words
from torchcaps_lab.tasks import Classification

PREPROCESS = Preprocess(crop=6, standardise=True)


def reopened(network: Any, saved: dict[str, Any], folder: Any) -> Card:
    network.save_pretrained(folder, **saved)
    return Card.of(tc.load_pretrained(folder))


def test_a_card_of_a_training_is_read_as_it_was_saved(tmp_path) -> None:
    card = Card.of_training(Digits(), PREPROCESS, Classification())
    card = card.with_extra("meanings", {"3": "three"})
    network = tc.create_model("capsnet_digits", image_shape=(1, 6, 6))
    again = reopened(network, card.saved(), tmp_path)
    assert (again.classes, again.reader) == (card.classes, card.reader)
    assert (again.task.name, again.extra) == ("classification", card.extra)


def test_images_of_earlier_versions(tmp_path) -> None:
    """Nine keys stood where the card stands."""
    network = tc.create_model("capsnet_digits", image_shape=(1, 6, 6), classes=2)
    old = {
        "classes": ["a", "b"],
        "preprocess": PREPROCESS.config(),
        "raw_image_shape": [1, 12, 12],
        "resize": "crop",
        "range": [0, 4095],
        "task": {"name": "several_labels", "count": 1, "threshold": 0.5},
        "calibration": None,
        "strangers": None,
    }
    card = reopened(network, old, tmp_path)
    reader: Any = card.reader
    assert (reader.name, reader.image_shape) == ("images", (1, 12, 12))
    assert (reader.resize, reader.levels) == ("crop", (0, 4095))
    assert reader.preprocess == PREPROCESS
    assert (card.classes, card.task.name) == (("a", "b"), "several_labels")
    assert reopened(network, card.saved(), tmp_path / "new").reader == reader


def test_texts_and_series_of_earlier_versions(tmp_path) -> None:
    table = tmp_path / "texts.csv"
    rows = [f"it was {word} {k},{word}" for word in ("dull", "fun") for k in range(9)]
    table.write_text("\n".join(["text,label", *rows]))
    texts: Any = Text(table)
    network = tc.create_model(
        "text_cnn", vocabulary=len(texts.words), classes=2, word_dim=8
    )
    old = {"words": texts.words.config(), "raw_image_shape": [1, 1, 512]}
    card: Any = reopened(network, old, tmp_path / "texts")
    assert (card.reader.name, card.reader.words) == ("texts", texts.words)
    table = tmp_path / "series.csv"
    rows = [f"{k},{'up' if k % 2 else 'down'},{j}" for k in range(20) for j in range(5)]
    table.write_text("\n".join(["series,label,height", *rows]))
    series: Any = Series(table)
    network = tc.create_model("series_cnn", in_channels=1, classes=2)
    old = {"scale": series.scale.config(), "raw_image_shape": [1, 1, 1]}
    card = reopened(network, old, tmp_path / "series")
    assert (card.reader.name, card.reader.scale) == ("series", series.scale)
    assert card.reader.channels == 1


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        ({"name": "smells"}, "reader must be one of"),
        ({"name": "images", "image_shape": [1]}, "damaged"),
        ({"name": "texts"}, "damaged"),
        ("images", "damaged"),
    ],
)
def test_a_damaged_reader_is_told_in_one_line(reader, message, tmp_path) -> None:
    network = tc.create_model("capsnet_digits")
    network.save_pretrained(tmp_path, reader=reader)
    with pytest.raises(ValueError, match=message):
        tc.Classifier.open(tmp_path)


def test_a_trained_network_of_the_package_answers_as_before() -> None:
    """Its file was saved before there were cards."""
    classifier = tc.Classifier.open("mnist/efficient_capsnet")
    assert "reader" not in classifier.network.extra
    assert classifier.card.saved()["reader"]["resize"] == "handwriting"
    answer = classifier(torch.zeros(1, 28, 28), resize="pad")
    assert len(answer.lengths) == 10


@pytest.mark.parametrize("takes", ["words", "series", "pixels"])
def test_a_reader_of_another_kind_of_input_is_refused(takes: str) -> None:
    """When the network is opened, not when it is asked the first question."""
    digits = Card.of_training(Digits(), Preprocess(), Classification())
    network = tc.create_model(list_models(takes=takes)[0])
    network.extra = digits.saved()
    message = f"what was saved reads images, but a {type(network).__name__} takes"
    with pytest.raises(ValueError, match=f"{message} {takes}"):
        tc.Classifier(network)


def test_the_vocabulary_of_texts_does_not_read_images() -> None:
    network = tc.create_model("capsnet_digits")
    vocabulary = {"name": "texts", "words": Words(("a",)).config()}
    network.extra = {"reader": vocabulary}
    with pytest.raises(ValueError, match="reads words, but a CapsNet takes images"):
        tc.Classifier(network)
