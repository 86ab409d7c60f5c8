"""Simulator processes whose memory has grown are started anew, and nobody's episode notices."""

from __future__ import annotations

import logging
import os
import signal

import pytest
import scripted_env as world
import torch
from pooled_world import await_gone, fields, pool, seeds, with_code

from embodied.errors import ConfigurationError, RefusedInput

pytestmark = pytest.mark.alone


def pids(env) -> list[int]:
    return [process.pid for process in env._shared.processes]


def test_a_process_that_has_grown_is_started_anew_and_its_episodes_go_on(caplog):
    habits = world.Habits(images=True)
    with pool(4, habits, growth_gib=0.1) as env, pool(4, habits, growth_gib=None) as other:
        assert env.recycle() == 0  # nothing to go on with yet
        results = []
        for each in (env, other):
            each.reset(seeds(107, 200, 305, 400))
            each.step(torch.zeros(4, 2, 2), 0, seeds(1, 2, 3, 4))
            assert each.recycle() == 0
            results.append(fields(each.step(with_code(4, 2, 3, world.LEAK), 0, seeds(5, 6, 7, 8))))
        before = pids(env)
        with caplog.at_level(logging.WARNING):
            assert (env.recycle(), other.recycle()) == (1, 0)
        assert "environments 2-3" in caplog.text
        assert "started anew" in caplog.text
        assert pids(env)[0] == before[0]
        assert pids(env)[1] != before[1]
        assert (env.recycled, env.restarts) == (1, 0)
        assert env.recycle() == 0  # what it has now is where it starts from
        for step in range(3):  # the third environment's episode ends at its fifth step
            mine, theirs = (each.step(torch.zeros(4, 1, 2), 0, seeds(*range(step, step + 4))) for each in (env, other))
            assert fields(mine) == fields(theirs)
            assert not mine.failed.any()


def test_episodes_that_were_lost_before_stay_lost():
    with pool(growth_gib=0.1) as env:
        env.reset(seeds(100, 200, 300, 400))
        env.step(torch.zeros(4, 1, 2), 0, seeds(1, 2, 3, 4))
        env.recycle()
        env.step(with_code(4, 1, 0, world.LEAK), 0, seeds(1, 2, 3, 4))
        os.kill(pids(env)[1], signal.SIGKILL)
        assert await_gone(pids(env)[1:])
        assert env.recycle() == 1
        result = env.step(torch.zeros(4, 1, 2), 0, seeds(500, 600, 700, 800))
        assert result.failed.tolist() == [False, False, True, True]
        assert result.observation.state[:, :2].tolist() == [[3, 100], [3, 200], [0, 700], [0, 800]]


def test_it_is_done_between_chunks_only():
    with pool() as env:
        env.reset(seeds(100, 200, 300, 400))
        env.send(torch.zeros(4, 1, 2), 0, seeds(1, 2, 3, 4))
        with pytest.raises(RefusedInput, match="recycle needs idle slots"):
            env.recycle()
        env.recv()


@pytest.mark.parametrize("growth", [0.0, -1.0])
def test_impossible_growth_is_refused(growth):
    with pytest.raises(ConfigurationError, match="growth_gib"):
        pool(growth_gib=growth)
