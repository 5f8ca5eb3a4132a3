from collections.abc import Iterator

import pytest

from tests.report.small import TRAINED


@pytest.fixture(autouse=True, scope="package")
def as_if_trained() -> Iterator[None]:
    """Networks that were not trained have nothing to show, which is tested in
    tests/evaluate/test_verdict.py.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchcaps_lab.explore.explorer.judge", lambda *_: TRAINED)
        yield
