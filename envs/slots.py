"""What the local and the pooled VectorEnv have in common: checks of what comes in, slots, assembly of results.

It owns the memory and knows which assignment every environment runs; where the simulators are, its subclasses know.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from embodied.errors import ConfigurationError, RefusedInput
from envs.api import (
    Assignments,
    AutoReset,
    EnvConfig,
    EnvSpec,
    EpisodeStats,
    Observation,
    StepResult,
    VectorEnv,
)
from envs.memory import MAX_CHUNK, EnvMemory, RowMemory


@dataclasses.dataclass(frozen=True)
class Part:
    """The environments [start, stop) of `slot` that `process` hosts."""

    process: int
    slot: int
    start: int
    stop: int


def split_evenly(start: int, stop: int, pieces: int) -> list[tuple[int, int]]:
    """Cut [start, stop) into contiguous pieces whose sizes differ by one at most."""
    edges = [start + (stop - start) * i // pieces for i in range(pieces + 1)]
    return list(itertools.pairwise(edges))


def check_sizes(config: EnvConfig) -> None:
    """Refuse numbers of environments, slots and processes that do not fit each other."""
    num_envs, slots = config.num_envs, config.slots
    if num_envs < 1 or slots < 1:
        raise ConfigurationError(f"num_envs and slots must be at least 1, but are {num_envs} and {slots}.")
    if num_envs % slots:
        lower = num_envs // slots * slots
        valid = [str(v) for v in (lower, lower + slots) if v > 0]
        raise ConfigurationError(
            f"num_envs={num_envs} is not divisible by slots={slots}. Nearest valid num_envs: {', '.join(valid)}."
        )
    if config.episode_steps is not None and config.episode_steps < 1:
        raise ConfigurationError(
            f"episode_steps={config.episode_steps} must be at least 1; leave it out for the task's own limit."
        )
    for name in ("start_seconds", "step_seconds"):
        if not 0 < getattr(config, name) < math.inf:
            raise ConfigurationError(f"{name}={getattr(config, name):g} must be a number of seconds above 0.")
    if config.straggler_seconds is not None and not 0 < config.straggler_seconds < config.step_seconds:
        raise ConfigurationError(
            f"straggler_seconds={config.straggler_seconds:g} must be above 0 and below step_seconds="
            f"{config.step_seconds:g}, at which a process is killed; leave it out to wait for all."
        )
    if config.growth_gib is not None and not 0 < config.growth_gib < math.inf:
        raise ConfigurationError(
            f"growth_gib={config.growth_gib:g} must be a number of GiB above 0; null never starts a process anew."
        )
    if config.straggler_seconds is not None and config.processes is not None and config.processes < 2:
        refuse_lonely_straggler(config.straggler_seconds, config.processes)
    size = num_envs // slots
    if config.processes is not None and not 0 <= config.processes <= size:
        raise ConfigurationError(
            f"processes={config.processes} must be between 0 (simulate in this process) and {size}, the number of "
            f"environments of one slot (num_envs={num_envs} / slots={slots}), since every process serves every slot."
        )


def refuse_lonely_straggler(seconds: float, processes: int) -> NoReturn:
    """Raises ConfigurationError: with fewer than two processes there is none to go on with."""
    raise ConfigurationError(
        f"straggler_seconds={seconds:g} lets a batch go on without a process that is too slow, but with processes="
        f"{processes} there is no other to go on with. Use 2 processes or more, or leave it out."
    )


def _require_whole(assignments: Assignments) -> None:
    """Refuse numbers that would be cut to whole ones, or have lost digits on their way here."""
    for name in ("task", "initial_state", "seed"):
        dtype = getattr(assignments, name).dtype
        if dtype is not torch.int64:
            raise RefusedInput(f"Assignments are int64, but their {name} is {str(dtype).removeprefix('torch.')}.")


def forget_lost(state: dict[str, Any], lost: np.ndarray) -> None:
    """Let environments `lost` (bool) of a saved state be in no episode.

    The simulator of one that was left behind has gone on with what was lost, which is not to be played again.
    """
    state["actions"] = state["actions"][np.repeat(~lost, np.asarray(state["length"]))]
    for name in ("length", "returns", "success_once", "success_at_end", "finished"):
        state[name][lost] = 0


class _Slot:
    """One slot's memory, what it is doing, and the pieces of its results that never change."""

    def __init__(self, memory: RowMemory) -> None:
        n = memory.num_envs
        self.memory = memory
        self.started = False
        self.chunk = 0  # actions under way; 0: idle
        self.current = np.zeros((n, 3), dtype=np.int64)
        self.lost = np.zeros(n, dtype=bool)  # episodes lost, not yet reported by a result
        self.no_rows = torch.empty(0, dtype=torch.int64)
        self.nobody = torch.zeros(n, dtype=torch.bool)
        self.ended = torch.from_numpy(memory.ended)
        names = ("length", "returns", "success_once", "success_at_end")
        self.statistics = {name: torch.from_numpy(getattr(memory, name)) for name in names}
        self._chunks: dict[int, dict[str, torch.Tensor]] = {}

    def chunk_tensors(self, steps: int) -> dict[str, torch.Tensor]:
        if steps not in self._chunks:
            arrays = self.memory.chunk(steps)
            names = ("reward", "terminated", "truncated", "success", "valid")
            self._chunks[steps] = {name: torch.from_numpy(getattr(arrays, name)) for name in names}
        return self._chunks[steps]


class SlottedEnv(VectorEnv):
    """VectorEnv over an `EnvMemory`. Subclasses start and finish the work on it."""

    parts: list[Part]

    def __init__(self, config: EnvConfig) -> None:
        check_sizes(config)
        self.config = config
        self.num_envs = config.num_envs
        self.slots = config.slots
        self.auto_reset = AutoReset(config.auto_reset)
        self._same_step = self.auto_reset is AutoReset.SAME_STEP
        self._closed = False

    def _use(self, spec: EnvSpec, memory: EnvMemory) -> None:
        """Called by the subclass once it knows what its simulators are."""
        if self.config.episode_steps is not None:
            spec = dataclasses.replace(spec, episode_steps=self.config.episode_steps)
        self.spec = spec
        size = self.slot_size
        self._whole = memory.rows(0, self.num_envs, 0)
        self._slots = [_Slot(memory.rows(s * size, (s + 1) * size, s * size)) for s in range(self.slots)]

    # ---------------------------------------------------------------- to be provided

    @abc.abstractmethod
    def _reset_rows(self) -> None:
        """Reset the environments of `mask` in memory to the `assignments` there, and wait for it."""

    @abc.abstractmethod
    def _begin(self, slot: int) -> None:
        """Start the chunk that lies in the slot's memory; environments of `mask` restart instead of taking part."""

    @abc.abstractmethod
    def _finish(self, slot: int) -> None:
        """Wait until the slot's chunk is done."""

    @abc.abstractmethod
    def _save_parts(self) -> list[dict[str, torch.Tensor]]:
        """`ChunkStepper.state_dict` of every part, in the order of `parts`."""

    @abc.abstractmethod
    def _load_parts(self, states: list[dict[str, torch.Tensor]]) -> None:
        """`ChunkStepper.load_state_dict` on every part; simulators whose resets are not exact are rebuilt first."""

    @abc.abstractmethod
    def _render_part(self, part: Part, rows: np.ndarray) -> torch.Tensor:
        """uint8 [R, H, W, 3] pictures of the part's `rows` (int64 [R], counted from its start)."""

    # ---------------------------------------------------------------- the contract

    def reset(self, assignments: Assignments, mask: torch.Tensor | None = None) -> Observation:
        self._require_idle("reset")
        _require_whole(assignments)
        if len(assignments) != self.num_envs:
            raise RefusedInput(
                f"reset needs {self.num_envs} assignments, one for each environment, not {len(assignments)}."
            )
        chosen = np.ones(self.num_envs, dtype=bool)
        if mask is not None:
            chosen = mask.cpu().numpy()
            if chosen.dtype != bool or chosen.shape != (self.num_envs,):
                raise RefusedInput(f"reset's mask must be bool [{self.num_envs}], not {mask.dtype} {list(mask.shape)}.")
        table = assignments.stack().cpu().numpy()
        for number, slot in enumerate(self._slots):
            rows = self.rows(number)
            if not slot.started and not chosen[rows].all():
                raise RefusedInput(
                    f"Slot {number} has environments that are not in an episode (never reset, or a chunk failed): "
                    "its next reset must include all of them."
                )
            slot.current = np.where(chosen[rows, None], table[rows], slot.current)
            slot.lost &= ~chosen[rows]
            slot.memory.assignments[:] = slot.current
            slot.memory.mask[:] = chosen[rows]
            slot.started = False  # true again once it has succeeded
        self._reset_rows()
        for slot in self._slots:
            slot.memory.mask[:] = False
            slot.started = True
        return self._whole.observation.read().clone()

    def send(self, actions: torch.Tensor, slot: int = 0, next_assignments: Assignments | None = None) -> None:
        state = self._slot(slot)
        if state.chunk:
            raise RefusedInput(f"Slot {slot} is still executing a chunk: recv({slot}) must come before the next send.")
        if not state.started:
            raise RefusedInput(f"Slot {slot} has no running episodes (never reset, or a chunk failed): reset it first.")
        size, dim = self.slot_size, self.spec.action.dim
        if not isinstance(actions, torch.Tensor):
            raise RefusedInput(f"Actions must be a torch tensor [B, C, A], not a {type(actions).__name__}.")
        shape = actions.shape
        if len(shape) != 3 or shape[0] != size or shape[2] != dim or not 1 <= shape[1] <= MAX_CHUNK:
            raise RefusedInput(
                f"Actions must be [B, C, A] with B={size} environments of a slot, 1 to {MAX_CHUNK} actions and "
                f"A={dim}, but are {list(shape)}."
            )
        memory = state.memory
        if next_assignments is not None:
            _require_whole(next_assignments)
            if next_assignments.task.shape[0] != size:
                raise RefusedInput(f"next_assignments must have {size} rows, one an environment of the slot, "
                                   f"not {len(next_assignments)}.")  # fmt: skip
            table = memory.assignments
            table[:, 0] = next_assignments.task.numpy()
            table[:, 1] = next_assignments.initial_state.numpy()
            table[:, 2] = next_assignments.seed.numpy()
        elif self._same_step:
            raise RefusedInput("auto_reset is same_step: send needs next_assignments, which say where an environment "
                               "goes whose episode ends.")  # fmt: skip
        else:
            memory.assignments[:] = state.current
        memory.chunk(shape[1]).actions[:] = (actions if actions.is_cpu else actions.cpu()).detach().numpy()
        memory.mask[:] = state.lost
        state.chunk = shape[1]
        state.started = False  # true again once the chunk has succeeded
        self._begin(slot)

    def recv(self, slot: int = 0) -> StepResult:
        state = self._slot(slot)
        if not state.chunk:
            raise RefusedInput(f"recv({slot}) without a send: slot {slot} is idle.")
        steps, state.chunk = state.chunk, 0
        self._finish(slot)
        state.started = True
        away = self._away(slot)
        return self._result(state, steps) if away is None else self._result_without(away, state, steps)

    def _away(self, slot: int) -> np.ndarray | None:
        """bool [B]: rows of the slot that the chunk went on without; None where it did not."""
        return None

    def _result_without(self, away: np.ndarray, slot: _Slot, steps: int) -> StepResult:
        """The result of the rows that took part. It is a copy: somebody may still write to the others' memory."""
        memory, gone = slot.memory, torch.from_numpy(away)
        ended = memory.ended & ~away
        rows = np.flatnonzero(ended)
        before = slot.current
        failed = slot.lost | away
        elsewhere = failed | ended if self._same_step else failed
        slot.current = np.where(elsewhere[:, None], memory.assignments, slot.current)

        def of_the_others(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {
                name: tensor.masked_fill(gone.reshape(-1, *[1] * (tensor.dim() - 1)), 0)
                for name, tensor in tensors.items()
            }

        slot.lost = away.copy()  # they begin new episodes in the first chunk that they can take part in
        return StepResult(
            observation=memory.observation.read().clone(),
            **of_the_others(slot.chunk_tensors(steps)),
            ended=torch.from_numpy(ended),
            final_rows=torch.from_numpy(rows),
            final_observation=memory.final.read_rows(rows) if len(rows) else None,
            episodes=EpisodeStats(
                assignments=Assignments(*torch.from_numpy(before).unbind(1)), **of_the_others(slot.statistics)
            ),
            failed=torch.from_numpy(failed),
        )

    def _result(self, slot: _Slot, steps: int) -> StepResult:
        memory = slot.memory
        before = slot.current
        failed = slot.nobody
        final_rows, final = slot.no_rows, None
        if np.count_nonzero(memory.ended):
            rows = np.flatnonzero(memory.ended)
            final_rows = torch.from_numpy(rows)
            final = memory.final.read_rows(rows)
            if self._same_step:
                slot.current = np.where(memory.ended[:, None], memory.assignments, slot.current)
        if np.count_nonzero(slot.lost):
            failed = torch.from_numpy(slot.lost.copy())
            slot.current = np.where(slot.lost[:, None], memory.assignments, slot.current)
            slot.lost[:] = False
        # `current` is replaced, never written to, so no copy is needed
        assignments = Assignments(*torch.from_numpy(before).unbind(1))
        return StepResult(
            observation=memory.observation.read(),
            **slot.chunk_tensors(steps),
            ended=slot.ended,
            final_rows=final_rows,
            final_observation=final,
            episodes=EpisodeStats(assignments=assignments, **slot.statistics),
            failed=failed,
        )

    def state_dict(self) -> dict[str, Any]:
        self._require_idle("state_dict")
        for number, slot in enumerate(self._slots):
            if not slot.started:
                raise RefusedInput(f"Slot {number} has no running episodes to save: reset it first.")
        parts = self._save_parts()
        state: dict[str, Any] = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        state["assignments"] = torch.from_numpy(np.concatenate([slot.current for slot in self._slots]))
        state["lost"] = torch.from_numpy(np.concatenate([slot.lost for slot in self._slots]))
        forget_lost(state, state["lost"].numpy())
        state["id"] = self.spec.id
        return state

    def load_state_dict(self, state: dict[str, Any]) -> Observation:
        self._require_idle("load_state_dict")
        if state["id"] != self.spec.id or len(state["length"]) != self.num_envs:
            raise RefusedInput(
                f"The saved state is of {len(state['length'])} environments {state['id']!r}, but this is "
                f"{self.num_envs} of {self.spec.id!r}."
            )
        table = state["assignments"].numpy()
        for number, slot in enumerate(self._slots):
            rows = self.rows(number)
            slot.current = table[rows].copy()
            slot.memory.assignments[:] = slot.current
            slot.lost[:] = state["lost"].numpy()[rows]
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), state["length"].cumsum(0)]).tolist()
        names = ("length", "returns", "success_once", "success_at_end", "finished")
        states = [
            {
                **{name: state[name][part.start : part.stop] for name in names},
                "actions": state["actions"][offsets[part.start] : offsets[part.stop]],
            }
            for part in self.parts
        ]
        self._load_parts(states)
        for slot in self._slots:
            slot.started = True
        return self._whole.observation.read().clone()

    # ---------------------------------------------------------------- helpers

    def _sent(self, slots: Sequence[int] | None) -> list[int]:
        """Those of `slots`, or of all, that execute a chunk. Raises RefusedInput where there is none."""
        sent = [s for s in (range(self.slots) if slots is None else slots) if self._slot(s).chunk]
        if not sent:
            raise RefusedInput("first_ready without a send: none of the slots executes a chunk.")
        return sent

    def _slot(self, slot: int) -> _Slot:
        self._require_open()
        if not 0 <= slot < self.slots:
            raise RefusedInput(f"There is no slot {slot}; this environment has slots 0 to {self.slots - 1}.")
        return self._slots[slot]

    def _require_open(self) -> None:
        if self._closed:
            raise RefusedInput(f"{self.config.id}: these environments are closed; make new ones.")

    def _require_idle(self, operation: str) -> None:
        self._require_open()
        busy = [str(number) for number, slot in enumerate(self._slots) if slot.chunk]
        if busy:
            raise RefusedInput(
                f"{operation} needs idle slots, but slot {', '.join(busy)} executes a chunk: recv it first."
            )

    def close(self) -> None:
        self._closed = True

    def render(self, rows: Sequence[int]) -> torch.Tensor:
        self._require_open()
        wrong = [row for row in rows if not 0 <= row < self.num_envs]
        if wrong or not len(rows):
            raise RefusedInput(f"render needs environments 0 to {self.num_envs - 1}, but was given {list(rows)}.")
        pictures: dict[int, torch.Tensor] = {}
        for part in self.parts:
            inside = [row for row in dict.fromkeys(rows) if part.start <= row < part.stop]
            if inside:
                images = self._render_part(part, np.array(inside) - part.start)
                pictures.update(zip(inside, images, strict=True))
        return torch.stack([pictures[row] for row in rows])
