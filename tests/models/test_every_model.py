"""What holds for every registered network."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.small_networks import SMALLER, shipped
from torchcaps import (
    create_model,
    create_routing,
    list_models,
    list_routings,
    load_pretrained,
    margin_loss,
)
from torchcaps.models import ImageClassifier, describe_models
from torchcaps.routing import EMRouting
from torchcaps.testing import check_model

MODELS = shipped()
TWICE = (
    "byerly_maps",
    "capsnet_released",
    "efficient_capsnet_multimnist",
    "matrixcapsnet_cifar10",
    "matrixcapsnet_mnist",
    "matrixcapsnet_paper",
)
"""Of whose class another one is checked."""
QUICK = (
    "capsnet_digits",
    "efficient_capsnet",
    "matrixcapsnet_small",
    "segcaps",
    "text_encoder",
)
"""One of each kind, which every run of the tests checks whole; a thorough one checks
all.
"""


def mostly_thorough(*names: str) -> list[Any]:
    return [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough)
        for name in names
    ]


DEEP = {
    "classes": 3,
    "channels": 8,
    "types": 4,
    "dims": (2, 4, 4),
    "pose_dim": 6,
    "decoder_channels": (4, 4),
}
EFFICIENT = {
    "channels": (8, 8, 8, 16),
    "decoder_hidden": None,
    "decoder_channels": (4, 4),
    "classes": 3,
}


def two_steps(routing: str) -> dict[str, int]:
    """Two steps, of a routing that has some."""
    return {"steps": 2} if "steps" in create_routing(routing).config() else {}


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def images(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def check_without_export(
    model: ImageClassifier | str, skip: tuple[str, ...] = ()
) -> None:
    """All checks but one: tests/ops/test_compiled_and_exported.py exports every
    model.
    """
    check_model(model, skip=("export", *skip))


STARTS = dict.fromkeys(
    ("heinsen_smallnorb", "self_routing_resnet20"),
    ("learning", "other_images_and_classes"),
)
"""Whose routing starts at 0, where no gradient gets past it: their own tests let them
go first.
"""


@pytest.mark.parametrize(
    "name",
    [
        *mostly_thorough(*(name for name in MODELS if name not in TWICE)),
        *(pytest.param(name, marks=pytest.mark.slow) for name in TWICE),
    ],
)
def test_every_model(name: str) -> None:
    torch.manual_seed(0)
    check_without_export(
        create_model(name, **SMALLER.get(name, {})), STARTS.get(name, ())
    )


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *(
        ("attentioncapsnet", {"image_shape": (2, 13, 16), "rounds": rounds})
        for rounds in (1, 2)
    ),
    ("byerly", {"image_shape": (2, 9, 10), "classes": 3}),
    ("byerly_maps", {"classes": 3}),
    ("capsnet", {"decoder_hidden": None}),
    ("deepcaps", {"image_shape": (2, 13, 16), **DEEP}),
    ("deepcaps", {"image_shape": (1, 12, 12), **DEEP, "decoder_channels": None}),
    *(
        ("efficient_capsnet", {"image_shape": shape, **EFFICIENT})
        for shape in ((1, 11, 11), (3, 40, 25))
    ),
]
"""Arguments with which a network is made of other parts."""


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "arguments"), VARIANTS, ids=str)
def test_variants(name: str, arguments: dict[str, Any]) -> None:
    torch.manual_seed(0)
    check_without_export(create_model(name, **{**SMALLER.get(name, {}), **arguments}))


PUBLISHED = {
    "attentioncapsnet": 1_828_817,
    "byerly": 1_513_683,
    "byerly_maps": 1_514_187,
    "capsnet": 8_215_568,
    "capsnet_cnn": 35_445_522,
    "heinsen_smallnorb": 271_688,
    "matrixcapsnet": 316_650,
    "matrixcapsnet_small": 68_618,
    "self_routing_resnet20": 931_664,
    "vbcapsnet": 68_714,
}
"""Numbers of parameters, by hand or as published; with decoders."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        assert parameters(create_model(name)) == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "attentioncapsnet",
            {"image_shape": (3, 12, 20)},
            "image_shape must be at least 13 x 13",
        ),
        (
            "attentioncapsnet",
            {"routing": {"name": "self_routing"}},
            "rounds must be 1, or more for a .* got 2",
        ),
        ("byerly", {"image_shape": (1, 18, 28)}, "at least 19 x 19"),
        ("byerly", {"momentum": -1.0}, r"momentum must be a share in \[0, 1\], got -1"),
        (
            "capsnet",
            {"image_shape": (32, 32, 3)},
            r"image_shape \(32, 32, 3\) .* kernel_size 9: it has 32 x 3 pixels",
        ),
        (
            "capsnet",
            {"image_shape": (1, 12, 12)},
            "smaller than the primary capsules' kernel of 9",
        ),
        (
            "capsnet_small",
            {"image_shape": (1, 10, 10), "stem": (4, 4)},
            "than kernel_size 5 behind a stem of 2",
        ),
        (
            "capsnet_cnn",
            {"channels": (8, 8)},
            r"channels must be 3 whole numbers, got \(8, 8\)",
        ),
        (
            "capsnet_cnn",
            {"hidden": (8,)},
            r"hidden must be 2 whole numbers, got \(8,\)",
        ),
        ("capsnet_digits", {"image_shape": (1, 8)}, "image_shape must be"),
        ("capsnet_digits", {"image_shape": (0, 8, 8)}, "image_shape must be"),
        ("capsnet_digits", {"image_shape": (1, 8, 8, 8)}, "image_shape must be"),
        ("deepcaps", {"dims": (4, 8)}, r"dims must end in two equal ones.*\(4, 8\)"),
        ("deepcaps", {"dims": (4,)}, r"dims must be of at least two cells, got \(4,\)"),
        (
            "efficient_capsnet",
            {"strides": (1, 2)},
            "channels, kernel_sizes and strides must be one for each",
        ),
        (
            "efficient_capsnet",
            {"primary_dim": 7},
            "primary_dim must be a divisor of the last of channels, 128, got 7",
        ),
        (
            "efficient_capsnet",
            {"decoder_channels": (4,)},
            r"two decoders.*\(512, 1024\) and \(4,\)",
        ),
        (
            "heinsen_smallnorb",
            {"image_shape": (1, 28, 40)},
            r"image_shape must be at least 29 x 29 .* \(1, 28, 40\)",
        ),
        (
            "matrixcapsnet_small",
            {"image_shape": (17, 17, 3)},
            r"at least 17 x 17, got shape \(17, 17, 3\), of 17 x 3 pixels",
        ),
        (
            "matrixcapsnet_small",
            {"image_shape": (1, 40, 16)},
            "image_shape must be at least 17 x 17, got shape",
        ),
        (
            "matrixcapsnet_small",
            {"types": (8, 16)},
            r"types must be 3 whole numbers, got \(8, 16\)",
        ),
        (
            "sharedcapsnet",
            {"image_shape": (1, 20, 13)},
            r"image_shape must be at least 14 x 14, got .*\(1, 20, 13\)",
        ),
        (
            "sharedcapsnet_cnn",
            {"image_shape": (1, 20, 13)},
            "image_shape must be at least 14 x 14",
        ),
        (
            "sharedcapsnet",
            {"channels": (4, 8)},
            r"channels must be 4 whole numbers, got \(4, 8\)",
        ),
        (
            "vbcapsnet",
            {"image_shape": (1, 16, 20)},
            r"image_shape must be at least 17 x 17, got .*\(1, 16, 20\)",
        ),
    ],
)
def test_wrong_arguments(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_model(name, **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SMALLER if name not in TWICE])
def test_every_model_at_its_size(name: str) -> None:
    check_without_export(name, STARTS.get(name, ()))


@pytest.mark.parametrize(
    "name", mostly_thorough(*sorted({*MODELS} - {*TWICE, "capsnet", "capsnet_cnn"}))
)
def test_a_whole_network_in_half_precision(name: str) -> None:
    network = create_model(name).eval().bfloat16()
    examples = network.examples(1)
    with torch.no_grad():
        prediction = network(
            examples.bfloat16() if examples.is_floating_point() else examples
        )
    assert prediction.activation.isfinite().all()
    assert prediction.activation.dtype == torch.bfloat16


@pytest.mark.parametrize("name", mostly_thorough(*MODELS))
def test_meta_tensors(name: str) -> None:
    with torch.device("meta"):
        network = create_model(name).eval()
        activation = network(network.examples(2)).activation
    assert activation.is_meta
    assert len(activation) == 2


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("capsnet_digits", {"decoder_input": "pose_and_class"}),
        (
            "scene_capsnet",
            {"image_shape": (1, 32, 32), "channels": (8, 8), "boxes": True},
        ),
        ("matrixcapsnet_small", {"image_shape": (1, 20, 20)}),
    ],
)
def test_training_a_whole_network_in_half_precision(
    name: str, arguments: dict[str, Any]
) -> None:
    network = create_model(name, **arguments).bfloat16()
    prediction = network(network.examples(2).bfloat16(), torch.tensor([0, 1]))
    sum(
        part.float().sum()
        for part in (*prediction[:1], *prediction[2:4])
        if part is not None
    ).backward()
    for parameter in network.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()


class TestImagesThatDoNotFit:
    """What the errors say; that there are any is checked for every model."""

    @pytest.mark.parametrize("name", ["capsnet_small", "sharedcapsnet"])
    def test_messages(self, name: str) -> None:
        model = create_model(name, image_shape=(2, 30, 28), classes=3)
        for wrong in (images(1, 3, 40, 36), images(2, 30, 28), images(1, 1, 40, 36)):
            with pytest.raises(ValueError, match=r"images must be \(B, 2, .*got shape"):
                model(wrong)
        for bad in (torch.nan, torch.inf):
            broken = images(2, 2, 30, 28)
            broken[1, 0, 3, 4] = bad
            with pytest.raises(ValueError, match="NaN or infinite"):
                model(broken)
        with pytest.raises(ValueError, match=r"floating point .*torch\.uint8"):
            model(torch.zeros(1, 2, 30, 28, dtype=torch.uint8))
        with pytest.raises(
            ValueError, match=r"images must be torch\.float32, as .* got torch.float64"
        ):
            model(images(1, 2, 30, 28).double())
        assert (
            model.double()(images(1, 2, 30, 28).double()).activation.dtype
            == torch.float64
        )
        with pytest.raises(TypeError, match="images must be a tensor, got ndarray"):
            model(images(1, 2, 30, 28).numpy())

    @pytest.mark.parametrize("name", ["segcaps", "scene_capsnet", "series_capsnet"])
    def test_numbers_that_are_wider_than_the_parameters(self, name: str) -> None:
        network: Any = create_model(name)
        with pytest.raises(
            ValueError, match=r"must be torch\.float32, as .* got torch\.float64"
        ):
            network(network.examples(1).double())

    def test_images_that_leave_no_place(self) -> None:
        model = create_model(
            "sharedcapsnet", image_shape=(1, 20, 14), channels=(2, 2, 2, 2)
        )
        with pytest.raises(
            ValueError,
            match=r"images must be at least 14 x 14, got shape \(1, 1, 13, 20\)",
        ):
            model(images(1, 1, 13, 20))

    def test_another_size(self) -> None:
        model = create_model("capsnet_small", image_shape=(2, 30, 28), classes=3)
        with pytest.raises(
            ValueError,
            match=r"images must be \(B, 2, 30, 28\), got shape \(1, 2, 28, 30\)",
        ):
            model(images(1, 2, 28, 30))


class TestCapsNet:
    def test_released_code_has_biases_in_the_routing_instead_of_the_primary_convolution(
        self,
    ) -> None:
        released = create_model("capsnet_released", decoder_hidden=None)
        assert parameters(released) == 6_804_224 + 10 * 16
        assert released.routing.config()["bias"]

    def test_children_of_the_released_code_differ_from_image_to_image(self) -> None:
        """From the start: with other weights the bias is nearly all that there is of
        them.
        """
        torch.manual_seed(0)
        network = create_model(
            "capsnet_released", channels=32, types=8, decoder_hidden=(64,)
        )
        with torch.no_grad():
            pose = network.children_of((images(8, 1, 28, 28) > 0.8).float()).pose
        assert pose.std(0).mean() > 0.3 * pose.abs().mean()
        assert network.conv.weight.std().item() == pytest.approx(0.88 * 0.05, rel=0.1)
        assert network.primary_caps.conv.weight.std().item() == pytest.approx(
            0.88 * 0.1, rel=0.1
        )
        assert (network.conv.bias == 0.1).all()
        assert (network.decoder.layers[0].bias == 0.1).all()

    def test_encode_decode_and_route_are_the_forward_pass(self) -> None:
        model = create_model("capsnet_digits").eval()
        pictures = images(3, 1, 8, 8)
        with torch.no_grad():
            prediction = model(pictures)
            capsules = model.encode(pictures)
            assert torch.equal(capsules.pose, prediction.capsules.pose)
            assert torch.equal(model.decode(capsules), prediction.reconstruction)
            longest = prediction.activation.argmax(1)
            assert torch.equal(
                model(pictures, longest).reconstruction, prediction.reconstruction
            )
            another = model(pictures, (longest + 1) % 10)
            assert torch.equal(another.activation, prediction.activation)
            assert not torch.equal(another.reconstruction, prediction.reconstruction)
            routed = model.route(pictures)
        assert torch.equal(routed.pose, prediction.capsules.pose)
        assert routed.assignment.shape == (3, model.class_caps.in_capsules, 10)

    def test_decoder_sees_one_class_alone(self) -> None:
        model = create_model("capsnet_digits")
        capsules = model.encode(images(2, 1, 8, 8))
        pose = capsules.pose.detach().requires_grad_()
        model.decode(
            capsules._replace(pose=pose), torch.tensor([3, 7])
        ).sum().backward()
        assert pose.grad.abs().sum(-1).nonzero().tolist() == [[0, 3], [1, 7]]

    @pytest.mark.parametrize(
        "name",
        [
            name
            if name in ("dynamic", "em", "hard_kmeans")
            else pytest.param(name, marks=pytest.mark.thorough)
            for name in list_routings()
        ],
    )
    def test_any_routing(self, name: str, tmp_path: Path) -> None:
        model = create_model(
            "capsnet_digits", routing={"name": name, **two_steps(name)}
        )
        assert (
            model.routing.config() == create_routing(name, **two_steps(name)).config()
        )
        pictures = images(2, 1, 8, 8)
        if name == "hard_kmeans":
            with pytest.raises(RuntimeError, match="cannot train"):
                model(pictures)
        else:
            prediction = model(pictures)
            (prediction.activation.sum() + prediction.reconstruction.sum()).backward()
            assert model.conv.weight.grad.isfinite().all()
            assert (model.conv.weight.grad != 0).any()
        model.eval().save_pretrained(tmp_path)
        loaded = load_pretrained(tmp_path)
        assert type(loaded.routing) is type(model.routing)
        with torch.no_grad():
            assert torch.equal(loaded(pictures).activation, model(pictures).activation)

    @pytest.mark.parametrize("transforms", ["full", "shared"])
    def test_any_transforms(self, transforms: str) -> None:
        check_without_export(
            create_model("capsnet_digits", transforms=transforms, batch_norm=True)
        )

    def test_stem(self) -> None:
        model = create_model(
            "capsnet_digits", image_shape=(1, 12, 12), channels=8, types=2, stem=(3, 5)
        )
        check_without_export(model)
        widths = [
            module.weight.shape[:2]
            for module in model.features
            if isinstance(module, torch.nn.Conv2d)
        ]
        assert [*widths, model.conv.weight.shape[:2]] == [(3, 1), (5, 3), (8, 5)]
        images = torch.rand(2, 1, 12, 12)
        assert model.children_of(images).pose.shape[1:3] == (
            4,
            4,
        )  # 12 less 2 for each of four 3 x 3 convolutions

    def test_without_a_stem_nothing_is_added(self) -> None:
        names = create_model("capsnet_digits").state_dict()
        assert not [name for name in names if name.startswith(("features", "norm"))]


class TestCapsNetTwin:
    def test_number_of_parameters(self) -> None:
        convolutions = (
            (25 * 256 + 256) + (25 * 256 * 256 + 256) + (25 * 256 * 128 + 128)
        )
        layers = (28 * 28 * 128 * 328 + 328) + (328 * 192 + 192) + (192 * 10 + 10)
        assert (
            parameters(create_model("capsnet_cnn"))
            == convolutions + layers
            == 35_445_522
        )

    def test_the_small_one_has_about_the_parameters_of_its_capsule_network(
        self,
    ) -> None:
        ratio = parameters(create_model("capsnet_small_cnn")) / parameters(
            create_model("capsnet_small")
        )
        assert 0.9 < ratio < 1.1

    @pytest.mark.parametrize("stride", [1, 2, 3])
    def test_images_down_to_one_pixel(self, stride: int) -> None:
        for height, width in ((1, 1), (5, 2), (7, 8)):
            model = create_model(
                "capsnet_cnn",
                image_shape=(1, height, width),
                channels=(2, 3, 4),
                stride=stride,
            )
            assert model(images(2, 1, height, width)).activation.sum(
                1
            ).tolist() == pytest.approx([1, 1])

    def test_dropout_in_training_only(self) -> None:
        model = create_model("capsnet_small_cnn", channels=(2, 3, 4), hidden=(8, 32))
        pictures = images(2, 1, 28, 28)
        assert not torch.equal(model(pictures).activation, model(pictures).activation)
        model.eval()
        assert torch.equal(model(pictures).activation, model(pictures).activation)


class TestSharedCapsNet:
    @pytest.mark.parametrize("name", list_models("sharedcapsnet*"))
    def test_about_270_thousand_parameters(self, name: str) -> None:
        assert 260_000 < parameters(create_model(name)) < 290_000

    def test_each_position_of_the_map_is_a_child(self) -> None:
        model = create_model("sharedcapsnet", channels=(4, 4, 8, 8)).eval()
        children = model.children_of(images(2, 1, 20, 16))
        features = model.features(images(2, 1, 20, 16))
        assert children.pose.shape == (2, *features.shape[2:], 8)
        assert torch.equal(children.pose[:, 2, 1], features[:, :, 2, 1])


class TestMatrixCapsNet:
    def test_number_of_parameters_by_hand(self) -> None:
        A = 7
        B = 2
        C = 3
        D = 5
        E = 4
        model = create_model(
            "matrixcapsnet",
            image_shape=(1, 20, 20),
            classes=E,
            channels=A,
            types=(B, C, D),
        )
        convolution = 25 * A + A
        primary = A * B * 16 + A * B
        capsules = 9 * B * C * 16 + 9 * C * D * 16 + D * E * 16
        betas = 2 * (C + D + E)
        assert parameters(model) == convolution + primary + capsules + betas

    @pytest.mark.parametrize("classes", [2, 3])
    def test_few_classes_can_be_learned(self, classes: int) -> None:
        torch.manual_seed(0)
        model = create_model(
            "matrixcapsnet_small", image_shape=(1, 20, 20), classes=classes
        )
        pictures = images(4, 1, 20, 20)
        margin_loss(model(pictures).activation, torch.arange(4) % classes).backward()
        assert model.class_caps.weight.grad.norm() > 1e-4

    def test_the_paper_to_the_letter(self) -> None:
        model = create_model("matrixcapsnet_paper", types=(2, 3, 4))
        assert model.pose_norm is None
        assert (
            model.routing.config()
            == model.class_routing.config()
            == EMRouting.preset("paper").config()
        )

    def test_maps_of_a_padded_image(self) -> None:
        model = create_model("matrixcapsnet_mnist", channels=4, types=(2, 3, 4)).eval()
        layers = model.layers_of(images(2, 1, 28, 28))
        assert [capsules.activation.shape[1:3] for capsules in layers.values()] == [
            (14, 14),
            (6, 6),
            (4, 4),
        ]
        odd = create_model(
            "matrixcapsnet_mnist", image_shape=(1, 13, 15), channels=4, types=(2, 3, 4)
        )
        assert [
            capsules.activation.shape[1:3]
            for capsules in odd.layers_of(images(2, 1, 13, 15)).values()
        ] == [
            (7, 8),
            (3, 3),
            (1, 1),
        ]
        with pytest.raises(ValueError, match="image_shape must be at least 13 x 13"):
            create_model("matrixcapsnet_mnist", image_shape=(1, 12, 28))

    def test_a_function_as_schedule_cannot_be_saved(self, tmp_path: Path) -> None:
        routing = EMRouting(schedule=lambda step, steps: 1.0)
        model = create_model(
            "matrixcapsnet_small", image_shape=(1, 20, 20), routing=routing
        )
        with pytest.raises(
            ValueError, match=r"routing\.schedule must be a name, .* got <function"
        ):
            model.save_pretrained(tmp_path)

    def test_layers(self) -> None:
        model = create_model("matrixcapsnet_small", types=(2, 3, 4)).eval()
        pictures = images(2, 2, 32, 32)
        with torch.no_grad():
            layers = model.layers_of(pictures)
            shapes = {
                name: (*capsules.activation.shape, *capsules.pose_shape)
                for name, capsules in layers.items()
            }
            assert shapes == {
                "primary_caps": (2, 14, 14, 2, 4, 4),
                "conv_caps1": (2, 6, 6, 3, 4, 4),
                "conv_caps2": (2, 4, 4, 4, 4, 4),
            }
            assert torch.equal(
                model.children_of(pictures).pose, layers["conv_caps2"].pose
            )
            assert torch.equal(
                model.class_caps(layers["conv_caps2"]).activation,
                model(pictures).activation,
            )
            assert model.route(pictures).assignment.shape == (2, 4 * 4 * 4, 5)
        for capsules in layers.values():
            assert ((capsules.activation >= 0) & (capsules.activation <= 1)).all()

    @pytest.mark.parametrize("competition", ["image", "window"])
    def test_routings_and_competition_are_those_of_the_layers(
        self, competition: str, tmp_path: Path
    ) -> None:
        options = {
            "image_shape": (1, 19, 21),
            "channels": 3,
            "types": (2, 3, 2),
            "competition": competition,
        }
        routings = {
            "routing": {"name": "dynamic", "steps": 2},
            "class_routing": {"name": "euclidean"},
        }
        model = create_model("matrixcapsnet_small", **options, **routings).eval()
        model.save_pretrained(tmp_path)
        loaded = load_pretrained(tmp_path)
        pictures = images(2, 1, 19, 21)
        assert loaded.config() == model.config()
        assert torch.equal(loaded(pictures).activation, model(pictures).activation)
        for layer in (loaded.conv_caps1, loaded.conv_caps2):
            assert layer.competition == competition
            assert layer.routing.config() == create_routing("dynamic", steps=2).config()
        assert (
            loaded.class_caps.routing.config() == create_routing("euclidean").config()
        )

    def test_decoder(self) -> None:
        model = create_model(
            "matrixcapsnet_small",
            image_shape=(1, 19, 17),
            types=(1, 2, 3),
            decoder_hidden=(6,),
        )
        assert model(images(2, 1, 19, 17)).reconstruction.shape == (2, 1, 19, 17)

    def test_coordinates(self) -> None:
        assert create_model("matrixcapsnet_small").class_caps.coordinates
        assert not create_model(
            "matrixcapsnet_small", coordinates=False
        ).class_caps.coordinates


class TestRegistry:
    def test_unknown_model(self) -> None:
        with pytest.raises(
            ValueError,
            match=r"(?s)model must be the name of a network, got 'resnet'.*capsnet",
        ):
            create_model("resnet")

    def test_unknown_argument(self) -> None:
        with pytest.raises(
            ValueError,
            match="capsnet_digits takes no argument 'depth'; it takes image_shape, ",
        ):
            create_model("capsnet_digits", depth=3)

    def test_patterns(self) -> None:
        assert sorted(MODELS) == MODELS
        assert list_models("capsnet_d*") == ["capsnet_digits"]
        assert list_models("nothing*") == []

    def test_description(self) -> None:
        (row,) = describe_models(["capsnet_digits"])
        assert row["parameters"] == parameters(create_model("capsnet_digits"))
        assert row["image_shape"] == (1, 8, 8)
