import pytest


@pytest.fixture(autouse=True, scope="module")
def small_reports() -> None:
    """Here reports show as many images as they do outside of tests."""
