"""Words and their numbers."""

import pytest

from torchcaps_lab.data import Words
from torchcaps_lab.kinds.texts.words import UNKNOWN


class TestWords:
    words = Words(("film", "good", "."))

    def test_numbers_and_spans(self) -> None:
        (reading,) = self.words.read(["A  GOOD film."])
        assert reading.numbers.tolist() == [UNKNOWN, 3, 2, 4]
        assert ["A  GOOD film."[start:end] for start, end in reading.spans] == [
            "A",
            "GOOD",
            "film",
            ".",
        ]
        assert (reading.length, reading.unknown) == (4, 1)
        assert Words(("film", "good", "."), lower=False).read(["GOOD"])[0].unknown == 1

    def test_only_the_beginning_of_long_texts_is_read(self) -> None:
        (reading,) = Words(("film",), longest=7).read(["film " * 10_000])
        assert (len(reading.numbers), len(reading.spans), reading.length) == (
            7,
            7,
            10_000,
        )

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("这部电影很好", list("这部电影很好")),
            ("Хороший фильм!", ["хороший", "фильм", "!"]),
            ("अच्छी फिल्म", ["अच्छी", "फिल्म"]),
            ("فيلم جيد", ["فيلم", "جيد"]),
            ("ﬁlm", ["film"]),  # a ligature, in one form with what others type
            ("[padding]", ["[", "padding", "]"]),
            ("", []),
            (" \n\t\u200b", []),
        ],
    )
    def test_other_scripts(self, text: str, words: list[str]) -> None:
        assert Words().split(text) == words
        assert Words.of([text]).read([text])[0].unknown == 0

    def test_the_most_frequent_words_first(self) -> None:
        texts = ["b b b c c a", "a d"]
        assert Words.of(texts).vocabulary == ("b", "a", "c", "d")
        assert Words.of(texts, most=2).vocabulary == ("b", "a")
        assert Words.of(texts, least=2).vocabulary == ("b", "a", "c")

    def test_saved_and_opened(self) -> None:
        assert Words.from_config(self.words.config()) == self.words
        with pytest.raises(
            ValueError, match="words that were saved with the network are damaged"
        ):
            Words.from_config({"vocabulary": ["a"]})
        with pytest.raises(ValueError, match="each word once, got a more often"):
            Words(("a", "b", "a"))
