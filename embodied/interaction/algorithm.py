"""From a trajectory to samples, and from samples to a loss: how the algorithms meet the embodied records.

The mathematics is in `embodied.algorithms`; here levels, masks and shapes are brought together.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
import torch.distributed as dist
from tensordict import TensorClass, TensorDict

from embodied import algorithms
from embodied.algorithms import Aggregation, Clip, Level, levels
from embodied.algorithms.aggregation import aggregate, loss_denominator, trajectory_lengths
from embodied.algorithms.losses import check_value_options, check_weight_cap
from embodied.algorithms.statistics import Mean, Statistic
from embodied.config import config
from embodied.errors import ConfigurationError
from embodied.interaction.trajectory import Trajectory
from policies.api import Evaluation, Sampling


@config
class AlgorithmConfig:
    """What is optimised; docs/algorithms.md explains every option.

    advantage, loss: by name. gamma, gae_lambda, bootstrap: of gae. normalize_advantages: whiten them over the rollout.
    group_size, deviation: of group-relative advantages. filter_rewards: keep groups whose mean score is within.
    reward_level, logprob_level, entropy_level: where each is summed.
    clip_low, clip_high, dual_clip, log_ratio_clamp: of the ratio. value_clip, huber_delta: of the value loss.
    value_coefficient, entropy_coefficient: weights in the loss. aggregation: how its terms are averaged.
    critic_warmup: iterations at the start in which only the critic learns. sampling: how actions are drawn.
    max_staleness: how many updates the weights that drew a sample may lie behind those it trains; 0 collects and learns
    in turn, more overlaps them and needs decoupled_ppo. behaviour_weight_cap: of decoupled_ppo.
    """

    advantage: Literal["gae", "grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"] = "gae"
    loss: Literal["ppo", "ppo_actor_critic", "decoupled_ppo"] = "ppo_actor_critic"
    gamma: float = 0.99
    gae_lambda: float = 0.95
    bootstrap: Literal["standard", "always"] = "standard"
    normalize_advantages: bool = True
    group_size: int = 1
    deviation: Literal["sample", "population", "none"] = "sample"
    filter_rewards: tuple[float, float] | None = None
    reward_level: Literal["action", "chunk"] = "action"
    logprob_level: Literal["token", "action", "chunk"] = "action"
    entropy_level: Literal["token", "action", "chunk"] = "action"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    log_ratio_clamp: tuple[float, float] | None = None
    value_clip: float | None = None
    huber_delta: float | None = None
    value_coefficient: float = 1.0
    entropy_coefficient: float = 0.0
    aggregation: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "trajectory-length"] = "token-mean"
    critic_warmup: int = 0
    max_staleness: int = 0
    behaviour_weight_cap: float | None = None
    sampling: Sampling = dataclasses.field(default_factory=Sampling)

    def __post_init__(self) -> None:
        if not (0 < self.gamma <= 1 and 0 <= self.gae_lambda <= 1):
            raise ValueError(
                f"gamma is {self.gamma}, gae_lambda {self.gae_lambda}; expected 0 < gamma <= 1, 0 <= lambda <= 1"
            )
        if self.group_size < 1:
            raise ValueError(f"group_size is {self.group_size}; it must be at least 1")
        if self.max_staleness < 0 or self.critic_warmup < 0:
            raise ValueError("max_staleness and critic_warmup count updates and iterations; both must be at least 0")
        if self.max_staleness and self.loss != "decoupled_ppo":
            raise ValueError(
                f"max_staleness is {self.max_staleness}, so samples are of older weights, but loss {self.loss} takes "
                "them for those of the current ones; use loss: decoupled_ppo"
            )
        if self.needs_groups and self.group_size < 2:
            raise ValueError(
                f"advantage {self.advantage} compares attempts within a group, but group_size is {self.group_size}; "
                "set it to 2 or more, e.g. algorithm.group_size=8"
            )
        if self.filter_rewards is not None and not self.needs_groups:
            raise ValueError(f"filter_rewards drops whole groups, but advantage {self.advantage} has none; remove it")
        if self.filter_rewards is not None and not self.filter_rewards[0] <= self.filter_rewards[1]:
            raise ValueError(f"filter_rewards is {list(self.filter_rewards)}; expected two numbers in ascending order")
        if self.advantage != "gae" and self.loss == "ppo_actor_critic":
            raise ValueError(
                f"advantage {self.advantage} gives a critic nothing to learn, but loss ppo_actor_critic trains one; "
                "use loss: ppo (and policy.value: none)"
            )
        if self.advantage != "gae" and self.critic_warmup:
            raise ValueError(f"critic_warmup is {self.critic_warmup}, but advantage {self.advantage} has no critic")
        self._check_numbers()
        self._refuse_what_nothing_follows()

    def _check_numbers(self) -> None:
        """What the losses refuse, said before anything starts."""
        self.clip()
        check_value_options(self.value_clip, self.huber_delta)
        check_weight_cap(self.behaviour_weight_cap)
        if self.value_coefficient < 0:
            raise ValueError(f"value_coefficient is {self.value_coefficient}; below 0 the critic would learn to err")
        if self.sampling.decode == "greedy":
            raise ValueError(
                "sampling.decode is greedy: nothing is explored, and every attempt at a start is the same; use sample "
                "(evaluation.sampling.decode may be greedy)"
            )

    def _refuse_what_nothing_follows(self) -> None:
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        # not what a recipe for PPO brings along, as gamma: another advantage may be tried with it
        followed = {"deviation": self.advantage == "grpo", "behaviour_weight_cap": self.loss == "decoupled_ppo"}
        for name, follows in followed.items():
            if not follows and getattr(self, name) != usual[name]:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, but nothing would follow it with advantage {self.advantage} and "
                    f"loss {self.loss}; leave it out"
                )

    @property
    def needs_groups(self) -> bool:
        """Whether several environments attempt the same assignment."""
        return self.advantage in ("grpo", "rloo", "reinforce_pp_baseline")

    @property
    def needs_values(self) -> bool:
        """Whether the policy must have a value head."""
        return self.advantage == "gae" or self.loss == "ppo_actor_critic"

    def clip(self) -> Clip:
        """The surrogate's options."""
        return Clip(low=self.clip_low, high=self.clip_high, dual=self.dual_clip, log_ratio=self.log_ratio_clamp)


# more environments than any run has: makes one number of a decision's time and its environment's number
_MANY_ENVS = 1 << 32


class Samples(TensorClass):
    """A rollout as N independent decisions; rows without any valid action are left out.

    inputs TensorDict [N]; tokens, logprobs [N, C, D]; valid bool [N, C]: the actions that count in the loss.
    advantages [N, C] (reward level action) or [N] (chunk). returns, state_values [N, V].
    trajectory int64 [N]: which episode a decision belongs to. length int64 [N]: how many terms of the policy loss that
    episode has in this rollout. version int64 [N]: of the weights that decided. proximal_logprobs [N, C, D]: of the
    tokens under the weights before the update; those of acting until the learner recomputes them.
    order int64 [N]: a decision's place among those of all workers, whoever it came from.
    """

    inputs: TensorDict
    tokens: torch.Tensor
    logprobs: torch.Tensor
    valid: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    state_values: torch.Tensor
    trajectory: torch.Tensor
    length: torch.Tensor
    order: torch.Tensor
    version: torch.Tensor
    proximal_logprobs: torch.Tensor


def check_levels(options: AlgorithmConfig, chunk: int, value: str) -> None:
    """Refuse levels that do not fit together, for a policy with `chunk` actions and value head `value`."""
    if chunk == 1 and value != "none":
        value = options.reward_level  # with one action a chunk, both are the same thing
    if options.needs_values and value == "none":
        raise ConfigurationError(
            f"advantage {options.advantage} with loss {options.loss} needs values, but policy.value is none; "
            "set policy.value=chunk (or action), or use advantage grpo with loss ppo"
        )
    reward = options.reward_level
    if chunk == 1 and options.logprob_level == "chunk":
        reward = "chunk"
        value = value if value == "none" else "chunk"
    algorithms.check_levels(
        reward=reward,
        logprob=options.logprob_level,
        entropy=options.entropy_level,
        value=value if options.needs_values else "none",
    )


def make_samples(
    trajectory: Trajectory, options: AlgorithmConfig, ranks: dist.ProcessGroup | None = None
) -> tuple[Samples, Samples, dict[str, Statistic]]:
    """Advantages, returns and masks of a whole rollout, flattened to decisions.

    Statistics behind advantages are global over `ranks`; every rank must call. Returns the samples with a valid action,
    one row that counts for nothing (for a rank that has fewer pieces than others), and statistics.
    """
    decisions, envs, chunk = trajectory.rewards.shape
    valid = trajectory.valid
    level = Level(options.reward_level)
    rewards, terminated, truncated, steps_valid = step_tensors(trajectory, level)
    returns = torch.zeros_like(trajectory.state_values[:-1])
    statistics: dict[str, Statistic] = {}
    if options.advantage == "gae":
        values, final_values = _step_values(trajectory, level)
        estimate = algorithms.gae(
            rewards,
            values,
            final_values,
            terminated,
            truncated,
            steps_valid,
            gamma=options.gamma,
            gae_lambda=options.gae_lambda,
            bootstrap=options.bootstrap,
        )
        advantages, value_targets = estimate.advantages, estimate.returns
        returns = _unsteps(value_targets, level, chunk)
        returns = returns if returns.dim() == 3 else returns.unsqueeze(-1)
    else:
        counted = algorithms.first_episode(terminated, truncated, steps_valid)
        scores = algorithms.first_episode_return(rewards, terminated, truncated, steps_valid)
        groups = trajectory.group_ids[0]
        whole = ~algorithms.cut_short(terminated, truncated, steps_valid)
        if options.needs_groups:
            algorithms.check_groups(groups, options.group_size)
            everyone = torch.ones_like(scores, dtype=torch.bool)
            # what is left of a group that lost an attempt to a simulator's death compares unequal chances
            whole = algorithms.in_whole_groups(whole, groups)
            statistics["group/informative_fraction"] = Mean.of(algorithms.informative_groups(scores, groups), everyone)
            if options.filter_rewards is not None:
                low, high = options.filter_rewards
                kept = algorithms.filter_rewards(scores, groups, low=low, high=high)
                statistics["group/kept_fraction"] = Mean.of(kept, everyone)
                counted = counted & kept
        counted = counted & whole
        statistics["rollout/lost_fraction"] = Mean.of((~whole).float(), torch.ones_like(whole))
        advantages = _group_advantages(options, scores, groups, counted, ranks)
        steps_valid = counted
        valid = valid & (_unsteps(counted, level, chunk) if level is Level.ACTION else counted.unsqueeze(-1))
    statistics["rollout/advantage_mean"] = Mean.of(advantages, steps_valid)
    statistics["rollout/advantage_size"] = Mean.of(advantages.abs(), steps_valid)
    if options.normalize_advantages and options.advantage == "gae":
        advantages = algorithms.whiten(advantages, steps_valid, ranks=ranks)
    samples = Samples(
        inputs=trajectory.inputs,
        tokens=trajectory.tokens,
        logprobs=trajectory.logprobs,
        valid=valid,
        advantages=_unsteps(advantages, level, chunk),
        returns=returns,
        state_values=trajectory.state_values[:-1],
        trajectory=_episode_numbers(trajectory),
        order=torch.arange(decisions).unsqueeze(1) * _MANY_ENVS + trajectory.env_ids,
        length=torch.ones(decisions, envs, dtype=torch.int64),
        version=trajectory.versions,
        proximal_logprobs=trajectory.logprobs,
        batch_size=[decisions, envs],
    ).flatten(0, 1)
    mask = levels.mask_to(samples.valid, options.logprob_level, samples.tokens.shape[-1])
    samples.length = trajectory_lengths(mask, samples.trajectory).reshape(len(samples), -1)[:, 0]
    idle = samples[:1].clone()
    idle.valid = torch.zeros_like(idle.valid)
    return samples[samples.valid.any(-1)], idle, statistics


def _episode_numbers(trajectory: Trajectory) -> torch.Tensor:
    """int64 [T, B]: a number of its own for every episode, or part of one, of the rollout."""
    decisions, envs = trajectory.rewards.shape[:2]
    ended = ((trajectory.terminated | trajectory.truncated) & trajectory.valid).any(-1).long()
    return torch.arange(envs) * (decisions + 1) + ended.cumsum(0) - ended


def _group_advantages(
    options: AlgorithmConfig,
    scores: torch.Tensor,
    groups: torch.Tensor,
    counted: torch.Tensor,
    ranks: dist.ProcessGroup | None,
) -> torch.Tensor:
    """[S, B]."""
    if options.advantage == "reinforce_pp":
        return algorithms.reinforce_pp(scores, counted, gamma=options.gamma, ranks=ranks)
    if options.advantage == "reinforce_pp_baseline":
        return algorithms.reinforce_pp_baseline(scores, groups, counted, gamma=options.gamma, ranks=ranks)
    if options.advantage == "rloo":
        return algorithms.broadcast_to_steps(algorithms.rloo(scores, groups), counted)
    return algorithms.broadcast_to_steps(algorithms.grpo(scores, groups, deviation=options.deviation), counted)


def step_tensors(trajectory: Trajectory, level: Level) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """rewards, terminated, truncated, valid as step tensors [S, B] at `level`."""
    rewards = levels.reward_to(trajectory.rewards, trajectory.valid, level)
    ends = [levels.ends_to(flags, trajectory.valid, level) for flags in (trajectory.terminated, trajectory.truncated)]
    if level is Level.CHUNK:
        return rewards, ends[0], ends[1], trajectory.valid.any(-1)
    return (
        levels.flatten_steps(rewards),
        levels.flatten_steps(ends[0]),
        levels.flatten_steps(ends[1]),
        levels.flatten_steps(trajectory.valid),
    )


def _step_values(trajectory: Trajectory, level: Level) -> tuple[torch.Tensor, torch.Tensor]:
    """values [S + 1, B] and final values [S, B] at `level`."""
    chunk = trajectory.rewards.shape[2]
    first_of_final = trajectory.final_values[..., 0]
    if level is Level.CHUNK:
        return trajectory.state_values[..., 0], first_of_final
    # a final observation begins a chunk that is never executed: its value is the head's first
    final = levels.flatten_steps(first_of_final.unsqueeze(-1).expand(*first_of_final.shape, chunk))
    return levels.flatten_steps(trajectory.state_values)[: len(final) + 1], final


def _unsteps(steps: torch.Tensor, level: Level, chunk: int) -> torch.Tensor:
    """[S, B] -> [T, B, C] at action level, [T, B] at chunk level."""
    return levels.unflatten_steps(steps, chunk) if level is Level.ACTION else steps


@dataclasses.dataclass(frozen=True)
class Denominators:
    """Of one global batch, over all its micro-batches and ranks; see `aggregation.loss_denominator`."""

    policy: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor


class EmbodiedLoss:
    """The loss of a rollout's samples under a set of options; denominators are global over `ranks`."""

    def __init__(self, options: AlgorithmConfig, ranks: dist.ProcessGroup | None = None) -> None:
        self.options = options
        self._ranks = ranks

    def denominators(self, batch: Samples) -> Denominators:
        """Of a global batch, of which this rank has `batch`; every rank must call."""
        options = self.options
        policy_mask = self._mask(batch, options.logprob_level)
        lengths = self._lengths(batch, policy_mask)
        return Denominators(
            policy=loss_denominator(policy_mask, options.aggregation, lengths=lengths, ranks=self._ranks),
            value=loss_denominator(self._value_mask(batch), Aggregation.TOKEN_MEAN, ranks=self._ranks),
            entropy=loss_denominator(
                self._mask(batch, options.entropy_level), Aggregation.TOKEN_MEAN, ranks=self._ranks
            ),
        )

    def __call__(
        self, batch: Samples, evaluation: Evaluation, denominators: Denominators
    ) -> tuple[torch.Tensor, dict[str, Statistic]]:
        """The micro-batch's share of the loss, with gradient, and its statistics."""
        options = self.options
        mask = self._mask(batch, options.logprob_level)
        logprobs = levels.sum_to(evaluation.logprobs, batch.valid, options.logprob_level)
        old_logprobs = levels.sum_to(batch.logprobs, batch.valid, options.logprob_level)
        advantages = self._spread_advantages(batch)
        if options.loss == "decoupled_ppo":
            proximal = levels.sum_to(batch.proximal_logprobs, batch.valid, options.logprob_level)
            cap = options.behaviour_weight_cap
            result = algorithms.decoupled_ppo(
                logprobs, old_logprobs, proximal, advantages, mask, clip=options.clip(), behaviour_weight_cap=cap
            )
        else:
            result = algorithms.ppo(logprobs, old_logprobs, advantages, mask, clip=options.clip())
        lengths = self._lengths(batch, mask)
        loss = aggregate(result.policy.terms, mask, options.aggregation, denominators.policy, lengths=lengths)
        statistics = dict(result.statistics)
        if options.needs_values:
            assert evaluation.value is not None
            value, value_statistics = algorithms.value_terms(
                evaluation.value,
                batch.state_values,
                batch.returns,
                self._value_mask(batch),
                value_clip=options.value_clip,
                huber_delta=options.huber_delta,
            )
            share = aggregate(value.terms, value.mask, Aggregation.TOKEN_MEAN, denominators.value)
            loss = loss + options.value_coefficient * share
            statistics |= value_statistics
        entropy_mask = self._mask(batch, options.entropy_level)
        entropy = levels.sum_to(evaluation.entropy, batch.valid, options.entropy_level)
        statistics["policy/entropy"] = Mean.of(entropy.detach(), entropy_mask)
        if options.entropy_coefficient:
            bonus = aggregate(entropy, entropy_mask, Aggregation.TOKEN_MEAN, denominators.entropy)
            loss = loss - options.entropy_coefficient * bonus
        return loss, statistics

    def _spread_advantages(self, batch: Samples) -> torch.Tensor:
        level = Level(self.options.reward_level)
        advantages = batch.advantages
        if self.options.logprob_level == "chunk" and level is Level.ACTION:
            advantages, level = advantages.squeeze(-1), Level.CHUNK  # allowed for chunks of one action only
        return levels.spread(
            advantages, level, self.options.logprob_level, chunk=batch.valid.shape[-1], tokens=batch.tokens.shape[-1]
        )

    @staticmethod
    def _mask(batch: Samples, level: str) -> torch.Tensor:
        return levels.mask_to(batch.valid, level, batch.tokens.shape[-1])

    @staticmethod
    def _lengths(batch: Samples, mask: torch.Tensor) -> torch.Tensor:
        return batch.length.reshape(-1, *[1] * (mask.dim() - 1)).expand(mask.shape)

    def _value_mask(self, batch: Samples) -> torch.Tensor:
        """bool [N, V]."""
        if batch.state_values.shape[-1] == batch.valid.shape[-1]:
            return batch.valid
        return batch.valid.any(-1, keepdim=True).expand(batch.state_values.shape)
