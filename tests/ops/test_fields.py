"""Objects made of tensors: what is declared is what they hold."""

from dataclasses import dataclass

import torch
from torch import Tensor

import torchcaps as tc


@dataclass(frozen=True, eq=False)
class Centres(tc.ops.Fields):
    centre: Tensor = tc.ops.axes("BJH")
    number: int = 3


def test_declared_fields_alone_are_listed_and_handed_on() -> None:
    """What somebody noted on the object is no argument of its class."""
    centres = Centres(torch.zeros(2, 3, 4), 5)
    object.__setattr__(centres, "note", "noted later")
    assert [name for name, _, _ in centres.items()] == ["centre"]
    again = centres.with_tensors([torch.ones(2, 3, 4)])
    assert again.number == 5
    assert again.centre.all()


def test_votes_under_another_competition_share_all_else() -> None:
    votes = tc.Votes(torch.randn(2, 6, 4), torch.randn(6, 3, 4, 5))
    changed = votes.under(tc.ops.Competition(leaky=True))
    assert changed.source is votes.source
    assert changed.competition.leaky
    assert not votes.competition.leaky
    assert changed.shape == votes.shape
