"""From a trajectory to samples and a loss: levels, masks and shapes meet as they should."""

import statistics as numbers

import pytest
import torch
from tensordict import TensorDict

from embodied.errors import ConfigurationError, CorrectnessAlarm
from embodied.interaction.algorithm import AlgorithmConfig, EmbodiedLoss, check_levels, make_samples
from embodied.interaction.trajectory import Trajectory
from policies.api import Evaluation, Sampling

GAMMA, LAMBDA = 0.5, 0.5


def trajectory(**changes) -> Trajectory:
    """Two decisions of one environment, chunks of two actions; the first chunk's first action ends the episode by
    truncation, so its second is not valid; the next chunk runs through."""
    record = {
        "rewards": torch.tensor([[[1.0, 0.0]], [[2.0, 3.0]]]),
        "terminated": torch.zeros(2, 1, 2, dtype=torch.bool),
        "truncated": torch.tensor([[[True, False]], [[False, False]]]),
        "valid": torch.tensor([[[True, False]], [[True, True]]]),
        "state_values": torch.tensor([[[10.0, 11.0]], [[20.0, 21.0]], [[30.0, 31.0]]]),
        "final_values": torch.tensor([[[40.0, 41.0]], [[0.0, 0.0]]]),
        "actions": torch.zeros(2, 1, 2, 3),
        "tokens": torch.zeros(2, 1, 2, 3),
        "logprobs": torch.zeros(2, 1, 2, 3),
        "env_ids": torch.zeros(2, 1, dtype=torch.int64),
        "group_ids": torch.zeros(2, 1, dtype=torch.int64),
        "assignments": torch.zeros(2, 1, 3, dtype=torch.int64),
        "versions": torch.zeros(2, 1, dtype=torch.int64),
    } | changes
    decisions, envs = record["rewards"].shape[:2]
    inputs = TensorDict({"state": torch.zeros(decisions, envs, 1)}, batch_size=[decisions, envs])
    return Trajectory(inputs=inputs, batch_size=[], **record)


def options(**changes) -> AlgorithmConfig:
    return AlgorithmConfig(**({"gamma": GAMMA, "gae_lambda": LAMBDA, "normalize_advantages": False} | changes))


def test_action_level_advantages_bootstrap_from_the_true_final_observation_and_do_not_leak():
    samples, _, _ = make_samples(trajectory(), options())
    # chunk 2, backwards: 3 + .5*30 - 21 = -3;   2 + .5*21 - 20 = -7.5, plus .25 * -3 = -8.25
    # chunk 1, truncated: 1 + .5*40 (head's first value of the final observation) - 10 = 11, nothing from chunk 2
    assert samples.advantages.tolist() == [[11.0, 0.0], [-8.25, -3.0]]
    assert samples.returns.tolist() == [[21.0, 0.0], [11.75, 18.0]]
    assert samples.valid.tolist() == [[True, False], [True, True]]


def test_chunk_level_sums_the_rewards_of_the_valid_actions():
    values = trajectory().state_values[..., :1]
    record = trajectory(
        state_values=values,
        final_values=torch.tensor([[[40.0]], [[0.0]]]),
        rewards=torch.tensor([[[1.0, 99.0]], [[2.0, 3.0]]]),
    )
    samples, _, _ = make_samples(record, options(reward_level="chunk", logprob_level="chunk"))
    # chunk 2: 5 + .5*30 - 20 = 0;   chunk 1: 1 + .5*40 - 10 = 11
    assert samples.advantages.tolist() == [11.0, 0.0]
    assert samples.returns.tolist() == [[21.0], [20.0]]


def test_normalised_advantages_have_mean_0_and_deviation_1_over_the_actions_that_were_executed():
    samples, _, _ = make_samples(trajectory(), options(normalize_advantages=True))
    found = [11.0, -8.25, -3.0]  # as above; the hole's 0 would move their mean and shrink their deviation
    mean, deviation = numbers.mean(found), numbers.stdev(found)
    assert samples.advantages[samples.valid].tolist() == pytest.approx(
        [(a - mean) / deviation for a in found], abs=1e-5
    )
    assert samples.advantages[~samples.valid].tolist() == [0.0]
    assert samples.returns.tolist() == [[21.0, 0.0], [11.75, 18.0]]


def test_terminated_bootstraps_from_nothing_by_default_and_from_the_final_value_on_request():
    ends = torch.tensor([[[True, False]], [[False, False]]])
    record = trajectory(terminated=ends, truncated=torch.zeros_like(ends))
    assert make_samples(record, options())[0].advantages[0, 0] == 1 - 10
    assert make_samples(record, options(bootstrap="always"))[0].advantages[0, 0] == 1 + 0.5 * 40 - 10


def test_rows_without_a_valid_action_are_left_out():
    valid = torch.tensor([[[True, True]], [[False, False]]])
    ended = torch.tensor([[[False, True]], [[False, False]]])
    samples, _, _ = make_samples(trajectory(valid=valid, truncated=ended), options())
    assert len(samples) == 1


def group_trajectory(scores, group_ids):
    envs = len(scores)
    rewards = torch.zeros(2, envs, 1)
    rewards[0, :, 0] = torch.tensor(scores)
    rewards[1] = 7.0  # after the first end: another episode's, or nobody's
    ended = torch.zeros(2, envs, 1, dtype=torch.bool)
    ended[0] = True
    return trajectory(
        rewards=rewards,
        terminated=ended,
        truncated=torch.zeros_like(ended),
        valid=torch.ones_like(ended),
        state_values=torch.zeros(3, envs, 0),
        final_values=torch.zeros(2, envs, 0),
        tokens=torch.zeros(2, envs, 1, 3),
        logprobs=torch.zeros(2, envs, 1, 3),
        env_ids=torch.arange(envs).expand(2, envs).clone(),
        group_ids=torch.tensor(group_ids).expand(2, envs).clone(),
        assignments=torch.zeros(2, envs, 3, dtype=torch.int64),
        versions=torch.zeros(2, envs, dtype=torch.int64),
    )


GRPO = {"advantage": "grpo", "loss": "ppo", "group_size": 2, "deviation": "none"}


def test_grpo_scores_the_first_episode_within_its_group_whatever_the_order():
    samples, _, statistics = make_samples(group_trajectory([1.0, 5.0, 0.0, 5.0], [8, 9, 8, 9]), options(**GRPO))
    assert samples.advantages.flatten().tolist() == [0.5, 0.0, -0.5, 0.0]
    assert float(statistics["group/informative_fraction"].value()) == 0.5


def test_filtered_groups_leave_the_samples_and_so_every_denominator():
    algorithm = options(**GRPO, filter_rewards=(0.4, 0.6))
    samples, _, statistics = make_samples(group_trajectory([1.0, 5.0, 0.0, 5.0], [8, 9, 8, 9]), algorithm)
    assert samples.advantages.flatten().tolist() == [0.5, -0.5]
    assert samples.trajectory.tolist() == [0, 6]  # the first episodes of environments 0 and 2
    assert float(statistics["group/kept_fraction"].value()) == 0.5


def lost_in_row_0():
    """Row 0 of four: its simulator dies after 0.8 of progress, and what follows in its column is a fresh attempt."""
    record = group_trajectory([0.8, 1.0, 0.0, 1.0], [8, 8, 9, 9])
    record.terminated[0, 0] = False
    record.valid[1, 0] = False
    return record


def test_an_attempt_that_lost_its_simulator_leaves_with_its_group():
    samples, _, statistics = make_samples(lost_in_row_0(), options(**GRPO))
    assert samples.trajectory.tolist() == [6, 9]  # the first episodes of environments 2 and 3
    assert samples.advantages.flatten().tolist() == [-0.5, 0.5]
    assert float(statistics["rollout/lost_fraction"].value()) == 0.5


def test_without_groups_only_the_lost_attempt_leaves():
    algorithm = options(advantage="reinforce_pp", loss="ppo")
    samples, _, statistics = make_samples(lost_in_row_0(), algorithm)
    assert samples.trajectory.tolist() == [3, 6, 9]
    assert float(statistics["rollout/lost_fraction"].value()) == 0.25


@pytest.mark.parametrize(
    ("advantage", "returns"),
    [
        ("reinforce_pp", [2.0, 0.0, 4.0, 0.0]),  # 4 at the end, half of it the step before
        ("reinforce_pp_baseline", [1.0, -1.0, 2.0, -2.0]),  # the same of 2 above the group's mean, and 2 below
    ],
)
def test_scores_are_discounted_to_the_steps_before_the_last_and_whitened(advantage, returns):
    record = group_trajectory([1.0, 0.0], [8, 8])
    record.rewards[1] = torch.tensor([[3.0], [0.0]])
    record.terminated[0] = False
    record.terminated[1] = True
    samples, _, _ = make_samples(record, options(advantage=advantage, loss="ppo", group_size=2))
    mean, deviation = numbers.mean(returns), numbers.pstdev(returns)
    assert samples.advantages.flatten().tolist() == pytest.approx([(g - mean) / deviation for g in returns])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({**GRPO, "loss": "ppo_actor_critic"}, "gives a critic nothing to learn.*use loss: ppo"),
        ({**GRPO, "critic_warmup": 2}, "critic_warmup is 2, but advantage grpo has no critic"),
        ({**GRPO, "filter_rewards": (0.9, 0.1)}, "ascending order"),
        ({"clip_low": -1.0}, "clip is low -1"),
        ({"dual_clip": 0.5}, "dual clip is 0.5"),
        ({"log_ratio_clamp": (1.0, 2.0)}, "log-ratio clamp"),
        ({"value_clip": -1.0}, "value_clip is -1"),
        ({"huber_delta": 0.0}, "huber_delta is 0"),
        ({"loss": "decoupled_ppo", "behaviour_weight_cap": 0.1}, "behaviour_weight_cap is 0.1"),
        ({"value_coefficient": -1.0}, "value_coefficient is -1"),
        ({"sampling": Sampling(decode="greedy")}, "nothing is explored"),
        ({"behaviour_weight_cap": 2.0}, "nothing would follow it with advantage gae and loss ppo_actor_critic"),
        ({"deviation": "none"}, "deviation is none, but nothing"),
    ],
)
def test_what_no_loss_could_mean_is_refused_with_the_options(changes, words):
    with pytest.raises((ValueError, ConfigurationError), match=words):
        options(**changes)


def test_a_broken_group_stops_the_run():
    with pytest.raises(CorrectnessAlarm, match="Broken group"):
        make_samples(group_trajectory([1.0, 0.0, 1.0, 0.0], [8, 8, 8, 9]), options(**GRPO))


@pytest.mark.parametrize("level", ["token", "action"])
@pytest.mark.parametrize(
    "aggregation", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "trajectory-length"]
)
def test_micro_batches_add_up_to_the_gradient_of_the_whole_batch(level, aggregation):
    generator = torch.Generator().manual_seed(0)
    decisions, envs, chunk, tokens = 6, 5, 4, 3

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    record = trajectory(
        rewards=normal(decisions, envs, chunk),
        terminated=torch.zeros(decisions, envs, chunk, dtype=torch.bool),
        truncated=torch.zeros(decisions, envs, chunk, dtype=torch.bool),
        valid=torch.rand(decisions, envs, chunk, generator=generator) < 0.7,
        state_values=normal(decisions + 1, envs, chunk),
        final_values=torch.zeros(decisions, envs, chunk),
        tokens=normal(decisions, envs, chunk, tokens),
        logprobs=normal(decisions, envs, chunk, tokens),
        env_ids=torch.arange(envs).expand(decisions, envs).clone(),
        group_ids=torch.zeros(decisions, envs, dtype=torch.int64),
        assignments=torch.zeros(decisions, envs, 3, dtype=torch.int64),
        versions=torch.zeros(decisions, envs, dtype=torch.int64),
    )
    algorithm = options(
        logprob_level=level, entropy_level="token", aggregation=aggregation, entropy_coefficient=0.1, value_clip=0.2
    )
    samples, _, _ = make_samples(record, algorithm)
    loss = EmbodiedLoss(algorithm)
    rows = torch.randperm(len(samples), generator=generator)[: len(samples) - 3]
    batch = samples[rows]
    denominators = loss.denominators(batch)

    def gradient(size):
        weight = torch.tensor([0.9, 1.1, 0.5], dtype=torch.float64, requires_grad=True)
        for part in batch.split(size):
            logprobs = part.logprobs.double() * weight
            evaluation = Evaluation(logprobs, logprobs.exp() * weight, part.state_values.double() * weight.sum())
            share, _ = loss(part, evaluation, denominators)
            share.backward()
        return weight.grad

    assert torch.allclose(gradient(len(batch)), gradient(4), rtol=1e-9, atol=1e-12)
    assert gradient(len(batch)).abs().sum() > 0


@pytest.mark.parametrize(
    ("changes", "chunk", "value", "words"),
    [
        ({"logprob_level": "chunk"}, 4, "action", "logprob level chunk"),
        ({}, 4, "chunk", "one value a chunk"),
        ({"reward_level": "chunk"}, 4, "action", "one value an action"),
        ({}, 1, "none", "needs values"),
    ],
)
def test_levels_that_do_not_fit_are_refused_with_the_reason(changes, chunk, value, words):
    with pytest.raises(ConfigurationError, match=words):
        check_levels(options(**changes), chunk, value)


@pytest.mark.parametrize("logprob", ["token", "action", "chunk"])
@pytest.mark.parametrize("reward", ["action", "chunk"])
def test_with_one_action_a_chunk_action_and_chunk_are_the_same(logprob, reward):
    check_levels(options(reward_level=reward, logprob_level=logprob), 1, "chunk")
