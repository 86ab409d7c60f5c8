"""Who did what, when: spans of busy, waiting and switching time per worker, as totals and as a Perfetto trace.

A span is recorded by the worker (`with worker.timed("act")`) or by a channel while someone waits on it. The trace file
is the Chrome trace-event JSON format, which ui.perfetto.dev opens.
"""

from __future__ import annotations

import collections
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

BUSY = "busy"
WAIT = "wait"
LOAD = "load"
TRANSFER = "transfer"

# a long run keeps the newest spans; totals are exact whatever was dropped
MAX_SPANS = 200_000


class Trace:
    """Spans of all workers of this process, on one clock."""

    def __init__(self) -> None:
        self._spans: collections.deque[tuple[str, str, str, float, float]] = collections.deque(maxlen=MAX_SPANS)
        self._totals: dict[tuple[str, str, str], float] = collections.defaultdict(float)

    def add(self, worker: str, name: str, category: str, begin: float, end: float) -> None:
        """Record one span; times are `time.perf_counter()` seconds."""
        self._spans.append((worker, name, category, begin, end))
        self._totals[worker, name, category] += end - begin

    @contextlib.contextmanager
    def span(self, worker: str, name: str, category: str = BUSY) -> Iterator[None]:
        """Record the time spent inside the `with` block."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(worker, name, category, begin, time.perf_counter())

    def take_totals(self) -> dict[tuple[str, str, str], float]:
        """Seconds per (worker, name, category) since the last call."""
        totals = dict(self._totals)
        self._totals.clear()
        return totals

    def spans(self) -> list[tuple[str, str, str, float, float]]:
        """The newest spans: worker, name, category, begin and end in seconds of `time.perf_counter()`."""
        return list(self._spans)

    def write(self, path: Path) -> None:
        """Write the newest spans as a trace-event file."""
        write_spans(self.spans(), path)


def write_spans(
    spans: list[tuple[str, str, str, float, float]], path: Path, notes: dict[str, object] | None = None
) -> None:
    """Write spans of any number of workers as one trace-event file; time starts with the first of them. notes: kept
    beside them in the file."""
    start = min((span[3] for span in spans), default=0.0)
    workers = {w: i for i, w in enumerate(sorted({span[0] for span in spans}))}
    events: list[dict] = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": w}} for w, i in workers.items()
    ]
    for worker, name, category, begin, end in spans:
        events.append(
            {
                "ph": "X",
                "name": name,
                "cat": category,
                "pid": 0,
                "tid": workers[worker],
                "ts": round((begin - start) * 1e6, 1),
                "dur": round((end - begin) * 1e6, 1),
            }
        )
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": notes or {}}))
