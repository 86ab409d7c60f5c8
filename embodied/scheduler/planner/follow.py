"""Following a plan: measured stage times beside the predicted ones, and a new plan when the old one is no longer right.

A stage drifts when its measured time is off its prediction by more than `DRIFT` in every iteration of a window, always
to the same side. Then its cost model is scaled to what was measured, the search runs again, and the plan found is taken
if what it saves over the iterations left exceeds the cost of switching.

A stage served in slots by a pool of processes is not timed by its spans, which overlap with waiting for others; its
time is inferred: the one at which the simulation of the plan takes as long as the iterations took.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics

from embodied.errors import ConfigurationError
from embodied.scheduler.plan import Plan
from embodied.scheduler.planner import explain
from embodied.scheduler.planner.bounds import stage_seconds
from embodied.scheduler.planner.choose import compare, on_device, to_plan
from embodied.scheduler.planner.fit import TERMS
from embodied.scheduler.planner.from_plan import schedule_of
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.profile import FlowProfile
from embodied.scheduler.planner.schedule import Schedule, placements, works
from embodied.scheduler.planner.simulation import Execution, simulate
from embodied.scheduler.trace import BUSY

DRIFT = 0.15
WINDOW = 5
LEAST_GAIN = 0.05  # of an iteration: less is within what predictions are off by
_FACTORS = (0.02, 50.0)  # between which an inferred stage's time may have changed
_HALVINGS = 30


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a drift came to. factors: by how much each stage's time changed. plan: to switch to, or None. message: one
    line on both."""

    factors: dict[str, float]
    plan: Plan | None
    message: str


class Following:
    """One plan of one profile, and what was measured since it runs.

    start_seconds: how long it took to start under this plan. Switching to another costs twice that, or what the profile
    says of other plans, for state is saved and restored too.
    """

    def __init__(
        self, profile: FlowProfile, plan: Plan, *, window: int = WINDOW, drift: float = DRIFT, device: str = "auto"
    ) -> None:
        """device: as `cluster.device`; new plans stay on it.

        Raises ConfigurationError when the plan cannot be predicted from the profile."""
        self._device = device
        self.window, self.drift = window, drift
        self.start_seconds = 0.0
        self._measured: collections.deque[tuple[float, dict[str, float]]] = collections.deque(maxlen=window)
        self._take(profile, plan)

    def _take(self, profile: FlowProfile, plan: Plan) -> None:
        self.profile, self.plan = profile, plan
        self.problem = Problem(profile)
        self.schedule = schedule_of(self.problem, plan)
        self.predicted: Execution = simulate(self.problem, self.schedule)
        self._measured.clear()

    def switch_to(self, plan: Plan) -> None:
        """Go on under another plan, with the profile as it is now."""
        self._take(self.profile, plan)

    def expected(self) -> dict[str, float]:
        """Seconds of an iteration that every stage's spans should show, averaged over its workers; without stages that
        spans do not time."""
        placed = placements(self.schedule)
        return {
            name: self.predicted.busy(name) / placed[name].devices * stage.traced
            for name, stage in self.profile.stages.items()
            if not (stage.pooled and self.plan.stages[name].slots > 1)
        }

    def note(self, spent: dict[tuple[str, str, str], float], seconds: float, left: int) -> Verdict | None:
        """Take an iteration's measurements; a verdict when a drift has lasted for a window.

        spent: seconds per (worker, what, category). seconds: of the whole iteration. left: iterations still to come.
        """
        shown = dict.fromkeys(self.expected(), 0.0)
        for (worker, _, category), busy in spent.items():
            stage = worker.split("[")[0]
            if category == BUSY and stage in shown:
                shown[stage] += busy / len(self.plan.stages[stage].devices)
        self._measured.append((seconds, shown))
        if len(self._measured) < self.window:
            return None
        factors = self._drifted()
        return self._judge(factors, left) if factors else None

    def _drifted(self) -> dict[str, float]:
        found = {}
        for name, expected in self.expected().items():
            ratios = [shown[name] / expected for _, shown in self._measured] if expected > 0 else []
            if self._off(ratios):
                found[name] = statistics.median(ratios)
        hidden = [name for name in self.profile.stages if name not in self.expected()]
        changed = self._changed(self.problem, found) if found else self.problem
        ratios = [seconds / simulate(changed, self.schedule).seconds for seconds, _ in self._measured]
        if hidden and self._off(ratios):
            wanted = statistics.median(seconds for seconds, _ in self._measured)
            factor = self._inferred(hidden, changed, wanted)
            if abs(factor - 1.0) > self.drift:
                found |= dict.fromkeys(hidden, factor)
        return found

    def _off(self, ratios: list[float]) -> bool:
        return bool(ratios) and (min(ratios) > 1 + self.drift or max(ratios) < 1 - self.drift)

    def _changed(self, problem: Problem, factors: dict[str, float]) -> Problem:
        return Problem(scaled(problem, self.schedule, factors))

    def _inferred(self, hidden: list[str], problem: Problem, seconds: float) -> float:
        """The factor on the times of `hidden` with which the plan takes `seconds`; they never fall as it rises."""
        low, high = _FACTORS
        for _ in range(_HALVINGS):
            middle = (low * high) ** 0.5
            changed = self._changed(problem, dict.fromkeys(hidden, middle))
            if simulate(changed, self.schedule).seconds < seconds:
                low = middle
            else:
                high = middle
        return (low * high) ** 0.5

    def _judge(self, factors: dict[str, float], left: int) -> Verdict:
        """Believe the measurements, search again, and weigh what the new plan saves against the switch."""
        self._take(scaled(self.problem, self.schedule, factors), self.plan)
        what = ", ".join(f"{name} takes {factor:.2f}x its predicted time" for name, factor in factors.items())
        comparison = compare(self.profile)
        best = comparison.best
        now, cost = self.predicted.seconds, 2 * max(self.start_seconds, self.profile.start_seconds)
        saved = now - best.seconds
        plan = on_device(to_plan(comparison.problem, best, explain.why(comparison)), self._device)
        if same_placement(plan, self.plan) or saved < LEAST_GAIN * now:
            return Verdict(factors, None, f"{what}; the plan stays the best one")
        if saved * left <= cost:
            return Verdict(
                factors,
                None,
                f"{what}; another plan would save {saved:.2f} s an iteration, too little to switch ({cost:.1f} s) with "
                f"{left} iterations left",
            )
        return Verdict(
            factors, plan, f"{what}; a new plan takes {best.seconds:.2f} s an iteration instead of {now:.2f} s"
        )


def same_placement(first: Plan, second: Plan) -> bool:
    """Whether two plans differ in words only."""
    return first.launcher == second.launcher and first.stages == second.stages


def scaled(problem: Problem, schedule: Schedule, factors: dict[str, float]) -> FlowProfile:
    """The problem's profile with some stages' times multiplied, as they are under a schedule.

    What a stage does is taken to have changed, not what its replicas say to each other: `per_doubling` stays, unless
    it is all there is."""
    placed = placements(schedule)
    stages = dict(problem.profile.stages)
    for name, factor in factors.items():
        place = placed[name]
        cost = stages[name].on[place.kind]
        model = cost.time
        talk = model.per_doubling * math.log2(place.devices // cost.devices_per_replica)
        work = _seconds_of(problem, schedule, name) - talk
        share = max(0.0, (factor * (work + talk) - talk) / work) if work > 0 else factor
        terms = {term: getattr(model, term) * share for term in TERMS if term != "per_doubling" or work <= 0}
        on = dict(stages[name].on)
        on[place.kind] = dataclasses.replace(cost, time=dataclasses.replace(model, **terms))
        stages[name] = dataclasses.replace(stages[name], on=on)
    return dataclasses.replace(problem.profile, stages=stages)


def _seconds_of(problem: Problem, schedule: Schedule, stage: str) -> float:
    """Modelled seconds of one call of a stage, at the profile's speed."""
    for work, pieces in works(schedule):
        for p in work.placements:
            if p.stage == stage:
                unit = next(unit for unit in problem.units if unit.stages == work.stages)
                parts = problem.cycle_share(unit.cycle, pieces)[1] if unit.cycle else pieces
                return stage_seconds(problem, work, parts * work.slots)[stage] * problem.groups[p.group].speed
    raise ConfigurationError(f"the schedule has no stage {stage!r}")
