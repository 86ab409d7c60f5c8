"""From groups to samples and to a loss, against values worked out by hand."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch

from embodied.algorithms.staleness import staleness
from embodied.algorithms.statistics import report
from embodied.config import parse
from embodied.errors import ConfigurationError, CorrectnessAlarm
from reasoning.training.algorithm import AlgorithmConfig, ReasoningLoss, has_signal, make_samples, trim
from reasoning.training.messages import Group

NAN = math.nan


def group(number, scores, lengths, *, truncated=None, logprobs=None, reference=None, values=None, versions=0):
    size, longest = len(lengths), max(lengths)
    shape = (size, longest)
    return Group(
        number=number,
        problem=number,
        prompt=torch.tensor([5, 6]),
        tokens=torch.arange(10, 10 + size * longest).reshape(shape),
        logprobs=torch.full(shape, -1.0) if logprobs is None else torch.tensor(logprobs),
        versions=torch.full(shape, versions),
        lengths=torch.tensor(lengths),
        truncated=torch.tensor(truncated or [False] * size),
        scores=torch.tensor(scores, dtype=torch.float32),
        reference=None if reference is None else torch.tensor(reference),
        values=None if values is None else torch.tensor(values),
    )


def options(**values):
    return parse(AlgorithmConfig, {"group_size": 2, **values})


def expect(tensor, values):
    torch.testing.assert_close(tensor, torch.tensor(values), atol=1e-4, rtol=1e-4)


def test_grpo_compares_scores_within_the_group_and_every_token_gets_the_same():
    samples, _, _ = make_samples([group(0, [1, 0], [2, 3]), group(1, [5, 5], [1, 1])], options())
    std = math.sqrt(0.5)  # of a sample: squared deviations 2 x 0.25 over n - 1
    up = 0.5 / std
    expect(samples.advantages[:2], [[up, up, 0], [-up, -up, -up]])
    assert not samples.advantages[2:].any()  # scores do not differ: no advantage, and no NaN
    assert samples.mask.sum(1).tolist() == [2, 3, 1, 1]
    without, _, _ = make_samples([group(0, [1, 0], [2, 3])], options(deviation="none"))
    expect(without.advantages, [[0.5, 0.5, 0], [-0.5, -0.5, -0.5]])


def test_rloo_leaves_the_response_itself_out():
    samples, _, _ = make_samples([group(0, [3, 1, 2], [1, 1, 1])], options(advantage="rloo", group_size=3))
    expect(samples.advantages[:, 0], [1.5, -1.5, 0.0])


def test_end_of_sequence_is_part_of_the_loss_and_padding_is_not():
    samples, _, _ = make_samples([group(0, [1, 0], [1, 3])], options())
    assert samples.mask.tolist() == [[True, False, False], [True, True, True]]
    assert samples.sequence.tolist() == [[5, 6, 10, 11, 12], [5, 6, 13, 14, 15]]


def test_what_could_not_be_graded_is_in_no_statistic_and_in_no_loss():
    samples, _, statistics = make_samples([group(0, [1, NAN, 0], [1, 2, 1])], options(group_size=3))
    assert samples.order.tolist() == [0, 2]
    expect(samples.advantages[:, 0], [math.sqrt(0.5), -math.sqrt(0.5)])  # as if the group had had two members
    assert report(statistics)["rollout/excluded"] == pytest.approx(1 / 3)
    nothing, _, _ = make_samples([group(0, [NAN, NAN], [1, 2])], options())
    assert len(nothing) == 0
    for advantage in ("rloo", "reinforce_pp", "reinforce_pp_baseline"):
        graded, _, _ = make_samples([group(0, [1, NAN, 0], [1, 2, 1])], options(group_size=3, advantage=advantage))
        alone, _, _ = make_samples([group(0, [1, 0], [1, 1])], options(advantage=advantage))
        expect(graded.advantages[:, 0], alone.advantages[:, 0].tolist())


@pytest.mark.parametrize(
    ("rule", "mask", "difference"),
    [("keep", [True, True], 0.5), ("mask", [True, False], 0.5), ("penalise", [True, True], 1.5)],
)
def test_truncated_responses_follow_the_rule(rule, mask, difference):
    given = group(0, [1, 0], [1, 1], truncated=[False, True])
    samples, _, _ = make_samples([given], options(truncated=rule, truncated_penalty=2.0, deviation="none"))
    assert samples.order.tolist() == [i for i, kept in enumerate(mask) if kept]
    # without the penalty the mean is 1/2, with it (1 - 2) / 2
    assert samples.advantages[0, 0] == difference


def test_groups_whose_scores_are_equal_can_be_dropped_from_the_denominator():
    groups = [group(0, [1, 0], [2, 2]), group(1, [1, 1], [4, 4])]
    kept, _, _ = make_samples(groups, options())
    dropped, _, statistics = make_samples(groups, options(uniform_groups="drop"))
    assert (len(kept), len(dropped)) == (4, 2)
    assert dropped.sequence.shape[1] == 4  # and their padding is gone
    assert report(statistics)["group/informative_fraction"] == 0.5
    assert ReasoningLoss(options()).denominator(kept) == 12
    assert ReasoningLoss(options()).denominator(dropped) == 4


@pytest.mark.parametrize("truncated", ["keep", "mask", "penalise"])
def test_a_group_has_signal_exactly_where_it_is_learnt_from(truncated):
    given = options(uniform_groups="resample", truncated=truncated)
    found = set()
    for scores in itertools.product([0.0, 1.0, math.nan], repeat=2):
        for cut in itertools.product([False, True], repeat=2):
            one = group(0, scores, [2, 3], truncated=list(cut))
            kept, _, _ = make_samples([one], given)
            assert has_signal(one, given) == (len(kept) > 0), (scores, cut)
            found.add(len(kept) > 0)
    assert found == {True, False}


@pytest.mark.parametrize("advantage", ["reinforce_pp", "gae"])
def test_masked_responses_take_no_part_in_whitening(advantage):
    given = options(advantage=advantage, truncated="mask")
    alone, _, _ = make_samples([group(0, [1.0, 0.0], [2, 3])], given)
    several = [group(0, [1.0, 0.0], [2, 3]), group(1, [5.0, 7.0], [2, 2], truncated=[True, True])]
    beside, _, _ = make_samples(several, given)
    expect(beside.advantages, alone.advantages.tolist())
    assert beside.advantages.any()


def test_reinforce_pp_pays_at_the_last_token_and_whitens_over_the_batch():
    samples, _, _ = make_samples([group(0, [1, 0], [1, 3])], options(advantage="reinforce_pp", group_size=2, gamma=0.5))
    # returns to go: 1 | 0, 0, 0; mean 1/4, deviation of the population sqrt(3)/4
    deviation = math.sqrt(3) / 4
    expect(samples.advantages[0, :1], [0.75 / deviation])
    expect(samples.advantages[1], [-0.25 / deviation] * 3)
    other, _, _ = make_samples([group(0, [0, 1], [1, 3])], options(advantage="reinforce_pp", gamma=0.5))
    returns = torch.tensor([0.0, 0.25, 0.5, 1.0])  # 1 at the last token of three, discounted before
    whitened = (returns - returns.mean()) / returns.std(correction=0)
    expect(other.advantages[1], whitened[1:].tolist())


def test_gae_of_tokens_by_hand_with_the_score_at_the_end():
    values = [[0.5, 0.25], [0.1, 0.0]]
    samples, _, _ = make_samples(
        [group(0, [1, 0], [2, 1], values=values)],
        options(advantage="gae", gae_lambda=0.5, normalize_advantages=False),
    )
    last = 1 - 0.25
    first = (0 + 0.25 - 0.5) + 0.5 * last
    expect(samples.advantages, [[first, last], [-0.1, 0.0]])
    expect(samples.returns, [[first + 0.5, 1.0], [0.0, 0.0]])


def test_divergence_in_the_reward_is_paid_token_by_token_or_by_the_response():
    given = group(0, [1, 1], [2, 2], logprobs=[[-1.0, -1.0], [-1.0, -1.0]], reference=[[-1.0, -1.5], [-1.0, -1.0]])
    kl = {"kl": "k1", "kl_coefficient": 0.1, "kl_in": "reward"}
    samples, _, statistics = make_samples([given], options(advantage="rloo", **kl))
    # the first response costs 0.1 x 0.5
    expect(samples.advantages[:, 0], [-0.05, 0.05])
    assert report(statistics)["policy/reference_kl"] == pytest.approx(0.125)
    valued = dataclasses.replace(given, values=torch.zeros(2, 2))
    samples, _, _ = make_samples([valued], options(advantage="gae", normalize_advantages=False, **kl))
    expect(samples.advantages, [[0.95, 0.95], [1.0, 1.0]])
    loss = make_samples([given], options(advantage="rloo", kl_coefficient=0.1, kl_in="loss"))[0]
    assert not loss.advantages.any()


def test_broken_groups_are_an_alarm():
    with pytest.raises(CorrectnessAlarm, match="Broken group"):
        make_samples([group(0, [1, 0], [1, 1]), group(0, [1, 0], [1, 1])], options())


def test_tokens_know_their_weights_and_none_is_older_than_allowed():
    samples, _, _ = make_samples([group(0, [1, 0], [1, 2], versions=3)], options())
    found = report(staleness(4 - samples.oldest, 1))
    assert found == {
        "rollout/staleness": 1.0,
        "rollout/staleness_max": 1.0,
        "rollout/staleness_share_0": 0.0,
        "rollout/staleness_share_1": 1.0,
    }
    with pytest.raises(CorrectnessAlarm, match="max_staleness is 0"):
        staleness(4 - samples.oldest, 0)
    with pytest.raises(CorrectnessAlarm):
        staleness(2 - samples.oldest, 1)  # of weights that are not there yet


def test_a_response_is_as_old_as_its_oldest_token_and_padding_has_no_age():
    versions = torch.tensor([[2, 3, 4], [3, 3, 1]])
    given = dataclasses.replace(group(0, [1, 0], [3, 2]), versions=versions)
    samples, _, _ = make_samples([given], options())
    assert samples.oldest.tolist() == [2, 3]


def loss_of(batch, logprobs, **values):
    loss = ReasoningLoss(options(**values))
    share, statistics = loss(batch, logprobs, torch.zeros_like(logprobs), loss.denominator(batch))
    return share, report(statistics)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token-mean", (-1 - 1 + 1) / 3),
        ("seq-mean-token-sum", (-2 + 1) / 2),
        ("seq-mean-token-mean", (-1 + 1) / 2),
    ],
)
def test_token_and_sequence_forms_weigh_long_responses_differently(aggregation, expected):
    batch, _, _ = make_samples([group(0, [2, 0], [2, 1])], options(deviation="none"))
    share, _ = loss_of(batch, batch.old_logprobs.clone(), aggregation=aggregation)
    assert share.item() == pytest.approx(expected)


def test_clip_higher_lets_good_tokens_rise_further():
    batch, _, _ = make_samples([group(0, [2, 0], [1, 1])], options(deviation="none"))
    logprobs = batch.old_logprobs + torch.tensor([[math.log(1.25)], [0.0]])
    symmetric, _ = loss_of(batch, logprobs)
    higher, _ = loss_of(batch, logprobs, clip_high=0.28)
    assert symmetric.item() == pytest.approx((-1.2 + 1) / 2)
    assert higher.item() == pytest.approx((-1.25 + 1) / 2)


def test_engine_correction_weighs_by_learner_over_engine_up_to_its_cap():
    batch, _, _ = make_samples([group(0, [2, 0], [1, 1])], options(deviation="none"))
    batch.old_logprobs = batch.engine_logprobs + torch.tensor([[math.log(4.0)], [math.log(0.5)]])
    shared = {"old_logprobs": "learner", "correction_cap": 2.0}
    share, statistics = loss_of(batch, batch.old_logprobs, engine_correction="truncate", **shared)
    assert share.item() == pytest.approx((-2.0 + 0.5) / 2)
    assert statistics["policy/behaviour_weight_max"] == pytest.approx(4.0)
    share, _ = loss_of(batch, batch.old_logprobs, engine_correction="drop", **shared)
    assert share.item() == pytest.approx(0.5 / 2)
    share, _ = loss_of(batch, batch.old_logprobs, engine_correction="none", **shared)
    assert share.item() == pytest.approx(0.0)


def test_divergence_and_entropy_are_terms_of_the_loss():
    batch, _, _ = make_samples([group(0, [1, 1], [1, 1], reference=[[-2.0], [-1.0]])], options(kl_coefficient=0.5))
    loss = ReasoningLoss(options(kl_coefficient=0.5, entropy_coefficient=0.25))
    share, statistics = loss(batch, batch.old_logprobs, torch.full((2, 1), 2.0), loss.denominator(batch))
    k3 = math.exp(-1) + 1 - 1  # of current -1 and reference -2
    assert share.item() == pytest.approx(0.5 * k3 / 2 - 0.25 * 2.0)
    assert report(statistics)["policy/reference_kl"] == pytest.approx(k3 / 2)


def test_trimming_takes_away_padding_only():
    samples, _, _ = make_samples([group(0, [1, 0], [1, 4])], options())
    short = trim(samples[:1])
    assert short.sequence.tolist() == [[5, 6, 10]]
    assert short.advantages.tolist() == samples.advantages[:1, :1].tolist()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"group_size": 1}, "at least 2 for advantage grpo"),
        ({"max_staleness": 1}, "old_logprobs: learner"),
        ({"engine_correction": "truncate"}, "old_logprobs is engine"),
        ({"kl": "k1", "kl_coefficient": 0.1}, "no gradient on average"),
        ({"critic_warmup": 2}, "has no critic"),
        ({"advantage": "reinforce_pp", "group_size": 1, "uniform_groups": "drop"}, "every group uniform"),
        ({"gamma": 0.0}, "0 < gamma"),
        ({"correction_cap": 0.5}, "at least 1"),
    ],
)
def test_impossible_combinations_are_refused_with_the_reason(values, words):
    with pytest.raises(ConfigurationError, match=words):
        options(**values)


@pytest.mark.parametrize("advantage", ["grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "gae"])
def test_a_rank_without_groups_takes_part_with_nothing(advantage):
    for rule in ({}, {"uniform_groups": "drop"}, {"kl_coefficient": 0.1, "kl_in": "reward"}):
        given = options(advantage=advantage, **rule)
        samples, idle, statistics = make_samples([], given)
        _, _, others = make_samples([group(0, [1, 0], [1, 2], values=[[0.0, 0.0]] * 2)], given)
        assert len(samples) == 0
        assert statistics.keys() == others.keys()  # or the ranks' records could not be merged
        assert not idle.mask.any()
        assert ReasoningLoss(given).denominator(idle) == 0
        assert report(staleness(3 - samples.oldest, 0)) == {"rollout/staleness": 0.0, "rollout/staleness_max": 0.0}
