"""Slots and intents: each word goes to a slot by routing (Zhang et al. 2019,
Capsule-NLU).
"""

import json
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, chain, islice, product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

from recipes.kit.base import Line, Picture, Recipe, Study, facts_of, register_recipe
from recipes.kit.lab import Trained, facts_of_network, run_name
from recipes.kit.options import TrainingOptions
from torchcaps.layers import SlotCaps
from torchcaps.losses import margin_loss
from torchcaps.whole import LARGEST_NOTE, LARGEST_TABLE, read_text
from torchcaps_lab.data import find_data_dir
from torchcaps_lab.report import new_figure
from torchcaps_lab.training.callbacks import ONE_AN_EPOCH, History
from torchcaps_lab.training.checkpoints import WholeCheckpoints, checkpoint_to_resume
from torchcaps_lab.training.fitting import expected_warnings

FACTS = facts_of("slots")
HEADS: dict[str, dict[str, Any]] = FACTS["heads"]
F1 = "F1 of slots"
INTENT = "accuracy of intents"
SENTENCE = "accuracy of sentences"
ROWS = {
    f"{data}: {head}": (data, head) for data, head in product(("SNIPS", "ATIS"), HEADS)
}
SHOWN = tuple(FACTS["shown"])
"""Sentences for the picture, written for it."""
PATTERNS = (
    ("play", "artist", "play a song of", ("nina simone", "miles")),
    ("book", "city", "book a table in", ("oslo", "new york")),
)
"""Intent, slot, beginning and names of made-up sentences."""


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
    names = ("seq.in", "seq.out", "label")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"there is no {' and no '.join(missing)} in {folder}")
    lines = {}
    for name in names:
        text = read_text(folder / name, LARGEST_TABLE)
        lines[name] = text.removesuffix("\n").split("\n")
    counts = {name: len(lines_of_file) for name, lines_of_file in lines.items()}
    if len({*counts.values()}) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ValueError(
            f"the files in {folder} must have as many lines as each other, got {listed}"
        )
    sentences = []
    for number, line in enumerate(zip(*lines.values(), strict=True), 1):
        words, slots, intent = line
        sentence = Sentence(tuple(words.split()), tuple(slots.split()), intent.strip())
        if not sentence.words or not sentence.intent:
            raise ValueError(
                f"{folder}, line {number}: a sentence must have words and an intent, "
                f"got {sentence}"
            )
        if len(sentence.words) != len(sentence.slots):
            raise ValueError(
                f"{folder}, line {number}: each word must have a slot, got "
                f"{len(sentence.words)} words and {len(sentence.slots)} slots"
            )
        sentences.append(sentence)
    return sentences


def made_sentences(count: int, seed: int) -> list[Sentence]:
    """Sentences of two intents and three slots, for tests."""
    draw = random.Random(seed)
    sentences = []
    for _ in range(count):
        intent, slot, start, names = draw.choice(PATTERNS)
        before = start.split()
        name = draw.choice(names).split()
        of_name = (f"B-{slot}", *(f"I-{slot}" for _ in name[1:]))
        slots = (*("O" for _ in before), *of_name)
        sentences.append(Sentence((*before, *name), slots, intent))
    return sentences


@lru_cache(maxsize=100_000)
def grams(word: str, buckets: int) -> tuple[int, ...]:
    """The word and its parts of 2 to 5 letters, beginning and end marked, as numbers of
    buckets.
    """
    marked = f"<{word}>"
    parts = [marked]
    for length in range(2, 6):
        starts = range(len(marked) - length + 1)
        parts += [marked[start : start + length] for start in starts]
    return tuple(zlib.crc32(part.encode()) % buckets for part in parts)


@dataclass(frozen=True, kw_only=True)
class SlotsSettings(TrainingOptions):
    """One preset.

    Attributes:
        sets: each data set, with its ``folder`` or how many sentences are ``made``, and
            settings that it changes.
        lr: the largest learning rate of Adam; it rises over a tenth of the steps and
            then falls (OneCycleLR).
        word_dim: the dimension of vectors of words, and of those of their parts.
        buckets: the number of buckets into which parts of words are hashed.
        hidden: the dimension of the LSTM, in each direction.
        twin_hidden: the dimension of the LSTM of the twin, for as many parameters.
        caps_dim: the dimension of word capsules.
        pose_dim: the dimension of slots and intents.
        dropout: the dropout before and after the LSTM.
        hidden_words: the share of the words that training reads by their parts alone.
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

    def __init__(
        self,
        train: Sequence[Sentence],
        options: Mapping[str, Any],
    ) -> None:
        super().__init__()
        words = sorted({*chain(*(sentence.words for sentence in train))})
        self.words = {word: number for number, word in enumerate(words, 1)}
        self.slots = sorted({*chain(*(sentence.slots for sentence in train))})
        self.intents = sorted({sentence.intent for sentence in train})
        self.options, self.twin = options, options.get("twin", False)
        size = options["word_dim"]
        hidden = options["twin_hidden" if self.twin else "hidden"]
        self.known = nn.Embedding(1 + len(self.words), size)
        nn.init.normal_(self.known.weight, std=0.3)
        self.spelled = nn.EmbeddingBag(
            options["buckets"],
            size,
            mode="mean",
        )
        self.lstm = nn.LSTM(
            2 * size,
            hidden,
            batch_first=True,
            bidirectional=True,
        )
        self.drop = nn.Dropout(options["dropout"])
        if self.twin:
            self.slot = nn.Linear(2 * hidden, len(self.slots))
            self.intent = nn.Linear(2 * hidden, len(self.intents))
        else:
            self.capsule = nn.Linear(2 * hidden, options["caps_dim"])
            self.head = SlotCaps(
                options["caps_dim"],
                len(self.slots),
                len(self.intents),
                pull=options.get("pull", 0.1),
                pose_dim=options["pose_dim"],
                intent_dim=options["pose_dim"],
                steps=options["steps"],
            )

    def features(self, sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Of words, (B, L, 2 hidden), and where there are words, bool (B, L)."""
        vocabulary = list(dict.fromkeys(chain(*sentences)))
        place = {word: number for number, word in enumerate(vocabulary)}
        rows = [torch.tensor([*map(place.get, words)]) for words in sentences]
        places = pad_sequence(rows, batch_first=True)
        numbers = torch.tensor([self.words.get(word, 0) for word in vocabulary])[places]
        if self.training:
            hidden = torch.rand(numbers.shape) < self.options["hidden_words"]
            numbers = numbers.masked_fill(hidden, 0)
        parts = [grams(word, self.options["buckets"]) for word in vocabulary]
        starts = torch.tensor([0, *accumulate(map(len, parts))][:-1])
        spelled = self.spelled(torch.tensor([*chain(*parts)]), starts)[places]
        vectors = self.drop(torch.cat([self.known(numbers), spelled], -1))
        lengths = torch.tensor(list(map(len, sentences)))
        packed = pack_padded_sequence(
            vectors, lengths, batch_first=True, enforce_sorted=False
        )
        features, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        present = torch.arange(features.shape[1]) < lengths[:, None]
        return self.drop(features), present

    def forward(self, sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor, Any]:
        """Logits of the slots of all words, one after the other, activations of
        intents, and the answer of the capsules, or None.
        """
        features, present = self.features(sentences)
        if self.twin:
            pooled = features.masked_fill(~present[..., None], -torch.inf).amax(1)
            return self.slot(features)[present], self.intent(pooled), None
        answer = self.head(self.capsule(features), present)
        return answer.logits[present], answer.intents.activation, answer

    def loss(self, batch: Sequence[Sentence]) -> Tensor:
        """Cross-entropy of the slots, and of the twin's intents; the margin loss of
        intents that are capsules.
        """
        slot_logits, intent_scores, _ = self([sentence.words for sentence in batch])
        slots = chain.from_iterable(sentence.slots for sentence in batch)
        slot_labels = torch.tensor([self.slots.index(slot) for slot in slots])
        intents = [self.intents.index(sentence.intent) for sentence in batch]
        loss_of_intents = F.cross_entropy if self.twin else margin_loss
        return F.cross_entropy(slot_logits, slot_labels) + loss_of_intents(
            intent_scores, torch.tensor(intents)
        )

    @torch.no_grad()
    def answers(
        self, sentences: Sequence[Sequence[str]], at_once: int = 100
    ) -> list[Sentence]:
        """The sentences with the slots and the intents that the network predicts."""
        self.eval()
        answers = []
        for start in range(0, len(sentences), at_once):
            batch = sentences[start : start + at_once]
            slot_logits, intent_scores, _ = self(batch)
            slots = iter([self.slots[slot] for slot in slot_logits.argmax(-1).tolist()])
            intents = intent_scores.argmax(-1).tolist()
            for words, intent in zip(batch, intents, strict=True):
                slots_of_words = tuple(islice(slots, len(words)))
                answers.append(
                    Sentence(tuple(words), slots_of_words, self.intents[intent])
                )
        return answers


def score(answers: Sequence[Sentence], true: Sequence[Sentence]) -> dict[str, float]:
    """F1 of whole slots by seqeval, and shares of right intents and of sentences with
    nothing wrong, in percent.
    """
    from seqeval.metrics import f1_score

    true_slots = [list(sentence.slots) for sentence in true]
    f1 = f1_score(true_slots, [list(answer.slots) for answer in answers])
    right_intents = right_sentences = 0
    for answer, sentence in zip(answers, true, strict=True):
        right_intents += answer.intent == sentence.intent
        right_sentences += answer == sentence
    return {
        F1: 100 * float(f1),
        INTENT: 100 * right_intents / len(true),
        SENTENCE: 100 * right_sentences / len(true),
    }


def batches(
    train: Sequence[Sentence], size: int, pool: int = 40
) -> Iterator[list[Sentence]]:
    """All sentences in random batches of similar length: sorted within each ``pool``
    batches.
    """
    order = torch.randperm(len(train)).tolist()
    batches = list[list[Sentence]]()
    for start in range(0, len(order), pool * size):
        near = [train[place] for place in order[start : start + pool * size]]
        near.sort(key=lambda sentence: len(sentence.words))
        batches += [near[first : first + size] for first in range(0, len(near), size)]
    for place in torch.randperm(len(batches)).tolist():
        yield batches[place]


class SlotTraining(L.LightningModule):
    """Trains a network on ``parts["train"]``, and measures it on ``parts["valid"]``
    after each epoch.
    """

    def __init__(
        self,
        parts: Mapping[str, Sequence[Sentence]],
        options: Mapping[str, Any],
        seed: int,
    ) -> None:
        super().__init__()
        self.parts, self.options, self.seed = parts, options, seed
        self.network = SlotNet(parts["train"], options)

    def configure_optimizers(self) -> Any:
        """Adam, whose rate rises over a tenth of the steps and then falls."""
        rate = self.options["lr"]
        optimizer = torch.optim.Adam(self.network.parameters(), rate, fused=True)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, rate, total_steps=steps, pct_start=0.1
        )
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def train_dataloader(self) -> DataLoader[Any]:
        """The batches of an epoch, the same in a resumed training."""
        self._seed(self.current_epoch)
        some: Any = [*batches(self.parts["train"], self.options["batch_size"])]
        return DataLoader(some, batch_size=None, collate_fn=list)

    def val_dataloader(self) -> DataLoader[Any]:
        """All sentences at once, because F1 is no mean over batches."""
        everything: Any = [self.parts["valid"]]
        return DataLoader(everything, batch_size=None, collate_fn=list)

    def training_step(self, batch: Sequence[Sentence]) -> Tensor:
        """Its loss, with the same dropout in a resumed training."""
        self._seed(self.global_step)
        loss = self.network.loss(batch)
        self.log(
            "train_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch)
        )
        return loss

    def validation_step(self, batch: Sequence[Sentence]) -> None:
        """Figures of the sentences."""
        answers = self.network.answers([sentence.words for sentence in batch])
        figures = score(answers, batch)
        named = {f"val_{name}": value for name, value in figures.items()}
        self.log_dict(named, batch_size=len(batch))

    def _seed(self, place: int) -> None:
        torch.manual_seed(1_000_000 * self.seed + place)


@register_recipe
class Slots(Recipe[SlotsSettings]):
    """Slots and intents by capsules, in 1 to 3 steps, with and without re-routing, and
    by linear layers.
    """

    name: ClassVar = "slots"
    rows: ClassVar = {row: HEADS[head] for row, (_, head) in ROWS.items()}
    lines: ClassVar = tuple(
        Line(
            row,
            measure,
            FACTS["published"].get(row, {}).get(measure),
            FACTS["source"],
            higher_is_better=True,
        )
        for row, measure in product(ROWS, (F1, INTENT, SENTENCE))
    )
    settings: ClassVar = SlotsSettings
    grows: ClassVar = True

    def train(
        self,
        study: Study,
        row: str,
        stop_at: float | None,
    ) -> Trained:
        """Trains the network of a row; goes on where an interrupted training ended."""
        data, _ = ROWS[row]
        settings, lab = study.settings, study.lab
        options = {**vars(settings), **settings.sets[data], **self.rows[row]}
        folder = lab.folder(run_name(self.name, row))
        history = History(folder.metrics, lab.show, F1)
        config = json.dumps(options)
        with (
            folder.opened(config, resumed=folder.config.is_file()),
            torch.random.fork_rng(devices=()),
        ):
            if read_text(folder.config, LARGEST_NOTE) != config:
                raise FileExistsError(
                    f"{folder.path} holds a run with other options: choose another "
                    "folder for runs (--runs), or move it"
                )
            torch.manual_seed(lab.seed)
            parts = {part: _part(options, part) for part in ("train", "valid")}
            training = SlotTraining(parts, options, lab.seed)
            trainer = L.Trainer(
                accelerator="cpu",  # where the words of a batch are looked up
                max_epochs=options["epochs"],
                gradient_clip_val=5.0,
                reload_dataloaders_every_n_epochs=1,
                callbacks=[
                    history,
                    ModelCheckpoint(folder.checkpoints, **ONE_AN_EPOCH),
                    *lab.callbacks,
                ],
                logger=False,
                plugins=[WholeCheckpoints(folder.checkpoints)],
                enable_progress_bar=False,
                enable_model_summary=False,
                num_sanity_val_steps=0,
            )
            with expected_warnings(training):
                trainer.fit(
                    training,
                    ckpt_path=checkpoint_to_resume(folder.checkpoints),
                    weights_only=True,
                )
        network: Any = training.network.eval()
        seconds = sum(epoch["seconds"] for epoch in history.rows)
        facts = {"model": "SlotNet", "epochs": options["epochs"]}
        facts |= facts_of_network(network, seconds)
        return Trained(network, facts, folder.path)

    def measure(
        self,
        study: Study,
        row: str,
        shared: Any,
    ) -> Mapping[str, float]:
        """Figures of the test sentences, which are read after the training."""
        network: Any = study.trained[row].network
        test = _part(network.options, "test")
        labels = {*chain(*(sentence.slots for sentence in test))}
        labels |= {sentence.intent for sentence in test}
        unknown = sorted(labels - {*network.slots, *network.intents})
        if unknown:
            study.lab.show(
                f"{row}: the test has labels that training has not, which count as "
                f"missed: {unknown}"
            )
        study.facts[row]["unknown"] = unknown
        if not network.twin:
            sentences = [shown(network, line.split()) for line in SHOWN]
            study.curves[row] = {"shown": sentences}
        answers = network.answers([sentence.words for sentence in test])
        return score(answers, test)

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """Where the words of sentences go, by the first network of capsules."""
        for study in studies:
            for row, curves in study.curves.items():
                if curves:
                    return {"words": _picture(row, curves["shown"])}
        return {}


def _part(options: Mapping[str, Any], part: str) -> list[Sentence]:
    count = options.get("made")
    if count:
        return made_sentences(count, seed=("train", "valid", "test").index(part))
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
    assignment = answer.assignment[0]
    used = (assignment.amax(0) >= least).nonzero()[:, 0]
    return {
        "words": [*words],
        "intent": network.intents[int(intents.argmax())],
        "slots": [network.slots[slot] for slot in used.tolist()],
        "assignment": assignment[:, used].double().round(decimals=3).tolist(),
    }


def _picture(row: str, sentences: Sequence[Mapping[str, Any]]) -> Picture:
    """Dots for the assignment of words across to slots down, in the colour of the
    slot.
    """
    heights = [len(sentence["slots"]) + 2 for sentence in sentences]
    figure = new_figure(10.5, 0.27 * sum(heights) + 0.4)
    panels = figure.subplots(len(heights), 1, height_ratios=heights)
    for axes, sentence in zip(panels, sentences, strict=True):
        slots = sentence["slots"]
        order = sorted(slots, key=lambda slot: (slot[2:] or "~", slot))
        kinds = list(dict.fromkeys(slot[2:] for slot in order))
        colours = [
            f"C{kinds.index(slot[2:])}" if slot[2:] else "0.55" for slot in order
        ]
        words = zip(sentence["words"], sentence["assignment"], strict=True)
        for place, (word, assignment) in enumerate(words):
            shares = [assignment[slots.index(slot)] for slot in order]
            colour = colours[shares.index(max(shares))]
            axes.text(
                place, -1, word, color=colour, ha="center", va="center", fontsize=10
            )
            areas = [130 * share for share in shares]
            axes.scatter(
                [place] * len(order),
                range(len(order)),
                areas,
                colours,
            )
        axes.set_yticks(
            range(len(order)),
            order,
            fontsize=8,
        )
        axes.set(
            xlim=(-0.7, 13.7),
            ylim=(len(order) - 0.5, -1.6),
            xticks=[],
        )
        axes.set_title(sentence["intent"], loc="left", fontsize=9)
        axes.spines[:].set_visible(False)
        axes.grid(axis="y", linewidth=0.4)
        axes.set_axisbelow(True)
    return Picture(figure, f"{FACTS['caption']} ({row})")
