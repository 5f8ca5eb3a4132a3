"""``torchcaps predict --boxes``: pictures with a box around each class, of images of
any size.
"""

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from torchcaps.models import create_model
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.cli import main
from torchcaps_lab.kinds.images.samples import digit_samples

SURE = {"name": "several_labels", "threshold": 1e-6}
AS_THEY_ARE = {"name": "images", "image_shape": [1, 32, 32], "resize": "keep"}
"""Says every class that is active at all."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    network = create_model(
        "scene_capsnet", image_shape=(1, 32, 32), classes=3, channels=(3, 4)
    )
    network.save_pretrained(
        tmp_path / "net", classes=["a", "$b", "c"], task=SURE, reader=AS_THEY_ARE
    )
    for name, size in (("wide", (70, 40)), ("tall", (30, 64)), ("same", (30, 64))):
        picture = (255 * torch.rand(size[1], size[0])).byte().numpy()
        (tmp_path / name).mkdir()
        Image.fromarray(picture).save(tmp_path / name / "scene.png")
    return tmp_path


def test_pictures_and_boxes_in_pixels_of_the_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(folder / name / "scene.png") for name in ("wide", "tall", "same")]
    assert main(
        [
            "predict",
            str(folder / "net"),
            *files,
            "--json",
            "--boxes",
            str(folder / "boxes"),
        ]
    ) in (None, 0)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["file"] for row in rows] == files
    classifier = Classifier.open(folder / "net")
    for row, file in zip(rows, files, strict=True):
        (things,) = classifier.network.things_of(
            classifier.pixels(file)[None], least=1e-6
        )
        assert set(row["things"]) == set(row["classes"]) == {"a", "$b", "c"}
        boxes = sorted(
            thing["box"] for each in row["things"].values() for thing in each
        )
        assert boxes == [
            pytest.approx(box, abs=1e-3)
            for box in sorted(thing.box.tolist() for thing in things)
        ]
    assert classifier.pixels(files[0]).shape == (1, 40, 70)
    written = sorted((folder / "boxes").iterdir())
    assert [path.name for path in written] == [
        "scene-2.png",
        "scene-3.png",
        "scene.png",
    ]
    for path, size in zip(
        written, [(210, 448), (210, 448), (420, 240)], strict=True
    ):  # whole multiples
        with Image.open(path) as picture:
            assert picture.size == size


def test_boxes_are_drawn_on_what_the_network_saw(folder: Path) -> None:
    """Those of a crop were drawn on the whole picture."""
    network = Classifier.open(folder / "net").network
    reader = {**AS_THEY_ARE, "preprocess": {"crop": 16}}
    network.save_pretrained(
        folder / "cropping", classes=["a", "$b", "c"], task=SURE, reader=reader
    )
    files = [str(folder / "wide" / "scene.png"), "--boxes", str(folder / "boxes")]
    assert main(["predict", str(folder / "cropping"), *files]) in (None, 0)
    with Image.open(folder / "boxes" / "scene.png") as picture:
        assert picture.width == picture.height


def test_two_things_of_a_class_and_one_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were told as one, with a box in the empty middle between the two."""
    digits = digit_samples((1, 28, 28))
    scene = torch.zeros(96, 96, dtype=torch.uint8)
    for label, top, left in ((1, 8, 8), (1, 56, 56), (6, 8, 56)):
        scene[top : top + 28, left : left + 28] = digits.inputs[digits.labels == label][
            0, 0
        ]
    Image.fromarray(scene.numpy()).save(tmp_path / "scene.png")
    main(["predict", "scenes/scene_capsnet", str(tmp_path / "scene.png")])
    assert re.search(
        r": 2 x 1 \([^)]*\), 6 \(|: 6 \([^)]*\), 2 x 1 \(", capsys.readouterr().out
    )
    answer = Classifier.open("scenes/scene_capsnet")(tmp_path / "scene.png")
    first, second = sorted(answer.things["1"], key=lambda thing: thing.box[0].item())
    middle = (first.box[:2] + first.box[2:]) / 2
    assert middle.tolist() == pytest.approx([22, 22], abs=6)  # where the first one lies
    torch.testing.assert_close(
        second.box, first.box + 48, rtol=0, atol=1
    )  # whole cells away, with the same pose
    torch.testing.assert_close(
        second.pose[:-4],
        first.pose[:-4],
        rtol=0,
        atol=0.02,
    )


def test_one_box_for_several_places_is_warned_of(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = create_model(
        "scene_cnn", image_shape=(1, 64, 64), classes=2, channels=(3, 4)
    )
    classifier = Classifier(network, classes=["cat", "dog"], task=SURE)
    network.parts_of = lambda images: torch.tensor([[1, 2]])
    with pytest.warns(
        UserWarning,
        match="dog is seen in several places, and told in one box around them",
    ) as warned:
        classifier(torch.rand(1, 64, 64))
    assert len(warned) == 1


def test_an_image_with_nothing_in_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = Classifier.open(folder / "net").network
    with torch.no_grad():
        for name in ("weight", "bias"):
            getattr(network.what, name).zero_()
    network.save_pretrained(
        folder / "none", classes=["a", "b", "c"], task=SURE, reader=AS_THEY_ARE
    )
    Image.new("L", (50, 50)).save(folder / "black.png")
    main(
        [
            "predict",
            str(folder / "none"),
            str(folder / "black.png"),
            "--boxes",
            str(folder / "boxes"),
        ]
    )
    assert capsys.readouterr().out.splitlines()[-1].endswith("black.png: nothing")
    assert (folder / "boxes" / "black.png").is_file()


class TestKeep:
    def test_images_of_several_sizes_in_one_call(self, folder: Path) -> None:
        classifier = Classifier.open(folder / "net")
        images = [
            torch.rand(1, *size)
            for size in ((32, 32), (32, 32), (60, 40), (9, 5), (32, 32))
        ]
        for image, answer in zip(images, classifier(images), strict=True):
            assert answer.lengths == pytest.approx(classifier(image).lengths, abs=1e-5)

    def test_large_images_come_in_smaller_batches(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        classifier = Classifier.open(folder / "net")
        sizes = []
        inside = classifier.network.forward
        monkeypatch.setattr(
            classifier.network,
            "forward",
            lambda images: sizes.append(len(images)) or inside(images),
        )
        classifier.predict([torch.rand(1, 64, 64)] * 5, batch_size=8)
        assert sizes == [2, 2, 1]

    def test_is_for_networks_of_any_size(self, folder: Path) -> None:
        network = create_model("capsnet_digits")
        with pytest.raises(
            ValueError,
            match="'keep' is for networks of any size, and a CapsNet has a fixed size",
        ):
            Classifier(network, resize="keep")
        reader = {"name": "images", "image_shape": [1, 8, 8], "resize": "keep"}
        network.save_pretrained(folder / "small", reader=reader)
        assert Classifier.open(folder / "small").resize == "pad"


def test_a_network_that_does_not_say_where(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_model("capsnet_digits").save_pretrained(folder / "digits")
    picture = str(folder / "wide" / "scene.png")
    assert main(
        ["predict", str(folder / "digits"), picture, "--boxes", str(folder / "boxes")]
    )
    output = capsys.readouterr()
    assert "--boxes: a CapsNet does not predict boxes" in output.err
    assert not output.out
    assert not (folder / "boxes").exists()
