import pytest


@pytest.fixture(autouse=True, scope="module")
def small_reports() -> None:
    """Reports show as many images here as elsewhere than in tests."""
