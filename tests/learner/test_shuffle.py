"""The order in which samples are learnt from: anew in every pass, and the same on any number of ranks."""

import itertools

import pytest
import torch

from embodied.learner.batches import plan_steps

COUNT, BATCH = 14, 4


def batches(order, owner, ranks):
    """The places of the samples of each step, of all ranks together."""
    found = []
    for rank in range(ranks):
        steps = plan_steps(
            order, owner, rank, batch=BATCH, micro_batch=None, generator=torch.Generator().manual_seed(3)
        )
        found.append([order[owner == rank][step.rows].tolist() for step in steps])
    return [sorted(itertools.chain(*parts)) for parts in zip(*found, strict=True)]


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (list(range(7, 14)), "one half each"),
        ([2, 3, 6, 7, 10, 11], "environments side by side: at every decision two of the first rank, two of the second"),
        ([13, 1, 8], "pieces in another order than their places"),
        ([], "a rank without samples"),
    ],
)
def test_ranks_together_step_on_the_batches_of_a_run_on_one(second, why):
    one = batches(torch.arange(COUNT), torch.zeros(COUNT, dtype=torch.int64), 1)
    assert sorted(itertools.chain(*one)) == list(range(COUNT))
    assert one != [sorted(part.tolist()) for part in torch.arange(COUNT).tensor_split(4)]
    first = [place for place in range(COUNT) if place not in second]
    order = torch.tensor(first + second)
    owner = torch.tensor([0] * len(first) + [1] * len(second))
    assert batches(order, owner, 2) == one, why


def test_samples_held_in_any_order_make_the_same_batches():
    held = torch.tensor([5, 0, 13, 2, 9, 1, 12, 4, 3, 11, 6, 10, 8, 7])
    alone = torch.zeros(COUNT, dtype=torch.int64)
    assert batches(held, alone, 1) == batches(torch.arange(COUNT), alone, 1)
