"""Token, action and chunk level: sums, masks, layouts and the combinations that are refused."""

from __future__ import annotations

import itertools

import pytest
import torch

from embodied.algorithms import levels
from embodied.errors import ConfigurationError, CorrectnessAlarm

NAN = float("nan")
# one decision of C = 3 actions of D = 2 tokens; the last action was not executed
LOGPROBS = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [NAN, NAN]]])
VALID = torch.tensor([[1, 1, 0]]).bool()


def test_logprobs_add_up_over_tokens_and_valid_actions() -> None:
    assert levels.sum_to(LOGPROBS, VALID, "token").tolist() == [[[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]]]
    assert levels.sum_to(LOGPROBS, VALID, "action").tolist() == [[3.0, 7.0, 0.0]]
    assert levels.sum_to(LOGPROBS, VALID, "chunk").tolist() == [10.0]


@pytest.mark.parametrize("level", list(levels.Level))
def test_mask_has_the_shape_of_the_sum(level: str) -> None:
    mask = levels.mask_to(VALID, level, tokens=2)
    assert mask.shape == levels.sum_to(LOGPROBS, VALID, level).shape
    assert mask.sum().item() == {"token": 4, "action": 2, "chunk": 1}[level]


def test_chunk_without_a_valid_action_is_not_valid() -> None:
    nothing = torch.zeros(1, 3).bool()
    assert levels.mask_to(nothing, "chunk", tokens=2).tolist() == [False]
    assert levels.sum_to(LOGPROBS, nothing, "chunk").tolist() == [0.0]


def test_gradient_reaches_valid_actions_only() -> None:
    logprobs = torch.zeros(1, 3, 2, requires_grad=True)
    levels.sum_to(logprobs, VALID, "chunk").sum().backward()
    assert logprobs.grad.tolist() == [[[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]]


def test_rewards_and_ends_of_invalid_actions_do_not_exist() -> None:
    rewards, ends = torch.tensor([[1.0, 2.0, NAN]]), torch.tensor([[0, 0, 1]]).bool()
    assert levels.reward_to(rewards, VALID, "action").tolist() == [[1.0, 2.0, 0.0]]
    assert levels.reward_to(rewards, VALID, "chunk").tolist() == [3.0]
    assert not levels.ends_to(ends, VALID, "action").any()
    assert not levels.ends_to(ends, VALID, "chunk").any()
    assert levels.ends_to(~ends, VALID, "chunk").tolist() == [True]
    with pytest.raises(ConfigurationError, match="not per token"):
        levels.reward_to(rewards, VALID, "token")


def test_steps_are_the_actions_of_consecutive_chunks() -> None:
    # [T = 2, B = 2, C = 3]; environment 0 counts 0..5, environment 1 counts 10..15
    chunks = torch.tensor([[[0, 1, 2], [10, 11, 12]], [[3, 4, 5], [13, 14, 15]]])
    steps = levels.flatten_steps(chunks)
    assert steps.T.tolist() == [[0, 1, 2, 3, 4, 5], [10, 11, 12, 13, 14, 15]]
    assert torch.equal(levels.unflatten_steps(steps, 3), chunks)
    with pytest.raises(CorrectnessAlarm, match=r"expected \[T \* 4, B\]"):
        levels.unflatten_steps(steps, 4)


def test_values_of_the_state_after_the_last_step_are_kept_once() -> None:
    per_action = torch.tensor([[[0.0, 1.0]], [[2.0, 3.0]], [[4.0, 99.0]]])  # [T + 1 = 3, B = 1, V = 2]
    assert levels.flatten_values(per_action).flatten().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    per_chunk = torch.tensor([[[0.0]], [[1.0]], [[2.0]]])
    assert levels.flatten_values(per_chunk).flatten().tolist() == [0.0, 1.0, 2.0]


def test_final_value_of_a_chunk_holds_for_each_of_its_actions() -> None:
    final = torch.tensor([[[7.0, 99.0]], [[8.0, 99.0]]])  # [T = 2, B = 1, V = 2]: the first of the final observation
    assert levels.flatten_final_values(final).flatten().tolist() == [7.0, 7.0, 8.0, 8.0]


def test_advantages_spread_to_finer_levels_only() -> None:
    chunk = torch.tensor([5.0, 6.0])
    assert levels.spread(chunk, "chunk", "action", chunk=2, tokens=3).tolist() == [[5.0, 5.0], [6.0, 6.0]]
    tokens = levels.spread(chunk, "chunk", "token", chunk=2, tokens=3)
    assert tokens.shape == (2, 2, 3)
    assert tokens[1].unique().tolist() == [6.0]
    action = torch.tensor([[1.0, 2.0]])
    assert levels.spread(action, "action", "token", chunk=2, tokens=2).tolist() == [[[1.0, 1.0], [2.0, 2.0]]]
    assert levels.spread(action, "action", "action", chunk=2, tokens=2) is action
    with pytest.raises(ConfigurationError, match="coarser"):
        levels.spread(action, "action", "chunk", chunk=2, tokens=2)


REFUSED = {
    ("action", "chunk"): "one advantage an action but one ratio",
    ("action", "value chunk"): "no value to estimate",
    ("chunk", "value action"): "never be trained",
}


@pytest.mark.parametrize(
    ("reward", "logprob", "value"),
    list(itertools.product(("action", "chunk"), ("token", "action", "chunk"), ("none", "action", "chunk"))),
)
def test_forbidden_combinations_are_refused_with_the_reason(reward: str, logprob: str, value: str) -> None:
    reason = REFUSED.get((reward, logprob)) or REFUSED.get((reward, f"value {value}"))
    for entropy in ("token", "action", "chunk"):
        if reason is None:
            levels.check_levels(reward=reward, logprob=logprob, entropy=entropy, value=value)
        else:
            with pytest.raises(ConfigurationError, match=reason):
                levels.check_levels(reward=reward, logprob=logprob, entropy=entropy, value=value)


@pytest.mark.parametrize("name", ["reward", "logprob", "entropy", "value"])
def test_unknown_level_is_refused_with_the_valid_ones(name: str) -> None:
    chosen = {"reward": "chunk", "logprob": "token", "entropy": "token", "value": "chunk", name: "chnk"}
    with pytest.raises(ConfigurationError, match=rf"{name}.*'chnk'.*Did you mean 'chunk'"):
        levels.check_levels(**chosen)
