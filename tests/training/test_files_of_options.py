"""A file of options is read once, into plain values; what these name is looked up, and
never imported or called.
"""

import sys
from itertools import product
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.hostile import harmless, texts, watched
from tests.runs import status
from torchcaps_lab.cli.plugins import import_named
from torchcaps_lab.options.reading import as_yaml, parsed, read_options
from torchcaps_lab.training.command_line import training_options

SMALL = {
    "data": "Digits",
    "model": "capsnet_digits",
    "model_args": {"channels": 4, "types": 2, "decoder_hidden": None},
    "epochs": 1,
    "report": False,
    "trainer": {"accelerator": "cpu"},
}


def shell(mark: Path) -> dict:
    return {
        "name": "subprocess.Popen",
        "args": ["touch", str(mark)],
    }


def system(mark: Path) -> str:
    return f"{{name: os.system, command: touch {mark}}}"


HOSTILE = {
    "optimizer": lambda mark: {
        "optimizer": {
            "name": "os.system",
            "command": f"touch {mark}",
        }
    },
    "optimizer, after an invalid date": lambda mark: {
        "optimizer": (f"{{name: 2001-99-99, name: os.system, command: touch {mark}}}")
    },
    "optimizer, with a tab": lambda mark: {
        "optimizer": system(mark).replace("name: ", "name:\t")
    },
    "optimizer, after a byte order mark": lambda mark: {
        "optimizer": f"\n\ufeff{system(mark)}"
    },
    "optimizer, as text": lambda mark: {"optimizer": "os.system"},
    "optimizer, as YAML in text": lambda mark: {
        "optimizer": yaml.safe_dump(shell(mark))
    },
    "optimizer, in quotes in text": lambda mark: {"optimizer": '"os.system"'},
    "optimizer, with a tag in text": lambda mark: {"optimizer": "!!str os.system"},
    "optimizer, with a dot": lambda mark: {"optimizer.name": "os.system"},
    "optimizer, by another module": lambda mark: {
        "optimizer": {"name": "torchcaps_lab.data.base.os.system"}
    },
    "optimizer, of another package by a known name": lambda mark: {
        "optimizer": "hostile_module.Adam"
    },
    "argument of the optimizer": lambda mark: {
        "optimizer": {"name": "Adam", "lr": shell(mark)}
    },
    "argument without a class": lambda mark: {"optimizer": {"lr": shell(mark)}},
    "scheduler": lambda mark: {"scheduler": shell(mark)},
    "data": lambda mark: {"data": shell(mark)},
    "data in data": lambda mark: {"data": {"name": "Pairs", "data": shell(mark)}},
    "data in data, with a tab": lambda mark: {
        "data": {"name": "Pairs", "data": "{name:\tevilmod.X}"}
    },
    "data that is a routing": lambda mark: {"data": "torchcaps.routing.EMRouting"},
    "task": lambda mark: {"task": shell(mark)},
    "routing": lambda mark: {"routing": shell(mark)},
    "loss": lambda mark: {"loss": {"name": "MarginLoss", "present": shell(mark)}},
    "trainer.strategy": lambda mark: {"trainer": {"strategy": shell(mark)}},
    "trainer from a file": lambda mark: {"trainer": str(mark)},
    "another file": lambda mark: {"config": str(mark)},
    "another file, in a list": lambda mark: {"config": [str(mark)]},
    "preprocess": lambda mark: {"preprocess": {"shift": shell(mark)}},
    "epochs": lambda mark: {"epochs": shell(mark)},
    "unknown option": lambda mark: {"surprise": shell(mark)},
    "name that is a list": lambda mark: {"data": {"name": ["os", "system"]}},
}
"""Options that no file may have."""

PLAIN = {
    "model_args": lambda mark: {"model_args": {"channels": shell(mark)}},
    "model_args, deep": lambda mark: {"model_args": {"a": [{"b": [[shell(mark)]]}]}},
    "model_args, YAML in text": lambda mark: {
        "model_args": {"a": yaml.safe_dump(shell(mark))}
    },
    "trainer.extra": lambda mark: {"trainer": {"extra": {"logger": shell(mark)}}},
    "function of the scheduler": lambda mark: {
        "scheduler": {"name": "LambdaLR", "lr_lambda": "os._exit"}
    },
}
"""Options that are plain values to whoever takes them: nothing looks for a class in
them.
"""


def write(path: Path, options: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(options))
    return path


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_options_are_refused(kind: str, tmp_path: Path) -> None:
    config = write(
        tmp_path / "config.yaml", {**SMALL, **HOSTILE[kind](tmp_path / "mark")}
    )
    with watched() as seen, pytest.raises(ValueError, match=r"[a-z]"):
        training_options(read_options(config))
    assert not seen


@pytest.mark.parametrize("kind", [*HOSTILE, *PLAIN])
@pytest.mark.parametrize("command", ["--config", "--resume", "evaluate", "explain"])
def test_no_command_starts_or_imports_what_a_file_names(
    kind, command, tmp_path, capsys, monkeypatch
) -> None:
    mark = tmp_path / "mark"
    run = tmp_path / "run"
    for name in ("hostile_module", "evilmod"):
        (tmp_path / f"{name}.py").write_text(
            f"open({str(mark)!r}, 'w')\nclass Adam: pass\nclass X: pass\n"
        )
    monkeypatch.chdir(tmp_path)
    options = {**SMALL, **{**HOSTILE, **PLAIN}[kind](mark)}
    config = write(run / "config.yaml", options)
    arguments = {
        "--resume": ["train", "--resume", str(run)],
        "--config": ["train", "--config", str(config)],
    }
    words = arguments.get(command, [command, str(run)])
    if command == "--config":
        words += ["--run", str(tmp_path / "new")]
    with watched(imports=False) as seen:
        assert status(*words) != 0
    assert not seen
    assert not mark.exists()
    assert not (tmp_path / "new").exists()
    assert not {"hostile_module", "evilmod"} & set(sys.modules)
    capsys.readouterr()


@settings(max_examples=40)
@given(text=texts(Path("mark")))
def test_no_text_imports_or_calls_what_is_in_no_table(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert harmless(text, tmp_path_factory.getbasetemp() / "config.yaml")


@given(
    value=st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**40), 2**40)
        | st.floats(allow_nan=False)
        | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text(min_size=1), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
@settings(max_examples=60)
def test_what_is_written_is_read_back(
    value, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.yaml"
    path.write_text(as_yaml({"value": value}), encoding="utf-8")
    assert read_options(path) == {"value": value}


@pytest.mark.parametrize(
    "command",
    [
        ["train", "--config", "{}/config.yaml", "--run", "{}/new"],
        ["train", "--resume", "{}"],
        ["evaluate", "{}"],
    ],
)
def test_a_file_imports_nothing_by_itself(
    command, tmp_path, capsys, monkeypatch
) -> None:
    module = tmp_path / "hostile_caps_a.py"
    module.write_text(f"open({str(tmp_path / 'mark')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "run" / "config.yaml", {**SMALL, "import": [str(module)]})
    assert status(*[part.format(tmp_path / "run") for part in command]) != 0
    assert f"if you trust them, add --import {module}" in capsys.readouterr().err
    assert not (tmp_path / "mark").exists()
    assert "hostile_caps_a" not in sys.modules


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2]",
        "just text",
        "{a: [",
        "\x00",
        "a: !!python/object/apply:os.system [touch x]",
        "[" * 5000,
        "a: &a [*a]",
        "model_args: &a {b: *a}",
        "x: " + "[" * 300 + "]" * 300,
        "import: 3",
        "import: [1]",
        "a: !!timestamp '[]'",
        "a: !!bool x",
        "a: !!binary 4",
        "a: !!set {x}",
        "a: !!map [x]",
        "a: !!seq {x: y}",
        "a: !!int [x]",
        "a: !!int x",
        "? {a: 1}\n: 2",
    ],
)
def test_what_is_no_file_of_options(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"config\.yaml"):
        read_options(tmp_path / "config.yaml")


def test_a_file_that_grows_when_it_is_read(tmp_path: Path) -> None:
    rows = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    (tmp_path / "config.yaml").write_text("\n".join(rows))
    with pytest.raises(ValueError, match="holds more than options do"):
        read_options(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_bytes(b"#" * 2**20 + b"\n\n")
    with pytest.raises(ValueError, match="bytes, at most 1,048,576 are read"):
        read_options(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    "text", ["epochs: 3\nepochs: 1\n", "data: {name: Digits, name: MNIST}\n"]
)
def test_a_name_that_stands_twice(text: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(
        ValueError, match=r"c\.yaml is not YAML: (epochs|name) occurs twice"
    ):
        read_options(tmp_path / "c.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("2020-01-01", "2020-01-01"),
        ("1_0", 10),
        ("010", "010"),
        ("-.5", -0.5),
        ("1e", "1e"),
        (".inf", float("inf")),
        ("'1'", "1"),
        ("on", True),
    ],
)
def test_values(text: str, value: object, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"value: {text}\n")
    assert read_options(tmp_path / "c.yaml") == {"value": value}


def test_a_folder_of_a_run_may_begin_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    options = training_options({"data": "Digits", "run": "~/mine"})
    assert options.run == "/home/me/mine"


@pytest.mark.parametrize("run", [["a"], {"a": 1}, True])
def test_a_folder_is_a_text(run: object) -> None:
    with pytest.raises(ValueError, match="run must be"):
        training_options({"data": "Digits", "run": run})


@pytest.mark.parametrize(
    ("options", "name", "expected"),
    [
        (
            {"data": {"name": "ImageFolder", "root": "my.photos", "size": [8, 8]}},
            "data.size",
            [8, 8],
        ),
        (
            {"optimizer": {"name": "torch.optim.SGD", "lr": 1}},
            "optimizer.lr",
            1.0,
        ),
        (
            {"scheduler": {"name": "ReduceLROnPlateau", "mode": "min"}},
            "scheduler.mode",
            "min",
        ),
        (
            {
                "scheduler": {"name": "ExponentialLR", "gamma": 0.5},
                "task": "SeveralLabels",
            },
            "task.name",
            "several_labels",
        ),
        (
            {
                "routing": {
                    "name": "torchcaps.routing.EMRouting",
                    "steps": 2,
                }
            },
            "routing.name",
            "em",
        ),
        ({"routing": "kmeans"}, "routing.name", "kmeans"),
        ({"routing": "InnerProductKMeansRouting"}, "routing.name", "kmeans"),
        (
            {"data": {"name": "Pairs", "data": {"name": "Digits", "size": 4}}},
            "data.data.size",
            4,
        ),
        (
            {
                "trainer.precision": "32-true",
                "trainer": {"extra": {"max_time": "00:01:00:00"}},
            },
            "trainer.extra.max_time",
            "00:01:00:00",
        ),
    ],
)
def test_what_options_take_is_taken(
    options: dict, name: str, expected: object, tmp_path: Path
) -> None:
    actual = training_options(
        read_options(write(tmp_path / "config.yaml", {**SMALL, **options}))
    ).plain()
    for part in name.split("."):
        actual = actual[part]
    assert actual == expected


@pytest.mark.parametrize(
    "example", sorted((Path(__file__).parents[2] / "examples").glob("*.yaml")), ids=str
)
def test_what_a_run_writes_down_is_taken_back(example: Path, tmp_path: Path) -> None:
    options = training_options(read_options(example)).plain()
    assert (
        training_options(
            read_options(write(tmp_path / "written.yaml", options))
        ).plain()
        == options
    )


def test_what_was_imported_by_name_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "friendly_caps.py"
    module.write_text(
        "from torchcaps_lab.data import Digits\n\nclass Friendly(Digits):\n    pass\n"
    )
    options = {**SMALL, "import": [str(module)], "data": "friendly_caps.Friendly"}
    config = write(tmp_path / "config.yaml", options)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    with pytest.raises(ValueError, match=f"add --import {module}"):
        read_options(config)
    import_named(str(module))
    actual = training_options(read_options(config))
    assert actual.plain()["import"] == [str(module)]
    assert actual.plain()["data"]["name"] == "Friendly"
    assert type(actual.make().subject.data).__name__ == "Friendly"


def test_text_that_looks_like_a_number_stays_text_where_it_is_written_down() -> None:
    """A folder or a class may be called 1e3; every text of up to three of these signs
    is read as it was written.
    """
    short = [
        "".join(signs)
        for length in range(1, 4)
        for signs in product("01e_.+-", repeat=length)
    ]
    names = [
        *short,
        "1:30",
        "0x1f",
        "0b1",
        "~",
        "null",
        "no",
        "12E5",
        ".inf",
        "2001-01-01",
        "=",
        "<<",
        "1e+05",
    ]
    options: dict[str, object] = {
        "classes": names,
        "weights": dict.fromkeys(names, 1.5),
        "lr": 1e-8,
        "epochs": 3,
    }
    assert parsed(as_yaml(options), "the options") == options
