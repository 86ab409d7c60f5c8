"""Group advantages, trajectory scores and filters against numbers worked out by hand and properties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.algorithms import groups
from embodied.algorithms.aggregation import aggregate, loss_denominator
from embodied.errors import ConfigurationError, CorrectnessAlarm

NAN = float("nan")


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def expect(actual: torch.Tensor, expected: list, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=tolerance)


def test_grpo_by_hand_with_members_apart() -> None:
    # group 7: scores 0, 0, 3 (mean 1, squared deviations 1 + 1 + 4 = 6); group 2: 1, 5 (mean 3, 4 + 4 = 8)
    scores, ids = numbers(0, 1, 0, 5, 3), torch.tensor([7, 2, 7, 2, 7])
    sample7, sample2 = math.sqrt(6 / 2), math.sqrt(8 / 1)
    population7, population2 = math.sqrt(6 / 3), math.sqrt(8 / 2)
    for deviation, s7, s2 in (("sample", sample7, sample2), ("population", population7, population2), ("none", 1, 1)):
        expected = [-1 / s7, -2 / s2, -1 / s7, 2 / s2, 2 / s7]
        expect(groups.grpo(scores, ids, deviation=deviation, epsilon=0.0), expected)


def test_grpo_epsilon_is_added_to_the_deviation() -> None:
    expect(groups.grpo(numbers(0, 2), torch.tensor([0, 0]), deviation="population", epsilon=1.0), [-0.5, 0.5])


@pytest.mark.parametrize("deviation", ["sample", "population", "none"])
@pytest.mark.parametrize("score", [0.1, 1e9 / 3, -7.0])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_group_without_variance_gets_exactly_zero(deviation: str, score: float, size: int) -> None:
    # in float64 the mean of three times 0.1 is not 0.1
    scores, ids = torch.full((size,), score, dtype=torch.float64), torch.zeros(size, dtype=torch.int64)
    assert groups.grpo(scores, ids, deviation=deviation, epsilon=0.0).tolist() == [0.0] * size
    assert groups.rloo(scores, ids).tolist() == [0.0] * size


def test_unknown_deviation_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Valid values: sample, population, none"):
        groups.grpo(numbers(1, 2), torch.tensor([0, 0]), deviation="std")


def test_scores_that_are_not_one_a_trajectory_are_refused() -> None:
    with pytest.raises(CorrectnessAlarm, match=r"shape \[2, 1\]"):
        groups.grpo(torch.zeros(2, 1), torch.tensor([0, 0]))


def test_no_trajectories() -> None:
    assert groups.grpo(torch.zeros(0), torch.zeros(0, dtype=torch.int64)).shape == (0,)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 3)), min_size=1, max_size=16),
    st.sampled_from(["sample", "population"]),
    st.floats(-10, 10),
    st.floats(0.1, 10),
)
def test_grpo_is_invariant_to_shift_and_scale(rows, deviation: str, shift: float, scale: float) -> None:
    scores, ids = numbers(*(r[0] for r in rows)), torch.tensor([r[1] for r in rows])
    plain = groups.grpo(scores, ids, deviation=deviation, epsilon=0.0)
    moved = groups.grpo(scores * scale + shift, ids, deviation=deviation, epsilon=0.0)
    # a shift may round equal scores apart by nothing, but different ones stay different
    torch.testing.assert_close(moved, plain, rtol=0, atol=1e-9)
    unscaled = groups.grpo(scores * scale + shift, ids, deviation="none")
    torch.testing.assert_close(unscaled, groups.grpo(scores, ids, deviation="none") * scale, rtol=0, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 3)), min_size=1, max_size=16),
    st.randoms(use_true_random=False),
)
def test_order_of_trajectories_does_not_matter(rows, random) -> None:
    scores, ids = numbers(*(r[0] for r in rows)), torch.tensor([r[1] for r in rows])
    order = list(range(len(rows)))
    random.shuffle(order)
    for function in (groups.grpo, groups.rloo):
        expected = function(scores, ids)[order]
        torch.testing.assert_close(function(scores[order], ids[order]), expected, rtol=0, atol=1e-12)


def test_rloo_subtracts_the_mean_of_the_others() -> None:
    # 1 - (3 + 8) / 2, 3 - (1 + 8) / 2, 8 - (1 + 3) / 2
    expect(groups.rloo(numbers(1, 3, 8), torch.tensor([4, 4, 4])), [-4.5, -1.5, 6.0])


def test_reinforce_pp_reward_lands_on_the_last_real_token_not_on_padding() -> None:
    # two answers of 3 and 1 tokens; penalty 1 a token of the first, 2 of the second; padding holds anything
    valid = torch.tensor([[1, 1], [1, 0], [1, 0]]).bool()
    kl = torch.tensor([[1.0, 2.0], [1.0, NAN], [1.0, NAN]], dtype=torch.float64)
    result = groups.reinforce_pp(numbers(10, 4), valid, kl=kl, kl_coefficient=0.5, gamma=0.5, epsilon=0.0)
    # returns to go of the first: 10 - .5 = 9.5; -.5 + .5 * 9.5 = 4.25; -.5 + .5 * 4.25 = 1.625; of the second: 3
    returns = numbers(1.625, 4.25, 9.5, 3.0)
    expected = (returns - returns.mean()) / returns.std(correction=0)
    torch.testing.assert_close(result[valid], expected[[0, 3, 1, 2]], rtol=0, atol=1e-12)
    assert not result[~valid].any()


def test_reinforce_pp_of_an_empty_trajectory_is_zero_and_harmless() -> None:
    valid = torch.tensor([[1, 0, 1]]).bool()
    result = groups.reinforce_pp(numbers(1, NAN, 3), valid, epsilon=0.0)
    expect(result, [[-1.0, 0.0, 1.0]])
    assert not groups.reinforce_pp(numbers(1, 2), torch.zeros(4, 2).bool()).any()


def test_reinforce_pp_needs_a_divergence_for_its_penalty() -> None:
    with pytest.raises(ConfigurationError, match="kl_coefficient"):
        groups.reinforce_pp(numbers(1), torch.ones(1, 1).bool(), kl_coefficient=0.1)


def test_reinforce_pp_baseline_compares_within_the_group_and_scales_by_the_batch() -> None:
    valid = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1]]).bool()
    result = groups.reinforce_pp_baseline(numbers(0, 2, 100, 104), torch.tensor([0, 0, 1, 1]), valid, epsilon=0.0)
    centred = numbers(-1, 1, -2, 2).expand(2, 4)
    entries = centred[valid]
    expected = torch.where(valid, (centred - entries.mean()) / entries.std(correction=0), 0.0)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


def test_score_is_the_return_of_the_first_episode() -> None:
    rewards = torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, NAN], [8.0, NAN]])
    terminated = torch.tensor([[0, 0], [1, 0], [0, 0], [0, 0]]).bool()
    truncated = torch.tensor([[0, 0], [0, 1], [0, 1], [1, 0]]).bool()
    valid = torch.tensor([[1, 1], [1, 1], [1, 0], [1, 0]]).bool()
    # the step that ends the episode counts, what the simulator did afterwards does not
    assert groups.first_episode_return(rewards, terminated, truncated, valid).tolist() == [3.0, 3.0]
    expected = torch.tensor([[1, 1], [1, 1], [0, 0], [0, 0]]).bool()
    assert torch.equal(groups.first_episode(terminated, truncated, valid), expected)


def test_flag_on_an_invalid_step_ends_nothing() -> None:
    flags, valid = torch.tensor([[1], [0]]).bool(), torch.tensor([[0], [1]]).bool()
    none = torch.zeros_like(flags)
    assert groups.first_episode_return(torch.tensor([[NAN], [5.0]]), flags, none, valid).tolist() == [5.0]


def test_broadcast_puts_the_advantage_on_valid_steps_only() -> None:
    valid = torch.tensor([[1, 1], [1, 0]]).bool()
    assert groups.broadcast_to_steps(torch.tensor([2.0, -3.0]), valid).tolist() == [[2.0, -3.0], [2.0, 0.0]]


def test_last_valid_step_of_each_trajectory() -> None:
    valid = torch.tensor([[1, 0, 1], [0, 0, 1], [1, 0, 0]]).bool()
    assert groups.last_valid(valid).tolist() == [[False, False, False], [False, False, True], [True, False, False]]


def test_broken_group_raises_and_names_it() -> None:
    groups.check_groups(torch.tensor([5, 9, 9, 5]), 2)
    with pytest.raises(CorrectnessAlarm, match="group 5 has 1, group 9 has 3"):
        groups.check_groups(torch.tensor([5, 9, 9, 9]), 2)


def test_filter_drops_whole_groups_and_the_denominator_follows() -> None:
    scores, ids = numbers(1, 1, 0, 1, 0, 0), torch.tensor([0, 0, 1, 1, 2, 2])
    keep = groups.filter_rewards(scores, ids, low=0.1, high=0.9)
    assert keep.tolist() == [False, False, True, True, False, False]
    mask = torch.ones(6, 3, dtype=torch.bool) & keep.unsqueeze(1)
    terms = torch.arange(18.0, dtype=torch.float64).reshape(6, 3)
    total = aggregate(terms, mask, "token-mean", loss_denominator(mask, "token-mean"))
    assert total.item() == pytest.approx(terms[2:4].mean().item())


def test_filter_bounds_are_inclusive_in_spite_of_rounding() -> None:
    scores, ids = torch.full((3,), 0.1, dtype=torch.float64), torch.zeros(3, dtype=torch.int64)
    assert groups.filter_rewards(scores, ids, low=0.1, high=0.1).all()
    with pytest.raises(ConfigurationError, match="ascending"):
        groups.filter_rewards(scores, ids, low=1.0, high=0.0)


def test_informative_groups_are_those_whose_scores_differ() -> None:
    scores, ids = numbers(1, 1, 0, 1, 7), torch.tensor([0, 0, 1, 1, 2])
    assert groups.informative_groups(scores, ids).tolist() == [False, False, True, True, False]
