"""Run folders of the report's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_run import make_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def bare(tmp_path) -> Path:
    """A run folder of the test's own, without videos."""
    return make_run(tmp_path, videos=False)
