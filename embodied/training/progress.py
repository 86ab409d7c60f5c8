"""How far a run is."""

from __future__ import annotations

import dataclasses
from typing import ClassVar


@dataclasses.dataclass
class Progress:
    """What a checkpoint keeps beside the workers' state. Every workload adds the field that it counts in, which grows
    towards the goal's limit, and what else it has to remember from one iteration to the next.

    counted: that field's name, as result.json has it. unit: the same in words. iteration: completed ones. seconds: of
    wall time, stops left out. goals_in_a_row: evaluations that met the goal, up to the last. before, best, last:
    metrics of evaluations.
    """

    counted: ClassVar[str]
    unit: ClassVar[str]

    iteration: int = 0
    seconds: float = 0.0
    goals_in_a_row: int = 0
    before: dict[str, float] = dataclasses.field(default_factory=dict)
    best: dict[str, float] = dataclasses.field(default_factory=dict)
    last: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def amount(self) -> int:
        """Of what is counted, so far."""
        return getattr(self, self.counted)

    def add(self, amount: int) -> None:
        """Count an iteration that came to `amount`."""
        self.iteration += 1
        setattr(self, self.counted, self.amount + amount)
