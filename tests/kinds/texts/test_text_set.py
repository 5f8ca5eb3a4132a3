"""Sets of texts: batches, other words, texts behind each other."""

from functools import partial

import pytest
import torch

from torchcaps_lab.data import Digits, MadeQuestions, Preprocess, TextSet, Words, joined
from torchcaps_lab.kinds.texts.words import PADDING
from torchcaps_lab.testing import check_dataset


class TestSets:
    data = MadeQuestions(40)

    def test_check_dataset(self) -> None:
        check_dataset(partial(MadeQuestions, 40))

    def test_batches_are_as_long_as_their_longest_text(self) -> None:
        train = self.data.train
        lengths = (train.inputs != PADDING).sum(1)
        short = lengths.argsort()[:3].tolist()
        batch = train.__getitems__(short)
        assert batch.inputs.shape == (3, int(lengths[short].max()))
        assert torch.equal(batch.inputs, train.inputs[short, : batch.inputs.shape[1]])
        assert torch.equal(batch.pictures, batch.inputs)

    def test_subset_refuses_a_mask(self) -> None:
        """Its texts would be the first two, again and again."""
        with pytest.raises(
            ValueError, match=r"indices must be int64 \(M,\), got torch.bool"
        ):
            self.data.test.subset(torch.ones(len(self.data.test), dtype=torch.bool))

    def test_in_other_words(self) -> None:
        words = Words(("river", "?"))
        second = self.data.test.in_words(words)
        assert second.texts == self.data.test.texts
        assert int(second.inputs.max()) == 3
        assert self.data.test.in_words(self.data.words) is self.data.test

    def test_nothing_that_is_for_images(self) -> None:
        with pytest.raises(
            ValueError, match="preprocess and composition are for images"
        ):
            self.data.train.prepared(Preprocess(shift=1))
        with pytest.raises(ValueError, match=r"int64 \(N, L\), got torch.uint8"):
            TextSet(
                torch.zeros(2, 1, 4, 4, dtype=torch.uint8),
                torch.zeros(2, dtype=torch.int64),
                ("a",),
            )

    def test_joined(self) -> None:
        test = self.data.test
        pairs = joined(test, 30)
        assert (pairs.labels.sum(1) == 2).all()
        own = {
            text: test.classes[label]
            for text, label in zip(test.texts, test.labels.tolist(), strict=True)
        }
        for text, mask in zip(pairs.texts, pairs.labels, strict=True):
            predicted = {
                test.classes[label] for label in mask.nonzero().flatten().tolist()
            }
            halves = [
                (first_text, text.removeprefix(f"{first_text} "))
                for first_text in own
                if text.startswith(f"{first_text} ")
            ]
            assert any(
                second in own and {own[half], own[second]} == predicted
                for half, second in halves
            )
        assert joined(test, 30).texts == pairs.texts != joined(test, 30, seed=1).texts
        with pytest.raises(ValueError, match="of one class each"):
            joined(pairs, 2)
        with pytest.raises(TypeError, match="texts must be a TextSet, got Examples"):
            joined(Digits().test, 2)
