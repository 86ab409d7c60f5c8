"""A VectorEnv whose simulators run in this process: for tests, for debugging with pdb, for simulators on a GPU.

`send` executes the whole chunk before it returns, so that an exception's traceback starts where the actions came from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from envs.api import EnvConfig
from envs.batch import BatchEnv, require_sound
from envs.memory import EnvMemory
from envs.slots import Part, SlottedEnv
from envs.stepper import ChunkStepper


class LocalVectorEnv(SlottedEnv):
    """One `BatchEnv` for each slot, in this process.

    Args:
        make_batch: makes a BatchEnv of so many environments.
        config: options; `processes` is not looked at.
    """

    def __init__(self, make_batch: Callable[[int], BatchEnv], config: EnvConfig) -> None:
        super().__init__(config)
        self._make_batch = make_batch
        self._steppers: list[ChunkStepper] = []
        size = self.slot_size
        self.parts = [Part(0, slot, slot * size, (slot + 1) * size) for slot in range(self.slots)]
        first = require_sound(make_batch(size), size)
        self._use(first.spec, EnvMemory(first.spec, self.num_envs, device=first.device))
        self._steppers = [self._make_stepper(part, first if part.slot == 0 else None) for part in self.parts]

    def _make_stepper(self, part: Part, batch: BatchEnv | None = None) -> ChunkStepper:
        batch = batch or require_sound(self._make_batch(self.slot_size), self.slot_size)
        return ChunkStepper(batch, self.config, self._slots[part.slot].memory, part.start)

    def _reset_rows(self) -> None:
        for stepper, slot in zip(self._steppers, self._slots, strict=True):
            stepper.reset(np.flatnonzero(slot.memory.mask))

    def _begin(self, slot: int) -> None:
        state = self._slots[slot]
        try:
            self._steppers[slot].step(state.chunk)
        except BaseException:
            state.chunk = 0
            raise

    def _finish(self, slot: int) -> None:
        pass

    def _render_part(self, part: Part, rows: np.ndarray) -> torch.Tensor:
        return self._steppers[part.slot].render(rows)

    def _save_parts(self) -> list[dict[str, torch.Tensor]]:
        return [stepper.state_dict() for stepper in self._steppers]

    def _load_parts(self, states: list[dict[str, torch.Tensor]]) -> None:
        for part, state in zip(self.parts, states, strict=True):
            if not self.spec.exact_reset:
                self._steppers[part.slot].close()
                self._steppers[part.slot] = self._make_stepper(part)
            self._steppers[part.slot].load_state_dict(state)

    def first_ready(self, slots: Sequence[int] | None = None, seconds: float | None = None) -> list[int]:
        return self._sent(slots)  # `send` executes the whole chunk

    def ready(self, slot: int = 0) -> bool:
        return self._slot(slot).chunk > 0

    def close(self) -> None:
        super().close()
        for stepper in self._steppers:
            stepper.close()
        self._steppers = []
