import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps_lab.data import ImageFolder, Preprocess, load_image
from torchcaps_lab.kinds.images.reader import ImageReader

BLACK, WHITE = 0, 255


def save(path: Path, image: Image.Image | None = None, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or Image.new("L", (4, 3), 100)).save(path, **options)
    return path


def make_root(root: Path, count: int = 10, classes: str = "ab") -> Path:
    """Grey images, each of one value: 20, 21, ... in the first class, 40, 41, ... in
    the second.
    """
    for label, name in enumerate(classes):
        for i in range(count):
            save(
                root / name / f"{i:02}.png",
                Image.new("L", (4, 3), 20 * (label + 1) + i),
            )
    return root


def values(images: torch.Tensor) -> list[int]:
    return images[:, 0, 0, 0].tolist()


# Splits


def test_one_folder_per_class(tmp_path: Path) -> None:
    data = ImageFolder(str(make_root(tmp_path)), test=0.2, validation=0.25)
    assert data.classes == ("a", "b")
    assert data.image_shape == (1, 3, 4)
    parts = (data.train, data.validation, data.test)
    assert [part.labels.bincount().tolist() for part in parts] == [
        [6, 6],
        [2, 2],
        [2, 2],
    ]
    assert sorted(value for part in parts for value in values(part.inputs)) == [
        *range(20, 30),
        *range(40, 50),
    ]
    for part in parts:
        for value, label, file in zip(
            values(part.inputs), part.labels.tolist(), part.files or (), strict=True
        ):
            assert (
                Path(file)
                == tmp_path / "ab"[label] / f"{value - 20 * (label + 1):02}.png"
            )


def test_no_test_set(tmp_path: Path) -> None:
    data = ImageFolder(str(make_root(tmp_path)), test=0, validation=0)
    assert len(data.train) == 20
    assert data.test.inputs.shape == (0, 1, 3, 4)


def test_folders_train_and_test_are_the_splits(tmp_path: Path) -> None:
    make_root(tmp_path / "train", 10)
    make_root(tmp_path / "test", 3)
    data = ImageFolder(str(tmp_path), validation=0.2)
    assert (len(data.train), len(data.validation), len(data.test)) == (16, 4, 6)
    assert sorted(values(data.test.inputs)) == [20, 21, 22, 40, 41, 42]
    assert all(
        Path(file).is_relative_to(tmp_path / "train")
        for file in data.validation.files or ()
    )


def test_images_are_found_at_any_depth_and_nothing_else_is(tmp_path: Path) -> None:
    make_root(tmp_path, 2)
    save(tmp_path / "a" / "deep" / "er" / "x.JPG")
    save(tmp_path / "a" / ".hidden" / "x.png")
    save(tmp_path / "a" / ".hidden.png")
    save(tmp_path / ".hidden" / "x.png")
    save(tmp_path / "no class.png")
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    data = ImageFolder(str(tmp_path), test=0, validation=0)
    names = [str(Path(file).relative_to(tmp_path)) for file in data.train.files or ()]
    assert names == ["a/00.png", "a/01.png", "a/deep/er/x.JPG", "b/00.png", "b/01.png"]


def test_a_broken_test_image_is_known_before_the_training(tmp_path: Path) -> None:
    make_root(tmp_path / "train", 3)
    make_root(tmp_path / "test", 3)
    broken = tmp_path / "test" / "a" / "00.png"
    broken.write_bytes(broken.read_bytes()[:-25])
    with pytest.raises(ValueError, match=r"cannot read the image .*test/a/00\.png"):
        _ = ImageFolder(str(tmp_path)).train


# What goes wrong


def test_files_broken_for_one_reason_share_a_line(tmp_path: Path) -> None:
    make_root(tmp_path, 9)
    for file in sorted((tmp_path / "a").iterdir())[:5]:
        file.write_bytes(b"")
    with pytest.raises(ValueError, match="5 images cannot be read") as caught:
        _ = ImageFolder(str(tmp_path)).train
    assert "cannot read 5 images, " in str(caught.value)
    assert str(caught.value).count("the file is empty") == 1


def test_root_is_missing_or_a_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        ImageFolder(str(tmp_path / "nowhere"))
    with pytest.raises(NotADirectoryError, match=r"x\.png is not a folder"):
        ImageFolder(str(save(tmp_path / "x.png")))


@pytest.mark.parametrize(("classes", "names"), [("", "none"), ("a", "a")])
def test_too_few_classes(tmp_path: Path, classes: str, names: str) -> None:
    with pytest.raises(ValueError, match=f"two or more classes, got {names}"):
        ImageFolder(str(make_root(tmp_path, classes=classes)))


@pytest.mark.parametrize("inner", ["", "train"])
def test_a_folder_around_the_data(tmp_path: Path, inner: str) -> None:
    """As archives are packed: the error names the folder to give."""
    make_root(tmp_path / "dataset" / inner)
    words = re.escape(f"your data lie in {tmp_path / 'dataset'}, give that folder")
    with pytest.raises(ValueError, match=words):
        ImageFolder(str(tmp_path))


@pytest.mark.parametrize("split", ["test", "val"])
def test_splits_have_other_classes(tmp_path: Path, split: str) -> None:
    for folder in ("train", "val", "test"):
        make_root(tmp_path / folder, 2, classes="abc" if folder == split else "ab")
    with pytest.raises(ValueError, match=f"{split}: c is none of the classes a, b$"):
        ImageFolder(str(tmp_path))


@pytest.mark.parametrize("suffix", ["png", "jpg"])
@pytest.mark.parametrize("keep", [0.0, 0.6])
@pytest.mark.parametrize("channels", [None, 1])
def test_broken_image_is_named(
    tmp_path: Path, suffix: str, keep: float, channels: None
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (3, 4), dtype=np.uint8)
    path = save(make_root(tmp_path) / "a" / f"broken.{suffix}", Image.fromarray(noise))
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(ValueError, match=f"cannot read the image .*broken.{suffix}"):
        _ = ImageFolder(str(tmp_path), channels=channels, test=0).train


def test_images_of_two_sizes_are_named(tmp_path: Path) -> None:
    save(make_root(tmp_path) / "b" / "wide.png", Image.new("L", (7, 3)))
    with pytest.raises(ValueError, match=r"3 x 4 pixels .* 3 x 7; pass size") as caught:
        _ = ImageFolder(str(tmp_path), test=0).train
    assert str(tmp_path / "a" / "00.png") in str(caught.value)
    assert str(tmp_path / "b" / "wide.png") in str(caught.value)


# Channels and size


@pytest.mark.parametrize(
    ("image", "channels"),
    [
        (Image.new("1", (4, 3)), 1),
        (Image.new("LA", (4, 3)), 1),
        (Image.new("I;16", (4, 3)), 1),
        (Image.new("RGB", (4, 3)), 3),
        (Image.new("P", (4, 3)), 3),
    ],
    ids=lambda value: getattr(value, "mode", None),
)
def test_channels_follow_the_files(
    tmp_path: Path, image: Image.Image, channels: int
) -> None:
    save(make_root(tmp_path) / "b" / "other.png", image)
    assert ImageFolder(str(tmp_path)).image_shape == (channels, 3, 4)


def test_channels_can_be_chosen(tmp_path: Path) -> None:
    make_root(tmp_path, 2)
    grey = ImageFolder(str(tmp_path), channels=1, test=0, validation=0).train.inputs
    colour = ImageFolder(str(tmp_path), channels=3, test=0, validation=0).train.inputs
    assert torch.equal(colour, grey.expand(-1, 3, -1, -1))


@pytest.mark.parametrize(("size", "shape"), [(8, (1, 8, 8)), ((5, 9), (1, 5, 9))])
def test_size_is_height_and_width(
    tmp_path: Path, size: int | tuple[int, int], shape: tuple[int, ...]
) -> None:
    save(make_root(tmp_path) / "b" / "wide.png", Image.new("L", (40, 3)))
    data = ImageFolder(str(tmp_path), size=size)
    assert data.image_shape == shape
    assert data.test.inputs.shape[1:] == shape


# One image


def test_pixels_are_kept(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(
        0,
        256,
        (3, 4, 3),
        dtype=np.uint8,
    )
    image = load_image(save(tmp_path / "x.png", Image.fromarray(pixels)), (3, 3, 4))
    assert image.dtype == torch.uint8
    assert image.permute(1, 2, 0).tolist() == pixels.tolist()


def test_resize_pads_crops_or_stretches(tmp_path: Path) -> None:
    # Grey, white, grey: each part 4 x 4.
    pixels = np.repeat(np.array([[100, 255, 100]], dtype=np.uint8), 4, axis=1).repeat(
        4, axis=0
    )
    path = save(tmp_path / "x.png", Image.fromarray(pixels))
    padded = load_image(path, (1, 12, 12), "pad")[0]
    assert torch.equal(padded[4:8], torch.from_numpy(pixels))
    assert padded[:4].eq(BLACK).all()
    assert padded[8:].eq(BLACK).all()
    assert load_image(path, (1, 4, 4), "crop")[0].eq(WHITE).all()
    stretched = load_image(path, (1, 12, 12), "stretch")[0]
    assert torch.equal(stretched[0], torch.from_numpy(pixels)[0])
    assert torch.equal(stretched, stretched[:1].expand(12, 12))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_pixels_are_black(tmp_path: Path, mode: str) -> None:
    image = Image.new(mode, (2, 1), (255,) * len(mode))
    image.putpixel((1, 0), (255,) * (len(mode) - 1) + (0,))
    path = save(tmp_path / "x.png", image)
    assert load_image(path, (1, 1, 2)).tolist() == [[[WHITE, BLACK]]]
    assert load_image(path, (3, 1, 2)).tolist() == [[[WHITE, BLACK]]] * 3


@pytest.mark.parametrize("mode", ["P", "L", "RGB"])
def test_transparent_colour_is_black(tmp_path: Path, mode: str) -> None:
    image = Image.new("RGB", (2, 1), "white")
    image.putpixel((1, 0), (200, 200, 200))
    image = image.quantize(2) if mode == "P" else image.convert(mode)
    colour = (200, 200, 200) if mode == "RGB" else image.getpixel((1, 0))
    path = save(tmp_path / "x.png", image, transparency=colour)
    assert load_image(path, (1, 1, 2)).tolist() == [[[WHITE, BLACK]]]


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_sixteen_bit_grey_is_scaled(tmp_path: Path, suffix: str) -> None:
    pixels = np.array([[0, 257, 128 * 257, 65535]], dtype=np.uint16)
    path = tmp_path / f"x.{suffix}"
    if suffix == "pgm":  # not every version of Pillow that reads it writes it
        path.write_bytes(b"P5 4 1 65535\n" + pixels.astype(">u2").tobytes())
    else:
        save(path, Image.fromarray(pixels))
    assert load_image(path, (1, 1, 4)).tolist() == [[[0, 1, 128, 255]]]


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (np.array([[70_000]], dtype=np.int32), "0..65535, got 70000"),
        (np.full((1, 1), 1.5, np.float32), "floating"),
        (np.full((1, 1), np.nan, np.float32), "finite"),
    ],
)
def test_pixels_without_a_known_range_are_refused(
    tmp_path: Path, pixels: np.ndarray, message: str
) -> None:
    path = save(tmp_path / "x.tif", Image.fromarray(pixels))
    with pytest.raises(ValueError, match=f"x.tif.*{message}"):
        load_image(path, (1, 1, 1))


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_exif_orientation_is_honoured(tmp_path: Path, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # Stored lying on its left side.
    image = Image.new("L", (16, 8), BLACK)
    image.paste(WHITE, (0, 0, 8, 8))
    path = save(tmp_path / "a" / f"x.{suffix}", image, exif=exif)
    upright = load_image(path, (1, 16, 8))[0]
    assert upright[:8].min() > 250
    assert upright[8:].max() < 5
    # The size that images must share is that of the upright image.
    save(tmp_path / "b" / "x.png", Image.new("L", (8, 16)))
    assert ImageFolder(str(tmp_path), test=0).image_shape == (1, 16, 8)


def test_load_image_reads_what_the_folder_reads(tmp_path: Path) -> None:
    data = ImageFolder(str(make_root(tmp_path)), size=6, channels=3, resize="crop")
    for image, file in zip(data.test.inputs, data.test.files or (), strict=True):
        assert torch.equal(load_image(file, data.image_shape, "crop"), image)


def test_load_image_checks_its_arguments(tmp_path: Path) -> None:
    path = save(tmp_path / "x.png")
    with pytest.raises(ValueError, match=r"image_shape must be .* got \(0, 3, 4\)"):
        load_image(path, (0, 3, 4))
    with pytest.raises(ValueError, match="it has 1 channel, expected 2"):
        load_image(path, (2, 3, 4))
    with pytest.raises(ValueError, match="resize must be one of"):
        load_image(path, (1, 3, 4), "squash")
    with pytest.raises(FileNotFoundError, match=r"nowhere.png"):
        load_image(tmp_path / "nowhere.png", (1, 3, 4))


# What is no data


def write_run(folder: Path) -> None:
    """The folder of a run with its report and its network."""
    for name in ("config.yaml", "metrics.csv", "model/config.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    (folder / "model" / "model.safetensors").write_bytes(b"")
    write_report(folder / "report")


def write_report(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "index.html").write_text("")
    (folder / "exhibits.json").write_text("{}")
    save(folder / "mistakes.png")


def test_what_torchcaps_writes_is_no_class(tmp_path: Path) -> None:
    """The second training in a folder took ``runs`` for a class, one after ``explain``
    took ``report`` for one.
    """
    root = make_root(tmp_path)
    write_run(root / "runs" / "first")
    write_run(root / "runs" / "second")
    write_run(root / "my run")
    write_report(root / "report")
    write_run(root / "a" / "run")
    data = ImageFolder(root, validation=0.0)
    assert data.classes == ("a", "b")
    assert len(data.train) + len(data.test) == 20
    assert "a/run" in data.listed.left_out


def test_a_class_may_be_called_runs(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    make_root(root, classes="r")
    (root / "r").rename(root / "runs")
    (root / "runs" / "config.yaml").write_text("mine")
    assert ImageFolder(root).classes == ("a", "b", "runs")


def test_a_link_to_all_there_is_is_not_followed(tmp_path: Path) -> None:
    root = make_root(tmp_path / "photos")
    (root / "a" / "all").symlink_to("/", target_is_directory=True)
    (root / "b" / "up").symlink_to(tmp_path, target_is_directory=True)
    data = ImageFolder(root)
    assert len(data.train) + len(data.validation) + len(data.test) == 20
    assert data.listed.left_out["a/all"] == f"it links to /, which holds {root}"
    assert set(data.listed.left_out) == {"a/all", "b/up"}


def test_an_empty_class_folder_is_left_out_where_broken_images_are(
    tmp_path: Path,
) -> None:
    root = make_root(tmp_path)
    (root / "empty" / "inner").mkdir(parents=True)
    with pytest.raises(ValueError, match=f"class folder {root}/empty holds no images"):
        ImageFolder(root)
    data = ImageFolder(root, skip_broken=True)
    assert data.classes == ("a", "b")
    assert "class folders without images are left out: empty" in data.notes()


def test_a_colour_behind_transparency(tmp_path: Path) -> None:
    """The folder, and a reader saved with a network, for files, pictures and arrays."""
    clear = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    clear.putpixel((1, 0), (10, 20, 30, 255))
    for number in range(4):
        save(tmp_path / f"{'ab'[number % 2]}" / f"{number}.png", clear)
    gold = [[[255, 10]], [[215, 20]], [[0, 30]]]
    for background in ("gold", "#ffd700"):
        data = ImageFolder(tmp_path, background=background, validation=0.0)
        assert data.train.inputs[0].tolist() == gold
        reader = ImageReader.of_data(data, Preprocess())
        reader = ImageReader.from_config(json.loads(json.dumps(reader.config())))
        path = next(tmp_path.glob("a/*"))
        array = np.asarray(clear)
        for given in (path, path.read_bytes(), clear, array, array / 255):
            read = reader.read(given).values * 255
            assert read.round().tolist() == gold
        # Other data that the network is tested on were read on black.
        arguments = {"root": tmp_path, "background": "black", "channels": 3}
        reader.complete(arguments)
        assert arguments["background"] == background
    assert ImageFolder(tmp_path).fingerprint() != data.fingerprint()
    for wrong in ("nocolour", "#ffd7000f", ""):
        with pytest.raises(ValueError, match="background must be the name of a colour"):
            ImageFolder(tmp_path, background=wrong)
