"""``--import`` and entry points."""

import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml

from torchcaps.routing import list_routings
from torchcaps.routing.base import ROUTINGS
from torchcaps_lab.cli import main, plugins
from torchcaps_lab.cli.plugins import import_named, named_imports

ROUTING = """
from torchcaps.routing import MeanRouting, register_routing

@register_routing("{name}")
class {name}(MeanRouting):
    pass
"""


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """What a test wrote, imported and registered is gone afterwards; libraries stay,
    whose objects others hold.
    """
    modules = set(sys.modules)
    routings = dict(ROUTINGS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "").is_relative_to(
            tmp_path
        ):
            del sys.modules[name]
    ROUTINGS.clear()
    ROUTINGS.update(routings)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_caps.py").write_text(ROUTING.format(name="own_routing_a"))
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["--import", "own_caps"],
        ["--import=own_caps", "--json", "--import", "own_caps.py"],
    ],
)
def test_every_command_imports_first(own, arguments, capsys):
    assert main(["models", "capsnet_digits", *arguments]) == 0
    assert "own_routing_a" in list_routings()
    if "--json" not in arguments:
        assert "own_routing_a" in capsys.readouterr().out


def test_from_another_folder_by_path(own, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert main(["models", "--import", "own_caps"]) == 1
    assert main(["models", "capsnet_digits", "--import", str(own / "own_caps.py")]) == 0
    assert sys.modules["own_caps"].own_routing_a is ROUTINGS["own_routing_a"]


def test_a_file_imports_from_beside_it(own, tmp_path_factory, monkeypatch):
    (own / "more_caps.py").write_text("from own_caps import own_routing_a")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert (
        import_named(str(own / "more_caps.py")).own_routing_a
        is ROUTINGS["own_routing_a"]
    )


def test_arguments_are_told_apart():
    arguments = ["runs/x", "--import", "a.b", "--json", "--import=c/d.py", "image.png"]
    assert named_imports(arguments) == ["a.b", str(Path("c/d.py").absolute())]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--import"], "--import needs the name of a module"),
        (
            ["--import", "no_such_module_here"],
            "--import no_such_module_here: no such module",
        ),
        (["--import", "nowhere.py"], "nowhere.py: there is no such file"),
        (["--import", "broken_caps"], "--import broken_caps: ZeroDivisionError"),
        (["--import", "needs_more"], "needs_more: ModuleNotFoundError.*not_installed"),
        (["--import", "json.py"], "json.py: another module has the name 'json'"),
        (["--import", "twice_caps"], "twice_caps: .*'mean'"),
    ],
)
def test_what_cannot_be_imported_is_named(own, arguments, message, capsys):
    (own / "broken_caps.py").write_text("1 / 0")
    (own / "needs_more.py").write_text("import not_installed")
    (own / "json.py").write_text("")
    (own / "twice_caps.py").write_text(ROUTING.format(name="mean"))
    assert main(["models", *arguments]) == 1
    error = capsys.readouterr().err
    assert re.search(message, error), error


def test_a_file_that_fails_can_be_mended(own):
    (own / "mended.py").write_text("raise RuntimeError('not yet')")
    with pytest.raises(ValueError, match="not yet"):
        import_named(str(own / "mended.py"))
    (own / "mended.py").write_text("answer = 42")
    assert import_named(str(own / "mended.py")).answer == 42


class TestEntryPoints:
    def test_installed_plugins_need_no_option(self, own, monkeypatch, capsys):
        monkeypatch.syspath_prepend(own)
        point = EntryPoint("mine", "own_caps", plugins.GROUP)
        monkeypatch.setattr(
            plugins,
            "entry_points",
            lambda group: [point] if group == "torchcaps.plugins" else [],
        )
        assert main(["models", "capsnet_digits"]) == 0
        assert "own_routing_a" in capsys.readouterr().out

    def test_a_broken_one_is_named(self, monkeypatch, capsys):
        point = EntryPoint("mine", "no_such_module_here", plugins.GROUP)
        monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
        assert main(["models"]) == 1
        assert (
            "the plug-in mine (no_such_module_here) cannot be imported"
            in capsys.readouterr().err
        )


def test_options_of_a_file_name_imports_that_the_command_line_names_too(
    own, tmp_path, capsys, monkeypatch
):
    config = tmp_path / "options.yaml"
    options = {
        "import": [str(own / "own_caps.py")],
        "data": "Digits",
        "epochs": 1,
        "routing": "own_caps.own_routing_a",
    }
    small = {"channels": 4, "types": 2, "decoder_hidden": None}
    options |= {
        "model": "capsnet_digits",
        "model_args": small,
        "report": False,
        "trainer": {"accelerator": "cpu"},
    }
    config.write_text(yaml.safe_dump(options))
    command = ["train", "--config", str(config), "--run", str(tmp_path / "run")]
    assert main(command) == 1
    assert f"add --import {own / 'own_caps.py'}" in capsys.readouterr().err
    assert main([*command, "--import", "own_caps.py"]) == 0
    recorded = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert recorded["import"] == options["import"]
    opened = []
    monkeypatch.setattr(
        "torchcaps_lab.explore.serve", lambda explorer, *rest: opened.append(explorer)
    )
    assert main(["explore", str(tmp_path / "run"), "--import", "own_caps.py"]) == 0
    assert opened[0].answer(opened[0].sample(str(tmp_path / "run"), 7))["label"] == 7


@pytest.mark.parametrize(
    "command", ["train", "evaluate", "predict", "explain", "models"]
)
def test_help_says_that_it_executes(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    output = " ".join(capsys.readouterr().out.split())
    assert "--import" in output
    assert "execute" in output
