"""``python -m benchmarks faults``: behaviour with damaged and hostile files, and after
interruptions.

Fuzzes files of options, saved networks, images and checkpoints; passes options that
would run commands; kills trainings at random moments and resumes them; fills their
disk; starts one run several times at once. Prints a table: how often each was tried,
how often it went as expected, and the seconds. Exits with an error unless everything
went as expected.
"""

import argparse
import csv
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from functools import partial
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.hostile import TRIED, harmless, texts
from benchmarks.report import Show, markdown
from torchcaps.models import create_model, load_pretrained
from torchcaps_lab.data import load_image
from torchcaps_lab.options.reading import merged, read_options
from torchcaps_lab.run_folder import RunFolder
from torchcaps_lab.training.checkpoints import newest_checkpoint, read_checkpoint
from torchcaps_lab.training.command_line import training_options
from torchcaps_lab.training.fitting import quiet_lightning
from torchcaps_lab.training.run import train_with

NAMED = (ValueError, OSError, FloatingPointError)
"""Errors that the command line reports in one line; anything else is a crash."""

OPTIONS: dict[str, Any] = TRIED["options"]
FORK = multiprocessing.get_context("fork")


CRASH, REFUSED = "works, or an error with a name", "refused, nothing executed"


class Fault(NamedTuple):
    """Something that is tried, each time as expected or not.

    Args:
        title: the fault that is tried.
        expected: the behaviour that is expected each time.
        tries: the function that, given an empty folder, how often, and a source of
            chance, tries the fault and yields each time whether it went as expected.
    """

    title: str
    expected: str
    tries: "Tries"


Tries = Callable[[Path, int, random.Random], Iterator[bool]]
FAULTS: list[Fault] = []


def fault(title: str, expected: str) -> Callable[[Tries], Tries]:
    """Decorator: puts a function into the table."""

    def register(tries: Tries) -> Tries:
        FAULTS.append(Fault(title, expected, tries))
        return tries

    return register


def no_crash(act: Callable[[], Any]) -> bool:
    """Whether a call works, or fails with one of the errors in :data:`NAMED`."""
    try:
        with redirect_stderr(StringIO()):
            act()
    except (*NAMED, SystemExit):
        return True
    except Exception:
        traceback.print_exc()
        return False
    return True


def damaged(content: bytes, chance: random.Random) -> bytes:
    """The bytes with random changes: bits flipped, bytes removed or inserted, the end
    cut off.
    """
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 3, 10))):
        place = chance.randrange(len(changed) + 1) if changed else 0
        kind = chance.randrange(4)
        if kind == 0 and changed:
            last = len(changed) - 1
            changed[min(place, last)] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del changed[place : place + chance.randrange(1, 20)]
        elif kind == 2:
            changed[place:place] = chance.randbytes(chance.randrange(1, 20))
        elif chance.random() < 0.3:
            del changed[place:]
    return bytes(changed)


def misfit(options: Any, chance: random.Random) -> Any:
    """Options, or other content of YAML and JSON, with one value replaced by one that
    does not belong there.
    """
    if chance.random() < 0.3 or not options or not isinstance(options, dict | list):
        return chance.choice(TRIED["misfits"])
    changed: Any = options.copy()
    keys = list(options) if isinstance(options, dict) else range(len(options))
    key = chance.choice(keys)
    changed[key] = misfit(options[key], chance)
    return changed


@fault("files of options, fuzzed", CRASH)
def fuzzed_options(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Reads files of options with damaged text, or with values that do not belong
    there.
    """
    text = yaml.safe_dump({**OPTIONS, "run": "x"}).encode()
    for number in range(count):
        path = folder / "config.yaml"
        if number % 2:
            wrong = damaged(text, chance)
        else:
            wrong = yaml.safe_dump(misfit(OPTIONS, chance)).encode()
        path.write_bytes(wrong)

        def act(path: Path = path) -> None:
            training_options(read_options(path)).make()

        yield no_crash(act)


@fault("saved networks, fuzzed", CRASH)
def fuzzed_networks(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Opens saved networks with one of their two files damaged."""
    import json

    create_model("capsnet_digits", **OPTIONS["model_args"]).save_pretrained(folder)
    config = folder / "config.json"
    weights = folder / "model.safetensors"
    text = config.read_bytes()
    tensors = weights.read_bytes()
    for number in range(count):
        config.write_bytes(text)
        weights.write_bytes(tensors)
        if number % 3 == 0:
            start = tensors[: 8 + 2000]
            remainder = tensors[8 + 2000 :]
            weights.write_bytes(damaged(start, chance) + remainder)
        elif number % 3 == 1:
            config.write_bytes(damaged(text, chance))
        else:
            config.write_text(json.dumps(misfit(json.loads(text), chance)))
        yield no_crash(lambda: load_pretrained(folder))


@fault("images, fuzzed", CRASH)
def fuzzed_images(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Reads damaged image files."""
    from PIL import Image

    suffixes = (".png", ".jpg", ".gif", ".bmp", ".tif", ".webp")
    for number in range(count):
        path = folder / f"image{suffixes[number % len(suffixes)]}"
        Image.frombytes("RGB", (16, 16), chance.randbytes(768)).save(path)
        path.write_bytes(damaged(path.read_bytes(), chance))
        yield no_crash(partial(load_image, path, (3, 8, 8)))


@fault("options that run commands", REFUSED)
def hostile_options(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Options that would run a command, in every place: all must be refused, and
    nothing executed.
    """
    mark = folder / "mark"
    run = {"name": "subprocess.Popen", "args": ["touch", str(mark)]}
    system = {"name": "os.system", "command": f"touch {mark}"}
    (folder / "more.yaml").write_text(yaml.safe_dump({"extra": {"logger": run}}))
    (folder / "hostile_module.py").write_text(f"open({str(mark)!r}, 'w')")
    places: list[dict[str, Any]] = [
        {name: run}
        for name in (*OPTIONS, "scheduler", "task", "loss", "seed", "unknown")
    ]
    places += [
        {name: "hostile_module.Thing"}
        for name in ("data", "routing", "optimizer", "scheduler", "task", "loss")
    ]
    places += [
        {"optimizer": system},
        {"optimizer.name": "os.system"},
        {"optimizer": yaml.safe_dump(system)},
        {"optimizer": {"name": "torch.optim.Adam", "lr": run}},
        {"model_args": {"deep": [[{"er": run}]]}},
        {"trainer": {"extra": {"logger": run}}},
        {"trainer": str(folder / "more.yaml")},
        {"config": str(folder / "more.yaml")},
        {"import": [str(folder / "hostile_module.py")]},
        {"data": {"name": "Pairs", "data": run}},
    ]
    for place in places:
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump({**OPTIONS, **place}))
        yield no_crash(partial(_begin, path)) and not mark.exists()


def _begin(path: Path) -> None:
    """All that a training does with a file of options before it writes anything."""
    subject = training_options(read_options(path)).make().subject
    subject.network(0)


@fault(
    "random YAML that names what to run",
    "nothing imported or called outside the tables",
)
def hostile_texts(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Random YAML, biased to what readers disagree about: no text imports a module or
    calls what is in no table.
    """
    from hypothesis import HealthCheck, Phase, given, seed, settings

    mark = folder / "mark"
    as_expected: list[bool] = []
    # What reading imports when it first needs it comes before what is watched.
    for place in TRIED["places"]:
        harmless(f"\ufeff{place}: {{name: x}}", folder / "config.yaml")

    @seed(0)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(texts(mark))
    def try_text(text: str) -> None:
        is_harmless = harmless(text, folder / "config.yaml")
        as_expected.append(is_harmless and not mark.exists())

    try_text()
    yield from as_expected


class _Command:
    """An object whose pickle runs a command when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


@fault("checkpoints: flipped, cut, hostile", REFUSED)
def damaged_checkpoints(
    folder: Path, count: int, chance: random.Random
) -> Iterator[bool]:
    """Checkpoints with one bit flipped, or cut, or that would run a command: all must
    be refused, but one flipped between the parts of the file, which says nothing.
    """
    mark = folder / "mark"
    run = RunFolder(folder / "run")
    finish(run.path, epochs=1)
    path = newest_checkpoint(run.checkpoints)
    if path is None:
        yield False
        return
    content = path.read_bytes()
    weights = read_checkpoint(path)["state_dict"]
    for number in range(count):
        place = chance.randrange(len(content))
        flipped = bytearray(content)
        flipped[place] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped if number % 2 else content[:place])
        yield newest_checkpoint(run.checkpoints) is None or _is_refused(path, weights)
    torch.save({"state_dict": _Command(mark)}, path)
    try:
        torch.load(path, weights_only=True)
    except Exception:
        yield not mark.exists()


def _is_refused(path: Path, weights: Mapping[str, Tensor]) -> bool:
    """Whether a checkpoint cannot be read, or holds these weights."""
    try:
        read = read_checkpoint(path)["state_dict"]
    except ValueError:
        return True
    return all(torch.equal(read[name], weight) for name, weight in weights.items())


def _train(folder: Path, changes: Mapping[str, Any], most_bytes: int | None) -> None:
    """Trains in a child process, which exits with 0, with 1 after a named error, or
    with 2 after a crash.
    """
    with (folder.parent / f"{folder.name}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            if most_bytes is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
            options = merged({**OPTIONS, "run": str(folder)}, changes)
            train_with(RunFolder(folder), training_options(options))
        except NAMED:
            traceback.print_exc()
            os._exit(1)
        except BaseException:
            traceback.print_exc()
            os._exit(2)
        os._exit(0)


def start(folder: Path, most_bytes: int | None = None, **changes: Any) -> Any:
    """Starts or resumes a training in a child process, with changes of the options."""
    process = FORK.Process(target=_train, args=(folder, changes, most_bytes))
    process.start()
    return process


def finish(folder: Path, most_bytes: int | None = None, **changes: Any) -> int:
    """Trains in a child process, waits for it and returns its exit status."""
    process = start(folder, most_bytes, **changes)
    process.join()
    return int(process.exitcode)


def outcome(folder: Path) -> tuple[list[dict[str, str]], dict[str, torch.Tensor]]:
    """The metrics of a run, without the seconds, and its weights."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row.pop("seconds", None)
    return rows, load_file(folder / "model" / "model.safetensors")


def same(run: Path, expected: Path) -> bool:
    """Whether two runs have the same metrics and weights, bit by bit."""
    rows, weights = outcome(run)
    expected_rows, expected_weights = outcome(expected)
    return rows == expected_rows and all(
        torch.equal(weights[name], expected_weights[name])
        for name in weights | expected_weights
    )


@fault("SIGKILL at a random moment", "resumed to the same bits")
def kills(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """SIGKILL at a random moment, then resumed: must give the same bits as an
    uninterrupted training.
    """
    began = time.perf_counter()
    finish(folder / "unbroken")
    seconds = time.perf_counter() - began
    for number in range(count):
        run = folder / f"killed-{number}"
        process = start(run)
        process.join(chance.uniform(0, seconds))
        process.kill()
        process.join()
        yield finish(run) == 0 and same(run, folder / "unbroken")


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path | None]:
    """A disk of that size, or None if this process may not mount one."""
    disk = folder / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    try:
        yield disk if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", str(disk)], check=True)


@fault("full disk", "named, older checkpoint whole, resumed to the same bits")
def full_disks(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """No room for the next checkpoint: a named error; the last one is kept, and the run
    resumes once there is room.
    """
    finish(folder / "unbroken")
    with small_disk(folder, 8) as disk:
        for number in range(count):
            run = (disk or folder) / f"full-{number}"
            finish(run, epochs=2)
            checkpoint = newest_checkpoint(RunFolder(run).checkpoints)
            if checkpoint is None:
                yield False
                continue
            room = chance.randrange(checkpoint.stat().st_size)
            filler = None if disk is None else _fill(disk, room)
            failed = finish(run, most_bytes=None if disk else room) == 1
            has_checkpoint = newest_checkpoint(RunFolder(run).checkpoints) is not None
            if filler is not None:
                filler.unlink()
            resumed = finish(run) == 0
            yield (
                failed and has_checkpoint and resumed and same(run, folder / "unbroken")
            )


def _fill(disk: Path, room: int) -> Path:
    """Fills a disk, leaving ``room`` bytes free."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    os.truncate(filler, max(0, filler.stat().st_size - room))
    return filler


@fault("one run started three times at once", "one trains, the others say so")
def starts(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """One run, started several times at once: one process trains, the others fail with
    a named error.
    """
    for number in range(count):
        processes = [start(folder / f"started-{number}", epochs=2) for _ in range(3)]
        for process in processes:
            process.join()
        yield sorted(process.exitcode for process in processes) == [0, 1, 1]


def run(options: argparse.Namespace, show: Show) -> None:
    """Tries all faults and shows the table; raises a `ValueError` unless everything
    went as expected.
    """
    quiet_lightning()
    torch.set_num_threads(1)  # processes are forked
    counts = TRIED["counts"]["quick" if options.quick else "full"]
    chance = random.Random(options.seed)
    rows, wrong = [], []
    with tempfile.TemporaryDirectory() as root, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for title, expected, tries in FAULTS:
            name = tries.__name__
            folder = Path(root) / name
            folder.mkdir()
            start = time.perf_counter()
            results = list(tries(folder, counts.get(name, 1), chance))
            seconds = time.perf_counter() - start
            tried = len(results)
            right = sum(results)
            show(f"{title}: {right} of {tried} ({seconds:.0f} s)")
            rows.append((title, expected, str(tried), str(right), f"{seconds:.0f}"))
            if right < tried:
                wrong.append(title)
    show(
        "\n" + markdown(("fault", "expected", "tried", "as expected", "seconds"), rows)
    )
    if wrong:
        raise ValueError(f"not as expected: {', '.join(wrong)}")


# The files beside this one put their rows into the table.
for _file in sorted(Path(__file__).parent.glob("faults_*.py")):
    import_module(f"benchmarks.{_file.stem}")
