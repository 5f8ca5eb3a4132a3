"""Data of slots: what is read, what is refused, and how the answers are scored."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from recipes import Lab, get_recipe
from recipes.kit.queue import OutOfTime
from recipes.slots import (
    F1,
    INTENT,
    SENTENCE,
    Sentence,
    SlotNet,
    batches,
    grams,
    made_sentences,
    read_sentences,
    score,
)

SENTENCES = {
    "seq.in": "go to new york\nplay it\n",
    "seq.out": "O O B-city I-city\nO O \n",
    "label": "travel\nmusic\n",
}
TINY = {
    "word_dim": 4,
    "buckets": 16,
    "hidden": 4,
    "twin_hidden": 5,
    "caps_dim": 4,
    "pose_dim": 3,
    "dropout": 0.5,
    "hidden_words": 0.5,
    "steps": 2,
}


def written(folder: Path, **changes: str) -> Path:
    for name, text in {**SENTENCES, **changes}.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_sentences_are_read(tmp_path: Path) -> None:
    first, second = read_sentences(written(tmp_path))
    assert first == Sentence(
        ("go", "to", "new", "york"), ("O", "O", "B-city", "I-city"), "travel"
    )
    assert second.intent == "music"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "label",
            "travel\n",
            "as many lines as each other, got seq.in 2, seq.out 2, label 1",
        ),
        (
            "seq.out",
            "O O B-city\nO O\n",
            "line 1: each word must have a slot, got 4 words and 3 slots",
        ),
        (
            "seq.in",
            "go to new york\n \n",
            "line 2: a sentence must have words and an intent",
        ),
        ("label", "travel\n\n", "line 2: a sentence must have words and an intent"),
    ],
)
def test_what_is_not_whole_is_refused(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        read_sentences(written(tmp_path, **{name: text}))
    (tmp_path / "label").unlink()
    with pytest.raises(FileNotFoundError, match="there is no label in"):
        read_sentences(tmp_path)


def test_f1_counts_chunks() -> None:
    true = [
        Sentence(("a", "b", "c"), ("B-x", "I-x", "B-y"), "p"),
        Sentence(("d",), ("O",), "q"),
    ]
    half = [
        Sentence(("a", "b", "c"), ("B-x", "O", "B-y"), "p"),
        Sentence(("d",), ("O",), "p"),
    ]
    assert score(true, true) == {F1: 100, INTENT: 100, SENTENCE: 100}
    assert score(half, true) == {
        F1: 50,
        INTENT: 50,
        SENTENCE: 0,
    }  # one chunk of two is right, half a chunk is wrong


def test_parts_of_a_word_are_the_same_everywhere() -> None:
    assert grams("ab", 2**20)[1:] == grams("ab", 2**20)[1:]
    assert len(grams("ab", 7)) == 1 + 3 + 2 + 1
    assert set(grams("walking", 2**31)) & set(grams("talking", 2**31))


def test_batches_hold_each_sentence_once() -> None:
    made = [Sentence((str(k),) * (1 + k % 5), (), "") for k in range(53)]
    actual = list(batches(made, 4, pool=3))
    assert sorted(sentence.words for batch in actual for sentence in batch) == sorted(
        sentence.words for sentence in made
    )
    assert {len(batch) for batch in actual} == {4, 1}


@pytest.mark.parametrize("twin", [False, True])
def test_neighbours_in_a_batch_change_no_answer(twin: bool) -> None:
    train = made_sentences(12, 0)
    network = SlotNet(train, {**TINY, "twin": twin}).double().eval()
    words = [sentence.words for sentence in train] + [
        ("a", "wholly", "unknown", "word")
    ]
    with torch.no_grad():
        alone = [network([word])[:2] for word in words]
        logits, intents, _ = network(words)
    torch.testing.assert_close(
        logits, torch.cat([slot_logits for slot_logits, _ in alone])
    )
    torch.testing.assert_close(
        intents, torch.cat([intent_logits for _, intent_logits in alone])
    )


def test_labels_that_training_has_not_are_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from recipes import slots

    def parts(options: object, part: str) -> list[Sentence]:
        return [
            sentence._replace(intent="fly") if part == "test" else sentence
            for sentence in made_sentences(8, 0)
        ]

    monkeypatch.setattr(slots, "_part", parts)
    lines: list[str] = []
    settings = get_recipe("slots").presets["smoke"]
    study = get_recipe("slots").run(
        Lab("smoke", 0, tmp_path, show=lines.append), settings
    )
    assert study.facts[settings.rows[0]]["unknown"] == ["fly"]
    assert study.figures[settings.rows[0], INTENT] == 0
    assert any(
        "labels that training has not, which count as missed: ['fly']" in line
        for line in lines
    )


class EndsEarly(L.Callback):
    """Interrupts a training before its last epoch."""

    def on_train_epoch_start(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.current_epoch == 2:
            raise OutOfTime


def test_a_training_that_was_interrupted_has_the_figures_of_one_piece(
    tmp_path: Path,
) -> None:
    recipe = get_recipe("slots")
    row = "SNIPS: capsules, 2 steps"
    settings = replace(recipe.presets["smoke"], rows=(row,))
    whole = recipe.run(Lab("smoke", 1, tmp_path / "whole"), settings)
    with pytest.raises(OutOfTime):
        recipe.run(
            Lab("smoke", 1, tmp_path / "runs", callbacks=[EndsEarly()]), settings
        )
    lab = Lab("smoke", 1, tmp_path / "runs")
    resumed = recipe.run(lab, settings)
    losses = []
    for folder in (tmp_path / "whole", tmp_path / "runs"):
        metrics = folder / "smoke/slots-snips-capsules-2-steps-seed1/metrics.csv"
        rows = csv.DictReader(metrics.read_text().splitlines())
        losses.append([epoch["train_loss"] for epoch in rows])
    assert losses[0] == losses[1]
    assert len(losses[0]) == 3
    assert resumed.figures == whole.figures
    with pytest.raises(FileExistsError, match="holds a run with other options"):
        recipe.run(lab, replace(settings, lr=0.5))
