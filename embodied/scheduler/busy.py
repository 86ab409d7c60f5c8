"""Where an iteration's time went: busy seconds per operation, and the share of its time that each stage worked."""

from __future__ import annotations

from embodied.scheduler.plan import Plan
from embodied.scheduler.trace import BUSY


def stage_times(spent: dict[tuple[str, str, str], float]) -> dict[str, float]:
    """Busy seconds per stage and operation of the iteration that has just passed."""
    times: dict[str, float] = {}
    for (worker, name, category), seconds in spent.items():
        if category == BUSY:
            key = f"time/{worker.split('[')[0]}_{name.replace(' ', '_')}_s"
            times[key] = times.get(key, 0.0) + seconds
    return times


def busy_shares(spent: dict[tuple[str, str, str], float], wall: float, plan: Plan) -> dict[str, float]:
    """Per stage, the share of the iteration's wall time that its workers were busy, on average; the largest is the
    bottleneck, and what it lacks to 1 is idle time that a better plan could use."""
    busy = dict.fromkeys(plan.stages, 0.0)
    for (worker, _, category), seconds in spent.items():
        stage = worker.split("[")[0]
        if category == BUSY and stage in busy:
            busy[stage] += seconds / len(plan.stages[stage].devices)
    return {stage: min(1.0, seconds / wall) for stage, seconds in busy.items()}
