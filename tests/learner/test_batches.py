"""Which samples make up which step."""

import pytest
import torch

from embodied.learner.batches import plan_steps
from reasoning.training.pieces import LayoutConfig, plan


def steps(count, batch):
    owner = torch.zeros(count, dtype=torch.int64)
    generator = torch.Generator().manual_seed(0)
    return plan_steps(torch.arange(count), owner, 0, batch=batch, micro_batch=None, generator=generator)


@pytest.mark.parametrize(
    ("count", "batch", "sizes"), [(256, 128, [128, 128]), (257, 128, [86, 86, 85]), (3, 128, [3]), (5, None, [5])]
)
def test_a_remainder_is_shared_out_instead_of_making_a_step_of_its_own(count, batch, sizes):
    planned = steps(count, batch)
    assert [len(step.rows) for step in planned] == sizes
    assert sorted(torch.cat([step.rows for step in planned]).tolist()) == list(range(count))


@pytest.mark.parametrize(
    ("count", "batch", "steps"), [(9, 2, 4), (13, 2, 6), (25, 3, 8), (10, 4, 2), (3, 8, 1), (45, 10, 4)]
)
def test_the_number_of_steps_may_be_the_nearest_one(count, batch, steps):
    order, owner = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    generator = torch.Generator().manual_seed(0)
    found = plan_steps(order, owner, 0, batch=batch, micro_batch=None, generator=generator, nearest=True)
    assert len(found) == steps
    assert sorted(int(row) for step in found for row in step.rows) == list(range(count))
    lengths = torch.stack([order, owner, torch.full((count,), 5)], 1)
    assert len(plan(lengths, 0, LayoutConfig(), batch=batch, generator=torch.Generator().manual_seed(0))) == steps
