"""Slots and intents: what does a sentence ask for, and which words fill in the details?

    python examples/slots.py

Words are children, slots are their parents, and intents are parents of the slots. The
slot of a word is the parent that routing sends it to. The sentences are made of a few
patterns. All names are one word to the network, so that only the words around a name
tell its slot. About ten seconds on a CPU.
"""

import random

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

import torchcaps as tc

SLOTS = ("none", "artist", "city", "number")
SENTENCES = (
    ("play a song of NAME", "none none none none artist", 0),
    ("put on NAME please", "none none artist none", 0),
    ("book a table for NAME in NAME", "none none none none number none city", 1),
    ("find a place in NAME for NAME", "none none none none city none number", 1),
    ("will it rain in NAME", "none none none none city", 2),
    ("how warm is NAME today", "none none none city none", 2),
)
"""Words, the slots of these, and the intent. Each stands for many, with other names."""

TEXT = " ".join(words for words, _, _ in SENTENCES)
WORDS = ("", *sorted(set(TEXT.split())))
"""The first is padding."""


def numbers(text: str, names: tuple[str, ...]) -> Tensor:
    """The place of each word of a text among the names."""
    places = []
    for word in text.split():
        place = names.index(word)
        places.append(place)
    return torch.tensor(places)


def sentences(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Words (B, L) and their slots (B, L), with 0 after the last, and intents (B,)."""
    draw = random.Random(seed)
    words = []
    slots = []
    intents = []
    for text, fillings, intent in draw.choices(SENTENCES, k=count):
        words.append(numbers(text, WORDS))
        slots.append(numbers(fillings, SLOTS))
        intents.append(intent)
    return (
        pad_sequence(words, batch_first=True),
        pad_sequence(slots, batch_first=True),
        torch.tensor(intents),
    )


class Understanding(nn.Module):
    """Embeddings, a recurrent layer in both directions, and slot capsules."""

    def __init__(self, dim: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), dim)
        self.context = nn.GRU(
            dim,
            dim,
            batch_first=True,
            bidirectional=True,
        )
        self.slots = tc.layers.SlotCaps(
            features=2 * dim,
            slots=4,
            intents=3,
        )

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the slots, (B, L, K), and activations of the intents, (B, E)."""
        vectors = self.embedding(words)
        features, _ = self.context(vectors)
        answer = self.slots(features, words > 0)
        return answer.logits, answer.intents.activation


def share(right: Tensor) -> float:
    """How many of the answers are right."""
    return right.double().mean().item()


def main(steps: int = 200, batch: int = 32) -> tuple[float, float]:
    """Trains on new sentences in each step, and gives the share of names with the right
    slot, and of sentences with the right intent.
    """
    torch.manual_seed(0)
    model = Understanding()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(steps):
        words, slots, intents = sentences(batch, seed=step + 1)
        logits, activation = model(words)
        present = words > 0
        loss = cross_entropy(logits[present], slots[present])
        loss += tc.margin_loss(activation, intents)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    words, slots, intents = sentences(200, seed=0)
    with torch.no_grad():
        logits, activation = model(words)
    right_slots = logits.argmax(2) == slots
    of_names = right_slots[slots > 0]
    right_intents = activation.argmax(1) == intents
    return share(of_names), share(right_intents)


if __name__ == "__main__":
    names_right, sentences_right = main()
    print(f"slots of names: {names_right:.1%}, intents: {sentences_right:.1%} correct")
