"""Texts from the command line to the report: what a user sees."""

import csv
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import torchcaps as tc
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.cli import main, runs
from torchcaps_lab.cli.runs import other_data
from torchcaps_lab.data import Digits, MadeQuestions, Text, TextSet, Words, joined
from torchcaps_lab.kinds.texts.coloured import word_shares
from torchcaps_lab.report.pictures import ColouredTexts
from torchcaps_lab.tasks import SeveralLabels
from torchcaps_lab.tasks.base import as_task

LARGE = (
    "--model_args.word_dim",
    "8",
    "--model_args.types",
    "2",
    "--model_args.dim",
    "4",
)


def write_reviews(root: Path) -> Path:
    for place in range(12):
        for name, text in (("good", "a <lovely> film"), ("bad", "what a dull film")):
            path = root / name / f"{place}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}, number {place} of the year")
    return root


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reviews(tmp_path_factory.mktemp("texts") / "reviews")


@pytest.fixture(scope="module")
def run(reviews: Path) -> Path:
    """A run with the network that texts have by default."""
    folder = reviews.parent / "run"
    given = (
        "--data",
        "Text",
        "--data.root",
        str(reviews),
        "--epochs",
        "1",
        "--batch_size",
        "8",
    )
    assert (
        main(
            [
                "train",
                *given,
                "--trainer.accelerator",
                "cpu",
                *LARGE,
                "--run",
                str(folder),
            ]
        )
        == 0
    )
    return folder


def test_the_run_says_what_it_is(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["model"], summary["data"], summary["task"]) == (
        "text_pooled",
        "Text",
        "classification",
    )
    saved = json.loads((run / "model" / "config.json").read_text())["extra"]
    assert {"lovely", "dull", "film"} <= set(saved["reader"]["words"]["vocabulary"])


def test_the_report_colours_words(run: Path) -> None:
    page = (run / "report" / "index.html").read_text()
    assert "What each word spoke for" in page
    assert re.search(
        r'<span style="background:rgba\(\d+,\d+,\d+,0\.\d\d\);[^>]*>dull</span>', page
    )
    assert "<lovely>" not in page  # a text is no HTML
    kinds = [
        exhibit["kind"]
        for exhibit in json.loads((run / "report" / "exhibits.json").read_text())[
            "exhibits"
        ]
    ]
    assert "words" in kinds
    assert "mistakes" not in kinds  # which are pictures


def test_predict_a_string_and_a_file_of_lines(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(run), "a lovely film", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["file"] == "a lovely film"
    assert answer["classes"][0] in ("good", "bad")
    (tmp_path / "lines.txt").write_text("a dull film\n\nпривет мир\nfilm\n")
    assert main(["predict", str(run), str(tmp_path / "lines.txt"), "--csv"]) == 1
    out, errors = capsys.readouterr()
    rows = list(csv.DictReader(out.splitlines()))
    assert [row["file"] for row in rows] == ["a dull film", "привет мир", "film"]
    assert [row["place"] for row in rows] == [
        f"{tmp_path / 'lines.txt'}:{line}" for line in (1, 3, 4)
    ]
    assert "lines.txt:2: there are no words in ''" in errors
    assert (
        "warning: no word of 'привет мир' was in the training texts: its answer is a "
        "guess" in errors
    )
    assert "1 of 4 texts could not be read" in errors
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "1.txt").write_text("a dull film\nof two lines\n")
    assert main(["predict", str(run), str(tmp_path / "more"), "a film", "--csv"]) == 0
    first, second = csv.DictReader(capsys.readouterr().out.splitlines())  # a line each
    assert (first["file"], first["place"]) == (
        "a dull film of two lines",
        str(tmp_path / "more" / "1.txt"),
    )
    assert (second["file"], second["place"]) == ("a film", "")


def test_a_saved_network_alone_reads_texts(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "model", tmp_path / "alone")
    texts = ["a lovely film", "what a dull film , number 3", "a lovely film " * 400]
    alone, whole = (
        Classifier.open(folder)(texts) for folder in (tmp_path / "alone", run)
    )
    assert [answer.lengths for answer in alone] == [answer.lengths for answer in whole]
    single_answer = Classifier.open(run)(texts[0])
    torch.testing.assert_close(
        list(single_answer.lengths.values()), list(whole[0].lengths.values())
    )
    classifier = Classifier.open(run)
    with pytest.raises(ValueError, match="there are no words in"):
        classifier("  ")
    with pytest.raises(ValueError, match="a text must be a string, got PosixPath"):
        classifier(Path("new.txt"))
    with pytest.warns(UserWarning, match="no word of"):
        classifier("好")


def test_other_tables_are_read_by_the_columns_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`evaluate RUN TABLE` chose its own columns, and refused options beside it."""
    monkeypatch.chdir(tmp_path)
    task = as_task("classification")
    network = SimpleNamespace(named=True, classes=("0", "1"), task=task)
    monkeypatch.setattr(runs, "open_classifier", lambda run: network)
    rows = [f"short {n},a longer review of film {n},{n % 2};{n % 2}" for n in range(9)]
    Path("new.csv").write_text("\n".join(["title,review,stars", *rows]))
    Path("run").mkdir()
    own = {"text": "title", "label": "stars", "delimiter": None}
    Path("run/config.yaml").write_text(json.dumps({"data": {"name": "text", **own}}))
    review = {"text": "review"}
    for run, folder, data, wanted in (
        ("run", "new.csv", None, own),
        ("run", None, "new.csv", own),
        ("run", None, {"name": "Text", "root": "new.csv"}, own),
        ("run", "new.csv", review, {**own, **review}),
        ("elsewhere", "new.csv", {"delimiter": ";", **review}, review),
    ):
        named, _ = other_data(run, folder, data, None)
        assert wanted.items() <= named.arguments.items()


def test_evaluate_reads_other_texts_in_the_words_of_the_network(
    run: Path, reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(run), "--json"]) == 0
    own = json.loads(capsys.readouterr().out)
    assert (
        main(
            [
                "evaluate",
                str(run),
                "--data",
                "Text",
                "--data.root",
                str(reviews),
                "--data.test",
                "0.5",
            ]
        )
        == 0
    )
    output = capsys.readouterr()
    assert " texts are in the test split of this data" in output.err
    assert " test texts left out: the run was trained on them" in output.err
    assert "image" not in output.err + output.out
    for path in reviews.rglob(
        "*.txt"
    ):  # the same texts, beside others: another vocabulary
        copy = tmp_path / path.relative_to(reviews)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(path.read_text())
        copy.with_suffix(".more.txt").write_text("zebra yak xenon")
    classifier = Classifier.open(run)
    both = [
        Text(str(root), test=0.0, validation=0.0).train for root in (reviews, tmp_path)
    ]
    first, second = (classifier.prepared(texts) for texts in both)
    rows = dict(zip(second.texts, second.inputs, strict=True))
    for text, row in zip(first.texts, first.inputs, strict=True):
        assert torch.equal(rows[text][: len(row)][row > 0], row[row > 0])
    assert 0 <= own["accuracy"] <= 1
    with pytest.raises(ValueError, match="the network takes words, these are images"):
        classifier.prepared(Digits().test)


def test_networks_and_data_that_do_not_belong_together(
    reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (
        "--data",
        "Text",
        "--data.root",
        str(reviews),
        "--model",
        "capsnet",
        "--run",
        str(tmp_path / "run"),
    )
    assert main(["train", *given]) == 1
    assert re.search(
        r"capsnet takes no words; model must be one of .*text_capsnet",
        capsys.readouterr().err,
    )


class TestColours:
    data = MadeQuestions(12)

    def network(self, name: str) -> torch.nn.Module:
        torch.manual_seed(0)
        small = {"text_cnn": {}, "text_pooled": {"types": 3, "dim": 4}}.get(
            name, {"parts": 3, "types": 2}
        )
        return tc.create_model(
            name, vocabulary=len(self.data.words), classes=4, word_dim=8, **small
        ).eval()

    @pytest.mark.parametrize(
        "name", ["text_capsnet", "text_capsnet_b", "text_encoder", "text_pooled"]
    )
    def test_shares(self, name: str) -> None:
        model = self.network(name)
        words = self.data.test.__getitems__([0, 1, 2]).inputs
        shares = word_shares(model, words)
        assert shares.shape == (*words.shape, 4)
        assert (shares[words == 0] == 0).all()
        assert (shares <= model(words).activation[:, None]).all()
        padded = torch.nn.functional.pad(words, (0, 5))
        torch.testing.assert_close(
            word_shares(model, padded)[:, : words.shape[1]], shares
        )
        torch.testing.assert_close(
            word_shares(model.bfloat16(), words), shares, atol=0.05, rtol=0.05
        )

    @pytest.mark.parametrize("name", ["text_encoder", "text_capsnet"])
    def test_words_that_all_say_the_same_have_half_the_colour(self, name: str) -> None:
        """They were as strong as the one that alone speaks for a class: colours that
        tell nothing.
        """
        model = self.network(name)
        with torch.no_grad():
            model.embedding.weight[:] = 0.5
        words = torch.tensor([[3] * 40])
        shares = word_shares(model, words)[0]
        activation = model(words).activation[0]
        middle = shares[10:30]  # those at the ends are seen by fewer windows
        torch.testing.assert_close(
            middle, activation.expand_as(middle) / 2, rtol=0.1, atol=0
        )

    def test_a_word_that_speaks_for_a_class_has_its_colour(self) -> None:
        """All words but one say nothing: their vectors are 0, and so are biases behind
        them.
        """
        model = self.network("text_encoder")
        with torch.no_grad():
            model.embedding.weight[[3, 4, 5]] = 0
        shares = word_shares(model, torch.tensor([[3, 4, 4, 2, 5, 5, 5]]))[0].sum(-1)
        assert shares.nonzero().flatten().tolist() == [
            1,
            2,
            3,
            4,
            5,
        ]  # the windows of 3 words that hold it
        assert shares.argmax() == 3

    def test_pieces_are_the_text(self) -> None:
        text = "Who  found\nthe <b>river</b>?  Nobody"
        classes = self.data.classes
        exhibit = ColouredTexts.of(
            self.network("text_capsnet"), self.data.words, [text], ["title"], classes
        )
        (coloured_text,) = exhibit.texts
        (axes,) = exhibit.figure().axes
        drawn = "".join(letter.get_text() for letter in axes.texts)
        assert "".join(text.split()) in "".join(drawn.split())
        assert "".join(coloured_text.pieces) == text
        assert (
            len(coloured_text.labels)
            == len(coloured_text.strength)
            == len(coloured_text.pieces)
        )
        (empty,) = ColouredTexts.of(
            self.network("text_capsnet"), self.data.words, [" "], ["title"], classes
        ).texts
        assert empty.pieces == ()  # as texts in a file of many may be
        plain = ColouredTexts.of(
            self.network("text_cnn"), self.data.words, [text], ["title"], classes
        )
        assert plain.html() is None
        assert plain.table().rows == [["title", text]]


def test_two_classes_in_one_text() -> None:
    data = MadeQuestions(12)
    torch.manual_seed(0)
    model = tc.create_model(
        "text_cnn", vocabulary=len(data.words), classes=4, word_dim=8
    ).eval()
    assert isinstance(data.test, TextSet)
    pairs = joined(data.test, 10)
    actual = SeveralLabels(count=2).examine(model, pairs)
    activation = torch.cat(
        [model(pairs[place].inputs).activation for place in range(10)]
    )
    predicted = torch.zeros(10, 4).scatter(1, activation.topk(2).indices, 1).bool()
    assert (
        actual.figures["accuracy"] == (predicted == pairs.labels).all(1).double().mean()
    )
    assert actual.lines[0].endswith("of 10 texts right in all their classes")


def test_the_code_of_the_document_runs(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = (Path(__file__).parents[3] / "docs" / "words.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "reviews").symlink_to(run)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(block, "docs/words.md", "exec"), names)
    assert names["shares"].shape == (1, 7, 2)
    assert len(names["pairs"]) == 50


def test_a_vocabulary_that_is_not_the_networks(tmp_path: Path) -> None:
    """It was opened, and failed at the first text with a later word."""
    data = MadeQuestions(12)
    model = tc.create_model(
        "text_cnn", vocabulary=len(data.words), classes=4, word_dim=8
    )
    more = Words((*data.words.vocabulary, "more"))
    reader = {"name": "texts", "words": more.config()}
    model.save_pretrained(tmp_path, classes=list(data.classes), reader=reader)
    with pytest.raises(
        ValueError,
        match=rf"knows {len(data.words)} words, and the vocabulary .* has {len(more)}",
    ):
        Classifier.open(tmp_path)
    reader = {"name": "texts", "words": data.words.config()}
    model.save_pretrained(tmp_path, classes=list(data.classes), reader=reader)
    answer = Classifier.open(tmp_path)(
        "who found the river ?", resize="handwriting"
    )  # which is for images
    assert set(answer.lengths) == set(data.classes)
