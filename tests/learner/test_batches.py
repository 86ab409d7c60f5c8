"""Which samples make up which step."""

import pytest
import torch

from embodied.learner.batches import plan_steps


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
