"""A training that starts from a run: --from on the command line, start in Python."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import torchcaps as tc
from torchcaps.spec import fit
from torchcaps.whole import expanded
from torchcaps_lab.cli import main
from torchcaps_lab.data.files import list_folder
from torchcaps_lab.kinds.images.decoding.picture import at_size, load_image
from torchcaps_lab.kinds.images.sets.folder import ImageListing
from torchcaps_lab.look import name_in
from torchcaps_lab.options.reading import meant_option, typed
from torchcaps_lab.training.start import start_from

SMALL = {"model": "capsnet_digits", "epochs": 1, "report": False, "show": None}


def folder(root: Path, *classes: str) -> Path:
    """A folder with six pictures of 8 x 8 in each class."""
    for shade, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for place in range(6):
            pixels = np.full((8, 8), 20 * shade + place, dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{place}.png")
    return root


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of photos and a run that was trained on it."""
    place = tmp_path_factory.mktemp("start")
    photos = folder(place / "photos", "rose", "tulip")
    tc.train(photos, run=place / "run", **SMALL)
    return photos, place / "run"


class TestWeights:
    def test_of_a_class_go_to_the_class_of_that_name(self, tmp_path: Path) -> None:
        old = tc.create_model("capsnet_digits", classes=2)
        old.save_pretrained(tmp_path, classes=["rose", "tulip"])
        new = tc.create_model("capsnet_digits", classes=3)
        drawn = new.class_caps.weight.detach().clone()
        more = tc.create_model("capsnet_digits", classes=4)
        classes = ["aster", "tulip", "rose"]
        known = ["rose", "tulip"]
        line = start_from(
            new, str(tmp_path), lambda _: {"classes": (classes, known)}, lambda _: more
        )
        axis = next(
            place
            for place, (a, b) in enumerate(
                zip(drawn.shape, more.class_caps.weight.shape, strict=True)
            )
            if a != b
        )
        kept = new.class_caps.weight.unbind(axis)
        torch.testing.assert_close(kept[0], drawn.unbind(axis)[0])
        torch.testing.assert_close(kept[1], old.class_caps.weight.unbind(axis)[1])
        torch.testing.assert_close(kept[2], old.class_caps.weight.unbind(axis)[0])
        torch.testing.assert_close(new.conv.weight, old.conv.weight)
        assert "aster" in line
        assert "decoder" in line

    def test_of_another_network_are_refused(self, tmp_path: Path) -> None:
        tc.create_model("capsnet_digits").save_pretrained(tmp_path)
        other = tc.create_model("capsnet_small_cnn", image_shape=(1, 28, 28))
        with pytest.raises(ValueError, match="start: no weight of"):
            start_from(other, str(tmp_path), lambda _: {}, lambda _: other)

    def test_of_a_word_go_to_that_word(self, tmp_path: Path) -> None:
        texts = [f"so {word} it was {n}" for n in range(10) for word in ("dull", "fun")]
        labels = ["no", "yes"] * 10
        words = {"report": False, "epochs": 1, "model_args": {"word_dim": 4}}
        old = tc.train(texts, labels, run=tmp_path / "old", **words)
        others = [
            text.replace("it", "the film").replace("dull", "sad") for text in texts
        ]
        words |= {"lr": 1e-12, "start": str(tmp_path / "old")}
        new = tc.train(others, labels, run=tmp_path / "new", **words)
        both = {*old.reader.words.vocabulary} & {*new.reader.words.vocabulary}
        assert {"so", "was", "fun"} <= both
        vectors = [model.network.embedding.weight for model in (old, new)]
        for word in both:
            places = [
                2 + model.reader.words.vocabulary.index(word) for model in (old, new)
            ]
            torch.testing.assert_close(vectors[1][places[1]], vectors[0][places[0]])
        assert any("new vocabulary: " in note for note in new.summary["notes"])


class TestCommand:
    def test_takes_the_network_of_the_run(
        self, run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        more = folder(tmp_path / "more", "rose", "tulip", "aster")
        words = ["--epochs", "1", "--report", "false", "--run", str(tmp_path / "run")]
        assert main(["train", str(more), "--from", str(run[1]), *words]) == 0
        printed = capsys.readouterr().out
        assert "capsnet_digits: " in printed
        assert "new classes: aster" in printed
        network = tc.load_pretrained(tmp_path / "run" / "model")
        assert network.extra["classes"] == ["aster", "rose", "tulip"]

    def test_is_the_same_in_python(
        self, run: tuple[Path, Path], tmp_path: Path
    ) -> None:
        pixels = np.zeros((12, 8, 8), dtype=np.uint8)
        labels = ["rose", "lily"] * 6
        options = {**SMALL, "start": str(run[1]), "run": tmp_path / "run"}
        del options["model"]
        classifier = tc.train(pixels, labels, **options)
        assert classifier.summary["model"] == "capsnet_digits"
        assert any("new classes: lily" in note for note in classifier.summary["notes"])

    def test_takes_a_saved_network_and_its_preparation(
        self, run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        reader = {"name": "images", "image_shape": [1, 8, 8], "resize": "pad"}
        reader["preprocess"] = {"shift": 1}
        small = tc.create_model(
            "capsnet_digits",
            classes=2,
            channels=8,
            types=2,
            routing=tc.create_routing("kmeans"),
        )
        small.save_pretrained(tmp_path / "mine", classes=["rose", "ant"], reader=reader)
        words = ["--epochs", "1", "--report", "false", "--run", str(tmp_path / "run")]
        start = ["--from", str(tmp_path / "mine")]
        assert main(["train", str(run[0]), *start, *words]) == 0
        assert "kept conv, primary_caps, class_caps" in capsys.readouterr().out
        network = tc.load_pretrained(tmp_path / "run" / "model")
        assert repr(network.routing) == repr(small.routing)
        assert network.extra["reader"]["preprocess"]["shift"] == 1

    def test_takes_how_images_are_read(
        self, run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        reader = {"name": "images", "image_shape": [1, 8, 8], "resize": "stretch"}
        reader |= {"range": [0, 100], "background": "white"}
        network = tc.create_model("capsnet_digits", classes=2)
        network.save_pretrained(tmp_path, classes=["rose", "ant"], reader=reader)
        words = ["train", str(run[0]), "--from", str(tmp_path), "--print_config"]
        assert main([*words, "--data.background", "black"]) == 0
        printed = capsys.readouterr().out
        assert "resize: stretch" in printed
        assert "range:\n  - 0.0\n  - 100.0" in printed
        assert "background: black" in printed

    def test_takes_a_published_network_as_it_was_trained(
        self, run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Its name has other arguments by default, and so has what is guessed."""
        words = ["--epochs", "1", "--report", "false", "--run", str(tmp_path / "run")]
        start = ["--from", "mnist/capsnet_small"]
        assert main(["train", str(run[0]), *start, *words]) == 0
        assert "kept features, conv, norm, primary_caps, " in capsys.readouterr().out

    def test_of_no_run_says_so(
        self, run: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["train", str(run[0]), "--from", "nowhere"]) == 1
        assert "no saved network nowhere to start from" in capsys.readouterr().err

    @pytest.mark.parametrize("name", ["pretrained", "init", "weights", "checkpoint"])
    def test_is_what_other_packages_call(self, name: str) -> None:
        assert meant_option(name, ["start", "epochs"]) == "; did you mean start?"


class TestNewClasses:
    def test_of_the_run_name_the_command(
        self,
        run: tuple[Path, Path],
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        moved = folder(tmp_path / "moved", "rose", "tulip", "aster")
        assert main(["evaluate", str(run[1]), "--data.root", str(moved)]) == 0
        command = f"torchcaps train {moved} --from {run[1]}"
        assert command in capsys.readouterr().err

    def test_of_other_data_name_the_command(
        self,
        run: tuple[Path, Path],
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        other = folder(tmp_path / "other", "rose", "tulip", "aster")
        assert main(["evaluate", str(run[1]), str(other)]) == 1
        command = f"torchcaps train {other} --from {run[1]}"
        assert command in capsys.readouterr().err

    def test_are_not_needed_to_test_on_one(
        self,
        run: tuple[Path, Path],
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        only = folder(tmp_path / "only", "rose")
        assert main(["evaluate", str(run[1]), str(only)]) == 0
        out = capsys.readouterr().out
        assert "there are no images of 'tulip'" in out
        assert "most frequent class" not in out


@pytest.mark.parametrize("resize", ["pad", "crop", "stretch"])
@pytest.mark.parametrize("size", [(40, 24), (24, 40), (16, 16)])
def test_classes_of_pixels_come_back_to_the_size_of_the_picture(
    resize: str, size: tuple[int, int]
) -> None:
    """A bright square in the middle is where it was."""
    height, width = size
    true = np.zeros(size, dtype=np.uint8)
    true[height // 4 : -height // 4, width // 4 : -width // 4] = 255
    fitted = load_image(Image.fromarray(true), (1, 64, 64), resize)[0]
    actual = at_size((fitted > 127).long(), height, width, resize)
    wrong = (actual != torch.from_numpy(true > 127).long()).float().mean()
    assert actual.shape == size
    assert wrong < 0.1


@pytest.mark.parametrize("size", [(61, 64), (57, 64), (64, 53), (2, 300)])
def test_margins_are_not_taken_for_the_picture(size: tuple[int, int]) -> None:
    white = Image.fromarray(np.full(size, 255, dtype=np.uint8))
    fitted = load_image(white, (1, 64, 64), "pad")[0]
    assert (at_size(fitted.long(), *size, "pad") == 255).all()


def test_hidden_files_are_noted(tmp_path: Path) -> None:
    photos = folder(tmp_path / "photos", "rose", "tulip")
    (photos / "rose" / "0.png").rename(photos / "rose" / ".0.png")
    (photos / "rose" / "._1.png").write_bytes(b"of a system")
    listing = list_folder(ImageListing(root=photos))
    assert listing.notes == ("1 hidden image left out: rose/.0.png",)


def test_names_are_read_as_they_are_typed() -> None:
    """``--from null`` named a run, and data in braces no data set."""
    assert name_in(typed("null")) is None
    assert name_in(typed("{name: Digits, size: 12}")) == "Digits"
    assert name_in({"name": typed("1e3")}) == "1e3"
    for name in ("a # b.csv", " a.csv", "a\nb.csv", "|"):
        assert fit(str, typed(name), "folder") == name
    assert fit(str | None, typed("'null'"), "label") == "null"
    for sign in ("-", "#", " "):
        assert fit(str | None, typed(sign), "delimiter") == sign
    assert fit(tuple[str, ...], typed("[1, no, 1e3]"), "classes") == ("1", "no", "1e3")
    assert fit(tuple[int, ...], typed("[1, 2]"), "size") == (1, 2)
    assert fit(dict[str, float], typed("{yes: 2, 1: 3}"), "by") == {"yes": 2, "1": 3}


def test_the_name_of_no_user_is_that_of_a_file() -> None:
    """``Path("~new.csv").expanduser()`` raises a RuntimeError."""
    assert expanded("~new.csv") == Path("~new.csv")
    assert expanded("~/new.csv") == Path.home() / "new.csv"
