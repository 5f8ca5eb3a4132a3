"""Series from the command line to the report: what a user sees."""

import json
from pathlib import Path

import pytest
import torch

from tests.kinds.series.test_series import sounds, tone
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.cli import main
from torchcaps_lab.data import MadeSeries, Scale, Series, SeriesSet
from torchcaps_lab.data.transforms.preprocess import Preprocess
from torchcaps_lab.kinds.series.reader import SeriesReader
from torchcaps_lab.kinds.series.table import SeriesForm
from torchcaps_lab.report.canvas import COLOURS
from torchcaps_lab.report.pictures import SeriesOverTime

SMALL = (
    "--model_args.channels",
    "[8,8]",
    "--model_args.strides",
    "[1,2]",
    "--model_args.types",
    "2",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("series")
    given = (
        "--data",
        "Series",
        "--data.root",
        str(sounds(root / "tones")),
        "--data.bands",
        "12",
    )
    options = (
        "--epochs",
        "2",
        "--batch_size",
        "4",
        "--trainer.accelerator",
        "cpu",
        *SMALL,
    )
    assert main(["train", *given, *options, "--run", str(root / "run")]) == 0
    return root / "run"


def test_the_report_plays_what_it_plots(run: Path) -> None:
    page = (run / "report" / "index.html").read_text()
    assert '<audio controls src="data:audio/wav;base64,' in page
    assert (run / "report" / "series.png").read_bytes().startswith(b"\x89PNG")
    kinds = [
        exhibit["kind"]
        for exhibit in json.loads((run / "report" / "exhibits.json").read_text())[
            "exhibits"
        ]
    ]
    assert "series" in kinds
    assert not {"mistakes", "words"} & set(kinds)


def test_channels_have_names_and_no_colours_of_classes() -> None:
    rows = [torch.randn(2, 5), torch.randn(2, 5)]
    form = SeriesForm(values=("_left", "$right$"))
    for scale, names in (
        (Scale(form=form), ("_left", "$right$")),
        (Scale(), ("channel 1", "channel 2")),
    ):
        labels, classes = torch.tensor([0, 1]), ("a", "b")
        series = SeriesSet.of(rows, labels, classes, scale=scale)
        shown = SeriesOverTime.of(torch.nn.Identity(), series, [0, 1], ["one", "two"])
        (picture,) = shown.draw()
        (legend,) = picture.figure.legends
        assert tuple(text.get_text() for text in legend.texts) == names
        picture.figure.canvas.draw()
        drawn = {line.get_color() for line in picture.figure.axes[0].lines}
        assert len(drawn) == 2
        assert not drawn & {*COLOURS}


def test_predict_a_sound_and_a_folder(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tone(tmp_path / "new.wav", 310, 0.3, rate=16000)
    tone(tmp_path / "silent.wav", 310, loud=0.0)
    (tmp_path / "speakers.csv").write_text("a,b\n1,2\n")
    named = [str(tmp_path), str(tmp_path / "gone.wav"), str(tmp_path / "gone.csv")]
    assert main(["predict", str(run), *named, "--json"]) == 1
    out, errors = capsys.readouterr()
    (answer,) = map(json.loads, out.splitlines())
    assert answer["file"] == str(tmp_path / "new.wav")
    assert answer["classes"][0] in ("low", "high")
    assert "silent.wav: it is silent" in errors
    assert errors.count("there is no file") == 2
    assert "3 of 4 series could not be read" in errors


def test_no_bounds_are_stated_for_lengths_that_have_none(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The poses of series are means of votes, and may be longer than 1."""
    classifier = Classifier.open(run / "model")
    with torch.no_grad():
        for weight in classifier.network.class_caps.parameters():
            weight *= 100
    classifier.network.save_pretrained(tmp_path / "long", **classifier.card.saved())
    assert main(["predict", str(tmp_path / "long"), str(run.parent / "tones")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(float(line.partition("length ")[2][:-1]) > 1 for line in lines[2:])
    assert lines[1].startswith(
        "# length: of its capsule, near 0 if the class is absent and near 1 if it is"
    )


def test_evaluate_and_the_network_alone(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(run), "--json"]) == 0
    assert 0 <= json.loads(capsys.readouterr().out)["accuracy"] <= 1
    classifier = Classifier.open(run / "model")
    rows = [torch.randn(12, 9), torch.randn(12, 30)]
    alone = [classifier(row) for row in rows]
    together = classifier(rows)
    for first, second in zip(alone, together, strict=True):
        torch.testing.assert_close(
            list(first.lengths.values()), list(second.lengths.values())
        )
    with pytest.raises(
        ValueError, match=r"a series must be finite numbers \(12, L\).* got \(3, 9\)"
    ):
        classifier(torch.randn(3, 9))
    with pytest.raises(ValueError, match="takes series of 12 channels"):
        classifier.prepared(MadeSeries().test)
    with pytest.raises(ValueError, match=r"hears 12 bands.*--data.bands 12 --data.hi"):
        classifier.prepared(Series(str(run.parent / "tones")).test)


def test_only_networks_of_sounds_hear() -> None:
    """The notes of a network of a table named bands of sounds."""
    reader = SeriesReader.of_data(MadeSeries(), Preprocess())
    assert reader.notes()["scale"]["sound"] is None
    assert SeriesReader.from_config(reader.config()) == reader
    with pytest.raises(ValueError, match=r"takes no sounds, got a\.wav"):
        reader.read("a.wav")


def test_a_folder_of_sounds_is_guessed(run: Path) -> None:
    from torchcaps_lab.options.guess import guess

    assert guess(run.parent / "tones").options["data"]["name"] == "Series"


def test_networks_and_data_that_do_not_belong_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (
        "--data",
        "MadeSeries",
        "--model",
        "capsnet",
        "--run",
        str(tmp_path / "run"),
    )
    assert main(["train", *given]) == 1
    assert (
        "capsnet takes no series; model must be one of series_capsnet, series_cnn"
        in capsys.readouterr().err
    )
