"""The record of a rollout, formed once and read by the learner.

Shape letters: T decisions, B environments, C actions of a chunk, D tokens of an action, V values of a decision.
"""

from __future__ import annotations

import torch
from tensordict import TensorClass, TensorDict

from embodied.interaction.messages import Decision
from envs.api import StepResult


class Trajectory(TensorClass):
    """What B environments and the policy did over T decisions.

    inputs: TensorDict [T, B], what the policy prepared from each observation.
    actions float32 [T, B, C, A]: what the environment was told to do.
    tokens, logprobs [T, B, C, D]: what was drawn and its log-probability when it was drawn.
    rewards float32, terminated, truncated, valid bool [T, B, C]: as in StepResult.
    state_values float32 [T+1, B, V]: of the observations decided on and of the one after the last decision.
    final_values float32 [T, B, V]: of the true last observation of an episode that ended within decision t, else 0.
    (state_values and final_values have V == 0 for a policy without value head.)
    env_ids int64 [T, B]: number of the environment among those of all workers.
    group_ids int64 [T, B]: which group's attempt decision t belongs to.
    assignments int64 [T, B, 3]: task, initial state, seed of the episode decision t belongs to.
    versions int64 [T, B]: version of the weights that decided.
    """

    inputs: TensorDict
    actions: torch.Tensor
    tokens: torch.Tensor
    logprobs: torch.Tensor
    rewards: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    valid: torch.Tensor
    state_values: torch.Tensor
    final_values: torch.Tensor
    env_ids: torch.Tensor
    group_ids: torch.Tensor
    assignments: torch.Tensor
    versions: torch.Tensor

    def part(self, index: int, count: int) -> Trajectory:
        """The `index`-th of `count` contiguous parts of the environments; groups stay whole.

        Group g of all workers' counts for part g mod `count`, which settles how many of this worker's groups each part
        has: so the parts of all workers together differ by at most one group, whoever has how many.
        """
        starts = self._group_starts()
        first = int(self.env_ids[0, 0]) // starts[1]  # all groups are as large
        ends = [0]
        for part in range(count):
            ends.append(ends[-1] + len(range((part - first) % count, len(starts) - 1, count)))
        return self._rows(starts[ends[index]], starts[ends[index + 1]])

    def pieces(self, size: int) -> list[Trajectory]:
        """Contiguous pieces of at least `size` environments (the last may have fewer), in order; groups stay whole."""
        cuts = [0]
        for start in self._group_starts()[1:]:
            if start - cuts[-1] >= size:
                cuts.append(start)
        ends = [*cuts[1:], self.env_ids.shape[1]]
        return [self._rows(b, e) for b, e in zip(cuts, ends, strict=True) if e > b] or [self]

    def decisions(self) -> int:
        """T times B."""
        return self.env_ids.numel()

    def _group_starts(self) -> list[int]:
        """The first environment of every group, and B."""
        groups = self.group_ids[0]
        return [0, *((groups[1:] != groups[:-1]).nonzero().flatten() + 1).tolist(), len(groups)]

    def _rows(self, begin: int, end: int) -> Trajectory:
        fields = {name: getattr(self, name)[:, begin:end] for name in TRAJECTORY_FIELDS}
        return Trajectory(**fields, batch_size=[])


TRAJECTORY_FIELDS = tuple(Trajectory.__annotations__)


def join(parts: list[Trajectory]) -> Trajectory:
    """The trajectory of all parts' environments, in the order of the parts."""
    if len(parts) == 1:
        return parts[0]
    joined = {name: torch.cat([getattr(part, name) for part in parts], dim=1) for name in TRAJECTORY_FIELDS}
    return Trajectory(**joined, batch_size=[])


class TrajectoryBuilder:
    """Collects a Trajectory slot by slot into memory that is allocated once."""

    def __init__(self, decisions: int, num_envs: int) -> None:
        self._decisions = decisions
        self._num_envs = num_envs
        self._record: Trajectory | None = None

    def _allocate(self, decision: Decision, result: StepResult) -> Trajectory:
        steps, envs = self._decisions, self._num_envs
        assert decision.output is not None
        assert decision.inputs is not None
        tokens, chunk = decision.output.tokens, result.reward.shape[1]
        values = 0 if decision.value is None else decision.value.shape[1]
        inputs = {
            key: torch.zeros(steps, envs, *value.shape[1:], dtype=value.dtype, device=value.device)
            for key, value in decision.inputs.items(include_nested=True, leaves_only=True)
        }
        flags = {
            name: torch.zeros(steps, envs, chunk, dtype=torch.bool) for name in ("terminated", "truncated", "valid")
        }
        return Trajectory(
            inputs=TensorDict(inputs, batch_size=[steps, envs]),
            actions=torch.zeros(steps, envs, *decision.output.actions.shape[1:]),
            tokens=torch.zeros(steps, envs, *tokens.shape[1:], dtype=tokens.dtype),
            logprobs=torch.zeros(steps, envs, *decision.output.logprobs.shape[1:]),
            rewards=torch.zeros(steps, envs, chunk),
            state_values=torch.zeros(steps + 1, envs, values),
            final_values=torch.zeros(steps, envs, values),
            env_ids=torch.zeros(steps, envs, dtype=torch.int64),
            group_ids=torch.zeros(steps, envs, dtype=torch.int64),
            assignments=torch.zeros(steps, envs, 3, dtype=torch.int64),
            versions=torch.zeros(steps, envs, dtype=torch.int64),
            batch_size=[],
            **flags,
        )

    def add(
        self,
        t: int,
        rows: slice,
        decision: Decision,
        result: StepResult,
        env_ids: torch.Tensor,
        group_ids: torch.Tensor,
    ) -> None:
        """Store decision `t` of the environments `rows` and what it led to."""
        if self._record is None:
            self._record = self._allocate(decision, result)
        record = self._record
        assert decision.output is not None
        for key, value in decision.inputs.items(include_nested=True, leaves_only=True):
            record.inputs.get(key)[t, rows] = value
        record.actions[t, rows] = decision.output.actions
        record.tokens[t, rows] = decision.output.tokens
        record.logprobs[t, rows] = decision.output.logprobs
        record.rewards[t, rows] = result.reward
        record.terminated[t, rows] = result.terminated
        record.truncated[t, rows] = result.truncated
        record.valid[t, rows] = result.valid
        record.env_ids[t, rows] = env_ids
        record.group_ids[t, rows] = group_ids
        record.assignments[t, rows] = result.episodes.assignments.stack()
        record.versions[t, rows] = decision.version
        if decision.value is not None:
            record.state_values[t, rows] = decision.value

    def add_final(self, t: int, rows: torch.Tensor, values: torch.Tensor | None) -> None:
        """Store the values of the last observations of episodes that ended within decision `t` in `rows` int64 [E]."""
        if values is not None and self._record is not None:
            self._record.final_values[t, rows] = values

    def add_last(self, rows: slice, decision: Decision) -> None:
        """Store the value of the observation after the last decision."""
        if decision.value is not None and self._record is not None:
            self._record.state_values[self._decisions, rows] = decision.value

    def finish(self) -> Trajectory:
        """The complete record."""
        assert self._record is not None, "no decision was added"
        return self._record
