"""None of these: the error of the reconstruction, the threshold, and what says so."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.report.small import TRAINED, digits_net, image_set, look, plain_net
from torchcaps import Classifier, create_model
from torchcaps.models import load_pretrained
from torchcaps.models.pretrained import BOX
from torchcaps_lab.cli import main
from torchcaps_lab.data import Digits
from torchcaps_lab.evaluate import Verdict
from torchcaps_lab.report import (
    Strangers,
    reconstruction_error,
    reconstruction_errors,
    told_apart,
)
from torchcaps_lab.report.pictures import NoneOfThese

BOXED = "digits/capsnet_digits"
JUDGE = "torchcaps_lab.kinds.none_of_these.strangers.judge"


@pytest.fixture(autouse=True)
def _as_if_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JUDGE, lambda *_: TRAINED)


class TestError:
    def test_by_hand(self) -> None:
        pictures = torch.tensor([[3.0, 4.0]])[:, None, None]
        drawn = torch.tensor([[3.0, 1.0]])[:, None, None]
        assert reconstruction_error(pictures, drawn).item() == pytest.approx(9 / 25)

    def test_it_does_not_change_with_the_brightness(self) -> None:
        pictures, drawn = torch.rand(2, 4, 1, 8, 8)
        bright = reconstruction_error(pictures, drawn)
        dim = reconstruction_error(pictures / 2, drawn / 2)
        torch.testing.assert_close(bright, dim)

    def test_a_black_image(self) -> None:
        black = torch.zeros(1, 1, 8, 8)
        white = torch.ones(1, 1, 8, 8)
        assert reconstruction_error(black, black).item() == 0
        assert 1e6 < reconstruction_error(black, white).item() < float("inf")

    def test_is_that_of_the_most_active_class(self) -> None:
        network = digits_net().eval()
        images = image_set((1, 8, 8))
        batch = images.__getitems__(list(range(len(images))))
        capsules = network.encode(batch.inputs)
        drawn = network.decode(capsules, capsules.activation.argmax(1))
        expected = ((batch.pictures - drawn) ** 2).sum((1, 2, 3)) / (
            batch.pictures**2
        ).sum((1, 2, 3))
        torch.testing.assert_close(
            reconstruction_errors(network, images, batch_size=5), expected.detach()
        )


class TestThreshold:
    @pytest.mark.parametrize("false_alarms", [0.05, 0.1, 0.25])
    def test_so_many_validation_images_lie_above_it(self, false_alarms: float) -> None:
        network = digits_net()
        images = image_set((1, 8, 8), count=200)
        actual = Strangers.fit(network, images, false_alarms)
        assert actual is not None
        known = actual.known(reconstruction_errors(network, images))
        assert (~known).double().mean().item() == pytest.approx(
            false_alarms, abs=1 / 200
        )

    def test_strangeness_is_the_share_of_images_that_are_less_strange(self) -> None:
        network = digits_net()
        images = image_set((1, 8, 8), count=200)
        errors = reconstruction_errors(network, images)
        share = Strangers.fit(network, images, 0.07).strangeness(errors)
        ranks = errors.argsort().argsort().double() / (len(errors) - 1)
        torch.testing.assert_close(share, ranks, atol=0.01, rtol=0)

    def test_known_is_what_is_at_most_so_strange(self) -> None:
        actual = Strangers.fit(digits_net(), image_set((1, 8, 8), count=100), 0.033)
        errors = torch.linspace(actual.quantiles[0], actual.quantiles[-1], 1001)
        assert torch.equal(
            actual.known(errors), actual.strangeness(errors) <= 1 - 0.033 + 1e-9
        )

    def test_kept_as_json(self) -> None:
        actual = Strangers.fit(digits_net(), image_set((1, 8, 8), count=30))
        assert Strangers.from_config(json.loads(json.dumps(actual.config()))) == actual

    def test_nothing_to_tell_them_by(self, monkeypatch: pytest.MonkeyPatch) -> None:
        images = image_set((1, 8, 8), count=30)
        assert Strangers.fit(digits_net(decoder_hidden=None), images) is None
        assert Strangers.fit(plain_net(), image_set((1, 16, 16), count=30)) is None
        assert Strangers.fit(digits_net(), images.subset(torch.arange(19))) is None
        blind = Verdict(images=30, entropy=0.8, changed=0.2, explained=0.05)
        monkeypatch.setattr(JUDGE, lambda *_: blind)
        assert Strangers.fit(digits_net(), images) is None

    @pytest.mark.parametrize(("explained", "offered"), [(0.49, False), (0.51, True)])
    def test_a_drawing_that_explains_little_tells_nothing(
        self, monkeypatch: pytest.MonkeyPatch, explained: float, offered: bool
    ) -> None:
        """That of a photograph is a blur, at the distance of which all photographs
        are.
        """
        images = image_set((1, 8, 8), count=30)
        verdict = Verdict(images=30, entropy=0.8, changed=0.2, explained=explained)
        monkeypatch.setattr(JUDGE, lambda *_: verdict)
        assert bool(Strangers.fit(digits_net(), images)) == offered
        reason = Strangers.unfit(digits_net(), images)
        assert ("49% of the variance" in reason) != offered

    @pytest.mark.parametrize("false_alarms", [0, 1, -0.1, 1.5, float("nan"), "few"])
    def test_rates_out_of_range(self, false_alarms: object) -> None:
        with pytest.raises(
            ValueError, match="false_alarms must be a share between 0 and 1, got"
        ):
            Strangers.fit(digits_net(), image_set((1, 8, 8)), false_alarms)

    @pytest.mark.parametrize("quantiles", [(0.1,), (0.2, 0.1), (0.1, float("inf"))])
    def test_damaged(self, quantiles: tuple[float, ...]) -> None:
        with pytest.raises(ValueError, match="threshold and quantiles must be finite"):
            Strangers(0.1, 0.05, quantiles, 100)

    def test_apart(self) -> None:
        known = torch.tensor([0.1, 0.2, 0.6, 0.3])
        strange = torch.tensor([0.9, 0.4])
        assert told_apart(known, strange, 0.5) == pytest.approx((7 / 8, 0.5, 0.25))
        with pytest.raises(
            ValueError, match="there must be known and strange images, got 4 and 0"
        ):
            told_apart(known, strange[:0], 0.5)


class TestAnswers:
    def test_digits_are_known_and_noise_is_not(self) -> None:
        classifier = Classifier.open(BOXED)
        digits = classifier.predict(Digits().test.inputs)
        assert (
            sum(not digit.known for digit in digits) / len(digits) < 0.12
        )  # 5 % of 143 validation images
        noise = classifier.predict(
            torch.rand(50, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        )
        assert sum(answer.known for answer in noise) == 0
        assert str(noise[0]).startswith("none of these, at best ")
        assert all((digit.strangeness <= 0.95) == digit.known for digit in digits)

    def test_networks_without_a_threshold_open_as_before(self, tmp_path: Path) -> None:
        network = load_pretrained(BOXED)
        old = {
            name: value for name, value in network.extra.items() if name != "strangers"
        }
        network.save_pretrained(tmp_path, **old)
        answer = Classifier.open(tmp_path)(Digits().test.inputs[0])
        assert (answer.known, answer.strangeness) == (None, None)
        assert "known" not in answer.json()
        assert "none of these" not in str(answer)

    def test_images_of_other_sizes(self) -> None:
        answer = Classifier.open(BOXED)(np.zeros((31, 17), dtype=np.uint8))
        assert answer.known is False
        assert answer.strangeness == 1


class TestExhibit:
    def test_image_drawn_and_difference(self) -> None:
        network = digits_net().eval()
        images = torch.rand(3, 1, 8, 8)
        strangers = Strangers(0.3, 0.05, (0.1, 0.4), 500)
        exhibit = NoneOfThese.of(look(network, images), strangers)
        torch.testing.assert_close(
            exhibit.differences, (images - exhibit.reconstructions).abs()
        )
        assert exhibit.to_json()["kind"] == "none_of_these"
        assert [picture.file for picture in exhibit.draw()] == ["none_of_these.png"]

    def test_nothing_without_a_decoder(self) -> None:
        network = digits_net(decoder_hidden=None).eval()
        assert (
            NoneOfThese.of(
                look(network, torch.rand(3, 1, 8, 8)),
                Strangers(0.3, 0.05, (0.1, 0.4), 500),
            )
            is None
        )


class TestCommands:
    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.chdir(tmp_path)
        shutil.copytree(BOX / BOXED, tmp_path / "own")
        (tmp_path / "empty").mkdir()
        pixels = (
            torch.rand(12, 8, 8, generator=torch.Generator().manual_seed(0))
            .mul(255)
            .byte()
            .numpy()
        )
        (tmp_path / "noise").mkdir()
        for place, picture in enumerate(pixels):
            Image.fromarray(picture).save(tmp_path / "noise" / f"{place}.png")
        return tmp_path

    def test_the_threshold_is_fitted_again_and_kept(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = Classifier.open("own").doubts["strangers"]
        assert (
            main(
                [
                    "evaluate",
                    "own",
                    "--data",
                    "Digits",
                    "--false_alarms",
                    "0.2",
                    "--strange",
                    "noise",
                ]
            )
            == 0
        )
        output = capsys.readouterr().out
        after = Classifier.open("own").doubts["strangers"]
        assert after.false_alarms == 0.2
        assert after.threshold < before.threshold
        assert f"saved in {Path('own', 'config.json')}" in output
        assert "noise: 0.00% of 12 images pass for known, AUC " in output

    def test_a_data_set_as_json(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert (
            main(
                ["evaluate", BOXED, "--data", "Digits", "--strange", "Digits", "--json"]
            )
            == 0
        )
        apart = json.loads(capsys.readouterr().out)["strangers"]
        assert (apart["strange_images"], apart["auc"]) == (
            359,
            pytest.approx(0.5),
        )  # the same images on both sides
        assert apart["undetected"] == pytest.approx(1 - apart["false_alarms"])

    def test_predict_says_so(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["predict", "own", "noise/0.png"]) == 0
        output = capsys.readouterr().out
        assert (
            "# none of these: an image is none of these if its reconstruction differs "
            "by more than" in output
        )
        assert "noise/0.png: none of these, at best " in output
        assert "# stranger than 100.0% of the validation images" in output
        assert main(["predict", "own", "noise/0.png", "--csv"]) == 0
        head, row = capsys.readouterr().out.splitlines()
        assert head.endswith(",length,place,known,strangeness")
        assert row.endswith(",0,1")
        assert main(["predict", "own", "noise/0.png", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["known"] is False

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["own", "--strange", "empty"], "there are no images in empty"),
            (["own", "--strange", "Nothing"], "Nothing"),
            (
                ["own", "--false_alarms", "1"],
                "false_alarms must be a share between 0 and 1, got 1",
            ),
            (
                ["bare", "--strange", "noise"],
                "--strange: nothing was fitted that an image of no class is recognised by",
            ),
            (
                ["bare", "--false_alarms", "0.1"],
                "--false_alarms: there is nothing that an image of no class",
            ),
            (["bare", "--false_alarms", "0.1"], "; this network has no decoder"),
            (["bare", "--strange", "noise"], "a decoder that learned to reconstruct"),
            (["bare", "--strange", "noise"], "--false_alarms 0.05 fits it, or tells"),
        ],
    )
    def test_what_cannot_be(
        self,
        folder: Path,
        capsys: pytest.CaptureFixture[str],
        arguments: list[str],
        message: str,
    ) -> None:
        bare = create_model("capsnet_digits", channels=4, types=2, decoder_hidden=None)
        bare.save_pretrained(folder / "bare", classes=list("0123456789"))
        assert main(["evaluate", *arguments, "--data", "Digits"]) == 1
        assert message in capsys.readouterr().err
