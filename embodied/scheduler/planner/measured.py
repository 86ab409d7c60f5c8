"""A run's own iteration as an execution: read from its trace, to be drawn beside the predicted one."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from embodied.errors import RefusedInput
from embodied.scheduler.planner.simulation import Execution, Span
from embodied.scheduler.trace import BUSY, LOAD


def measured_execution(trace: Path, predicted: Execution, last: str) -> Execution:
    """The iteration of median length in a run's trace file.

    predicted: says on which devices each stage's row is drawn. last: the stage that ends an iteration; the next one
    begins with the first span of another stage. Raises RefusedInput when there is no whole iteration in the trace.
    """
    rows = {span.stage: span for span in predicted.spans if span.what == "run"}
    found = sorted((s for s in _spans(trace) if s[0] in rows), key=lambda span: span[2])
    begins = [found[0][2]] if found else []
    ended = False
    for stage, _, begin, _ in found:
        if stage != last and ended:
            begins.append(begin)
        ended = stage == last
    windows = sorted(itertools.pairwise(begins), key=lambda window: window[1] - window[0])
    if not windows:
        raise RefusedInput(f"{trace} has no two iterations of a stage {last!r}; let the run go on for longer")
    start, end = windows[len(windows) // 2]
    spans = [
        Span(
            stage,
            rows[stage].group,
            rows[stage].kind,
            rows[stage].first,
            rows[stage].count,
            begin - start,
            min(finish, end) - start,
            what,
        )
        for stage, what, begin, finish in found
        if start <= begin < end
    ]
    return Execution(end - start, spans, predicted.capacity)


def _spans(trace: Path) -> list[tuple[str, str, float, float]]:
    """(stage, what, begin, end) of every busy or loading span, in seconds."""
    try:
        events = json.loads(trace.read_text())["traceEvents"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RefusedInput(f"{trace} is not the trace of a run: {type(error).__name__}: {error}") from None
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    kinds = {BUSY: "run", LOAD: "load"}
    return [
        (
            names[event["tid"]].split("[")[0],
            kinds[event["cat"]],
            event["ts"] * 1e-6,
            (event["ts"] + event["dur"]) * 1e-6,
        )
        for event in events
        if event["ph"] == "X" and event["cat"] in kinds
    ]
