"""A comparison of plans in words: a table of the chosen plan, what the other styles lose, and one sentence why."""

from __future__ import annotations

import numpy as np

from embodied.scheduler.planner import costs
from embodied.scheduler.planner.advice import plan_advice
from embodied.scheduler.planner.bounds import estimate, fits, stage_seconds
from embodied.scheduler.planner.choose import Choice, Comparison
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.profile import FlowProfile
from embodied.scheduler.planner.schedule import Work, describe, works
from embodied.scheduler.planner.search import Style

WORDS = {
    Style.SHARED: "shared (stages take turns on the same devices)",
    Style.SPLIT: "split (every stage has devices of its own)",
    Style.MIXED: "mixed (some take turns, some run side by side)",
}
HEADINGS = ("stage", "devices", "replicas", "items at once", "slots", "resident", "time", "GiB a device", "idle")


def plan_rows(problem: Problem, choice: Choice) -> list[tuple[str, ...]]:
    """One row a stage, in the order of `HEADINGS`. time: that it runs in an iteration; idle: share of the iteration
    in which its devices do not run it."""
    rows = []
    for work, pieces in works(choice.schedule):
        for p in work.placements:
            profile = problem.profile.stages[p.stage]
            cost, group = profile.on[p.kind], problem.groups[p.group]
            parts = problem.cycle_share(_cycle(problem, work), pieces)[1] if _cycle(problem, work) else pieces
            items, loaded = (costs.piece_items(profile.items, n) for n in (parts * work.slots, parts))
            running = costs.memory_fractions(cost, group, p.kind, items, loaded, np.array([p.devices]))[1][0]
            size = running * group.accelerator_memory_bytes / 2**30
            noun = "core" if p.kind == "cpu" else "accelerator"
            where = f" of {p.group}" if len(problem.groups) > 1 else ""
            rows.append(
                (
                    p.stage,
                    f"{p.devices} {noun}{'s' if p.devices > 1 else ''}{where}",
                    str(p.devices // cost.devices_per_replica),
                    str(items),
                    str(work.slots),
                    "yes" if p.resident else "unloads",
                    spoken(choice.execution.busy(p.stage) / p.devices),
                    f"{size:.1f}" if p.kind == "accelerator" else "-",
                    f"{max(0.0, choice.execution.idle_share(p.stage, p.devices)):.0%}",
                )
            )
    return rows


def spoken(seconds: float) -> str:
    """Seconds with the digits that matter: 762 s, 12.3 s, 0.45 s, 3.2 ms."""
    if seconds >= 100:
        return f"{seconds:.0f} s"
    if seconds >= 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"


COST_HEADINGS = ("stage", "on", "items", "time of n items on r replicas", "error", "measured", "spans show")


def cost_rows(profile: FlowProfile) -> list[tuple[str, ...]]:
    """One row a stage and kind of resource, in the order of `COST_HEADINGS`; q is the busiest replica's share of n."""
    rows = []
    for name, stage in profile.stages.items():
        for kind, cost in stage.on.items():
            model = cost.time
            terms = [spoken(model.fixed)] if model.fixed else []
            terms += [f"{spoken(model.per_item)} q"] if model.per_item else []
            terms += [f"{spoken(model.per_item_squared)} q^2"] if model.per_item_squared else []
            terms += [f"{spoken(model.per_doubling)} log2 r"] if model.per_doubling else []
            sizes = ", ".join(f"{m.items}/{m.devices}" for m in cost.measurements) or "-"
            rows.append(
                (
                    name,
                    kind,
                    str(stage.items),
                    " + ".join(terms) or "nothing",
                    f"{model.error:.0%}",
                    sizes,
                    f"{stage.traced:.0%}",
                )
            )
    return rows


def _cycle(problem: Problem, work: Work):
    return next(unit.cycle for unit in problem.units if unit.stages == work.stages)


def table(rows: list[tuple[str, ...]], headings: tuple[str, ...]) -> str:
    """Aligned columns, the first one to the left."""
    widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
    lines = [headings, tuple("-" * w for w in widths), *rows]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def style_of(problem: Problem, choice: Choice) -> Style:
    """Whether a schedule's accelerators (cores, where there are none) are shared, split, or both; shared when nothing
    shares or splits any."""
    bars: dict[str, tuple[str, set[int]]] = {}
    for span in choice.execution.spans:
        if span.kind == problem.divided:
            bars.setdefault(span.stage, (span.group, set()))[1].update((span.first, span.first + span.count - 1))
    ranges = {stage: (group, min(ends), max(ends)) for stage, (group, ends) in bars.items()}
    names = list(ranges)
    pairs = [(ranges[a], ranges[b]) for i, a in enumerate(names) for b in names[i + 1 :]]
    meet = [a[0] == b[0] and a[1] <= b[2] and b[1] <= a[2] for a, b in pairs]
    if meet and any(meet) and not all(meet):
        return Style.MIXED
    return Style.SPLIT if meet and not any(meet) else Style.SHARED


def losses(comparison: Comparison) -> dict[Style, str]:
    """By style: how much longer its best plan takes than the chosen one, or why there is none."""
    best = comparison.best.seconds
    return {
        style: f"{spoken(choice.seconds)}, {choice.seconds / best - 1:+.0%}"
        if isinstance(choice, Choice)
        else f"none: {choice}"
        for style, choice in comparison.styles.items()
    }


def why(comparison: Comparison) -> str:
    """One sentence: which style was chosen, what the closest other one loses, and the cost behind it."""
    problem, best = comparison.problem, comparison.best
    chosen = style_of(problem, best)
    others = {s: c for s, c in comparison.styles.items() if s is not chosen and isinstance(c, Choice)}
    reason = _flattest(problem, best)
    if not others:
        return f"{chosen.value} is the only style that fits; {reason}"
    closest = min(others, key=lambda s: others[s].seconds)
    loss = others[closest].seconds / best.seconds - 1
    if loss < 0.005:
        return f"{chosen.value}, though {closest.value} is as fast ({loss:+.1%}): {reason}"
    return f"{chosen.value}, because {closest.value} takes {loss:.0%} longer: {reason}"


def _flattest(problem: Problem, choice: Choice) -> str:
    """The stage that gains least from its devices among those that matter, and the one that gains most."""
    gains = {}
    for work, pieces in works(choice.schedule):
        cycle = _cycle(problem, work)
        parts = problem.cycle_share(cycle, pieces)[1] if cycle else pieces
        now = stage_seconds(problem, work, parts * work.slots)
        for p in work.placements:
            cost, group = problem.profile.stages[p.stage].on[p.kind], problem.groups[p.group]
            replicas = p.devices // cost.devices_per_replica
            if replicas > 1:
                half = np.array([(replicas // 2) * cost.devices_per_replica])
                items = costs.piece_items(problem.profile.stages[p.stage].items, parts * work.slots)
                slower = float(costs.seconds(cost, group, items, half)[0])
                gains[p.stage] = (slower / now[p.stage], int(half[0]), p.devices)
    busiest = max(choice.execution.spans, key=lambda s: choice.execution.busy(s.stage)).stage
    share = 1 - choice.execution.idle_share(
        busiest, next(p.devices for w, _ in works(choice.schedule) for p in w.placements if p.stage == busiest)
    )
    if len(gains) < 2:
        return f"{busiest} keeps its devices busy for {share:.0%} of the iteration"
    flat, steep = min(gains, key=lambda s: gains[s][0]), max(gains, key=lambda s: gains[s][0])
    if gains[flat][0] > 0.95 * gains[steep][0]:
        return f"all stages gain alike from more devices, and {busiest} takes {share:.0%} of the iteration"
    gain_flat, low, high = gains[flat]
    gain_steep, low2, high2 = gains[steep]
    return (
        f"{flat} gains only {gain_flat:.2f}x from {low} to {high} devices, "
        f"{steep} {gain_steep:.2f}x from {low2} to {high2}, "
        f"and {busiest} takes {share:.0%} of the iteration"
    )


def memory_line(problem: Problem, choice: Choice) -> str:
    """The fullest accelerator at any time, beside what there is."""
    parts = []
    for group, share in estimate(problem, choice.schedule).running.items():
        room = problem.groups[group].accelerator_memory_bytes / 2**30
        parts.append(f"{share * room:.1f} of {room:.1f} GiB on the fullest accelerator of {group}")
    return "; ".join(parts) if parts else "no accelerators"


def uncertainty(problem: Problem, choice: Choice) -> float:
    """Relative standard error of the predicted time: the stages' model errors, weighted by the time they run."""
    total = square = 0.0
    for work, _ in works(choice.schedule):
        for p in work.placements:
            seconds = choice.execution.busy(p.stage) / p.devices
            total += seconds
            square += (seconds * problem.profile.stages[p.stage].on[p.kind].time.error) ** 2
    return square**0.5 / total if total else 0.0


def report(comparison: Comparison, *, alternatives: bool) -> str:
    """The whole explanation as text. alternatives: also the tables of the other styles' plans."""
    problem, best, profile = comparison.problem, comparison.best, comparison.problem.profile
    error = uncertainty(problem, best)
    lines = [
        f"plan for {profile.recipe or profile.flow}: {describe(best.schedule)}",
        table(plan_rows(problem, best), HEADINGS),
        f"iteration  {spoken(best.seconds)} predicted (+-{error:.0%}), at most {spoken(best.bound)} by the closed "
        f"formula; "
        f"{profile.amount / best.seconds:.1f} {profile.unit} a second",
        f"memory     {memory_line(problem, best)}",
        f"why        {why(comparison)}",
        "beside it",
    ]
    lines += [f"  {WORDS[style]}: {text}" for style, text in losses(comparison).items()]
    if alternatives:
        for style, choice in comparison.styles.items():
            if isinstance(choice, Choice) and choice.schedule != best.schedule:
                lines += [
                    "",
                    f"best {style.value}: {describe(choice.schedule)}",
                    table(plan_rows(problem, choice), HEADINGS),
                ]
    return "\n".join(lines)


def given_report(problem: Problem, given: Choice, best: Choice, where: str) -> str:
    """A plan that was given, from `where`, beside the best one, as text."""
    lines = [
        f"plan of {where}: {describe(given.schedule)}",
        table(plan_rows(problem, given), HEADINGS),
        f"iteration  {spoken(given.seconds)} predicted (+-{uncertainty(problem, given):.0%}); the best plan takes "
        f"{spoken(best.seconds)} ({best.seconds / given.seconds - 1:+.0%}): {describe(best.schedule)}",
        f"memory     {memory_line(problem, given)}",
    ]
    if not fits(problem, estimate(problem, given.schedule)):
        lines += ["this does NOT fit:", *(f"  {line}" for line in plan_advice(problem, given.schedule))]
    return "\n".join(lines)
