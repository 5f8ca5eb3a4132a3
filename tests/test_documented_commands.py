"""The commands that the documents show are commands that there are, with options that
there are.
"""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from recipes.__main__ import main as recipes_main
from torchcaps_lab.cli import COMMANDS
from torchcaps_lab.cli.parser import OptionParser
from torchcaps_lab.options.guess import Guess

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (
        *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")),
        *(*ROOT.glob("examples/*.yaml"), *ROOT.glob("torchcaps/pretrained/**/card.md")),
    )
    if not path.is_relative_to(
        ROOT / "docs" / "results" / "recipes"
    )  # those are what was typed then
)


class Parsed(Exception):
    """What is raised in place of doing it."""


def commands(text: str) -> list[list[str]]:
    """The arguments of each whole command that has some, in blocks, lines and comments,
    without runs and modules.
    """
    text = text.replace("\\\n", " ")
    blocks = "\n".join(re.findall(r"```\n(.*?)```", text, re.DOTALL))
    shown = re.findall(r"^(?:torchcaps|python -m) (.*)$", blocks, re.MULTILINE)
    shown += re.findall(r"`(?:torchcaps|python -m) ([^`\n]+)`", text)
    shown += re.findall(
        r"^#  +torchcaps (.*)$", text, re.MULTILINE
    )  # of a file of options
    whole = [
        re.sub(r"\s#.*", "", line)
        for line in shown
        if not re.search(r"\.\.\.|RECIPE|NAME|--(config|masks)$", line)
    ]
    results = [
        shlex.split(line)
        for line in whole
        if "--import" not in line and "--resume" not in line
    ]
    return [
        arguments
        for arguments in results
        if arguments[1:] and arguments[0] in (*COMMANDS, "recipes")
    ]


def test_finds_them() -> None:
    text = (
        "`torchcaps models x*`, `torchcaps train --config` and `torchcaps offers "
        "more`\n"
    )
    text += (
        "```\ntorchcaps train --data X \\\n  --run y   # so\npython -m recipes "
        "run x\n```\n"
    )
    assert commands(text) == [
        ["train", "--data", "X", "--run", "y"],
        ["recipes", "run", "x"],
        ["models", "x*"],
    ]
    assert commands(
        "# Three words.\n#   torchcaps train --run z\nrun: torchcaps\n"
    ) == [["train", "--run", "z"]]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_options_are_there(
    document: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parse = OptionParser.parse_args

    def parsed(self: OptionParser, *arguments: Any, **named: Any) -> None:
        parse(self, *arguments, **named)
        raise Parsed

    def begun(*arguments: Any, **named: Any) -> None:
        raise Parsed

    monkeypatch.setattr(OptionParser, "parse_args", parsed)
    monkeypatch.setattr("torchcaps_lab.training.run.train_with", begun)
    monkeypatch.setattr(
        "torchcaps_lab.training.RunFolder.unused", lambda folder: folder
    )
    monkeypatch.setattr("torchcaps_lab.cli.places.There.check", lambda *_: None)

    def guessed(path: str, _: Any) -> Guess:
        # The one folder of masks whose options are shown.
        data = (
            {"name": "masks", "root": path} if path == "things" else {"name": "Digits"}
        )
        return Guess({"data": data, "run": "runs/photos"}, {})

    monkeypatch.setattr("torchcaps_lab.cli.train.guess", guessed)
    # There is no run to start from.
    monkeypatch.setattr(
        "torchcaps_lab.options.guess.with_start",
        lambda given, options: options,
    )
    monkeypatch.chdir(ROOT)
    for name, *arguments in commands((ROOT / document).read_text(encoding="utf-8")):
        try:
            COMMANDS[name](arguments) if name in COMMANDS else recipes_main(arguments)
        except Parsed:
            continue
        except SystemExit as stop:  # of --help
            status = stop.code
        assert status == 0, (
            f"torchcaps {shlex.join([name, *arguments])}\n{capsys.readouterr().err}"
        )
