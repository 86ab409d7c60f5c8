"""The VLA policies with their parameters sharded over two real processes."""

from __future__ import annotations

import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from test_vla_policy import KINDS, build, noise, shown

from embodied.learner.sharding import shard
from policies.api import Sampling


def step(policy, inputs, tokens):
    found = policy.evaluate(inputs, tokens, Sampling())
    (found.logprobs.sum() + found.value.sum()).backward()


def compare(rank, kind, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    dist.init_process_group("gloo")
    alone, sharded = build(kind), build(kind)
    inputs = alone.prepare(shown())
    with torch.no_grad():
        expected = alone.act(inputs, Sampling(), noise())
    shard(sharded, sharded.blocks(), ["act", "evaluate"], dist.group.WORLD, "cpu")
    with torch.no_grad():
        acted = sharded.act(inputs, Sampling(), noise())
    assert torch.equal(acted.tokens, expected.tokens)
    step(alone, inputs, expected.tokens)
    step(sharded, inputs, expected.tokens)
    gradients = {name: p.grad for name, p in alone.named_parameters() if p.grad is not None}
    found = {name: p.grad.full_tensor() for name, p in sharded.named_parameters() if p.grad is not None}
    assert found.keys() == gradients.keys()
    for name, gradient in found.items():  # both ranks saw the same rows, and their gradients are summed
        torch.testing.assert_close(gradient, 2 * gradients[name], atol=1e-5, rtol=1e-4)
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_sharded_policy_acts_and_learns_as_the_whole_one(kind):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(compare, args=(kind, port), nprocs=2)
