"""The arrays that a batch of environments is driven through: actions in, observations and results out.

One flat buffer holds all of them, so that the same code runs over private memory (`envs.local`) and over memory
shared with worker processes (`envs.pool`), where everybody writes in place. It knows nothing of simulators.
"""

from __future__ import annotations

import dataclasses
import math
import mmap

import numpy as np
import torch

from embodied.errors import SimulatorError
from envs.api import Assignments, EnvSpec, Observation

MAX_CHUNK = 256
"""Longest chunk of actions. Memory that no chunk reaches is never touched, so it costs nothing."""

_ALIGNMENT = 64
_DTYPES = {"f": np.dtype(np.float32), "i": np.dtype(np.int64), "b": np.dtype(np.bool_), "u": np.dtype(np.uint8)}


def _fields(spec: EnvSpec, num_envs: int) -> list[tuple[str, np.dtype, tuple[int, ...]]]:
    """(name, dtype, shape) of every array, in the order in which they lie in the buffer."""
    cameras = len(spec.cameras)
    height, width = (spec.cameras[0].height, spec.cameras[0].width) if cameras else (0, 0)
    observation = [
        ("state", "f", (num_envs, spec.state_dim)),
        ("instruction_ids", "i", (num_envs,)),
        ("images", "u", (num_envs, cameras, height, width, 3)),
        ("privileged", "f", (num_envs, spec.privileged_dim)),
    ]
    steps = num_envs * MAX_CHUNK
    fields = [
        ("assignments", "i", (num_envs, 3)),
        ("mask", "b", (num_envs,)),
        ("ended", "b", (num_envs,)),
        ("length", "i", (num_envs,)),
        ("returns", "f", (num_envs,)),
        ("success_once", "b", (num_envs,)),
        ("success_at_end", "b", (num_envs,)),
        ("actions", "f", (steps * spec.action.dim,)),
        ("reward", "f", (steps,)),
        ("terminated", "b", (steps,)),
        ("truncated", "b", (steps,)),
        ("success", "b", (steps,)),
        ("valid", "b", (steps,)),
        *observation,
        *((f"final_{name}", kind, shape) for name, kind, shape in observation),
    ]
    return [(name, _DTYPES[kind], shape) for name, kind, shape in fields]


def _round_up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class ObservationMemory:
    """Where the observation of n environments is written and read. Shapes as in `envs.api.Observation`."""

    def __init__(
        self,
        spec: EnvSpec,
        state: torch.Tensor,
        instruction_ids: torch.Tensor,
        images: torch.Tensor,
        privileged: torch.Tensor,
    ) -> None:
        self._instructions = spec.instructions
        fields = {
            "state": state,
            "instruction_ids": instruction_ids,
            "images": images if spec.cameras else None,
            "privileged": privileged if spec.privileged_dim else None,
        }
        self._tensors = {name: tensor for name, tensor in fields.items() if tensor is not None}
        # numpy reads and writes a few rows several times faster than torch
        self._arrays = {name: t.numpy() for name, t in self._tensors.items()} if state.is_cpu else None
        self._single = len(spec.instructions) == 1
        self._view = Observation(instruction=[spec.instructions[0]] * len(state), **fields)

    def write(self, observation: Observation, rows: np.ndarray | None = None) -> None:
        """Store the observation of all environments, or of `rows` (int64 [R]) only.

        Raises SimulatorError where the simulator's shapes are not those of its spec.
        """
        for name, target in self._tensors.items():
            source = getattr(observation, name)
            expected = target.shape if rows is None else (len(rows), *target.shape[1:])
            if source is None or source.shape != expected:
                came = "nothing" if source is None else list(source.shape)
                raise SimulatorError(
                    f"The simulator's spec promises an observation {name!r} of shape {list(expected)}, "
                    f"but its observe() gave {came}. Mend the adapter's spec or observe()."
                )
            if name == "instruction_ids" and not self._single:
                self._require_known(source)
            if self._arrays is not None:
                self._arrays[name][slice(None) if rows is None else rows] = source.numpy()
            elif rows is None:
                target.copy_(source)
            else:
                target[torch.from_numpy(rows).to(target.device)] = source

    def _require_known(self, ids: torch.Tensor) -> None:
        wrong = [number for number in ids.tolist() if not 0 <= number < len(self._instructions)]
        if wrong:
            raise SimulatorError(
                f"The simulator's observe() gave instruction_ids {wrong}, but its spec has {len(self._instructions)} "
                "instructions, numbered from 0."
            )

    def read(self) -> Observation:
        """Views of all environments."""
        if self._single:
            return self._view
        ids = self._view.instruction_ids.tolist()
        return dataclasses.replace(self._view, instruction=[self._instructions[i] for i in ids])

    def read_rows(self, rows: np.ndarray) -> Observation:
        """Copies of `rows` (int64 [R])."""
        if self._arrays is None:
            return self.read().select(torch.from_numpy(rows).to(self._view.state.device))
        fields = {name: torch.from_numpy(array[rows]) for name, array in self._arrays.items()}
        if self._single:
            return Observation(instruction=[self._instructions[0]] * len(rows), **fields)
        return Observation(instruction=[self._instructions[i] for i in fields["instruction_ids"].tolist()], **fields)


@dataclasses.dataclass(frozen=True)
class ChunkArrays:
    """Views for chunks of C actions of n environments.

    actions float32 [n, C, A]; reward float32 [n, C]; terminated, truncated, success, valid bool [n, C].
    `columns` holds the same cut into C control steps: the action as a torch tensor, the others as arrays [n].
    """

    actions: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    success: np.ndarray
    valid: np.ndarray
    columns: list[tuple[torch.Tensor, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]

    def clear(self, start: int = 0) -> None:
        """Nothing happened from step `start` of the chunk on."""
        for array in (self.reward, self.terminated, self.truncated, self.success, self.valid):
            array[:, start:] = 0


class RowMemory:
    """The part of the memory that belongs to environments [start, stop), all of one slot.

    Arrays [n] or [n, 3], see `EpisodeStats` for the statistics: `assignments` and `mask` are inputs (where an
    environment is reset to; which ones are), the others outputs.
    """

    def __init__(self, memory: EnvMemory, start: int, stop: int, slot_start: int) -> None:
        def part(name: str) -> np.ndarray:
            return memory.arrays[name][start:stop]

        self.num_envs = stop - start
        self.assignments = part("assignments")
        self.mask = part("mask")
        self.ended = part("ended")
        self.length = part("length")
        self.returns = part("returns")
        self.success_once = part("success_once")
        self.success_at_end = part("success_at_end")
        tensors = memory.observation_tensors
        names = ("state", "instruction_ids", "images", "privileged")
        self.observation = ObservationMemory(memory.spec, *(tensors[n][start:stop] for n in names))
        self.final = ObservationMemory(memory.spec, *(tensors[f"final_{n}"][start:stop] for n in names))
        self._memory = memory
        self._base = slot_start * MAX_CHUNK
        self._offset = start - slot_start
        self._chunks: dict[int, ChunkArrays] = {}

    def chunk(self, steps: int) -> ChunkArrays:
        """The views for chunks of `steps` actions (made once for each length)."""
        if steps not in self._chunks:
            self._chunks[steps] = self._make_chunk(steps)
        return self._chunks[steps]

    def _make_chunk(self, steps: int) -> ChunkArrays:
        begin = self._base + self._offset * steps
        end = begin + self.num_envs * steps
        arrays = self._memory.arrays
        dim = self._memory.spec.action.dim
        actions = arrays["actions"][begin * dim : end * dim].reshape(self.num_envs, steps, dim)
        names = ("reward", "terminated", "truncated", "success", "valid")
        flat = [arrays[name][begin:end].reshape(self.num_envs, steps) for name in names]
        tensor = torch.from_numpy(actions)
        columns = [(tensor[:, j], *(a[:, j] for a in flat)) for j in range(steps)]
        return ChunkArrays(actions, *flat, columns=columns)


class EnvMemory:
    """The memory of all `num_envs` environments.

    Args:
        buffer: shared memory of at least `size(spec, num_envs)` bytes; private memory if None.
        device: where observations live; other than the CPU only with private memory.
    """

    def __init__(
        self, spec: EnvSpec, num_envs: int, buffer: mmap.mmap | None = None, device: torch.device | str = "cpu"
    ) -> None:
        self.spec = spec
        self.num_envs = num_envs
        if buffer is None:
            buffer = mmap.mmap(-1, self.size(spec, num_envs))
        self.arrays: dict[str, np.ndarray] = {}
        offset = 0
        for name, dtype, shape in _fields(spec, num_envs):
            count = math.prod(shape)
            self.arrays[name] = np.frombuffer(buffer, dtype, count, offset).reshape(shape)
            offset = _round_up(offset + count * dtype.itemsize)
        names = ("state", "instruction_ids", "images", "privileged")
        self.observation_tensors = {
            name: torch.from_numpy(self.arrays[name]).to(device) for n in names for name in (n, f"final_{n}")
        }

    @staticmethod
    def size(spec: EnvSpec, num_envs: int) -> int:
        """Bytes of address space (not of memory: what is never written takes none)."""
        offset = 0
        for _, dtype, shape in _fields(spec, num_envs):
            offset = _round_up(offset + math.prod(shape) * dtype.itemsize)
        return offset + _ALIGNMENT

    def rows(self, start: int, stop: int, slot_start: int) -> RowMemory:
        """The part of environments [start, stop) of the slot that begins at `slot_start`."""
        return RowMemory(self, start, stop, slot_start)


def to_assignments(table: np.ndarray) -> Assignments:
    """Assignments from int64 [B, 3] (a copy)."""
    return Assignments(*torch.from_numpy(table.copy()).unbind(1))
