"""A finished run, as the Python faces give it back."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from embodied.runs.metrics import read_metrics


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """folder: its run folder. status: "reached" (its goal) or "limit". reason: in words. result: contents of
    result.json."""

    folder: Path
    status: str
    reason: str
    result: dict[str, Any]

    def metric(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """What the run counts (environment steps, responses), int64, and values, float64, of one metric over the run,
        e.g. "eval/return"; docs/metrics.md lists them. Empty for a metric that was never logged."""
        records = read_metrics(self.folder / "metrics.jsonl")
        found = [(r["env_steps"], r["metrics"][name]) for r in records if name in r["metrics"]]
        counts, values = zip(*found, strict=True) if found else ((), ())
        return np.array(counts, dtype=np.int64), np.array(values, dtype=np.float64)

    @property
    def checkpoint(self) -> Path:
        """The last checkpoint."""
        return Path(self.result["checkpoint"])
