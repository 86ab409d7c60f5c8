"""Chunks, ends, auto-reset, statistics, guards and replay, against values worked out by hand."""

from __future__ import annotations

import functools

import pytest
import scripted_env as world
import torch

from embodied.errors import CorrectnessAlarm, RefusedInput, SimulatorError
from envs.api import Assignments
from envs.local import LocalVectorEnv


def make(habits: world.Habits | None = None, num_envs: int = 2, **options: object) -> LocalVectorEnv:
    config = world.config(num_envs, **options)
    return LocalVectorEnv(functools.partial(world.make_batch, habits or world.Habits()), config)


def seeds(*values: int, task: int = 0) -> Assignments:
    return Assignments.from_seeds(values, task)


def zeros(num_envs: int, steps: int) -> torch.Tensor:
    return torch.zeros(num_envs, steps, 2)


def test_rewards_and_actions_of_a_chunk_are_executed_in_order():
    env = make()
    env.reset(seeds(100, 200))
    actions = zeros(2, 3)
    actions[:, :, 0] = torch.tensor([[1.0, 0.0, -1.0], [0.5, 0.5, 0.5]])
    result = env.step(actions, 0, seeds(0, 0))
    # reward at count t is t + action / 4
    assert result.reward.tolist() == [[1.25, 2.0, 2.75], [1.125, 2.125, 3.125]]
    assert result.observation.state.tolist() == [[3, 100, 0, -1], [3, 200, 0, 0.5]]
    assert result.valid.all()
    assert not result.ended.any()
    assert result.final_observation is None
    assert result.episodes.returns.tolist() == [6.0, 6.375]
    assert result.episodes.length.tolist() == [3, 3]


def test_termination_inside_a_chunk_is_its_last_valid_step_and_the_next_episode_is_shown():
    env = make()
    env.reset(seeds(102, 105))  # ends at step 2 and 5
    result = env.step(zeros(2, 4), 0, seeds(303, 304, task=1))
    assert result.valid.tolist() == [[True, True, False, False], [True] * 4]
    assert result.reward.tolist() == [[1, 2, 0, 0], [1, 2, 3, 4]]
    assert result.terminated.tolist() == [[False, True, False, False], [False] * 4]
    assert result.success.tolist() == result.terminated.tolist()
    assert not result.truncated.any()
    assert result.ended.tolist() == [True, False]
    assert result.final_rows.tolist() == [0]
    assert result.final_observation.state.tolist() == [[2, 102, 0, 0]]
    assert result.final_observation.instruction == ["count"]
    assert result.observation.state.tolist() == [[0, 303, 1, 0], [4, 105, 0, 0]]
    assert result.observation.instruction == ["count on", "count"]
    assert result.episodes.assignments.seed.tolist() == [102, 105]
    assert result.episodes.length.tolist() == [2, 4]
    assert result.episodes.returns.tolist() == [3, 10]
    assert result.episodes.success_once.tolist() == [True, False]

    result = env.step(zeros(2, 2), 0, seeds(0, 406))
    assert result.episodes.assignments.seed.tolist() == [303, 105]
    assert result.episodes.length.tolist() == [2, 5]
    assert result.episodes.returns.tolist() == [3, 15]
    assert result.episodes.success_once.tolist() == [False, True]
    assert result.ended.tolist() == [False, True]


def test_two_ends_at_different_steps_of_one_chunk_keep_their_own_final_observations():
    env = make(num_envs=3)
    env.reset(seeds(103, 101, 100))
    result = env.step(zeros(3, 4), 0, seeds(0, 0, 0))
    assert result.final_rows.tolist() == [0, 1]
    assert result.final_observation.state[:, 0].tolist() == [3, 1]
    assert result.valid.sum(1).tolist() == [3, 1, 4]


def test_time_limit_truncates_and_a_termination_at_the_limit_is_a_termination():
    env = make(world.Habits(episode_steps=3))
    env.reset(seeds(100, 103))
    result = env.step(zeros(2, 5), 0, seeds(7, 8))
    assert result.truncated.tolist() == [[False, False, True, False, False], [False] * 5]
    assert result.terminated.tolist() == [[False] * 5, [False, False, True, False, False]]
    assert result.valid.sum(1).tolist() == [3, 3]


def test_configured_episode_length_replaces_the_tasks_own():
    env = make(episode_steps=4)
    assert env.spec.episode_steps == 4
    env.reset(seeds(100, 100))
    result = env.step(zeros(2, 4), 0, seeds(7, 8))
    assert result.truncated[:, 3].all()


def test_disabled_auto_reset_keeps_a_finished_environment_at_its_end_until_reset():
    env = make(auto_reset="disabled")
    env.reset(seeds(102, 100))
    env.step(zeros(2, 3))
    result = env.step(torch.ones(2, 3, 2))
    assert result.valid.tolist() == [[False] * 3, [True] * 3]
    assert result.reward[0].tolist() == [0, 0, 0]
    assert result.observation.state.tolist() == [[2, 102, 0, 0], [6, 100, 0, 1]]
    assert not result.ended.any()
    assert result.episodes.length.tolist() == [2, 6]
    assert result.episodes.success_at_end.tolist() == [True, False]

    observation = env.reset(seeds(550, 0), torch.tensor([True, False]))
    assert observation.state.tolist() == [[0, 550, 0, 0], [6, 100, 0, 1]]
    result = env.step(zeros(2, 1))
    assert result.valid.all()
    assert result.episodes.length.tolist() == [1, 7]


def test_a_batch_of_finished_environments_executes_nothing():
    env = make(auto_reset="disabled")
    env.reset(seeds(101, 101))
    env.step(zeros(2, 3))
    result = env.step(torch.full((2, 2, 2), float("nan")))  # what is never executed may be anything
    assert not result.valid.any()
    assert result.observation.state[:, 0].tolist() == [1, 1]


def test_ignored_terminations_are_recorded_but_do_not_end_the_episode():
    env = make(world.Habits(episode_steps=6), ignore_terminations=True)
    env.reset(seeds(102, 106))
    result = env.step(zeros(2, 4), 0, seeds(0, 0))
    assert result.terminated.tolist() == [[False, True, False, False], [False] * 4]
    assert result.valid.all()
    assert not result.ended.any()
    assert result.episodes.success_once.tolist() == [True, False]
    assert result.episodes.success_at_end.tolist() == [False, False]
    result = env.step(zeros(2, 4), 0, seeds(0, 0))
    assert result.truncated.tolist() == [[False, True, False, False]] * 2
    assert result.ended.all()
    assert result.episodes.success_at_end.tolist() == [False, True]


def test_relative_reward_is_the_difference_and_starts_anew_with_an_episode():
    env = make(reward_form="relative")
    env.reset(seeds(103, 100))
    actions = zeros(2, 4)
    actions[1, :, 0] = torch.tensor([4.0, 0.0, 0.0, 0.0])  # absolute rewards 2, 2, 3, 4
    result = env.step(actions, 0, seeds(0, 0))
    assert result.reward.tolist() == [[1, 1, 1, 0], [2, 0, 1, 1]]
    assert result.episodes.returns.tolist() == [3, 4]
    result = env.step(zeros(2, 2), 0, seeds(0, 0))
    assert result.reward.tolist() == [[1, 1], [1, 1]]


def test_cameras_are_read_at_chunk_ends_and_episode_ends_only():
    env = make(world.Habits(images=True))
    env.reset(seeds(102, 100))
    batch = env._steppers[0].batch
    batch.observed.clear()
    env.step(zeros(2, 4), 0, seeds(0, 0))
    env.step(zeros(2, 4), 0, seeds(0, 0))
    assert batch.observed == [[0], [0, 1], [0, 1]]


def test_images_and_privileged_state_are_those_of_the_shown_moment():
    env = make(world.Habits(images=True, privileged=True))
    env.reset(seeds(102, 100))
    result = env.step(zeros(2, 4), 0, seeds(0, 0))
    assert result.final_observation.images.unique().tolist() == [2]
    assert result.observation.images.amax((1, 2, 3, 4)).tolist() == [0, 4]
    assert result.observation.privileged.tolist() == [[0], [40]]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (float("nan"), r"action for environment 1 at step 2 .*nan"),
        (world.NAN_REWARD, r"reward of environment 1 at step 2"),
        (world.NAN_STATE, r"observation \(state\) of environment 1 .*step 3 of its episode"),
    ],
)
def test_numbers_that_are_not_finite_are_refused_naming_environment_and_step(code: float, message: str):
    env = make()
    env.reset(seeds(100, 100))
    actions = zeros(2, 3)
    actions[1, 2, 0] = code
    with pytest.raises(SimulatorError, match=message):
        env.step(actions, 0, seeds(0, 0))
    with pytest.raises(RefusedInput, match="reset it first"):
        env.send(zeros(2, 1), 0, seeds(0, 0))
    env.reset(seeds(100, 100))
    assert env.step(zeros(2, 1), 0, seeds(0, 0)).valid.all()


@pytest.mark.parametrize("options", [{}, {"auto_reset": "disabled"}, {"reward_form": "relative"}])
def test_saved_state_continues_to_the_bit_in_another_instance(options: dict[str, str]):
    generator = torch.Generator().manual_seed(3)
    actions = torch.rand(8, 6, 3, 2, generator=generator)
    table = seeds(104, 205, 307, 400, 511, 603)

    def run(env: LocalVectorEnv, chunks: range) -> list[tuple[object, ...]]:
        found = []
        for chunk in chunks:
            for slot in range(2):
                rows = env.rows(slot)
                r = env.step(actions[chunk][rows], slot, seeds(*range(chunk * 10 + 3, chunk * 10 + 9))[rows])
                e = r.episodes
                parts = (r.reward, r.valid, r.observation.state, e.returns, e.length, e.assignments.seed)
                found.append([part.tolist() for part in parts])
        return found

    first = make(num_envs=6, slots=2, **options)
    first.reset(table)
    run(first, range(3))
    saved = first.state_dict()
    expected = run(first, range(3, 8))

    second = make(num_envs=6, slots=2, **options)
    second.load_state_dict(saved)
    again = second.state_dict()
    assert all(torch.equal(again[name], saved[name]) for name in saved if name != "id")
    assert run(second, range(3, 8)) == expected


def test_saved_state_holds_each_running_episodes_actions_only():
    env = make()
    env.reset(seeds(102, 100))
    actions = torch.arange(16.0).reshape(2, 4, 2) / 16
    env.step(actions, 0, seeds(100, 100))
    later = actions[:, :1] + 0.5
    env.step(later, 0, seeds(0, 0))
    saved = env.state_dict()
    assert saved["length"].tolist() == [1, 5]
    assert saved["assignments"].tolist() == [[0, -1, 100], [0, -1, 100]]
    assert torch.equal(saved["actions"], torch.cat([later[0], actions[1], later[1]]))


def test_replay_that_differs_from_what_was_saved_raises_an_alarm():
    env = make(world.Habits(exact_reset=False))
    env.reset(seeds(0, 0))
    for _ in range(3):
        env.step(zeros(2, 3), 0, seeds(0, 0))
    saved = env.state_dict()
    with pytest.raises(CorrectnessAlarm, match="claims exact_reset"):
        env.load_state_dict(saved)


def test_inexact_simulators_are_rebuilt_so_that_saver_and_loader_agree():
    habits = world.Habits(exact_reset=False, claims_exact_reset=False, episode_steps=50)
    saver, loader = make(habits), make(habits)
    saver.reset(seeds(0, 0))
    saver.step(zeros(2, 3), 0, seeds(0, 0))
    saver.reset(seeds(0, 0))
    saver.step(zeros(2, 4), 0, seeds(0, 0))
    saved = saver.state_dict()
    assert saver.load_state_dict(saved).state.tolist() == loader.load_state_dict(saved).state.tolist()
    results = [env.step(zeros(2, 2), 0, seeds(0, 0)).reward.tolist() for env in (saver, loader)]
    assert results[0] == results[1] == [[5, 6], [5, 6]]


def test_wrong_use_is_refused_with_what_to_do():
    env = make(num_envs=4, slots=2)
    with pytest.raises(RefusedInput, match="reset it first"):
        env.send(zeros(2, 1), 0, seeds(0, 0))
    with pytest.raises(RefusedInput, match="must include all"):
        env.reset(seeds(0, 0, 0, 0), torch.tensor([True, False, True, True]))
    env.reset(seeds(0, 0, 0, 0))
    with pytest.raises(RefusedInput, match=r"B=2 .* A=2, but are \[4, 1, 2\]"):
        env.send(zeros(4, 1), 0, seeds(0, 0))
    with pytest.raises(RefusedInput, match="needs next_assignments"):
        env.send(zeros(2, 1), 0)
    with pytest.raises(RefusedInput, match="slots 0 to 1"):
        env.send(zeros(2, 1), 2, seeds(0, 0))
    with pytest.raises(RefusedInput, match="without a send"):
        env.recv(0)
    env.send(zeros(2, 1), 1, seeds(0, 0))
    with pytest.raises(RefusedInput, match="still executing"):
        env.send(zeros(2, 1), 1, seeds(0, 0))
    with pytest.raises(RefusedInput, match="slot 1 executes a chunk"):
        env.state_dict()
    env.recv(1)
