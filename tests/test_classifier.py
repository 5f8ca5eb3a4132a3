"""One way to open a trained network and to use it on images of any kind."""

import shutil
import typing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import torchcaps as tc
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.data import (
    Digits,
    Preprocess,
    load_image,
    standardise,
    thirteen_crops,
)
from torchcaps_lab.tasks import Answer


@pytest.fixture(scope="module")
def grey() -> Classifier:
    torch.manual_seed(0)
    return Classifier(
        tc.create_model("capsnet_digits", channels=8, types=2, decoder_hidden=None)
    )


@pytest.fixture(scope="module")
def colour() -> Classifier:
    torch.manual_seed(0)
    network = tc.create_model(
        "capsnet_digits", image_shape=(3, 8, 8), classes=3, channels=8, types=2
    )
    return Classifier(network, classes=["red", "green", "blue"])


def lengths(answer) -> torch.Tensor:
    return torch.tensor(list(answer.lengths.values()))


def picture(height: int, width: int, channels: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(height * width * channels)
    return torch.randint(
        256, (channels, height, width), generator=generator, dtype=torch.uint8
    )


class TestKindsOfImages:
    @pytest.mark.parametrize(("height", "width"), [(8, 8), (20, 13)])
    @pytest.mark.parametrize("channels", [1, 3, 4])
    @pytest.mark.parametrize("resize", ["pad", "crop", "stretch"])
    def test_files_pictures_arrays_and_bytes_are_the_same(
        self, grey, colour, height, width, channels, resize, tmp_path
    ):
        tensor = picture(height, width, channels)
        array = tensor.permute(1, 2, 0).numpy()
        image = Image.fromarray(array[:, :, 0] if channels == 1 else array)
        image.save(tmp_path / "image.png")
        for classifier in (grey, colour):
            expected = load_image(
                tmp_path / "image.png", classifier.image_shape, resize
            )
            kinds = [
                tmp_path / "image.png",
                str(tmp_path / "image.png"),
                image,
                array,
                array[..., ::-1].copy()[..., ::-1],  # as of OpenCV
                tensor,
            ]
            for kind in [*kinds, *([array[:, :, 0]] if channels == 1 else [])]:
                assert torch.equal(classifier.pixels(kind, resize), expected / 255), (
                    type(kind)
                )
            with torch.no_grad():
                activation = classifier.network(expected[None] / 255).activation[0]
            answers = classifier(kinds, resize)
            assert all(
                torch.allclose(lengths(answer), activation) for answer in answers
            )

    @pytest.mark.parametrize("channels", [1, 3, 4])
    def test_floating_point_of_the_right_size_is_not_rounded(
        self, grey, colour, channels
    ):
        tensor = torch.rand(channels, 8, 8, generator=torch.Generator().manual_seed(0))
        colours = tensor[:3] * tensor[3:] if channels == 4 else tensor
        luma = (
            colours
            if channels == 1
            else (torch.tensor([0.299, 0.587, 0.114])[:, None, None] * colours).sum(0)[
                None
            ]
        )
        torch.testing.assert_close(grey.pixels(tensor), luma)
        torch.testing.assert_close(colour.pixels(tensor), colours.expand(3, -1, -1))
        array = tensor.permute(1, 2, 0).double().numpy()
        torch.testing.assert_close(colour.pixels(array), colour.pixels(tensor))

    @pytest.mark.parametrize("resize", ["pad", "crop", "stretch"])
    @pytest.mark.parametrize(
        ("height", "width"), [(20, 13), (13, 20), (5, 6), (3, 30), (8, 9), (9, 8)]
    )
    def test_floating_point_is_resized_as_bytes_are(self, grey, height, width, resize):
        smooth = torch.linspace(0, 1, height)[:, None] * torch.linspace(1, 0.2, width)
        actual = grey.pixels(smooth[None], resize)
        expected = grey.pixels((255 * smooth[None]).round().to(torch.uint8), resize)
        assert actual.shape == (1, 8, 8)
        assert (actual - expected).abs().max() < 0.1

    def test_one_gives_one_and_several_give_several(self, grey):
        images = Digits().test.inputs[:3]
        answers = grey(images)
        assert len(answers) == 3
        assert len(grey([images[0]])) == 1
        assert grey([]) == []
        assert torch.allclose(lengths(grey(images[1])), lengths(answers[1]))
        assert len(grey(images.permute(0, 2, 3, 1).numpy())) == 3
        mixed = grey([images[0], images[1, 0].numpy(), images[2].float() / 255])
        assert all(
            torch.allclose(lengths(a), lengths(b))
            for a, b in zip(mixed, answers, strict=True)
        )

    def test_stereo_pairs_come_as_numbers(self, tmp_path):
        pairs = Classifier(
            tc.create_model(
                "capsnet_digits", image_shape=(2, 8, 8), channels=4, types=2
            )
        )
        assert pairs(torch.rand(2, 8, 8)).poses["0"].shape == (16,)
        assert len(pairs([np.zeros((11, 9, 2), np.uint8)])) == 1
        Image.new("L", (8, 8)).save(tmp_path / "left.png")
        with pytest.raises(ValueError, match=r"left.png: it has 1 channel, expected 2"):
            pairs(tmp_path / "left.png")
        both = np.random.default_rng(0).integers(
            0,
            256,
            (8, 8, 2),
            dtype=np.uint8,
        )
        np.save(tmp_path / "both.npy", both)
        assert pairs(tmp_path / "both.npy").lengths == pairs(both).lengths
        with pytest.raises(
            ValueError, match="an image of 3 channels cannot be made into one of 2"
        ):
            pairs(torch.rand(3, 8, 8))

    @pytest.mark.parametrize(
        ("image", "message"),
        [
            (
                torch.rand(8, 8),
                r"a tensor must be \(C, H, W\), or .* got the shape \(8, 8\)",
            ),
            (
                np.zeros((1, 2, 3, 4, 5)),
                r"an array must be \(H, W\) or .* got the shape \(1, 2, 3, 4, 5\)",
            ),
            (
                np.zeros((5, 8, 8)),
                "an image of 8 channels cannot be made into one of 1",
            ),
            (
                torch.full((1, 8, 8), 255.0),
                r"must lie in \[0, 1\], got 255 to 255: give bytes",
            ),
            (torch.full((1, 8, 8), torch.nan), r"must lie in \[0, 1\], got NaN"),
            (
                torch.zeros(1, 8, 8, dtype=torch.int64),
                r"pixels must be bytes \(uint8\), .* got torch.int64",
            ),
            (
                torch.zeros(1, 0, 8),
                r"an image must have pixels, got the shape \(1, 0, 8\)",
            ),
            (
                3,
                "an image must be a path, the bytes of a file, .* a tensor, got int",
            ),
        ],
    )
    def test_what_is_no_image_is_named(self, grey, image, message):
        with pytest.raises(ValueError, match=message):
            grey(image)

    def test_bytes_are_those_of_a_file(self, grey, tmp_path):
        """A web service has no path. They were refused."""
        picture = Image.new("L", (8, 8))
        picture.paste(90, (2, 2, 5, 7))
        picture.save(tmp_path / "a.png")
        file = (tmp_path / "a.png").read_bytes()
        for fit in ("pad", "handwriting"):
            pixels = grey.pixels(tmp_path / "a.png", fit)
            assert torch.equal(grey.pixels(file, fit), pixels)
        assert len(grey([file, file])) == 2
        with pytest.raises(ValueError, match="cannot read the image of 9 bytes: it is"):
            grey(b"no image.")

    def test_resize_and_files_are_named(self, grey, tmp_path):
        with pytest.raises(
            ValueError,
            match=r"resize must be one of 'pad', .*'handwriting', 'keep', got 'tile'",
        ):
            grey(torch.rand(1, 9, 9), resize="tile")
        with pytest.raises(FileNotFoundError, match=r"none\.png"):
            grey(tmp_path / "none.png")

    @pytest.mark.parametrize("batch_size", [0, -1])
    def test_a_batch_of_no_images(self, grey, batch_size):
        with pytest.raises(
            ValueError, match=f"batch_size must be at least 1, got {batch_size}"
        ):
            grey.predict(torch.rand(1, 8, 8), batch_size=batch_size)
        with pytest.raises(
            ValueError, match=f"batch_size must be at least 1, got {batch_size}"
        ):
            grey.activations(torch.rand(1, 1, 8, 8), batch_size=batch_size)


class TestWhatIsSavedWithIt:
    PREPROCESS = Preprocess(crop=6, standardise=True)

    @pytest.fixture
    def folder(self, tmp_path) -> Path:
        torch.manual_seed(0)
        network = tc.create_model(
            "capsnet_digits", image_shape=(1, 6, 6), classes=2, channels=8, types=2
        )
        extra = {
            "classes": ["a", "b"],
            "reader": {
                "name": "images",
                "image_shape": [1, 12, 12],
                "preprocess": self.PREPROCESS.config(),
            },
        }
        network.save_pretrained(tmp_path / "run" / "model", **extra)
        return tmp_path / "run"

    @pytest.mark.parametrize("crops", [1, 13])
    def test_preprocessing_and_names(self, folder, crops):
        classifier = Classifier.open(folder)
        assert (classifier.classes, classifier.image_shape) == (("a", "b"), (1, 12, 12))
        assert classifier.task.name == "classification"
        classifier.reader = classifier.reader.changed(
            preprocess=replace(classifier.preprocess, crops=crops)
        )
        images = torch.rand(5, 1, 12, 12)
        parts = (
            images[:, None, :, 3:9, 3:9] if crops == 1 else thirteen_crops(images, 6)
        )
        with torch.no_grad():
            seen = [classifier.network(standardise(part)) for part in parts.unbind(1)]
        expected = torch.stack([prediction.activation for prediction in seen]).mean(0)
        torch.testing.assert_close(
            classifier.activations(images, batch_size=20), expected
        )
        answers = classifier.predict(images, batch_size=20)
        torch.testing.assert_close(
            torch.stack([lengths(answer) for answer in answers]), expected
        )
        torch.testing.assert_close(answers[4].poses["b"], seen[0].capsules.pose[4, 1])
        shares = expected / expected.sum(1, keepdim=True)
        assert list(answers[2].probabilities.values()) == pytest.approx(
            shares[2].tolist()
        )

    def test_bytes_and_numbers_of_many(self, folder):
        classifier = Classifier.open(folder / "model")
        images = torch.randint(256, (7, 1, 12, 12), dtype=torch.uint8)
        actual = classifier.activations(images, batch_size=3)
        torch.testing.assert_close(actual, classifier.activations(images.float() / 255))
        assert classifier.activations(images[:0]).shape == (0, 2)
        with pytest.raises(
            ValueError, match=r"images must be \(B, 1, 12, 12\), got \(7, 1, 6, 6\)"
        ):
            classifier.activations(images[:, :, :6, :6])
        with pytest.raises(
            ValueError,
            match="images must be one tensor, got list: predict takes files and lists",
        ):
            classifier.activations([images[0]])

    def test_misfits_are_named(self, folder, tmp_path):
        network = tc.load_pretrained(folder / "model")
        with pytest.raises(
            ValueError,
            match=r"classes must name the 2 classes of the network, got \('a',\)",
        ):
            Classifier(network, classes=["a"])
        with pytest.raises(
            ValueError,
            match=r"prepared to \(1, 12, 12\), but the network takes \(1, 6, 6\)",
        ):
            Classifier(network, preprocess=Preprocess())
        with pytest.raises(ValueError, match="task must be the name of"):
            Classifier(network, task="guessing")
        with pytest.raises(FileNotFoundError):
            Classifier.open(tmp_path / "nothing")
        for opening in (Classifier.open, tc.load_pretrained):
            with pytest.raises(
                TypeError,
                match="source must be the path or the name of a network, got None",
            ):
                opening(None)

    def test_any_device_and_mode(self, folder):
        classifier = Classifier(tc.load_pretrained(folder / "model").train())
        assert not classifier.network.training
        assert classifier.to("cpu").device.type == "cpu"

    @pytest.mark.parametrize(
        ("dtype", "bound"), [(torch.float64, 1e-5), (torch.bfloat16, 0.05)]
    )
    def test_any_precision(self, folder, dtype, bound):
        image = picture(8, 8, 1)
        network = tc.load_pretrained(folder / "model")
        expected = Classifier(network)(image)
        answer = Classifier(network.to(dtype))(image)
        torch.testing.assert_close(
            lengths(answer), lengths(expected), rtol=0, atol=bound
        )
        assert answer.poses.keys() == expected.poses.keys()


STRANGERS = {
    "threshold": 0.5,
    "false_alarms": 0.05,
    "quantiles": [0.0, 1.0],
    "images": 20,
}

IMAGES = {"name": "images", "image_shape": [1, 8, 8]}

HOSTILE = {
    "classes that are none": {"classes": 7},
    "classes without names": {"classes": [{} for _ in range(10)]},
    "one name for all": {"classes": ["a"] * 10},
    "preprocessing that is text": {"reader": {**IMAGES, "preprocess": "x"}},
    "a number that is text": {"reader": {**IMAGES, "preprocess": {"shift": "x"}}},
    "images without end": {
        "reader": {
            **IMAGES,
            "image_shape": [1, 10**6, 10**6],
            "preprocess": {"crop": 8},
        }
    },
    "images scaled up without end": {
        "reader": {**IMAGES, "preprocess": {"rescale": 10**6, "crop": 8}}
    },
    "a shape of one number": {"reader": {**IMAGES, "image_shape": [1]}},
    "a task's threshold that is text": {
        "task": {"name": "several_labels", "threshold": "x"}
    },
    "a task's argument that it does not take": {
        "task": {"name": "classification", "bogus": 1}
    },
    "a task that is a list": {"task": [1]},
    "a calibration of another kind": {"calibration": {"bogus": "x"}},
    "a calibration that is a list": {"calibration": [1]},
    "a threshold for strangers of another kind": {"strangers": {"bogus": 1}},
    "a threshold for strangers that is a list": {"strangers": [1]},
    "a threshold for strangers that is text": {
        "strangers": {**STRANGERS, "threshold": "x"}
    },
    "a threshold for strangers without end": {
        "strangers": {**STRANGERS, "threshold": 10**400}
    },
    "quantiles of strangers that are a number": {
        "strangers": {**STRANGERS, "quantiles": 1}
    },
    "a scale of series that is a list": {"reader": {"name": "series", "scale": [1]}},
    "a scale of series of another kind": {
        "reader": {"name": "series", "scale": {"bogus": 1}}
    },
}


@pytest.mark.parametrize("extra", HOSTILE.values(), ids=HOSTILE)
def test_what_is_saved_beside_the_weights_is_looked_through(grey, extra, tmp_path):
    grey.network.save_pretrained(tmp_path, **extra)
    with pytest.raises(ValueError, match=r".{10}"):
        Classifier.open(tmp_path)


@pytest.mark.parametrize("method", [Classifier.__call__, Classifier.predict])
def test_type_checkers_tell_one_image_from_several(method) -> None:
    signatures = [overload.__annotations__ for overload in typing.get_overloads(method)]
    answers = {str(each["images"]): each["return"] for each in signatures}
    assert answers["str | Path | bytes | PILImage"] is Answer
    assert answers[str(list[typing.Any] | tuple[typing.Any, ...])] == list[Answer]


class TestPushedToTheHub:
    @pytest.fixture
    def uploaded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Where a Hub without a network keeps what was uploaded to ``me/net``."""
        hub = pytest.importorskip("huggingface_hub")
        recorded: list[bool] = []

        class FakeApi:
            def create_repo(
                self, repo: str, *, private: bool, exist_ok: bool
            ) -> SimpleNamespace:
                recorded.append(exist_ok and private)
                return SimpleNamespace(repo_id=f"me/{repo.split('/')[-1]}")

            def upload_folder(self, *, repo_id: str, folder_path: str) -> None:
                assert recorded == [True]
                assert repo_id == "me/net"
                shutil.copytree(folder_path, tmp_path / "uploaded")

        monkeypatch.setattr(hub, "HfApi", FakeApi)
        return tmp_path / "uploaded"

    def test_it_opens_as_it_was(self, colour: Classifier, uploaded: Path) -> None:
        there = Classifier(
            colour.network, classes=colour.classes, resize="crop", image_shape=(3, 8, 8)
        )
        assert there.push_to_hub("net", licence="apache-2.0", private=True) == "me/net"
        opened = Classifier.open(uploaded)
        assert (opened.classes, opened.resize, opened.task.name) == (
            there.classes,
            "crop",
            there.task.name,
        )
        torch.testing.assert_close(
            lengths(opened(picture(9, 12, 3))), lengths(there(picture(9, 12, 3)))
        )
        assert sorted(path.name for path in uploaded.iterdir()) == [
            "README.md",
            "config.json",
            "model.safetensors",
        ]
        card = (uploaded / "README.md").read_text()
        assert card.startswith('---\nlicense: "apache-2.0"\n')
        assert "red, green, blue" in card
        assert 'tc.Classifier.open("me/net")' in card

    def test_a_run_brings_its_results_and_no_image(
        self, colour: Classifier, uploaded: Path, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        colour.network.save_pretrained(run / "model", classes=list(colour.classes))
        (run / "summary.json").write_text(
            '{"test_accuracy": 0.875, "command": "torchcaps train --data.root '
            '/home/me"}'
        )
        (run / "report").mkdir()
        for name in ("confusion_matrix.png", "worst_mistakes.png"):
            (run / "report" / name).write_bytes(b"png")
        Classifier.open(run).push_to_hub("me/net", private=True)
        assert [path.name for path in uploaded.glob("*.png")] == [
            "confusion_matrix.png"
        ]
        card = (uploaded / "README.md").read_text()
        assert "87.5" in card
        assert "![Confusion matrix](confusion_matrix.png)" in card
        assert str(tmp_path) not in card
        assert "/home/me" not in card
