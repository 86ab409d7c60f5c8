"""Simulator processes that die, hang, raise or are far too slow: what it costs, and what is said."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
import scripted_env as world
import torch
from pooled_world import is_gone, pool, seeds, with_code

from embodied.errors import CorrectnessAlarm, SimulatorError
from envs.pool import PoolVectorEnv
from envs.pool.worker import DONE, REQUESTED

pytestmark = pytest.mark.alone


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


def await_done(env: PoolVectorEnv, process: int, seconds: float = 30.0) -> None:
    control, until = env._control[process, 0], time.monotonic() + seconds
    while control[REQUESTED] != control[DONE]:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_batch_goes_on_without_a_process_that_is_far_too_slow(caplog: pytest.LogCaptureFixture, tmp_path: Path):
    """It stays in a step until the gate is opened, so whatever comes before that came without it. The sound process
    has `straggler_seconds` too, while it is all that is waited for: more than a busy machine takes."""
    gate = tmp_path / "gate"
    with pool(habits=world.Habits(gate=str(gate)), straggler_seconds=1.5, step_seconds=30.0) as env:
        env.reset(seeds(100, 200, 300, 400))
        with caplog.at_level(logging.WARNING):
            result = env.step(with_code(4, 2, 0, world.STAY), 0, seeds(500, 600, 700, 800))
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
        gate.touch()
        await_done(env, 0)
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
        gate.unlink()
        env.step(with_code(4, 2, 0, world.STAY), 0, seeds(503, 603, 703, 803))
        threading.Timer(0.3, gate.touch).start()
        other = env.step(torch.zeros(4, 1, 2), 0, seeds(504, 604, 704, 804))
        assert (env.left_behind, env.restarts) == (2, 0)
        assert other.observation.state[:, :2].tolist() == [[0, 504], [0, 604], [9, 300], [9, 400]]


def test_all_are_waited_for_without_straggler_seconds_and_slowness_is_reported(caplog: pytest.LogCaptureFixture):
    with pool() as env:
        env.reset(seeds(100, 200, 300, 400))
        for _ in range(12):
            env.step(torch.zeros(4, 1, 2), 0, seeds(0, 0, 0, 0))
        usual = env.pace.usual_seconds(0)
        with caplog.at_level(logging.WARNING):
            result = env.step(with_code(4, 1, 3, world.NAP), 0, seeds(0, 0, 0, 0))
        assert result.valid.all()
        assert env.pace.slow_chunks.tolist() == [0, 1]
        assert "environments 2-3" in caplog.text
        told = re.search(r"is slow: a chunk took ([\d.]+) s", caplog.text)
        assert told is not None
        assert float(told[1]) >= 1.5
        assert env.pace.usual_seconds(0) == usual  # which an exception does not change


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


def die_over_the_next_command(env: PoolVectorEnv, process: int, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = env._shared.processes[process]

    def die(_: object) -> None:
        handle._popen.kill()
        handle._popen.wait()

    monkeypatch.setattr(handle, "send", die)


@pytest.mark.parametrize("command", ["save", "load"])
@pytest.mark.parametrize("process", [0, 1])
def test_process_that_dies_over_its_state_costs_only_its_running_episodes(
    four: PoolVectorEnv, command: str, process: int, monkeypatch: pytest.MonkeyPatch
):
    restarts, gone = four.restarts, [index // 2 == process for index in range(4)]
    four.reset(seeds(100, 200, 300, 400))
    four.step(torch.zeros(4, 2, 2), 0, seeds(0, 0, 0, 0))
    saved = four.state_dict()
    die_over_the_next_command(four, process, monkeypatch)
    if command == "save":
        saved = four.state_dict()
        assert saved["length"].tolist() == [0 if lost else 2 for lost in gone]
        assert saved["lost"].tolist() == gone
    else:
        four.load_state_dict(saved)
    assert four.restarts == restarts + 1
    result = four.step(torch.zeros(4, 1, 2), 0, seeds(500, 600, 700, 800))
    assert result.failed.tolist() == gone
    expected = [[0, 500 + 100 * row] if lost else [3, 100 + 100 * row] for row, lost in enumerate(gone)]
    assert result.observation.state[:, :2].tolist() == expected
    four.load_state_dict(saved)
    assert not four.state_dict()["lost"][[not lost for lost in gone]].any()


def test_an_answer_that_is_an_error_leaves_none_of_the_others_unread(four: PoolVectorEnv):
    four.reset(seeds(100, 200, 300, 400))
    saved = four.state_dict()
    broken = {**saved, "returns": saved["returns"] + torch.tensor([1.0, 0, 0, 0])}
    with pytest.raises(CorrectnessAlarm, match="environment 0"):
        four.load_state_dict(broken)
    assert four.state_dict()["length"].tolist() == [0] * 4
    four.reset(seeds(100, 200, 300, 400))


def test_what_one_that_was_left_behind_went_on_with_is_not_saved(tmp_path: Path):
    gate = tmp_path / "gate"
    habits = world.Habits(gate=str(gate))
    with pool(habits=habits, auto_reset="disabled", straggler_seconds=1.5, step_seconds=30.0) as env:
        env.reset(seeds(102, 200, 300, 400))  # the first environment's episode ends while nobody looks
        env.step(with_code(4, 2, 1, world.STAY))
        gate.touch()
        await_done(env, 0)
        saved = env.state_dict()
        assert saved["length"].tolist() == [0, 0, 2, 2]
        assert saved["returns"][:2].tolist() == [0, 0]
        env.load_state_dict(saved)
        result = env.step(torch.zeros(4, 1, 2), 0, seeds(500, 600, 700, 800))
        assert result.failed.tolist() == [True, True, False, False]
        assert result.observation.state[:, :2].tolist() == [[0, 500], [0, 600], [3, 300], [3, 400]]
