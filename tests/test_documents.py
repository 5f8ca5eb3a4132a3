"""What the documents show works."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import torchcaps as tc
from torchcaps_lab.data import Words
from torchcaps_lab.training.command_line import training_options

ROOT = Path(__file__).parent.parent


PROJECTS = [
    tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))
    for folder in (".", "lab")
]
EXTRAS = {
    project["project"]["name"]: project["project"]["optional-dependencies"].keys()
    for project in PROJECTS
}
"""The extras of both packages."""
PLACES = {".": "torchcaps", "./lab": "torchcaps-lab"}
"""The folders of a checkout that pip installs."""


DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    if "site" not in path.relative_to(ROOT).parts  # tests/test_site.py
)


def test_the_torch_that_is_asked_for_is_one() -> None:
    texts = [
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("pyproject.toml", *DOCUMENTS)
    ]
    assert (
        len(
            {
                version
                for text in texts
                for version in re.findall(r"torch>=([\d.]+)", text)
            }
        )
        == 1
    )


CODE = [
    path.relative_to(ROOT).as_posix()
    for package in ("torchcaps", "lab")
    for path in ROOT.glob(f"{package}/**/*.py")
    if "needing(" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("document", [*DOCUMENTS, *CODE])
def test_extras_to_install_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    named = re.findall(
        r"(?<![\w.-])(torchcaps-lab|torchcaps|\./lab|\.)\[([\w,-]+)\]['\" ]", text
    )
    for place, extras in named:
        package = PLACES.get(place, place)
        assert set(extras.split(",")) <= EXTRAS[package]


def python_blocks(document: str) -> list[str]:
    return re.findall(
        r"```python\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL
    )


@pytest.mark.parametrize(
    "document", [document for document in DOCUMENTS if python_blocks(document)]
)
def test_what_code_imports_is_there(document: str) -> None:
    """The guide is executed in a thorough run only."""
    for node in (
        node for block in python_blocks(document) for node in ast.walk(ast.parse(block))
    ):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(
            "torchcaps"
        ):
            exec(ast.unparse(node), {})


def trained(folder: Path) -> None:
    """A run ``runs/photos`` and an image ``new.jpg``, which the documents speak of."""
    network = tc.create_model("capsnet_digits", image_shape=(3, 16, 16), classes=2)
    network.save_pretrained(
        folder / "runs" / "photos" / "model", classes=["cat", "dog"]
    )
    Image.new("RGB", (40, 30), "gold").save(folder / "new.jpg")


def executed(
    document: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """The names that the code of a document defines, block after block."""
    monkeypatch.chdir(folder)
    trained(folder)
    names: dict[str, Any] = {}
    for block in python_blocks(document):
        exec(compile(block, document, "exec"), names)
    return names


def test_code_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = executed("README.md", tmp_path, monkeypatch)
    assert names["capsules"].activation.shape == (359, 10)
    assert names["capsules"].pose.shape == (359, 10, 16)
    assert (names["answers"] == names["digits"].test.labels).float().mean() > 0.85
    assert isinstance(names["model"], tc.CapsNet)
    assert names["prediction"].reconstruction.shape == (1, 3, 32, 32)
    assert set(names["answer"].lengths) == {"cat", "dog"}


def test_code_of_layers_and_networks_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = executed("docs/layers.md", tmp_path, monkeypatch)
    assert names["capsules"].activation.shape == (4, 10)
    assert names["capsules"].pose.shape == (4, 10, 16)
    assert names["loss"].isfinite()
    assert isinstance(names["model"], tc.CapsNet)
    assert names["prediction"].reconstruction.shape == (1, 3, 32, 32)


def test_code_of_interests_slots_and_series_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert executed("docs/interests.md", tmp_path, monkeypatch)["interests"].shape == (
        2,
        4,
        64,
    )
    assert executed("docs/slots.md", tmp_path, monkeypatch)["loss"].isfinite()
    assert executed("docs/series.md", tmp_path, monkeypatch)["network"].classes == 7
    assert executed("docs/segmentation.md", tmp_path, monkeypatch)["volumes"].axes == 3


def test_code_of_sets_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert executed("docs/sets.md", tmp_path, monkeypatch)["shares"].shape == (
        8,
        20,
        4,
        2,
    )


def test_code_of_layers_over_other_grids_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = executed("docs/layers.md", tmp_path, monkeypatch)
    assert names["phrases"].pose.shape == (4, 18, 16, 8)
    assert names["topics"].activation.shape == (4, 5)
    assert names["seen"].shape == (4, 18, 16)
    assert not names["seen"].all()


def test_code_of_using_a_trained_network_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = executed("docs/training.md", tmp_path, monkeypatch)["answer"]
    assert set(answer.lengths) == {"cat", "dog"}
    assert sum(answer.probabilities.values()) == pytest.approx(1)


def test_code_of_routings_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = executed("docs/routings.md", tmp_path, monkeypatch)
    torch.testing.assert_close(names["later"].pose, names["at_once"].pose)


def test_code_of_choosing_a_backend_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = executed("docs/speed.md", tmp_path, monkeypatch)
    assert names["given"].backend == "chunked"
    assert names["small"].backend == "naive"


def test_code_of_looking_inside_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = executed("docs/explaining.md", tmp_path, monkeypatch)
    assert names["routed"].assignment.shape == (4, 1152, 10)
    assert names["routed"].votes.dense().shape == (4, 1152, 10, 16)
    assert len(names["observation"].reconstructions) == len(names["selection"])
    assert {"reconstructions", "assignments"} <= {
        data["kind"] for data in names["shown"]
    }


@pytest.mark.thorough
def test_code_of_extending_runs(tmp_path: Path) -> None:
    """In a process of its own: what it registers is no concern of the other tests."""
    facts = """
assert choice.backend == "chunked" and "Laplace" in choice.reason
assert moments.variance.shape == (4, 10, 16)
assert layer(torch.randn(2, 288, 8)).activation.shape == (2, 10)
assert Brier()(torch.eye(3), torch.arange(3)) == 0
assert tc.list_routings().count("apart") == 1
known = tc.load_pretrained("mnist/efficient_capsnet").primary_caps.state_dict()
assert all(torch.equal(known[name], weight) for name, weight in fine.primary_caps.state_dict().items())
assert fine.config() == {"image_shape": [1, 28, 28], "classes": 4, "start": None, "frozen": True}
assert examination.figures["accuracy"] <= examination.figures["top_accuracy"] < 0.9
assert 0.3 < float(trainer.callback_metrics["val_accuracy"]) <= 1 and trainer.global_step == 20
assert isinstance(trainer.optimizers[0], torch.optim.SGD)
assert tc.Classifier.open("mine").classes == Digits().classes
assert (page.parent / "lengths.png").stat().st_size > 1000
assert '"kind": "lengths"' in (page.parent / "exhibits.json").read_text()
"""
    code = tmp_path / "my_parts.py"
    few = (
        "import "
        "torchcaps_lab.report.observe\n\ntorchcaps_lab.report.observe._SAMPLES = 4"
    )  # as in tests/conftest.py
    code.write_text("\n\n".join([few, *python_blocks("docs/extending.md"), facts]))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'lab'}"}
    done = subprocess.run(
        [sys.executable, code.name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_code_of_a_recipe_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recipes.kit.base.RECIPES", {})
    recipe = executed("docs/recipes.md", tmp_path, monkeypatch)["MyComparison"]()
    for settings in recipe.presets.values():
        for row in recipe.rows:
            training_options({"run": "x", **recipe.job(settings, row)[1]})


def test_code_of_the_explorer_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = executed("docs/explore.md", tmp_path, monkeypatch)
    assert names["again"].shape == (1, 10)
    assert not torch.equal(names["again"], names["look"].activation)


@pytest.mark.filterwarnings("ignore")
def test_code_of_attribution_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = executed("docs/attribution.md", tmp_path, monkeypatch)
    assert names["pixels"].shape == (4, 1, 16, 16)
    assert names["conductance"].shape == names["routing"].shape == (4, 12, 12)
    assert names["cam"].shape == (4, 1, 12, 12)


def test_code_of_poses_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = executed("docs/poses.md", tmp_path, monkeypatch)
    assert names["way"].shape == (4, 5, 1, 8, 8)
    assert names["loss"] < 1.5  # the variance of the shift is 2


def test_code_of_pretrained_networks_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = executed("docs/pretrained.md", tmp_path, monkeypatch)
    state = names["reader"].network.state_dict()
    assert all(
        torch.equal(value, state[name])
        for name, value in names["model"].state_dict().items()
    )


def test_code_of_words_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = Words.of(["a film that I shall see again", "a film that nobody should see"])
    small = {"word_dim": 8, "types": 2, "parts": 2, "pose_dim": 3}
    network = tc.create_model("text_encoder", vocabulary=len(words), classes=2, **small)
    network.save_pretrained(
        tmp_path / "runs" / "reviews" / "model",
        classes=["bad", "good"],
        reader={"name": "texts", "words": words.config()},
    )
    names = executed("docs/words.md", tmp_path, monkeypatch)
    assert names["shares"].shape == (1, 7, 2)


def test_objects_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = executed("docs/objects.md", tmp_path, monkeypatch)
    assert names["capsules"].pose.shape == (2, 7, 64)
    assert names["more"].pose.shape == (2, 11, 64)
    assert names["shapes"].test.inputs.shape == (10, 3, 32, 32)


def test_no_code_is_left_unexecuted() -> None:
    """The guide's is executed by its own tests, CONTRIBUTING's by those of a stranger's
    file.
    """
    with_code = {
        document
        for document in DOCUMENTS
        if python_blocks(document) and "guide/" not in document
    }
    pages = (
        "attribution",
        "explaining",
        "explore",
        "extending",
        "first-steps",
        "interests",
        "layers",
        "objects",
        "poses",
        "pretrained",
        "recipes",
        "routings",
        "segmentation",
        "series",
        "sets",
        "slots",
        "speed",
        "training",
        "words",
    )
    assert with_code == {
        "README.md",
        "CONTRIBUTING.md",
        *(f"docs/{page}.md" for page in pages),
    }


def accidental_lists(page: str) -> list[str]:
    """The lines of paragraphs that Markdown shows as the start of a numbered list."""
    lines = re.sub(r"```.*?```", "", page, flags=re.DOTALL).splitlines()
    return [
        line
        for before, line in pairwise(lines)
        if re.match(r"1[.)] ", line)
        and before
        and not before.startswith((" ", "#", "|", "-"))
    ]


def test_no_number_at_the_start_of_a_line_begins_a_list() -> None:
    assert accidental_lists("Lengths agree by about\n1. But they shrink.")
    assert not accidental_lists("Two steps:\n\n1. Assign.\n2. Move.")
    for document in DOCUMENTS:
        page = (ROOT / document).read_text(encoding="utf-8")
        assert not accidental_lists(page), document


def anchors(document: Path) -> set[str]:
    """The names that headings can be linked by, as GitHub makes them."""
    headings = re.findall(
        r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE
    )
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in headings
    }


@pytest.mark.parametrize("document", DOCUMENTS)
def test_relative_links_of_the_documents_exist(document: str) -> None:
    place = ROOT / document
    text = re.sub(r"```.*?```", "", place.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(
        r"\]\((?!https?:)([^)\s]+)\)|<img src=\"(?!https?:)([^\"]+)\"", text
    ):
        path, _, anchor = "".join(link).partition("#")
        target = place.parent / path if path else place
        assert target.exists(), f"{document} links to {path}"
        assert not anchor or anchor in anchors(target), (
            f"{document} links to {path}#{anchor}"
        )


def test_every_document_is_reached_from_the_readme() -> None:
    reached = set()
    todo = [ROOT / "README.md"]
    while todo:
        document = todo.pop().resolve()
        if document.suffix == ".md" and document not in reached:
            reached.add(document)
            links = re.findall(
                r"\]\((?!https?:)([^)#\s]+)", document.read_text(encoding="utf-8")
            )
            todo += [document.parent / link for link in links]
    assert {path.relative_to(ROOT.resolve()).as_posix() for path in reached} == set(
        DOCUMENTS
    )
