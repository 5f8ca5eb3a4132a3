"""Several interests of a user: which film comes next, after those that they chose?

    python examples/interests.py

Each made-up user likes films of two of six kinds. The films are children of a capsule
layer, and routing sends each to one of two interests. A film is likely if it is close to
one of them. Routed as in the paper, two interests find fewer films than a single vector,
as in docs/interests.md. Routed as by a library in use (``released``), they find more.
About fifteen seconds on a CPU.
"""

from typing import Literal

import torch
from torch import Tensor, nn

import torchcaps as tc

KINDS = 6
FILMS = 10
"""Films of each kind."""

CHOSEN = 8
"""Films that a user chose before the next one."""


def histories(users: int, seed: int) -> tuple[Tensor, ...]:
    """The films that users chose, (B, 8), and the next one, (B, 1)."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    shape = (users, CHOSEN + 1)
    order = torch.rand(users, KINDS, generator=generator)
    liked = order.argsort(1)
    choice = torch.randint(2, shape, generator=generator)
    kinds = liked.gather(1, choice)
    numbers = torch.randint(FILMS, shape, generator=generator)
    numbers += kinds * FILMS
    return numbers.split([CHOSEN, 1], 1)


class Interests(nn.Module):
    """Films as vectors, and a user as a few vectors that routing makes of them.

    Args:
        interests: how many a user has.
        dim: the dimension of the vectors.
        form: ``paper`` or ``released``, see :class:`~torchcaps.routing.InterestRouting`.
    """

    def __init__(
        self,
        interests: int = 2,
        dim: int = 16,
        form: Literal["paper", "released"] = "paper",
    ) -> None:
        super().__init__()
        routing = tc.create_routing("interests", form=form)
        self.films = nn.Embedding(KINDS * FILMS, dim)
        self.layer = tc.CapsLinear(
            None,
            interests,
            dim,
            dim,
            transforms="subspace",
            routing=routing,
        )

    def forward(self, chosen: Tensor) -> Tensor:
        """Scores of all films, (B, 60): how close each is to the nearest interest."""
        present = torch.ones(chosen.shape)
        films = tc.Capsules(self.films(chosen), present)
        interests = self.layer(films)
        close = interests.pose @ self.films.weight.T
        return 4 * close.amax(1)


def main(
    interests: int,
    form: Literal["paper", "released"] = "paper",
    steps: int = 800,
    batch: int = 128,
) -> float:
    """Trains on new users in each step, and gives the share of others whose next film is
    among the first 20 that the network names.
    """
    torch.manual_seed(0)
    model = Interests(interests, form=form)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(steps):
        chosen, following = histories(batch, seed=step + 1)
        scores = model(chosen)
        target = following.flatten()
        loss = nn.functional.cross_entropy(scores, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    chosen, following = histories(1000, seed=0)
    with torch.no_grad():
        scores = model(chosen)
    _, first = scores.topk(2 * FILMS)
    same = first == following
    hits = same.any(1).double()
    return hits.mean().item()


if __name__ == "__main__":
    variants: list[tuple[int, Literal["paper", "released"]]] = [
        (2, "paper"),
        (2, "released"),
        (1, "paper"),
    ]
    for count, form in variants:
        share = main(count, form)
        print(
            f"interests: {count}, {form}, users whose film is in the first third: "
            f"{share:.1%}"
        )
