"""Ours against another system's published code; where that is wrong the test says so and asserts what is right."""

from __future__ import annotations

import pytest
import torch
from golden_cases import GOLDEN, Case

from embodied.algorithms import aggregation, divergence, groups, levels, losses
from embodied.algorithms.advantages import gae
from embodied.algorithms.aggregation import aggregate, loss_denominator
from embodied.algorithms.masked import masked_mean
from embodied.algorithms.statistics import ExplainedVariance, merge, report, whiten

TIGHT = {"rtol": 2e-5, "atol": 2e-6}  # the reference computed in float32, we in float64


def named(prefix: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [c for c in GOLDEN.cases if c.startswith(prefix)])


def close(ours: torch.Tensor, reference: torch.Tensor, **tolerance: float) -> None:
    torch.testing.assert_close(ours.double(), reference.double(), **{**TIGHT, **tolerance})


def mask_of(case: Case, name: str = "loss_mask", shape_of: str = "logprobs") -> torch.Tensor:
    """The case's mask; all True where the reference was called without one."""
    if name in case.none_inputs or name not in case.inputs:
        return torch.ones(case.inputs[shape_of].shape, dtype=torch.bool)
    return case.inputs[name]


def steps_of(case: Case, level: str) -> dict[str, torch.Tensor]:
    """The reference's embodied tensors as time-major step tensors at `level`."""
    rewards, dones = case.inputs["rewards"], case.inputs["dones"]
    executed = torch.ones_like(rewards, dtype=torch.bool)
    if level == "chunk":
        return {
            "rewards": levels.reward_to(rewards, executed, level),
            "terminated": levels.ends_to(dones[1:], executed, level),
        }
    # the reference keeps the last T * C + 1 flattened flags; an end of step t is stored one place later
    count = rewards.shape[0] * rewards.shape[2]
    return {"rewards": levels.flatten_steps(rewards), "terminated": levels.flatten_steps(dones)[-count:]}


def level_of(case: Case) -> str:
    return "chunk" if case.params["reward_type"] == "chunk_level" else "action"


def as_steps(tensor: torch.Tensor) -> torch.Tensor:
    return levels.flatten_steps(tensor)


def test_every_case_is_used() -> None:
    prefixes = (
        "compute_loss_mask", "gae_", "grpo_", "reinpp_", "actor_2d", "agg_", "safe_normalize", "huber_loss", "kl_",
        "embodied_actor", "critic_", "decoupled_", "entropy_from_logits", "reshape_entropy",
    )  # fmt: skip
    assert [c for c in GOLDEN.cases if not c.startswith(prefixes)] == []


def test_first_episode_mask() -> None:
    case = GOLDEN["compute_loss_mask"]
    count = case.outputs["loss_mask"].shape[0] * case.outputs["loss_mask"].shape[2]
    ended = levels.flatten_steps(case.inputs["dones"])[-count:]
    mask = groups.first_episode(ended, torch.zeros_like(ended), torch.ones_like(ended))
    assert torch.equal(mask, as_steps(case.outputs["loss_mask"]))
    assert torch.equal(mask.sum(0).expand(mask.shape), as_steps(case.outputs["loss_mask_sum"]))


@named("gae_embodied")
def test_gae_embodied(name: str) -> None:
    case = GOLDEN[name]
    steps = steps_of(case, level_of(case))
    terminated = steps["terminated"]
    valid = torch.ones_like(terminated)
    if "loss_mask" not in case.none_inputs:
        valid = as_steps(case.inputs["loss_mask"])
    nothing = torch.zeros_like(terminated)
    ours = gae(
        steps["rewards"], levels.flatten_values(case.inputs["values"]), steps["rewards"], terminated, nothing, valid,
        gamma=case.params["gamma"], gae_lambda=case.params["gae_lambda"],
    )  # fmt: skip
    advantages = ours.advantages if case.params.get("normalize_advantages") is False else whiten(ours.advantages, valid)
    # under the mask the reference leaves numbers behind; ours are 0 there
    close(advantages[valid], as_steps(case.outputs["advantages"])[valid])
    close(ours.returns[valid], as_steps(case.outputs["returns"])[valid])
    assert not advantages[~valid].any()
    assert not ours.returns[~valid].any()


@named("gae_direct")
def test_gae_direct(name: str) -> None:
    case = GOLDEN[name]
    rewards, terminated = case.inputs["rewards"], case.inputs["dones"][1:]
    # The reference lets masked steps take part in the recursion, ours does not know them; what is compared here is the
    # recursion over all steps and the normalisation over the mask.
    valid, full = mask_of(case, shape_of="rewards"), torch.ones_like(terminated)
    ours = gae(
        rewards, case.inputs["values"], rewards, terminated, torch.zeros_like(terminated), full,
        gamma=case.params["gamma"], gae_lambda=case.params["gae_lambda"],
    )  # fmt: skip
    advantages = whiten(ours.advantages, valid) if case.params["normalize_advantages"] else ours.advantages
    returns = whiten(ours.returns, valid) if case.params.get("normalize_returns") else ours.returns
    close(advantages[valid], case.outputs["advantages"][valid])
    close(returns[valid], case.outputs["returns"][valid])


@named("grpo_embodied")
def test_grpo_embodied(name: str) -> None:
    case = GOLDEN[name]
    steps = steps_of(case, level_of(case))
    terminated = steps["terminated"]
    nothing, executed = torch.zeros_like(terminated), torch.ones_like(terminated)
    scores = groups.first_episode_return(steps["rewards"], terminated, nothing, executed)
    group_ids = torch.arange(len(scores)) // case.params["group_size"]
    mask = groups.first_episode(terminated, nothing, executed)
    close(groups.broadcast_to_steps(groups.grpo(scores, group_ids), mask), as_steps(case.outputs["advantages"]))


def test_grpo_reasoning() -> None:
    case = GOLDEN["grpo_reasoning"]
    group_ids = torch.arange(len(case.inputs["rewards"])) // case.params["group_size"]
    advantages = groups.grpo(case.inputs["rewards"], group_ids)
    close(groups.broadcast_to_steps(advantages, case.inputs["loss_mask"].T).T, case.outputs["advantages"])


def test_grpo_group_of_one_is_zero_where_the_reference_is_nan() -> None:
    case = GOLDEN["grpo_group_size_1"]
    mask = case.inputs["loss_mask"]
    assert case.outputs["advantages"][mask].isnan().all()  # a sample deviation of one entry
    assert not groups.grpo(case.inputs["rewards"], torch.arange(8)).any()


def test_grpo_of_single_steps() -> None:
    # the reference's "video" form compares every step of every member of a group with all the others
    case = GOLDEN["grpo_video_video"]
    rewards = case.inputs["rewards"]
    group_ids = (torch.arange(rewards.shape[1]) // case.params["group_size"]).expand(rewards.shape)
    close(groups.grpo(rewards.flatten(), group_ids.flatten()), case.outputs["advantages"].flatten())


def test_grpo_of_turns_with_groups_of_unequal_size() -> None:
    case = GOLDEN["grpo_dynamic_turn"]
    group_ids = torch.tensor(case.params["idx_to_traj"]) // case.params["group_size"]
    advantages = groups.grpo(case.inputs["rewards"], group_ids)
    close(groups.broadcast_to_steps(advantages, case.inputs["loss_mask"].T).T, case.outputs["advantages"])


def test_reinforce_pp_pays_the_score_to_every_token_when_there_is_no_penalty() -> None:
    # The reference puts the reward on the last column, padding included; without a KL penalty the return to go is the
    # same number on every real token, so both agree. tests/algorithms/test_groups.py has the case where it matters.
    case = GOLDEN["reinpp_reasoning"]
    mask = case.inputs["loss_mask"]
    ours = groups.reinforce_pp(case.inputs["rewards"], mask.T).T
    close(ours[mask], case.outputs["advantages"][mask])
    assert not ours[~mask].any()


def test_reinforce_pp_baseline_works_where_the_reference_crashes() -> None:
    assert "IndexError" in GOLDEN.cases["reinpp_baseline_kl"]["error"]
    scores, valid = torch.tensor([1.0, 3.0, 5.0, 5.0]), torch.ones(2, 4, dtype=torch.bool)
    kept = scores.clone()
    advantages = groups.reinforce_pp_baseline(scores, torch.tensor([0, 0, 1, 1]), valid)
    scale = 0.5**0.5  # eight entries, -1, 1, 0, 0 twice: their squares are 4 of 8
    close(advantages, torch.tensor([-1.0, 1.0, 0.0, 0.0]).expand(2, 4) / scale)
    assert torch.equal(scores, kept)  # the reference overwrites them


@named("actor_2d")
def test_ppo(name: str) -> None:
    case = GOLDEN[name]
    params = case.params
    clamp = None
    if "clip_log_ratio_min" in params:
        clamp = (params["clip_log_ratio_min"], params["clip_log_ratio_max"])
    clip = losses.Clip(
        low=params["clip_ratio_low"], high=params["clip_ratio_high"], dual=params.get("clip_ratio_c"), log_ratio=clamp
    )
    logprobs, mask = case.inputs["logprobs"].requires_grad_(), mask_of(case)
    loss = losses.ppo(logprobs, case.inputs["old_logprobs"], case.inputs["advantages"], mask, clip=clip)
    mode = params.get("loss_agg_func", "token-mean")
    total = aggregate(loss.policy.terms, mask, mode, loss_denominator(mask, mode))
    if params.get("critic_warmup"):
        # the reference zeroes the actor's loss inside; ours leaves the actor out of the optimiser's step instead
        assert case.outputs["loss"] == 0
        return
    total.backward()
    close(total, case.outputs["loss"])
    close(logprobs.grad, case.outputs["grad_logprobs"])
    statistics = report(loss.statistics)
    assert statistics["policy/clip_fraction"] == pytest.approx(case.metrics["actor/clip_fraction"], rel=1e-5)
    assert statistics["policy/ratio"] == pytest.approx(case.metrics["actor/ratio"], rel=1e-4)
    # the reference logs the mean of old - current, which changes sign; ours never is negative
    assert statistics["policy/approx_kl"] >= 0


@named("agg_")
def test_aggregation(name: str) -> None:
    case = GOLDEN[name]
    values = case.inputs["values"]
    mask = mask_of(case, "mask", "values")
    if name == "agg_seq_mean_token_mean_empty_row":
        # 0 / 0 in the reference; an empty sequence counts nowhere in ours
        assert case.outputs["value"].isnan()
        rows = mask.any(1)
        expected = torch.stack([values[i][mask[i]].mean() for i in rows.nonzero().flatten()]).mean()
        ours = aggregate(values, mask, "seq-mean-token-mean", loss_denominator(mask, "seq-mean-token-mean"))
        close(ours, expected)
    elif name == "agg_seq_mean_token_sum_empty_row":
        # the reference counts empty sequences in the mean
        rows = mask.any(1)
        assert 0 < rows.sum() < len(mask)
        ours = aggregate(values, mask, "seq-mean-token-sum", loss_denominator(mask, "seq-mean-token-sum"))
        close(ours * rows.sum() / len(mask), case.outputs["value"])
    elif name == "agg_masked_mean_ratio":
        # it averages x / (length / 12) over all entries
        lengths = case.inputs["loss_mask_ratio"] * 12
        size = torch.tensor(values.numel() / 12, dtype=torch.float64)
        close(aggregate(values, mask, "trajectory-length", size, lengths=lengths.round()), case.outputs["value"])
    elif name == "agg_token_mean_broadcast_mask":
        # mask [B, C, 1] counted without its seven tokens: the reference's loss is seven times the mean
        close(7 * masked_mean(values, mask), case.outputs["value"])
        full = mask.expand_as(values)
        close(7 * aggregate(values, full, "token-mean", loss_denominator(full, "token-mean")), case.outputs["value"])
    else:
        close(aggregate(values, mask, "token-mean", loss_denominator(mask, "token-mean")), case.outputs["value"])


@named("safe_normalize")
def test_whitening(name: str) -> None:
    case = GOLDEN[name]
    array, mask = case.inputs["array"], mask_of(case, "loss_mask", "array")
    ours = whiten(array, mask)
    if name == "safe_normalize_all_masked":
        assert torch.equal(case.outputs["value"], array)  # returned as it came; ours is 0 where nothing is valid
        assert not ours.any()
    else:
        close(ours[mask], case.outputs["value"][mask])


def test_huber() -> None:
    case = GOLDEN["huber_loss"]
    error = case.inputs["error"]
    zeros, mask = torch.zeros_like(error), torch.ones_like(error, dtype=torch.bool)
    ours, _ = losses.value_terms(zeros, zeros, error, mask, huber_delta=case.params["delta"])
    close(ours.terms, case.outputs["value"])


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "abs"])
def test_kl(kind: str) -> None:
    case = GOLDEN[f"kl_{kind}"]
    ours = getattr(divergence, f"kl_{kind}")(case.inputs["logprob"], case.inputs["ref_logprob"])
    # the reference bounds k3 to [-10, 10]; ours is the estimator itself
    close(ours.clamp(-10, 10) if kind == "k3" else ours, case.outputs["value"])


@named("embodied_actor")
def test_embodied_losses(name: str) -> None:
    """Levels, PPO, value loss and aggregation together, against the reference's whole embodied loss.

    The reference counts mask entries before they are broadcast over the finer log-probability level, so its
    token-mean is too large by the number of entries that share a mask entry. With a trajectory's length given it
    averages max_steps / length * x over all entries: `trajectory-length` with the denominator size / max_steps.
    """
    case = GOLDEN[name]
    chunk, tokens = 3, 7
    logprob_level = case.params["logprob_type"].removesuffix("_level")
    source = case.params["reward_type"].removesuffix("_level")
    executed = torch.ones(5, chunk, dtype=torch.bool)
    raw = case.inputs["logprobs"].requires_grad_()
    logprobs = levels.sum_to(raw.reshape(5, chunk, tokens), executed, logprob_level)
    old = levels.sum_to(case.inputs["old_logprobs"].reshape(5, chunk, tokens), executed, logprob_level)

    def at_logprob_level(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.squeeze(-1) if source == "chunk" else tensor
        return levels.spread(tensor, source, logprob_level, chunk=chunk, tokens=tokens)

    coarse = mask_of(case, shape_of="advantages")
    mask, advantages = at_logprob_level(coarse), at_logprob_level(case.inputs["advantages"])
    clip = losses.Clip(low=case.params["clip_ratio_low"], high=case.params["clip_ratio_high"])
    by_length = case.params["max_episode_steps"] is not None
    critic = case.params["loss_type"] == "actor_critic"

    def total(terms: torch.Tensor, term_mask: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        if lengths is None:
            return aggregate(terms, term_mask, "token-mean", loss_denominator(term_mask, "token-mean"))
        size = torch.tensor(terms.numel() / case.params["max_episode_steps"], dtype=torch.float64)
        return aggregate(terms, term_mask, aggregation.Aggregation.TRAJECTORY_LENGTH, size, lengths=lengths)

    lengths = case.inputs["loss_mask_sum"] if by_length else None
    policy_lengths = None if lengths is None else at_logprob_level(lengths)
    if critic:
        values = case.inputs["values"].requires_grad_()
        loss = losses.ppo_actor_critic(
            logprobs, old, advantages, mask, values, case.inputs["prev_values"], case.inputs["returns"], coarse,
            clip=clip, value_clip=case.params["value_clip"], huber_delta=case.params["huber_delta"],
        )  # fmt: skip
    else:
        loss = losses.ppo(logprobs, old, advantages, mask, clip=clip)
    policy = total(loss.policy.terms, loss.policy.mask, policy_lengths)
    masked = "loss_mask" not in case.none_inputs and "loss_mask" in case.inputs
    inflation = mask.sum() / coarse.sum() if masked and not by_length else 1
    policy = policy * inflation
    whole = policy + total(loss.value.terms, loss.value.mask, lengths) if critic else policy
    whole.backward()
    close(whole, case.outputs["loss"])
    close(raw.grad, case.outputs["grad_logprobs"])
    if critic:
        close(values.grad, case.outputs["grad_values"])


@named("critic_")
def test_value_loss(name: str) -> None:
    case = GOLDEN[name]
    values, mask = case.inputs["values"].requires_grad_(), mask_of(case, shape_of="values")
    terms, statistics = losses.value_terms(
        values, case.inputs["prev_values"], case.inputs["returns"], mask,
        value_clip=case.params["value_clip"], huber_delta=case.params["huber_delta"],
    )  # fmt: skip
    if "max_episode_steps" in case.params:
        size = torch.tensor(values.numel() / case.params["max_episode_steps"], dtype=torch.float64)
        loss = aggregate(terms.terms, mask, "trajectory-length", size, lengths=case.inputs["loss_mask_sum"])
    else:
        loss = aggregate(terms.terms, mask, "token-mean", loss_denominator(mask, "token-mean"))
    loss.backward()
    close(loss, case.outputs["loss"])
    close(values.grad, case.outputs["grad_values"])
    summed = {k.rsplit("/", 1)[1]: v for k, v in case.metrics.items() if "explained" in k}
    count = summed["count"]

    def variance(total: float, square: float) -> float:
        return square / count - (total / count) ** 2

    expected = 1 - variance(summed["errors_sum"], summed["errors_sq_sum"]) / variance(
        summed["returns_sum"], summed["returns_sq_sum"]
    )
    assert report(statistics)["value/explained_variance"] == pytest.approx(expected, rel=1e-4)


def test_explained_variance_of_pieces_is_that_of_the_whole() -> None:
    case = GOLDEN["critic_huber_small_mask"]
    values, returns, mask = case.inputs["values"], case.inputs["returns"], case.inputs["loss_mask"]
    whole = ExplainedVariance.of(values, returns, mask)
    pieces = [{"x": ExplainedVariance.of(values[r], returns[r], mask[r])} for r in torch.arange(8).split(3)]
    close(merge(*pieces)["x"].value(), whole.value(), rtol=1e-12)


@named("decoupled_")
def test_decoupled_ppo(name: str) -> None:
    case = GOLDEN[name]
    params, mask = case.params, case.inputs["loss_mask"]
    logprobs, old = case.inputs["logprobs"].requires_grad_(), case.inputs["old_logprobs"]
    proximal = case.inputs.get("proximal_logprobs", old)
    if "versions" in case.inputs:
        # the reference interpolates the proximal log-probability by version; ours is recomputed by the caller
        versions, current = case.inputs["versions"].double(), params["current_version"]
        known = (versions >= 0) & (versions < current)
        share = torch.where(known, (current - 1 - versions) / torch.where(known, current - versions, 1.0), 0.0)
        proximal = old + share * (logprobs.detach() - old)
    clip = losses.Clip(low=params["clip_ratio_low"], high=params["clip_ratio_high"], dual=params.get("clip_ratio_c"))
    cap = params.get("behave_weight_threshold")
    loss = losses.decoupled_ppo(
        logprobs, old, proximal, case.inputs["advantages"], mask, clip=clip, behaviour_weight_cap=cap
    )
    total = aggregate(loss.policy.terms, mask, "token-mean", loss_denominator(mask, "token-mean"))
    statistics = report(loss.statistics)
    dropped = statistics["policy/behaviour_capped_fraction"]
    assert dropped == pytest.approx(case.metrics.get("actor/behav_clip_fraction", 0.0), rel=1e-5)
    # the reference divides by the terms that were kept, so that dropping some makes the others weigh more
    total = total / (1 - dropped)
    total.backward()
    close(total, case.outputs["loss"])
    close(logprobs.grad, case.outputs["grad_logprobs"])


def test_entropy_from_logits_with_impossible_tokens() -> None:
    case = GOLDEN["entropy_from_logits_masked"]
    assert case.inputs["logits"].isinf().any()
    close(divergence.entropy_from_logits(case.inputs["logits"]), case.outputs["value"])


def test_entropy_at_token_level_keeps_every_token() -> None:
    case = GOLDEN["reshape_entropy_token_level"]
    entropy = case.inputs["entropy"].reshape(5, 3, 7)
    ours = levels.sum_to(entropy, torch.ones(5, 3, dtype=torch.bool), "token")
    close(ours.reshape(case.outputs["value"].shape), case.outputs["value"])
