"""The documentation site: every public name has its place, examples and notebooks run,
and it is built strictly.
"""

import doctest
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
import torch
from nbclient import NotebookClient

import torchcaps
import torchcaps as tc
import torchcaps_lab
from docs.site.linked import missing
from tests.api_surface import offered, public_modules

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "site" / "api"
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def public_classes() -> dict[str, type]:
    """Each public class of ours, by the innermost package that has it."""
    results: dict[type, str] = {}
    for module in sorted(
        public_modules(), key=lambda module: -module.__name__.count(".")
    ):
        for name in offered(module):
            thing = getattr(module, name)
            if inspect.isclass(thing) and thing.__module__.split(".")[0] in (
                "torchcaps",
                "torchcaps_lab",
            ):
                results.setdefault(thing, f"{module.__name__}.{name}")
    return {path: thing for thing, path in results.items()}


CLASSES = public_classes()
PUBLIC = [*CLASSES.values()]


class TestReference:
    def test_every_public_package_has_a_page(self) -> None:
        """The directive of a page writes an entry for each public name; the build warns
        of any that is missing.
        """
        described = [
            name
            for page in PAGES.glob("*.md")
            for name in re.findall(
                r"^\.\. public:: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE
            )
        ]
        assert sorted(described) == sorted(
            module.__name__ for module in public_modules()
        )

    @pytest.mark.slow  # builds the whole site
    def test_site_is_built_strictly_and_has_every_public_name(
        self, tmp_path: Path
    ) -> None:
        from sphinx.util.inventory import InventoryFile

        command = [
            sys.executable,
            "-m",
            "sphinx",
            "-W",
            "--keep-going",
            "-q",
            "-c",
            "docs/site",
            ".",
            str(tmp_path),
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        inventory = InventoryFile.loads((tmp_path / "objects.inv").read_bytes(), uri="")
        assert (tmp_path / "_static" / "site.css").is_file()
        names = {
            name
            for kind, entries in inventory.data.items()
            if kind.startswith("py:")
            for name in entries
        }
        public = {
            f"{module.__name__}.{name}"
            for module in public_modules()
            for name in module.__all__
        }
        assert public <= names


def test_a_linked_file_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "there.css").touch()
    links = (
        '<link href="there.css?v=1"><a href="#a"></a><a '
        'href="https://a.org/x"></a><img src="gone%20one.png">'
    )
    (tmp_path / "page.html").write_text(links)
    assert list(missing(tmp_path)) == [(Path("page.html"), "gone%20one.png")]


class TestExamples:
    def test_every_public_class_has_one(self) -> None:
        without = sorted(
            path
            for path, thing in CLASSES.items()
            if ">>> " not in (thing.__doc__ or "")
        )
        assert not without, f"public classes whose docstring has no Example: {without}"

    @pytest.mark.parametrize("path", sorted(CLASSES))
    def test_runs(
        self, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        torch.manual_seed(0)
        docstring = CLASSES[path].__doc__ or ""
        test = doctest.DocTestParser().get_doctest(
            docstring, {"torch": torch, "tc": tc}, path, None, None
        )
        messages: list[str] = []
        outcome = doctest.DocTestRunner(verbose=False).run(test, out=messages.append)
        assert outcome.failed == 0, "".join(messages)

    @pytest.mark.parametrize("package", [torchcaps, torchcaps_lab])
    def test_those_of_other_names_run(
        self, package: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        messages: list[str] = []
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if info.name.endswith("__main__"):
                continue
            module = importlib.import_module(info.name)
            for test in doctest.DocTestFinder().find(module, globs={}):
                if getattr(module, test.name.rpartition(".")[2], None) in PUBLIC:
                    continue
                torch.manual_seed(0)
                test.globs = {"torch": torch, "tc": tc}
                doctest.DocTestRunner(verbose=False).run(test, out=messages.append)
        assert not messages, "".join(messages)


def code_of(document: str) -> str:
    """The Python of a Markdown file."""
    return "".join(
        re.findall(
            r"```python\n(.*?)```",
            (ROOT / document).read_text(encoding="utf-8"),
            re.DOTALL,
        )
    )


class TestFirstSteps:
    def test_page_of_the_site_runs(self) -> None:
        names: dict[str, Any] = {}
        exec(code_of("docs/site/index.md"), names)
        assert names["capsules"].activation.shape == (4, 10)

    def test_first_steps_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        network = tc.create_model("capsnet_digits", image_shape=(3, 16, 16), classes=2)
        network.save_pretrained("runs/photos", classes=["cat", "dog"])
        from PIL import Image

        Image.new("RGB", (40, 30), "gold").save("new.jpg")
        names: dict[str, Any] = {}
        exec(code_of("docs/first-steps.md"), names)
        assert names["capsules"].pose.shape == (4, 10, 16)
        assert names["loss"] < names["before"]
        assert names["prediction"].reconstruction.shape == (2, 1, 8, 8)
        assert names["answer"].classes[0] in ("cat", "dog")


@pytest.fixture(scope="module")
def kernel() -> Iterator[NotebookClient]:
    """One kernel for all notebooks, which begin with empty names: most of their time is
    the import of torch.
    """
    client = NotebookClient(
        nbformat.v4.new_notebook(), timeout=600, kernel_name="python3"
    )
    client.create_kernel_manager()
    with client.setup_kernel(
        cwd=str(ROOT),
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'lab'}"},
    ):
        yield client


def slow_if_long(path: Path) -> Any:
    """The others take longer."""
    return pytest.param(
        path,
        id=path.stem,
        marks=[] if path.stem.startswith("2") else [pytest.mark.slow],
    )


class TestNotebooks:
    def test_there_are_some(self) -> None:
        assert len(NOTEBOOKS) >= 3

    @pytest.mark.thorough
    @pytest.mark.parametrize("path", [slow_if_long(path) for path in NOTEBOOKS])
    def test_runs_and_shows_pictures(self, path: Path, kernel: NotebookClient) -> None:
        notebook = nbformat.read(path, as_version=4)
        assert not any(cell.get("outputs") for cell in notebook.cells), (
            "notebooks are kept without outputs"
        )
        kernel.nb = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell("%reset -f"), *notebook.cells]
        )
        kernel.reset_execution_trackers()
        for place, cell in enumerate(kernel.nb.cells):
            kernel.execute_cell(cell, place)  # raises what the cell raises
        shown = [
            output for cell in kernel.nb.cells for output in cell.get("outputs", [])
        ]
        assert sum("image/png" in output.get("data", {}) for output in shown) >= 3
        assert not any(output.get("name") == "stderr" for output in shown)

    @pytest.mark.thorough
    def test_what_is_told_of_clusters_and_faces(self) -> None:
        """The exercise with four centres runs, and the nose is the part that stays
        divided.
        """
        (path,) = (path for path in NOTEBOOKS if path.stem.startswith("2"))
        cells = [
            cell.source
            for cell in nbformat.read(path, as_version=4).cells
            if cell.cell_type == "code"
        ]
        code = (
            "\n".join(cells)
            .replace("%matplotlib inline", "")
            .replace("points[[0, 1, 2]]", "points[[0, 1, 2, 3]]")
        )
        names: dict[str, Any] = {}
        exec(code, names)
        names["plt"].close("all")
        assert names["moments"].mean.shape == (1, 4, 2)
        routed = (
            names["tc"]
            .create_routing("euclidean", steps=4)
            .bind(2, 2)(names["vote"](names["upright"]))
        )
        shares = dict(
            zip(names["parts"], routed.assignment[0, :, 0].tolist(), strict=True)
        )
        assert shares.pop("nose") == pytest.approx(0.5, abs=0.01)
        assert min(shares.values()) > 0.95
