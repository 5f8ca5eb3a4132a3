"""Texts: the forms that they come in, and what is left out."""

import csv
import json
from pathlib import Path

import pytest
import torch

from torchcaps.models import create_model
from torchcaps_lab.data import Manifest, Text, TextSet
from torchcaps_lab.data.reader import Unread
from torchcaps_lab.kinds.texts.files import named_texts
from torchcaps_lab.kinds.texts.files import texts_of as texts_in_rows
from torchcaps_lab.kinds.texts.words import RESERVED
from torchcaps_lab.options.guess import guess


def write(root: Path, files: dict[str, str], encoding: str = "utf-8") -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding=encoding)
    return root


def reviews(root: Path, count: int = 10) -> Path:
    good = {
        f"good/{place}.txt": f"a lovely film, number {place}" for place in range(count)
    }
    bad = {
        f"bad/deep/{place}.txt": f"what a dull film, number {place}"
        for place in range(count)
    }
    return write(root, good | bad)


def texts_of(texts: TextSet) -> dict[str, str]:
    """Each text with the name of its class."""
    return {
        text: texts.classes[label]
        for text, label in zip(texts.texts, texts.labels.tolist(), strict=True)
    }


class TestForms:
    def test_a_folder_of_classes(self, tmp_path: Path) -> None:
        write(
            reviews(tmp_path),
            {"good/empty.txt": " \n", "good/picture.png": "x", "loose.txt": "nowhere"},
        )
        (tmp_path / "bad" / "old.txt").write_bytes("très ennuyeux".encode("latin-1"))
        (tmp_path / "bad" / "marked.txt").write_bytes(b"\xef\xbb\xbfboring\r\nfilm")
        (tmp_path / "bad" / "excel.txt").write_bytes(
            b"\xff\xfe" + "naïf\r\nfilm".encode("utf-16-le")
        )
        (tmp_path / "bad" / "motorola.txt").write_bytes(
            b"\xfe\xff" + "plat".encode("utf-16-be")
        )
        data = Text(str(tmp_path))
        assert data.classes == ("bad", "good")
        actual = texts_of(data.train) | texts_of(data.validation) | texts_of(data.test)
        assert (
            len(actual) == len(data.train) + len(data.validation) + len(data.test) == 24
        )
        assert actual["très ennuyeux"] == actual["boring\nfilm"] == "bad"
        assert actual["naïf\nfilm"] == actual["plat"] == "bad"
        message = "\n".join(data.notes())
        assert "it has no words: good/empty.txt" in message
        assert "only .txt files are texts: good/picture.png" in message
        assert "it lies in no class folder: loose.txt" in message

    def test_folders_of_parts(self, tmp_path: Path) -> None:
        reviews(tmp_path / "train")
        reviews(tmp_path / "test", 3)
        data = Text(str(tmp_path), validation=0.0)
        assert (len(data.train), len(data.validation), len(data.test)) == (20, 0, 6)
        assert all(name.startswith("test/") for name in data.test.files)

    def test_a_table(self, tmp_path: Path) -> None:
        rows = "".join(
            f'"one, {place}",pos\n"two\nlines {place}",neg\n' for place in range(5)
        )
        write(
            tmp_path,
            {"all.csv": f"review,stars\n{rows},pos\nno label,\nshort\nnull,pos\n"},
        )
        data = Text(
            str(tmp_path / "all.csv"),
            text="review",
            label="stars",
            validation=0.0,
            test=0.0,
        )
        assert data.classes == ("neg", "pos")
        assert texts_of(data.train)["two\nlines 3"] == "neg"
        assert len(data.train) == 10
        message = "\n".join(data.notes())
        assert (
            "left out 2 texts: it has no text: its cell is empty, or NA, null"
            in message
        )
        assert "left out 1 text: it has no label: all.csv, row 12" in message
        assert (
            "left out 1 text: it has not as many cells as there are columns, 2: "
            "all.csv, row 13" in message
        )
        with pytest.raises(
            ValueError,
            match=(
                r"text must be a column of .*all.csv, got 'text'; there are "
                r"review, stars: --data.text names it"
            ),
        ):
            Text(str(tmp_path / "all.csv"))

    def test_objects_in_lines_are_the_rows_of_a_table(self, tmp_path: Path) -> None:
        rows = [(f'a "film", number {place}', place % 2) for place in range(20)]
        with (tmp_path / "films.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
        lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
        (tmp_path / "films.jsonl").write_text("\n".join([*lines, "", ""]))
        table = Text(tmp_path / "films.csv")
        objects = Text(tmp_path / "films.jsonl")
        for part in ("train", "validation", "test"):
            assert texts_of(getattr(objects, part)) == texts_of(getattr(table, part))
        assert objects.classes == ("0", "1")
        assert guess(tmp_path / "films.jsonl").options["data"]["name"] == "Text"

    def test_a_value_that_is_not_there_is_an_empty_cell(self, tmp_path: Path) -> None:
        lines = ['{"text": "a", "label": "x"}', '{"label": "y"}', '{"text": "b"}']
        lines += ['{"text": null, "label": "y"}', '{"label": "y", "text": "ü"}']
        (tmp_path / "some.jsonl").write_text("\n".join(lines * 9), encoding="utf-8")
        data = Text(tmp_path / "some.jsonl")
        assert set(texts_of(data.train)) == {"a", "ü"}
        assert data.listed.left_out["some.jsonl, row 3"] == "it has no label"

    @pytest.mark.parametrize("line", ["{", "[1]", "a,b", "[" * 100_000])
    def test_a_line_that_is_no_object(self, tmp_path: Path, line: str) -> None:
        good = '{"text": "a", "label": "x"}\n'
        (tmp_path / "some.jsonl").write_text(f"{good}{line}\n{good}")
        with pytest.raises(ValueError, match=r"some.jsonl, line 2: "):
            _ = Text(tmp_path / "some.jsonl").train

    def test_tables_of_parts(self, tmp_path: Path) -> None:
        rows = "text\tlabel\na\tx\nb\ty\nc\tx\nd\ty\n"
        write(tmp_path, {"train.tsv": rows, "test.tsv": "text\tlabel\ne\tx\n"})
        data = Text(str(tmp_path), validation=0.0)
        assert (data.train.texts, data.test.texts) == (("a", "b", "c", "d"), ("e",))

    def test_a_comma_without_quotes(self, tmp_path: Path) -> None:
        """What came behind it was the label."""
        rows = {
            "train.csv": "text,label\na,x,\nb,y\nlong, dull,y\n",
            "test.csv": "text,label,note\na,x\n",
        }
        data = Text(str(write(tmp_path, rows)), validation=0.0)
        assert data.classes == ("x", "y")
        assert (data.train.texts, data.test.texts) == (("a", "b"), ("a",))
        assert (
            "it has not as many cells as there are columns, 2: train.csv, row 3"
            in "\n".join(data.notes())
        )

    def test_a_quote_without_its_second(self, tmp_path: Path) -> None:
        """All rows up to the next quote were one text."""
        rows = 'text{0}label\n"a{0}x\nb{0}y\nsay "c"{0}x\nd{0}y\n'
        write(tmp_path, {"all.csv": rows.format(","), "all.tsv": rows.format("\t")})
        with pytest.raises(
            ValueError, match=r"all\.csv, after line 1: .*double its own quotes"
        ):
            Text(str(tmp_path / "all.csv"))
        data = Text(str(tmp_path / "all.tsv"), validation=0.0, test=0.0)
        assert texts_of(data.train) == {
            '"a': "x",
            "b": "y",
            'say "c"': "x",
            "d": "y",
        }

    def test_how_often_a_word_must_be_there_says_nothing_of_other_sizes(
        self, tmp_path: Path
    ) -> None:
        rows = "".join(f"often {place},x\nthen {place},y\n" for place in range(5))
        write(tmp_path, {"all.csv": f"text,label\n{rows}"})
        data = Text(
            str(tmp_path / "all.csv"),
            longest=2,
            most=2,
            least=4,
            validation=0.0,
            test=0.0,
        )
        assert data.words.vocabulary == ("often", "then")
        with pytest.raises(ValueError, match="least must be at least 1, got 0"):
            Text(str(tmp_path / "all.csv"), least=0)

    def test_two_tables_of_a_part(self, tmp_path: Path) -> None:
        """The second one was read alone."""
        write(
            tmp_path,
            {
                "train.csv": "text,label\na,x\n",
                "train.tsv": "text\tlabel\nb\ty\n",
                "test.csv": "text,label\n",
            },
        )
        with pytest.raises(
            ValueError,
            match=r"two tables for train, train\.csv and train\.tsv: keep one",
        ):
            Text(str(tmp_path))

    def test_a_class_that_is_tested_alone(self, tmp_path: Path) -> None:
        rows = {"train.csv": "text,label\na,x\nb,y\n", "test.csv": "text,label\nc,z\n"}
        with pytest.raises(
            ValueError,
            match=r"the test texts of .*: z is none of the classes x, y$",
        ):
            _ = Text(str(write(tmp_path, rows))).train

    def test_a_table_without_rows(self, tmp_path: Path) -> None:
        write(tmp_path, {"all.csv": "text,label\n", "other.csv": "review,label\n"})
        with pytest.raises(
            ValueError,
            match=r"all\.csv must hold texts of two or more classes, got \(\)",
        ):
            Text(str(tmp_path / "all.csv"))
        with pytest.raises(ValueError, match="got 'text'; there are review, label"):
            Text(str(tmp_path / "other.csv"))

    def test_files_with_a_text_in_each_line(self, tmp_path: Path) -> None:
        """The advice, a folder for each class, made one text of each class."""
        write(tmp_path, {"good.txt": "fine\ngreat\n", "bad.txt": "poor\nweak\n"})
        with pytest.raises(ValueError, match="in each line, write the lines of all"):
            Text(str(tmp_path))

    def test_trec(self, tmp_path: Path) -> None:
        train = (
            "DESC:def What is a fanciér ?\nHUM:ind Who is\x85he ?\nHUM:ind Who "
            "?\nDESC:def Why ?\n"
        )
        write(
            tmp_path,
            {
                "train_5500.label": train,
                "TREC_10.label": "HUM:desc Who was Galileo ?\n",
            },
            "latin-1",
        )
        data = Text(str(tmp_path), validation=0.0)
        assert texts_of(data.train)["What is a fanciér ?"] == "DESC"
        assert (
            texts_of(data.train)["Who is…he ?"] == "HUM"
        )  # what Windows-1252 has there ends no line
        assert texts_of(data.test) == {"Who was Galileo ?": "HUM"}
        assert data.test.files == ("TREC_10.label:1",)

    @pytest.mark.parametrize(
        ("good", "bad"),
        [("rt-polarity.pos", "rt-polarity.neg"), ("subj.subjective", "subj.objective")],
    )
    def test_a_file_for_each_class(self, tmp_path: Path, good: str, bad: str) -> None:
        write(tmp_path, {good: "fine\nnice\n", bad: "dull\nslow"})
        data = Text(str(tmp_path), validation=0.0, test=0.0)
        first = Path(good).suffix[1:]
        second = Path(bad).suffix[1:]
        actual = {text: name[:3] for text, name in texts_of(data.train).items()}
        assert actual == {
            "fine": first[:3],
            "nice": first[:3],
            "dull": second[:3],
            "slow": second[:3],
        }

    def test_sst(self, tmp_path: Path) -> None:
        binary = {
            f"stsa.binary.{part}": f"0 dull {part}\n1 fine {part}\n"
            for part in ("train", "dev", "test")
        }
        data = Text(str(write(tmp_path / "one", binary)))
        assert texts_of(data.validation) == {
            "dull dev": "negative",
            "fine dev": "positive",
        }
        odd = binary | {
            "stsa.binary.dev": "1 fine\n\n0 dull\n",
            "stsa.binary.test": "1 fine\n0 dull\n",
        }
        data = Text(str(write(tmp_path / "odd", odd)))
        assert texts_of(data.validation) == {"fine": "positive", "dull": "negative"}
        assert "left out 1 text: it has no label: stsa.binary.dev:2" in "\n".join(
            data.notes()
        )
        write(tmp_path / "odd", {"stsa.binary.dev": "2 odd\n"})
        with pytest.raises(
            ValueError,
            match=r"stsa\.binary\.dev:1 must begin with a label, 0, 1, got '2 odd'",
        ):
            Text(str(tmp_path / "odd"))
        fine = {
            f"stsa.fine.{part}": f"0 dull {part}\n4 fine {part}\n"
            for part in ("train", "dev", "test")
        }
        write(tmp_path / "both", binary | fine)
        with pytest.raises(
            ValueError,
            match=r"stsa.binary.train and stsa.fine.train: give one of them as root",
        ):
            Text(str(tmp_path / "both"))
        data = Text(str(tmp_path / "both" / "stsa.fine.train"))
        assert texts_of(data.test) == {
            "dull test": "very negative",
            "fine test": "very positive",
        }

    def test_what_there_is_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(
            FileNotFoundError,
            match=r"root nowhere does not exist, and neither does .*nowhere",
        ):
            Text("nowhere")
        write(tmp_path / "one", {"only/a.txt": "a", "empty/b.txt": ""})
        with pytest.raises(ValueError, match="texts of two or more classes"):
            Text(str(tmp_path / "one"))
        (tmp_path / "bare" / "a").mkdir(parents=True)
        (tmp_path / "bare" / "b").mkdir()
        with pytest.raises(ValueError, match="holds no texts"):
            Text(str(tmp_path / "bare"))
        write(tmp_path, {"note.doc": "x"})
        with pytest.raises(ValueError, match="must be a folder, or a table of texts"):
            Text(str(tmp_path / "note.doc"))
        monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
        reviews(tmp_path / "films")
        assert Text("films").classes == ("bad", "good")


def test_the_vocabulary_is_that_of_the_training_texts(tmp_path: Path) -> None:
    reviews(tmp_path / "train")
    write(tmp_path / "test", {"good/a.txt": "splendid film", "bad/b.txt": "awful film"})
    data = Text(str(tmp_path))
    assert {"splendid", "awful"}.isdisjoint(data.words.vocabulary)
    assert [reading.unknown for reading in data.words.read(data.test.texts)] == [1, 1]


def test_texts_that_are_cut_are_told(tmp_path: Path) -> None:
    write(reviews(tmp_path), {"good/long.txt": "film " * 10_000})
    told = Text(str(tmp_path)).notes()[-1]
    assert told == (
        "1 text of 21 longer than 512 words, of which the first 512 are read; "
        "the longest has 10,000"
    )
    assert not any(
        "longer than" in note for note in Text(str(tmp_path), longest=10_000).notes()
    )


def test_a_run_keeps_to_its_texts(tmp_path: Path) -> None:
    data = Text(str(reviews(tmp_path / "films")))
    data.manifest().write(tmp_path / "record.json")
    before = {
        part: tuple(data.manifest().parts[part])
        for part in ("train", "validation", "test")
    }
    write(tmp_path / "films", {"good/new.txt": "another one"})
    again = Text(str(tmp_path / "films"))
    changes = again.follow(Manifest.read(tmp_path / "record.json"))
    assert changes.added == ("good/new.txt",)
    assert {part: tuple(again.manifest().parts[part]) for part in before} == before
    assert again.words == data.words
    assert (
        again.fingerprint()
        == data.fingerprint()
        != Text(str(tmp_path / "films"), longest=3).fingerprint()
    )


def test_no_word_is_frequent_enough(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match="no word occurs 99 times in the training texts: least must be smaller",
    ):
        _ = Text(str(reviews(tmp_path)), least=99).words


def test_no_text_at_all_is_not_the_folder_that_one_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"a.txt": "not asked for"})
    monkeypatch.chdir(tmp_path)
    assert list(named_texts([""])) == [""]


def test_texts_named_on_a_command_line(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "lines": "one film\n\nanother",
            "folder/a.txt": "two\nlines",
            "folder/b.dat": "x",
        },
    )
    actual = list(
        named_texts([str(tmp_path / "lines"), str(tmp_path / "folder"), "just this"])
    )
    assert actual == ["one film", "", "another", "two\nlines", "just this"]
    assert [text.place.removeprefix(f"{tmp_path}/") for text in actual] == [
        *(f"lines:{number}: " for number in (1, 2, 3)),
        "folder/a.txt: ",
        "",
    ]
    write(tmp_path, {"table.csv": "text,label\na film,good"})
    with pytest.warns(
        UserWarning,
        match=r"table\.csv is read line by line: all columns are parts of the texts",
    ):
        assert list(named_texts([str(tmp_path / "table.csv")])) == [
            "text,label",
            "a film,good",
        ]
    long = "a long film " * 40  # no name of a file is that long
    assert list(named_texts([long, long * 10])) == [long, long * 10]
    # A folder of texts is read on after one that is none.
    (tmp_path / "folder" / "0.txt").write_bytes(b"\xff\xfe\xd8")
    bad, good = named_texts([str(tmp_path / "folder")])
    assert (type(bad), good) == (Unread, "two\nlines")
    (gone,) = named_texts(["new.txt"])
    assert isinstance(gone, Unread)
    assert "there is no file new.txt" in str(gone.error)


def vectors(folder: Path, text: str) -> Text:
    """Reviews, lovely and dull, that start with the vectors of a file."""
    file = folder / "vectors.txt"
    file.write_text(text, encoding="utf-8")
    return Text(reviews(folder / "reviews"), vectors=file)


@pytest.mark.parametrize("header", ["", "3 2\n"])  # GloVe has none
def test_known_word_vectors_are_what_a_network_starts_with(
    tmp_path: Path, header: str
) -> None:
    data = vectors(
        tmp_path, header + "lovely 1 -1\nno word here 5 5\ngreat 7 7\nlovely 9 9\n\n"
    )
    network = create_model(
        "text_cnn", vocabulary=len(data.words), classes=2, word_dim=2, channels=2
    )
    before = network.embedding.weight.detach().clone()
    data.begin(network)
    place = RESERVED + data.words.vocabulary.index("lovely")
    after = network.embedding.weight.detach()
    assert (after[place] * torch.tensor([1.0, -1.0]) > 0).all()
    assert (after[place].abs()).unique().numel() == 1
    others = torch.arange(len(after)) != place
    assert torch.equal(after[others], before[others])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lovely 1 2\ndull 1\n", "line 2 must be a word and 2 numbers"),
        ("lovely 1 two\n", "line 1 must have finite numbers"),
        ("lovely nan 2\n", "line 1 must have finite numbers"),
        ("elsewhere 1 2\n", "none of the"),
        ("", "none of the"),
        ("lovely 1 2 3\n", "--model_args.word_dim 3"),
    ],
)
def test_files_that_hold_no_vectors_of_the_network(
    tmp_path: Path, text: str, message: str
) -> None:
    data = vectors(tmp_path, text)
    network = create_model(
        "text_cnn", vocabulary=len(data.words), classes=2, word_dim=2, channels=2
    )
    with pytest.raises(ValueError, match=message):
        data.begin(network)


def test_vectors_are_text(tmp_path: Path) -> None:
    (tmp_path / "vectors.bin").write_bytes(b"\xff\xfe\x00")
    network = create_model("text_cnn", vocabulary=9, classes=2, word_dim=2, channels=2)
    root = reviews(tmp_path / "reviews")
    with pytest.raises(ValueError, match="not a binary file"):
        Text(root, vectors=tmp_path / "vectors.bin").begin(network)
    with pytest.raises(FileNotFoundError, match="vectors must be a file"):
        Text(root, vectors=tmp_path / "none.txt").begin(network)


def test_a_table_of_texts_without_a_header_is_refused(tmp_path: Path) -> None:
    """Its first text would be lost, without a word."""
    table = tmp_path / "reviews.csv"
    rows = [f"{'bad' if n % 2 else 'good'} film number {n},{n % 2}" for n in range(40)]
    table.write_text("\n".join(rows))
    text, label = rows[0].split(",")
    with pytest.raises(ValueError, match="must name its columns"):
        Text(table, text=text, label=label)


def test_names_of_columns_that_are_repeated_are_no_example(tmp_path: Path) -> None:
    """As where tables were put one behind the other."""
    rows = [f"{'bad' if n % 2 else 'good'} film number {n},{n % 2}" for n in range(40)]
    table = tmp_path / "reviews.csv"
    table.write_text("\n".join(["text,label", *rows[:20], "text,label", *rows[20:]]))
    data = Text(table)
    assert data.classes == ("0", "1")
    assert data.manifest().left_out == {
        "reviews.csv, row 21": "it repeats the names of the columns"
    }
    # Two tables of one name in different folders are told apart.
    first, *_ = texts_in_rows(table, "text")
    assert getattr(first, "place", "").startswith(f"{table}, row 1")


def test_a_column_of_labels_may_have_the_name_of_a_class(tmp_path: Path) -> None:
    rows = [
        f"{'win' if n % 2 else 'see'} it {n},{['ham', 'spam'][n % 2]}"
        for n in range(40)
    ]
    table = tmp_path / "mails.csv"
    table.write_text("\n".join(["mail,spam", *rows]))
    assert Text(table, text="mail", label="spam").classes == ("ham", "spam")


COPIES = [
    "a  lovely film, number 0",
    "A Lovely FILM, number 0",
    "a lovely film, number 0.",
    "\ta lovely film number 0 !\r\n",
    "\u201ca lovely\u00a0film, number 0\u201d",
    "a lovely \ufb01lm, number\u200b 0",
]


class TestCopies:
    @pytest.mark.parametrize("copy", COPIES)
    def test_copies_but_for_blanks_case_and_marks_are_told(
        self, tmp_path: Path, copy: str
    ) -> None:
        reviews(tmp_path / "train")
        write(tmp_path / "test", {"good/new.txt": copy, "bad/new.txt": "dull"})
        (note,) = (
            note for note in Text(str(tmp_path)).notes() if "same content" in note
        )
        assert "good/new.txt (test)" in note
        assert "train/good/0.txt" in note

    @pytest.mark.parametrize(
        "other", ["a lovely film, number 0 :)", "a lovely film number 0.0", ":(", "..."]
    )
    def test_other_texts_are_no_copies(self, tmp_path: Path, other: str) -> None:
        reviews(tmp_path / "train")
        write(tmp_path / "train", {"good/smile.txt": ":)", "good/dots.txt": "...."})
        write(tmp_path / "test", {"good/new.txt": other, "bad/new.txt": "dull"})
        notes = Text(str(tmp_path)).notes()
        assert not [note for note in notes if "same content" in note]

    def test_copies_stay_in_one_part(self, tmp_path: Path) -> None:
        texts = {f"good/copy{number}.txt": copy for number, copy in enumerate(COPIES)}
        write(reviews(tmp_path, 3), texts)
        notes = Text(str(tmp_path), validation=0.4).notes()
        assert not [note for note in notes if "several parts" in note]
