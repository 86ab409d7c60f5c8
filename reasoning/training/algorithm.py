"""From groups of answers to samples, and from samples to a loss: how the algorithms meet responses of tokens.

The mathematics is in `embodied.algorithms`; here groups, masks and shapes are brought together. A response is one
trajectory whose steps are its tokens; it earns its score at its last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist
from tensordict import TensorClass

from embodied import algorithms
from embodied.algorithms import Clip
from embodied.algorithms.aggregation import aggregate, loss_denominator
from embodied.algorithms.masked import fill
from embodied.algorithms.registry import kl as kl_estimator
from embodied.algorithms.statistics import Mean, Statistic
from embodied.config import config
from embodied.errors import CorrectnessAlarm
from reasoning.training.messages import Group

GROUPED = ("grpo", "rloo", "reinforce_pp_baseline")


@config
class AlgorithmConfig:
    """What is optimised; docs/reasoning.md explains every option.

    advantage: by name; gae needs the critic. gamma, gae_lambda: of gae, per token. normalize_advantages: whiten those
    of gae over the rollout. group_size: answers to one question. deviation: that grpo divides by.
    uniform_groups: what becomes of groups whose scores are all equal: they stay, are dropped from the loss, or further
    questions are asked in their place (dynamic sampling).
    truncated: responses cut off at the length limit are kept as they are, masked out of the loss, or penalised by
    `truncated_penalty`.
    old_logprobs: the ratio's denominator: what generation computed, or the learner once more before its update.
    engine_correction: with the learner's, terms are weighted by exp(learner - engine), which is `truncate`d at
    correction_cap, or the term `drop`ped above it.
    clip_low, clip_high, dual_clip, log_ratio_clamp: of the ratio. aggregation: how terms are averaged.
    kl: estimator of the divergence from the reference model. kl_coefficient: its weight; 0 needs no reference.
    kl_in: the loss, or the reward (there of what generation computed). entropy_coefficient: weight of the bonus.
    critic_warmup: iterations at the start in which only the critic learns.
    max_staleness: updates that the weights which drew a token may lie behind those that learn from it.
    """

    advantage: Literal["grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "gae"] = "grpo"
    gamma: float = 1.0
    gae_lambda: float = 1.0
    normalize_advantages: bool = True
    group_size: int = 8
    deviation: Literal["sample", "population", "none"] = "sample"
    uniform_groups: Literal["keep", "drop", "resample"] = "keep"
    truncated: Literal["keep", "mask", "penalise"] = "keep"
    truncated_penalty: float = 1.0
    old_logprobs: Literal["engine", "learner"] = "engine"
    engine_correction: Literal["none", "truncate", "drop"] = "none"
    correction_cap: float = 2.0
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    log_ratio_clamp: tuple[float, float] | None = None
    aggregation: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"] = "token-mean"
    kl: Literal["k1", "k2", "k3", "abs"] = "k3"
    kl_coefficient: float = 0.0
    kl_in: Literal["loss", "reward"] = "loss"
    entropy_coefficient: float = 0.0
    critic_warmup: int = 0
    max_staleness: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.gamma <= 1 and 0 <= self.gae_lambda <= 1):
            raise ValueError(
                f"gamma is {self.gamma}, gae_lambda {self.gae_lambda}; expected 0 < gamma <= 1, 0 <= lambda <= 1"
            )
        if self.group_size < 1 or (self.advantage in GROUPED and self.group_size < 2):
            raise ValueError(
                f"group_size is {self.group_size}; it must be at least {2 if self.advantage in GROUPED else 1} "
                f"for advantage {self.advantage}, e.g. algorithm.group_size=8"
            )
        if self.uniform_groups != "keep" and self.group_size < 2:
            raise ValueError(f"uniform_groups is {self.uniform_groups}, but group_size 1 makes every group uniform")
        if self.max_staleness < 0 or self.critic_warmup < 0:
            raise ValueError("max_staleness and critic_warmup count updates and iterations; both must be at least 0")
        if self.correction_cap < 1:
            raise ValueError(f"correction_cap is {self.correction_cap}; it must be at least 1")
        if self.engine_correction != "none" and self.old_logprobs == "engine":
            raise ValueError(
                f"engine_correction is {self.engine_correction}, which compares the learner's log-probabilities with "
                "the engine's, but old_logprobs is engine; use old_logprobs: learner"
            )
        if self.max_staleness and self.engine_correction == "none":
            raise ValueError(
                f"max_staleness is {self.max_staleness}, so tokens are of older weights; that needs "
                "old_logprobs: learner and engine_correction: truncate (or drop)"
            )
        if self.critic_warmup and self.advantage != "gae":
            raise ValueError(f"critic_warmup is {self.critic_warmup}, but advantage {self.advantage} has no critic")
        if self.kl == "k1" and self.kl_coefficient and self.kl_in == "loss":
            raise ValueError("kl: k1 has no gradient on average, so it regularises nothing in the loss; use k2 or k3")
        for name in ("kl_coefficient", "entropy_coefficient", "truncated_penalty"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 0")
        self.clip()  # which refuses what cannot be meant

    @property
    def needs_values(self) -> bool:
        """Whether there is a critic."""
        return self.advantage == "gae"

    @property
    def needs_reference(self) -> bool:
        """Whether there is a reference model."""
        return self.kl_coefficient > 0

    def clip(self) -> Clip:
        """The surrogate's options."""
        return Clip(low=self.clip_low, high=self.clip_high, dual=self.dual_clip, log_ratio=self.log_ratio_clamp)


class Samples(TensorClass):
    """A rollout as N responses; those that count nowhere are left out. S tokens of the longest sequence, L of the
    longest response.

    sequence int64 [N, S]: prompt and response, 0 behind it. prompt_length, length int64 [N].
    mask bool [N, L]: the tokens that count in the loss. old_logprobs: of the policy around which the ratio is clipped;
    engine_logprobs: of generation; reference, state_values: 0 where there are none; advantages, returns: [N, L].
    oldest int64 [N]: version of the oldest weights that drew a token of it. order int64 [N]: a response's place among
    those of all workers.
    """

    sequence: torch.Tensor
    prompt_length: torch.Tensor
    length: torch.Tensor
    mask: torch.Tensor
    old_logprobs: torch.Tensor
    engine_logprobs: torch.Tensor
    reference: torch.Tensor
    state_values: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    oldest: torch.Tensor
    order: torch.Tensor


def tokens_of(samples: Samples) -> torch.Tensor:
    """bool [N, L]: where there is a token of the response."""
    return torch.arange(samples.mask.shape[1], device=samples.mask.device) < samples.length[:, None]


def trim(samples: Samples) -> Samples:
    """The same samples, without the columns that are padding in all of them."""
    length = max(1, int(samples.length.max()))
    total = int((samples.prompt_length + samples.length).max())
    cut = {name: getattr(samples, name)[:, :length] for name in _TOKEN_FIELDS}
    rest = {name: getattr(samples, name) for name in ("prompt_length", "length", "oldest", "order")}
    return Samples(sequence=samples.sequence[:, :total], **cut, **rest, batch_size=[len(samples)])


_TOKEN_FIELDS = ("mask", "old_logprobs", "engine_logprobs", "reference", "state_values", "advantages", "returns")


def make_samples(
    groups: Sequence[Group], options: AlgorithmConfig, ranks: dist.ProcessGroup | None = None
) -> tuple[Samples, Samples, dict[str, Statistic]]:
    """Advantages, returns and masks of a whole rollout.

    groups: this rank's, whole; statistics behind advantages are global over `ranks`, and every rank must call, also one
    without groups. Returns the samples that count, one that counts for nothing (for a rank that has fewer pieces than
    others), and statistics.
    """
    everything = _stack(groups, options)
    ids = torch.tensor([g.number for g in groups for _ in range(g.size)], dtype=torch.int64)
    algorithms.check_groups(ids, options.group_size)
    scores = torch.cat([_scores(group) for group in groups]) if groups else torch.zeros(0)
    truncated = torch.cat([g.truncated for g in groups]) if groups else torch.zeros(0, dtype=torch.bool)
    graded = ~scores.isnan()
    if options.truncated == "penalise":
        scores = scores - options.truncated_penalty * truncated
    tokens = tokens_of(everything)
    counted = tokens & graded[:, None]
    divergence = torch.zeros_like(everything.reference)
    if options.needs_reference and options.kl_in == "reward":
        estimator = kl_estimator(options.kl).function
        divergence = fill(estimator(everything.old_logprobs, everything.reference), tokens)
    informative = torch.zeros_like(graded)
    informative[graded] = algorithms.informative_groups(scores[graded], ids[graded])
    everyone = torch.ones_like(graded)
    statistics: dict[str, Statistic] = {
        "group/informative_fraction": Mean.of(informative, everyone),
        "rollout/excluded": Mean.of(~graded, everyone),
    }
    if options.needs_reference and options.kl_in == "reward":
        statistics["policy/reference_kl"] = Mean.of(divergence, counted)
    if options.uniform_groups != "keep":
        counted = counted & informative[:, None]
    scores = torch.where(graded, scores, torch.zeros_like(scores))
    mask = counted & ~truncated[:, None] if options.truncated == "mask" else counted
    if options.advantage in ("reinforce_pp", "reinforce_pp_baseline"):
        counted = mask  # these whiten over tokens, of which masked ones are none
    advantages, returns = _advantages(options, everything.state_values, scores, ids, graded, counted, divergence, ranks)
    statistics["rollout/advantage_mean"] = Mean.of(advantages, mask)
    statistics["rollout/advantage_size"] = Mean.of(advantages.abs(), mask)
    if options.advantage == "gae" and options.normalize_advantages:
        advantages = algorithms.whiten(advantages, mask, ranks=ranks)
    everything.mask, everything.advantages, everything.returns = mask, advantages, returns
    kept = everything[mask.any(1)]
    return (trim(kept) if len(kept) else kept), _idle(), statistics


def has_signal(group: Group, options: AlgorithmConfig) -> bool:
    """Whether a graded group has something to learn from where uniform ones are not kept, by the scores that
    `make_samples` compares and the members that it keeps."""
    scores = _scores(group)
    graded = ~scores.isnan()
    if options.truncated == "penalise":
        scores = scores - options.truncated_penalty * group.truncated
    counting = graded & ~group.truncated if options.truncated == "mask" else graded
    known = scores[graded]
    return bool(counting.any()) and bool((known != known[0]).any())


def _scores(group: Group) -> torch.Tensor:
    if group.scores is None:
        raise CorrectnessAlarm(
            f"group {group.number} came to be learnt from without scores; the reward stage is missing"
        )
    return group.scores


def _advantages(
    options: AlgorithmConfig,
    values: torch.Tensor,
    scores: torch.Tensor,
    ids: torch.Tensor,
    graded: torch.Tensor,
    counted: torch.Tensor,
    divergence: torch.Tensor,
    ranks: dist.ProcessGroup | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """advantages and returns, both [N, L]. What could not be graded takes no part in any statistic."""
    nothing = torch.zeros_like(divergence)
    penalty = options.kl_coefficient
    if options.advantage in ("grpo", "rloo"):
        # these compare whole answers, so a penalty in the reward is the answer's
        scores = scores - penalty * divergence.sum(1)
        per_response = torch.zeros_like(scores)
        if options.advantage == "rloo":
            per_response[graded] = algorithms.rloo(scores[graded], ids[graded])
        else:
            per_response[graded] = algorithms.grpo(scores[graded], ids[graded], deviation=options.deviation)
        return fill(per_response[:, None].expand_as(divergence), counted), nothing
    if options.advantage == "gae":
        return _gae(options, values, scores, counted, divergence)
    shared = {"kl": divergence.T, "kl_coefficient": penalty, "gamma": options.gamma, "ranks": ranks}
    if options.advantage == "reinforce_pp":
        return algorithms.reinforce_pp(scores, counted.T, **shared).T, nothing
    # members that could not be graded must not move their group's mean
    alone = torch.where(graded, ids, -1 - torch.arange(len(ids)))
    return algorithms.reinforce_pp_baseline(scores, alone, counted.T, **shared).T, nothing


def _gae(
    options: AlgorithmConfig,
    values: torch.Tensor,
    scores: torch.Tensor,
    counted: torch.Tensor,
    divergence: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    last = algorithms.groups.last_valid(counted.T)  # [L, N], as all of these
    rewards = fill(scores.expand(last.shape), last) - options.kl_coefficient * divergence.T
    estimate = algorithms.gae(
        rewards,
        torch.cat([values.T, torch.zeros_like(values.T[:1])]),
        torch.zeros_like(rewards),
        last,  # a response is over at its last token, also when it was cut off there: its length is part of the task
        torch.zeros_like(last),
        counted.T.contiguous(),
        gamma=options.gamma,
        gae_lambda=options.gae_lambda,
    )
    return estimate.advantages.T, estimate.returns.T


def _stack(groups: Sequence[Group], options: AlgorithmConfig) -> Samples:
    """All responses of the groups, padded to one shape."""
    total = sum(group.size for group in groups)
    longest = max((group.tokens.shape[1] for group in groups), default=1)
    width = max((len(g.prompt) + g.tokens.shape[1] for g in groups), default=2)
    fields = {name: torch.zeros(total, longest) for name in _TOKEN_FIELDS}
    fields["mask"] = fields["mask"].bool()
    sequence = torch.zeros(total, width, dtype=torch.int64)
    counts = {n: torch.zeros(total, dtype=torch.int64) for n in ("prompt_length", "length", "oldest", "order")}
    row = 0
    for group in groups:
        rows, columns, prompt = slice(row, row + group.size), group.tokens.shape[1], len(group.prompt)
        sequence[rows, :prompt] = group.prompt
        sequence[rows, prompt : prompt + columns] = group.tokens
        counts["prompt_length"][rows] = prompt
        counts["length"][rows] = group.lengths
        counts["order"][rows] = group.number * options.group_size + torch.arange(group.size)
        there = torch.arange(columns) < group.lengths[:, None]
        newest = torch.iinfo(torch.int64).max
        counts["oldest"][rows] = torch.where(there, group.versions, newest).amin(1)
        for name, given in (
            ("old_logprobs", group.logprobs),
            ("engine_logprobs", group.logprobs),
            ("reference", group.reference),
            ("state_values", group.values),
        ):
            if given is not None:
                fields[name][rows, :columns] = given
        row += group.size
    return Samples(sequence=sequence, **fields, **counts, batch_size=[total])


def _idle() -> Samples:
    """One short sample that counts for nothing."""
    one = torch.ones(1, dtype=torch.int64)
    fields = {name: torch.zeros(1, 1) for name in _TOKEN_FIELDS}
    fields["mask"] = fields["mask"].bool()
    sequence = torch.zeros(1, 2, dtype=torch.int64)
    return Samples(
        sequence=sequence,
        prompt_length=one,
        length=one.clone(),
        oldest=one - 1,
        order=one - 1,
        **fields,
        batch_size=[1],
    )


class ReasoningLoss:
    """The actor's loss of a rollout's samples; its denominator is global over `ranks`."""

    def __init__(self, options: AlgorithmConfig, ranks: dist.ProcessGroup | None = None) -> None:
        self.options = options
        self._ranks = ranks

    def denominator(self, batch: Samples) -> torch.Tensor:
        """Of a global batch, of which this rank has `batch`; every rank must call."""
        return loss_denominator(batch.mask, self.options.aggregation, ranks=self._ranks)

    def __call__(
        self, batch: Samples, logprobs: torch.Tensor, entropy: torch.Tensor, denominator: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, Statistic]]:
        """The micro-batch's share of the loss, with gradient, and its statistics. logprobs, entropy: [N, L]."""
        options, mask = self.options, batch.mask
        if options.engine_correction == "none":
            result = algorithms.ppo(logprobs, batch.old_logprobs, batch.advantages, mask, clip=options.clip())
        else:
            result = algorithms.decoupled_ppo(
                logprobs,
                batch.engine_logprobs,
                batch.old_logprobs,
                batch.advantages,
                mask,
                clip=options.clip(),
                behaviour_weight_cap=options.correction_cap,
                beyond_cap=options.engine_correction,
            )
        statistics = dict(result.statistics)
        loss = aggregate(result.policy.terms, mask, options.aggregation, denominator)
        if options.needs_reference and options.kl_in == "loss":
            estimator = kl_estimator(options.kl).function
            kl, kl_statistics = algorithms.kl_terms(logprobs, batch.reference, mask, estimator=estimator)
            loss = loss + options.kl_coefficient * aggregate(kl.terms, mask, options.aggregation, denominator)
            statistics |= kl_statistics
        bonus, entropy_statistics = algorithms.entropy_terms(entropy, mask)
        statistics |= entropy_statistics
        if options.entropy_coefficient:
            share = aggregate(bonus.terms, mask, options.aggregation, denominator)
            loss = loss + options.entropy_coefficient * share
        return loss, statistics
