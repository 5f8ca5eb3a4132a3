"""``import torchcaps`` needs torch alone and is quick."""

import json
import subprocess
import sys

SCRIPT = """
import json, sys, time
import torch
before = set(sys.modules)
start = time.perf_counter()
import torchcaps
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "modules": sorted({name.split(".")[0] for name in set(sys.modules) - before})}))
"""
EXTRAS = {
    "PIL",
    "huggingface_hub",
    "jsonargparse",
    "lightning",
    "matplotlib",
    "pooch",
    "pytorch_lightning",
    "rich",
    "safetensors",
    "scipy",
    "sklearn",
    "tensorboard",
    "torchmetrics",
    "torchvision",
}


def fresh() -> dict:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_import_is_light_and_quick() -> None:
    runs = [fresh() for _ in range(2)]
    assert "torchcaps" in runs[0]["modules"]
    assert not EXTRAS & set(runs[0]["modules"])
    assert min(run["seconds"] for run in runs) < 0.3  # the work, not what else the machine was doing
