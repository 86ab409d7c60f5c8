"""The environment contract: what every simulator looks like to the rest of the system.

`VectorEnv` is the face that workers use: a batch of environments, cut into slots, that takes chunks of actions
and hands back records. Adapters do not implement it; they implement the much smaller `envs.batch.BatchEnv`
(n environments in one process, one control step at a time), and `envs.stepper.ChunkStepper` adds, once for all
simulators: chunks, episode ends inside a chunk, auto-reset, final observations and episode statistics.

Shape letters: B environments of a batch, C actions of a chunk, A action dimensions, S state, V cameras.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
from collections.abc import Sequence
from typing import Any, Literal

import torch

from embodied.config import config


class AutoReset(enum.Enum):
    """What happens when an episode ends."""

    SAME_STEP = "same_step"  # the next episode starts at once; the observation returned is already its first
    DISABLED = "disabled"  # the environment stays finished (nothing it does is valid) until `reset`


class RewardForm(enum.Enum):
    """How the adapter's reward is handed on."""

    ABSOLUTE = "absolute"
    RELATIVE = "relative"  # difference of the reward between consecutive steps of an episode; the first step's in full


class Bounds(enum.Enum):
    """What an action vector means."""

    CONTINUOUS = "continuous"
    DISCRETE = "discrete"  # A == 1 and the number is the index of a choice


@dataclasses.dataclass(frozen=True)
class ActionSpec:
    """Actions of one environment: `dim` numbers within [low, high], or one index below `choices`."""

    kind: Bounds
    dim: int
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    choices: int = 0


@dataclasses.dataclass(frozen=True)
class CameraSpec:
    """A camera whose picture is part of the observation; all cameras of an environment share one size."""

    name: str
    height: int
    width: int


@dataclasses.dataclass(frozen=True)
class EnvSpec:
    """What an environment is, fixed for its lifetime.

    state_dim: numbers a robot knows of itself (or the full state, for state-based tasks).
    privileged_dim: numbers only a simulator knows, for critics in training; 0 where there are none.
    instructions: every instruction text that can occur; observations refer to them.
    episode_steps: control steps after which an episode is truncated.
    control_hz: control steps a second of simulated time; 0 where it has no meaning.
    tasks: how many task ids there are.
    initial_states: per task, how many numbered initial states exist; 0 means drawn from the assignment's seed.
    has_success: whether `success` carries information.
    exact_reset: a reset forgets the past to the bit, so that replaying a running episode's actions restores it.
    versions: name -> version of whatever decides trajectories (simulator, physics engine, assets).
    """

    id: str
    action: ActionSpec
    state_dim: int
    cameras: tuple[CameraSpec, ...] = ()
    privileged_dim: int = 0
    instructions: tuple[str, ...] = ("",)
    episode_steps: int = 0
    control_hz: float = 0.0
    tasks: int = 1
    initial_states: tuple[int, ...] = (0,)
    has_success: bool = True
    exact_reset: bool = True
    versions: dict[str, str] = dataclasses.field(default_factory=dict)


@config
class EnvConfig:
    """Options every environment has; adapters derive their own record from it.

    id: `maniskill/PickCube-v1`, `libero/libero_spatial`, `gym/CartPole-v1`, ...
    num_envs: environments stepped in parallel; divisible by `slots`.
    slots: sub-batches a policy serves in turn.
    processes: simulator processes; 0 runs the simulator in this process, None uses the cores there are.
    episode_steps: truncate after so many control steps; None takes the task's own limit.
    auto_reset: see AutoReset. ignore_terminations: terminations are recorded but do not end the episode.
    reward_form: see RewardForm.
    start_seconds, step_seconds: deadlines for starting a simulator process and for one chunk.
    straggler_seconds: go on without a simulator process that has not finished a chunk after so long while at least half
        have; its running episodes are lost. None waits for all, to step_seconds.
    growth_gib: start a simulator process anew once its memory has grown by so many GiB since its first chunks (many
        simulators and renderers leak); its episodes go on where they were. None never does.
    """

    id: str
    num_envs: int = 8
    slots: int = 1
    processes: int | None = None
    episode_steps: int | None = None
    auto_reset: Literal["same_step", "disabled"] = "same_step"
    ignore_terminations: bool = False
    reward_form: Literal["absolute", "relative"] = "absolute"
    start_seconds: float = 300.0
    step_seconds: float = 120.0
    straggler_seconds: float | None = None
    growth_gib: float | None = 2.0

    @property
    def longest_episode(self) -> int | None:
        """Control steps of the longest episode; None where only the environment itself knows."""
        return self.episode_steps


@dataclasses.dataclass(frozen=True)
class Assignments:
    """What each of B environments is reset to: int64 [B] each.

    task: task id. initial_state: number of a stored initial state, -1 where it is drawn from `seed`.
    seed: seed of everything random about the episode's world (never of the policy).
    """

    task: torch.Tensor
    initial_state: torch.Tensor
    seed: torch.Tensor

    def __len__(self) -> int:
        return len(self.task)

    def __getitem__(self, rows: torch.Tensor | slice) -> Assignments:
        return Assignments(self.task[rows], self.initial_state[rows], self.seed[rows])

    def stack(self) -> torch.Tensor:
        """int64 [B, 3]: task, initial state, seed."""
        return torch.stack([self.task, self.initial_state, self.seed], dim=1)

    @classmethod
    def unstack(cls, table: torch.Tensor) -> Assignments:
        """The inverse of `stack`."""
        return cls(table[:, 0], table[:, 1], table[:, 2])

    @classmethod
    def from_seeds(cls, seeds: Sequence[int], task: int = 0) -> Assignments:
        """Assignments of one task whose initial states are drawn from `seeds`."""
        seed = torch.as_tensor(list(seeds), dtype=torch.int64)
        return cls(torch.full_like(seed, task), torch.full_like(seed, -1), seed)


@dataclasses.dataclass(frozen=True)
class Observation:
    """What B environments show.

    state: float32 [B, S] (S may be 0). images: uint8 [B, V, H, W, 3] or None where there are no cameras.
    privileged: float32 [B, P] or None. instruction_ids: int64 [B], indices into `EnvSpec.instructions`.
    instruction: B texts.
    """

    state: torch.Tensor
    instruction_ids: torch.Tensor
    instruction: list[str]
    images: torch.Tensor | None = None
    privileged: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.state)

    def select(self, rows: torch.Tensor | slice) -> Observation:
        """The given rows (a copy for an index or mask tensor, a view for a slice)."""
        ids = self.instruction_ids[rows]
        if isinstance(rows, slice):
            texts = self.instruction[rows]
        else:
            index = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
            texts = [self.instruction[i] for i in index.tolist()]
        return Observation(
            state=self.state[rows],
            instruction_ids=ids,
            instruction=texts,
            images=None if self.images is None else self.images[rows],
            privileged=None if self.privileged is None else self.privileged[rows],
        )

    def clone(self) -> Observation:
        """A copy that no later step overwrites."""
        return dataclasses.replace(
            self,
            state=self.state.clone(),
            instruction_ids=self.instruction_ids.clone(),
            images=None if self.images is None else self.images.clone(),
            privileged=None if self.privileged is None else self.privileged.clone(),
        )


@dataclasses.dataclass(frozen=True)
class EpisodeStats:
    """Statistics of the episode that each of B environments was in when the chunk began (ended or still running).

    assignments: what it was reset to. length int64 [B]: valid control steps so far. returns float32 [B]: sum of
    rewards. success_once, success_at_end bool [B]: at any step so far; at the latest step.
    """

    assignments: Assignments
    length: torch.Tensor
    returns: torch.Tensor
    success_once: torch.Tensor
    success_at_end: torch.Tensor


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What one chunk of actions did to the B environments of a slot.

    Tensors may be views of memory that the next `send` on the same slot overwrites: copy what is kept.

    observation: after the chunk; of the new episode where one ended under AutoReset.SAME_STEP.
    reward float32 [B, C]: 0 where not valid. terminated, truncated, success bool [B, C]: False where not valid.
    valid bool [B, C]: the step was executed and belongs to an episode. The step that ends an episode is valid,
        the rest of its chunk is not, whatever the simulator did with it.
    ended bool [B]: an episode ended within this chunk.
    final_rows int64 [E]: the rows where it did. final_observation: their E last observations, None where E == 0.
    episodes: statistics, see EpisodeStats; complete where `ended`.
    failed bool [B]: the simulator of this row died and was restarted; its episode is lost (`valid` is False,
        `ended` is False) and the observation is that of a fresh episode. Or it was left behind as far too slow,
        likewise without its episode; then the observation is what it last showed, until it begins a new episode.
    """

    observation: Observation
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    success: torch.Tensor
    valid: torch.Tensor
    ended: torch.Tensor
    final_rows: torch.Tensor
    final_observation: Observation | None
    episodes: EpisodeStats
    failed: torch.Tensor


class VectorEnv(abc.ABC):
    """A batch of environments cut into equal, contiguous slots.

    Environment i belongs to slot `i // (num_envs // slots)`. A slot's cycle is `send` then `recv`; several slots may
    be under way at once. Every wait has a deadline and names what it waited for.
    """

    spec: EnvSpec
    num_envs: int
    slots: int
    auto_reset: AutoReset

    @property
    def slot_size(self) -> int:
        """Environments of one slot."""
        return self.num_envs // self.slots

    def rows(self, slot: int) -> slice:
        """The rows of a whole-batch tensor that belong to `slot`."""
        return slice(slot * self.slot_size, (slot + 1) * self.slot_size)

    @abc.abstractmethod
    def reset(self, assignments: Assignments, mask: torch.Tensor | None = None) -> Observation:
        """Start new episodes in all environments, or in those of `mask` (bool [num_envs]) only.

        `assignments` has one row for every environment (rows outside the mask are ignored). Returns the
        observation of all environments; those outside the mask are untouched.
        """

    @abc.abstractmethod
    def send(self, actions: torch.Tensor, slot: int = 0, next_assignments: Assignments | None = None) -> None:
        """Begin executing `actions` float32 [B, C, A] open-loop in the environments of `slot`; returns at once.

        `next_assignments` (B rows) says where an environment goes whose episode ends in this chunk; required under
        AutoReset.SAME_STEP, ignored otherwise. An environment starts at most one new episode a chunk.
        """

    @abc.abstractmethod
    def ready(self, slot: int = 0) -> bool:
        """Whether `recv(slot)` would return without waiting."""

    @abc.abstractmethod
    def first_ready(self, slots: Sequence[int] | None = None, seconds: float | None = None) -> list[int]:
        """Wait until one of `slots` (of all that were sent to, if None) can be received without waiting; returns those
        that can, so that a policy serves whichever comes first.

        Raises DeadlineExceeded after `seconds` (step_seconds if None), RefusedInput where none was sent to.
        """

    @abc.abstractmethod
    def recv(self, slot: int = 0) -> StepResult:
        """The result of the last `send` on `slot`. Raises DeadlineExceeded or SimulatorError, naming environment,
        process and phase."""

    def step(self, actions: torch.Tensor, slot: int = 0, next_assignments: Assignments | None = None) -> StepResult:
        """`send` and `recv`."""
        self.send(actions, slot, next_assignments)
        return self.recv(slot)

    @abc.abstractmethod
    def render(self, rows: Sequence[int]) -> torch.Tensor:
        """uint8 [R, H, W, 3] pictures for people (not the policy's cameras) of the given environments."""

    def recycle(self) -> int:
        """Between chunks: start those simulator processes anew that have grown by `config.growth_gib`; their episodes
        go on where they were. Returns how many; 0 where simulators have no processes of their own."""
        return 0

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Nested dicts of tensors, numbers and strings that `load_state_dict` continues from to the bit: each running
        episode's assignment and the actions executed since its reset."""

    @abc.abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> Observation:
        """Restore by resetting and replaying; returns the observation of all environments.

        Exact where `spec.exact_reset`; otherwise the simulators are rebuilt first, so that a run that saves and a run
        that loads agree if the former reloads what it saved.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Stop processes and free shared memory; safe to call twice."""

    def __enter__(self) -> VectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
