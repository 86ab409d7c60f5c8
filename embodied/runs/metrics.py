"""The run's metrics: one JSON line an iteration, the same to TensorBoard, and averages that respect counts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from embodied.runs.files import replace


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """95 % confidence interval of a success probability (Wilson 1927); (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    z = 1.959963984540054
    rate = successes / trials
    centre = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    # at the ends the formula gives 0 and 1 but for rounding
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == trials else centre + half
    return low, high


class MetricsLog:
    """Appends to metrics.jsonl and, if asked, to TensorBoard.

    after: keep the lines up to that iteration and drop later ones: what a resumed run will compute again.
    """

    def __init__(self, path: Path, tensorboard: Path | None, *, after: int | None = None) -> None:
        self._path = path
        kept: list[str] = []
        if after is not None and path.exists():
            kept = [line for line in path.read_text().splitlines() if _iteration(line) <= after]
            replace(path, "".join(line + "\n" for line in kept))
        self._file = path.open("a")
        self._writer = None
        if tensorboard is not None:
            from torch.utils.tensorboard import SummaryWriter

            # TensorBoard counts what `write` logs by, not iterations
            purge = None if after is None else 1 + max((json.loads(line)["env_steps"] for line in kept), default=-1)
            self._writer = SummaryWriter(str(tensorboard), purge_step=purge)

    def write(self, iteration: int, env_steps: int, seconds: float, metrics: dict[str, float]) -> None:
        """One line; complete on disk when this returns."""
        record = {"iteration": iteration, "env_steps": env_steps, "seconds": round(seconds, 3), "metrics": metrics}
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        if self._writer is not None:
            for name, value in metrics.items():
                self._writer.add_scalar(name, value, env_steps)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Flush and close."""
        self._file.close()
        if self._writer is not None:
            self._writer.close()


def _iteration(line: str) -> float:
    try:
        return json.loads(line)["iteration"]
    except (json.JSONDecodeError, KeyError):
        return math.inf  # a line cut short by a kill


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of metrics.jsonl; a half-written last line is left out."""
    return [json.loads(line) for line in path.read_text().splitlines() if _iteration(line) < math.inf]
