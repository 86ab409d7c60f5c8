"""Which task, stored initial state and seed each episode gets."""

import collections
import itertools

import numpy as np

from embodied.interaction.assignments import TrainingAssignments, evaluation_assignments
from envs.api import ActionSpec, Bounds, EnvSpec


def spec(*initial_states):
    return EnvSpec(
        id="test/Stored",
        action=ActionSpec(Bounds.CONTINUOUS, 1, (-1.0,), (1.0,)),
        state_dim=1,
        tasks=len(initial_states),
        initial_states=initial_states,
    )


def played(assignments):
    """(task, initial state, seed) of each episode."""
    return [tuple(row) for row in assignments.stack().tolist()]


def test_evaluation_plays_every_stored_state_of_a_task_in_order_and_then_starts_over_with_new_seeds():
    episodes = played(evaluation_assignments(3, 24, spec(4, 0, 2)))
    states = {task: [state for t, state, _ in episodes if t == task] for task in range(3)}
    assert states == {0: [0, 1, 2, 3] * 2, 1: [-1] * 8, 2: [0, 1] * 4}
    assert [task for task, *_ in episodes] == [0, 1, 2] * 8
    assert len({seed for *_, seed in episodes}) == 24


def test_every_episode_of_a_whole_benchmark_is_another_task_or_state():
    """Ten tasks of fifty states, as in LIBERO: tasks and states have a common divisor."""
    episodes = played(evaluation_assignments(0, 500, spec(*[50] * 10)))
    assert {(task, state) for task, state, _ in episodes} == set(itertools.product(range(10), range(50)))


def test_training_draws_every_stored_state_of_every_task_about_equally_often():
    """Numbers of tasks and of states have common divisors, so that a state drawn by the task's number would show."""
    stored = (4, 0, 2, 6)
    envs, rounds = (index.flatten() for index in np.meshgrid(np.arange(40), np.arange(60)))
    drawn = played(TrainingAssignments(7, spec(*stored)).at(envs, rounds))
    counts = collections.Counter((task, state) for task, state, _ in drawn)
    assert counts.keys() == {(task, state) for task, n in enumerate(stored) for state in (range(n) if n else [-1])}
    for (task, _), count in counts.items():
        expected = 2400 / 4 / max(stored[task], 1)
        assert abs(count - expected) < 5 * expected**0.5
    assert len({seed for *_, seed in drawn}) == 2400
