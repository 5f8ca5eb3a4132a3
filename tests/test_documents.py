"""What the documents show works."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def python_blocks(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_readme_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    blocks = python_blocks("README.md")
    assert len(blocks) >= 3
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["capsules"].activation.shape == (4, 10)
    assert names["capsules"].pose.shape == (4, 10, 16)
    assert names["routed"].assignment.shape == (4, 1152, 10)


def test_relative_links_of_the_documents_exist():
    for document in ("README.md", "CONTRIBUTING.md"):
        for link in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / document).read_text()):
            assert (ROOT / link).exists(), f"{document} links to {link}"
