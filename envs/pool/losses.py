"""When to stop playing an assignment again whose simulator was lost."""

from __future__ import annotations

from collections.abc import Sequence

from embodied.errors import SimulatorError

MAX_LOSSES = 3
"""An assignment that has lost its simulator so often is not played again."""


def deadly_assignments(env: str, assignments: Sequence[tuple[int, int, int]]) -> SimulatorError:
    """The error that ends a run over `assignments` (task, initial state, seed), which were lost together."""
    named = [f"task {task}, initial state {state}, seed {seed}" for task, state, seed in assignments]
    which = named[0] if len(named) == 1 else f"each of these, of which one may have cost the others: {'; '.join(named)}"
    return SimulatorError(
        f"{env}: the simulator died, hung or was left behind {MAX_LOSSES} times while it played {which}. Playing it "
        "again would not end. How it was lost is said above and in log.txt: mend the simulator or leave out this task "
        "or seed; if it was only slow, raise env.step_seconds and env.straggler_seconds."
    )
