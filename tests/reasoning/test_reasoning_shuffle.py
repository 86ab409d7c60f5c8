"""The order in which responses are learnt from."""

import itertools

import torch
from torch import nn

from embodied.learner.learner import LearnerConfig
from embodied.scheduler.trace import Trace
from embodied.scheduler.worker import WorkerContext
from reasoning.training.algorithm import Samples
from reasoning.training.pieces import LayoutConfig
from reasoning.training.trained import TrainedWorker

COUNT = 12


def responses() -> Samples:
    """Of one token each, after a prompt of one."""
    each = {name: torch.zeros(COUNT, 1) for name in ("old_logprobs", "engine_logprobs", "reference", "state_values")}
    return Samples(
        sequence=torch.ones(COUNT, 2, dtype=torch.int64),
        prompt_length=torch.ones(COUNT, dtype=torch.int64),
        length=torch.ones(COUNT, dtype=torch.int64),
        mask=torch.ones(COUNT, 1, dtype=torch.bool),
        advantages=torch.ones(COUNT, 1),
        returns=torch.ones(COUNT, 1),
        oldest=torch.zeros(COUNT, dtype=torch.int64),
        order=torch.arange(COUNT),
        batch_size=[COUNT],
        **each,
    )


def passes(folder, seed, role="actor"):
    """The orders in which the responses are learnt from, in two passes over each of two rollouts."""
    worker = TrainedWorker(WorkerContext("learner", 0, 1, "cpu", seed, Trace(), 30.0))
    worker.build(nn.Linear(1, 1), role, "forward", LearnerConfig(epochs=2, global_batch=4), LayoutConfig(), folder)
    seen, samples = [], responses()

    def share_of(batch, first):
        seen.append(batch.order.tolist())
        return lambda piece: (worker.module(piece.advantages).sum(), {})

    for iteration in range(2):
        worker.epochs(samples, samples[:1], worker.everywhere(samples), iteration, share_of)
    assert [len(orders) for orders in seen] == [4] * 12
    orders = list(itertools.chain(*seen))
    return [orders[start : start + COUNT] for start in range(0, 4 * COUNT, COUNT)]


def test_every_pass_over_every_rollout_is_shuffled_anew_and_by_the_seed_alone(tmp_path):
    found = passes(tmp_path, seed=5)
    assert all(sorted(order) == list(range(COUNT)) for order in found)
    everyone = [*found, *passes(tmp_path, seed=6), *passes(tmp_path, seed=5, role="critic"), list(range(COUNT))]
    assert len({tuple(order) for order in everyone}) == 13
    assert passes(tmp_path, seed=5) == found
