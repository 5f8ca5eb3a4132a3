"""What all recipes share: presets, runs that are reused, result files, the table."""

import json
import shutil
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import yaml

import recipes
import torchcaps
from recipes import (
    PRESETS,
    RECIPES,
    Lab,
    Line,
    Recipe,
    Study,
    Trained,
    get_recipe,
    run_recipe,
)
from recipes.__main__ import main as recipes_main
from recipes.__main__ import repeatable
from recipes.kit import command, results
from recipes.kit.lab import accuracy_to_match
from recipes.kit.options import TrainingOptions
from torchcaps_lab.cli import main

CPU = {"accelerator": "cpu"}

TINY = {
    "data": {"name": "Digits"},
    "model": "capsnet_digits",
    "model_args": {"channels": 4, "types": 1, "decoder_hidden": [4]},
    "epochs": 2,
}


def stamps(folder: Path) -> dict[Path, int]:
    return {
        path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()
    }


@pytest.fixture
def made_up(monkeypatch):
    """A recipe that measures at once, known for the length of a test."""

    class MadeUp(Recipe[TrainingOptions]):
        name = "made-up"
        title = "nothing"
        source = "nobody"
        lines = (
            Line("a", "error", 2.0, "somebody 1999"),
            Line("a", "accuracy", 90.0, "somebody 1999", higher_is_better=True),
            Line("b", "entropy", unit="", higher_is_better=None),
        )
        presets = dict.fromkeys(PRESETS, TrainingOptions(epochs=3))

        def run(self, lab: Lab, settings: TrainingOptions) -> Study:
            return Study(
                lab,
                settings,
                figures={("a", "error"): 3.0 + lab.seed, ("a", "accuracy"): 95.0},
            )

    known = dict(RECIPES)
    recipes.register_recipe(MadeUp)
    yield MadeUp
    RECIPES.clear()
    RECIPES.update(known)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def lab(runs) -> Lab:
    return Lab("smoke", 0, runs, CPU, "python -m recipes run x")


class TestRegistry:
    def test_each_recipe_is_complete(self):
        for name, recipe in RECIPES.items():
            assert recipe.name == name
            assert {*recipe.presets, "paper"} == {*PRESETS}
            assert recipe.title
            assert recipe.source
            assert recipe.lines
            assert all(
                line.source for line in recipe.lines if line.published is not None
            ), name

    def test_a_name_is_taken_once(self, made_up):
        with pytest.raises(ValueError, match="made-up"):
            recipes.register_recipe(made_up)

    def test_lines_and_presets_are_checked(self, made_up):
        class Twice(made_up):
            name = "twice"
            lines = (*made_up.lines, made_up.lines[0])

        class Short(made_up):
            name = "short"
            presets: ClassVar = {"quick": TrainingOptions(epochs=3)}

        with pytest.raises(ValueError, match="line twice"):
            recipes.register_recipe(Twice)
        with pytest.raises(ValueError, match="presets"):
            recipes.register_recipe(Short)

    def test_unknown_names(self):
        with pytest.raises(ValueError, match="two-digits"):
            get_recipe("three-digits")
        with pytest.raises(ValueError, match="preset must be one of paper"):
            run_recipe("two-digits", "fast")


@pytest.mark.parametrize(
    ("accuracy", "to_match"),
    [
        (0.8758, 0.875),
        (0.957, 0.957),
        (0.99999, 0.999),
        (1.0, 1.0),
        (0.00199, 0.001),
        (0.0, 0.001),
    ],
)
def test_the_accuracy_to_match_is_rounded_down(accuracy, to_match):
    assert accuracy_to_match(accuracy) == to_match


def test_the_accuracy_of_a_training_without_validation():
    trained = Trained(torch.nn.Identity(), {"last_epoch": {}}, Path("x"))
    with pytest.raises(ValueError, match="without validation"):
        _ = trained.validation_accuracy


class TestLab:
    def test_trains_once(self, lab, runs):
        first = lab.train("tiny", TINY)
        before = stamps(runs)
        second = lab.train("tiny", TINY)
        assert stamps(runs) == before
        assert first.summary == second.summary
        assert first.facts["epochs"] == 2
        assert first.test_error == pytest.approx(100 - first.test_accuracy)
        for (name, tensor), two in zip(
            first.network.state_dict().items(),
            second.network.state_dict().values(),
            strict=True,
        ):
            torch.testing.assert_close(tensor, two, rtol=0, atol=0, msg=name)
        assert [trained.folder for trained in lab.trained] == [first.folder] * 2

    def test_other_options_are_refused(self, lab):
        lab.train("tiny", TINY)
        with pytest.raises(FileExistsError, match="another epochs: choose"):
            lab.train("tiny", {**TINY, "epochs": 3})

    def test_options_that_are_newer_than_a_run_have_their_defaults(self, lab):
        routed = {**TINY, "routing": {"name": "dynamic", "steps": 2}}
        done = lab.train("routed", routed)
        config = done.folder / "config.yaml"
        options = yaml.safe_load(config.read_text())
        del options["routing"]["gradient"], options["batch_size"]
        config.write_text(yaml.safe_dump(options))
        assert lab.train("routed", routed).summary == done.summary
        routed["routing"]["gradient"] = "last"
        with pytest.raises(
            FileExistsError, match="another batch_size, routing: choose"
        ):
            lab.train("routed", {**routed, "batch_size": 32})

    def test_a_seed_has_a_run_of_its_own(self, lab):
        second = replace(lab, seed=1)
        assert second.folder("tiny").path != lab.folder("tiny").path
        assert (
            replace(lab, preset="quick").folder("tiny").path != lab.folder("tiny").path
        )

    def test_an_interrupted_training_goes_on(self, lab):
        done = lab.train("tiny", TINY)
        summary = done.folder / "summary.json"
        rows = (done.folder / "metrics.csv").read_text()
        summary.unlink()  # as if killed between the last epoch and the test
        again = lab.train("tiny", TINY)
        assert (done.folder / "metrics.csv").read_text() == rows
        assert again.summary["test_accuracy"] == done.summary["test_accuracy"]

    def test_a_strange_folder_is_left_alone(self, lab):
        folder = lab.folder("strange").path
        folder.mkdir(parents=True)
        (folder / "diary.txt").write_text("mine")
        with pytest.raises(FileExistsError, match="not empty: choose another --runs"):
            lab.train("strange", TINY)

    def test_several_devices_are_refused(self, runs):
        with pytest.raises(ValueError, match="one device, got devices=2"):
            Lab("smoke", 0, runs, {"devices": 2})

    def test_the_run_is_one_of_torchcaps_train(self, lab, capsys):
        done = lab.train("tiny", TINY)
        assert yaml.safe_load((done.folder / "config.yaml").read_text())["seed"] == 0
        assert main(["evaluate", str(done.folder), "--json"]) == 0
        assert (
            json.loads(capsys.readouterr().out)["accuracy"]
            == done.summary["test_accuracy"]
        )


class TestResults:
    def test_file_and_table(self, made_up, tmp_path):
        result = run_recipe(
            "made-up",
            "quick",
            [0, 2],
            runs=tmp_path / "runs",
            results=tmp_path,
            command="python -m recipes run x",
        )
        assert json.loads((tmp_path / "made-up-quick.json").read_text()) == json.loads(
            json.dumps(result)
        )
        assert [row["ours"] for row in result["rows"]] == [[3.0, 5.0], [95.0, 95.0], []]
        assert result["settings"]["epochs"] == 3
        assert result["made by"] == command.made_by()
        table = (tmp_path / "README.md").read_text()
        start = "| [made-up](#made-up-nothing) | a"
        assert (
            f"{start} | error | 2 % (somebody 1999) | not run | 4.00 ± 1.41 % | +2.00 "
            "| 0, 2 |" in table
        )
        assert (
            f"{start} | accuracy | 90 % (somebody 1999) | not run | 95.00 ± 0.00 % | "
            "+5.00 (better) | 0, 2 |" in table
        )
        assert (
            "| quick preset | error | accuracy |\n|---|---|---|\n| a | 4.00 ± 1.41 % "
            "| 95.00 ± 0.00 % |\n" in table
        )
        assert "| b |" not in table
        assert "- paper preset: not run" in table
        assert "`python -m recipes run x`, seeds 0, 2" in table

    def test_figures_of_other_programs_are_not_called_missing(
        self, made_up, tmp_path, monkeypatch
    ):
        line = Line("port", "error", 1.5, "somebody 2001", elsewhere=True)
        monkeypatch.setattr(made_up, "lines", (*made_up.lines, line))
        run_recipe("made-up", "quick", runs=tmp_path, results=tmp_path)
        table = (tmp_path / "README.md").read_text()
        assert "| port | error | 1.5 % (somebody 2001) |  |  |  |  |" in table
        assert "\n| port |" not in table

    def test_the_paper_preset_comes_first_in_the_gap(self, made_up, tmp_path):
        run_recipe("made-up", "quick", [0], runs=tmp_path, results=tmp_path)
        run_recipe("made-up", "paper", [1], runs=tmp_path, results=tmp_path)
        assert (
            "| a | error | 2 % (somebody 1999) | 4.00 % | 3.00 % | +2.00 |"
            in (tmp_path / "README.md").read_text()
        )

    def test_seeds_that_are_done_are_kept(self, made_up, tmp_path, monkeypatch):
        def run(self, lab, settings):
            if lab.seed == 1:
                raise KeyboardInterrupt
            return Study(lab, settings, figures={("a", "error"): 3.0 + lab.seed})

        monkeypatch.setattr(made_up, "run", run)
        with pytest.raises(KeyboardInterrupt):
            run_recipe("made-up", "quick", [0, 2, 1], runs=tmp_path, results=tmp_path)
        result = json.loads((tmp_path / "made-up-quick.json").read_text())
        assert (result["seeds"], result["rows"][0]["ours"]) == ([0, 2], [3.0, 5.0])

    def test_what_is_no_line_is_refused(self, made_up, tmp_path, monkeypatch):
        monkeypatch.setattr(
            made_up,
            "run",
            lambda self, lab, settings: Study(
                lab, settings, figures={("c", "error"): 1.0}
            ),
        )
        with pytest.raises(ValueError, match="not among its lines"):
            run_recipe("made-up", runs=tmp_path, results=tmp_path)
        assert not list(tmp_path.iterdir())

    def test_seeds(self, made_up, tmp_path):
        for seeds in ([], [1, 1]):
            with pytest.raises(ValueError, match="seeds"):
                run_recipe("made-up", seeds=seeds, runs=tmp_path, results=tmp_path)

    def test_a_damaged_file_is_named(self, made_up, tmp_path):
        (tmp_path / "made-up-quick.json").write_text('{"rows": [')
        with pytest.raises(ValueError, match=r"made-up-quick\.json is damaged"):
            results.read_results(tmp_path)

    @pytest.mark.parametrize(
        ("values", "line", "words"),
        [
            ([1.0], Line("", "", 1.5), "-0.50"),
            ([1.0, 1.0], Line("", "", 1.5), "-0.50 (better)"),
            ([1.0, 1.0], Line("", "", 1.5, higher_is_better=True), "-0.50 (worse)"),
            ([0.5, 1.5], Line("", "", 1.5), "-0.50"),
            ([1.0, 1.0], Line("", "", 1.5, higher_is_better=None), "-0.50"),
            ([1.0], Line("", ""), ""),
            ([], Line("", "", 1.5), ""),
        ],
    )
    def test_gap(self, values, line, words):
        assert results.gap_in_words(values, line) == words


class TestFolders:
    def test_at_home_results_go_into_the_documents(self, monkeypatch):
        home = Path(recipes.__file__).parents[1]
        monkeypatch.chdir(home)
        assert recipes.results_folder() == Path("docs/results/recipes")
        monkeypatch.chdir(home / "tests")
        assert recipes.results_folder().resolve() == home / "docs/results/recipes"

    def test_elsewhere_they_stay_beside_the_runs(self, monkeypatch, tmp_path):
        (tmp_path / "docs" / "results" / "recipes").mkdir(
            parents=True
        )  # of somebody else's project
        monkeypatch.chdir(tmp_path)
        assert recipes.results_folder() == Path("runs/recipes/results")

    def test_the_commands_write_and_read_there(
        self, made_up, monkeypatch, tmp_path, capsys
    ):
        monkeypatch.chdir(tmp_path)
        assert recipes_main(["run", "made-up"]) == 0
        assert "runs/recipes/results/made-up-quick.json" in capsys.readouterr().out
        assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]
        assert recipes_main(["made-up"]) == 0
        assert "3.00 %" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_result_names_the_commit_that_made_it(monkeypatch, tmp_path):
    def git(*arguments):
        output = subprocess.run(
            ["git", "-C", tmp_path, *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        return output.stdout.strip()

    file = tmp_path / "file"
    monkeypatch.setattr(command, "ROOT", tmp_path)
    assert command.made_by() == torchcaps.__version__
    git("init")
    file.write_text("1")
    git("add", ".")
    git("-c", "user.name=x", "-c", "user.email=x", "commit", "-m", "x")
    commit = f"{torchcaps.__version__}, commit {git('rev-parse', 'HEAD')[:12]}"
    assert command.made_by() == commit
    file.write_text("2")
    assert command.made_by() == f"{commit}+"


def test_committed_results_make_the_committed_page(tmp_path):
    """They were written by several versions."""
    folder = Path(recipes.__file__).parents[1] / "docs" / "results" / "recipes"
    for file in folder.glob("*.json"):
        shutil.copy(file, tmp_path)
    assert (
        results.write_table(tmp_path).read_text() == (folder / "README.md").read_text()
    )


class TestCommandLine:
    def test_run_and_list(self, made_up, tmp_path, capsys):
        folders = [
            "--runs",
            str(tmp_path / "runs"),
            "--results",
            str(tmp_path / "results"),
        ]
        assert (
            recipes_main(
                ["run", "made-up", "--preset", "quick", "--seeds", "0", "1", *folders]
            )
            == 0
        )
        output = capsys.readouterr().out
        assert "a  error     2 %        not run  3.50 ± 0.71 %" in output
        assert "entropy" not in output
        assert "  and 1 more: python -m recipes made-up\n" in output
        assert recipes_main(["made-up", *folders[2:]]) == 0
        assert "entropy" in capsys.readouterr().out
        assert recipes_main(["run", "made-up", "--preset", "smoke", *folders]) == 0
        assert "3.50 ± 0.71 %" in capsys.readouterr().out  # of the quick preset

    def test_all_are_listed(self, capsys, tmp_path):
        assert recipes_main(["--results", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert all(f"{name}: " in out for name in RECIPES)

    def test_unknown_recipe(self, capsys):
        with pytest.raises(SystemExit):
            recipes_main(["run", "no-such"])
        assert "no-such" in capsys.readouterr().err


def test_a_result_grows_only_while_its_rows_keep_their_options(tmp_path, monkeypatch):
    """Also if another recipe trains the row. A new row changes nothing of the others."""
    recipe, reader = RECIPES["tetrominoes"], RECIPES["read-outs"]
    lab = Lab("quick", 0, tmp_path)
    read = "tetrominoes: slots"
    for grown, row in ((recipe, "slots"), (reader, read)):
        facts = {"figures": {}, "options": command._options_of(grown, "quick", row)}
        content = {
            "settings": asdict(grown.presets["quick"]),
            "seeds": [0],
            "facts": [{row: facts}],
            "curves": [{}],
            "rows": [],
        }
        path = results.result_path(tmp_path, grown.name, "quick")
        path.write_text(json.dumps(content))
    rows = {**recipe.rows, "new": {"epochs": 1}}
    monkeypatch.setattr(type(recipe), "rows", rows)
    for grown in (recipe, reader):
        assert list(command._saved_studies(grown, lab, tmp_path)) == [0]
    rows |= {"slots": {"epochs": 1}}
    with pytest.raises(ValueError, match=r"in the row 'slots', not \{epochs: 1\}"):
        command._saved_studies(recipe, lab, tmp_path)
    with pytest.raises(ValueError, match=f"in the row '{read}', not .*epochs: 1"):
        command._saved_studies(reader, lab, tmp_path)


def test_committed_results_take_more_rows() -> None:
    """Their settings are those of the preset: nobody need move them to add to them."""
    folder = Path(recipes.__file__).parents[1] / "docs" / "results" / "recipes"
    for name, preset in results.read_results(folder):
        lab = Lab(preset, 0, folder)
        saved = command._saved_studies(RECIPES[name], lab, folder)
        assert bool(saved) == RECIPES[name].grows


def test_the_command_of_a_result_names_no_folder_of_this_machine():
    words = ["scenes", "--runs", "here", "--seeds", "0", "1", "--results=there"]
    assert repeatable(words) == "python -m recipes run scenes --seeds 0 1"
