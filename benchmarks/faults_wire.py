"""Small files that ask for large networks, for ``python -m benchmarks faults``."""

import json
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.faults import fault
from torchcaps.models import create_model, load_pretrained

MOST_SECONDS = 10
HUGE = (10**6, 50_000, 3_000)


@fault(
    "saved networks that ask for more than their weights",
    "refused at once, with the name of the file",
)
def greedy_networks(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Opens small networks whose configuration holds a large number or a long list in
    place of a value.
    """
    create_model("capsnet_digits").save_pretrained(folder)
    path = folder / "config.json"
    config: dict[str, Any] = json.loads(path.read_text())
    names = [
        name
        for name in config["arguments"]
        if name in ("image_shape", "classes", "channels", "types", "pose_dim")
    ]
    for _ in range(max(count, 12)):
        name = chance.choice([*names, "decoder_hidden"])
        size = chance.choice(HUGE)
        value = {
            "image_shape": [1, size, size],
            "decoder_hidden": chance.choice(([1] * 200_000, [size, size])),
        }
        arguments = {**config["arguments"], name: value.get(name, size)}
        path.write_text(json.dumps({**config, "arguments": arguments}))
        begun = time.process_time()
        refused = False
        with suppress(MemoryError):
            try:
                load_pretrained(folder)
            except ValueError as error:
                refused = "config.json" in str(error)
        yield refused and time.process_time() - begun < MOST_SECONDS
