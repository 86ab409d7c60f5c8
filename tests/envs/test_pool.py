"""Worker processes give what the same simulators give in this process, in any number and order of slots."""

from __future__ import annotations

import functools
import time

import pytest
import scripted_env as world
import torch
from pooled_world import fields, pool, seeds, with_code

import envs
from embodied.errors import DeadlineExceeded, RefusedInput, SimulatorError
from envs.api import StepResult
from envs.local import LocalVectorEnv
from envs.pool import PoolVectorEnv
from envs.slots import split_evenly


def test_pool_gives_what_the_same_simulators_give_in_this_process():
    """Seven environments a slot over two processes (3 + 4), chunks of several lengths, two slots under way at once."""
    habits = world.Habits(images=True, episode_steps=9)
    config = world.config(14, slots=2, processes=2)
    make_batch = functools.partial(world.make_batch, habits)
    generator = torch.Generator().manual_seed(0)
    table = seeds(*range(301, 315))
    with LocalVectorEnv(make_batch, config) as local, PoolVectorEnv(make_batch, config) as pooled:
        assert local.reset(table).state.tolist() == pooled.reset(table).state.tolist()
        for chunk, steps in enumerate([1, 4, 2, 7, 7, 3]):
            actions = torch.rand(14, steps, 2, generator=generator)
            following = seeds(*range(chunk * 100 + 2, chunk * 100 + 16))
            for env in (local, pooled):
                for slot in (1, 0):
                    env.send(actions[env.rows(slot)], slot, following[env.rows(slot)])
            for slot in (0, 1):
                assert fields(local.recv(slot)) == fields(pooled.recv(slot))
        assert torch.equal(local.render([13, 0]), pooled.render([13, 0]))
        saved = pooled.state_dict()
        assert all(torch.equal(value, saved[name]) for name, value in local.state_dict().items() if name != "id")


@pytest.mark.slow
def test_states_move_between_numbers_of_processes():
    actions = torch.rand(6, 5, 2)
    with pool(6) as two, pool(6, processes=1) as one:
        two.reset(seeds(*range(6)))
        two.step(actions, 0, seeds(*range(6)))
        one.load_state_dict(two.state_dict())
        assert fields_without_images(one.step(actions, 0, seeds(*range(6)))) == fields_without_images(
            two.step(actions, 0, seeds(*range(6)))
        )


def fields_without_images(result: StepResult) -> list[object]:
    return [result.reward.tolist(), result.observation.state.tolist(), result.episodes.returns.tolist()]


def test_ready_tells_whether_recv_would_wait(four: PoolVectorEnv):
    env = four
    env.reset(seeds(100, 200, 300, 400))
    assert not env.ready(0)
    env.send(torch.zeros(4, 1, 2), 0, seeds(0, 0, 0, 0))
    until = time.monotonic() + 5
    while not env.ready(0):
        assert time.monotonic() < until
    env.recv(0)
    assert not env.ready(0)


def test_ready_is_true_for_a_chunk_that_failed(four: PoolVectorEnv):
    four.reset(seeds(100, 200, 300, 400))
    four.send(with_code(4, 1, 2, world.RAISE), 0, seeds(0, 0, 0, 0))
    until = time.monotonic() + 5
    while not four.ready(0):
        assert time.monotonic() < until
    with pytest.raises(SimulatorError):
        four.recv(0)


def test_first_ready_names_the_slots_that_are_done():
    with pool(4, slots=2, processes=2) as env:
        env.reset(seeds(100, 200, 300, 400))
        with pytest.raises(RefusedInput, match="without a send"):
            env.first_ready()
        env.send(with_code(2, 1, 0, world.NAP), 0, seeds(0, 0))
        with pytest.raises(DeadlineExceeded, match="none of the slots 0 "):
            env.first_ready([0], seconds=0.1)
        assert env.first_ready() == [0]
        assert env.recv(0).reward[1, 0] == 1
        env.send(torch.zeros(2, 1, 2), 1, seeds(0, 0))
        env.send(torch.zeros(2, 1, 2), 0, seeds(0, 0))
        waiting = {0, 1}
        while waiting:
            for slot in env.first_ready(sorted(waiting)):
                env.recv(slot)
                waiting.remove(slot)


def test_rows_are_split_contiguously_and_evenly():
    assert split_evenly(10, 17, 3) == [(10, 12), (12, 14), (14, 17)]
    assert split_evenly(0, 4, 4) == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_make_uses_processes_unless_told_otherwise():
    with envs.make("gym/CartPole-v1", num_envs=2, processes=1) as env:
        assert isinstance(env, PoolVectorEnv)
        assert env.reset(seeds(1, 2)).state.shape == (2, 4)
    with envs.make("gym/CartPole-v1", num_envs=2, processes=0) as env:
        assert isinstance(env, LocalVectorEnv)
