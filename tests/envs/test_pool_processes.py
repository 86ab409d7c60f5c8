"""How worker processes start and end: progress, reasons, pinning, and nothing left behind."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import scripted_env as world
import torch
from pooled_world import HERE, ROOT, await_gone, pool, seeds

from embodied.errors import AssetError, ConfigurationError, DeadlineExceeded, SimulatorError
from envs.api import Assignments
from envs.pool import PoolVectorEnv
from envs.pool.process import free_cores

pytestmark = pytest.mark.alone


@pytest.mark.parametrize(
    ("fault", "error", "messages"),
    [
        ("raise", SimulatorError, ["Traceback", "ValueError: no such mesh", "phase 'build'"]),
        ("ask", SimulatorError, ["Traceback", "EOFError", "phase 'build'"]),
        ("segfault", SimulatorError, ["SIGSEGV", "_fail_to_start", "phase 'build'"]),
        ("hang", DeadlineExceeded, ['File "', "start_seconds=5", "in phase"]),
        ("refuse", AssetError, ["run the fetch command", "phase 'build'"]),
    ],
)
def test_start_that_fails_says_why_and_where(fault: str, error: type, messages: list[str]):
    with pytest.raises(error) as caught:
        pool(1, world.Habits(start_fault=fault), processes=1, start_seconds=5.0 if fault == "hang" else 60.0)
    positions = [str(caught.value).find(message) for message in messages]
    assert -1 not in positions, str(caught.value)
    assert positions[0] == min(positions)
    assert "test/scripted: simulator process" in str(caught.value)


def test_progress_of_every_process_is_reported_while_starting():
    seen: list[tuple[int, str]] = []
    config = world.config(4, processes=2)
    make_batch = functools.partial(world.make_batch, world.Habits())
    with PoolVectorEnv(make_batch, config, on_progress=lambda process, phase, _: seen.append((process, phase))):
        for process in range(2):
            assert [phase for p, phase in seen if p == process] == ["import", "build", "attach", "ready"]


def test_closing_ends_the_processes_and_results_stay_readable():
    env = pool()
    env.reset(seeds(100, 200, 300, 400))
    result = env.step(torch.zeros(4, 1, 2), 0, seeds(0, 0, 0, 0))
    pids = [process.pid for process in env._shared.processes]
    env.close()
    env.close()
    assert await_gone(pids, 1)
    assert result.reward.tolist() == [[1], [1], [1], [1]]


def test_forgotten_pool_is_closed_with_its_last_reference():
    env = pool()
    pids = [process.pid for process in env._shared.processes]
    del env
    assert await_gone(pids)


def run_parent(script: str) -> subprocess.Popen[str]:
    """A parent process that makes a pool without a main guard and prints its workers' pids."""
    prelude = f"""
        import functools, os, signal, sys, time
        sys.path[:0] = [{ROOT!r}, {HERE!r}]
        import scripted_env as world, torch
        from envs.api import Assignments
        from envs.pool import PoolVectorEnv
        env = PoolVectorEnv(functools.partial(world.make_batch, world.Habits()), world.config(4, processes=2))
        env.reset(Assignments.from_seeds([100] * 4))
        print(*(process.pid for process in env._shared.processes), flush=True)
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


HANGING_CHUNK = """
actions = torch.zeros(4, 1, 2)
actions[:, 0, 0] = world.HANG
env.send(actions, 0, Assignments.from_seeds([0] * 4))
"""


@pytest.mark.parametrize(
    "script",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        HANGING_CHUNK + "os.kill(os.getpid(), signal.SIGKILL)",
        "raise ValueError",
    ],
    ids=["killed", "killed while workers hang", "exception"],
)
def test_workers_end_with_their_parent_and_leave_no_shared_memory(script: str):
    before = set(os.listdir("/dev/shm"))
    parent = run_parent(script)
    output, _ = parent.communicate(timeout=60)
    assert await_gone([int(pid) for pid in output.split()], 5)
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "embodied" in name]


def test_ctrl_c_ends_parent_and_workers_without_noise_from_workers():
    parent = run_parent(HANGING_CHUNK + "env.recv(0)")
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    time.sleep(0.3)
    os.killpg(parent.pid, signal.SIGINT)  # as the terminal does: to the whole foreground group
    _, errors = parent.communicate(timeout=30)
    assert await_gone(pids, 5)
    assert errors.count("KeyboardInterrupt") == 1


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs as many cores as processes")
def test_workers_are_pinned_to_different_cores_if_there_are_enough(four: PoolVectorEnv):
    pinned = [os.sched_getaffinity(process.pid) for process in four._shared.processes]
    assert all(len(own) == 1 for own in pinned)
    assert len(set.union(*pinned)) == 2
    assert set(free_cores(len(os.sched_getaffinity(0)))) == os.sched_getaffinity(0)


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) > 8, reason="would start one process more than there are cores")
def test_more_workers_than_cores_are_left_unpinned():
    count = len(os.sched_getaffinity(0)) + 1
    with pool(count, processes=count) as env:
        env.reset(Assignments.from_seeds(range(count)))
        assert os.sched_getaffinity(env._shared.processes[0].pid) == os.sched_getaffinity(0)


def test_factories_that_workers_cannot_import_are_refused():
    with pytest.raises(ConfigurationError, match="processes=0"):
        PoolVectorEnv(lambda n: world.make_batch(world.Habits(), n), world.config(2, processes=1))


def test_going_on_without_the_only_process_is_refused():
    with pytest.raises(ConfigurationError, match=r"processes=1 there is no other to go on with"):
        pool(1, processes=None, straggler_seconds=1.0)
