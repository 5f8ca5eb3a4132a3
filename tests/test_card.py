"""What is saved with a network."""

from typing import Any

import pytest
import torch

import torchcaps as tc
from torchcaps import list_models
from torchcaps.models.pretrained import list_pretrained
from torchcaps_lab.card import Card
from torchcaps_lab.data import Digits, Preprocess, Words
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


@pytest.mark.parametrize("takes", ["words", "series"])
def test_a_network_that_needs_a_reader_was_saved_without(takes: str) -> None:
    network = tc.create_model(list_models(takes=takes)[0])
    with pytest.raises(ValueError, match=f"takes {takes}, .* save it with reader="):
        Card.of(network)


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        ({"name": "smells"}, "reader must be the name of"),
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


def test_names_of_saved_classes_command_no_terminal(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"name of a class .*'a\\x1b\[2J'"):
        reopened(tc.create_model("capsnet_digits"), {"classes": ["a\x1b[2J"]}, tmp_path)


@pytest.mark.parametrize("name", list_pretrained())
def test_networks_of_the_package_are_saved_as_this_version_saves(name: str) -> None:
    classifier = tc.Classifier.open(name)
    assert classifier.card.saved() == classifier.network.extra


def test_a_trained_network_of_the_package_reads_handwriting() -> None:
    classifier = tc.Classifier.open("mnist/efficient_capsnet")
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
