"""What users of other libraries try first."""

import pytest
import torch

import torchcaps as tc


def test_dir_has_what_is_public() -> None:
    names = dir(tc)
    assert {
        "train",
        "Classifier",
        "CapsHead",
        "testing",
        "mixture",
        "sklearn",
        "create_model",
    } <= {*names}
    assert not {"Any", "TYPE_CHECKING", "needing", "import_module"} & {*names}
    assert all(getattr(tc, name) is not None for name in names if name != "__doc__")


def test_tuples_of_tensors_show_shapes() -> None:
    prediction = tc.create_model("capsnet_digits")(torch.rand(2, 1, 8, 8))
    assert (
        repr(prediction.capsules)
        == "Capsules(pose=(2, 10, 16), activation=(2, 10), float32)"
    )
    assert repr(prediction) == (
        f"Prediction(activation=(2, 10), capsules={prediction.capsules!r}, "
        "reconstruction=(2, 1, 8, 8), boxes=None, "
        "places=None, masks=None, assigned=None, features=None, colours=None, float32)"
    )


@pytest.mark.parametrize(
    "name", ["capsnet_digits", "capsnet_small_cnn", "sharedcapsnet"]
)
def test_another_number_of_classes(name: str) -> None:
    network = tc.create_model(name).double()
    features = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    network.reset_classifier(4)
    assert network.num_classes == network.classes == 4
    assert network.config()["classes"] == 4
    assert network(network.examples(2).double()).activation.shape == (2, 4)
    after = network.state_dict()
    same = [
        key for key, feature in features.items() if after[key].shape == feature.shape
    ]
    assert same
    assert all(torch.equal(after[key], features[key]) for key in same)


def test_features_are_the_children() -> None:
    network = tc.create_model("capsnet_digits").eval()
    images = network.examples(2)
    assert torch.equal(
        network.forward_features(images).pose, network.children_of(images).pose
    )


def test_the_one_that_was_trained() -> None:
    network = tc.create_model("efficient_capsnet", pretrained=True)
    assert not network.training
    with pytest.raises(
        ValueError,
        match=(
            "pretrained must be None for byerly, which was not trained, got True; "
            "all are"
        ),
    ):
        tc.create_model("byerly", pretrained=True)


def test_the_arguments_of_timm() -> None:
    assert tc.create_model("capsnet_digits", num_classes=3).num_classes == 3
    network, trained = (
        tc.create_model("capsnet_digits", pretrained=True, **how)
        for how in ({"num_classes": 3}, {})
    )
    assert not network.training
    assert network(network.examples(2)).activation.shape == (2, 3)
    assert torch.equal(network.conv.weight, trained.conv.weight)


def test_misspelt_names() -> None:
    with pytest.raises(ValueError, match="did you mean capsnet_small"):
        tc.create_model("capsnet_smal")
    with pytest.raises(ValueError, match="did you mean dynamic"):
        tc.create_routing("dynamik")
    wrong = "Classifer"
    with pytest.raises(AttributeError) as caught:
        getattr(tc, wrong)
    assert (caught.value.name, caught.value.obj) == (
        wrong,
        tc,
    )  # Python suggests Classifier then


def test_two_numbers_of_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="classes 5 and num_classes 7"):
        tc.create_model("capsnet_digits", classes=5, num_classes=7)


def test_layouts_of_parametrized_transforms() -> None:
    layer = tc.CapsConv2d(2, 2, (2, 2), (2, 2), 3)
    torch.nn.utils.parametrizations.spectral_norm(layer)
    layer.to(memory_format=torch.channels_last)
