"""Memory over many episodes with pictures; a thousand resets are in benchmarks/results/soak.md."""

from __future__ import annotations

import psutil
import pytest
import torch

from envs.api import Assignments
from envs.libero.config import LiberoConfig
from envs.libero.factory import make_batch


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "tasks"), [("libero_spatial", 10), ("libero_object", 3)])
def test_memory_does_not_grow_with_resets_and_pictures(suite, tasks):
    """libero_object: scenes are exchanged, since each task has its own."""
    batch = make_batch(LiberoConfig(id=f"libero/{suite}", mode="fast", image_size=32), 2)
    rows, everyone, sizes = torch.arange(2), torch.ones(2, dtype=torch.bool), []
    for number in range(90):
        seeds = rows + 2 * number
        batch.reset(rows, Assignments(seeds % tasks, torch.full_like(rows, -1), seeds))
        batch.step(torch.zeros(2, batch.spec.action.dim), everyone)
        batch.observe()
        if number in (30, 89):
            sizes.append(psutil.Process().memory_info().rss / 2**20)
    batch.close()
    assert sizes[1] - sizes[0] < 20
