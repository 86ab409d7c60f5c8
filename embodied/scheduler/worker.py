"""The worker: a piece of a flow that reads channels and writes channels and never knows where it runs.

A stage of a flow names a worker class; a launcher makes its instances, binds their ports to channels and calls their
operations. Ports are declared as class attributes:

    class PolicyWorker(Worker):
        observations = Input(ObservationMessage)
        decisions = Output(Decision)
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from embodied.errors import CheckpointError
from embodied.scheduler.trace import BUSY, Trace

if TYPE_CHECKING:
    from embodied.scheduler.plan import StagePlan
    from embodied.scheduler.ports import Receiver, Sender


class Port:
    """A named, typed end of a channel, declared on a worker class."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, worker: Worker | None, owner: type) -> Any:
        if worker is None:
            return self
        try:
            return worker.ports[self.name]
        except KeyError:
            raise AttributeError(
                f"port {self.name!r} of {worker.name} is not connected; add an edge for it to the flow"
            ) from None


class Input(Port):
    """Where a worker receives items of one type; on an instance it is a `Receiver`."""

    if TYPE_CHECKING:

        def __get__(self, worker: Worker | None, owner: type) -> Receiver: ...


class Output(Port):
    """Where a worker hands on items of one type; on an instance it is a `Sender`."""

    if TYPE_CHECKING:

        def __get__(self, worker: Worker | None, owner: type) -> Sender: ...


@dataclasses.dataclass(frozen=True)
class WorkerContext:
    """What a launcher tells a worker about its place.

    stage, rank, world: its stage's name, its index among the stage's workers and how many there are.
    device: torch device name of its tensors. seed: the run's seed.
    trace: where its spans go. deadline: seconds any single wait may take.
    ranks: process group of the stage's workers for collectives; None in a run of one process.
    granularity, slots: of the stage, as the plan has them.
    """

    stage: str
    rank: int
    world: int
    device: str
    seed: int
    trace: Trace
    deadline: float
    ranks: Any = None
    granularity: int | None = None
    slots: int = 1

    @property
    def name(self) -> str:
        """`stage[rank]`, as used in messages and traces."""
        return f"{self.stage}[{self.rank}]"


class Worker:
    """Base of all workers; subclasses add operations, async or not, that a run calls through their group.

    collective: the stage's workers act as one by collectives, so several of them need processes of their own.
    follows: what the class's code follows of a StagePlan besides devices and residency: "granularity" (it reads
    batches(), or puts items that offer pieces()), "slots" (it works in context.slots), "processes" (of its own). A
    plan that asks for more is refused.
    """

    collective = False
    follows: frozenset[str] = frozenset()

    def __init__(self, context: WorkerContext, options: Any = None) -> None:
        self.context = context
        self.options = options
        self.ports: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """`stage[rank]`."""
        return self.context.name

    async def setup(self, announced: Mapping[str, Any]) -> Any:
        """Acquire what the worker needs (models, simulators); called once, before any operation.

        What it returns (a small record) is announced to the stages declared after this one: `announced` holds what
        earlier stages announced, by stage name, from their rank 0.
        """

    async def close(self) -> None:
        """Free it again; called once, also after a failure."""

    def load(self) -> None:
        """Bring device state onto the device (the worker has just been given the device)."""

    def unload(self) -> None:
        """Take device state off the device (the worker is about to give the device back)."""

    @classmethod
    def divide_state(cls, parts: list[dict[str, Any]], placed: StagePlan, options: Any) -> list[dict[str, Any]]:
        """The states that a stage's workers left, as those of its workers under `placed`, for a run that goes on under
        another plan. options: of the stage.

        Raises CheckpointError where what one worker left off cannot go on with several, or with others."""
        world = len(placed.devices)
        if len(parts) == world:
            return parts
        if not any(parts):
            return [{}] * world
        raise CheckpointError(f"{world} {cls.__name__}(s) cannot take over the state of {len(parts)}")

    def state_dict(self) -> dict[str, Any]:
        """Nested dicts and lists of tensors, numbers, strings: everything a resumed run needs to go on to the bit."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""

    def weights(self) -> dict[str, Any]:
        """The worker's own named tensors, for either end of a weight edge."""
        raise NotImplementedError(f"{type(self).__name__} is at the end of a weight edge but offers no weights()")

    def share_weights(self, weights: dict[str, Any]) -> None:
        """Hold these very tensors from now on; for the target of a weight edge within one process."""
        raise NotImplementedError(f"{type(self).__name__} is the target of a weight edge but cannot share weights")

    def weights_changed(self, version: int) -> None:
        """The tensors of `weights` now hold `version`: drop whatever was computed with the old ones."""

    def memory(self) -> int:
        """Bytes of device state that `unload` would free."""
        return 0

    def timed(self, name: str, category: str = BUSY) -> contextlib.AbstractContextManager[None]:
        """Record a span of this worker."""
        return self.context.trace.span(self.name, name, category)


def ports_of(worker: type[Worker], kind: type[Port]) -> dict[str, Port]:
    """The ports of one kind (Input, Output) that a worker class declares, by name."""
    found: dict[str, Port] = {}
    for base in reversed(worker.__mro__):
        found.update({name: value for name, value in vars(base).items() if isinstance(value, kind)})
    return found
