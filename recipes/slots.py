"""Slots and intents: each word goes to a slot by routing (Zhang et al. 2019,
Capsule-NLU).
"""

import random
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from recipes.kit.base import Line, Picture, Recipe, Study, facts_of, register_recipe
from recipes.kit.lab import Lab, facts_of_network, run_name
from recipes.kit.options import TrainingOptions
from torchcaps.layers import SlotAnswer, SlotCaps
from torchcaps.losses import margin_loss
from torchcaps_lab.data.base import find_data_dir
from torchcaps_lab.report import new_figure

FACTS = facts_of("slots")
HEADS: dict[str, dict[str, Any]] = FACTS["heads"]
F1, INTENT, SENTENCE = "F1 of slots", "accuracy of intents", "accuracy of sentences"
ROWS = {f"{data}: {head}": (data, head) for data in ("SNIPS", "ATIS") for head in HEADS}
SHOWN = tuple(FACTS["shown"])
"""Sentences for the picture, written for it."""
MADE = (
    ("play", "artist", "play a song of", ("nina simone", "miles")),
    ("book", "city", "book a table in", ("oslo", "new york")),
)


class Sentence(NamedTuple):
    """Words, a slot for each (``B-``, ``I-`` and ``O``), and the intent of them all."""

    words: tuple[str, ...]
    slots: tuple[str, ...]
    intent: str


def read_sentences(folder: Path) -> list[Sentence]:
    """The sentences of a split: words in ``seq.in``, slots in ``seq.out``, intents in
    ``label``, a line for each.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if the files differ in lines, a line in words and slots, or a
            sentence has no words or no intent.
    """
    files = [folder / name for name in ("seq.in", "seq.out", "label")]
    if missing := [file.name for file in files if not file.is_file()]:
        raise FileNotFoundError(f"there is no {' and no '.join(missing)} in {folder}")
    lines = [
        file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        for file in files
    ]
    if len({*map(len, lines)}) > 1:
        counts = ", ".join(
            f"{file.name} {len(own)}" for file, own in zip(files, lines, strict=True)
        )
        raise ValueError(
            f"the files in {folder} must have as many lines as each other, got {counts}"
        )
    sentences = []
    for number, (words, slots, intent) in enumerate(zip(*lines, strict=True), 1):
        found = Sentence(tuple(words.split()), tuple(slots.split()), intent.strip())
        if not found.words or not found.intent:
            raise ValueError(
                f"{folder}, line {number}: a sentence must have words and an intent, "
                f"got {found}"
            )
        if len(found.words) != len(found.slots):
            counts = f"{len(found.words)} words and {len(found.slots)} slots"
            raise ValueError(
                f"{folder}, line {number}: each word must have a slot, got {counts}"
            )
        sentences.append(found)
    return sentences


def made_sentences(count: int, seed: int) -> list[Sentence]:
    """Sentences of two intents and three slots, for tests."""
    draw, sentences = random.Random(seed), []
    for _ in range(count):
        intent, kind, line, names = draw.choice(MADE)
        before, (first, *rest) = line.split(), draw.choice(names).split()
        slots = (*("O" for _ in before), f"B-{kind}", *(f"I-{kind}" for _ in rest))
        sentences.append(Sentence((*before, first, *rest), slots, intent))
    return sentences


@lru_cache(maxsize=100_000)
def grams(word: str, buckets: int) -> tuple[int, ...]:
    """The word and its parts of 2 to 5 letters, beginning and end marked, as numbers of
    buckets.
    """
    marked = f"<{word}>"
    parts = [marked[k : k + n] for n in range(2, 6) for k in range(len(marked) - n + 1)]
    return tuple(zlib.crc32(part.encode()) % buckets for part in (marked, *parts))


@dataclass(frozen=True, kw_only=True)
class SlotsSettings(TrainingOptions):
    """One preset.

    Attributes:
        sets: each data set, with its ``folder`` or how many sentences are ``made``, and
            settings that it changes.
        lr: the largest learning rate of Adam; it rises over a tenth of the steps and
            then falls (OneCycleLR).
        word_dim: of vectors of words, and of those of their parts.
        buckets: into which parts of words are hashed.
        hidden: of the LSTM, in each direction.
        twin_hidden: the same of the twin, for as many parameters.
        caps_dim: of word capsules.
        pose_dim: of slots and intents.
        dropout: before and after the LSTM.
        hidden_words: share of the words known by their parts alone in training.
    """

    sets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lr: float = 0.004
    word_dim: int = 64
    buckets: int = 8192
    hidden: int = 96
    twin_hidden: int = 96
    caps_dim: int = 64
    pose_dim: int = 16
    dropout: float = 0.3
    hidden_words: float = 0.1


class SlotNet(nn.Module):
    """A BiLSTM over words and their parts; slots and intents are capsules, or linear
    layers for the ``twin``.
    """

    def __init__(self, train: Sequence[Sentence], options: Mapping[str, Any]) -> None:
        super().__init__()
        self.words = {
            word: k
            for k, word in enumerate(sorted({w for one in train for w in one.words}), 1)
        }
        self.slots = sorted({slot for one in train for slot in one.slots})
        self.intents = sorted({one.intent for one in train})
        self.options, self.twin = options, options.get("twin", False)
        size, hidden = (
            options["word_dim"],
            options["twin_hidden" if self.twin else "hidden"],
        )
        self.known = nn.Embedding(1 + len(self.words), size)
        nn.init.normal_(self.known.weight, std=0.3)
        self.spelled = nn.EmbeddingBag(options["buckets"], size, mode="mean")
        self.lstm = nn.LSTM(2 * size, hidden, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(options["dropout"])
        if self.twin:
            self.slot, self.intent = (
                nn.Linear(2 * hidden, len(names))
                for names in (self.slots, self.intents)
            )
        else:
            dim, pose_dim = options["caps_dim"], options["pose_dim"]
            self.capsule = nn.Linear(2 * hidden, dim)
            sizes = {
                "pose_dim": pose_dim,
                "intent_dim": pose_dim,
                "steps": options["steps"],
            }
            self.head = SlotCaps(
                dim,
                len(self.slots),
                len(self.intents),
                pull=options.get("pull", 0.1),
                **sizes,
            )

    def features(self, sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Of words, (B, L, 2 hidden), and where there are words, bool (B, L)."""
        different = {word: k for k, word in enumerate(dict.fromkeys(chain(*sentences)))}
        parts = [grams(word, self.options["buckets"]) for word in different]
        starts = torch.tensor([0, *accumulate(map(len, parts))][:-1])
        lengths = torch.tensor([len(one) for one in sentences])
        places = pad_sequence(
            [torch.tensor([different[w] for w in one]) for one in sentences],
            batch_first=True,
        )
        known = torch.tensor([self.words.get(word, 0) for word in different])[places]
        if self.training:
            known = known.masked_fill(
                torch.rand(known.shape) < self.options["hidden_words"], 0
            )
        spelled = self.spelled(torch.tensor([*chain(*parts)]), starts)[places]
        vectors = self.drop(torch.cat([self.known(known), spelled], -1))
        packed = pack_padded_sequence(
            vectors, lengths, batch_first=True, enforce_sorted=False
        )
        found, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.drop(found), torch.arange(found.shape[1]) < lengths[:, None]

    def forward(
        self, sentences: Sequence[Sequence[str]]
    ) -> tuple[Tensor, Tensor, SlotAnswer | None]:
        """Logits of the slots of all words, one after the other, activations of
        intents, and what capsules say.
        """
        features, there = self.features(sentences)
        if self.twin:
            pooled = features.masked_fill(~there[..., None], -torch.inf).amax(1)
            return self.slot(features)[there], self.intent(pooled), None
        answer = self.head(self.capsule(features), there)
        return answer.logits[there], answer.intents.activation, answer

    def loss(self, batch: Sequence[Sentence]) -> Tensor:
        """Cross-entropy of the slots, and of the twin's intents; the margin loss of
        intents that are capsules.
        """
        logits, intents, _ = self([one.words for one in batch])
        slots = torch.tensor(
            [self.slots.index(slot) for one in batch for slot in one.slots]
        )
        intent = torch.tensor([self.intents.index(one.intent) for one in batch])
        return F.cross_entropy(logits, slots) + (
            F.cross_entropy if self.twin else margin_loss
        )(intents, intent)

    @torch.no_grad()
    def said(
        self, sentences: Sequence[Sequence[str]], at_once: int = 100
    ) -> list[Sentence]:
        """What the network says of sentences."""
        self.eval()
        found = []
        for start in range(0, len(sentences), at_once):
            batch = sentences[start : start + at_once]
            logits, intents, _ = self(batch)
            slots = iter([self.slots[slot] for slot in logits.argmax(-1).tolist()])
            for words, intent in zip(batch, intents.argmax(-1).tolist(), strict=True):
                found.append(
                    Sentence(
                        (*words,),
                        tuple(islice(slots, len(words))),
                        self.intents[intent],
                    )
                )
        return found


def score(said: Sequence[Sentence], true: Sequence[Sentence]) -> dict[str, float]:
    """F1 of whole slots by seqeval, and shares of right intents and of sentences with
    nothing wrong, in percent.
    """
    from seqeval.metrics import f1_score

    f1 = f1_score([list(one.slots) for one in true], [list(one.slots) for one in said])
    intents = sum(
        one.intent == other.intent for one, other in zip(said, true, strict=True)
    )
    whole = sum(one == other for one, other in zip(said, true, strict=True))
    return {
        F1: 100 * float(f1),
        INTENT: 100 * intents / len(true),
        SENTENCE: 100 * whole / len(true),
    }


def batches(
    train: Sequence[Sentence], size: int, pool: int = 40
) -> Iterator[list[Sentence]]:
    """All sentences in random batches of similar length: sorted within each ``pool``
    batches.
    """
    order, found = torch.randperm(len(train)).tolist(), list[list[Sentence]]()
    for start in range(0, len(order), pool * size):
        near = sorted(
            (train[k] for k in order[start : start + pool * size]),
            key=lambda one: len(one.words),
        )
        found += [near[k : k + size] for k in range(0, len(near), size)]
    yield from (found[k] for k in torch.randperm(len(found)).tolist())


def train_network(
    data: Mapping[str, Sequence[Sentence]], options: Mapping[str, Any], lab: Lab
) -> SlotNet:
    """Trains on ``data["train"]``; shows figures on ``data["valid"]`` after each
    epoch.
    """
    network, train, size = (
        SlotNet(data["train"], options),
        data["train"],
        options["batch_size"],
    )
    optimizer = torch.optim.Adam(network.parameters(), options["lr"], fused=True)
    steps = options["epochs"] * -(-len(train) // size)
    rate = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options["lr"], total_steps=steps, pct_start=0.1
    )
    for epoch in range(options["epochs"]):
        network.train()
        for batch in batches(train, size):
            optimizer.zero_grad()
            network.loss(batch).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 5.0)
            optimizer.step()
            rate.step()
        found = score(network.said([one.words for one in data["valid"]]), data["valid"])
        lab.show(
            f"epoch {epoch + 1}, valid: "
            f"{', '.join(f'{name} {value:.2f}' for name, value in found.items())}"
        )
    return network.eval()


@register_recipe
class Slots(Recipe[SlotsSettings]):
    """Slots and intents by capsules, in 1 to 3 steps, with and without re-routing, and
    by linear layers.
    """

    name: ClassVar = "slots"
    rows: ClassVar = ROWS
    lines: ClassVar = tuple(
        Line(
            row,
            measure,
            FACTS["published"].get(row, {}).get(measure),
            FACTS["source"],
            higher_is_better=True,
        )
        for row in ROWS
        for measure in (F1, INTENT, SENTENCE)
    )
    settings: ClassVar = SlotsSettings
    grows: ClassVar = True
    apart: ClassVar = True

    def run(self, lab: Lab, settings: SlotsSettings) -> Study:
        """Trains and measures each row; the test sentences are read after the
        training.
        """
        study = Study(lab, settings)
        for row in self.present(settings):
            data, head = ROWS[row]
            options = {**vars(settings), **settings.sets[data], **HEADS[head]}
            start, busy = time.perf_counter(), time.process_time()
            with torch.random.fork_rng(devices=()):
                torch.manual_seed(lab.seed)
                network = train_network(
                    {part: _part(options, part) for part in ("train", "valid")},
                    options,
                    lab,
                )
            seconds, busy = time.perf_counter() - start, time.process_time() - busy
            test = _part(options, "test")
            labels = {label for one in test for label in (*one.slots, one.intent)}
            if unknown := sorted(labels - {*network.slots, *network.intents}):
                lab.show(
                    f"{row}: the test has labels that training has not, which count "
                    f"as missed: {unknown}"
                )
            figures = score(network.said([one.words for one in test]), test)
            study.note(row, figures)
            study.facts[row] = {
                "run": f"{run_name(self.name, row)}-seed{lab.seed}",
                **facts_of_network(network, seconds),
                "epochs": options["epochs"],
                "cpu_seconds": round(busy, 1),
                "unknown": unknown,
                "figures": figures,
            }
            if not network.twin:
                study.curves[row] = {
                    "shown": [shown(network, line.split()) for line in SHOWN]
                }
        return study

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """Where the words of sentences go, by the first network of capsules."""
        found = next(
            (
                (row, own["shown"])
                for one in studies
                for row, own in one.curves.items()
                if own
            ),
            None,
        )
        return {} if found is None else {"words": _picture(*found)}


def _part(options: Mapping[str, Any], part: str) -> list[Sentence]:
    if count := options.get("made"):
        return made_sentences(count, ("train", "valid", "test").index(part))
    return read_sentences(find_data_dir(None) / options["folder"] / part)


@torch.no_grad()
def shown(
    network: SlotNet, words: Sequence[str], least: float = 0.05
) -> dict[str, Any]:
    """A sentence, its intent, and the assignment of its words to the slots that get
    ``least`` of one of them.
    """
    _, intents, answer = network.eval()([words])
    assert answer is not None
    kept = (answer.assignment[0].amax(0) >= least).nonzero()[:, 0]
    slots, intent = (
        [network.slots[k] for k in kept.tolist()],
        network.intents[int(intents.argmax())],
    )
    shares = answer.assignment[0][:, kept].double().round(decimals=3).tolist()
    return {"words": [*words], "intent": intent, "slots": slots, "assignment": shares}


def _picture(row: str, sentences: Sequence[Mapping[str, Any]]) -> Picture:
    """Dots for the assignment of words across to slots down, in the colour of the
    slot.
    """
    heights = [len(one["slots"]) + 2 for one in sentences]
    figure = new_figure(10.5, 0.27 * sum(heights) + 0.4)
    for axes, one in zip(
        figure.subplots(len(heights), 1, height_ratios=heights), sentences, strict=True
    ):
        order = sorted(one["slots"], key=lambda slot: (slot[2:] or "~", slot))
        kinds = [*dict.fromkeys(slot[2:] for slot in order)]
        colours = {
            slot: f"C{kinds.index(slot[2:])}" if slot[2:] else "0.55" for slot in order
        }
        for place, (word, own) in enumerate(
            zip(one["words"], one["assignment"], strict=True)
        ):
            shares = [own[one["slots"].index(slot)] for slot in order]
            best = order[shares.index(max(shares))]
            axes.text(
                place,
                -1,
                word,
                color=colours[best],
                ha="center",
                va="center",
                fontsize=10,
            )
            areas = [130 * share for share in shares]
            axes.scatter(
                [place] * len(order), range(len(order)), areas, [*colours.values()]
            )
        axes.set_yticks(range(len(order)), order, fontsize=8)
        axes.set(xlim=(-0.7, 13.7), ylim=(len(order) - 0.5, -1.6), xticks=[])
        axes.set_title(one["intent"], loc="left", fontsize=9)
        axes.spines[:].set_visible(False)
        axes.grid(axis="y", linewidth=0.4)
        axes.set_axisbelow(True)
    return Picture(figure, f"{FACTS['caption']} ({row})")
