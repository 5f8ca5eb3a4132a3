"""The trained networks in the package: what their cards say, whole or refused."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageChops, ImageDraw

from torchcaps.models import EfficientCapsNet, create_model, load_pretrained, pretrained
from torchcaps.models.pretrained import (
    describe_pretrained,
    list_pretrained,
    pretrained_folder,
)
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.cli import main

EFFICIENT = "mnist/efficient_capsnet"


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of one network in a box of its own."""
    shutil.copytree(pretrained.BOX / EFFICIENT, tmp_path / EFFICIENT)
    shutil.copy(pretrained.BOX / pretrained.SUMS, tmp_path)
    monkeypatch.setattr(pretrained, "BOX", tmp_path)
    return tmp_path


class TestTheBox:
    def test_every_file_in_it_is_known_by_its_hash(self) -> None:
        files = {
            path.relative_to(pretrained.BOX).as_posix()
            for path in pretrained.BOX.rglob("*")
            if path.is_file()
        }
        lines = (pretrained.BOX / pretrained.SUMS).read_text().splitlines()
        assert files == {line.split("  ")[1] for line in lines} | {pretrained.SUMS}

    def test_all_together_are_under_10_MB(self) -> None:
        assert (
            sum(
                path.stat().st_size
                for path in pretrained.BOX.rglob("*")
                if path.is_file()
            )
            < 10e6
        )

    @pytest.mark.parametrize("name", list_pretrained())
    def test_each_has_a_card(self, name: str) -> None:
        card = describe_pretrained(name)["card"]
        assert {
            "data",
            "test error",
            "last epoch",
            "training",
            "command",
            "input",
            "prepared",
            "licence",
        } <= set(card)

    @pytest.mark.parametrize("name", list_pretrained())
    def test_each_answers(self, name: str) -> None:
        data, _, model = name.partition("/")
        classifier = Classifier.open(name)
        assert type(classifier.network) is type(create_model(model, pretrained=data))
        if classifier.network.takes == "images":
            activations = classifier.activations(torch.rand(2, *classifier.image_shape))
        else:
            activations = classifier.network(classifier.network.examples(2)).activation
        assert activations.isfinite().all()
        assert classifier.network.extra["task"]["name"]
        assert not classifier.network.training


class TestAFileThatIsNotWhatWasPacked:
    @pytest.mark.parametrize("file", ["config.json", "model.safetensors", "card.md"])
    def test_a_flipped_byte_is_refused_and_named(self, file: str, box: Path) -> None:
        path = box / EFFICIENT / file
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match=rf"{file} is not the file that was packed"
        ):
            load_pretrained(EFFICIENT)

    def test_a_missing_one_too(self, box: Path) -> None:
        (box / EFFICIENT / "model.safetensors").unlink()
        with pytest.raises(ValueError, match=r"model\.safetensors is missing"):
            pretrained_folder(EFFICIENT)


class TestNames:
    def test_a_folder_of_that_name_comes_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        create_model(
            "capsnet_digits", channels=4, types=2, decoder_hidden=None
        ).save_pretrained(EFFICIENT)
        assert load_pretrained(EFFICIENT).channels == 4

    def test_what_is_not_there(self) -> None:
        with pytest.raises(
            ValueError, match=r"mnist/efficient_capsnet.*got 'mnist/caps'"
        ):
            pretrained_folder("mnist/caps")
        with pytest.raises(
            ValueError,
            match=(
                r"pretrained must be one of \['mnist'\] for efficient_capsnet, "
                r"got 'cifar"
            ),
        ):
            create_model("efficient_capsnet", pretrained="cifar10")
        with pytest.raises(ValueError, match="got routing besides pretrained"):
            create_model("efficient_capsnet", pretrained="mnist", routing=None)

    def test_from_pretrained_says_which_class_it_must_be(self) -> None:
        assert EfficientCapsNet.from_pretrained(EFFICIENT).classes == 10

    def test_the_command_line_reads_a_question(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert (
            main(
                [
                    "predict",
                    "trec/text_pooled",
                    "who wrote Hamlet ?",
                    "how far is the moon ?",
                    "--csv",
                ]
            )
            == 0
        )
        rows = [line.split(",") for line in capsys.readouterr().out.splitlines()[1:]]
        assert [(row[0], row[2]) for row in rows] == [
            ("who wrote Hamlet ?", "HUM"),
            ("how far is the moon ?", "NUM"),
        ]

    def test_the_command_line_finds_what_is_in_a_scene(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        seven = Image.new("L", (150, 110))
        zero = Image.new("L", (150, 110))
        ImageDraw.Draw(seven).line([(20, 20), (38, 20), (26, 46)], fill=255, width=4)
        ImageDraw.Draw(zero).ellipse([96, 60, 116, 92], outline=255, width=4)
        ImageChops.add(seven, zero).save(tmp_path / "scene.png")
        assert (
            main(
                [
                    "predict",
                    "scenes/scene_capsnet",
                    str(tmp_path / "scene.png"),
                    "--json",
                ]
            )
            == 0
        )
        row = json.loads(capsys.readouterr().out)
        assert sorted(row["classes"]) == ["0", "7"]
        for name, drawn in (("7", seven), ("0", zero)):
            (thing,) = row["things"][name]
            assert thing["box"] == pytest.approx(drawn.getbbox(), abs=4)

    def test_the_command_line_shows_them(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["models", "--pretrained", "efficient*"]) == 0
        shown = capsys.readouterr().out
        assert EFFICIENT in shown
        assert "torchcaps train --config examples/mnist-efficient.yaml" in shown
        assert main(["models", "--pretrained", "--json"]) == 0
        assert [
            row["name"] for row in json.loads(capsys.readouterr().out)
        ] == list_pretrained()


class TestStoredInHalf:
    def test_comes_back_in_full_and_rounded(self, tmp_path: Path) -> None:
        network = create_model(
            "capsnet_digits", channels=4, types=2, decoder_hidden=(8,)
        ).double()
        network.save_pretrained(tmp_path, stored="float16", note=1)
        back = create_model(
            "capsnet_digits", channels=4, types=2, decoder_hidden=(8,)
        ).state_dict()
        loaded = load_pretrained(tmp_path)
        assert loaded.extra == {"note": 1}
        for name, tensor in loaded.state_dict().items():
            assert tensor.dtype == back[name].dtype
            assert torch.equal(
                tensor, network.state_dict()[name].half().to(tensor.dtype)
            )

    def test_half_the_room(self, tmp_path: Path) -> None:
        network = create_model("capsnet_digits")
        network.save_pretrained(tmp_path / "full")
        network.save_pretrained(tmp_path / "half", stored="bfloat16")
        full, half = (
            (tmp_path / name / "model.safetensors").stat().st_size
            for name in ("full", "half")
        )
        assert half < 0.51 * full

    def test_what_does_not_fit(self, tmp_path: Path) -> None:
        network = create_model(
            "capsnet_digits", channels=4, types=2, decoder_hidden=None
        )
        with pytest.raises(
            ValueError, match="stored must be one of float16, bfloat16, got 'int8'"
        ):
            network.save_pretrained(tmp_path, stored="int8")
        with torch.no_grad():
            network.conv.bias[0] = 1e6
        with pytest.raises(
            ValueError, match=r"conv\.bias holds 1e\+06, which is too large for float16"
        ):
            network.save_pretrained(tmp_path, stored="float16")
        assert not list(tmp_path.iterdir())

    def test_a_file_in_another_type_than_it_says(self, tmp_path: Path) -> None:
        network = create_model(
            "capsnet_digits", channels=4, types=2, decoder_hidden=None
        )
        network.save_pretrained(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        for stored, message in (
            ("float16", "must be torch.float16"),
            ("int3", r"config\.json is damaged"),
        ):
            (tmp_path / "config.json").write_text(
                json.dumps({**config, "stored": stored})
            )
            with pytest.raises(ValueError, match=message):
                load_pretrained(tmp_path)


def test_sums_are_those_of_sha256sum() -> None:
    line = (pretrained.BOX / pretrained.SUMS).read_text().splitlines()[0]
    digest, path = line.split("  ")
    assert digest == hashlib.sha256((pretrained.BOX / path).read_bytes()).hexdigest()
