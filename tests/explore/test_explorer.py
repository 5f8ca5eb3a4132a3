"""What the page asks for, and the server that answers: without a browser."""

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
import torch
from PIL import Image

from docs.explore_pictures import served
from tests.kinds.images.folders import write
from tests.kinds.images.test_smallnorb import FILES
from torchcaps import Classifier, create_model
from torchcaps.layers import CapsLinear
from torchcaps.models import CapsuleNetwork
from torchcaps.models.pretrained import list_pretrained
from torchcaps_lab.cli import main
from torchcaps_lab.data import (
    MNIST,
    Digits,
    Examples,
    Scenery,
    Shapes,
    TextSet,
    Words,
)
from torchcaps_lab.evaluate import other_routing
from torchcaps_lab.explore import (
    Explorer,
    application,
    local_samples,
    serve,
)
from torchcaps_lab.explore.explorer import MOST_LOOKS
from torchcaps_lab.explore.server import MOST_BYTES, _Calls
from torchcaps_lab.kinds.images.samples import digit_samples, digit_scenes
from torchcaps_lab.kinds.texts import TextClassifier
from torchcaps_lab.kinds.texts.coloured import word_shares
from torchcaps_lab.report.exhibit import png, pngs

WORDS = {"name": "texts", "words": Words(("who", "wrote", "it")).config()}

uvicorn = pytest.importorskip("uvicorn")


def small(**arguments: Any) -> Classifier:
    torch.manual_seed(0)
    settings = {"channels": 8, "types": 2, "pose_dim": 4, "decoder_hidden": (16,)}
    return Classifier(create_model("capsnet_digits", **{**settings, **arguments}))


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    networks = {"a": small(), "plain": small(decoder_hidden=None)}
    return Explorer(networks, {"a": lambda: digit_samples((1, 8, 8))})


@pytest.fixture(scope="module")
def drawing() -> bytes:
    return png(torch.rand(1, 30, 20, generator=torch.Generator().manual_seed(0)))


class TestExplorer:
    def test_looks_and_what_stands_on_them(
        self, explorer: Explorer, drawing: bytes
    ) -> None:
        look = explorer.look("a", drawing)
        answer = explorer.answer(look)
        assert answer["network"] == "a"
        assert (answer["label"], answer["empty"]) == (None, False)
        assert len(answer["activations"]["activation"]) == 10
        pose = explorer.pose(look, 3)
        assert pose is not None
        drawn = explorer.decode(look, pose["pose"])
        assert drawn == pose["in_classes"]
        assert drawn[3] == pose["reconstruction"]
        assert explorer.decode(look, pose["pose"], 3) == drawn[3:4]
        assert explorer.assignments(look, 3)["targets"] == [3]
        assert len(explorer.routing(look)["steps"]) == 3

    def test_none_of_these_and_why(self, explorer: Explorer, drawing: bytes) -> None:
        assert (
            explorer.answer(explorer.look("a", drawing))["none"] is None
        )  # without a threshold nothing is said
        network = Classifier.open("digits/capsnet_digits").network
        names = [f"digit {label}" for label in range(10)]
        told = Explorer({"digits": Classifier(network, classes=names)})
        none = told.answer(told.look("digits", drawing))["none"]
        assert none["known"] == [False]
        assert none["predicted"][0] in names
        assert 0.95 < none["strangeness"][0] <= 1
        assert all(
            none[part][0].startswith("data:image/png")
            for part in ("pictures", "reconstructions", "differences")
        )

    def test_nothing_is_computed_twice(
        self, explorer: Explorer, drawing: bytes
    ) -> None:
        network = explorer._networks["a"].network
        runs: list[None] = []
        hook = network.features.register_forward_hook(lambda *_: runs.append(None))
        try:
            look = explorer.look("a", drawing)
            for _ in range(2):
                explorer.answer(look)
                for target in range(10):
                    explorer.pose(look, target)
                    explorer.assignments(look, target)
            assert len(runs) == 1
            explorer.routing(look)
            explorer.routing(look)
            assert (
                len(runs) == 2
            )  # the votes are not kept, so they are cast again, once
        finally:
            hook.remove()

    def test_another_routing_does_not_change_a_look(
        self, explorer: Explorer, drawing: bytes
    ) -> None:
        """The network ran when the answer was asked for, while another thread compared
        routings.
        """
        for show in (
            partial(explorer.look, "a", drawing),
            partial(explorer.sample, "a"),
        ):
            expected = explorer.answer(show())
            look = show()
            with other_routing(explorer._networks["a"].network, steps=1):
                assert explorer.answer(look) == expected | {"look": look}

    def test_samples(self, explorer: Explorer) -> None:
        look = explorer.sample("a", 7, 2)
        assert explorer.answer(look)["label"] == 7
        count = len(explorer._networks["a"].places[7])
        again = explorer.sample("a", 7, 2 + count)
        assert (
            explorer.answer(again)["activations"]
            == explorer.answer(look)["activations"]
        )
        with pytest.raises(ValueError, match="no test images for plain"):
            explorer.sample("plain")
        with pytest.raises(ValueError, match="class must be one of"):
            explorer.sample("a", 10)

    def test_compared(self, explorer: Explorer, drawing: bytes) -> None:
        look = explorer.look("a", drawing)
        own = explorer.compare(look, 3, None, None)
        assert own["activations"] == explorer.answer(look)["activations"]
        second = explorer.compare(look, 3, "kmeans", 2)
        assert second["activations"] != own["activations"]
        assert (
            explorer.compare(look, 3, None, 3) == own
        )  # as many as it takes by itself
        for routing, steps, message in (
            ("em", None, "routing must be"),
            ("mean", 2, "no steps"),
            (None, 99, "1 to 20"),
        ):
            with pytest.raises(ValueError, match=message):
                explorer.compare(look, 3, routing, steps)

    def test_no_test_images(self) -> None:
        none = digit_samples((1, 8, 8)).subset(torch.arange(0))
        with pytest.raises(ValueError, match="there are no test images for a"):
            Explorer({"a": small()}, {"a": lambda: none}).sample("a")

    @pytest.mark.parametrize("name", list_pretrained())
    def test_each_network_of_the_package_can_be_chosen(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without any data sets on the machine; real toys and nuclei are not drawn."""
        monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
        classifier = Classifier.open(name)
        described = Explorer(
            {name: classifier}, {name: lambda: local_samples(name, classifier)}
        ).network(name)
        real = name.startswith(("smallnorb/", "nuclei/"))
        assert bool(described["samples"]) == (not real)

    @pytest.mark.parametrize(
        ("name", "samples"),
        [
            ("mnist/efficient_capsnet", 359),
            ("mnist/sharedcapsnet", 200),
            ("smallnorb/matrixcapsnet_small", 0),
        ],
    )
    def test_damaged_test_images_are_told_and_not_used(
        self, name: str, samples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path, FILES)
        (tmp_path / "mnist").mkdir()
        for file in (
            *MNIST.digests,
            *(path.name for path in tmp_path.glob("*-testing-*")),
        ):
            place = (
                tmp_path / file
                if file.startswith("smallnorb")
                else tmp_path / "mnist" / file
            )
            place.write_bytes(b"damaged")
        monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
        messages: list[str] = []
        actual = local_samples(name, Classifier.open(name), messages.append)
        assert (0 if actual is None else len(actual)) == samples
        assert len(messages) == 1
        assert messages[0].startswith("test images that are damaged are not used: ")
        assert str(tmp_path) in messages[0]

    def test_test_images_of_smallnorb(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path, FILES)
        monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
        name = "smallnorb/matrixcapsnet_small"
        classifier = Classifier.open(name)
        actual = local_samples(name, classifier)
        assert actual is not None
        assert actual.raw_image_shape == classifier.image_shape

    def test_images_of_other_classes_are_no_samples(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A network in a folder called mnist need not know MNIST's classes."""
        images = Examples(
            torch.zeros(2, 1, 8, 8, dtype=torch.uint8),
            torch.tensor([0, 9]),
            tuple("0123456789"),
        )
        data = SimpleNamespace(test=images)
        monkeypatch.setattr(
            "torchcaps_lab.kinds.images.samples.create_dataset", lambda name, **_: data
        )
        assert local_samples("mnist/mine", small()) is images
        assert local_samples("mnist/mine", small(classes=3)) is None

    def test_swapped(self, explorer: Explorer, drawing: bytes) -> None:
        first = explorer.look("a", drawing)
        second = explorer.sample("a", 7)
        swapped = explorer.swap(first, 2, second, 7)
        assert swapped is not None
        assert swapped["swapped"][0] == explorer.pose(first, 2)["in_classes"][7]
        assert swapped["swapped"][1] == explorer.pose(second, 7)["in_classes"][2]
        with pytest.raises(ValueError, match="within one network"):
            explorer.swap(first, 2, explorer.look("plain", drawing), 2)

    def test_without_a_decoder(self, explorer: Explorer, drawing: bytes) -> None:
        look = explorer.look("plain", drawing)
        assert explorer.pose(look, 0) is None
        assert explorer.swap(look, 0, look, 1) is None
        assert explorer.compare(look, 0, None, 1)["picture"] is None
        with pytest.raises(RuntimeError, match="no decoder"):
            explorer.decode(look, [0.0] * 4)

    @pytest.mark.parametrize(
        ("pose", "message"),
        [
            ([0.0] * 3, "poses must be"),
            ([float("nan")] * 4, "finite"),
            ([], "poses must be"),
        ],
    )
    def test_poses_that_do_not_fit(
        self, explorer: Explorer, pose: list[float], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            explorer.decode(explorer.sample("a"), pose)

    def test_old_looks_are_forgotten(self, drawing: bytes) -> None:
        explorer = Explorer({"a": small()})
        first = explorer.look("a", drawing)
        explorer.answer(first)
        for _ in range(MOST_LOOKS):
            explorer.look("a", drawing)
        with pytest.raises(ValueError, match="forgotten"):
            explorer.answer(first)

    def test_pictures_that_are_too_large_are_not_decoded(
        self, explorer: Explorer, drawing: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "torchcaps_lab.kinds.images.decoding.upload.MOST_PIXELS", 599
        )
        with pytest.raises(ValueError, match="20 x 30 pixels"):
            explorer.look("a", drawing)

    def test_a_clean_canvas_is_no_mistake(self) -> None:
        clean = png(torch.zeros(1, 28, 28))
        explorer = Explorer({"a": small()})
        opened = explorer._networks["a"].classifier
        opened.reader = opened.reader.changed(resize="handwriting")
        assert explorer.answer(explorer.look("a", clean))["activations"][
            "predicted"
        ] in range(10)
        with pytest.raises(ValueError, match="no ink"):
            explorer.look("a", png(torch.full((1, 28, 28), 0.5)))

    def test_words_that_cannot_be_followed(self) -> None:
        """Any other network with capsules of words was opened, and every text was an
        error of the server.
        """

        class OwnCapsulesOfWords(TextClassifier, CapsuleNetwork):
            decoder = None

            def __init__(self, vocabulary: int = 3, classes: int = 2) -> None:
                super().__init__(vocabulary, classes, 4, 0.0, 0.0)
                self.class_caps = CapsLinear(None, classes, 4, 4, transforms="shared")

            def children_of(self, images: torch.Tensor) -> torch.Tensor:
                return self.vectors(images)[0].mT

        network = OwnCapsulesOfWords()
        network.extra["reader"] = WORDS
        assert network(torch.tensor([[2, 3, 4]])).activation.shape == (1, 2)
        with pytest.raises(
            ValueError,
            match="OwnCapsulesOfWords, whose words cannot be followed to the classes",
        ):
            Explorer({"own": Classifier(network)})

    @pytest.mark.parametrize("kind", ["activation", "pose"])
    def test_what_is_not_finite_is_told(self, drawing: bytes, kind: str) -> None:
        """Activations were shown as 0.00, and either ended in an error of
        JavaScript.
        """
        network = small()
        encode = network.network.encode
        network.network.encode = lambda images: (result := encode(images))._replace(
            **{kind: torch.full_like(getattr(result, kind), torch.nan)}
        )
        explorer = Explorer({"nan": network})
        with pytest.raises(
            ValueError, match=f"nan gives this input {kind}s that are not finite"
        ):
            explorer.look("nan", drawing)

    def test_capsules_over_pixels_are_told_from_none(self) -> None:
        """segcaps was said to have no capsules."""
        network = create_model("segcaps", image_shape=(1, 32, 32), classes=2)
        pixels = Classifier(network, task="segmentation")
        with pytest.raises(ValueError, match="SegCaps, whose task is segmentation"):
            Explorer({"pixels": pixels})

    def test_what_has_no_capsules(self) -> None:
        with pytest.raises(ValueError, match="the page has nothing to show of"):
            Explorer(
                {
                    "cnn": Classifier(
                        create_model(
                            "sharedcapsnet_cnn", channels=(4, 4, 4, 4), hidden=4
                        )
                    )
                }
            )
        with pytest.raises(ValueError, match="at least one"):
            Explorer({})


@pytest.fixture(scope="module")
def asked() -> Explorer:
    torch.manual_seed(0)
    network = create_model(
        "text_capsnet",
        vocabulary=3,
        classes=2,
        word_dim=8,
        channels=4,
        types=2,
        parts=2,
    )
    network.extra["reader"] = WORDS
    return Explorer({"asked": Classifier(network), "a": small()})


class TestTexts:
    def test_what_the_words_spoke_for(self, asked: Explorer) -> None:
        answer = asked.answer(asked.read("asked", "Who wrote that ?"))
        shown = answer["activations"]
        assert (answer["text"], answer["label"]) == ("Who wrote that ?", None)
        assert shown["pieces"] == ["Who ", "wrote ", "that ", "?"]
        assert shown["known"] == [True, True, False, False]
        assert answer["there"] == [shown["predicted"]]
        classifier = asked._networks["asked"].classifier
        numbers = classifier.reader.reading("Who wrote that ?").numbers[None]
        expected = word_shares(classifier.network, numbers)
        torch.testing.assert_close(
            torch.tensor(shown["shares"]), expected[0], rtol=1e-4, atol=1e-5
        )
        predicted = classifier.network(numbers).activation[0]
        torch.testing.assert_close(
            torch.tensor(shown["activation"]), predicted, rtol=1e-4, atol=1e-5
        )

    @pytest.mark.parametrize(
        ("network", "text", "message"),
        [
            ("asked", "  ", "no words"),
            ("asked", "x" * 10_001, "at most 10,000 letters"),
            ("a", "who", "not texts"),
        ],
    )
    def test_what_is_no_text(
        self, asked: Explorer, network: str, text: str, message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            asked.read(network, text)

    def test_there_are_no_pictures_of_it(self, asked: Explorer, drawing: bytes) -> None:
        with pytest.raises(ValueError, match="the network takes words"):
            asked.look("asked", drawing)
        with pytest.raises(ValueError, match="of a text"):
            asked.pose(asked.read("asked", "who"), 0)

    def test_questions_to_try(self) -> None:
        classifier = Classifier.open("trec/text_pooled")
        explorer = Explorer(
            {"q": classifier},
            {"q": lambda: local_samples("trec/text_pooled", classifier)},
        )
        assert explorer.network("q")["meanings"]["HUM"] == "a person or a group"
        human = classifier.classes.index("HUM")
        answer = explorer.answer(explorer.sample("q", human))
        assert answer["label"] == human
        assert answer["text"]

    def test_texts_of_several_classes(self, asked: Explorer) -> None:
        network = asked._networks["asked"].network
        words = Words(("who", "wrote", "it"))
        mask = torch.tensor([[True, True], [False, False]])
        texts = TextSet.of(("who", "wrote it"), mask, ("x", "y"), words)
        classifier = Classifier(network, task="several_labels")
        explorer = Explorer({"s": classifier}, {"s": lambda: texts})
        answers = [explorer.answer(explorer.sample("s", None, k)) for k in (0, 1)]
        assert [answer["label"] for answer in answers] == [(0, 1), ()]


@pytest.fixture(scope="module")
def scenes() -> Explorer:
    torch.manual_seed(0)
    network = create_model("scene_capsnet", image_shape=(1, 64, 64), channels=(3, 4))
    network.extra["resize"] = "keep"
    classifier = Classifier(network, task={"name": "several_labels", "threshold": 1e-6})
    return Explorer({"s": classifier}, {"s": lambda: digit_scenes(classifier)})


class TestScenes:
    def test_boxes(self, scenes: Explorer) -> None:
        look = scenes.sample("s", 7)
        answer = scenes.answer(look)
        assert 7 in answer["label"]
        observation = scenes._looks[look].observation
        with torch.no_grad():
            (things,) = observation.model.things_of(
                observation.selection.images, least=1e-6
            )
        assert [box["label"] for box in answer["boxes"]["things"][0]] == [
            thing.label for thing in things
        ]
        assert (
            {thing.label for thing in things} == set(answer["there"]) == set(range(10))
        )

    def test_a_label_has_each_digit_as_often_as_it_is_there(
        self, scenes: Explorer
    ) -> None:
        digits = Digits().test.subset(torch.arange(20))
        two = Scenery(digits, (64, 64), least=2, most=2, twins=1.0)
        few = Scenery(digits, (64, 64), least=0, most=1)
        samples = {
            "two": replace(digits, composition=two),
            "few": replace(digits, composition=few),
        }
        classifier = scenes._networks["s"].classifier
        explorer = Explorer(
            dict.fromkeys(samples, classifier),
            {name: partial(samples.get, name) for name in samples},
        )
        empty = next(k for k in range(20) if not samples["few"][k].labels.any())
        for name, place, label in (
            ("two", 7, (int(digits.labels[7]),) * 2),
            ("few", empty, ()),
        ):
            answer = explorer.answer(explorer.sample(name, number=place))
            assert (answer["label"], answer["counted"]) == (label, True)

    def test_pictures_are_as_large_as_the_page_says(self, scenes: Explorer) -> None:
        """One of any size would take any time."""
        look = scenes.look("s", png(torch.rand(1, 300, 200)))
        assert scenes._looks[look].observation.selection.images.shape == (1, 1, 64, 64)

    def test_two_digits_side_by_side(self) -> None:
        classifier = Classifier.open("mnist/sharedcapsnet")
        explorer = Explorer(
            {"two": classifier},
            {"two": lambda: local_samples("mnist/sharedcapsnet", classifier)},
        )
        answer = explorer.answer(explorer.sample("two"))
        assert len(answer["label"]) == len(answer["there"]) == 2
        assert answer["boxes"] is None
        assert not answer["counted"]
        assert explorer.network("two")["image_shape"] == [1, 28, 56]


@pytest.fixture(scope="module")
def address(explorer: Explorer) -> Iterator[str]:
    with served(application(explorer)) as address:
        yield address


@pytest.fixture(scope="module")
def locked(explorer: Explorer) -> Iterator[str]:
    with served(application(explorer, token="s3cret")) as address:
        yield address


def ask(
    address: str, body: bytes | None = None, **headers: str
) -> tuple[int, Any, Any]:
    """Status, body (JSON if it is) and headers."""
    try:
        with urlopen(Request(address, body, headers), timeout=120) as answer:
            status = answer.status
            text = answer.read()
            given = answer.headers
    except HTTPError as error:
        with error:
            status = error.code
            text = error.read()
            given = error.headers
    return (
        status,
        json.loads(text) if "json" in given.get("content-type", "") else text,
        given,
    )


class _Slow:
    """Sends a body of so many bytes, whose end waits."""

    def __init__(self, size: int, finish: asyncio.Event) -> None:
        self.parts = [(bytes(size), True), (b"", False)]
        self.finish = finish

    async def __call__(self) -> dict[str, Any]:
        body, more = self.parts.pop(0)
        if not more:
            await self.finish.wait()
        return {"type": "http.request", "body": body, "more_body": more}


async def _status(
    app: Any, receive: Any, method: str = "POST", path: str = "/api/look"
) -> int:
    """The status of the answer to an upload, or to another request."""
    statuses: list[int] = []

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"network=a",
        "headers": [(b"host", b"localhost")],
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    return statuses[0]


class TestServer:
    def test_page_names_nothing_from_elsewhere(self, address: str) -> None:
        for name in ("", "explore.js", "explore.css", "icon.svg"):
            status, text, headers = ask(f"{address}/{name}")
            assert status == 200
            elsewhere = text.replace(b"http://www.w3.org/2000/svg", b"")
            assert b"http:" not in elsewhere
            assert b"https:" not in elsewhere
            assert "default-src 'self'" in headers["content-security-policy"]

    def test_answers(self, address: str, drawing: bytes) -> None:
        assert ask(f"{address}/api/networks")[1] == ["a", "plain"]
        answer = ask(f"{address}/api/network?name=a")[1]
        assert (answer["steps"], answer["samples"], answer["decodes"]) == (3, 359, True)
        look = ask(f"{address}/api/look?network=a", drawing)[1]
        assert look["pose"]["target"] == look["activations"]["predicted"]
        pose = json.dumps(look["pose"]["pose"]).encode()
        assert (
            ask(f"{address}/api/decode?look={look['look']}", pose)[1]
            == look["pose"]["in_classes"]
        )

    def test_names_that_are_no_text(self) -> None:
        """A folder of photos may be called caf\\xe9 in Latin-1; it trains, and every
        answer about it was an error of the server.
        """
        names = ["caf\udce9", *"123456789"]
        network = small().network
        explorer = Explorer(
            {"runs/\udce9": Classifier(network, classes=names)},
            {"runs/\udce9": lambda: digit_samples((1, 8, 8))},
        )
        with served(application(explorer)) as address:
            (name,) = ask(f"{address}/api/networks")[1]
            about = f"{address}/api/network?name={quote(name)}"
            assert ask(about)[1]["classes"][0] == "caf\\udce9"
            shown = f"{address}/api/sample?network={quote(name)}&number=0&class"
            assert ask(f"{shown}=0")[1]["label"] == 0
            status, told, _ = ask(f"{shown}=17")
            assert (status, told["error"][:12]) == (400, "class must b")

    @pytest.mark.parametrize(
        ("path", "body", "message"),
        [
            (
                "look?network=a&name=me.png",
                b"not a picture",
                "me.png: it is not an image",
            ),
            ("look?network=a", b"", "empty"),
            ("look?network=b", b"x", "network must be"),
            ("look", b"x", "network is missing"),
            ("read?network=a", b"who", "not texts"),
            ("read?network=a", b"\xff", "UTF-8"),
            ("pose?look=0&target=1", None, "forgotten"),
            ("pose?look=1&target=-1", None, "whole number"),
            ("pose?look=1&target=10", None, "0..9"),
            ("decode?look=1", b'"1"', "could not|list of numbers|poses"),
            ("decode?look=1", b"{", "list of numbers"),
            ("decode?look=1", b"[1" + 400 * b"0" + b"]", "list of numbers"),
            ("compare?look=1&target=1&steps=1e9", None, "whole number"),
        ],
    )
    def test_what_is_wrong_is_told(
        self, address: str, path: str, body: bytes | None, message: str
    ) -> None:
        look = ask(f"{address}/api/sample?network=a&number=0")[1]["look"]
        status, told, _ = ask(
            f"{address}/api/{path.replace('look=1', f'look={look}')}", body
        )
        assert status == 400
        assert re.search(message, told["error"])

    def test_looks_of_others_are_kept(
        self, drawing: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One browser that drew for a while made the server forget what the others had
        drawn.
        """
        monkeypatch.setattr("torchcaps_lab.explore.explorer.MOST_LOOKS", 3)
        calls = _Calls(Explorer({"a": small()}))
        second = calls.look(drawing, {"network": "a"})["look"]
        past = {}
        for _ in range(5):
            past = {"instead": calls.look(drawing, {"network": "a", **past})["look"]}
        assert calls.pose(b"", {"look": second, "target": "1"})["target"] == 1
        assert len(calls.explorer._looks) == 2

    def test_a_page_of_an_earlier_server_gets_no_look_of_this_one(
        self, drawing: bytes
    ) -> None:
        first, second = (Explorer({"a": small()}).look("a", drawing) for _ in range(2))
        assert first != second

    def test_broken_picture(self, address: str, drawing: bytes) -> None:
        status, told, _ = ask(
            f"{address}/api/look?network=a&name=half.png", drawing[: len(drawing) // 2]
        )
        assert status == 400
        assert "cannot read the image half.png" in told["error"]

    def test_uploads_are_limited(self, address: str) -> None:
        status, told, _ = ask(f"{address}/api/look?network=a", bytes(MOST_BYTES + 1))
        assert status == 413
        assert "8 MB" in told["error"]

    def test_a_sender_that_hangs_up_is_no_error(self) -> None:
        async def hung_up() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        app = application(Explorer({"a": small()}))
        assert asyncio.run(_status(app, hung_up)) == 400

    def test_uploads_at_one_time_are_limited_together(self) -> None:
        """Each is within the limit and comes slowly; what is refused or broken off
        leaves its room to others.
        """

        async def try_all() -> list[list[int]]:
            app = application(Explorer({"a": small()}))
            rounds = []
            for _ in range(2):
                finish = asyncio.Event()
                senders = [_Slow(MOST_BYTES, finish) for _ in range(12)]
                tasks = [
                    asyncio.create_task(_status(app, sender)) for sender in senders
                ]
                for _ in range(100):
                    await asyncio.sleep(0)
                finish.set()
                rounds.append(sorted(await asyncio.gather(*tasks)))
            return rounds

        # Eight are read to their end, and are no pictures.
        assert asyncio.run(try_all()) == [[400] * 8 + [503] * 4] * 2

    def test_a_sender_that_stops_half_way_leaves_its_room_to_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("torchcaps_lab.explore.server.MOST_SECONDS", 0.05)

        async def try_all() -> list[list[int]]:
            app = application(Explorer({"a": small()}))
            rounds = []
            for _ in range(2):
                senders = [_Slow(MOST_BYTES, asyncio.Event()) for _ in range(8)]
                statuses = asyncio.gather(*(_status(app, sender) for sender in senders))
                rounds.append(await asyncio.wait_for(statuses, 30))
            return rounds

        assert asyncio.run(try_all()) == [[408] * 8] * 2

    def test_the_page_is_served_while_pictures_are_looked_at(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Fifty of them waited in all threads that there were for one network."""
        explorer = Explorer({"a": small()})
        looked = threading.Event()
        monkeypatch.setattr(explorer, "look", lambda *_: looked.wait())

        async def ask_all() -> int:
            app = application(explorer)
            sent = asyncio.Event()
            sent.set()
            uploads = [_status(app, _Slow(10, sent)) for _ in range(50)]
            tasks = [asyncio.create_task(upload) for upload in uploads]
            await asyncio.sleep(0.1)
            try:
                page = _status(app, asyncio.Event().wait, "GET", "/")
                return await asyncio.wait_for(page, 10)
            finally:
                looked.set()
                await asyncio.gather(*tasks)

        assert asyncio.run(ask_all()) == 200

    def test_other_sites_cannot_reach_it_by_a_name_of_theirs(
        self, address: str
    ) -> None:
        for name, status in (
            ("evil.example", 400),
            ("localhost:1", 200),
            ("[::1]:8765", 200),
        ):
            assert ask(f"{address}/api/networks", Host=name)[0] == status

    @pytest.mark.parametrize(
        ("header", "message", "status"),
        [
            *(("Sec-Fetch-Site", site, 403) for site in ("cross-site", "same-site")),
            *(("Sec-Fetch-Site", site, 200) for site in ("same-origin", "none")),
            *(
                ("Origin", origin, 403)
                for origin in (
                    "http://evil.example",
                    "http://127.0.0.1:1",
                    "null",
                    "http://[::1",
                )
            ),
            ("Origin", "{address}", 200),
        ],
    )
    def test_pages_of_other_sites_are_not_answered(
        self, address: str, drawing: bytes, header: str, message: str, status: int
    ) -> None:
        """They could have pictures decoded and looks forgotten, though not read the
        answers.

        Browsers send no Sec-Fetch-Site to a machine of the same network, whose address
        is plain http.
        """
        assert (
            ask(
                f"{address}/api/look?network=a",
                drawing,
                **{header: message.format(address=address)},
            )[0]
            == status
        )

    def test_a_link_to_the_page_is_followed_from_anywhere(self, address: str) -> None:
        assert ask(f"{address}/", **{"Sec-Fetch-Site": "cross-site"})[0] == 200

    def test_files_beside_the_page_are_not_served(self, address: str) -> None:
        for path in ("../server.py", "%2e%2e/server.py", "..%2fserver.py"):
            assert ask(f"{address}/{path}")[0] == 404


class TestToken:
    def test_nothing_is_answered_without_it(self, locked: str) -> None:
        for path in (
            "",
            "explore.js",
            "api/networks",
            "?token=",
            "?token=s3cre",
            "?token=s3crét",
            "api/none",
        ):
            status, told, headers = ask(f"{locked}/{quote(path, '/?=')}")
            assert (status, "set-cookie" in headers) == (401, False)
            assert b"with its token" in told
        port = locked.rpartition(":")[2]
        for cookie in (
            f"torchcaps-{port}=other",
            f"torchcaps-{port}",
            "torchcaps-1=s3cret",
        ):
            assert ask(f"{locked}/api/networks", Cookie=cookie)[0] == 401

    def test_it_is_kept_in_a_cookie(self, locked: str) -> None:
        status, _, headers = ask(f"{locked}/?token=s3cret")
        assert status == 200
        cookie, *attributes = headers["set-cookie"].split("; ")
        assert {*attributes} == {"Path=/", "HttpOnly", "SameSite=Strict"}
        assert ask(f"{locked}/api/networks", Cookie=cookie)[:2] == (200, ["a", "plain"])
        assert ask(f"{locked}/?token=wrong", Cookie=cookie)[0] == 401


class TestServe:
    @pytest.mark.parametrize(
        ("host", "hosts"),
        [
            ("127.0.0.1", ("127.0.0.1", "localhost", "[::1]", "::1")),
            ("127.0.0.2", ("127.0.0.2",)),
            ("0.0.0.0", ("*",)),
        ],
    )
    def test_other_machines_need_a_token(
        self,
        explorer: Explorer,
        monkeypatch: pytest.MonkeyPatch,
        host: str,
        hosts: tuple[str, ...],
    ) -> None:
        recorded: list[Any] = []
        messages: list[str] = []
        monkeypatch.setattr(
            "torchcaps_lab.explore.server.application",
            lambda *given: recorded.append(given) or application(*given),
        )
        monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: None)
        serve(explorer, host, port=0, ready=messages.append)
        _, allowed, token = recorded[0]
        assert allowed == hosts
        assert (token is None) == (host == "127.0.0.1")
        assert messages[0].partition("/?token=")[2] == (token or "")
        assert token is None or len(token) > 40

    def test_listens_at_loopback_only(
        self, explorer: Explorer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        listened: list[Any] = []
        monkeypatch.setattr(
            uvicorn.Server,
            "run",
            lambda self, sockets: listened.append(sockets[0].getsockname()),
        )
        messages: list[str] = []
        serve(explorer, port=0, ready=messages.append)
        host, port = listened[0]
        assert host == "127.0.0.1"
        assert messages == [f"http://127.0.0.1:{port}"]

    @pytest.mark.skipif(
        not socket.has_dualstack_ipv6(), reason="no IPv6 on this machine"
    )
    def test_all_addresses_are_those_of_both_kinds(
        self, explorer: Explorer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The name of a machine, which is printed, may stand for one of IPv4 alone."""
        reached: list[Any] = []

        def connect(server: Any, sockets: list[socket.socket]) -> None:
            port = sockets[0].getsockname()[1]
            for host in ("127.0.0.1", "::1"):
                with socket.create_connection((host, port), timeout=10):
                    reached.append(host)

        monkeypatch.setattr(uvicorn.Server, "run", connect)
        serve(explorer, "::", port=0)
        assert reached == ["127.0.0.1", "::1"]

    def test_a_port_that_is_taken(self, explorer: Explorer) -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as taken,
            pytest.raises(OSError, match="in use"),
        ):
            serve(explorer, port=taken.getsockname()[1])

    def test_command(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        tmp_path: Any,
    ) -> None:
        small().network.save_pretrained(tmp_path)
        monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: None)
        monkeypatch.setattr("torchcaps_lab.cli.exploring.has_screen", lambda: False)
        assert main(["explore", str(tmp_path), "--port", "0"]) == 0
        assert "torchcaps explore: http://127.0.0.1:" in capsys.readouterr().out
        assert main(["explore", str(tmp_path / "none")]) == 1


def test_uploads_of_any_kind_of_picture(explorer: Explorer) -> None:
    from PIL import Image

    for mode, kind in (("RGB", "JPEG"), ("RGBA", "PNG"), ("P", "GIF"), ("1", "BMP")):
        file = BytesIO()
        Image.new(mode, (40, 31)).save(file, kind)
        answer = explorer.answer(explorer.look("a", file.getvalue()))
        assert (answer["activations"]["predicted"] in range(10), answer["empty"]) == (
            True,
            True,
        )


def test_no_program_is_started_for_an_upload(explorer: Explorer) -> None:
    """Ghostscript executed the program that an EPS file is."""
    file = (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\n0 0 "
        b"20 20 rectfill\n%%EOF\n"
    )
    with pytest.raises(
        ValueError, match=r"me\.png: it is not an image of a kind that is read"
    ):
        explorer.look("a", file, "me.png")


def test_an_upload_with_damaged_exif_is_taken_as_it_is_stored(
    explorer: Explorer,
) -> None:
    """It was an error of the server."""
    from PIL import Image

    file = BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("L", (40, 31)).save(file, "JPEG", exif=exif)
    damaged = file.getvalue().replace(b"Exif\0\0MM", b"Exif\0\0M?")
    assert damaged != file.getvalue()
    assert explorer.answer(explorer.look("a", damaged))["activations"][
        "predicted"
    ] in range(10)


def test_enlarged_digits_are_sharp_enough_for_networks_of_mnist() -> None:
    """As blurred as they are when enlarged, every second one was misread."""
    classifier = Classifier.open("mnist/capsnet_small")
    digits = digit_samples((1, 28, 28))
    view = classifier.preprocess.evaluate(digits.inputs.float() / 255)
    with torch.no_grad():
        answers = classifier.network.encode(view.images).activation.argmax(1)
    assert (answers == digits.labels).float().mean() > 0.9


@pytest.fixture(scope="module")
def objects() -> Explorer:
    torch.manual_seed(0)
    small = {
        "image_shape": (3, 16, 16),
        "classes": 4,
        "channels": 4,
        "dim": 6,
    }
    network = create_model("slot_autoencoder", **small)
    classifier = Classifier(network, task="objects")
    samples = Shapes(size=16, most=3, count=20, tests=3)
    return Explorer({"objects": classifier}, {"objects": lambda: samples.test})


class TestTakenApart:
    """A network whose task shows images in its own way: slots, step by step."""

    def test_slots_after_each_step(self, objects: Explorer) -> None:
        shown = objects.answer(objects.sample("objects", number=1))["apart"]
        steps = shown["steps"] + 4
        assert [len(shown[name]) for name in ("painted", "drawn", "parts")] == [
            steps
        ] * 3
        assert [len(parts) for parts in shown["parts"]] == [4] * steps
        assert len(set(shown["drawn"])) == steps, "each step changes what is drawn"
        for shares in shown["shares"]:
            assert sum(shares) == pytest.approx(1, abs=1e-4)

    def test_as_trained_it_draws_what_the_network_draws(
        self, objects: Explorer, drawing: bytes
    ) -> None:
        shown = objects.answer(objects.look("objects", drawing))["apart"]
        network = objects._networks["objects"].network
        steps = shown["steps"]
        assert network.slots.routing.steps == steps == 5
        with torch.no_grad():
            classifier = objects._networks["objects"].classifier
            pixels = classifier.pixels(Image.open(BytesIO(drawing)), None)
            drawn = network.eval()(pixels[None]).reconstruction[0]
        assert pngs(drawn.clamp(0, 1)) == shown["drawn"][steps - 1]

    def test_what_is_told_of_the_network(self, objects: Explorer) -> None:
        told = objects.network("objects")
        assert (told["apart"], told["draws"], told["decodes"]) == (True, True, False)
        assert (told["routing"], told["steps"]) == ("SlotAttentionRouting", 5)

    def test_there_are_no_classes_to_ask_about(
        self, objects: Explorer, drawing: bytes
    ) -> None:
        look = objects.look("objects", drawing)
        for ask in (objects.routing, lambda look: objects.pose(look, 0)):
            with pytest.raises(ValueError, match="is of a picture without classes"):
                ask(look)

    def test_nothing_drawn(self, objects: Explorer) -> None:
        black = png(torch.zeros(3, 16, 16))
        assert objects.answer(objects.look("objects", black))["empty"]
