"""What tests of the pool share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pooled_world import pool

from envs.pool import PoolVectorEnv


@pytest.fixture(scope="module")
def four() -> Iterator[PoolVectorEnv]:
    """Four environments, one slot, two processes; every test resets them."""
    with pool() as env:
        yield env
