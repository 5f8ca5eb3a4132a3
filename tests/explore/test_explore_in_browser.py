"""The page in headless Chromium: people draw, move sliders, play routing and upload
broken files.
"""

import operator
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from docs.explore_pictures import served
from torchcaps import Classifier, create_model
from torchcaps_lab.explore import Explorer, application, local_samples
from torchcaps_lab.kinds.images.samples import digit_samples
from torchcaps_lab.report.exhibit import png

pytest.importorskip("uvicorn")
playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright, of the extra dev, drives the browser"
)
expect = playwright.expect

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
FLAGS = [
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
    ),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ),
]
PATIENCE = 60_000  # milliseconds, of one step: other work may share the machine

LONG = (
    "a name that is much longer than its panel, with a word as "
    "pneumonoultramicroscopicsilicovolcanoconiosis"
)
SCENES, QUESTIONS = "scenes/scene_capsnet", "trec/text_pooled"
SEVEN = [(0.28, 0.22), (0.72, 0.22), (0.45, 0.85)]
ZERO = [
    (0.5, 0.18),
    (0.32, 0.32),
    (0.29, 0.58),
    (0.42, 0.8),
    (0.58, 0.8),
    (0.7, 0.6),
    (0.67, 0.32),
    (0.5, 0.18),
]

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium: apt-get install chromium"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page, with a trained network that comes with the package and one that routes
    in three steps.
    """
    torch.manual_seed(0)
    small = create_model(
        "capsnet_digits", channels=8, types=4, pose_dim=4, decoder_hidden=(16,)
    )
    steps = Classifier(small, classes=[f"{LONG} number {label}" for label in range(10)])
    layers = create_model(
        "matrixcapsnet",
        channels=4,
        types=(2, 3, 2),
        pose=(2, 2),
        image_shape=(1, 23, 26),
    )
    networks = {
        "trained": Classifier.open("mnist/efficient_capsnet"),
        "steps": steps,
        "layers": Classifier(layers),
    }
    networks |= {name: Classifier.open(name) for name in (SCENES, QUESTIONS)}
    many = create_model("capsnet_digits", channels=8, types=4, pose_dim=4, classes=21)
    with torch.no_grad():
        for weight in many.decoder.parameters():
            weight.mul_(4)  # it draws differences that can be seen
    networks["many"] = Classifier(many)
    slots = create_model("slot_autoencoder", classes=4, channels=4, dim=6)
    networks["objects"] = Classifier(slots, task="objects")
    samples = {
        name: partial(local_samples, name, networks[name])
        for name in (SCENES, QUESTIONS)
    }
    explorer = Explorer(
        networks, {"trained": lambda: digit_samples((1, 28, 28)), **samples}
    )
    explorer.warm_up()
    with (
        served(application(explorer)) as address,
        playwright.sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        page.trouble = []
        page.on("pageerror", lambda error: page.trouble.append(str(error)))
        page.on(
            "request",
            lambda request: (
                page.trouble.append(request.url) if foreign(request.url) else None
            ),
        )
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        settle(page)
        yield page
        browser.close()


def foreign(url: str) -> bool:
    """Whether something is loaded from elsewhere."""
    return not url.startswith(("http://127.0.0.1:", "data:", "blob:"))


@pytest.fixture(autouse=True)
def calm(page: Any) -> Iterator[None]:
    """No test is over with errors of the page, or with something loaded from
    elsewhere.
    """
    yield
    assert not page.trouble


def choose(page: Any, network: str) -> None:
    page.select_option("#network", network)
    settle(page)


def settle(page: Any) -> None:
    """Waits until nothing is asked or about to be."""
    page.wait_for_selector("body[data-jobs='0']")


def draw(page: Any, points: list[tuple[float, float]]) -> None:
    """With the mouse, on a canvas wiped clean."""
    page.click("#clear")
    stroke(page, points)


def stroke(page: Any, points: list[tuple[float, float]]) -> None:
    box = page.locator("#canvas").bounding_box()
    (x, y), *following = [
        (box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points
    ]
    page.mouse.move(x, y)
    page.mouse.down()
    for there in following:
        page.mouse.move(*there, steps=3)
    page.mouse.up()
    settle(page)


def digit(folder: Path) -> Path:
    """A file with a 0."""
    digits = digit_samples((1, 28, 28))
    file = folder / "digit.png"
    file.write_bytes(png(digits.inputs[digits.labels == 0][0].float() / 255))
    return file


def hold(page: Any, start: str) -> None:
    """The next request that begins so waits until ``answer()`` is called."""
    hold = """start => {
        const own = window.fetch;
        delete document.body.dataset.held;
        window.fetch = async (path, ...more) => {
            if (path.startsWith(start)) {
                window.fetch = own;
                document.body.dataset.held = "yes";
                await new Promise((done) => { window.answer = done; });
            }
            return own(path, ...more);
        };
    }"""
    page.evaluate(hold, start)


def predicted_class(page: Any) -> Any:
    return page.locator("#bars .predicted .name")


def test_draws_a_digit_and_sees_its_class(page: Any) -> None:
    for points, digit in ((ZERO, "0"), (SEVEN, "7")):
        draw(page, points)
        expect(predicted_class(page)).to_have_text(digit)
        expect(page.locator("#pose h2")).to_have_text(f"The pose of {digit}")


@pytest.mark.thorough
def test_only_the_first_finger_and_the_main_button_draw(page: Any) -> None:
    """Two fingers drew lines from one to the other; the right button drew until the
    next click.
    """
    draw(page, SEVEN)
    canvas = page.locator("#canvas")
    before = canvas.evaluate("canvas => canvas.toDataURL()")
    box = canvas.bounding_box()
    there = {
        "clientX": box["x"] + 20,
        "clientY": box["y"] + 250,
        "bubbles": True,
    }
    page.mouse.move(box["x"] + 20, box["y"] + 250)
    page.mouse.down(button="right")
    page.mouse.move(box["x"] + 250, box["y"] + 250)
    page.mouse.up(button="right")
    assert canvas.evaluate("canvas => canvas.toDataURL()") == before
    page.mouse.move(box["x"] + 250, box["y"] + 20)
    page.mouse.down()
    first = canvas.evaluate("canvas => canvas.toDataURL()")
    canvas.dispatch_event(
        "pointermove",
        {**there, "pointerId": 9, "pointerType": "touch", "isPrimary": False},
    )
    assert canvas.evaluate("canvas => canvas.toDataURL()") == first
    page.mouse.up()
    settle(page)


def test_moves_a_slider_and_sees_the_picture_change(page: Any) -> None:
    draw(page, SEVEN)
    drawn = page.locator("#drawn")
    before = drawn.get_attribute("src")
    assert before.startswith("data:image/png")
    slider = page.locator("#sliders input").nth(2)
    slider.press("End")
    expect(drawn).not_to_have_attribute("src", before)
    settle(page)
    assert float(drawn.get_attribute("data-ms")) > 0
    page.click("#reset")
    expect(drawn).to_have_attribute("src", before)


@pytest.mark.thorough
def test_a_slider_changes_the_drawings_of_many_classes(page: Any) -> None:
    """Those of more than 20 classes stayed as they were."""
    choose(page, "many")
    draw(page, SEVEN)
    slider = page.locator("#sliders input").nth(0)
    expect(page.locator("#sliders .top > span").nth(0)).to_contain_text("0: ")
    expect(slider).to_have_attribute("aria-label", "number 0 of the pose")
    sources = "#in-classes img", "images => images.map((image) => image.src)"
    before = page.eval_on_selector_all(*sources)
    slider.press("End")
    settle(page)
    after = page.eval_on_selector_all(*sources)
    assert len(after) == 21
    assert sum(map(operator.ne, before, after)) > 10
    asked = "#in-classes figure.asked img"
    assert page.get_attribute(asked, "src") == page.get_attribute("#drawn", "src")
    choose(page, "trained")


@pytest.mark.thorough
def test_the_pose_is_reset_before_the_picture_comes(page: Any) -> None:
    draw(page, SEVEN)
    before = page.locator("#drawn").get_attribute("src")
    hold(page, "api/decode")
    page.locator("#sliders input").nth(2).press("End")
    page.wait_for_selector("body[data-held]")
    page.click("#reset")
    page.evaluate("answer()")
    settle(page)
    assert page.locator("#drawn").get_attribute("src") == before


@pytest.mark.thorough
def test_points_at_a_class(page: Any) -> None:
    draw(page, SEVEN)
    expect(predicted_class(page)).to_have_text("7")
    page.hover("#bars .bar:nth-child(3)")
    expect(page.locator("#pose h2")).to_have_text("The pose of 2")
    expect(page.locator("#in-classes .asked")).to_have_text("2")
    page.hover("header")
    expect(page.locator("#pose h2")).to_have_text("The pose of 7")


@pytest.mark.thorough
def test_the_keyboard_points_at_classes_and_uploads(page: Any) -> None:
    draw(page, SEVEN)
    bar = page.locator("#bars .bar:nth-child(3)")
    bar.focus()
    expect(page.locator("#pose h2")).to_have_text("The pose of 2")
    for pressed in ("true", "false"):
        page.keyboard.press("Enter")
        expect(bar).to_have_attribute("aria-pressed", pressed)
    page.keyboard.press("ArrowUp")
    expect(page.locator("#pose h2")).to_have_text("The pose of 1")
    page.locator("#clear").focus()
    expect(page.locator("#pose h2")).to_have_text("The pose of 7")
    page.keyboard.press("Tab")
    outline = (
        "getComputedStyle(document.querySelector('label[for=upload]')).outlineStyle"
    )
    assert page.evaluate("document.activeElement.id") == "upload"
    assert page.evaluate(outline) == "solid"


def test_a_comparison_that_fails_leaves_no_other_one(page: Any) -> None:
    choose(page, "steps")
    side = page.locator(".side[data-side='1']")
    expect(side.locator(".bar")).to_have_count(10)
    page.route("**/api/compare?*", lambda route: route.abort())
    side.locator("select").nth(0).select_option("mean")
    expect(page.locator("#message")).to_be_visible()
    settle(page)
    expect(side.locator(".bar")).to_have_count(0)
    expect(side.locator("figure:visible")).to_have_count(0)
    page.unroute("**/api/compare?*")
    side.locator("select").nth(0).select_option("kmeans")
    settle(page)
    expect(side.locator(".bar")).to_have_count(10)
    choose(page, "trained")


@pytest.mark.parametrize(
    ("section", "request_of"),
    [("pose", "pose"), ("maps", "assignments"), ("routing", "routing")],
)
def test_a_panel_whose_request_fails_says_why(
    page: Any, section: str, request_of: str
) -> None:
    """It went on to show what belongs to another picture or class."""
    choose(page, "steps")
    page.route(f"**/api/{request_of}?*", lambda route: route.abort())
    draw(page, ZERO)
    page.hover("#bars .bar >> nth=3")
    page.wait_for_timeout(100)
    settle(page)
    panel = page.locator(f"#{section}")
    expect(panel.locator(".failure")).to_contain_text("the server does not answer")
    expect(panel.locator("canvas:visible, img:visible, input:visible")).to_have_count(0)
    page.unroute(f"**/api/{request_of}?*")
    draw(page, SEVEN)
    expect(panel.locator(".failure")).to_be_hidden()
    choose(page, "trained")


@pytest.mark.thorough
def test_swaps_poses(page: Any) -> None:
    draw(page, SEVEN)
    expect(predicted_class(page)).to_have_text("7")
    page.click("#keep")
    draw(page, ZERO)
    expect(page.locator("#swapped figcaption").nth(2)).to_have_text("its pose as a 7")


def test_uploads(page: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\nnot really")
    page.set_input_files("#upload", broken)
    message = page.locator("#draw #message")
    expect(message).to_contain_text("cannot read the image broken.png")
    above = message.bounding_box()
    assert (
        0
        < page.locator("#canvas").bounding_box()["y"] - above["y"] - above["height"]
        < 30
    )  # beside the canvas
    page.set_input_files("#upload", digit(tmp_path))
    expect(predicted_class(page)).to_have_text("0")
    expect(page.locator("#message")).to_be_hidden()


DROPPED = """([kind, field, bytes]) => {
  const given = new DataTransfer();
  given.items.add(new File([new Uint8Array(bytes)], "zero.png", { type: "image/png" }));
  const event = new Event(kind, { bubbles: true, cancelable: true });
  event[field] = given;
  return document.body.dispatchEvent(event);
}"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "field"), [("drop", "dataTransfer"), ("paste", "clipboardData")]
)
def test_a_picture_is_dropped_or_pasted(
    page: Any, tmp_path: Path, kind: str, field: str
) -> None:
    draw(page, SEVEN)
    expect(predicted_class(page)).to_have_text("7")
    left_to_the_browser = page.evaluate(
        DROPPED, [kind, field, list(digit(tmp_path).read_bytes())]
    )
    assert not left_to_the_browser  # it would leave the page
    expect(predicted_class(page)).to_have_text("0")


def test_plays_routing(page: Any) -> None:
    choose(page, "steps")
    expect(page.locator("#about")).to_contain_text("DynamicRouting")
    expect(page.locator("#step-text")).to_have_text("step 3 of 3")
    table = page.locator("#assigned")
    last = table.evaluate("canvas => canvas.toDataURL()")
    page.click("#play")
    expect(page.locator("#step-text")).to_have_text("step 1 of 3")
    assert table.evaluate("canvas => canvas.toDataURL()") != last
    expect(page.locator("#step-text")).to_have_text("step 3 of 3")
    expect(page.locator("#play")).to_have_text("▶ play")
    assert table.evaluate("canvas => canvas.toDataURL()") == last
    expect(page.locator("#layers canvas")).to_have_count(1)


def test_a_server_that_was_stopped_is_told(page: Any) -> None:
    """The list showed the network that was chosen, and the page the one before."""
    choose(page, "trained")
    page.route("**/api/network?*", lambda route: route.abort())
    page.select_option("#network", "steps")
    expect(page.locator("#message")).to_have_text(
        "the server does not answer. Was it stopped?"
    )
    assert page.input_value("#network") == "trained"
    page.unroute("**/api/network?*")
    draw(page, SEVEN)
    expect(page.locator("#message")).to_be_hidden()


@pytest.mark.thorough
def test_another_network_is_chosen_before_the_answer(page: Any, tmp_path: Path) -> None:
    """The picture that then comes is not for the page any more, and there is none to be
    drawn on.
    """
    choose(page, "trained")
    hold(page, "api/look")
    page.set_input_files("#upload", digit(tmp_path))
    page.select_option("#network", QUESTIONS)
    expect(page.locator("#sample")).to_have_text("another question")
    page.evaluate("answer()")
    settle(page)
    expect(page.locator("#message")).to_be_hidden()


@pytest.mark.thorough
def test_another_network_is_chosen_before_its_routing_is_shown(
    page: Any, tmp_path: Path
) -> None:
    """The steps that then came were drawn over a picture that was gone."""
    choose(page, "steps")
    expect(page.locator("#about")).to_contain_text("DynamicRouting")
    hold(page, "api/routing")
    page.set_input_files("#upload", digit(tmp_path))
    page.wait_for_selector("body[data-held]")
    page.select_option("#network", QUESTIONS)
    expect(page.locator("#sample")).to_have_text("another question")
    expect(page.locator("#coloured span")).not_to_have_count(0)
    page.evaluate("answer()")
    settle(page)
    expect(page.locator("#message")).to_be_hidden()


@pytest.mark.thorough
def test_the_pointer_leaves_the_classes_of_another_network(page: Any) -> None:
    choose(page, "trained")
    page.hover("#bars .bar:nth-child(3)")
    hold(page, "api/look")
    page.select_option("#network", "steps")
    page.wait_for_selector("body[data-held]")
    page.dispatch_event("#bars", "mouseleave")
    page.wait_for_timeout(
        100
    )  # longer than the page waits before it follows the pointer
    page.evaluate("answer()")
    settle(page)


@pytest.mark.parametrize(
    "width",
    [
        375,
        pytest.param(320, marks=pytest.mark.thorough),
        pytest.param(1280, marks=pytest.mark.thorough),
    ],
)
def test_panels_stay_on_the_page_and_apart(page: Any, width: int) -> None:
    """Long names of classes laid the left panel over the right one, and made the page
    wider than a phone.
    """
    page.set_viewport_size({"width": width, "height": 900})
    try:
        choose(page, "steps")
        draw(page, SEVEN)
        page.click("#keep")
        expect(page.locator("#swapped figure")).to_have_count(6)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        left, right = (
            page.locator(f"#{side}").bounding_box() for side in ("left", "right")
        )
        assert (
            left["x"] + left["width"] <= right["x"]
            or left["y"] + left["height"] <= right["y"]
        )
    finally:
        page.set_viewport_size({"width": 1280, "height": 900})


@pytest.mark.thorough
def test_maps_of_several_layers_leave_no_holes(page: Any) -> None:
    """Three maps above each other stood beside a panel of a third of their height."""
    choose(page, "layers")
    expect(page.locator("#layers canvas")).to_have_count(3)
    maps, routing = (
        page.locator(f"#{panel}").bounding_box() for panel in ("maps", "routing")
    )
    assert maps["width"] == routing["width"] > 900
    assert maps["y"] + maps["height"] < routing["y"]


@pytest.mark.thorough
def test_all_classes_can_be_reached_beside_the_panels(page: Any) -> None:
    """Those below the lower edge of the window could only be seen at the end of the
    page.
    """
    choose(page, "steps")
    draw(page, SEVEN)
    page.evaluate("scrollTo(0, 200)")
    page.locator("#bars .bar").last.hover()
    assert page.evaluate("scrollY") == 200
    page.evaluate("scrollTo(0, 0)")


def test_asks_a_question(page: Any) -> None:
    choose(page, QUESTIONS)
    expect(page.locator("#sample")).to_have_text("another question")
    page.fill("#text", "who wrote Hamlet ?")
    expect(predicted_class(page)).to_have_text("HUM")
    words = page.locator("#coloured span")
    expect(words).to_have_text(["who", "wrote", "Hamlet", "?"])
    colour = words.nth(0).evaluate("word => word.style.backgroundColor")
    page.fill("#text", "how far is the moon ?")
    expect(predicted_class(page)).to_have_text("NUM")
    expect(words.nth(0)).to_have_text("how")
    assert words.nth(0).evaluate("word => word.style.backgroundColor") != colour
    expect(page.locator("#sheet")).to_be_hidden()
    page.click("#sample")
    settle(page)
    expect(page.locator("#truth")).to_contain_text("label: ")
    assert page.input_value("#text") not in ("", "how far is the moon ?")


@pytest.mark.thorough
def test_the_last_question_counts(page: Any) -> None:
    """An answer that came late was shown for what was asked after it."""
    choose(page, QUESTIONS)
    expect(page.locator("#sample")).to_have_text("another question")
    hold(page, "api/sample")
    page.click("#sample")
    page.fill("#text", "who wrote Hamlet ?")
    expect(predicted_class(page)).to_have_text("HUM")
    page.evaluate("answer()")
    settle(page)
    assert page.input_value("#text") == "who wrote Hamlet ?"
    expect(page.locator("#coloured span")).to_have_text(["who", "wrote", "Hamlet", "?"])


def test_looks_for_digits_in_a_scene(page: Any) -> None:
    choose(page, SCENES)
    expect(page.locator("#sample")).to_have_text("another scene")
    expect(page.locator("#truth")).to_contain_text("label: ")
    overlay = page.locator("#overlay")
    before = overlay.evaluate("canvas => canvas.toDataURL()")
    page.click("#clear")
    settle(page)
    expect(page.locator("#things figure")).to_have_count(0)
    draw(page, [(0.1 + 0.4 * x, 0.1 + 0.4 * y) for x, y in SEVEN])
    expect(predicted_class(page)).to_have_text("7")
    expect(page.locator("#things figcaption")).to_contain_text("7 (")
    boxed = overlay.evaluate("canvas => canvas.toDataURL()")
    assert boxed != before
    stroke(page, [(0.5 + 0.4 * x, 0.5 + 0.4 * y) for x, y in SEVEN])
    expect(page.locator("#answer")).to_have_text("answer: 2 x 7")
    expect(page.locator("#things figcaption")).to_have_count(2)
    page.hover("#bars .bar:nth-child(8)")
    settle(page)
    assert overlay.evaluate("canvas => canvas.toDataURL()") != boxed
    expect(page.locator("#layers canvas")).to_have_count(1)


def ink(page: Any, *places: tuple[float, float]) -> list[int]:
    """How bright the canvas is at these places, in shares of its sides; each question
    to the page takes a moment.
    """
    read = """(canvas, places) => {
        const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return places.map(([x, y]) => data[4 * (width * Math.floor(y * height) + Math.floor(x * width))]);
    }"""
    return page.locator("#canvas").evaluate(read, places)


@pytest.mark.parametrize(
    "network",
    ["trained", QUESTIONS, pytest.param(SCENES, marks=pytest.mark.thorough)],
)
@pytest.mark.parametrize("size", [(1280, 800), (390, 844)], ids=["desktop", "phone"])
def test_the_canvas_and_all_answers_are_in_one_view(
    page: Any, size: tuple[int, int], network: str
) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    try:
        choose(page, network)
        assert page.evaluate("[scrollY, left.scrollHeight - left.clientHeight]") == [
            0,
            0,
        ]
        for place in (
            "#sheet:visible, #text:visible",
            "#truth",
            "#answer",
            "#bars .bar:last-child",
        ):
            box = page.locator(place).bounding_box()
            assert 0 <= box["y"] < box["y"] + box["height"] <= size[1], place
        assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    finally:
        page.set_viewport_size({"width": 1280, "height": 900})


@pytest.mark.thorough
def test_the_first_stroke_takes_the_sample_away(page: Any) -> None:
    choose(page, "trained")
    page.click("#sample")
    settle(page)
    expect(page.locator("#truth")).to_contain_text("label")
    box = page.locator("#canvas").bounding_box()
    page.mouse.move(box["x"] + 9, box["y"] + 9)
    page.mouse.down()
    page.mouse.up()
    settle(page)
    expect(page.locator("#truth")).to_have_text("")
    corner = (9 / box["width"], 9 / box["height"])
    assert ink(page, corner) == [255]
    assert set(
        ink(page, *((x / 50, y / 50) for x in range(5, 50) for y in range(5, 50)))
    ) == {0}
    page.mouse.move(box["x"] + 250, box["y"] + 250)
    page.mouse.down()
    page.mouse.up()
    settle(page)
    assert ink(page, corner) == [255]  # the second one takes away nothing


@pytest.mark.thorough
def test_a_sample_is_as_sharp_as_the_network_sees_it(page: Any) -> None:
    """It was smoothed where the screen has more pixels than the page."""
    choose(page, "trained")
    even = """canvas => {
        const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const unit = width / 28;
        return data.every((value, place) => {
            const [x, y] = [(place >> 2) % width, Math.floor((place >> 2) / width)];
            return value === data[4 * (width * (y - (y % unit)) + x - (x % unit)) + (place % 4)];
        });
    }"""
    canvas = page.locator("#canvas")
    assert canvas.evaluate("canvas => canvas.width % 28") == 0
    assert canvas.evaluate(even)
    assert (
        canvas.evaluate("canvas => getComputedStyle(canvas).imageRendering")
        == "pixelated"
    )


@pytest.mark.thorough
def test_another_network_is_waited_for_on_an_empty_page(page: Any) -> None:
    choose(page, "trained")
    hold(page, "api/network?")
    page.select_option("#network", "steps")
    page.wait_for_selector("body[data-held]")
    expect(page.locator("#opening[role=status]")).to_have_text("opening steps")
    for place in ("#right section:visible", "#classes:visible"):
        expect(page.locator(place)).to_have_count(0)
    for place in ("#truth", "#answer", "#about", "#verdict", "#sample-class"):
        expect(page.locator(place)).to_have_text("")
    assert set(
        ink(page, *((x / 10, y / 10) for x in range(10) for y in range(10)))
    ) == {0}
    page.evaluate("answer()")
    settle(page)
    expect(page.locator("#opening")).to_have_text("")
    choose(page, "trained")
    expect(page.locator("#verdict")).to_contain_text(
        "Routing had an effect."
    )  # once, over all panels
    choose(page, "steps")
    expect(page.locator("#about")).to_contain_text("DynamicRouting")


@pytest.mark.thorough
def test_a_picture_that_comes_while_a_network_opens_is_not_lost(
    page: Any, tmp_path: Path
) -> None:
    choose(page, "layers")
    hold(page, "api/network?")
    page.select_option("#network", "trained")
    page.wait_for_selector("body[data-held]")
    page.set_input_files("#upload", digit(tmp_path))
    page.evaluate("answer()")
    expect(page.locator("#about")).to_contain_text("EfficientCapsNet")
    settle(page)
    expect(predicted_class(page)).to_have_text("0")
    expect(page.locator("#truth")).to_have_text("")  # a test image has a label


@pytest.mark.thorough
def test_where_routing_decides_nothing_it_is_said_once(page: Any) -> None:
    """It was said twice, and play and compare were offered all the same."""
    nothing = "Routing had no effect here."

    def undecided(route: Any) -> None:
        network = route.fetch().json()
        verdict = {"routing": nothing, "decoder": "Drawings explain much."}
        route.fulfill(json={**network, "decides": False, "verdict": verdict})

    page.route("**/api/network?*", undecided)
    choose(page, "steps")
    expect(page.locator("#routing")).to_contain_text(nothing)
    assert page.inner_text("body").count(nothing) == 1
    for place in ("#play", "#stage", "#compare", "#maps"):
        expect(page.locator(place)).to_be_hidden()
    page.unroute("**/api/network?*")
    choose(page, "layers")
    choose(page, "steps")
    for place in ("#play", "#stage", "#compare"):
        expect(page.locator(place)).to_be_visible()


@pytest.mark.thorough
def test_names_of_classes_over_the_steps_are_whole(page: Any) -> None:
    """A column had room for three letters, and "frog" became "fro"."""

    def named(route: Any) -> None:
        network = route.fetch().json()
        route.fulfill(json={**network, "classes": ["frog", *network["classes"][1:]]})

    def top() -> float:
        return float(page.locator("#assigned").get_attribute("data-top"))

    choose(page, "trained")
    assert top() == 16  # digits stand beside each other
    page.route("**/api/network?*", named)
    choose(page, "layers")
    choose(page, "trained")
    assert top() > 20  # and words on their ends, where they fit
    page.unroute("**/api/network?*")
    choose(page, "layers")


@pytest.mark.thorough
@pytest.mark.parametrize("right", [True, False])
def test_the_label_and_the_answer_are_told_apart(page: Any, right: bool) -> None:
    def labelled(route: Any) -> None:
        answer = route.fetch().json()
        predicted = answer["activations"]["predicted"]
        route.fulfill(
            json={**answer, "label": predicted if right else (predicted + 1) % 10}
        )

    choose(page, "trained")
    page.route("**/api/sample?*", labelled)
    page.click("#sample")
    settle(page)
    page.unroute("**/api/sample?*")
    predicted_digit = int(page.locator("#bars .predicted .name").inner_text())
    label = predicted_digit if right else (predicted_digit + 1) % 10
    expect(page.locator("#truth")).to_have_text(f"label: {label}")
    expect(page.locator("#answer")).to_have_text(
        f"answer: {predicted_digit}, {'right' if right else 'wrong'}"
    )
    expect(page.locator("#bars .label .name")).to_have_text(str(label))
    also = ", the answer, the label" if right else ", the label"
    assert page.locator("#bars .label").get_attribute("aria-label").endswith(also)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("label", "counted", "truth", "judged"),
    [
        ([7, 7], True, "2 x 7", "right"),
        ([7], True, "7", "wrong"),
        ([7], False, "7", "right"),
        ([], True, "nothing", "wrong"),
    ],
)
def test_things_of_a_class_are_counted(
    page: Any, label: list[int], counted: bool, truth: str, judged: str
) -> None:
    """Two 7s where one is were "right", and a scene known to be empty was not judged."""

    def two(route: Any) -> None:
        answer = route.fetch().json()
        sevens = [[{"label": 7, "activation": 0.9, "box": [0, 0, 9, 9]}] * 2]
        boxes = {**answer["boxes"], "things": sevens}
        known = {"label": label, "counted": counted}
        route.fulfill(json={**answer, **known, "there": [7], "boxes": boxes})

    page.route("**/api/sample?*", two)
    choose(page, SCENES)
    page.unroute("**/api/sample?*")
    expect(page.locator("#truth")).to_have_text(f"label: {truth}")
    expect(page.locator("#answer")).to_have_text(f"answer: 2 x 7, {judged}")
    choose(page, "trained")


CONTRASTS = """() => {
    const numbers = (text) => text.match(/[0-9.]+/g).map(Number);
    const linear = (one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
    const behind = (node) => {
        if (node === null) return [255, 255, 255];
        const [r, g, b, alpha = 1] = numbers(getComputedStyle(node).backgroundColor);
        const below = alpha === 1 ? [r, g, b] : behind(node.parentElement);
        return [r, g, b].map((one, channel) => alpha * one + (1 - alpha) * below[channel]);
    };
    const said = (node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    return [...document.querySelectorAll("body *")]
        .filter((node) => node.checkVisibility() && !node.disabled && node.id !== "invitation" && said(node))
        .map((node) => {
            const [dark, bright] = [getComputedStyle(node).color, behind(node)]
                .map((one) => 0.05 + light(Array.isArray(one) ? one : numbers(one))).sort((one, other) => one - other);
            return [bright / dark, node.outerHTML.slice(0, 80)];
        }).sort((one, other) => one[0] - other[0])[0];
}"""
"""The lowest contrast of a text with what is behind it, by the WCAG's measure, and the
text.
"""


@pytest.mark.thorough
@pytest.mark.parametrize("network", ["trained", QUESTIONS])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_texts_can_be_read_by_day_and_by_night(
    page: Any, scheme: str, network: str
) -> None:
    """White words stood on white."""
    page.emulate_media(color_scheme=scheme)
    try:
        choose(page, network)
        brightness = page.evaluate(
            "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0]"
        )
        assert (int(brightness) < 60) == (scheme == "dark")
        ratio, text = page.evaluate(CONTRASTS)
        assert ratio >= 4.5, text
    finally:
        page.emulate_media(color_scheme="light")


@pytest.mark.parametrize(
    "scheme", ["dark", pytest.param("light", marks=pytest.mark.thorough)]
)
def test_reports_can_be_read_by_day_and_by_night(
    page: Any, tmp_path: Path, scheme: str
) -> None:
    classifier = Classifier.open(QUESTIONS)
    index = classifier.task.report(
        tmp_path, classifier.network, local_samples(QUESTIONS, classifier), {}, []
    )
    second = page.context.browser.new_page(color_scheme=scheme)
    second.goto(index.as_uri())
    brightness = second.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0]"
    )
    assert (int(brightness) < 60) == (scheme == "dark")
    assert second.locator("p span").count() > 20  # words in colours
    ratio, text = second.evaluate(CONTRASTS)
    assert ratio >= 4.5, text
    second.close()


@pytest.mark.thorough
def test_the_page_is_used_without_a_mouse(page: Any) -> None:
    choose(page, "trained")
    page.locator("#canvas").focus()
    page.keyboard.press("c")
    settle(page)
    expect(page.locator("#truth")).to_have_text("")
    expect(page.locator("#answer")).to_have_text("nothing is drawn")
    for key in (*["Shift+ArrowUp"] * 9, *["ArrowDown"] * 18):
        page.keyboard.press(key)
    settle(page)
    seen = ink(page, *((0.5, y) for y in (0.1, 0.3, 0.7, 0.95)))
    assert [brightness > 0 for brightness in seen] == [False, True, True, False]
    expect(predicted_class(page)).to_have_text("1")
    expect(page.locator("#answer[role=status]")).to_have_text("answer: 1")
    page.keyboard.press("t")
    expect(page.locator("#truth")).to_contain_text("label")
    page.click("#keys summary")
    expect(page.locator("#keys kbd")).to_have_text(["c", "u", "t", "p", "r", "k"])
    page.click("#keys summary")
    unnamed = """[...document.querySelectorAll("button, input, select, textarea, canvas[tabindex], section")]
        .filter((one) => one.checkVisibility() && !one.labels?.length && !one.textContent.trim())
        .filter((one) => !one.ariaLabel && !one.getAttribute("aria-labelledby")).map((one) => one.outerHTML)"""
    assert page.evaluate(unnamed) == []
    choose(page, QUESTIONS)
    page.fill("#text", "")
    page.type("#text", "cut")  # no shortcuts while one types
    assert page.input_value("#text") == "cut"


@pytest.mark.thorough
def test_figures_are_drawn_and_fall_apart_into_slots(page: Any) -> None:
    choose(page, "objects")
    expect(page.locator("#classes")).to_be_hidden()
    page.click("#brushes button[title=red]")
    page.click("#figures button[title=square]")
    stroke(page, [(0.5, 0.5)])
    red = page.evaluate(
        "() => [...document.getElementById('canvas').getContext('2d')"
        ".getImageData(140, 140, 1, 1).data]"
    )
    assert red == [255, 0, 0, 255]
    expect(page.locator("#apart-parts img")).to_have_count(4)
    before = page.get_attribute("#apart-drawn", "src")
    page.locator("#apart-step").fill("1")
    expect(page.locator("#apart-text")).to_have_text("step 1 of 5")
    assert page.get_attribute("#apart-drawn", "src") != before
    page.locator("#apart-step").fill("7")
    expect(page.locator("#apart-text")).to_have_text("step 7, more than in training")
    choose(page, "trained")
    expect(page.locator("#apart")).to_be_hidden()
    expect(page.locator("#figures")).to_be_hidden()


@pytest.mark.thorough
def test_another_network_is_chosen_before_the_slots_are_shown(page: Any) -> None:
    """They were shown beside its panels."""
    choose(page, "objects")
    page.evaluate("""() => {
        const decode = HTMLImageElement.prototype.decode;
        HTMLImageElement.prototype.decode = async function () {
            HTMLImageElement.prototype.decode = decode;
            document.body.dataset.held = "yes";
            await new Promise((done) => { window.answer = done; });
        };
        delete document.body.dataset.held;
    }""")
    page.click("#canvas")
    page.wait_for_selector("body[data-held]")
    page.select_option("#network", "trained")
    expect(page.locator("#about")).to_contain_text("EfficientCapsNet")
    page.evaluate("answer()")
    settle(page)
    expect(page.locator("#apart")).to_be_hidden()
    expect(page.locator("#classes")).to_be_visible()
