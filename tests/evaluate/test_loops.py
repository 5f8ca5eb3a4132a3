"""Loops over what a network answers."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchcaps as tc
import torchcaps_lab
from torchcaps_lab.data import Digits
from torchcaps_lab.evaluate.findings import in_parts, predicted

DIGITS = Digits().test.subset(torch.arange(20))


def by_part(network: Any) -> Iterator[Any]:
    return in_parts(network, DIGITS.inputs.float(), network.encode, 8)


def by_batch(network: Any) -> Iterator[Any]:
    return predicted(network, DIGITS, 8)


@pytest.mark.parametrize("loop", [by_part, by_batch])
def test_an_error_in_a_loop_leaves_the_network_and_gradients_as_they_were(
    loop: Callable[[nn.Module], Iterator[Any]],
) -> None:
    network = tc.create_model("capsnet_digits").train()
    steps = loop(network)
    next(steps)
    # As if an error, which somebody holds, had ended the loop here.
    assert torch.is_grad_enabled()
    assert network.training
    assert all(not tensor.requires_grad for step in steps for tensor in tensors(step))


def tensors(step: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples."""
    if isinstance(step, torch.Tensor):
        yield step
    elif isinstance(step, tuple):
        for part in step:
            yield from tensors(part)


MODES = ("no_grad(", "inference_mode(", "evaluating(", "set_grad_enabled(")


def waiting(function: ast.FunctionDef) -> bool:
    """Whether a generator hands out values while the mode of gradients is changed."""
    if "contextmanager" in map(ast.unparse, function.decorator_list):
        return False
    blocks = [part for part in ast.walk(function) if isinstance(part, ast.With)]
    return any(
        mode in ast.unparse(item.context_expr)
        for block in blocks
        for item in block.items
        for mode in MODES
        if any(isinstance(part, ast.Yield | ast.YieldFrom) for part in ast.walk(block))
    )


@pytest.mark.parametrize("package", [tc, torchcaps_lab])
def test_no_generator_waits_in_another_mode(package: Any) -> None:
    files = Path(package.__file__).parent.rglob("*.py")
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in files}
    assert [
        (file.name, part.name)
        for file, tree in trees.items()
        for part in ast.walk(tree)
        if isinstance(part, ast.FunctionDef) and waiting(part)
    ] == []
