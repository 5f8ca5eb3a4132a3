"""``torchcaps bench folder``: time and memory of reading a folder of images larger than memory."""

import argparse
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from torchcaps.bench.options import amount, positive, rate
from torchcaps.bench.suite import Show
from torchcaps.data import ImageFolder

GB = 10**9
_STATUS = Path("/proc/self/status")


def main(arguments: list[str], show: Show, program: str) -> None:
    """Makes a folder of photos, reads it as a training does, and prints seconds and memory of each step."""
    options = _parser(program).parse_args(arguments)
    if options.out and (Path(options.out).is_dir() or not Path(options.out).parent.is_dir()):
        raise ValueError(f"--out must be the name of a file in a folder that is there, got {options.out}")
    folder = Path(options.folder)
    count = max(20, round(options.gigabytes * GB / (3 * options.size**2)))
    watch = _Watch(show)
    with watch.step("made", count):
        make_photos(folder, count, options.size)
    for step in ("read the first time", "found again"):
        data = ImageFolder(str(folder), size=options.size, channels=3, memory=options.memory)
        with watch.step(step, count):
            images = data.train
    order = torch.randperm(len(images)).tolist()
    with watch.step("an epoch of shuffled batches", len(images)):
        for start in range(0, len(images), options.batch):
            images.__getitems__(order[start : start + options.batch])
            watch.look()
    if options.out:
        Path(options.out).write_text(json.dumps({**vars(options), "images": count, "steps": watch.steps}) + "\n")


def make_photos(folder: Path, count: int, size: int) -> None:
    """Writes ``count`` JPEG files of blurred noise in two classes; existing files are kept."""
    from PIL import Image

    def make(index: int) -> None:
        path = folder / ("even", "odd")[index % 2] / f"{index // 2:07}.jpg"
        if not path.exists():
            generator = torch.Generator().manual_seed(index)
            noise = torch.randint(256, (16, 16, 3), dtype=torch.uint8, generator=generator)
            Image.fromarray(noise.numpy()).resize((size, size)).save(path, quality=80)

    for name in ("even", "odd"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        for start in range(0, count, 1000):
            list(pool.map(make, range(start, min(start + 1000, count))))


class _Watch:
    """Measures the time of steps, and the largest private memory of the process seen in each."""

    def __init__(self, show: Show) -> None:
        self.show = show
        self.steps: dict[str, dict[str, float]] = {}
        self.most = 0

    def look(self) -> None:
        """Updates the largest private memory, without what is mapped from files."""
        if _STATUS.exists():
            rows = (line.split() for line in _STATUS.read_text().splitlines())
            self.most = max(self.most, *(1024 * int(row[1]) for row in rows if row[0] == "RssAnon:"), 0)

    @contextmanager
    def step(self, name: str, images: int) -> Iterator[None]:
        """Measures the block of a ``with`` statement."""
        self.most, start = 0, time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self.look()
        self.steps[name] = {"seconds": seconds, "images": images, "own_bytes": self.most}
        self.show(
            f"{name}: {images:,} images, {seconds:.1f} s, {images / seconds:,.0f} images a second, "
            f"{self.most / GB:.2f} GB of private memory"
        )


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, description=main.__doc__, allow_abbrev=False)
    parser.add_argument("folder", help="where the photos are written, kept and reused; decoded images go to the cache")
    parser.add_argument("--gigabytes", type=rate, default=20, help="of decoded pixels")
    parser.add_argument("--size", type=positive, default=256, help="height and width of a photo")
    parser.add_argument("--memory", type=amount, default=4, help="GiB of images that are kept in memory")
    parser.add_argument("--batch", type=positive, default=128, help="images of a batch")
    parser.add_argument("--out", help="JSON file to write")
    return parser
