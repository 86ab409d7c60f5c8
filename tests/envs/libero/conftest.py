"""Environments that several tests share: building a scene takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from envs.api import Assignments
from envs.libero.batch import LiberoBatch
from envs.libero.config import LiberoConfig
from envs.libero.factory import make_batch


def assign(*rows: tuple[int, int, int]) -> Assignments:
    """(task, initial state, seed) of each environment."""
    return Assignments.unstack(torch.tensor(rows, dtype=torch.int64))


def all_rows(batch: LiberoBatch) -> torch.Tensor:
    return torch.arange(batch.num_envs)


def everyone(batch: LiberoBatch) -> torch.Tensor:
    return torch.ones(batch.num_envs, dtype=torch.bool)


@pytest.fixture(scope="session", params=["faithful", "fast"])
def pair(request: pytest.FixtureRequest) -> Iterator[LiberoBatch]:
    """Two environments of all spatial tasks, without cameras, in either mode."""
    batch = make_batch(LiberoConfig(id="libero/libero_spatial", mode=request.param, cameras=()), 2)
    yield batch
    batch.close()


@pytest.fixture(scope="session")
def stove() -> Iterator[LiberoBatch]:
    """One faithful environment with small pictures of the scene of libero_goal."""
    config = LiberoConfig(id="libero/libero_goal:turn_on_the_stove", image_size=64)
    batch = make_batch(config, 1)
    yield batch
    batch.close()
