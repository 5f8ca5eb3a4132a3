"""Looking at a network whose images are cropped and standardised."""

import pytest
import torch
from torch import Tensor

from tests.report.small import digits_net, image_set
from torchcaps.models import ImageClassifier, Prediction
from torchcaps_lab.data import Preprocess, centre_crop, standardise, thirteen_crops
from torchcaps_lab.evaluate import assignment_entropy, examine
from torchcaps_lab.report import exhibits_of_classifier
from torchcaps_lab.report.pictures.assignments import Assignments, ShareMaps

SHAPE = (2, 14, 15)
PREPROCESS = Preprocess(crop=8, standardise=True, crops=13)


class Plain(ImageClassifier):
    """No capsules: activations are the first three pixels."""

    def __init__(self) -> None:
        super().__init__((2, 8, 8), 3)

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        return Prediction(images.flatten(1)[:, :3], None, None)


@pytest.mark.parametrize("batch_size", [1, 40, 1000])
def test_thirteen_crops_are_averaged(batch_size: int) -> None:
    model = digits_net(image_shape=(2, 8, 8)).eval()
    images = image_set(SHAPE, 10)
    crops = thirteen_crops(images.inputs.float() / 255, 8)
    with torch.no_grad():
        routed = [model.route(standardise(crop)) for crop in crops.unbind(1)]
    findings = examine(model, images.prepared(PREPROCESS), batch_size)
    expected = torch.stack([part.activation for part in routed]).mean(0)
    torch.testing.assert_close(findings.activation, expected)
    assert not torch.allclose(findings.activation, routed[0].activation)
    entropy = (
        torch.stack([assignment_entropy(part.assignment) for part in routed])
        .mean()
        .item()
    )
    assert findings.entropy == pytest.approx(entropy)


def test_thirteen_crops_are_averaged_without_capsules() -> None:
    images = image_set(SHAPE, 10)
    crops = thirteen_crops(images.inputs.float() / 255, 8)
    expected = torch.stack(
        [standardise(crop).flatten(1)[:, :3] for crop in crops.unbind(1)]
    ).mean(0)
    torch.testing.assert_close(
        examine(Plain(), images.prepared(PREPROCESS)).activation, expected
    )


def test_a_report_shows_pixels_and_decodes_what_was_said() -> None:
    model = digits_net(image_shape=(2, 8, 8)).eval()
    images = image_set(SHAPE, 6)
    images = images.prepared(PREPROCESS)
    findings = examine(model, images)
    shown = {
        exhibit.kind: exhibit
        for exhibit in exhibits_of_classifier(model, images, findings, {}, [])
    }
    pixels = centre_crop(images.inputs.float() / 255, 8)
    assert torch.equal(shown["mistakes"].pictures, pixels[findings.mistakes(24)])
    chosen = findings.samples(20)
    for kind in ("reconstructions", "assignments"):
        assert torch.equal(shown[kind].pictures, pixels[chosen])
    with torch.no_grad():
        decoded = model.decode(model.encode(standardise(pixels)), findings.prediction)
    torch.testing.assert_close(
        shown["reconstructions"].reconstructions, decoded[chosen]
    )


def test_stereo_pairs_show_their_first_camera_under_the_map() -> None:
    pairs = torch.stack([torch.zeros(8, 8), torch.ones(8, 8)])[None]
    maps = ShareMaps("caps", torch.full((1, 2, 2), 0.5), extent=None)
    answer = {
        "titles": ("a",),
        "targets": torch.tensor([0]),
        "layers": (maps,),
        "even": 0.5,
    }
    (picture,) = Assignments(title="", text="", pictures=pairs, **answer).draw()
    image, below = (
        picture.figure.axes[place].images[0].get_array() for place in (0, 1)
    )
    assert image.max() == 0
    assert below.max() == below.min() == 0.25
