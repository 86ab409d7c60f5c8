"""Alarms: each goes off on what it is for, says what to do, and stays silent otherwise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from embodied.algorithms import alarms
from embodied.errors import CorrectnessAlarm

NAN = float("nan")


def test_ratio_other_than_one_at_the_first_update_stops() -> None:
    old, mask = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([1, 1, 0]).bool()
    alarms.require_ratio_one(old + torch.tensor([1e-4, 0.0, 9.0]), old, mask)
    alarms.require_ratio_one(old + 5, old, torch.zeros(3).bool())
    with pytest.raises(CorrectnessAlarm, match=r"1 of 2 log-probabilities differ by more than 0.001.*gap is 0.5"):
        alarms.require_ratio_one(old + torch.tensor([0.0, 0.5, 9.0]), old, mask)
    with pytest.raises(CorrectnessAlarm, match="sampling options"):
        alarms.require_ratio_one(old * NAN, old, mask)


def test_gap_between_acting_and_learning_warns_beyond_either_tolerance() -> None:
    acting, mask = torch.zeros(4), torch.tensor([1, 1, 1, 0]).bool()
    learning = torch.tensor([0.0, 0.0, 0.3, NAN])
    assert alarms.warn_logprob_gap(acting, learning, mask, mean_tolerance=0.11, max_tolerance=0.31) is None
    for mean_tolerance, max_tolerance in ((0.09, 1.0), (1.0, 0.2)):
        text = alarms.warn_logprob_gap(
            acting, learning, mask, mean_tolerance=mean_tolerance, max_tolerance=max_tolerance
        )
        assert text is not None
        assert "0.1 on average and 0.3 at most" in text
    assert alarms.warn_logprob_gap(acting, learning, ~mask, mean_tolerance=1, max_tolerance=1) is not None  # NaN
    nothing = torch.zeros(4).bool()
    assert alarms.warn_logprob_gap(acting, learning, nothing, mean_tolerance=0, max_tolerance=0) is None


@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
def test_loss_that_is_not_finite_stops_and_names_the_ingredient(bad: float) -> None:
    fine, broken = torch.ones(3), torch.tensor([1.0, bad, bad])
    alarms.require_finite_loss(fine.sum(), logprobs=broken)  # the ingredient may be masked
    with pytest.raises(CorrectnessAlarm, match=r"advantages \(2 of 3\)") as caught:
        alarms.require_finite_loss(broken.sum(), logprobs=fine, advantages=broken)
    assert "logprobs (" not in str(caught.value)


def test_gradient_that_is_not_finite_stops_and_names_the_parameter() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    alarms.require_finite_gradients(model.named_parameters())  # no gradients yet
    model(torch.ones(1, 2)).sum().backward()
    alarms.require_finite_gradients(model.named_parameters())
    model[1].weight.grad[0, 0] = NAN
    with pytest.raises(CorrectnessAlarm, match=r"1 of 4 parameters is NaN or infinite: 1\.weight\."):
        alarms.require_finite_gradients(model.named_parameters())


def test_constant_reward_over_a_batch_warns() -> None:
    scores = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    assert alarms.warn_constant_reward(scores) is None
    text = alarms.warn_constant_reward(scores, torch.tensor([[1, 1], [1, 0]]).bool())
    assert text is not None
    assert "All 3 rewards of the batch are 1" in text
    assert alarms.warn_constant_reward(torch.ones(1)) is None  # one reward is constant by nature
    assert alarms.warn_constant_reward(torch.zeros(0)) is None


def test_saturated_actions_warn_only_if_all_of_them_are() -> None:
    low, high, valid = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 2.0]), torch.tensor([1, 1, 0]).bool()
    actions = torch.tensor([[-1.0, 2.0], [1.5, -7.0], [0.0, 1.0]])
    text = alarms.warn_actions_at_bounds(actions, low, high, valid)
    assert text is not None
    assert "All components of all 2 actions" in text
    assert alarms.warn_actions_at_bounds(actions, low, high, torch.ones(3).bool()) is None
    assert alarms.warn_actions_at_bounds(actions, low, high, torch.zeros(3).bool()) is None


def test_broken_group_stops() -> None:
    with pytest.raises(CorrectnessAlarm, match="Broken group"):
        alarms.require_groups(torch.tensor([0, 0, 1]), 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_step_that_changes_nothing_stops(dtype: torch.dtype) -> None:
    model = nn.Linear(3, 2).to(dtype)
    model.bias.requires_grad_(False)
    before = alarms.fingerprint(model.named_parameters())
    assert set(before) == {"weight"}  # a frozen parameter is not expected to change
    with pytest.raises(CorrectnessAlarm, match="none of 1 trainable parameters changed"):
        alarms.require_change(before, alarms.fingerprint(model.named_parameters()))
    with torch.no_grad():  # the smallest change there is, in one element
        model.weight[1, 2] = torch.nextafter(model.weight[1, 2].float(), torch.tensor(9.0)).to(dtype)
        if dtype is torch.bfloat16:
            model.weight[1, 2] += 0.01
    alarms.require_change(before, alarms.fingerprint(model.named_parameters()))


def test_unchanged_parameters_are_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    before = alarms.fingerprint(model.named_parameters())
    with torch.no_grad():
        model[0].weight += 1
    assert alarms.unchanged(before, alarms.fingerprint(model.named_parameters())) == ["0.bias", "1.weight", "1.bias"]
