"""``torchcaps evaluate`` prints the figures of two classes, and takes another positive
class.
"""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

import torchcaps as tc
from torchcaps_lab.cli import main


def folder_of_two(root: Path) -> Path:
    for place, name in enumerate(("healthy", "ill")):
        (root / name).mkdir(parents=True)
        for number in range(4):
            Image.new("L", (8, 8), 60 * place + 10 * number).save(
                root / name / f"{number}.png"
            )
    return root


def test_evaluate_of_two_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    network = tc.create_model("capsnet_digits", classes=2)
    network.save_pretrained(tmp_path / "net", classes=["healthy", "ill"])
    images = folder_of_two(tmp_path / "images")
    command = [
        "evaluate",
        str(tmp_path / "net"),
        "--data",
        "ImageFolder",
        "--data.root",
        str(images),
        "--split",
        "all",
    ]
    main(command)
    assert "(positive class: ill)" in capsys.readouterr().out
    main([*command, "--positive", "healthy", "--json"])
    actual = json.loads(capsys.readouterr().out)
    assert actual["positive"] == "healthy"
    assert 0 <= actual["auc"] <= 1
    assert actual["sensitivity"] == actual["per_class"]["healthy"]["recall"]
    assert actual["specificity"] == actual["per_class"]["ill"]["recall"]
