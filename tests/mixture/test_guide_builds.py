"""The guide runs, prints what it says it prints, and draws the pictures that it
shows.
"""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
CHAPTERS = sorted(GUIDE.glob("[0-9]*.md"))
LINK = re.compile(r"\]\((?!http)([^)#]+)\)")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: the guide sets matplotlib up."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )


def seconds() -> float:
    """Processor time of the processes that have ended: what else the machine does is
    not counted.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def pictures(document: Path) -> list[str]:
    return [
        link
        for link in LINK.findall(document.read_text())
        if link.startswith("pictures/")
    ]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pictures made anew."""
    folder = tmp_path_factory.mktemp("pictures")
    start = seconds()
    # Chapters 1 and 4 show a start that leaves clusters the same.
    same = [
        f"-Wignore:{estimator} has clusters that are the same"
        for estimator in ("BinomialMixture", "SoftKMeans")
    ]
    done = python("-Werror", *same, "-m", "docs.guide", "--pictures", str(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [chapter.name for chapter in CHAPTERS]
    assert seconds() - start < 180
    return folder


@pytest.mark.thorough
def test_every_picture_is_made_and_shown(built: Path) -> None:
    shown = {Path(link).name for chapter in CHAPTERS for link in pictures(chapter)}
    assert {path.name for path in built.iterdir()} == shown
    for name in shown:
        committed = GUIDE / "pictures" / name
        assert committed.stat().st_size < 150_000, name
        with Image.open(committed) as old, Image.open(built / name) as new:
            assert old.size == new.size, (
                f"{name} is not of this guide: run python -m docs.guide"
            )
            colours = new.convert("RGB").getcolors(1 << 20)
            assert colours is not None
            assert len(colours) > 10, f"{name} is empty"


@pytest.mark.thorough
def test_the_animation_moves(built: Path) -> None:
    with Image.open(built / "routing.gif") as image:
        frames = image.n_frames
        first = image.convert("RGB").tobytes()
        image.seek(frames - 1)
        assert frames >= 6
        assert image.convert("RGB").tobytes() != first


def test_links_lead_somewhere() -> None:
    for document in (GUIDE / "README.md", *CHAPTERS):
        for link in LINK.findall(document.read_text()):
            assert (GUIDE / link).exists(), f"{document.name} links to {link}"
    contents = LINK.findall((GUIDE / "README.md").read_text())
    assert [link for link in contents if link.endswith(".md")] == [
        chapter.name for chapter in CHAPTERS
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("chapter", "complaint"),
    [
        ("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n", "line 2 prints"),
        ("```python\nprint('unexpected')\n```\n\nText.\n", "line 2 prints"),
        ("\n\n```python\n1 / 0\n```\n", "line 4, in <module>"),
        ("```python\nprint(1 + 1)\n```\n\n```text\n2\n```\n", None),
    ],
    ids=["other-output", "silent-output", "error", "good"],
)
def test_a_wrong_chapter_fails(
    tmp_path: Path, chapter: str, complaint: str | None
) -> None:
    path = tmp_path / "01-wrong.md"
    path.write_text(chapter)
    done = python(
        "-c",
        "from pathlib import Path; from docs.guide.__main__ import run; "
        f"run(Path({str(path)!r}))",
    )
    assert (done.returncode == 0) == (complaint is None), done.stderr
    assert complaint is None or complaint in done.stderr
