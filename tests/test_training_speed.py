"""What makes a training faster changes nothing else; and a training ends once it is
good enough.
"""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.options import made, typed
from torchcaps import create_model
from torchcaps.models import load_pretrained
from torchcaps_lab.data import Digits, Examples, Preprocess
from torchcaps_lab.options.declarations import Schedule, TrainerOptions
from torchcaps_lab.training.fitting import Fitting
from torchcaps_lab.training.learner import Learner
from torchcaps_lab.training.options import Optimisation, OptimizerFactory
from torchcaps_lab.training.speed import Speed

CPU = TrainerOptions(accelerator="cpu")
EXACT = TrainerOptions(accelerator="cpu", precision="64-true")
SGD = partial(
    torch.optim.SGD, lr=0.01, momentum=0.9
)  # Adam blows up the rounding of a gradient that is about 0
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
    ),
]
Rows = list[dict[str, float]]


def two_channels(count: int, size: int) -> Examples:
    """Digits beside their negatives: with one channel, both orders in memory are the
    same.
    """
    few = Digits(size=size).train.subset(torch.arange(count))
    return Examples(
        torch.cat([few.inputs, 255 - few.inputs], 1), few.labels, few.classes
    )


def task(
    name: str, speed: Speed | None, optimizer: OptimizerFactory = SGD, **arguments: Any
) -> Learner:
    torch.manual_seed(0)
    return Learner(
        create_model(name, **arguments), Optimisation(optimizer=optimizer), speed=speed
    )


def digits_task(
    speed: Speed | None = None, optimizer: OptimizerFactory = SGD, **arguments: Any
) -> Learner:
    return task(
        "capsnet_digits",
        speed,
        optimizer,
        **{"channels": 4, "types": 2, "decoder_hidden": (8,), **arguments},
    )


def train(
    task: Learner,
    images: Examples,
    folder: Path,
    epochs: int = 2,
    options: TrainerOptions = EXACT,
    **how: Any,
) -> Rows:
    """Metrics of each epoch but the seconds."""
    schedule = Schedule(**{"epochs": epochs, "batch_size": 8, **how})
    _, rows = Fitting(task, images, images, folder, schedule, options).run()
    return [
        {name: value for name, value in row.items() if name != "seconds"}
        for row in rows
    ]


def assert_same(
    actual: tuple[Rows, Learner], expected: tuple[Rows, Learner], tolerance: float
) -> None:
    """Metrics and weights."""
    for value, expected_value in zip(actual[0], expected[0], strict=True):
        assert value == pytest.approx(expected_value, rel=tolerance, abs=tolerance)
    state, other_state = (
        trained[1].model.state_dict() for trained in (actual, expected)
    )
    torch.testing.assert_close(state, other_state, rtol=tolerance, atol=tolerance)


class TestChannelsLast:
    MODELS = pytest.mark.parametrize(
        ("name", "size", "arguments"),
        [
            ("capsnet_digits", 8, {"channels": 4, "types": 2, "decoder_hidden": (8,)}),
            (
                "matrixcapsnet_small",
                20,
                {"channels": 4, "types": (2, 2, 2)},
            ),  # its transforms have five axes
        ],
    )

    @MODELS
    def test_results_are_the_same(
        self, name: str, size: int, arguments: dict[str, Any], tmp_path: Path
    ) -> None:
        images = two_channels(24, size)
        results = []
        for last in (False, True):
            learner = task(
                name,
                Speed(channels_last=last),
                image_shape=(2, size, size),
                classes=10,
                **arguments,
            )
            # One epoch: EM untrained makes roundings ten times as large with each step,
            # with stored votes too.
            results.append(
                (train(learner, images, tmp_path / str(last), epochs=1), learner)
            )
        assert_same(*results, tolerance=1e-9)

    @MODELS
    @pytest.mark.parametrize("last", [False, True])
    def test_order_in_memory(
        self,
        name: str,
        size: int,
        arguments: dict[str, Any],
        last: bool,
        tmp_path: Path,
    ) -> None:
        spied = task(
            name,
            Speed(channels_last=last),
            image_shape=(2, size, size),
            classes=10,
            **arguments,
        )
        orders: list[tuple[bool, bool]] = []

        def look(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if spied.model.training:
                orders.append((is_last(module.weight), is_last(inputs[0])))

        spied.model.conv.register_forward_pre_hook(look)
        train(spied, two_channels(24, size), tmp_path)
        assert orders == [(last, last)] * 6
        assert is_last(spied.model.conv.weight) == last
        others = [p for n, p in spied.model.named_parameters() if p.ndim != 4]
        assert others
        assert all(parameter.is_contiguous() for parameter in others)

    def test_images_of_one_channel(self) -> None:
        """Are in both orders; torch must see them in this one, or convolutions return
        the other.
        """
        convolution = torch.nn.Conv2d(1, 4, 3)
        speed = Speed(channels_last=True)
        speed.lay_out(convolution)
        images = torch.rand(3, 1, 8, 9)
        arranged = speed.arrange(images)
        assert torch.equal(arranged, images)
        assert arranged.stride() == (72, 1, 9, 1)
        assert is_last(convolution(arranged))

    @pytest.mark.parametrize("later", [True, False])
    def test_resumed_training_ends_like_an_unbroken_one(
        self, later: bool, tmp_path: Path
    ) -> None:
        """The checkpoint fits whatever the order of the rest of the training is."""
        images = two_channels(24, 8)

        def make(last: bool) -> Learner:
            return digits_task(
                Speed(channels_last=last), image_shape=(2, 8, 8)
            ).double()  # so is what is resumed

        unbroken = make(True)
        expected = train(unbroken, images, tmp_path / "unbroken", epochs=3), unbroken
        train(make(True), images, tmp_path / "broken", epochs=1)
        resumed = make(later)
        assert_same(
            (train(resumed, images, tmp_path / "broken", epochs=3), resumed),
            expected,
            tolerance=1e-9,
        )
        assert is_last(resumed.model.conv.weight) == later

    def test_saved_network_loads(self, tmp_path: Path) -> None:
        images = two_channels(16, 8)
        trained = digits_task(Speed(channels_last=True), image_shape=(2, 8, 8))
        train(trained, images, tmp_path, epochs=1, options=CPU)
        trained.model.save_pretrained(tmp_path / "model")
        loaded = load_pretrained(tmp_path / "model")
        for name, tensor in trained.model.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor), name
        pixels = images.inputs.float() / 255
        with torch.no_grad():
            activation = loaded(pixels).activation
            expected = trained.model.eval()(pixels).activation
        torch.testing.assert_close(activation, expected, rtol=1e-5, atol=1e-6)


def is_last(tensor: Tensor) -> bool:
    """Whether the channels are innermost in memory, and nothing else could be meant."""
    return (
        tensor.is_contiguous(memory_format=torch.channels_last)
        and not tensor.is_contiguous()
    )


@pytest.mark.thorough
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch's own, on its way to the code generator
def test_compiled_training_is_the_same(tmp_path: Path) -> None:
    """In one graph that serves all epochs, though validation and RoutingHealth run the
    network in between.
    """
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    images = Digits().train.subset(torch.arange(24))
    losses: dict[str | None, list[float]] = {}
    results = []
    for mode in (None, "default"):
        learner = digits_task(Speed(compile=mode), decoder_hidden=None)
        losses[mode] = values = []
        learner.loss.register_forward_hook(
            lambda _, __, loss, values=values: values.append(loss.item())
        )
        results.append(
            (train(learner, images, tmp_path / str(mode), options=CPU), learner)
        )
    assert len(losses[None]) == 2 * (3 + 3)
    assert losses["default"] == pytest.approx(losses[None], rel=1e-5)
    assert_same(*results, tolerance=1e-4)
    assert any(name.startswith("assignment_entropy") for name in results[1][0][-1])
    if torch.__version__ >= (
        2,
        12,
    ):  # older PyTorch breaks it at properties of named tuples
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.thorough
def test_a_process_may_compile_any_number_of_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda run, mode: compiled(run, backend="eager")
    )
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    images = Digits(size=14).train.subset(torch.arange(8))
    with torch._dynamo.config.patch(recompile_limit=2):  # as shipped, 8
        for width in (1, 2, 3):
            network = {"image_shape": (1, 14, 14), "channels": (width, 1, 1, 1)}
            train(
                task("sharedcapsnet_cnn", Speed(compile="default"), **network),
                images,
                tmp_path / str(width),
                epochs=1,
            )
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3


def test_a_copy_trains_its_own_weights(tmp_path: Path) -> None:
    original = digits_task()
    before = original.model.conv.weight.clone()
    twin = copy.deepcopy(original)
    train(twin, Digits().train.subset(torch.arange(16)), tmp_path, options=CPU)
    assert torch.equal(original.model.conv.weight, before)
    assert not torch.equal(twin.model.conv.weight, before)


class TestResident:
    @pytest.fixture
    def moved(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
        """How many images were sent where."""
        moved: list[tuple[int, str]] = []
        monkeypatch.setattr(
            Examples,
            "to",
            lambda self, device: moved.append((len(self), str(device))) or self,
        )
        return moved

    def test_sets_up_to_the_size_are_moved(self, moved: list[tuple[int, str]]) -> None:
        images = Digits().test
        device = torch.device("cuda")
        size = images.inputs.nbytes / 2**30
        Speed(resident=size).near(images, device)
        assert moved == [(len(images), "cuda")]
        assert Speed(resident=0.999 * size).near(images, device) is images
        assert len(moved) == 1

    @pytest.mark.parametrize(("resident", "sets"), [(4.0, 2), (0.0, 0)])
    def test_training_moves_both_sets_once(
        self, resident: float, sets: int, moved: list[tuple[int, str]], tmp_path: Path
    ) -> None:
        train(
            digits_task(Speed(resident=resident)),
            Digits().train.subset(torch.arange(16)),
            tmp_path,
        )
        assert moved == [(16, "cpu")] * sets

    @pytest.mark.parametrize("device", DEVICES)
    def test_batches_are_the_same_on_the_device(self, device: str) -> None:
        few = Digits().train.subset(torch.tensor([3, 1, 4, 15]))
        names = tuple(f"{place}.png" for place in range(4))
        here = Examples(
            few.inputs,
            few.labels,
            few.classes,
            names,
            Preprocess(crop=6, standardise=True),
        )
        there = here.to(device)
        assert there.files == names
        for batch in ([0, 3], [2]):
            for actual, expected in zip(
                there.__getitems__(batch)[:4], here.__getitems__(batch)[:4], strict=True
            ):
                assert actual.device.type == device
                torch.testing.assert_close(actual.cpu(), expected)
        torch.testing.assert_close(there.crops([1]).cpu(), here.crops([1]))


def train_until(
    folder: Path, accuracy: float | None = None, options: TrainerOptions = CPU
) -> Rows:
    """Six epochs, or fewer."""
    learner = digits_task(optimizer=partial(torch.optim.Adam, lr=0.01))
    images = Digits().train.subset(torch.arange(160))
    return train(
        learner,
        images,
        folder,
        epochs=6,
        batch_size=16,
        stop_at=accuracy,
        options=options,
    )


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return train_until(tmp_path_factory.mktemp("unbroken"))


class TestStopAt:
    def test_ends_after_the_first_epoch_that_reaches_it(
        self, unbroken: Rows, tmp_path: Path
    ) -> None:
        accuracies = [row["val_accuracy"] for row in unbroken]
        target = max(accuracies[:4])
        epochs = 1 + accuracies.index(target)
        assert 1 < epochs < 6  # or nothing is seen here
        assert train_until(tmp_path, target) == unbroken[:epochs]
        (checkpoint,) = (tmp_path / "checkpoints").iterdir()
        written = checkpoint.stat().st_mtime_ns
        assert train_until(tmp_path, target) == unbroken[:epochs]  # resumed
        assert [
            path.stat().st_mtime_ns for path in (tmp_path / "checkpoints").iterdir()
        ] == [written]
        assert train_until(tmp_path) == unbroken  # and with the rest of the epochs

    @pytest.mark.thorough
    def test_goes_to_the_last_epoch_if_it_is_never_reached(
        self, unbroken: Rows, tmp_path: Path
    ) -> None:
        assert max(row["val_accuracy"] for row in unbroken) < 1
        assert train_until(tmp_path, 1.0) == unbroken

    def test_epochs_without_validation_do_not_count(
        self, unbroken: Rows, tmp_path: Path
    ) -> None:
        options = TrainerOptions(
            accelerator="cpu", extra={"check_val_every_n_epoch": 2}
        )
        assert len(train_until(tmp_path, unbroken[0]["val_accuracy"], options)) == 2


def test_command_line() -> None:
    options = [
        "--stop_at",
        "0.9",
        "--speed.channels_last",
        "true",
        "--speed.compile",
        "reduce-overhead",
    ]
    ready = made(typed("--data", "Digits", *options, "--speed.resident", "0").plain())
    assert ready.stop_at == 0.9
    assert ready.speed == Speed(
        channels_last=True, compile="reduce-overhead", resident=0.0
    )
    assert made({"data": "Digits"}).speed == Speed()


class TestDigitsOfAnySize:
    def test_larger(self) -> None:
        small = Digits()
        large = Digits(size=28)
        assert large.image_shape == (1, 28, 28)
        for smaller, larger in (
            (small.train, large.train),
            (small.validation, large.validation),
            (small.test, large.test),
        ):
            assert larger.inputs.shape == (len(smaller), 1, 28, 28)
            assert larger.inputs.dtype == torch.uint8
            assert torch.equal(larger.labels, smaller.labels)
            # Interpolation is a mean: it leaves nothing out of the range of the image.
            assert bool(
                (larger.inputs.amax((1, 2, 3)) <= smaller.inputs.amax((1, 2, 3))).all()
            )
            assert bool(
                (larger.inputs.amin((1, 2, 3)) >= smaller.inputs.amin((1, 2, 3))).all()
            )

    def test_centres_of_three_by_three_are_the_pixels(self) -> None:
        assert torch.equal(
            Digits(size=24).test.inputs[:, :, 1::3, 1::3], Digits().test.inputs
        )


class TestFused:
    @pytest.mark.parametrize("name", ["AdamW", "SGD"])
    def test_steps_are_the_same(self, name: str, tmp_path: Path) -> None:
        images = two_channels(24, 8)
        results = []
        for fused in (True, False):
            kind = getattr(torch.optim, name)
            how = {} if fused else {"fused": False}
            optimizer = partial(kind, lr=0.01, weight_decay=0.1, **how)
            learner = digits_task(Speed(), optimizer, image_shape=(2, 8, 8))
            schedule = Schedule(epochs=1, batch_size=8)
            trainer, _ = Fitting(
                learner, images, images, tmp_path / str(fused), schedule, EXACT
            ).run()
            assert bool(trainer.optimizers[0].param_groups[0]["fused"]) is fused
            results.append(learner.model.state_dict())
        torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize(
        "message", [{"foreach": True}, {"fused": False}, {"differentiable": True}]
    )
    def test_what_was_told_stays(self, message: dict[str, bool]) -> None:
        optimizer = torch.optim.Adam([torch.zeros(2, requires_grad=True)], **message)
        Speed().fuse(optimizer)
        assert not optimizer.param_groups[0]["fused"]

    def test_other_optimizers_are_left_alone(self) -> None:
        optimizer = torch.optim.RMSprop([torch.zeros(2, requires_grad=True)])
        Speed().fuse(optimizer)
        assert "fused" not in optimizer.param_groups[0]

    def test_moments_in_another_order_are_laid_out_like_their_weights(
        self, tmp_path: Path
    ) -> None:
        """The kernel takes all tensors as they lie in memory."""
        images = two_channels(24, 8)
        ends = []
        for last in (False, True):
            folder = tmp_path / str(last)
            train(
                digits_task(Speed(channels_last=True), image_shape=(2, 8, 8)),
                images,
                folder,
                epochs=1,
            )
            second = digits_task(Speed(channels_last=last), image_shape=(2, 8, 8))
            train(second, images, folder, epochs=2)
            ends.append(second.model.state_dict())
        torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-9)
