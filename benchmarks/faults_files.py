"""Rows of ``python -m benchmarks faults``: pipes, devices, sockets, folders and links
where a file should be, names that share their content, small files that ask for much,
and outputs that nobody reads.
"""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.faults import CRASH, REFUSED, fault, no_crash
from torchcaps.models import create_model, load_pretrained
from torchcaps.whole import write_whole
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.data import Manifest, load_image
from torchcaps_lab.data.tables import Table
from torchcaps_lab.explore.explorer import Explorer
from torchcaps_lab.explore.server import MOST_AT_ONCE, MOST_BYTES, application
from torchcaps_lab.kinds.images.sets.mnist import read_idx
from torchcaps_lab.kinds.texts import Words
from torchcaps_lab.options.reading import read_options
from torchcaps_lab.report import write_page
from torchcaps_lab.run_folder import RunFolder, read_summary

SECONDS = 60
"""After which something hangs."""

REFUSING = 2
"""Seconds of the processor in which a small file that asks for much is refused."""


@contextmanager
def _ends() -> Iterator[None]:
    """Raises an error that no reader expects, once the time is over."""

    def give_up(number: int, frame: Any) -> None:
        raise RuntimeError("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


PLACED: tuple[Callable[[Path], Any], ...] = (
    os.mkfifo,
    _socket,
    Path.mkdir,
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("/dev/full"),
    lambda path: path.symlink_to(path.name),
    lambda path: path.symlink_to("nothing"),
    lambda path: path.symlink_to("/proc/kcore"),
)
"""What puts something else than a file at a path."""


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink()


@fault("what is no file, where files are read", REFUSED)
def special_files(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Each file of a run and of data is in turn a pipe, a socket, a folder, a device or
    a link that leads nowhere: a named error, at once.
    """
    run = RunFolder(folder)
    create_model("capsnet_digits").save_pretrained(folder)
    readers: dict[str, Callable[[Path], Any]] = {
        "config.json": lambda path: load_pretrained(folder),
        "model.safetensors": lambda path: load_pretrained(folder),
        "config.yaml": read_options,
        "data.json": Manifest.read,
        "summary.json": lambda path: read_summary(run),
        "a.csv": Table,
        "a.jsonl": Table,
        "a.png": lambda path: load_image(path, (1, 8, 8)),
        "a.npy": lambda path: load_image(path, (1, 8, 8)),
        "a.gz": read_idx,
    }
    for _ in range(count):
        name, read = chance.choice([*readers.items()])
        path = folder / name
        aside = folder / "aside"
        if path.exists():
            path.rename(aside)
        chance.choice(PLACED)(path)
        with _ends():
            refused = False
            with suppress(ValueError, OSError):
                read(path)
                refused = True
            yield not refused
        _clear(path)
        if aside.exists():
            aside.rename(path)


@fault(
    "names that share their content, or are pipes, where files are written",
    "replaced, nothing elsewhere changed",
)
def shared_names(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """What is written has the name of a hard link, a link, a pipe or a device."""
    precious = folder / "precious"
    precious.write_text("precious")
    places: tuple[Callable[[Path], Any], ...] = (
        partial(os.link, precious),
        os.mkfifo,
        lambda path: path.symlink_to("/dev/full"),
    )
    for number in range(count):
        run = folder / f"run-{number}"
        (run / "report").mkdir(parents=True)
        place = chance.choice(places[:2])
        place(run / "report" / chance.choice(("index.html", "exhibits.json")))
        chance.choice(places)(run / f"a{chance.choice(('', '.unfinished'))}")
        with _ends():
            write_page(run, [])
            write_whole(run / "a", "new")
        written = [path for path in run.rglob("*") if path.name != "report"]
        yield (
            precious.read_text() == "precious"
            and (run / "a").read_text() == "new"
            and all(path.is_file() and path.stat().st_nlink == 1 for path in written)
        )


@fault(
    "saved networks that ask for more than their weights",
    "refused at once, with the name of the file",
)
def greedy_networks(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Opens small networks whose configuration holds a large number, or many numbers,
    in place of a value.
    """
    create_model("capsnet_digits").save_pretrained(folder)
    path = folder / "config.json"
    config: dict[str, Any] = json.loads(path.read_text())
    values = (
        10**6,
        50_000,
        3_000,
        [1, 10**6, 10**6],
        [3_000, 3_000],
        [1] * 200_000,
        [[1] * 100] * 1_000,
    )
    names = ("image_shape", "classes", "channels", "types", "pose_dim")
    for _ in range(count):
        name = chance.choice((*names, "decoder_hidden"))
        arguments = {**config["arguments"], name: chance.choice(values)}
        path.write_text(json.dumps({**config, "arguments": arguments}))
        begun = time.process_time()
        told = ""
        try:
            load_pretrained(folder)
        except ValueError as error:
            told = str(error)
        yield "config.json" in told and time.process_time() - begun < REFUSING


@fault("wide tables and long texts", CRASH)
def wide_and_long(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Tables of 100,000 columns or objects without them, and texts of 100 MB: no more
    time than reading them takes.
    """
    names = [f"c{number}" for number in range(100_000)]
    objects = "{" + ", ".join(f'"{name}": 1' for name in names) + "}"
    letters = ("word ", "w", "\ufdfa", ". ", "\u4e2d")
    for number in range(count):
        rows = (3, 1_000, 100_000)[number % 3]
        contents = {
            "a.csv": ",".join(names) + "\n1" * rows,
            "a.jsonl": objects + "\n{}" * rows,
        }
        for name, content in contents.items():
            (folder / name).write_text(content)
            with _ends():
                yield no_crash(partial(_read_table, folder / name))
        text = letters[number % len(letters)] * 10**7
        with _ends():
            yield no_crash(partial(Words(("word",)).read, [text]))


def _read_table(path: Path) -> None:
    table = Table(path)
    table.check_once(table.columns)
    table.cells()
    for _ in table.rows(["c0"]):
        pass


@fault("outputs that nobody reads any more", "no error is told")
def closed_pipes(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Commands whose reader has gone before they write."""
    commands = (
        ("torchcaps_lab", "models"),
        ("torchcaps_lab", "train", "--help"),
        ("recipes",),
        ("benchmarks", "launches", "--help"),
    )
    for number in range(count):
        reading, writing = os.pipe()
        os.close(reading)
        command = [sys.executable, "-m", *commands[number % len(commands)]]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE)
        os.close(writing)
        yield not done.stderr


@fault(
    "uploads at one time, some of whose senders stop or hang up",
    "each is answered, and their room is free again",
)
def stopped_uploads(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Rounds of senders of any size, then as many whole uploads as have room."""
    explorer = Explorer({"a": Classifier(create_model("capsnet_digits"))})
    with patch("torchcaps_lab.explore.server.MOST_SECONDS", 0.2):
        for _ in range(count):
            app = application(explorer)
            ends = ("whole", "stops", "hangs up")
            senders = [
                _sender(chance.randrange(2 * MOST_BYTES), chance.choice(ends))
                for _ in range(chance.randint(1, 20))
            ]
            statuses = asyncio.run(_answered(app, senders))
            yield set(statuses) <= {400, 408, 413, 503}
            whole = [_sender(MOST_BYTES, "whole")] * (MOST_AT_ONCE // MOST_BYTES)
            # No pictures: they are read to their end.
            yield set(asyncio.run(_answered(app, whole))) == {400}


def _sender(size: int, end: str) -> Callable[[], Iterator[dict[str, Any] | None]]:
    """What a sender sends; None where it stops for good."""

    def send() -> Iterator[dict[str, Any] | None]:
        yield {"type": "http.request", "body": bytes(size), "more_body": True}
        if end == "stops":
            yield None
        if end == "hangs up":
            yield {"type": "http.disconnect"}
        yield {"type": "http.request", "body": b"", "more_body": False}

    return send


async def _answered(app: Any, senders: Sequence[Callable[[], Any]]) -> list[int]:
    """The status of each answer, asked for at one time."""

    async def ask(messages: Iterator[dict[str, Any] | None]) -> int:
        statuses: list[int] = []

        async def receive() -> dict[str, Any]:
            message = next(messages)
            if message is None:
                await asyncio.Event().wait()
            return message or {}

        async def send(message: dict[str, Any]) -> None:
            statuses.append(message.get("status", 0))

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/api/look",
            "query_string": b"network=a",
            "headers": [(b"host", b"localhost")],
            "server": ("127.0.0.1", 80),
        }
        await app(scope, receive, send)
        return statuses[0]

    answers = asyncio.gather(*(ask(sender()) for sender in senders))
    return await asyncio.wait_for(answers, SECONDS)
