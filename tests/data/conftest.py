from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def empty_data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the data sets of the machine, and none writes into the user's
    cache.
    """
    monkeypatch.delenv("TORCHCAPS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
