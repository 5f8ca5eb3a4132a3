"""Draws the pictures of ``torchcaps explore``: ``python -m docs.explore_pictures``,
from the root of the repository.

``pose.gif``, a digit that changes as numbers of its pose move, is made with a trained
network of the package and a test image of MNIST (if it is not there, of scikit-learn's
digits). ``--page`` makes ``explore.png``, ``explore-scenes.png``,
``explore-objects.png`` and ``explore-words.png`` too, the page as a browser shows it
with networks of single images, of scenes, of objects and of texts; ``--page trec/text_pooled`` makes the one that this
network belongs to. ``--moves 100`` prints how long the way from a slider to the picture
is. Both need playwright and Chromium.
"""

import argparse
import math
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any, NamedTuple

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from torchcaps.models import SceneCapsNet
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.explore import Explorer, application, local_samples
from torchcaps_lab.report import Observation, Selection
from torchcaps_lab.report.exhibit import pixels
from torchcaps_lab.report.pictures import ClassPose

PICTURES = Path(__file__).parent / "pictures"
NETWORK = "mnist/efficient_capsnet"
SHOWN = (
    "mnist/capsnet_small",
    "scenes/scene_capsnet",
    "shapes/slot_autoencoder",
    "trec/text_pooled",
)
"""The networks that the page is shown with, if no others are named."""

INK, GREY, PALE, RED, BLUE = "#1d2530", "#667080", "#dfe3e8", "#b5382c", "#2b5c8a"
SIZE = (720, 250)
SIDE = 168
SCALE = 2
FRAMES = 28
"""The picture and a digit in it in pixels; how much larger it is drawn; frames for each
number that moves.
"""


class Scene(NamedTuple):
    """An image and the pose of its class.

    Args:
        image: (C, H, W).
        observation: of it.
        exhibit: its pose.
    """

    image: Tensor
    observation: Observation
    exhibit: ClassPose


def scene(label: int, number: int) -> Scene:
    """One of the test images of a digit."""
    classifier = Classifier.open(NETWORK)
    samples = local_samples(NETWORK, classifier)
    assert samples is not None
    place = int((samples.labels == label).nonzero()[number])
    image = samples.inputs[place : place + 1].float() / 255
    view = classifier.preprocess.evaluate(image)
    selection = Selection(view.images, view.pictures, torch.tensor([label]))
    observation = Observation(classifier.network, selection)
    exhibit = ClassPose.of(observation)
    assert exhibit is not None
    return Scene(view.pictures[0], observation, exhibit)


def numbers_to_move(tells: tuple[str, ...], measures: tuple[str, ...]) -> list[int]:
    """Of each measure the number of the pose that changes it most."""

    def size(place: int) -> float:
        return abs(float(tells[place].split()[-1].rstrip("°%")))

    chosen = []
    for measure in measures:
        places = [place for place, text in enumerate(tells) if text.startswith(measure)]
        if places:
            chosen.append(max(places, key=size))
    return chosen


def frames(shown: Scene, measures: tuple[str, ...]) -> Iterator[Image.Image]:
    """Each chosen number goes up, down and back."""
    pose = shown.exhibit.pose
    reach = shown.exhibit.reach
    angles = [2 * math.pi * frame / FRAMES for frame in range(FRAMES)]
    waves = torch.tensor(list(map(math.sin, angles)))
    targets = torch.full((FRAMES,), shown.exhibit.target)
    for place in numbers_to_move(shown.exhibit.tells, measures):
        moved = pose.repeat(FRAMES, 1)
        moved[:, place] += reach * waves
        drawn = shown.observation.draw(moved, targets)
        for numbers, picture in zip(moved, drawn, strict=True):
            yield frame(shown, numbers, picture, place)


def frame(shown: Scene, numbers: Tensor, picture: Tensor, place: int) -> Image.Image:
    """One picture: the image, the numbers of its pose, what they draw."""
    canvas = Image.new("RGB", (SIZE[0] * SCALE, SIZE[1] * SCALE), "white")
    pen = ImageDraw.Draw(canvas)
    put(canvas, pen, shown.image, 16, "an image")
    put(canvas, pen, picture, SIZE[0] - SIDE - 16, "what its capsule draws")
    left = SIDE + 60
    right = SIZE[0] - SIDE - 60
    top = 18
    furthest = float(shown.exhibit.pose.abs().max()) + shown.exhibit.reach
    for row, number in enumerate(numbers.tolist()):
        y = top + row * (SIDE / len(numbers)) + 5
        colour = RED if row == place else BLUE
        share = 0.5 + number / furthest / 2
        pen.line(scaled(left, y, right, y), PALE, 3 * SCALE)
        x = left + share * (right - left)
        radius = 5 if row == place else 3.5
        pen.ellipse(
            scaled(
                x - radius,
                y - radius,
                x + radius,
                y + radius,
            ),
            colour,
        )
    change, _ = shown.exhibit.tells[place].rsplit(" ", 1)
    middle = (left + right) / 2
    text(
        pen,
        middle,
        SIDE + 32,
        f"the {len(numbers)} numbers of its pose",
        GREY,
    )
    text(
        pen,
        middle,
        SIDE + 54,
        f"number {place}: {change}",
        RED,
    )
    return canvas.resize(SIZE, Image.Resampling.LANCZOS)


def put(
    canvas: Image.Image,
    pen: ImageDraw.ImageDraw,
    image: Tensor,
    left: int,
    caption: str,
) -> None:
    """An image, large, with a caption below."""
    tile = Image.fromarray(pixels(image).mul(255).round().byte().numpy())
    size = SIDE * SCALE
    large = tile.resize((size, size), Image.Resampling.BICUBIC)
    canvas.paste(large, (left * SCALE, 16 * SCALE))
    text(pen, left + SIDE / 2, SIDE + 32, caption, GREY)


def text(pen: ImageDraw.ImageDraw, x: float, y: float, words: str, colour: str) -> None:
    """Centred words."""
    pen.text(
        (x * SCALE, y * SCALE),
        words,
        colour,
        ImageFont.load_default(15 * SCALE),
        anchor="mm",
    )


def scaled(*numbers: float) -> list[float]:
    """In the pixels that are drawn."""
    return [SCALE * number for number in numbers]


def write_gif(
    path: Path,
    label: int,
    number: int,
    measures: tuple[str, ...],
) -> None:
    """The moving picture."""
    drawn = list(frames(scene(label, number), measures))
    palette = drawn[FRAMES // 4].quantize(64)
    first, *following = [
        frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in drawn
    ]
    first.save(
        path,
        save_all=True,
        append_images=following,
        duration=80,
        loop=0,
        optimize=True,
    )


@contextmanager
def opened_page(
    classifiers: Mapping[str, Classifier], height: int = 800
) -> Iterator[Any]:
    """The page of these networks in headless Chromium, settled."""
    from playwright.sync_api import sync_playwright

    samples = {
        name: partial(local_samples, name, classifier)
        for name, classifier in classifiers.items()
    }
    explorer = Explorer(classifiers, samples)
    explorer.warm_up()
    with served(application(explorer)) as address, sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--headless", "--no-sandbox"],
        )
        page = browser.new_page(viewport={"width": 1280, "height": height})
        page.goto(address)
        settle(page, "[data-ready]")
        yield page
        browser.close()


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The address of an application, served by another thread, which ends whatever
    happens in the ``with`` block.
    """
    from uvicorn import Config, Server

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Server(Config(app, log_level="error", lifespan="off"))
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def settle(page: Any, also: str = "") -> None:
    """Waits until nothing is asked or about to be."""
    page.wait_for_selector(f"body{also}[data-jobs='0']", timeout=120_000)


def shoot(page: Any, path: Path) -> None:
    """The window, in the colours that the page uses most."""
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=path)
    picture = (
        Image.open(path)
        .convert("RGB")
        .quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    )
    picture.save(path, optimize=True)


def draw_a_digit(page: Any) -> None:
    """By the mouse."""
    stroke(
        page,
        [
            (0.33, 0.22),
            (0.55, 0.17),
            (0.68, 0.28),
            (0.6, 0.42),
            (0.47, 0.48),
            (0.63, 0.55),
            (0.7, 0.68),
            (0.58, 0.81),
            (0.33, 0.8),
        ],
    )


def point_at_a_class(page: Any) -> None:
    """One of the classes of a scene."""
    page.click("#bars .bar:nth-child(1)")
    settle(page)


def draw_figures(page: Any) -> None:
    """Four, of which two overlap."""
    for brush, figure, place in (
        ("red", "disc", (0.3, 0.3)),
        ("blue", "square", (0.45, 0.4)),
        ("yellow", "triangle", (0.7, 0.7)),
        ("cyan", "disc", (0.25, 0.75)),
    ):
        page.click(f"#brushes button[title={brush}]")
        page.click(f"#figures button[title={figure}]")
        stroke(page, [place])
    page.locator("#apart-step").fill("5")


def ask_a_question(page: Any) -> None:
    """One that speaks for several classes."""
    page.fill(
        "#text",
        "How far is it from the Eiffel Tower to the grave of the man who wrote Hamlet "
        "?",
    )
    settle(page)


class View(NamedTuple):
    """A picture of the page.

    Args:
        prepare: the function that is called with the page first.
        height: the height of the window, in pixels.
    """

    prepare: Callable[[Any], None]
    height: int


VIEWS = {
    "explore": View(draw_a_digit, 800),
    "explore-scenes": View(point_at_a_class, 800),
    "explore-objects": View(draw_figures, 600),
    "explore-words": View(ask_a_question, 500),
}


def view_of(classifier: Classifier) -> str:
    """The picture that a network belongs to."""
    if classifier.reader.written:
        return "explore-words"
    if classifier.task.explores:
        return "explore-objects"
    if isinstance(classifier.network, SceneCapsNet):
        return "explore-scenes"
    return "explore"


def write_pages(folder: Path, classifiers: Mapping[str, Classifier]) -> None:
    """The page as a picture, of each kind of network that is there."""
    for name, view in VIEWS.items():
        alike = {
            network: classifier
            for network, classifier in classifiers.items()
            if view_of(classifier) == name
        }
        if alike:
            with opened_page(alike, view.height) as page:
                view.prepare(page)
                shoot(page, folder / f"{name}.png")


def time_moves(moves: int) -> list[float]:
    """Milliseconds from a slider's move to the picture that it draws, of so many moves
    one after the other.
    """
    times = []
    with opened_page({NETWORK: Classifier.open(NETWORK)}) as page:
        slider = page.locator("#sliders input").nth(2)
        for move in range(moves):
            slider.press("ArrowRight" if move // 20 % 2 else "ArrowLeft")
            settle(page)
            times.append(float(page.locator("#drawn").get_attribute("data-ms")))
    return sorted(times)


def stroke(page: Any, points: list[tuple[float, float]]) -> None:
    """Drawn with the mouse."""
    box = page.locator("#canvas").bounding_box()
    start, *path = [
        (box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points
    ]
    page.mouse.move(*start)
    page.mouse.down()
    for point in path:
        page.mouse.move(*point, steps=4)
    page.mouse.up()
    settle(page)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.explore_pictures",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("--out", type=Path, default=PICTURES)
    parser.add_argument("--label", type=int, default=5)
    parser.add_argument(
        "--number", type=int, default=1, help="which test image of that digit"
    )
    parser.add_argument("--measures", nargs="+", default=("slant", "width", "weight"))
    parser.add_argument(
        "--page",
        nargs="*",
        metavar="NETWORK",
        help="picture the page too, with these networks; default: three",
    )
    parser.add_argument(
        "--moves",
        type=int,
        help="only measure how long so many moves of a slider take, in the browser",
    )
    options = parser.parse_args()
    if options.moves:
        times = time_moves(options.moves)
        longest = times[int(0.95 * (len(times) - 1))]
        sys.stdout.write(
            f"{len(times)} moves of a slider: median {median(times):.0f} ms, "
            f"best {times[0]:.0f} ms, 19 of 20 within {longest:.0f} ms\n"
        )
        return
    named = [] if options.page is None else options.page or SHOWN
    try:
        classifiers = {name: Classifier.open(name) for name in named}
        if classifiers:
            Explorer(classifiers)  # takes none without capsules
    except (ValueError, OSError) as error:
        parser.error(f"--page: {error}")
    write_gif(
        options.out / "pose.gif", options.label, options.number, tuple(options.measures)
    )
    write_pages(options.out, classifiers)


if __name__ == "__main__":
    main()
