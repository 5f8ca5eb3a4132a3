from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from torchcaps.ops import Competition, Gaussian, InnerProduct, Moments, VoteSource


@dataclass(frozen=True)
class Case:
    """One call of ``moments``: shapes, what is given, what is asked for."""

    similarity: str = "inner"  # uniform, inner, gaussian
    shared: bool = False
    rows: int = 1
    coordinates: bool = False
    weights: bool = False
    partition: str = "soft"  # soft, leaky, given
    scatter: bool = False
    hard: bool = False
    batch: int = 2
    children: int = 3
    parents: int = 4
    child_dim: int = 3
    parent_dim: int = 2

    def __str__(self) -> str:
        flags = [
            name
            for name in ("coordinates", "weights", "scatter", "hard")
            if getattr(self, name)
        ]
        shape = f"B{self.batch}I{self.children}J{self.parents}M{self.rows}P{self.child_dim}D{self.parent_dim}"
        kind = "shared" if self.shared else "full"
        return "-".join([self.similarity, kind, self.partition, *flags, shape])

    def inputs(
        self, dtype: torch.dtype = torch.float64, seed: int = 0
    ) -> dict[str, Tensor]:
        """Leaves for everything that this case takes. The float32 inputs are the
        float64 ones, rounded.
        """
        B = self.batch
        I = self.children
        J = self.parents
        M = self.rows
        P = self.child_dim
        D = self.parent_dim
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        tensors = {
            "children": normal(B, I, M, P),
            "transforms": normal(1 if self.shared else I, J, P, D) / 2,
        }
        if self.coordinates:
            tensors["coordinates"] = normal(I, M * D)
        if self.weights:
            tensors["weights"] = normal(B, I).sigmoid()
        if self.partition == "given":
            tensors["log_partition"] = 2 + normal(B, I)
        if self.similarity == "inner":
            tensors["alpha"] = normal(B, J, M * D)
        if self.similarity == "gaussian":
            tensors["mean"] = normal(B, J, M * D)
            tensors["precision"] = normal(B, J, M * D).exp()
            tensors["log_weight"] = normal(B, J)
        return {
            name: tensor.float().to(dtype).requires_grad_()
            for name, tensor in tensors.items()
        }

    def moments(
        self,
        backend: Callable[..., VoteSource],
        inputs: dict[str, Tensor],
        **settings: Any,
    ) -> Moments:
        """The call itself."""
        source = backend(
            inputs["children"],
            inputs["transforms"],
            inputs.get("coordinates"),
            **settings,
        )
        similarity: Any = None
        if self.similarity == "inner":
            similarity = InnerProduct(inputs["alpha"])
        if self.similarity == "gaussian":
            similarity = Gaussian(
                inputs["mean"], inputs["precision"], inputs["log_weight"]
            )
        competition = Competition(leaky=self.partition == "leaky", hard=self.hard)
        return source.moments(
            similarity,
            inputs.get("weights"),
            competition,
            inputs.get("log_partition"),
            self.scatter,
        )

    def results(
        self,
        backend: Callable[..., VoteSource],
        inputs: dict[str, Tensor],
        view: Callable[[Tensor], Tensor] = lambda tensor: tensor,
        **settings: Any,
    ) -> dict[str, Tensor]:
        """All outputs and, under one fixed upstream gradient, the gradient of every
        input.
        """
        moments = self.moments(
            backend, {name: view(tensor) for name, tensor in inputs.items()}, **settings
        )
        outputs = {
            name: tensor
            for name, tensor in moments._asdict().items()
            if tensor is not None
        }
        results = dict(outputs)
        if not self.hard:
            generator = torch.Generator().manual_seed(1)
            objective = torch.zeros((), dtype=moments.sum.dtype)
            for output in outputs.values():
                upstream = torch.randn(
                    output.shape, generator=generator, dtype=torch.float64
                )
                objective = objective + (output * upstream.to(output.dtype)).sum()
            gradients = torch.autograd.grad(
                objective, list(inputs.values()), materialize_grads=True
            )
            results |= {
                f"d{name}": gradient
                for name, gradient in zip(inputs, gradients, strict=True)
            }
        return results


def all_cases(**fixed: Any) -> list[Any]:
    """The whole grid of options: in each run of the tests every fifth, in which each
    value occurs, else all.
    """
    options: dict[str, tuple[Any, ...]] = {
        "similarity": ("uniform", "inner", "gaussian"),
        "shared": (False, True),
        "rows": (1, 3),
        "coordinates": (False, True),
        "weights": (False, True),
        "partition": ("soft", "leaky", "given"),
        "scatter": (False, True),
    }
    options |= {name: (value,) for name, value in fixed.items()}
    cases = [
        Case(**dict(zip(options, values, strict=True)))
        for values in product(*options.values())
    ]
    return [
        pytest.param(
            case, id=str(case), marks=pytest.mark.thorough if number % 5 else ()
        )
        for number, case in enumerate(cases)
    ]


def close(
    actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float
) -> None:
    """Every tensor agrees: the root mean square of the difference against that of what
    is expected.
    """
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert actual[name].shape == tensor.shape, name
        error = (actual[name].double() - tensor.double()).square().mean().sqrt()
        scale = (
            tensor.double().square().mean().sqrt().clamp(min=1e-3)
        )  # what is 0 in theory is compared with 1e-3
        assert error <= tolerance * scale, (
            f"{name}: {error / scale:.2e} above {tolerance:.0e}"
        )
