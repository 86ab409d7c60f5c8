"""What every simulator needs and none should write itself: chunks, episode ends, auto-reset, statistics, replay.

A `ChunkStepper` drives one `BatchEnv` through a `RowMemory`: it reads actions and assignments there and writes
observations and results. It knows nothing of slots and processes.
"""

from __future__ import annotations

import collections

import numpy as np
import torch

from embodied.errors import CorrectnessAlarm, SimulatorError
from envs.api import AutoReset, EnvConfig, Observation, RewardForm
from envs.batch import BatchEnv, check_observed, check_step
from envs.memory import ChunkArrays, RowMemory, to_assignments


class ChunkStepper:
    """Runs chunks of actions on n environments.

    Under `ignore_terminations`, `terminated` still marks the steps at which the simulator reported an end, but the
    episode goes on: only `ended` (and the time limit's `truncated`) tell where episodes stop.
    A step that reaches the time limit and terminates counts as terminated.

    Args:
        batch: the simulator.
        config: the episode options of `EnvConfig`.
        memory: where inputs are read and results are written.
        first_env: number of the first environment, for messages.
    """

    def __init__(self, batch: BatchEnv, config: EnvConfig, memory: RowMemory, first_env: int = 0) -> None:
        n = batch.num_envs
        self.batch = batch
        self._memory = memory
        self._first_env = first_env
        self._id = config.id
        self._same_step = AutoReset(config.auto_reset) is AutoReset.SAME_STEP
        self._relative = RewardForm(config.reward_form) is RewardForm.RELATIVE
        self._ignore_terminations = config.ignore_terminations
        self._limit = batch.spec.episode_steps if config.episode_steps is None else config.episode_steps
        self._has_success = batch.spec.has_success
        self._steps_checked = False  # what an adapter returns is of the same type every time: the first says it
        self._everyone = np.ones(n, dtype=bool)
        self._active = np.zeros(n, dtype=bool)  # has a running episode
        self._stale = np.arange(n)  # rows whose statistics are still those of a previous episode
        self._previous_reward = np.zeros(n, dtype=np.float32)
        # the actions of running episodes: every episode begins at a chunk's beginning
        self._log: collections.deque[np.ndarray] = collections.deque()
        self._log_start = 0
        self._first_chunk = np.zeros(n, dtype=np.int64)
        self._skip = np.zeros(n, dtype=np.int64)  # entries of the first chunk that precede the episode

    def reset(self, rows: np.ndarray) -> None:
        """Start new episodes in `rows` (int64 [R]) as `memory.assignments` says, and write their observation."""
        if not len(rows):
            return
        still_stale = np.setdiff1d(self._stale, rows)
        self._start(rows)
        self._forget_stale()
        self._stale = still_stale
        self._write_observation(rows, "after a reset")

    def step(self, steps: int, restart: np.ndarray | None = None) -> None:
        """Execute the chunk of `steps` actions in memory.

        `restart` (int64 [R]): rows that take no part in the chunk and start a new episode at its end.
        Raises SimulatorError for numbers that are not finite, naming environment and step.
        """
        memory = self._memory
        arrays = memory.chunk(steps)
        self._forget_stale()
        active = self._active
        if restart is not None:
            active = active.copy()
            active[restart] = False
        memory.ended[:] = False
        ended_rows = None
        if np.count_nonzero(active):
            self._check_actions(arrays.actions, active)
            self._log.append(arrays.actions.copy())
            remaining = self._execute(arrays, active)
            self._check_rewards(arrays.reward)
            if np.count_nonzero(memory.ended):
                ended_rows = np.flatnonzero(memory.ended)
        else:
            arrays.clear()
            remaining = active
        self._active = remaining
        starting = restart
        if ended_rows is not None and self._same_step:
            starting = ended_rows if restart is None else np.union1d(ended_rows, restart)
        if starting is not None:
            self._start(starting)
        self._show(ended_rows)

    def _execute(self, arrays: ChunkArrays, active: np.ndarray) -> np.ndarray:
        """Run the control steps of a chunk; returns which environments are still in their episode."""
        memory = self._memory
        length = memory.length
        whole = np.count_nonzero(active) == len(active)
        until_limit = self._limit - int(length[active].max()) if self._limit else len(arrays.columns) + 1
        active_tensor = torch.from_numpy(active)
        for j, (action, reward_out, terminated_out, truncated_out, success_out, valid_out) in enumerate(arrays.columns):
            result = self.batch.step(action, active_tensor)
            if not self._steps_checked:
                check_step(result, len(active), self._has_success, self._id)
                self._steps_checked = True
            reward, terminated, truncated = _numpy(result.reward), _numpy(result.terminated), _numpy(result.truncated)
            if self._relative:
                reward, absolute = reward - self._previous_reward, reward
                np.copyto(self._previous_reward, absolute)
            if not whole:
                reward = np.where(active, reward, np.float32(0))
                terminated = terminated & active
                truncated = truncated & active
            reward_out[:] = reward
            valid_out[:] = active
            terminated_out[:] = terminated
            memory.returns += reward_out
            length += active
            if self._has_success:
                success = _numpy(result.success)
                if whole:
                    memory.success_at_end[:] = success
                else:
                    success = success & active
                    np.copyto(memory.success_at_end, success, where=active)
                success_out[:] = success
                np.logical_or(memory.success_once, success, out=memory.success_once)
            if j + 1 >= until_limit:
                truncated = truncated | ((length >= self._limit) & active)
            if not self._ignore_terminations:
                truncated_out[:] = truncated
                if not (np.count_nonzero(terminated) or np.count_nonzero(truncated)):
                    continue
                ended = terminated | truncated
                truncated_out[terminated] = False
            else:
                truncated_out[:] = truncated
                if not np.count_nonzero(truncated):
                    continue
                ended = truncated.copy()
            rows = np.flatnonzero(ended)
            memory.ended[rows] = True
            self._write_final(rows, j)
            active = active & ~ended
            whole = False
            if not np.count_nonzero(active):
                arrays.clear(j + 1)
                break
            active_tensor = torch.from_numpy(active)
        return active

    def _start(self, rows: np.ndarray) -> None:
        """Begin episodes; their statistics start from zero when the next chunk does."""
        memory = self._memory
        self.batch.reset(torch.from_numpy(rows), to_assignments(memory.assignments[rows]))
        self._active = self._active.copy()
        self._active[rows] = True
        self._stale = rows
        self._previous_reward[rows] = 0
        self._first_chunk[rows] = self._log_start + len(self._log)
        self._skip[rows] = 0
        oldest = int(self._first_chunk.min())
        while self._log_start < oldest:
            self._log.popleft()
            self._log_start += 1

    def _forget_stale(self) -> None:
        rows = self._stale
        if not len(rows):
            return
        memory = self._memory
        for array in (memory.length, memory.returns, memory.success_once, memory.success_at_end):
            array[rows] = 0
        self._stale = rows[:0]

    def _show(self, ended_rows: np.ndarray | None) -> None:
        """Write what the environments show after a chunk; a finished one keeps showing its end."""
        memory = self._memory
        if ended_rows is not None and not self._same_step:
            memory.observation.write(memory.final.read_rows(ended_rows), ended_rows)
        running = np.count_nonzero(self._active)
        if running == len(self._active):
            self._write_observation(None, "at the end of a chunk")
        elif running:
            self._write_observation(np.flatnonzero(self._active), "at the end of a chunk")

    def _write_observation(self, rows: np.ndarray | None, when: str) -> None:
        observation = self.batch.observe(None if rows is None else torch.from_numpy(rows))
        check_observed(observation, self._id)
        self._check_observation(observation, rows, when)
        self._memory.observation.write(observation, rows)

    def _write_final(self, rows: np.ndarray, step: int) -> None:
        observation = self.batch.observe(torch.from_numpy(rows))
        check_observed(observation, self._id)
        self._check_observation(observation, rows, f"at step {step} of a chunk")
        self._memory.final.write(observation, rows)

    def render(self, rows: np.ndarray) -> torch.Tensor:
        """uint8 [R, H, W, 3] pictures of `rows` (int64 [R])."""
        return self.batch.render(torch.from_numpy(rows))

    def close(self) -> None:
        """Free the simulator."""
        self.batch.close()

    # ---------------------------------------------------------------- save and load

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Each episode's statistics and actions; assignments are known to whoever gave them.

        finished bool [n]; length int64 [n]; returns float32 [n]; success_once, success_at_end bool [n];
        actions float32 [sum of length, A], environment after environment.
        """
        memory = self._memory
        stats = {
            "length": memory.length.copy(),
            "returns": memory.returns.copy(),
            "success_once": memory.success_once.copy(),
            "success_at_end": memory.success_at_end.copy(),
        }
        for array in stats.values():
            array[self._stale] = 0
        log = list(self._log)
        actions = [np.zeros((0, self.batch.spec.action.dim), dtype=np.float32)]
        for row, length in enumerate(stats["length"].tolist()):
            if length:
                chunks = log[self._first_chunk[row] - self._log_start :]
                skip = self._skip[row]
                actions.append(np.concatenate([chunk[row] for chunk in chunks])[skip : skip + length])
        state = {**stats, "finished": ~self._active, "actions": np.concatenate(actions)}
        return {name: torch.from_numpy(array) for name, array in state.items()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Reset to `memory.assignments`, replay the actions and write the observation.

        Raises CorrectnessAlarm if `spec.exact_reset` is claimed and the replay differs from what was saved.
        """
        lengths = state["length"].numpy()
        finished = state["finished"].numpy()
        actions = np.split(state["actions"].numpy(), np.cumsum(lengths)[:-1])
        self._active[:] = False
        padded = np.zeros((len(lengths), int(lengths.max()), self.batch.spec.action.dim), dtype=np.float32)
        for row, length in enumerate(lengths.tolist()):
            padded[row, padded.shape[1] - length :] = actions[row]
        returns, ends = self._replay(lengths, padded)
        self._log = collections.deque([padded])
        self._log_start = 0
        self._first_chunk[:] = 0
        self._skip[:] = padded.shape[1] - lengths
        if self.batch.spec.exact_reset:
            self._check_replay(state, returns, ends)
        memory = self._memory
        for name in ("length", "returns", "success_once", "success_at_end"):
            np.copyto(getattr(memory, name), state[name].numpy())
        self._stale = self._stale[:0]
        self._active = ~finished
        memory.ended[:] = False
        self._write_observation(None, "after replaying a saved state")

    def _replay(self, lengths: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bring every environment to its length, all at the same moment: one that waited in between would have to be
        reset. `actions` [n, longest, A] are padded in front.

        Returns the episodes' returns float32 [n] and the length at which each first ended (-1: it did not).
        """
        memory = self._memory
        n, longest = actions.shape[:2]
        active = np.zeros(n, dtype=bool)
        returns = np.zeros(n, dtype=np.float32)
        elapsed = np.zeros(n, dtype=np.int64)
        ends = np.full(n, -1, dtype=np.int64)
        self._previous_reward[:] = 0
        for t in range(longest + 1):
            starting = np.flatnonzero(lengths == longest - t)
            if len(starting):
                self.batch.reset(torch.from_numpy(starting), to_assignments(memory.assignments[starting]))
                active[starting] = True
            if t == longest:
                break
            result = self.batch.step(torch.from_numpy(actions[:, t]), torch.from_numpy(active.copy()))
            reward = np.where(active, _numpy(result.reward), np.float32(0))
            if self._relative:
                reward, absolute = reward - self._previous_reward, reward
                np.copyto(self._previous_reward, absolute)
            returns += reward
            elapsed += active
            ended = _numpy(result.truncated)
            if not self._ignore_terminations:
                ended = ended | _numpy(result.terminated)
            if self._limit:
                ended = ended | (elapsed >= self._limit)
            first = ended & active & (ends < 0)
            ends[first] = elapsed[first]
        return returns, ends

    def _check_replay(self, state: dict[str, torch.Tensor], returns: np.ndarray, ends: np.ndarray) -> None:
        expected = np.where(state["finished"].numpy(), state["length"].numpy(), -1)
        wrong = np.flatnonzero((ends != expected) | (returns != state["returns"].numpy()))
        if len(wrong):
            row = int(wrong[0])
            raise CorrectnessAlarm(
                f"{self._id}: replaying environment {self._first_env + row} gave return {returns[row]!r} and end "
                f"{ends[row]}, but {state['returns'][row].item()!r} and {expected[row]} were saved (end -1: still "
                "running). The simulator's spec claims exact_reset, yet a reset does not forget the past, or versions "
                "differ from those of the saved run."
            )

    # ---------------------------------------------------------------- guards

    def _check_actions(self, actions: np.ndarray, active: np.ndarray) -> None:
        if np.isfinite(actions).all():
            return
        bad = np.argwhere(~np.isfinite(actions).all(axis=2) & active[:, None])
        if len(bad):
            row, step = bad[0].tolist()
            raise SimulatorError(
                f"{self._id}: the action for environment {self._first_env + row} at step {step} of its chunk is "
                f"{actions[row, step].tolist()}; every number must be finite. The policy produced it: look for a "
                "diverged update."
            )

    def _check_rewards(self, reward: np.ndarray) -> None:
        if np.isfinite(reward).all():
            return
        row, step = np.argwhere(~np.isfinite(reward))[0].tolist()
        raise SimulatorError(
            f"{self._id}: the reward of environment {self._first_env + row} at step {step} of its chunk is "
            f"{reward[row, step]}; every number must be finite. The simulator produced it."
        )

    def _check_observation(self, observation: Observation, rows: np.ndarray | None, when: str) -> None:
        for name, values in (("state", observation.state), ("privileged", observation.privileged)):
            if values is None or (np.isfinite(values.numpy()).all() if values.is_cpu else values.isfinite().all()):
                continue
            bad = int((~values.isfinite()).any(dim=1).nonzero()[0])
            row = bad if rows is None else int(rows[bad])
            raise SimulatorError(
                f"{self._id}: the observation ({name}) of environment {self._first_env + row} {when} (step "
                f"{int(self._memory.length[row])} of its episode) is not finite: {values[bad].tolist()}. "
                "The simulator produced it."
            )


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.numpy() if tensor.is_cpu else tensor.cpu().numpy()
