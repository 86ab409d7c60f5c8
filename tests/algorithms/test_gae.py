"""Generalised advantage estimation against numbers worked out by hand, a plain per-episode loop, and properties."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.algorithms import levels
from embodied.algorithms.advantages import Advantages, discounted_returns, gae
from embodied.errors import ConfigurationError, CorrectnessAlarm

NAN = float("nan")


def column(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(1)


def flags(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.bool).unsqueeze(1)


def expect(actual: torch.Tensor, *numbers: float) -> None:
    torch.testing.assert_close(actual.flatten(), torch.tensor(numbers, dtype=torch.float64), rtol=0, atol=1e-12)


def example(terminated: torch.Tensor, truncated: torch.Tensor, bootstrap: str = "standard") -> Advantages:
    """Three steps of reward 1, 2, 3; values .5, 1, 1.5 and 2 after the last; final values 10, 20, 30; gamma .5,
    lambda .5."""
    return gae(
        column(1, 2, 3), column(0.5, 1, 1.5, 2), column(10, 20, 30), terminated, truncated, flags(1, 1, 1),
        gamma=0.5, gae_lambda=0.5, bootstrap=bootstrap,
    )  # fmt: skip


def test_running_episode_bootstraps_from_the_value_after_the_last_step() -> None:
    result = example(flags(0, 0, 0), flags(0, 0, 0))
    # d2 = 3 + .5*2 - 1.5 = 2.5; d1 = 2 + .5*1.5 - 1 = 1.75; d0 = 1 + .5*1 - .5 = 1
    # A2 = 2.5; A1 = 1.75 + .25*2.5 = 2.375; A0 = 1 + .25*2.375 = 1.59375
    expect(result.advantages, 1.59375, 2.375, 2.5)
    expect(result.returns, 2.09375, 3.375, 4.0)


def test_terminated_episode_earns_nothing_after_its_end() -> None:
    # d1 = 2 + 0 - 1 = 1 and nothing of the next episode; A0 = 1 + .25*1
    expect(example(flags(0, 1, 0), flags(0, 0, 0)).advantages, 1.25, 1.0, 2.5)


def test_truncated_episode_bootstraps_from_final_observation() -> None:
    # d1 = 2 + .5*20 - 1 = 11: the final value, not values[2] of the next episode; A0 = 1 + .25*11
    expect(example(flags(0, 0, 0), flags(0, 1, 0)).advantages, 3.75, 11.0, 2.5)


def test_termination_wins_where_an_episode_is_also_truncated() -> None:
    expect(example(flags(0, 1, 0), flags(0, 1, 0)).advantages, 1.25, 1.0, 2.5)


def test_bootstrap_always_uses_the_final_value_at_termination_too() -> None:
    for terminated, truncated in (((0, 1, 0), (0, 0, 0)), ((0, 0, 0), (0, 1, 0)), ((0, 1, 0), (0, 1, 0))):
        expect(example(flags(*terminated), flags(*truncated), "always").advantages, 3.75, 11.0, 2.5)


def test_end_at_the_last_step_ignores_the_value_after_it() -> None:
    # d2 = 3 - 1.5 = 1.5 terminated; 3 + .5*30 - 1.5 = 16.5 truncated
    expect(example(flags(0, 0, 1), flags(0, 0, 0)).advantages[2], 1.5)
    expect(example(flags(0, 0, 0), flags(0, 0, 1)).advantages[2], 16.5)


def test_several_episodes_in_one_row() -> None:
    result = gae(
        column(1, 1, 1, 1), column(0, 0, 0, 0, 8), column(9, 9, 9, 9), flags(1, 0, 0, 0), flags(0, 0, 1, 0),
        flags(1, 1, 1, 1), gamma=0.5, gae_lambda=1.0,
    )  # fmt: skip
    # episodes [0] terminated, [1, 2] truncated at 9, [3] still running before a state worth 8
    expect(result.returns, 1.0, 1 + 0.5 * (1 + 0.5 * 9), 1 + 0.5 * 9, 1 + 0.5 * 8)


def test_rest_of_a_chunk_after_the_end_is_not_valid_and_holds_anything() -> None:
    # chunk of 4 whose episode ended at its second action; the next episode begins with the next chunk
    result = gae(
        column(1, 2, NAN, NAN, 3), column(0.5, 1, NAN, NAN, 1.5, 2), column(NAN, NAN, NAN, NAN, NAN),
        flags(0, 1, 0, 1, 0), flags(0, 0, 1, 0, 0), flags(1, 1, 0, 0, 1), gamma=0.5, gae_lambda=0.5,
    )  # fmt: skip
    expect(result.advantages, 1.25, 1.0, 0.0, 0.0, 2.5)
    expect(result.returns, 1.75, 2.0, 0.0, 0.0, 4.0)


def test_without_auto_reset_everything_after_the_first_end_is_absent() -> None:
    result = gae(
        column(1, 1, NAN, NAN), column(0, 0, NAN, NAN, NAN), column(NAN, 5, NAN, NAN), flags(0, 0, 1, 1),
        flags(0, 1, 1, 0), flags(1, 1, 0, 0), gamma=1.0, gae_lambda=1.0,
    )  # fmt: skip
    expect(result.returns, 7.0, 6.0, 0.0, 0.0)


def test_episode_lost_with_its_simulator_is_cut_before_the_gap() -> None:
    result = gae(
        column(1, NAN, 7), column(0, 4, 0, 0), column(NAN, NAN, NAN), flags(0, 0, 0), flags(0, 0, 0), flags(1, 0, 1),
        gamma=0.5, gae_lambda=1.0,
    )  # fmt: skip
    expect(result.returns, 1 + 0.5 * 4, 0.0, 7.0)


def test_no_steps_at_all() -> None:
    empty = torch.zeros(0, 3)
    result = gae(empty, torch.zeros(1, 3), empty, empty.bool(), empty.bool(), empty.bool(), gamma=0.9, gae_lambda=0.9)
    assert result.advantages.shape == (0, 3)


def test_chunk_level_sees_a_chunk_as_one_step() -> None:
    rewards = torch.tensor([[[1.0, 2.0, 3.0]], [[4.0, NAN, NAN]]], dtype=torch.float64)  # [T=2, B=1, C=3]
    valid = torch.tensor([[[1, 1, 1]], [[1, 0, 0]]]).bool()
    terminated = torch.tensor([[[0, 0, 0]], [[1, 0, 0]]]).bool()
    steps = levels.reward_to(rewards, valid, "chunk")
    ends = levels.ends_to(terminated, valid, "chunk")
    result = gae(
        steps, column(0.5, 1, NAN), column(NAN, NAN), ends, torch.zeros_like(ends), levels.mask_to(valid, "chunk", 7),
        gamma=0.5, gae_lambda=1.0,
    )  # fmt: skip
    expect(result.returns, 6 + 0.5 * 4, 4.0)


@pytest.mark.parametrize(
    ("option", "value"), [("gamma", 1.1), ("gamma", -0.1), ("gae_lambda", 2.0), ("gae_lambda", NAN)]
)
def test_options_out_of_range_are_refused(option: str, value: float) -> None:
    options = {"gamma": 0.9, "gae_lambda": 0.9, option: value}
    steps, none = column(1), flags(0)
    with pytest.raises(ConfigurationError, match=option):
        gae(steps, column(1, 1), steps, none, none, flags(1), **options)


def test_unknown_bootstrap_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"Did you mean 'always'\? Valid values: standard, always"):
        example(flags(0, 0, 0), flags(0, 0, 0), "allways")


@pytest.mark.parametrize("name", ["values", "final_values", "terminated", "truncated", "valid"])
def test_shapes_that_would_broadcast_are_refused(name: str) -> None:
    tensors = {
        "rewards": torch.zeros(3, 2),
        "values": torch.zeros(4, 2),
        "final_values": torch.zeros(3, 2),
        "terminated": torch.zeros(3, 2).bool(),
        "truncated": torch.zeros(3, 2).bool(),
        "valid": torch.ones(3, 2).bool(),
    }
    tensors[name] = tensors[name][:, :1]
    with pytest.raises(CorrectnessAlarm, match=name):
        gae(**tensors, gamma=0.9, gae_lambda=0.9)


def test_discounted_returns_by_hand() -> None:
    returns = discounted_returns(column(1, 2, NAN, 4), flags(0, 1, 0, 0), flags(1, 1, 0, 1), gamma=0.5)
    expect(returns, 2.0, 2.0, 0.0, 4.0)
    # a hole inside an episode (a tool's tokens in an answer) hands the return on as if it were absent
    returns = discounted_returns(column(1, NAN, 4), flags(0, 0, 1), flags(1, 0, 1), gamma=0.5)
    expect(returns, 3.0, 0.0, 4.0)


def episode_loop(
    rewards, values, final_values, terminated, truncated, valid, *, gamma, gae_lambda, bootstrap
) -> torch.Tensor:
    """The definition, one environment and one episode at a time: A_t is the sum of (gamma lambda)^k d_{t+k}."""
    steps, batch = rewards.shape
    result = torch.zeros_like(rewards)
    for b in range(batch):
        for t in range(steps):
            weight, s = 1.0, t
            while valid[t, b]:
                ended = bool(terminated[s, b] | truncated[s, b])
                if not ended:
                    following = values[s + 1, b]
                elif bootstrap == "always" or not terminated[s, b]:
                    following = final_values[s, b]
                else:
                    following = 0.0
                result[t, b] += weight * (rewards[s, b] + gamma * following - values[s, b])
                weight, s = weight * gamma * gae_lambda, s + 1
                if ended or s == steps or not valid[s, b]:
                    break
    return result


@st.composite
def rollouts(draw) -> dict[str, torch.Tensor]:
    """Random rollouts whose holes follow ends: the rest of a chunk, or everything after the first end."""
    chunk, chunks, batch = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    source = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    steps = chunks * chunk
    rate = draw(st.sampled_from([0.0, 0.2, 0.6]))
    keep_running = draw(st.booleans())
    terminated = torch.rand(steps, batch, generator=source) < rate
    truncated = torch.rand(steps, batch, generator=source) < rate
    valid = torch.ones(steps, batch, dtype=torch.bool)
    for b in range(batch):
        over = False
        for t in range(steps):
            if t % chunk == 0 and keep_running:
                over = False
            valid[t, b] = not over
            over = over or bool(terminated[t, b] | truncated[t, b])
    return {
        "rewards": torch.randn(steps, batch, generator=source, dtype=torch.float64),
        "values": torch.randn(steps + 1, batch, generator=source, dtype=torch.float64),
        "final_values": torch.randn(steps, batch, generator=source, dtype=torch.float64),
        "terminated": terminated,
        "truncated": truncated,
        "valid": valid,
    }


options = st.fixed_dictionaries(
    {
        "gamma": st.sampled_from([0.0, 0.9, 1.0]),
        "gae_lambda": st.sampled_from([0.0, 0.7, 1.0]),
        "bootstrap": st.sampled_from(["standard", "always"]),
    }
)


@settings(max_examples=60, deadline=None)
@given(rollouts(), options)
def test_equals_the_definition_written_as_a_loop(rollout: dict[str, torch.Tensor], chosen: dict) -> None:
    expected = episode_loop(**rollout, **chosen)
    torch.testing.assert_close(gae(**rollout, **chosen).advantages, expected, rtol=0, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(rollouts(), options, st.sampled_from([NAN, float("inf"), 1e30]))
def test_what_is_not_valid_is_never_read(rollout: dict[str, torch.Tensor], chosen: dict, garbage: float) -> None:
    clean = gae(**rollout, **chosen)
    valid = rollout["valid"]
    dirty = {name: tensor.clone() for name, tensor in rollout.items()}
    dirty["rewards"][~valid] = garbage
    dirty["values"][:-1][~valid] = garbage
    dirty["final_values"][~(valid & (rollout["terminated"] | rollout["truncated"]))] = garbage
    dirty["terminated"][~valid] ^= True
    dirty["truncated"][~valid] ^= True
    again = gae(**dirty, **chosen)
    assert torch.equal(again.advantages, clean.advantages)
    assert torch.equal(again.returns, clean.returns)


@settings(max_examples=40, deadline=None)
@given(rollouts(), options, st.randoms(use_true_random=False))
def test_permuting_environments_permutes_the_result(rollout, chosen, random) -> None:
    order = list(range(rollout["rewards"].shape[1]))
    random.shuffle(order)
    moved = gae(**{name: tensor[:, order] for name, tensor in rollout.items()}, **chosen)
    straight = gae(**rollout, **chosen)
    assert torch.equal(moved.advantages, straight.advantages[:, order])
    assert torch.equal(moved.returns, straight.returns[:, order])


@settings(max_examples=40, deadline=None)
@given(rollouts())
def test_lambda_zero_is_the_temporal_difference_error(rollout: dict[str, torch.Tensor]) -> None:
    result = gae(**rollout, gamma=0.9, gae_lambda=0.0).advantages
    ended = rollout["terminated"] | rollout["truncated"]
    after = torch.where(ended, torch.where(rollout["terminated"], 0.0, rollout["final_values"]), rollout["values"][1:])
    error = rollout["rewards"] + 0.9 * after - rollout["values"][:-1]
    torch.testing.assert_close(result, torch.where(rollout["valid"], error, 0.0), rtol=0, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(rollouts())
def test_lambda_one_is_the_discounted_return_minus_the_value(rollout: dict[str, torch.Tensor]) -> None:
    ended, valid, gamma = rollout["terminated"] | rollout["truncated"], rollout["valid"], 0.9
    bootstrapped = rollout["rewards"] + gamma * torch.where(
        ended & ~rollout["terminated"], rollout["final_values"], torch.zeros_like(rollout["rewards"])
    )
    last = valid[-1] & ~ended[-1]
    bootstrapped[-1] += gamma * torch.where(last, rollout["values"][-1], torch.zeros_like(rollout["values"][-1]))
    returns = discounted_returns(bootstrapped, ended, valid, gamma=gamma)
    result = gae(**rollout, gamma=gamma, gae_lambda=1.0)
    torch.testing.assert_close(result.returns, returns, rtol=0, atol=1e-12)
    expected = torch.where(valid, returns - rollout["values"][:-1], 0.0)
    torch.testing.assert_close(result.advantages, expected, rtol=0, atol=1e-12)
