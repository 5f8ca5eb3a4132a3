import pytest

from tests.report.small import TRAINED


@pytest.fixture(autouse=True, scope="module")
def small_reports() -> None:
    """Here reports show as many images as they do outside of tests."""


@pytest.fixture(autouse=True)
def as_if_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks that were not trained have nothing to show, which is tested in
    tests/evaluate/test_verdict.py.
    """
    monkeypatch.setattr("torchcaps_lab.report.observe.judge", lambda *_: TRAINED)
