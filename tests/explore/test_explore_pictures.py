"""The pictures of the page that the documents show."""

import shutil
import sys
import threading
from pathlib import Path

import pytest
from PIL import Image

from docs import explore_pictures
from docs.explore_pictures import VIEWS, main, served, view_of
from torchcaps import Classifier, create_model
from torchcaps_lab.explore import Explorer

QUESTIONS = "trec/text_pooled"

pytest.importorskip("uvicorn")


def test_each_network_belongs_to_a_picture() -> None:
    """Those that are shown where none are named make one picture each."""
    assert [view_of(Classifier.open(name)) for name in explore_pictures.SHOWN] == list(
        VIEWS
    )


def test_a_trouble_with_the_page_ends_its_server() -> None:
    """A thread that serves on would keep the command from ending."""
    explorer = Explorer(
        {"digits": Classifier(create_model("capsnet_digits", channels=4, types=2))}
    )

    def stumble() -> None:
        with served(explorer) as address:
            raise LookupError(f"no canvas at {address}")

    before = threading.active_count()
    with pytest.raises(LookupError, match="no canvas at http"):
        stumble()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "nowhere"),
        ("plain", "nothing to show of MatrixCapsNetTwin, which has no capsules"),
    ],
)
def test_networks_that_cannot_be_shown_are_a_short_error(
    name: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    create_model("matrixcapsnet_cnn").save_pretrained(tmp_path / "plain")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["explore_pictures", "--out", str(tmp_path), "--page", name]
    )
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("*.gif"))


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("chromium") is None,
    reason="there is no Chromium: apt-get install chromium",
)
def test_a_network_of_texts_is_pictured_with_a_question(tmp_path: Path) -> None:
    pytest.importorskip(
        "playwright.sync_api", reason="playwright, of the extra dev, drives the browser"
    )
    explore_pictures.write_pages(tmp_path, {QUESTIONS: Classifier.open(QUESTIONS)})
    (picture,) = tmp_path.iterdir()
    assert picture.name == "explore-words.png"
    with Image.open(picture) as shown:
        assert shown.width == 1280
