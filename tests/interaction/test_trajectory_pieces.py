"""Trajectories in pieces: groups stay whole, and joining gives back every bit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from embodied.interaction.env_worker import EnvWorkerOptions, environments_of
from embodied.interaction.trajectory import TRAJECTORY_FIELDS, Trajectory, join
from envs.gym import GymConfig


def trajectory(group_sizes, decisions=2):
    """Every field tells the environment; groups as large as given."""
    envs = sum(group_sizes)
    numbers = torch.arange(decisions * envs).reshape(decisions, envs)
    groups = torch.repeat_interleave(torch.arange(len(group_sizes)), torch.tensor(group_sizes))
    fields = {name: numbers[:, :, None].clone() for name in TRAJECTORY_FIELDS}
    fields["inputs"] = TensorDict({"x": numbers.float()}, batch_size=[decisions, envs])
    fields["env_ids"] = numbers
    fields["group_ids"] = groups.expand(decisions, envs).clone()
    return Trajectory(**fields, batch_size=[])


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(1, 12), st.integers(1, 3))
def test_pieces_of_parts_join_to_the_whole_with_groups_whole(group_sizes, size, learners):
    whole = trajectory(group_sizes)
    parts = [whole.part(index, learners) for index in range(learners)]
    pieces = [part.pieces(size) for part in parts]
    assert all(len(own) >= 1 for own in pieces)  # also a learner without a group gets a piece: an empty one
    joined = join([piece for own in pieces for piece in own])
    for name in TRAJECTORY_FIELDS:
        assert bool((getattr(joined, name) == getattr(whole, name)).all()), name
    homes = {}
    for index, piece in enumerate(piece for own in pieces for piece in own):
        for group in piece.group_ids[0].tolist():
            assert homes.setdefault(group, index) == index, "a group was torn"
    for own in pieces:
        assert all(piece.env_ids.shape[1] >= size for piece in own[:-1])
    assert sum(piece.decisions() for own in pieces for piece in own) == whole.decisions() == 2 * sum(group_sizes)


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 9), st.integers(1, 3), st.integers(1, 2))
def test_however_many_workers_collect_the_learners_get_equally_many_groups(workers, units, learners, size, slots):
    workers = min(workers, units)
    options = EnvWorkerOptions(GymConfig(id="gym/CartPole-v1", num_envs=units * slots * size), group_size=size)
    got = [[] for _ in range(learners)]
    for rank in range(workers):
        own = environments_of(options, rank, workers, slots)
        whole = trajectory([size] * (len(own) // size))
        whole.env_ids, whole.group_ids = whole.env_ids + own.start, whole.group_ids + own.start // size
        for index in range(learners):
            got[index] += whole.part(index, learners).group_ids[0, ::size].tolist()
    assert sorted(group for groups in got for group in groups) == list(range(units * slots))
    assert max(map(len, got)) - min(map(len, got)) <= 1


@pytest.mark.parametrize(("workers", "groups", "learners"), [(4, 8, 4), (8, 8, 8)])
def test_rounding_favours_no_learner(workers, groups, learners):
    each = groups // workers
    got = [0] * learners
    for rank in range(workers):
        whole = trajectory([2] * each)
        whole.env_ids = whole.env_ids + 2 * each * rank
        for index in range(learners):
            got[index] += whole.part(index, learners).env_ids.shape[1] // 2
    assert got == [groups // learners] * learners
