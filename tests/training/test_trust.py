"""Item 13: a file of options names what it may name, and nothing else is imported or called for it."""

import sys
from pathlib import Path

import pytest
import yaml

from torchcaps.cli import main
from torchcaps.cli.plugins import import_named
from torchcaps.training import UntrustedOptions, option_hints, read_options, train_parser

SMALL = {
    "data": "Digits",
    "model": "capsnet_digits",
    "model_args": {"channels": 4, "types": 2, "decoder_hidden": None},
    "epochs": 1,
    "report": False,
    "trainer": {"accelerator": "cpu"},
}


def shell(mark: Path) -> dict:
    return {"class_path": "subprocess.Popen", "init_args": {"args": ["touch", str(mark)]}}


HOSTILE = {
    "optimizer": lambda mark: {
        "optimizer": {"class_path": "os.system", "dict_kwargs": {"command": f"touch {mark}"}},
    },
    "optimizer, as text": lambda mark: {"optimizer": "os.system"},
    "optimizer, as YAML in text": lambda mark: {"optimizer": yaml.safe_dump(shell(mark))},
    "optimizer, in quotes in text": lambda mark: {"optimizer": '"os.system"'},
    "optimizer, with a comment in text": lambda mark: {"optimizer": "os.system  # the usual"},
    "optimizer, with a tag in text": lambda mark: {"optimizer": "!!str os.system"},
    "optimizer, with a dot": lambda mark: {"optimizer.class_path": "os.system"},
    "optimizer, by another module": lambda mark: {"optimizer": {"class_path": "torchcaps.data.base.os.system"}},
    "argument of the optimizer": lambda mark: {"optimizer": {"class_path": "Adam", "init_args": {"lr": shell(mark)}}},
    "argument without a class": lambda mark: {"optimizer": {"init_args": {"lr": shell(mark)}}},
    "scheduler": lambda mark: {"scheduler": shell(mark)},
    "function of the scheduler": lambda mark: {
        "scheduler": {"class_path": "torch.optim.lr_scheduler.LambdaLR", "init_args": {"lr_lambda": "os._exit"}},
    },
    "data": lambda mark: {"data": shell(mark)},
    "data in data": lambda mark: {"data": {"class_path": "Pairs", "init_args": {"data": shell(mark)}}},
    "data in data, with a dot": lambda mark: {"data": {"class_path": "Pairs", "init_args.data": shell(mark)}},
    "data that is a routing": lambda mark: {"data": "torchcaps.routing.EMRouting"},
    "task": lambda mark: {"task": shell(mark)},
    "routing": lambda mark: {"routing": shell(mark)},
    "loss": lambda mark: {"loss": {"class_path": "MarginLoss", "init_args": {"present": shell(mark)}}},
    "model_args": lambda mark: {"model_args": {"channels": shell(mark)}},
    "model_args, deep": lambda mark: {"model_args": {"a": [{"b": [[shell(mark)]]}]}},
    "model_args, short": lambda mark: {"model_args": {"a": {"class_path": "Popen"}}},
    "model_args, known class": lambda mark: {"model_args": {"a": {"class_path": "torch.optim.Adam"}}},
    "model_args, YAML in text": lambda mark: {"model_args": {"a": yaml.safe_dump(shell(mark))}},
    "trainer.extra": lambda mark: {"trainer": {"extra": {"logger": shell(mark)}}},
    "trainer.strategy": lambda mark: {"trainer": {"strategy": shell(mark)}},
    "trainer from a file": lambda mark: {"trainer": str(mark)},
    "another file": lambda mark: {"config": str(mark)},
    "another file, in a list": lambda mark: {"config": [str(mark)]},
    "preprocess": lambda mark: {"preprocess": {"shift": shell(mark)}},
    "epochs": lambda mark: {"epochs": shell(mark)},
    "unknown option": lambda mark: {"surprise": shell(mark)},
    "class path that is none": lambda mark: {"data": {"class_path": ["os", "system"]}},
}


def write(path: Path, options: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(options))
    return path


def status(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)


class TestItem13:
    @pytest.mark.parametrize("kind", HOSTILE)
    def test_item13_hostile_options_are_refused(self, kind: str, tmp_path: Path) -> None:
        config = write(tmp_path / "config.yaml", {**SMALL, **HOSTILE[kind](tmp_path / "mark")})
        with pytest.raises(UntrustedOptions, match=r"config\.yaml"):
            read_options(config, option_hints())

    @pytest.mark.parametrize("kind", ["optimizer", "model_args", "trainer from a file", "another file"])
    @pytest.mark.parametrize("command", ["--config", "--conf", "--resume", "evaluate"])
    def test_item13_nothing_happens_on_the_command_line(self, kind, command, tmp_path, capsys, recwarn) -> None:
        """``--conf`` because argparse takes beginnings of options."""
        mark, run = tmp_path / "mark", tmp_path / "run"
        options = {**SMALL, **HOSTILE[kind](mark)}
        if "file" in kind:
            options = {**SMALL, **HOSTILE[kind](write(tmp_path / "more.yaml", {"extra": {"logger": shell(mark)}}))}
        config = write(run / "config.yaml", options)
        arguments = {"--resume": ["train", "--resume", str(run)], "evaluate": ["evaluate", str(run)]}
        other = ["train", command, str(config), "--run", str(tmp_path / "new")]
        assert status(arguments.get(command, other)) != 0
        assert not mark.exists()
        assert not (tmp_path / "new").exists()
        capsys.readouterr()

    @pytest.mark.parametrize("command", [["train", "--config", "{}/config.yaml", "--run", "{}/new"],
                                         ["train", "--resume", "{}"], ["evaluate", "{}"]])  # fmt: skip
    def test_item13_a_file_imports_nothing_by_itself(self, command, tmp_path, capsys, monkeypatch) -> None:
        own = tmp_path / "hostile_caps_a.py"
        own.write_text(f"open({str(tmp_path / 'mark')!r}, 'w')")
        monkeypatch.chdir(tmp_path)
        write(tmp_path / "run" / "config.yaml", {**SMALL, "import": [str(own)]})
        assert status([part.format(tmp_path / "run") for part in command]) == 1
        assert f"if you trust them, add --import {own}" in capsys.readouterr().err
        assert not (tmp_path / "mark").exists()
        assert "hostile_caps_a" not in sys.modules

    def test_item13_class_paths_import_no_module_that_lies_about(self, tmp_path, monkeypatch) -> None:
        (tmp_path / "hostile_caps_b.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')")
        monkeypatch.syspath_prepend(tmp_path)
        for name in ("data", "routing", "task", "loss", "optimizer", "scheduler"):
            with pytest.raises(UntrustedOptions, match=rf"{name} names hostile_caps_b\.Thing.*--import"):
                read_options(write(tmp_path / "c.yaml", {**SMALL, name: "hostile_caps_b.Thing"}), option_hints())
        assert not (tmp_path / "mark").exists()

    @pytest.mark.parametrize(
        "text",
        ["[1, 2]", "just text", "{a: [", "\x00", "a: !!python/object/apply:os.system [touch x]", "[" * 5000, "1: 2",
         "preprocess: 3", "trainer: [1]", "speed: null", "a: &a [*a]", "model_args: &a {b: *a}",
         "x: " + "[" * 300 + "]" * 300, "import: 3", "import: [1]"],
    )  # fmt: skip
    def test_item13_what_is_no_file_of_options(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(ValueError, match=r"config\.yaml"):
            read_options(tmp_path / "config.yaml", option_hints())

    def test_item13_a_file_that_grows_when_it_is_read(self, tmp_path: Path) -> None:
        rows = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
        rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
        (tmp_path / "config.yaml").write_text("\n".join(rows))
        with pytest.raises(ValueError, match="holds more than options do"):
            read_options(tmp_path / "config.yaml", option_hints())
        (tmp_path / "config.yaml").write_bytes(b"#" * 2**20 + b"\n\n")
        with pytest.raises(ValueError, match="bytes: options take less"):
            read_options(tmp_path / "config.yaml", option_hints())

    @pytest.mark.parametrize("options", [
        {"data": {"class_path": "torchcaps.data.made.Padded", "init_args": {"data": "Digits", "pad": 1}}},
        {"data": {"class_path": "ImageFolder", "init_args": {"root": "my.photos", "size": [8, 8]}}},
        {"optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}},
        {"scheduler": {"class_path": "torch.optim.lr_scheduler.ReduceLROnPlateau", "init_args": {"mode": "min"}}},
        {"scheduler": "ExponentialLR", "task": "SeveralLabels", "run": "my.run", "model": "a.b"},
        {"routing": {"class_path": "EMRouting", "init_args": {"schedule": "released"}}},
        {"trainer.precision": "32-true", "trainer": {"extra": {"max_time": "00:01:00:00", "profiler": "simple"}}},
    ])  # fmt: skip
    def test_item13_what_options_take_is_taken(self, options: dict, tmp_path: Path) -> None:
        config = write(tmp_path / "config.yaml", {**SMALL, **options})
        assert read_options(config, option_hints()) == {**SMALL, **options}

    @pytest.mark.parametrize("example", sorted((Path(__file__).parents[2] / "examples").glob("*.yaml")), ids=str)
    def test_item13_the_examples_are_taken(self, example: Path) -> None:
        assert read_options(example, option_hints())["model"]

    def test_item13_what_was_imported_by_name_is_taken(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        own = tmp_path / "friendly_caps.py"
        own.write_text(
            "from os import system\nimport torch\nfrom torchcaps.data import Digits\n\n"
            "class Mine(Digits):\n    pass\n\ndef make(params):\n    return torch.optim.SGD(params, 0.1)\n"
        )
        options = {**SMALL, "import": [str(own)], "data": "friendly_caps.Mine", "optimizer": "friendly_caps.make"}
        config = write(tmp_path / "config.yaml", options)
        monkeypatch.setattr(sys, "modules", dict(sys.modules))
        import_named(str(own))
        with pytest.raises(UntrustedOptions, match=f"add --import {own}"):
            read_options(config, option_hints())
        assert read_options(config, option_hints(), ["elsewhere/friendly_caps.py"]) == options
        write(config, {**options, "optimizer": "friendly_caps.system"})
        with pytest.raises(UntrustedOptions, match=r"optimizer names friendly_caps\.system"):
            read_options(config, option_hints(), [str(own)])

    @pytest.mark.parametrize("text", ["epochs: 3\nepochs: 1\n", "data: {class_path: Digits, class_path: MNIST}\n"])
    def test_a_name_that_stands_twice(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "c.yaml").write_text(text)
        with pytest.raises(
            ValueError, match=r"c\.yaml is not a YAML file of options: (epochs|class_path) stands twice"
        ):
            read_options(tmp_path / "c.yaml", option_hints())

    def test_item13_what_a_run_writes_down_is_taken_back(self, tmp_path: Path) -> None:
        parser = train_parser()
        config = parser.parse_args(["--config", str(write(tmp_path / "c.yaml", SMALL)), "--run", "x"])
        (tmp_path / "written.yaml").write_text(parser.dump(config))
        assert read_options(tmp_path / "written.yaml", option_hints())["epochs"] == 1

    @pytest.mark.parametrize(
        "routing",
        ["kmeans", "'kmeans'", "&own kmeans", "InnerProductKMeansRouting", "{class_path: InnerProductKMeansRouting}"],
    )
    def test_a_routing_goes_by_its_name_and_options_count_wherever_they_stand(
        self, routing: str, tmp_path: Path
    ) -> None:
        config = write(tmp_path / "c.yaml", SMALL)
        config.write_text(f"{config.read_text()}\nrouting: {routing}\n")
        found = train_parser().parse_args(["--epochs", "7", "--config", str(config), "--run", "x"])
        assert found.routing.class_path.endswith("InnerProductKMeansRouting")
        assert found.epochs == 7
