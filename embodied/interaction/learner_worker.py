"""The learner worker: turns a rollout into a better policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from embodied import algorithms
from embodied.algorithms import Level, alarms, statistics
from embodied.algorithms.staleness import staleness
from embodied.algorithms.statistics import Statistic
from embodied.errors import CorrectnessAlarm
from embodied.interaction.algorithm import AlgorithmConfig, EmbodiedLoss, Samples, make_samples, step_tensors
from embodied.interaction.trajectory import Trajectory, join
from embodied.learner.batches import Step, plan_steps
from embodied.learner.learner import Learner, LearnerConfig
from embodied.learner.residency import Parking, resident_bytes
from embodied.learner.sharding import load_whole_state, recompute_activations, shard, whole_state
from embodied.learner.update import Update
from embodied.random import derive_seed, generator
from embodied.runs.state_file import keep_evidence
from embodied.scheduler import Input, Worker, WorkerContext
from embodied.scheduler.trace import LOAD
from policies import registry
from policies.api import Evaluation, PolicyConfig

# of the log-probability of one token or action dimension, between the acting and the learning forward pass
_RATIO_TOLERANCE = 1e-3
_LOW_PRECISION_GAP = {"mean_tolerance": 0.02, "max_tolerance": 1.0}


@dataclasses.dataclass(frozen=True)
class LearnerWorkerOptions:
    """policy, algorithm, learner: what to train and how. alarms: folder where the batch behind an alarm is saved."""

    policy: PolicyConfig
    algorithm: AlgorithmConfig
    learner: LearnerConfig
    alarms: Path


class LearnerWorker(Worker):
    """Owns the policy that is trained and its optimiser; several of them are one sharded policy."""

    collective = True
    follows = frozenset({"granularity"})

    trajectories = Input(Trajectory)

    def __init__(self, context: WorkerContext, options: LearnerWorkerOptions) -> None:
        super().__init__(context, options)
        self.options: LearnerWorkerOptions = options
        self.version = 0
        self._warnings: list[str] = []
        self._parking = Parking()

    async def setup(self, announced: Mapping[str, Any]) -> None:
        """Build the policy with the run's seed, and its optimiser."""
        with self.timed("build learner"):
            seed = derive_seed(self.context.seed, "policy")
            self.interface = registry.interface_of(announced["env"])
            self.policy = registry.build(self.options.policy, self.interface, seed=seed)
            self.policy.to(self.context.device).eval()
            if self.options.learner.activations == "recompute":
                recompute_activations(self.policy.blocks())
            if self.context.world > 1:
                shard(self.policy, self.policy.blocks(), ("evaluate",), self.context.ranks, self.context.device)
            self.learner = Learner(self.policy.parameter_groups(), self.options.learner, self.context.device)
            self.loss = EmbodiedLoss(self.options.algorithm, self.context.ranks)

    def weights(self) -> dict[str, Any]:
        """The policy's parameters and buffers themselves."""
        return self.policy.state_dict(keep_vars=True)

    def _state_tensors(self) -> list[torch.Tensor]:
        gradients = [p.grad for p in self.policy.parameters() if p.grad is not None]
        return [*self.policy.state_dict().values(), *self.learner.tensors(), *gradients]

    def memory(self) -> int:
        """Bytes of parameters, gradients and optimiser state, as they will be once it has stepped."""
        trained = [p for p in self.policy.parameters() if p.requires_grad]
        return resident_bytes(self.policy.state_dict().values()) + 3 * resident_bytes(trained)

    def unload(self) -> None:
        """Park parameters, gradients and optimiser state."""
        with self.timed("unload", LOAD):
            self._parking.unload(self._state_tensors())

    def load(self) -> None:
        """Bring them back."""
        with self.timed("load", LOAD):
            self._parking.load()

    async def learn(self, iteration: int) -> Update:
        """Read this iteration's trajectory and improve the policy with it."""
        ranks = self.context.ranks
        trajectory = await self._take_in()
        warnings = [_constant_reward(trajectory, self.options.algorithm.needs_groups), self._saturation(trajectory)]
        with self.timed("advantages"):
            samples, idle, record = make_samples(trajectory, self.options.algorithm, ranks)
            own = torch.stack([samples.order, torch.full_like(samples.order, self.context.rank)], dim=1)
            everywhere, _ = statistics.gather_rows(own, ranks)
        if len(everywhere) == 0:
            warnings.append(
                "No sample of this rollout counts (every group was filtered out, or nothing was valid); "
                "no step was taken."
            )
        else:
            torch.manual_seed(derive_seed(self.context.seed, "learn", self.context.rank, iteration))  # dropout
            samples, idle = samples.to(self.context.device), idle.to(self.context.device)
            record |= staleness(self.version - samples.version, self.options.algorithm.max_staleness)
            if self.options.algorithm.loss == "decoupled_ppo":
                with self.timed("proximal"):
                    self._recompute_proximal(samples, idle, everywhere)
            with self.timed("update"):
                record = statistics.merge(record, self._epochs(samples, idle, everywhere, iteration))
            summary = self.policy.summary(samples.inputs, samples.order.argsort())
            self.policy.absorb(statistics.gather_rows(summary, ranks)[0])
            self.version += 1
        metrics = statistics.report(statistics.all_reduce(record, ranks))
        warnings += self._warnings
        self._warnings = []
        return Update(metrics, tuple(w for w in warnings if w), self.version)

    async def _take_in(self) -> Trajectory:
        """This iteration's trajectory, its pieces in the order of who collected them.

        With a granularity (in decisions) they are taken out of the links batch by batch as they come, so that links
        need not hold a whole rollout.
        """
        parts: list[tuple[Any, Trajectory]] = []
        async for batch in self.trajectories.batches(size=Trajectory.decisions):
            if self.context.granularity is not None:
                with self.timed("take in"):
                    batch = [(key, piece.clone()) for key, piece in batch]
            parts += batch
        return join([piece for _, piece in sorted(parts, key=lambda part: part[0])])

    def _epochs(
        self, samples: Samples, idle: Samples, everywhere: torch.Tensor, iteration: int
    ) -> dict[str, Statistic]:
        options = self.options.learner
        frozen = ("actor",) if iteration < self.options.algorithm.critic_warmup else ()
        before = alarms.fingerprint(self.policy.named_parameters()) if self.version == 0 else None
        record: dict[str, Statistic] = {}
        taken, stopped = 0, False
        self.policy.train()
        for epoch in range(options.epochs):
            steps = plan_steps(
                everywhere[:, 0],
                everywhere[:, 1],
                self.context.rank,
                batch=options.global_batch,
                micro_batch=options.micro_batch,
                generator=generator(self.context.seed, "shuffle", iteration, epoch),
            )
            for step in steps:
                step_record, accepted = self._step(samples, idle, step, frozen, first=taken == 0)
                record = statistics.merge(record, step_record)
                if not accepted:
                    stopped = True
                    break
                taken += 1
            if stopped:
                break
        self.policy.eval()
        if before is not None and taken and self._has_signal(samples):
            after = alarms.fingerprint(self.policy.named_parameters())
            alarms.require_change(before, after, self.context.ranks, self.context.device)
        counted = torch.ones(1, dtype=torch.bool)
        record["learner/steps"] = statistics.Mean.of(torch.tensor([float(taken)]), counted)
        record["learner/stopped_early"] = statistics.Mean.of(torch.tensor([float(stopped)]), counted)
        return record

    def _has_signal(self, samples: Samples) -> bool:
        """Whether anything of this rollout, on any rank, asks for a change; every rank must call."""
        options = self.options.algorithm
        if options.needs_values or options.entropy_coefficient:
            return True
        here = (samples.advantages != 0).sum().to(self.context.device)
        if int(statistics.sum_over_ranks(here, self.context.ranks)):
            return True
        self._warnings.append(
            "All advantages of this rollout are 0: within every group all attempts scored alike, so there was nothing "
            "to learn. Start from a policy that succeeds now and then, or draw warmer (algorithm.sampling.temperature)."
        )
        return False

    def _step(
        self, samples: Samples, idle: Samples, step: Step, frozen: tuple[str, ...], *, first: bool
    ) -> tuple[dict[str, Statistic], bool]:
        sampling, limit = self.options.algorithm.sampling, self.options.learner.target_kl
        batch = samples[step.rows.to(samples.device)]
        denominators = self.loss.denominators(batch if len(batch) else idle)

        def loss_of(part: Samples) -> tuple[torch.Tensor, dict[str, Statistic]]:
            evaluation = self.policy.evaluate(part.inputs, part.tokens, sampling)
            gap = self._check_ratio(evaluation, part) if first else {}
            share, step_record = self.loss(part, evaluation, denominators)
            ingredients = {"logprobs": evaluation.logprobs, "advantages": part.advantages, "returns": part.returns}
            alarms.require_finite_loss(share, **ingredients)
            return share, step_record | gap

        def accept(step_record: dict[str, Statistic]) -> bool:
            if limit is None:
                return True
            kl = step_record["policy/approx_kl"].all_reduce(self.context.ranks)
            return float(kl.value()) <= limit

        size = self.options.learner.micro_batch or max(len(batch), 1)
        pieces = list(batch.split(size)) if len(batch) else []
        pieces += [idle] * (step.pieces - len(pieces))
        try:
            return self.learner.step(pieces, loss_of, frozen=frozen, accept=accept)
        except CorrectnessAlarm as alarm:
            path = self.options.alarms / f"batch_version_{self.version}_rank_{self.context.rank}"
            raise CorrectnessAlarm(f"{alarm} {keep_evidence(path, batch.to_tensordict().to_dict())}") from alarm

    def _check_ratio(self, evaluation: Evaluation, part: Samples) -> dict[str, Statistic]:
        """Before the first step of an iteration, acting and learning must agree about what was drawn."""
        mask = part.valid.unsqueeze(-1).expand_as(part.logprobs)
        logprobs = evaluation.logprobs.float()
        if self.options.algorithm.loss == "decoupled_ppo":
            # computed on this side in this precision: the same to the bit, but for how a kernel takes other batch sizes
            self._require_agreement(logprobs, part.proximal_logprobs, mask)
            # those of the current weights must also agree with what acted
            mask = mask & (part.version == self.version).reshape(-1, 1, 1)
        self._require_agreement(logprobs, part.logprobs, mask)
        gap = (logprobs - part.logprobs).detach().abs()
        return {
            "policy/logprob_gap": statistics.Mean.of(gap, mask),
            "policy/logprob_gap_max": statistics.Maximum.of(gap, mask),
        }

    def _require_agreement(self, logprobs: torch.Tensor, old: torch.Tensor, mask: torch.Tensor) -> None:
        """The ratio before the first step is 1: required in float32, warned of in lower precision."""
        if self.options.learner.precision == "float32":
            alarms.require_ratio_one(logprobs, old, mask, tolerance=_RATIO_TOLERANCE)
            return
        warning = alarms.warn_logprob_gap(logprobs, old, mask, **_LOW_PRECISION_GAP)
        self._warnings += [warning] if warning else []

    @torch.no_grad()
    def _recompute_proximal(self, samples: Samples, idle: Samples, everywhere: torch.Tensor) -> None:
        """Log-probabilities under the weights before the update, micro-batch by micro-batch; every rank alike often."""
        largest = int(everywhere[:, 1].bincount().max())
        size = self.options.learner.micro_batch or self.options.learner.global_batch or largest
        pieces = list(samples.split(size)) if len(samples) else []
        found = []
        for part in [*pieces, *[idle] * (-(-largest // size) - len(pieces))]:
            with self.learner.arithmetic():
                evaluation = self.policy.evaluate(part.inputs, part.tokens, self.options.algorithm.sampling)
            found.append(evaluation.logprobs.float())
        if pieces:
            samples.proximal_logprobs = torch.cat(found[: len(pieces)])

    def _saturation(self, trajectory: Trajectory) -> str | None:
        interface = self.interface
        if interface.action_kind != "continuous":
            return None
        low, high = torch.tensor(interface.action_low), torch.tensor(interface.action_high)
        return alarms.warn_actions_at_bounds(trajectory.actions, low, high, trajectory.valid)

    def export(self, folder: Path) -> None:
        """Save the policy as it acts; every rank must call, the first one writes."""
        if self.context.world == 1:
            registry.save(self.policy, folder)
            return
        weights = whole_state(self.policy)
        if self.context.rank == 0:
            registry.save(self.policy, folder, weights)

    def state_dict(self) -> dict[str, Any]:
        """Parameters, optimiser and version, whole, from the first rank; every rank must call."""
        state = {"policy": whole_state(self.policy), "learner": self.learner.state_dict(), "version": self.version}
        return state if self.context.rank == 0 else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from there; tensors shared with others stay shared."""
        load_whole_state(self.policy, state["policy"], noun="policy")
        self.learner.load_state_dict(state["learner"])
        self.version = state["version"]


def _constant_reward(trajectory: Trajectory, groups: bool) -> str | None:
    """A warning where rewards carry no signal: groups compare scores; otherwise a reward that is the same at every step
    but not zero is one for staying alive, whose signal is how long episodes last."""
    if groups:
        rewards, terminated, truncated, valid = step_tensors(trajectory, Level.ACTION)
        return alarms.warn_constant_reward(algorithms.first_episode_return(rewards, terminated, truncated, valid))
    if bool((trajectory.rewards[trajectory.valid] != 0).any()):
        return None
    return alarms.warn_constant_reward(trajectory.rewards, trajectory.valid)
