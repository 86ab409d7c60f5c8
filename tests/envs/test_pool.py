"""Worker processes: the same results as in this process, and what happens when one dies, hangs or cannot start."""

from __future__ import annotations

import functools
import logging
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator

import pytest
import scripted_env as world
import torch

import envs
from embodied.errors import AssetError, ConfigurationError, DeadlineExceeded, RefusedInput, SimulatorError
from envs.api import Assignments, StepResult
from envs.local import LocalVectorEnv
from envs.pool import PoolVectorEnv
from envs.pool.process import free_cores
from envs.slots import split_evenly

HERE = str(pathlib.Path(__file__).parent)
ROOT = str(pathlib.Path(__file__).parents[2])


def pool(num_envs: int = 4, habits: world.Habits | None = None, **options: object) -> PoolVectorEnv:
    options = {"processes": 2, **options}
    return PoolVectorEnv(
        functools.partial(world.make_batch, habits or world.Habits()), world.config(num_envs, **options)
    )


@pytest.fixture(scope="module")
def four() -> Iterator[PoolVectorEnv]:
    """Four environments, one slot, two processes; every test resets them."""
    with pool() as env:
        yield env


def seeds(*values: int) -> Assignments:
    return Assignments.from_seeds(values)


def with_code(num_envs: int, steps: int, row: int, code: float) -> torch.Tensor:
    actions = torch.zeros(num_envs, steps, 2)
    actions[row, -1, 0] = code
    return actions


def is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def await_gone(pids: list[int], seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if all(is_gone(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def fields(result: StepResult) -> list[object]:
    final = result.final_observation
    tensors = [result.reward, result.terminated, result.truncated, result.success, result.valid, result.ended]
    tensors += [result.final_rows, result.episodes.length, result.episodes.returns, result.observation.images]
    shown = [result.observation.instruction, None if final is None else final.images.tolist()]
    return [tensor.tolist() for tensor in tensors] + shown


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


@pytest.mark.parametrize(("code", "name"), [(world.SEGFAULT, "SIGSEGV"), (world.KILL, "SIGKILL")])
def test_process_that_dies_costs_only_its_running_episodes(
    four: PoolVectorEnv, code: float, name: str, caplog: pytest.LogCaptureFixture
):
    env, restarts = four, four.restarts
    env.reset(seeds(100, 200, 300, 400))
    env.step(torch.zeros(4, 3, 2), 0, seeds(0, 0, 0, 0))
    with caplog.at_level(logging.WARNING):
        result = env.step(with_code(4, 2, 3, code), 0, seeds(500, 600, 700, 800))
    assert result.failed.tolist() == [False, False, True, True]
    assert result.valid.tolist() == [[True, True]] * 2 + [[False, False]] * 2
    assert not result.ended.any()
    assert result.reward.tolist() == [[4, 5], [4, 5], [0, 0], [0, 0]]
    assert result.observation.state[:, :2].tolist() == [[5, 100], [5, 200], [0, 700], [0, 800]]
    assert result.episodes.assignments.seed.tolist() == [100, 200, 300, 400]
    assert env.restarts == restarts + 1
    assert name in caplog.text
    assert "environments 2-3" in caplog.text
    assert "_misbehave" in caplog.text or code == world.KILL  # the crashed process's own stack

    result = env.step(torch.zeros(4, 1, 2), 0, seeds(0, 0, 0, 0))
    assert not result.failed.any()
    assert result.reward[:, 0].tolist() == [6, 6, 1, 1]
    assert result.episodes.assignments.seed.tolist() == [100, 200, 700, 800]
    assert result.episodes.length.tolist() == [6, 6, 1, 1]


@pytest.mark.slow
def test_without_next_assignments_lost_episodes_begin_again():
    with pool(auto_reset="disabled") as env:
        env.reset(seeds(100, 200, 300, 400))
        result = env.step(with_code(4, 2, 0, world.KILL))
        assert result.failed.tolist() == [True, True, False, False]
        assert result.observation.state[:, :2].tolist() == [[0, 100], [0, 200], [2, 300], [2, 400]]


def test_death_in_one_slot_is_reported_by_every_slot_of_the_process():
    with pool(4, slots=2) as env:
        env.reset(seeds(100, 200, 300, 400))
        env.send(torch.zeros(2, 1, 2), 1, seeds(1000, 1100))
        env.recv(1)
        result = env.step(with_code(2, 1, 0, world.KILL), 0, seeds(500, 600))
        assert result.failed.tolist() == [True, False]
        saved = env.state_dict()
        result = env.step(torch.zeros(2, 2, 2), 1, seeds(700, 800))
        assert result.failed.tolist() == [True, False]
        assert result.valid.tolist() == [[False, False], [True, True]]
        assert result.observation.state[:, :2].tolist() == [[0, 700], [3, 400]]
        assert env.step(torch.zeros(2, 1, 2), 1, seeds(0, 0)).reward[:, 0].tolist() == [1, 4]

        env.load_state_dict(saved)
        result = env.step(torch.zeros(2, 2, 2), 1, seeds(700, 800))
        assert result.failed.tolist() == [True, False]
        assert result.observation.state[:, :2].tolist() == [[0, 700], [3, 400]]


def test_hung_process_is_replaced_at_its_deadline_and_its_stack_reported(caplog: pytest.LogCaptureFixture):
    with pool(step_seconds=2.0) as env:
        env.reset(seeds(100, 200, 300, 400))
        pids = [process.pid for process in env._shared.processes]
        with caplog.at_level(logging.WARNING):
            result = env.step(with_code(4, 1, 0, world.HANG), 0, seeds(500, 600, 700, 800))
        assert result.failed.tolist() == [True, True, False, False]
        assert result.observation.state[:, 1].tolist() == [500, 600, 300, 400]
        assert "_misbehave" in caplog.text
        assert is_gone(pids[0])
        assert not is_gone(pids[1])


@pytest.mark.slow
def test_process_that_dies_again_and_again_ends_the_run():
    with pool() as env:
        env.reset(seeds(100, 200, 300, 400))
        for _ in range(3):
            env.step(with_code(4, 1, 0, world.KILL), 0, seeds(0, 0, 0, 0))
        with pytest.raises(SimulatorError, match="died 4 times"):
            env.step(with_code(4, 1, 0, world.KILL), 0, seeds(0, 0, 0, 0))
        assert env.restarts == 4


def test_exception_in_a_simulator_shows_the_childs_traceback_first_and_names_its_environments(
    four: PoolVectorEnv,
):
    env, restarts = four, four.restarts
    env.reset(seeds(100, 200, 300, 400))
    with pytest.raises(SimulatorError) as caught:
        env.step(with_code(4, 1, 2, world.RAISE), 0, seeds(0, 0, 0, 0))
    text = str(caught.value)
    assert text.startswith("Traceback")
    assert "ValueError: the scripted world refuses" in text
    assert "simulator process 1 (environments 2-3)" in text
    env.reset(seeds(100, 200, 300, 400))
    assert env.step(torch.zeros(4, 1, 2), 0, seeds(0, 0, 0, 0)).valid.all()
    assert env.restarts == restarts


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


def test_batch_goes_on_without_a_process_that_is_far_too_slow(caplog: pytest.LogCaptureFixture):
    with pool(straggler_seconds=0.2) as env:
        env.reset(seeds(100, 200, 300, 400))
        with caplog.at_level(logging.WARNING):
            began = time.monotonic()
            result = env.step(with_code(4, 2, 0, world.NAP), 0, seeds(500, 600, 700, 800))
            assert time.monotonic() - began < 1.4
        assert "is left behind" in caplog.text
        assert "environments 0-1" in caplog.text
        assert "_misbehave" in caplog.text
        assert (env.left_behind, env.restarts) == (1, 0)
        assert result.failed.tolist() == [True, True, False, False]
        assert result.valid.tolist() == [[False] * 2] * 2 + [[True] * 2] * 2
        assert result.reward.tolist() == [[0, 0], [0, 0], [1, 2], [1, 2]]
        assert result.episodes.length.tolist() == [0, 0, 2, 2]
        # still busy: not waited for again, and what it does meanwhile shows nowhere
        again = env.step(torch.zeros(4, 2, 2), 0, seeds(501, 601, 701, 801))
        assert again.failed.tolist() == [True, True, False, False]
        assert again.reward.tolist() == [[0, 0], [0, 0], [3, 4], [3, 4]]
        time.sleep(1.6)
        assert result.reward.tolist() == [[0, 0], [0, 0], [1, 2], [1, 2]]
        # done: it starts the episodes it is given now, and takes part in the chunk after that
        back = env.step(torch.zeros(4, 1, 2), 0, seeds(520, 620, 720, 820))
        assert back.failed.tolist() == [True, True, False, False]
        assert back.valid[:, 0].tolist() == [False, False, True, True]
        assert back.observation.state[:, :2].tolist() == [[0, 520], [0, 620], [5, 300], [5, 400]]
        after = env.step(torch.zeros(4, 1, 2), 0, seeds(0, 0, 0, 0))
        assert not after.failed.any()
        assert after.reward[:, 0].tolist() == [1, 1, 6, 6]
        assert after.episodes.assignments.seed.tolist() == [520, 620, 300, 400]
        # a chunk of another length lies differently in memory, so the process is waited for before it begins
        env.step(with_code(4, 2, 0, world.NAP), 0, seeds(503, 603, 703, 803))
        other = env.step(torch.zeros(4, 1, 2), 0, seeds(504, 604, 704, 804))
        assert other.observation.state[:, :2].tolist() == [[0, 504], [0, 604], [9, 300], [9, 400]]


def test_all_are_waited_for_without_straggler_seconds_and_slowness_is_reported(caplog: pytest.LogCaptureFixture):
    with pool() as env:
        env.reset(seeds(100, 200, 300, 400))
        for _ in range(12):
            env.step(torch.zeros(4, 1, 2), 0, seeds(0, 0, 0, 0))
        with caplog.at_level(logging.WARNING):
            result = env.step(with_code(4, 1, 3, world.NAP), 0, seeds(0, 0, 0, 0))
        assert result.valid.all()
        assert env.pace.slow_chunks.tolist() == [0, 1]
        assert "environments 2-3" in caplog.text
        assert "is slow: a chunk took 1.5" in caplog.text
        assert env.pace.usual_seconds(0) < 0.1


def test_process_that_died_while_idle_is_replaced_when_the_state_is_saved(four: PoolVectorEnv):
    four.reset(seeds(100, 200, 300, 400))
    four.step(torch.zeros(4, 2, 2), 0, seeds(0, 0, 0, 0))
    os.kill(four._shared.processes[0].pid, signal.SIGKILL)
    four._shared.processes[0]._popen.wait()
    saved = four.state_dict()
    assert saved["length"].tolist() == [0, 0, 2, 2]
    assert saved["lost"].tolist() == [True, True, False, False]
    result = four.step(torch.zeros(4, 1, 2), 0, seeds(500, 600, 700, 800))
    assert result.failed.tolist() == [True, True, False, False]
    assert result.observation.state[:, :2].tolist() == [[0, 500], [0, 600], [3, 300], [3, 400]]


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


def test_rows_are_split_contiguously_and_evenly():
    assert split_evenly(10, 17, 3) == [(10, 12), (12, 14), (14, 17)]
    assert split_evenly(0, 4, 4) == [(0, 1), (1, 2), (2, 3), (3, 4)]


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


def test_make_uses_processes_unless_told_otherwise():
    with envs.make("gym/CartPole-v1", num_envs=2, processes=1) as env:
        assert isinstance(env, PoolVectorEnv)
        assert env.reset(seeds(1, 2)).state.shape == (2, 4)
    with envs.make("gym/CartPole-v1", num_envs=2, processes=0) as env:
        assert isinstance(env, LocalVectorEnv)
