"""Nothing silently wrong with a folder of anybody's images; each test is named by its
item of the issue.
"""

import errno
import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from PIL import EpsImagePlugin, Image, ImageFile

from tests.kinds.images.folders import (
    BROKEN,
    LEFT_OUT,
    LIMIT,
    READ,
    icon_of,
    make_root,
    make_troubles,
    png_that_says,
    save,
    tiff_in_tiles,
)
from torchcaps_lab.cli import main
from torchcaps_lab.data import (
    ImageFolder,
    ImageTable,
    Manifest,
    Padded,
    load_image,
    stable_split,
)
from torchcaps_lab.data.manifest import readable
from torchcaps_lab.kinds.images.check import check_folder
from torchcaps_lab.kinds.images.decoding.picture import image_suffixes
from torchcaps_lab.kinds.images.sets import listed

ODD = [Path(name).name for name in (*BROKEN, *LEFT_OUT, *READ)] + ["linked"]


def names(images, root: Path) -> set[str]:
    return {Path(file).relative_to(root).as_posix() for file in images.files}


def part_of(data: ImageFolder) -> dict[str, str]:
    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    return {
        name: part
        for part, images in parts.items()
        for name in names(images, data.root)
    }


class TestSplitOfAFolder:
    def test_one_more_image_moves_one_of_its_class_at_most(self, tmp_path):
        before = part_of(ImageFolder(str(make_root(tmp_path))))
        for number in range(5):
            save(tmp_path / "a" / f"new {number}.png", 5000 + number)
            after = part_of(ImageFolder(str(tmp_path)))
            # One leaves the test set for validation or training, one validation; or
            # none where shares grow.
            assert sum(before[name] != after[name] for name in before) <= 2
            assert all(
                before[name] == after[name] for name in before if name.startswith("b")
            )
            before = after

    def test_names_have_no_say(self, tmp_path):
        before = part_of(ImageFolder(str(make_root(tmp_path))))
        (tmp_path / "a" / "000.png").rename(tmp_path / "a" / "zzz.png")
        after = part_of(ImageFolder(str(tmp_path)))
        assert {**after, "a/000.png": after["a/zzz.png"]} == {
            **before,
            "a/zzz.png": after["a/zzz.png"],
        }

    def test_copies_stay_together(self):
        digests = [str(index // 4) for index in range(100)]
        for seed in range(20):
            rest, aside = stable_split(
                torch.zeros(100, dtype=torch.int64), digests, 0.33, seed
            )
            assert not {digests[i] for i in rest} & {digests[i] for i in aside}
            assert 33 <= len(aside) <= 36

    def test_a_class_of_copies_has_images_on_both_sides(self):
        rest, aside = stable_split(
            torch.zeros(5, dtype=torch.int64), ["same"] * 5, 0.2, 0
        )
        assert (len(rest), len(aside)) == (4, 1)

    def test_manifest_is_written_whole_and_read_back(self, tmp_path):
        manifest = ImageFolder(str(make_root(tmp_path / "images", 3))).manifest()
        manifest.write(tmp_path / "data.json")
        assert Manifest.read(tmp_path / "data.json") == manifest
        assert [path.name for path in tmp_path.iterdir()] in (
            ["images", "data.json"],
            ["data.json", "images"],
        )
        (tmp_path / "data.json").write_text((tmp_path / "data.json").read_text()[:-20])
        with pytest.raises(ValueError, match=r"data\.json is damaged"):
            Manifest.read(tmp_path / "data.json")

    def test_following_keeps_the_parts_and_names_what_changed(self, tmp_path):
        data = ImageFolder(str(make_root(tmp_path)))
        manifest = data.manifest()
        before = part_of(data)
        fingerprint = data.fingerprint()
        for number in range(20):
            save(tmp_path / "a" / f"{number:03} new.png", 5000 + number)
        later = ImageFolder(str(tmp_path))
        changes = later.follow(manifest)
        assert len(changes.added) == 20
        assert changes.lines()[0].startswith(
            "20 images added since the training, left out of all parts: a/000 new.png"
        )
        assert part_of(later) == before
        assert later.fingerprint() == fingerprint
        assert torch.equal(later.train.inputs, data.train.inputs)

    def test_removed_changed_and_renamed_are_told_apart(self, tmp_path):
        data = ImageFolder(str(make_root(tmp_path)), validation=0, test=0)
        manifest = data.manifest()
        fingerprint = data.fingerprint()
        (tmp_path / "a" / "000.png").unlink()
        save(tmp_path / "a" / "001.png", 7000)
        (tmp_path / "b" / "002.png").rename(tmp_path / "b" / "other.png")
        # Another label of an image leaves it in its split.
        (tmp_path / "b" / "003.png").rename(tmp_path / "a" / "moved.png")
        save(tmp_path / "a" / "new.png", 7001)
        later = ImageFolder(str(tmp_path), validation=0, test=0)
        changes = later.follow(manifest)
        assert (changes.removed, changes.changed) == (
            ("a/000.png",),
            ("a/001.png",),
        )
        assert changes.renamed == (
            ("b/002.png", "b/other.png"),
            ("b/003.png", "a/moved.png"),
        )
        assert changes.added == ("a/new.png",)
        assert later.fingerprint() != fingerprint
        assert len(later.train) == 59

    def test_no_image_is_tested_under_the_name_of_another(self, tmp_path):
        """Images that are numbered anew were tested on, and trained on before."""
        data = ImageFolder(make_root(tmp_path))
        trained = {*data.train.contents()}
        folder = tmp_path / "a"
        (folder / "000.png").unlink()
        for number in range(1, 30):
            (folder / f"{number:03}.png").rename(folder / f"{number - 1:03}.png")
        later = ImageFolder(tmp_path)
        assert len(later.follow(data.manifest()).renamed) == 29
        assert not trained & {*later.test.contents(), *later.validation.contents()}
        assert {*later.train.contents()} <= trained

    def test_new_labels_beside_others_are_the_new_classes(self, tmp_path):
        """Those of a row were one class, by all their names."""
        rows = ["image,tags"]
        for number in range(10):
            save(tmp_path / f"{number}.png", number)
            rows.append(f"{number}.png,{'sea' if number % 2 else 'sky'}")
        table = tmp_path / "photos.csv"
        table.write_text("\n".join(rows))
        how = {"file": "image", "label": "tags", "delimiter": " "}
        manifest = ImageTable(table, **how).manifest()
        for number, tags in ((10, "sea sky"), (11, "sea tree")):
            save(tmp_path / f"{number}.png", number)
            rows.append(f"{number}.png,{tags}")
        table.write_text("\n".join(rows))
        changes = ImageTable(table, **how).follow(manifest)
        assert (changes.added, changes.classes) == (("10.png", "11.png"), ("tree",))

    def test_another_folder_altogether_is_refused(self, tmp_path):
        manifest = ImageFolder(str(make_root(tmp_path / "one"))).manifest()
        later = ImageFolder(
            str(make_root(tmp_path / "other", classes=("x", "y"), start=5000)), size=8
        )
        assert (
            len(later.follow(manifest).removed)
            == len(later.follow(manifest).added)
            == 60
        )
        with pytest.raises(
            ValueError,
            match="none of the images that the run was trained and tested on exists",
        ):
            _ = later.test

    def test_swapped_classes_change_the_fingerprint(self, tmp_path):
        data = ImageFolder(str(make_root(tmp_path)))
        manifest = data.manifest()
        fingerprint = data.fingerprint()
        for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
            (tmp_path / old).rename(tmp_path / new)
        later = ImageFolder(str(tmp_path))
        assert len(later.follow(manifest).renamed) == 60
        assert later.fingerprint() != fingerprint

    def test_data_made_of_a_folder_follow_it(self, tmp_path):
        data = Padded(ImageFolder(str(make_root(tmp_path))), pad=1)
        manifest = data.manifest()
        save(tmp_path / "a" / "new.png", 5000)
        later = Padded(ImageFolder(str(tmp_path)), pad=1)
        assert later.follow(manifest).added == ("a/new.png",)
        assert later.test.files == data.test.files


class TestNamesOfFolders:
    @pytest.mark.parametrize("validation", ["val", "Valid", "VALIDATION"])
    @pytest.mark.parametrize(
        ("train", "test"), [("train", "test"), ("Training", "Testing")]
    )
    def test_usual_names(self, tmp_path, train, validation, test):
        for count, name in ((5, train), (2, validation), (3, test)):
            make_root(tmp_path / name, count)
        data = ImageFolder(str(tmp_path), validation=0.5)
        assert (len(data.train), len(data.validation), len(data.test)) == (10, 4, 6)

    @pytest.mark.parametrize("name", ["val", "valid", "validation"])
    def test_without_a_test_folder_the_validation_images_are_reported_and_it_is_said(
        self, tmp_path, name
    ):
        make_root(tmp_path / "train", 10)
        make_root(tmp_path / name, 3, start=5000)
        data = ImageFolder(str(tmp_path), validation=0.2)
        assert data.classes == ("a", "b")
        assert (len(data.train), len(data.validation), len(data.test)) == (16, 4, 6)
        assert names(data.test, tmp_path) == {
            f"{name}/{c}/{i:03}.png" for c in "ab" for i in range(3)
        }
        (note,) = data.notes()
        assert note.startswith(
            "there are no separate test images: the validation images are "
            "used as the test"
        )

    @pytest.mark.parametrize(
        ("folders", "message"),
        [
            (
                ("train/a", "train/b", "dogs"),
                r"holds 'train', as if .* but also dogs, as if .* rename a class",
            ),
            (
                ("train/a", "train/b", "val/a", "val/b", "cats", "dogs"),
                "but also cats, dogs, as if",
            ),
            (("test/a", "test/b", "dogs"), "but also dogs"),
            (("train", "val", "sample"), "but also sample"),
            (
                (
                    *(f"seg_train/seg_train/{name}" for name in "ab"),
                    *(f"seg_test/seg_test/{name}" for name in "ab"),
                    "seg_pred/seg_pred",
                ),
                r"but also seg_pred.*if your data lie in .*seg_train/seg_train, give",
            ),
            (
                ("cars_train/cars_train", "cars_test/cars_test"),
                "for each of two or more classes, got cars_train",
            ),
            (("car", "plane", "train", "test"), "but also car, plane"),
            (
                ("train/a", "train/b"),
                r"neither val nor test: give the root .*train, of which a share",
            ),
            (("val/a", "val/b", "test/a", "test/b"), "but no train"),
            (
                ("train/a", "train/b", "Training/a", "Training/b"),
                "holds 'Training' and 'train': only one",
            ),
            (
                ("train/a", "train/b", "val/a", "validation/a"),
                "only one can be the validation images",
            ),
            (
                ("train", "test"),
                "train must hold a folder for each of two or more classes, got none",
            ),
            (
                ("train/a", "train/b", "test"),
                r"test holds no images in folders of classes",
            ),
        ],
    )
    def test_what_is_doubtful_is_refused(self, tmp_path, folders, message):
        for number, folder in enumerate(folders):
            save(tmp_path / folder / "0.png", number)
        (tmp_path / "devkit").mkdir()
        with pytest.raises(ValueError, match=message):
            ImageFolder(str(tmp_path))

    @pytest.mark.parametrize(
        "names", [("bus", "car", "train"), ("control", "test"), ("test", "val", "x")]
    )
    def test_a_class_may_have_the_name_of_a_split(self, tmp_path, names):
        make_root(tmp_path, 2, names)
        assert ImageFolder(str(tmp_path)).classes == names

    def test_images_outside_of_class_folders_are_counted(self, tmp_path):
        for number in range(3):
            save(tmp_path / f"{number}.png", number)
        with pytest.raises(
            ValueError,
            match=r"got none, and 3 images outside of class folders: .* --task objects",
        ):
            ImageFolder(str(tmp_path))

    def test_folders_without_images_beside_the_parts_are_no_classes(self, tmp_path):
        for number, folder in enumerate(("train/a", "train/b", "test/a", "test/b")):
            save(tmp_path / folder / "0.png", number)
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs" / "readme.txt").write_text("hello")
        assert len(ImageFolder(str(tmp_path)).test) == 2


@pytest.fixture(scope="module")
def troubles(tmp_path_factory) -> Path:
    return make_troubles(tmp_path_factory.mktemp("troubles") / "photos")


class TestBrokenFiles:
    @pytest.fixture(autouse=True)
    def limit(self, monkeypatch):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", LIMIT)

    def test_all_that_is_broken_is_told_at_once(self, troubles):
        data = ImageFolder(str(troubles), size=8)
        with pytest.raises(
            ValueError, match=r"7 images cannot be read: .* skip_broken"
        ) as caught:
            _ = data.train
        for name, why in BROKEN.items():
            assert re.search(
                f"cannot read the image {re.escape(str(troubles / name))}: .*{why}",
                str(caught.value),
            )

    def test_the_rest_is_read_and_what_was_left_out_is_said(self, troubles):
        data = ImageFolder(str(troubles), size=8, skip_broken=True)
        left_out = data.manifest().left_out
        assert {
            name: why
            for name, why in {**BROKEN, **LEFT_OUT}.items()
            if why not in left_out[name]
        } == {}
        assert set(left_out) == {*BROKEN, *LEFT_OUT}
        good = {f"{c}/{number:02}.png" for c in "ab" for number in range(12)}
        assert set(part_of(data)) == {*good, *READ}
        notes = "\n".join(data.notes())
        assert all(readable(name) in notes for name in left_out)

    def test_broken_files_have_no_say_in_the_parts(self, troubles, tmp_path):
        clean = tmp_path / "clean"
        for category in "ab":
            shutil.copytree(
                troubles / category,
                clean / category,
                ignore=lambda _, entries: {*ODD} & {*entries},
            )
        expected = part_of(ImageFolder(str(clean), size=8, validation=0.3))
        shutil.copy(troubles / "a" / "text.png", clean / "a")
        assert (
            part_of(ImageFolder(str(clean), size=8, validation=0.3, skip_broken=True))
            == expected
        )

    def test_check(self, troubles, capsys):
        assert main(["check", str(troubles), "--json"]) == 1
        output = capsys.readouterr()
        checked = json.loads(output.out)
        assert set(checked["broken"]) == set(BROKEN)
        assert set(checked["left_out"]) == set(LEFT_OUT)
        assert checked["classes"] == {"all": {"a": 12, "b": 12 + len(READ)}}
        assert (checked["formats"]["GIF"], checked["formats"]["JPEG"]) == (1, 3)
        assert (checked["sizes"]["10 x 8"], checked["sizes"]["80 x 90"]) == (1, 1)
        assert (checked["moving"], checked["turned"]) == (["b/moving.gif"], 1)
        assert "1 problem in" in output.err
        assert main(["check", str(troubles)]) == 1
        assert (
            "PROBLEM: 7 files cannot be read: a/bomb.png (" in capsys.readouterr().out
        )

    def test_check_of_a_folder_in_order(self, tmp_path, capsys):
        make_root(tmp_path, 3)
        shutil.copy(tmp_path / "a" / "000.png", tmp_path / "a" / "copy.png")
        assert main(["check", str(tmp_path)]) == 0
        output = capsys.readouterr().out
        assert "all: 7 images of 2 classes" in output
        assert "a: 4 (57.1%)" in output
        assert "1 image with copies: a/000.png = a/copy.png" in output

    def test_check_ends_with_the_command_that_trains_on_the_folder_as_it_is(
        self, tmp_path, capsys
    ):
        make_root(tmp_path, 60)
        for category in "ab":
            (tmp_path / category / "bad.png").write_text("x")
        for place in range(50):
            (tmp_path / "b" / f"{place:03}.png").unlink()
        Image.new("L", (1, 1)).save(tmp_path / "b" / "dot.png")
        Image.new("L", (90, 8)).save(tmp_path / "b" / "line.png")
        (tmp_path / "a" / "photo.heic").write_text("x")
        main(["check", str(tmp_path)])
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1] == (
            f"train on it: torchcaps train {tmp_path} --data.size 16 "
            "--data.skip_broken true"
        )
        printed = "\n".join(lines)
        assert (
            "2 images of a side below 8 pixels, or 8 times as long as wide: b/dot.png "
            "(1 x 1), b/line.png" in printed
        )
        assert "a has 60 images and b 12: --sampler balanced" in printed
        assert ("pip install pillow-heif" in printed) is (
            importlib.util.find_spec("pillow_heif") is None
        )
        (tmp_path / "empty").mkdir()
        main(["check", str(tmp_path)])
        # An empty class folder is skipped, as other broken things are.
        assert capsys.readouterr().out.splitlines()[-1] == lines[-1]

    def test_check_tells_what_is_wrong_with_folders_beside_the_rest(
        self, tmp_path, capsys
    ):
        """An empty folder hid the broken file."""
        make_root(tmp_path, 4)
        for category in ("empty", "single"):
            (tmp_path / category).mkdir()
        save(tmp_path / "single" / "0.png", 77)
        (tmp_path / "a" / "broken.png").write_text("hello")
        assert main(["check", str(tmp_path)]) == 1
        told = capsys.readouterr()
        assert f"PROBLEM: class folder {tmp_path / 'empty'} holds no images" in told.out
        assert "PROBLEM: 1 file cannot be read: a/broken.png" in told.out
        assert (
            "too few images of a class to put some aside for validation and test: "
            "single (1)\n" in told.out
        )
        assert (
            "classes with fewer than 10 images, barely enough to learn from: a (4), b "
            "(4), single (1)\n" in told.out
        )
        assert "2 problems in" in told.err

    def test_check_of_parts_with_other_classes(self, tmp_path):
        for place, number in (
            ("train/a", 0),
            ("train/b", 1),
            ("train/b", 2),
            ("test/a", 3),
            ("test/c", 4),
        ):
            save(tmp_path / place / f"{number}.png", number)
        checked = check_folder(tmp_path)
        assert checked.folders == (
            f"{tmp_path / 'test'}: c is none of the classes a, b",
        )
        assert checked.classes == {
            "train": {"a": 1, "b": 2, "c": 0},
            "test": {"a": 1, "b": 0, "c": 1},
        }
        assert checked.notes == (
            "too few images of a class to put some aside for validation: a (1)",
            "classes without a test image, of which nothing is measured: b",
            "classes with fewer than 10 images, barely enough to learn from: a (1), b "
            "(2)",
        )

    def test_check_of_broken_files_alone(self, tmp_path):
        for category in "ab":
            (tmp_path / category).mkdir()
            (tmp_path / category / "0.png").write_text("hello")
        report = check_folder(tmp_path)
        assert "all: 0 images of 2 classes" in report.lines()
        assert report.advised({}) is None  # no training would start

    def test_copies_in_other_parts_and_classes_are_named(self, tmp_path, capsys):
        make_root(tmp_path / "train", 3)
        make_root(tmp_path / "test", 3, start=5000)
        shutil.copy(
            tmp_path / "train" / "a" / "000.png", tmp_path / "test" / "a" / "copy.png"
        )
        shutil.copy(
            tmp_path / "train" / "a" / "001.png", tmp_path / "train" / "b" / "copy.png"
        )
        in_parts, in_classes = ImageFolder(str(tmp_path), validation=0).notes()
        assert in_parts == (
            "1 image of the same content in several parts of the data: "
            "train/a/000.png (train) = test/a/copy.png (test)"
        )
        assert in_classes.startswith(
            "1 image of the same content in several classes: train/a/001.png (train) = "
        )
        assert main(["check", str(tmp_path)]) == 1
        assert f"PROBLEM: {in_parts}" in capsys.readouterr().out

    @pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
    def test_damaged_exif_is_no_problem_as_for_the_readers(self, tmp_path, suffix):
        exif = Image.Exif()
        exif[0x0112] = 6
        damaged = exif.tobytes().replace(b"Exif\0\0MM", b"Exif\0\0M?")
        for name, data in (("whole", exif.tobytes()), ("damaged", damaged)):
            (tmp_path / name).mkdir()
            Image.new("RGB", (6, 4)).save(tmp_path / name / f"x.{suffix}", exif=data)
        report = check_folder(tmp_path)
        assert not report.broken
        assert report.sizes == {"6 x 4": 1, "4 x 6": 1}
        assert report.turned == 1
        assert load_image(tmp_path / "damaged" / f"x.{suffix}", (3, 4, 6)).shape == (
            3,
            4,
            6,
        )

    def test_what_may_not_be_read_is_broken(self, tmp_path, monkeypatch):
        root = make_root(tmp_path, 5)
        locked = tmp_path / "a" / "000.png"
        monkeypatch.setattr(
            Path, "open", refusing(Path.open, locked)
        )  # the tests may run as root, whom nothing stops
        monkeypatch.setattr(Image, "open", refusing(Image.open, locked))
        with pytest.raises(
            ValueError, match=f"cannot read the image {locked}: Permission denied"
        ):
            _ = ImageFolder(str(root)).train
        data = ImageFolder(str(root), skip_broken=True)
        assert data.manifest().left_out == {"a/000.png": "Permission denied"}
        assert check_folder(root).broken == {"a/000.png": "Permission denied"}

    def test_a_class_of_broken_files_is_named(self, tmp_path):
        root = make_root(tmp_path, 3)
        (root / "c").mkdir()
        (root / "c" / "0.png").write_text("hello")
        with pytest.raises(
            ValueError,
            match=(
                r"class 'c' holds no training image that can be read: c/0.png "
                r"\(it is no"
            ),
        ):
            _ = ImageFolder(str(root), skip_broken=True).train

    def test_a_class_that_links_to_another_is_named(self, tmp_path):
        root = make_root(tmp_path, 3)
        (root / "c").symlink_to("a", target_is_directory=True)
        with pytest.raises(
            ValueError,
            match=r"class folder .*c holds no images: it links to .*a, which is read",
        ):
            ImageFolder(str(root))


def refusing(function, path: Path):
    """The function, but for one path."""

    def refuse(first, *rest, **named):
        if str(first) == str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return function(first, *rest, **named)

    return refuse


@pytest.mark.parametrize("resize", ["pad", "handwriting"])
def test_an_image_starts_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resize: str
) -> None:
    """The defect: Pillow knows files by their contents, and has Ghostscript run those
    of PostScript.
    """
    monkeypatch.setattr(
        EpsImagePlugin,
        "Ghostscript",
        lambda *_, **__: pytest.fail("Ghostscript was started"),
    )
    path = tmp_path / "photo.jpg"
    path.write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 "
        b"8\n%%EndComments\nshowpage\n%%EOF\n"
    )
    with pytest.raises(
        ValueError, match=r"photo\.jpg: it is not an image of a kind that is read"
    ):
        load_image(path, (3, 8, 8), resize)
    assert not image_suffixes() & {".eps", ".ico", ".icns", ".cur"}
    assert image_suffixes() > {
        ".png",
        ".jpg",
        ".jpeg",
        ".gif",
        ".webp",
        ".bmp",
        ".tif",
        ".tiff",
        ".pgm",
    }


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (
            icon_of(png_that_says(90, 80, rows=80)),
            "not an image of a kind that is read",
        ),
        (
            tiff_in_tiles(16, 128),
            "16 x 16 pixels in tiles of 128 x 128, at most 10,000 are read",
        ),
    ],
    ids=["icon", "tiles"],
)
def test_no_more_pixels_are_decoded_than_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, why: str
) -> None:
    """Icons were decoded to learn their size; of a TIFF file the size of its tiles was
    not looked at.
    """
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", LIMIT)
    monkeypatch.setattr(
        ImageFile.ImageFile, "load", lambda _: pytest.fail("pixels were decoded")
    )
    path = tmp_path / "photo.png"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=why):
        load_image(path, (1, 8, 8))


def test_an_orientation_that_means_nothing_turns_nothing(tmp_path: Path) -> None:
    for number, orientation in enumerate((1, 6, 99)):
        exif = Image.Exif()
        exif[0x0112] = orientation
        for name in ("a", "b"):
            (tmp_path / name).mkdir(exist_ok=True)
            Image.new("L", (4 + number, 3)).save(
                tmp_path / name / f"{orientation}.png", exif=exif
            )
    checked = check_folder(tmp_path)
    assert checked.turned == 2
    assert checked.sizes == {"3 x 4": 2, "5 x 3": 2, "3 x 6": 2}


def test_all_files_are_tested_on_and_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    original = listed.open_image
    monkeypatch.setattr(
        listed,
        "open_image",
        lambda file, *how: opened.append(file) or original(file, *how),
    )
    data = Padded(ImageFolder(make_root(tmp_path), size=8), pad=1)
    data.test_on_all()
    assert (len(data.test), data.notes()) == (len(data.data.listed.items), ())
    assert sorted(opened) == sorted(item.source() for item in data.data.listed.items)
