"""What the documents show works."""

import re
from pathlib import Path

import torch

import torchcaps as tc
from torchcaps.ops import Votes
from torchcaps.routing import Routed, Routing, register_routing
from torchcaps.routing.base import ROUTINGS

ROOT = Path(__file__).parent.parent


def python_blocks(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_readme_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    blocks = python_blocks("README.md")
    assert len(blocks) >= 3
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["capsules"].activation.shape == (4, 10)
    assert names["capsules"].pose.shape == (4, 10, 16)
    assert names["routed"].assignment.shape == (4, 1152, 10)


def test_ten_line_routing_of_contributing_works():
    (block,) = python_blocks("CONTRIBUTING.md")
    names = {
        "register_routing": register_routing,
        "Routing": Routing,
        "Routed": Routed,
        "Votes": Votes,
        "Tensor": torch.Tensor,
        "length": tc.length,
    }
    try:
        exec(compile(block, "CONTRIBUTING.md", "exec"), names)
        layer = tc.CapsLinear(5, 3, 4, 6, routing=tc.create_routing("plain_mean"))
        children = torch.randn(2, 5, 4)
        weights = children.norm(dim=-1) / children.norm(dim=-1).sum(1, keepdim=True)
        expected = torch.einsum("bi,bip,ijpd->bjd", weights, children, layer.weight)
        torch.testing.assert_close(layer(children).pose, expected)
    finally:
        ROUTINGS.pop("plain_mean", None)


def test_relative_links_of_the_documents_exist():
    for document in ("README.md", "CONTRIBUTING.md"):
        for link in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / document).read_text()):
            assert (ROOT / link).exists(), f"{document} links to {link}"
