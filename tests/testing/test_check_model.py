"""check_model passes what is right, and names what is wrong."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchcaps import Capsules, ClassCaps, PrimaryCaps1d, create_model
from torchcaps.models import (
    ClassifierNetwork,
    ImageClassifier,
    Network,
    Prediction,
)
from torchcaps.models.saved import NETWORKS
from torchcaps.routing import EMRouting
from torchcaps.testing import check_model
from torchcaps.testing.models import CHECKS


class Linear(ImageClassifier):
    """Nothing wrong with it; each class below has one thing wrong."""

    def __init__(
        self, image_shape: tuple[int, int, int] = (1, 5, 4), classes: int = 3
    ) -> None:
        super().__init__(image_shape, classes)
        self.layer = nn.Linear(
            self.image_shape[0] * self.image_shape[1] * self.image_shape[2], classes
        )

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        self._check(images)
        return Prediction(self.say(images), None, None)

    def say(self, images: Tensor) -> Tensor:
        return self.layer(images.flatten(1)).softmax(-1)


class Deaf(Linear):
    def __init__(
        self, image_shape: tuple[int, int, int] = (1, 5, 4), classes: int = 3
    ) -> None:
        super().__init__(image_shape, classes)
        self.classes = 3


class Idle(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Parameter(torch.zeros(2))


class Undefined(Linear):
    def say(self, images: Tensor) -> Tensor:
        return super().say(images) / (images.sum() * 0)


class Together(Linear):
    def say(self, images: Tensor) -> Tensor:
        return super().say(images - images.mean(0))


class Drifting(Linear):
    def say(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            self.layer.bias.add_(0.1 * self.training)
        return super().say(images)


class Narrow(Linear):
    def say(self, images: Tensor) -> Tensor:
        activation = super().say(images)
        return activation / (
            activation.dtype != torch.bfloat16 and not torch.is_autocast_enabled("cpu")
        )


class Unsaved(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.rand(3), persistent=False)

    def say(self, images: Tensor) -> Tensor:
        return (self.layer(images.flatten(1)) + self.shift).softmax(-1)


class Branching(Linear):
    def say(self, images: Tensor) -> Tensor:
        activation = super().say(images)
        return (
            activation if activation[0, 0] >= 0 else activation.flip(1)
        )  # always so, but nobody knows before it has run


class Large(Linear):
    def say(self, images: Tensor) -> Tensor:
        return super().say(images) + 1


class Stubborn(Linear):
    def __init__(
        self, image_shape: tuple[int, int, int] = (1, 5, 4), classes: int = 3
    ) -> None:
        super().__init__(image_shape, classes)
        self.layer = nn.Linear(20, classes)


class Boasting(Linear):
    any_size = True


class Cropping(Linear):
    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        _, height, width = self.image_shape
        return super().forward(images[..., :height, :width], target)


class Trusting(Linear):
    def _check(self, images: Tensor) -> None:
        if images.shape[1:] != self.image_shape or not images.is_floating_point():
            raise ValueError("shape")


def test_nothing_wrong() -> None:
    network = Linear()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.random.get_rng_state()
    check_model(network)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert network.training
    assert all(
        torch.equal(value, before[name]) for name, value in network.state_dict().items()
    )
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.parametrize(
    ("network", "check", "message"),
    [
        (Deaf, "other_images_and_classes", "asked for .* 4 classes, it has .* 3"),
        (Idle, "learning", "its parameter idle gets no gradient"),
        (
            Undefined,
            "learning",
            "in training tensor 0 of its output holds NaN or infinite",
        ),
        (Together, "one_example", "example 0 alone: tensor 0 of its output is off by"),
        (
            Drifting,
            "training_and_evaluation",
            r"a forward pass changed its parameter layer\.bias",
        ),
        (Narrow, "autocast", "under autocast tensor 0"),
        (Unsaved, "saving", "loaded, tensor 0 of its output is off by"),
        (Branching, "export", "data-dependent"),
        (Large, "prediction", r"activations do not lie in \[0, 1\]"),
        (Stubborn, "other_images_and_classes", "shapes cannot be multiplied"),
        (Boasting, "any_size", "shapes cannot be multiplied"),
        (
            Cropping,
            "any_size",
            "without any_size = True, inputs of 8x9 must raise a ValueError, but are",
        ),
        (
            Trusting,
            "images_that_do_not_fit",
            "images that hold nan must raise a ValueError, but are accepted",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_one_thing_wrong(network: type[Linear], check: str, message: str) -> None:
    with pytest.raises(
        AssertionError,
        match=rf"(?s)^{network.__name__} fails the check '{check}': .*{message}",
    ):
        check_model(network())
    if network not in (Undefined, Large):  # which are wrong wherever one looks
        check_model(network(), skip=(check,))


def test_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Linear()
    monkeypatch.setattr(
        Linear, "config", lambda self: {"classes": 3 + (self is network)}
    )
    with pytest.raises(
        AssertionError,
        match=r"'configuration': its weights are|'configuration': made again from",
    ):
        check_model(network)


class FiniteVectors(ClassifierNetwork):
    """Over inputs that are no images: what must be refused, it says itself."""

    takes = "vectors"

    def __init__(self, classes: int = 3, strict: bool = True) -> None:
        super().__init__(classes)
        self.strict = strict
        self.layer = nn.Linear(4, classes)

    def examples(self, batch: int) -> Tensor:
        return torch.ones(batch, 4)

    def misfits(self) -> dict[str, Tensor]:
        return {"infinite vectors": torch.full((2, 4), torch.inf)}

    def forward(self, inputs: Tensor, target: Tensor | None = None) -> Prediction:
        if self.strict and not inputs.isfinite().all():
            raise ValueError("inputs must be finite")
        return Prediction(self.layer(inputs).sigmoid(), None, None)


def test_a_network_says_itself_what_it_must_refuse() -> None:
    check_model(FiniteVectors(), skip=("export",))
    with pytest.raises(
        AssertionError,
        match="'images_that_do_not_fit': infinite vectors must raise a ValueError",
    ):
        check_model(FiniteVectors(strict=False))


class Words(Network):
    def __init__(self, words: int = 9) -> None:
        super().__init__()
        self.words = words
        self.embedding = nn.Embedding(words, 4)
        self.primary_caps = PrimaryCaps1d(4, 2, 4, 3, 1)
        self.class_caps = ClassCaps(
            2, 3, 4, 4, axes=1, routing=EMRouting.preset("standardised")
        )

    def forward(self, words: Tensor) -> Capsules:
        return self.class_caps(self.primary_caps(self.embedding(words).mT))


def test_network_over_something_else() -> None:
    def words(batch: int) -> Tensor:
        return torch.arange(7 * batch).view(batch, 7) % 9

    check_model(Words(), words)
    with pytest.raises(
        ValueError,
        match="Words is not an image classifier: inputs must make a batch for it",
    ):
        check_model(Words())
    with pytest.raises(TypeError, match="must be a network or the name of one, got <"):
        check_model(Words)  # type: ignore[arg-type]


def test_skip() -> None:
    with pytest.raises(
        ValueError,
        match=r"skip must name checks of \['configuration', .*got 'everything'",
    ):
        check_model(Linear(), skip=("everything",))
    assert len({check.__name__ for check in CHECKS}) == len(CHECKS)


def test_a_routing_that_cannot_train() -> None:
    network: Any = create_model("capsnet_digits", routing={"name": "hard_kmeans"})
    with pytest.raises(
        AssertionError, match=r"CapsNet fails the check 'learning': .*cannot train"
    ):
        check_model(network)
    assert type(network) is NETWORKS["CapsNet"]
