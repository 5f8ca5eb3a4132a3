"""Nothing silently wrong with a folder of anybody's images; each test is named by its item of the issue."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from torchcaps.cli import main
from torchcaps.data import ImageFolder, Manifest, Padded, stable_split

SMALL = [
    *("--model", "capsnet_digits", "--model_args.channels", "4", "--model_args.types", "2"),
    *("--model_args.decoder_hidden", "[4]", "--epochs", "1", "--trainer.accelerator", "cpu", "--report", "false"),
]


def save(path: Path, value: int, mode: str = "L", size: tuple[int, int] = (8, 8)) -> Path:
    """An image of its own for each value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("L", size, value % 256)
    image.putpixel((0, 0), value // 256)
    image.convert(mode).save(path)
    return path


def make_root(root: Path, count: int = 30, classes: tuple[str, ...] = ("a", "b"), start: int = 0) -> Path:
    for label, name in enumerate(classes):
        for i in range(count):
            save(root / name / f"{i:03}.png", start + 1000 * label + i)
    return root


def names(images, root: Path) -> set[str]:
    return {Path(file).relative_to(root).as_posix() for file in images.files}


def part_of(data: ImageFolder) -> dict[str, str]:
    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    return {name: part for part, images in parts.items() for name in names(images, data.root)}


# Item 1: the split


class TestItem1:
    def test_one_more_image_moves_one_of_its_class_at_most(self, tmp_path):
        before = part_of(ImageFolder(str(make_root(tmp_path))))
        for number in range(5):
            save(tmp_path / "a" / f"new {number}.png", 5000 + number)
            after = part_of(ImageFolder(str(tmp_path)))
            # One leaves the test set for validation or training, one validation; or none where shares grow.
            assert sum(before[name] != after[name] for name in before) <= 2
            assert all(before[name] == after[name] for name in before if name.startswith("b"))
            before = after

    def test_names_have_no_say(self, tmp_path):
        before = part_of(ImageFolder(str(make_root(tmp_path))))
        (tmp_path / "a" / "000.png").rename(tmp_path / "a" / "zzz.png")
        after = part_of(ImageFolder(str(tmp_path)))
        assert {**after, "a/000.png": after["a/zzz.png"]} == {**before, "a/zzz.png": after["a/zzz.png"]}

    def test_copies_stay_together(self):
        digests = [str(index // 4) for index in range(100)]
        for seed in range(20):
            rest, aside = stable_split(torch.zeros(100, dtype=torch.int64), digests, 0.33, seed)
            assert not {digests[i] for i in rest} & {digests[i] for i in aside}
            assert 33 <= len(aside) <= 36

    def test_a_class_of_copies_has_images_on_both_sides(self):
        rest, aside = stable_split(torch.zeros(5, dtype=torch.int64), ["same"] * 5, 0.2, 0)
        assert (len(rest), len(aside)) == (4, 1)

    def test_manifest_is_written_whole_and_read_back(self, tmp_path):
        manifest = ImageFolder(str(make_root(tmp_path / "images", 3))).manifest()
        manifest.write(tmp_path / "data.json")
        assert Manifest.read(tmp_path / "data.json") == manifest
        assert [path.name for path in tmp_path.iterdir()] in (["images", "data.json"], ["data.json", "images"])
        (tmp_path / "data.json").write_text((tmp_path / "data.json").read_text()[:-20])
        with pytest.raises(ValueError, match=r"data\.json is damaged"):
            Manifest.read(tmp_path / "data.json")

    def test_following_keeps_the_parts_and_names_what_changed(self, tmp_path):
        data = ImageFolder(str(make_root(tmp_path)))
        manifest, before, fingerprint = data.manifest(), part_of(data), data.fingerprint()
        for number in range(20):
            save(tmp_path / "a" / f"{number:03} new.png", 5000 + number)
        later = ImageFolder(str(tmp_path))
        changes = later.follow(manifest)
        assert len(changes.added) == 20
        assert changes.lines()[0].startswith("20 images added since the training, left out of all parts: a/000 new.png")
        assert part_of(later) == before
        assert later.fingerprint() == fingerprint
        assert torch.equal(later.train.images, data.train.images)

    def test_removed_changed_and_renamed_are_told_apart(self, tmp_path):
        data = ImageFolder(str(make_root(tmp_path)), validation=0, test=0)
        manifest, fingerprint = data.manifest(), data.fingerprint()
        (tmp_path / "a" / "000.png").unlink()
        save(tmp_path / "a" / "001.png", 7000)
        (tmp_path / "b" / "002.png").rename(tmp_path / "b" / "other.png")
        (tmp_path / "b" / "003.png").rename(tmp_path / "a" / "moved.png")  # another class is another image
        later = ImageFolder(str(tmp_path), validation=0, test=0)
        changes = later.follow(manifest)
        assert (changes.removed, changes.changed) == (("a/000.png", "b/003.png"), ("a/001.png",))
        assert changes.renamed == (("b/002.png", "b/other.png"),)
        assert changes.added == ("a/moved.png",)
        assert later.fingerprint() != fingerprint
        assert len(later.train) == 58

    def test_swapped_classes_change_the_fingerprint(self, tmp_path):
        data = ImageFolder(str(make_root(tmp_path)))
        manifest, fingerprint = data.manifest(), data.fingerprint()
        for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
            (tmp_path / old).rename(tmp_path / new)
        later = ImageFolder(str(tmp_path))
        assert len(later.follow(manifest).changed) == 60
        assert later.fingerprint() != fingerprint

    def test_data_made_of_a_folder_follow_it(self, tmp_path):
        data = Padded(ImageFolder(str(make_root(tmp_path))), pad=1)
        manifest = data.manifest()
        save(tmp_path / "a" / "new.png", 5000)
        later = Padded(ImageFolder(str(tmp_path)), pad=1)
        assert later.follow(manifest).added == ("a/new.png",)
        assert later.test.files == data.test.files

    def test_evaluate_explain_and_resume_use_the_split_of_the_run(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr("torchcaps.explain.write_report", lambda folder, *_: folder)  # the drawing takes its time
        root, run = make_root(tmp_path / "images"), tmp_path / "run"
        options = ["--data", "ImageFolder", "--data.root", str(root)]
        assert main(["train", *options, "--run", str(run), *SMALL]) == 0
        recorded = json.loads((run / "data.json").read_text())
        assert main(["evaluate", str(run), "--json"]) == 0
        before = json.loads(capsys.readouterr().out.splitlines()[-1])
        for number in range(20):
            save(root / "a" / f"{number:03} new.png", 5000 + number)
        assert main(["evaluate", str(run), "--json"]) == 0
        output = capsys.readouterr()
        assert json.loads(output.out) == before
        assert "20 images added since the training" in output.err
        assert main(["explain", str(run), "--out", str(tmp_path)]) == 0
        assert "20 images added since the training" in capsys.readouterr().err
        assert main(["train", "--resume", str(run), "--epochs", "2"]) == 0
        assert "note: 20 images added since the training" in capsys.readouterr().out
        assert json.loads((run / "data.json").read_text()) == recorded
        summary = json.loads((run / "summary.json").read_text())
        assert summary["images"] == {part: len(rows) for part, rows in recorded["parts"].items()}
        assert summary["notes"][0].startswith("20 images added")

    def test_other_data_are_tested_without_what_the_run_was_trained_on(self, tmp_path, capsys):
        root, run = make_root(tmp_path / "images"), tmp_path / "run"
        options = ["--data", "ImageFolder", "--data.root", str(root)]
        assert main(["train", *options, "--run", str(run), *SMALL]) == 0
        trained = {row[2] for row in json.loads((run / "data.json").read_text())["parts"]["train"]}
        other = make_root(tmp_path / "other", 40)  # the first 30 of each class are those of the run
        data = ["--data", "ImageFolder", "--data.root", str(other), "--data.test", "0.9"]
        rows = ImageFolder(str(other), test=0.9).manifest().parts["test"]
        expected = sum(row.digest not in trained for row in rows)
        assert 0 < expected < len(rows)
        capsys.readouterr()
        assert main(["evaluate", str(run), *data, "--json"]) == 0
        output = capsys.readouterr()
        assert json.loads(output.out)["images"] == expected
        assert f"{len(rows) - expected} of {len(rows)} test images left out: the run was trained on them" in output.err

    def test_a_run_from_before_keeps_the_split_of_then(self, tmp_path):
        from torchcaps.data import stratified_split

        data = ImageFolder(str(make_root(tmp_path)))
        assert data.follow(None).lines() == ()
        listed = sorted(part_of(data))
        labels = torch.arange(60) // 30
        assert names(data.test, tmp_path) == {listed[i] for i in stratified_split(labels, 0.2, 0)[1].tolist()}
        assert "no record of its parts" in data.notes()[0]


# Item 2: names of folders


class TestItem2:
    @pytest.mark.parametrize("validation", ["val", "Valid", "VALIDATION"])
    @pytest.mark.parametrize(("train", "test"), [("train", "test"), ("Training", "Testing")])
    def test_usual_names(self, tmp_path, train, validation, test):
        for count, name in ((5, train), (2, validation), (3, test)):
            make_root(tmp_path / name, count)
        data = ImageFolder(str(tmp_path), validation=0.5)
        assert (len(data.train), len(data.validation), len(data.test)) == (10, 4, 6)

    @pytest.mark.parametrize("name", ["val", "valid", "validation"])
    def test_without_a_test_folder_the_validation_images_are_reported_and_it_is_said(self, tmp_path, name):
        make_root(tmp_path / "train", 10)
        make_root(tmp_path / name, 3, start=5000)
        data = ImageFolder(str(tmp_path), validation=0.2)
        assert data.classes == ("a", "b")
        assert (len(data.train), len(data.validation), len(data.test)) == (16, 4, 6)
        assert names(data.test, tmp_path) == {f"{name}/{c}/{i:03}.png" for c in "ab" for i in range(3)}
        (note,) = data.notes()
        assert note.startswith(
            f"there is no folder of test images: what is reported as test are the images in '{name}'"
        )

    @pytest.mark.parametrize(
        ("folders", "message"),
        [
            (("train/a", "train/b", "dogs"), r"holds 'train', as if .* but also dogs, as if .* rename a class"),
            (("train/a", "train/b", "val/a", "val/b", "cats", "dogs"), "but also cats, dogs, as if"),
            (("test/a", "test/b", "dogs"), "but also dogs"),
            (("train/a", "train/b"), r"neither val nor test: give the root .*train, of which a share"),
            (("val/a", "val/b", "test/a", "test/b"), "but no train"),
            (("train/a", "train/b", "Training/a", "Training/b"), "holds 'Training' and 'train': only one"),
            (("train/a", "train/b", "val/a", "validation/a"), "only one can be the validation images"),
            (("train", "test"), r"train must hold a folder for each of two or more classes, got \(\)"),
            (("train/a", "train/b", "test"), r"test must hold the class folders of train, \('a', 'b'\), got \(\)"),
        ],
    )
    def test_what_is_doubtful_is_refused(self, tmp_path, folders, message):
        for number, folder in enumerate(folders):
            save(tmp_path / folder / "0.png", number)
        with pytest.raises(ValueError, match=message):
            ImageFolder(str(tmp_path))

    def test_folders_without_images_beside_the_parts_are_no_classes(self, tmp_path):
        for number, folder in enumerate(("train/a", "train/b", "test/a", "test/b")):
            save(tmp_path / folder / "0.png", number)
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs" / "readme.txt").write_text("hello")
        assert len(ImageFolder(str(tmp_path)).test) == 2

    def test_a_class_may_have_the_name_of_a_part(self, tmp_path):
        make_root(tmp_path, 2, ("car", "plane", "train", "test"))
        assert ImageFolder(str(tmp_path)).classes == ("car", "plane", "test", "train")
