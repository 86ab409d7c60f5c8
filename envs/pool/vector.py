"""A VectorEnv whose simulators run in worker processes, over one block of shared memory.

Observations and results are written in place; a chunk costs a copy of its actions, a number and a doorbell for each
process. Blocks and doorbells are anonymous (memfd, eventfd): nothing is left behind however this process ends, and
workers end with it. A process that dies, hangs or is far too slow costs the running episodes of its environments,
nothing more.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Callable, Sequence

import numpy as np

from embodied.errors import DeadlineExceeded, EmbodiedError, SimulatorError
from envs.api import EnvConfig
from envs.batch import BatchEnv
from envs.pool.host import ProcessHost
from envs.pool.pace import Pace
from envs.pool.process import SimulatorProcess
from envs.pool.worker import DONE, OPERATION, REQUESTED, SPENT, STEPS, Failure, Operation
from envs.slots import Part, forget_lost

logger = logging.getLogger(__name__)

MAX_DEATHS_IN_A_ROW = 3
"""A process that dies so often without completing a chunk in between is not started again."""

_TICK_MILLISECONDS = 20  # how often to look for late processes, and for a wake-up that was missed


class PoolVectorEnv(ProcessHost):
    """Simulators in worker processes; every process hosts an even, contiguous share of every slot.

    After a process died, `StepResult.failed` marks its environments, whose statistics are then zero. They continue
    with the `next_assignments` of that chunk, or, where none were given, once more with the assignment that was lost.

    With `straggler_seconds`, a process that has not finished a chunk after so long, while at least half of them have,
    is left behind: the result comes without it, its environments are `failed`, and it starts new episodes as soon as it
    is done with the old ones. Until then its rows are `failed` in every result and show what they last showed.

    Args:
        make_batch: makes a BatchEnv of so many environments; must be picklable and importable by name.
        config: options.
        on_progress: called with (process, phase, seconds since the start) while processes start.

    Attributes:
        restarts: how many processes died or hung and were replaced.
        left_behind: how often a process was left behind.
        recycled: how many processes were started anew because they had grown.
        pace: what is usual for a chunk, and how often it took much longer.
    """

    def __init__(
        self,
        make_batch: Callable[[int], BatchEnv],
        config: EnvConfig,
        on_progress: Callable[[int, str, float], None] | None = None,
    ) -> None:
        super().__init__(make_batch, config, on_progress)
        count = len(self._cores)
        self.restarts = self.left_behind = self.recycled = 0
        self._first_bytes: dict[int, int] = {}  # of a process by its pid, when it was first looked at
        self._control = self._shared.control
        self._number = 0
        self._in_flight: dict[int, Operation] = {}
        self._begun = [0.0] * self.slots
        self._deadlines = np.zeros((count, self.slots))
        self._errors: dict[int, EmbodiedError] = {}
        self._deaths_in_a_row = [0] * count
        self._left = np.zeros((count, self.slots), dtype=bool)  # executing something that nobody waits for
        self._some_left = False
        self.pace = Pace([self._name(index) for index in range(count)], self.slots)
        self._pollers = [self._make_poller(slot) for slot in range(self.slots)]

    # ---------------------------------------------------------------- requests

    def _request(self, operation: Operation, part: Part, steps: int = 0) -> None:
        control = self._control[part.process, part.slot]
        control[OPERATION] = operation
        control[STEPS] = steps
        self._number += 1
        control[REQUESTED] = self._number
        os.eventfd_write(self._shared.doorbells[part.process], 1)

    def _allow(self, process: int | slice, slot: int, seconds: float) -> None:
        """Set a request's deadline; what the process still has to do for other slots comes first."""
        self._deadlines[process, slot] = time.monotonic() + seconds * len(self._in_flight)

    def _begin(self, slot: int) -> None:
        self._begun[slot] = time.monotonic()
        if self._some_left and self._left[:, slot].any():
            self._begin_without_the_left(slot)
            return
        self._in_flight[slot] = Operation.STEP
        self._allow(slice(None), slot, self.config.step_seconds)
        # the same as `_request` for each process, but with one write for all: this is the hot path
        control = self._control[:, slot]
        control[:, OPERATION] = Operation.STEP
        control[:, STEPS] = self._slots[slot].chunk
        self._number += 1
        control[:, REQUESTED] = self._number
        for doorbell in self._shared.doorbells:
            os.eventfd_write(doorbell, 1)

    def _finish(self, slot: int) -> None:
        self._await_slot(slot)

    def _reset_rows(self) -> None:
        mask = self._whole.mask
        for part in self.parts:
            if mask[part.start : part.stop].any():
                self._left[part.process, part.slot] = False
                self._in_flight[part.slot] = Operation.RESET
                self._request(Operation.RESET, part)
        for slot in self._in_flight:
            # a first reset may still load and compile things, so it is part of starting
            self._allow(slice(None), slot, self.config.start_seconds)
        errors = []
        for slot in list(self._in_flight):
            try:
                self._await_slot(slot)
            except EmbodiedError as error:
                errors.append(error)  # the other slots' resets are under way all the same
        if errors:
            raise errors[0]

    def ready(self, slot: int = 0) -> bool:
        if not self._slot(slot).chunk:
            return False
        waiting = [self._shared.processes[index] for index in self._waiting(slot).tolist()]
        # one that failed, died or is late has something to say: recv's to deal with
        return (
            not waiting
            or self._may_leave(slot, len(waiting))
            or any(
                process.connection.poll() or time.monotonic() > self._deadlines[process.index, slot]
                for process in waiting
            )
        )

    def _waiting(self, slot: int) -> np.ndarray:
        """Processes that have not finished their part of the slot's request and are waited for."""
        control = self._control[:, slot]
        return np.flatnonzero((control[:, REQUESTED] != control[:, DONE]) & ~self._left[:, slot])

    def first_ready(self, slots: Sequence[int] | None = None, seconds: float | None = None) -> list[int]:
        chosen = self._sent(slots)
        seconds = self.config.step_seconds if seconds is None else seconds
        until = time.monotonic() + seconds
        poller = select.poll()
        for slot in chosen:
            poller.register(self._shared.done[slot], select.POLLIN)
        while not (ready := [slot for slot in chosen if self.ready(slot)]):
            if time.monotonic() > until:
                raise DeadlineExceeded(
                    f"{self.config.id}: none of the slots {', '.join(map(str, chosen))} finished its chunk within "
                    f"{seconds:g} s."
                )
            for descriptor, _ in poller.poll(_TICK_MILLISECONDS):
                os.eventfd_read(descriptor)  # it may be of an earlier chunk; `ready` looks at the numbers
        return ready

    def _await_slot(self, slot: int) -> None:
        poller, done = self._pollers[slot]
        control = self._control[:, slot]
        requested, finished, left = control[:, REQUESTED], control[:, DONE], self._left[:, slot]
        while np.count_nonzero(requested != finished) and (not self._some_left or len(self._waiting(slot))):
            events = poller.poll(_TICK_MILLISECONDS)
            for descriptor, _ in events:
                if descriptor == done:
                    os.eventfd_read(done)
                else:
                    self._hear(self._process_at(descriptor))
                    poller = self._pollers[slot][0]
            if not events:
                self._look_for_trouble(slot)
                poller = self._pollers[slot][0]
        if self._in_flight.pop(slot) is Operation.STEP:
            self.pace.note(slot, control[:, SPENT], left)
        if any(self._deaths_in_a_row):
            self._forgive(slot)
        if slot in self._errors:
            raise self._errors.pop(slot)

    def _hear(self, process: SimulatorProcess) -> None:
        """A message outside of commands: a failed request, or the end."""
        message = process.receive()
        if message is None:
            self._replace(process, process.describe_end())
        elif isinstance(message, Failure) and message.slot is not None:
            self._errors.setdefault(message.slot, self._error(process.index, message, "while running"))
            control = self._control[process.index, message.slot]
            control[DONE] = control[REQUESTED]

    def _look_for_trouble(self, slot: int) -> None:
        waiting = self._waiting(slot).tolist()
        if self._may_leave(slot, len(waiting)):
            for index in waiting:
                self._leave_behind(index, slot)
            return
        for index in waiting:
            process = self._shared.processes[index]
            if process.has_ended():
                self._replace(process, process.describe_end())
            elif time.monotonic() > self._deadlines[index, slot]:
                stack = process.dump_stack()
                doing = self._in_flight[slot].name.lower()
                self._replace(process, f"did not finish its {doing} of slot {slot} in time and was killed\n{stack}")

    # ---------------------------------------------------------------- going on without a slow process

    def _may_leave(self, slot: int, waiting: int) -> bool:
        """Whether the slot has waited long enough for few enough processes to go on without them."""
        patience = self.config.straggler_seconds
        if patience is None or not waiting or self._in_flight.get(slot) is not Operation.STEP:
            return False
        return time.monotonic() - self._begun[slot] > patience and 2 * waiting <= len(self._cores)

    def _leave_behind(self, index: int, slot: int) -> None:
        """Go on without a process; what it is doing is shown, and what comes of it is never looked at."""
        self.left_behind += 1
        process = self._shared.processes[index]
        logger.warning(
            "%s has not finished its chunk of slot %d within straggler_seconds=%g and is left behind; its running "
            "episodes are lost, and it starts new ones when it is done. It is doing this:\n%s",
            self._name(index),
            slot,
            self.config.straggler_seconds,
            process.dump_stack(),
        )
        self._left[index, slot] = self._some_left = True

    def _begin_without_the_left(self, slot: int) -> None:
        """Ask those for a chunk that can take part; one that was left behind and is done begins new episodes in it."""
        self._in_flight[slot] = Operation.STEP
        chunk = self._slots[slot].chunk
        self._some_left = bool(self._left.any())
        for part in self._parts_in(slot):
            if self._left[part.process, slot] and self._is_still_away(part, chunk):
                continue
            self._left[part.process, slot] = False
            self._allow(part.process, slot, self.config.step_seconds)
            self._request(Operation.STEP, part, chunk)

    def _is_still_away(self, part: Part, chunk: int) -> bool:
        """Whether a process that was left behind is to be left alone in a chunk of `chunk` steps.

        Chunks of another length lie differently in memory, where it still writes: before such a one it is waited for.
        """
        control = self._control[part.process, part.slot]
        process = self._shared.processes[part.process]
        while control[REQUESTED] != control[DONE]:
            reason = process.describe_end() if process.has_ended() else ""
            if not reason and time.monotonic() > self._deadlines[part.process, part.slot]:
                reason = f"was left behind, is still busy after step_seconds and was killed\n{process.dump_stack()}"
            if reason:
                control[STEPS] = chunk
                self._replace(process, reason)  # which asks for new episodes in this chunk
                return True
            if control[STEPS] == chunk:
                return True
            time.sleep(_TICK_MILLISECONDS / 1000)
        return False

    def _away(self, slot: int) -> np.ndarray | None:
        if not self._some_left or not self._left[:, slot].any():
            return None
        away = np.zeros(self.num_envs, dtype=bool)
        for part in self._parts_in(slot):
            away[part.start : part.stop] = self._left[part.process, slot]
        return away[self.rows(slot)]

    # ---------------------------------------------------------------- replacing a grown process

    def recycle(self) -> int:
        self._require_idle("recycle")
        grown = self._grown() if all(slot.started for slot in self._slots) else {}
        for index, growth in grown.items():
            logger.warning(
                "%s has grown by %.1f GiB and is started anew; its episodes go on.", self._name(index), growth
            )
            try:
                self._start_anew(index)
            except (SimulatorError, DeadlineExceeded) as error:
                self._replace(self._shared.processes[index], f"could not be started anew: {error}")
            self.recycled += 1
        return len(grown)

    def _start_anew(self, index: int) -> None:
        """Another process in the place of one that is sound, which goes on with its episodes."""
        (states,) = self._ask([index], [("save",)], self.config.step_seconds)
        for part in self._parts_of(index):
            slot = self._slots[part.slot]
            rows = slice(part.start - part.slot * self.slot_size, part.stop - part.slot * self.slot_size)
            forget_lost(states[part.slot], slot.lost[rows])
            slot.memory.assignments[rows] = slot.current[rows]
        self._shared.processes[index].kill()
        self._shared.processes[index] = self._start_process(index)
        self._await_start([index])
        self._pollers = [self._make_poller(slot) for slot in range(self.slots)]
        self._left[index] = False
        self._load_processes([index], [states])

    def _grown(self) -> dict[int, float]:
        """GiB by which processes have grown, of those that have grown too much."""
        if self.config.growth_gib is None:
            return {}
        grown = {}
        for process in self._shared.processes:
            if process.has_ended():
                continue  # whoever asks it next replaces it
            used = process.own_bytes()
            growth = (used - self._first_bytes.setdefault(process.pid, used)) / 2**30
            if growth > self.config.growth_gib:
                grown[process.index] = growth
        return grown

    # ---------------------------------------------------------------- replacing a dead process

    def _replace(self, process: SimulatorProcess, reason: str) -> None:
        """Start a new process in the place of one that died or hung; its episodes are lost."""
        index = process.index
        while True:
            process.kill()
            self.restarts += 1
            self._deaths_in_a_row[index] += 1
            if self._deaths_in_a_row[index] > MAX_DEATHS_IN_A_ROW:
                raise SimulatorError(
                    f"{reason}\n{self._name(index)} died {self._deaths_in_a_row[index]} times without completing a "
                    "chunk; it is not started again. The above is how it ended the last time."
                )
            logger.warning(
                "%s %s\nIts running episodes are lost; it is started again (restart %d).",
                self._name(index),
                reason,
                self.restarts,
            )
            process = self._shared.processes[index] = self._start_process(index)
            try:
                self._await_start([index])
                break
            except (SimulatorError, DeadlineExceeded) as error:
                reason = f"could not be started again: {error}"
        self._pollers = [self._make_poller(slot) for slot in range(self.slots)]
        self._left[index] = False
        for part in self._parts_of(index):
            self._lose(part)

    def _lose(self, part: Part) -> None:
        """Mark a part's episodes as lost; if something is under way, its environments start anew in it."""
        slot = self._slots[part.slot]
        rows = slice(part.start - part.slot * self.slot_size, part.stop - part.slot * self.slot_size)
        memory = slot.memory
        operation = self._in_flight.get(part.slot)
        # an environment that is being reset begins a new episode anyhow
        slot.lost[rows] = ~memory.mask[rows] if operation is Operation.RESET else True
        if operation is None:
            return
        memory.mask[rows] = True
        self._request(operation, part, int(self._control[part.process, part.slot, STEPS]))
        self._allow(part.process, part.slot, self.config.start_seconds)

    def _forgive(self, slot: int) -> None:
        """A process that completed a chunk of running episodes is sound again."""
        for part in self._parts_in(slot):
            if not self._slots[slot].memory.mask.any():
                self._deaths_in_a_row[part.process] = 0

    # ---------------------------------------------------------------- helpers

    def _make_poller(self, slot: int) -> tuple[select.poll, int]:
        poller = select.poll()
        done = self._shared.done[slot]
        poller.register(done, select.POLLIN)
        for process in self._shared.processes:
            poller.register(process.connection.fileno(), select.POLLIN)
        return poller, done
