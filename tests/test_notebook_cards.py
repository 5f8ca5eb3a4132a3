"""What a notebook shows of an answer and a classifier."""

import torch

import torchcaps as tc
from torchcaps_lab.data import Digits


def test_cards() -> None:
    digits = Digits().test
    names = [f"<{name}>" for name in digits.classes]
    classifier = tc.Classifier(
        tc.load_pretrained("digits/capsnet_digits"), classes=names
    )
    answer = classifier.predict(digits.inputs[0].float() / 255)
    assert answer.picture is not None
    assert torch.allclose(answer.picture, digits.inputs[0].float() / 255)
    shown = answer._repr_html_()
    assert shown.count("<tr>") == 10
    assert "data:image/png;base64," in shown
    assert f"&lt;{digits.classes[0]}&gt;" in shown
    assert names[0] not in shown
    assert "picture" not in answer.json()
    card = classifier._repr_html_()
    assert "CapsNet" in card
    assert "10: &lt;0&gt;" in card
    assert repr(classifier).startswith("<Classifier: network CapsNet, ")
