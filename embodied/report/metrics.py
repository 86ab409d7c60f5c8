"""What the report shows of a run's metrics: named series, learning health, and where the time went.

Names are looked up by the last part of a key ("policy/approx_kl" is a KL), so that every algorithm's metrics find
their place; the glossary says in one sentence what each means.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable

from embodied.report.reader import Row, RunFolder

MOST_POINTS = 240  # a longer series is drawn as means over windows
_TOTALS = {"iteration", "predicted", "total", "wall"}
SUCCESS = ("success_once", "success", "success_rate", "success_at_end", "accuracy")
RETURN = ("return", "episode_return", "return_mean")


@dataclasses.dataclass(frozen=True)
class Series:
    """Values over environment steps; `low` and `high` are interval bounds where the run recorded them."""

    key: str
    steps: list[float]
    values: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    window: int = 1  # how many records one point is the mean of


@dataclasses.dataclass(frozen=True)
class Sign:
    """One quantity that tells whether learning is healthy: its name, its keys, its meaning, and when to look closer."""

    title: str
    keys: tuple[str, ...]
    meaning: str
    concern: Callable[[list[float]], str | None]


@dataclasses.dataclass(frozen=True)
class StageTime:
    name: str
    seconds: float
    share: float


def _recent(values: list[float]) -> float:
    tail = values[-max(1, len(values) // 10) :]
    return _median(tail)


def _above(limit: float, text: str) -> Callable[[list[float]], str | None]:
    return lambda values: text if _recent(values) > limit else None


def _entropy_concern(values: list[float]) -> str | None:
    if values[0] > 0 and _recent(values) < 0.05 * values[0]:
        return "It has fallen below a twentieth of its start: the policy hardly explores any more."
    return None


SIGNS = (
    Sign(
        "KL divergence",
        ("approx_kl", "kl", "kl_old", "policy_kl"),
        "How far one update moved the policy from the one that gathered the data.",
        _above(0.1, "Above 0.1: updates are large; a lower learning rate or fewer epochs would steady them."),
    ),
    Sign(
        "Clip fraction",
        ("clip_fraction", "clipfrac", "clip_frac"),
        "Share of actions whose probability changed so much that PPO stopped pushing them.",
        _above(0.4, "Above 40%: much of the gathered data no longer teaches anything."),
    ),
    Sign(
        "Entropy",
        ("entropy", "entropy_mean"),
        "How undecided the policy is; it should fall as the policy learns, but not collapse at once.",
        _entropy_concern,
    ),
    Sign(
        "Explained variance",
        ("explained_variance",),
        "How much of the returns the critic predicts: 1 is all, 0 is no better than their mean.",
        lambda values: "Below 0: the critic is worse than a constant." if _recent(values) < 0 else None,
    ),
    Sign(
        "Gradient norm",
        ("grad_norm", "gradient_norm"),
        "Length of the gradient before clipping; sudden jumps mean unstable updates.",
        lambda values: (
            "The last values are over ten times the median." if _recent(values) > 10 * _median(values) > 0 else None
        ),
    ),
    Sign(
        "Value loss",
        ("value/loss", "value_loss", "critic_loss", "loss/value", "loss/critic"),
        "The critic's error; it may rise while returns grow, and should settle in the end.",
        lambda values: None,
    ),
)


def series(rows: Iterable[Row], key: str) -> Series | None:
    """The records of `key`, with its interval if `<key>_low` and `<key>_high` were recorded; None without records."""
    found = [row for row in rows if key in row.metrics]
    if not found:
        return None
    bounds = [f"{key}_low", f"{key}_high"]
    whole = all(bound in row.metrics for row in found for bound in bounds)
    low, high = ([row.metrics[b] for row in found] for b in bounds) if whole else (None, None)
    return Series(key, [float(row.env_steps) for row in found], [row.metrics[key] for row in found], low, high)


def first_series(rows: list[Row], group: str, names: Iterable[str]) -> Series | None:
    """The first of `<group>/<name>` that the run recorded."""
    return next((s for name in names if (s := series(rows, f"{group}/{name}"))), None)


def least(line: Series) -> float:
    """The least finite value; not a number if there is none."""
    return min(filter(math.isfinite, line.values), default=math.nan)


def most(line: Series) -> float:
    """The greatest finite value; not a number if there is none."""
    return max(filter(math.isfinite, line.values), default=math.nan)


def keys_of(rows: Iterable[Row]) -> list[str]:
    """Every metric's key, in order of first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row.metrics))


def find_sign(rows: list[Row], sign: Sign) -> Series | None:
    """The series that `sign` is about: a key that equals or ends with one of its names, evaluation left out."""
    keys = [key for key in keys_of(rows) if not key.startswith(("eval/", "time/"))]
    for name in sign.keys:
        for key in keys:
            if key == name or key.endswith(f"/{name}"):
                return series(rows, key)
    return None


def thinned(line: Series) -> Series:
    """At most MOST_POINTS points: means over equal windows of consecutive records. Evaluations are left as they are."""
    count = len(line.values)
    if count <= MOST_POINTS or line.low is not None:
        return line
    window = math.ceil(count / MOST_POINTS)

    def means(values: list[float]) -> list[float]:
        return [sum(part) / len(part) for i in range(0, count, window) if (part := values[i : i + window])]

    return dataclasses.replace(line, steps=means(line.steps), values=means(line.values), window=window)


def has_success(run: RunFolder) -> bool:
    """Whether success means something here: it is the run's goal, or some episode succeeded.

    An environment without a notion of success records zero throughout.
    """
    rates = [v for row in run.rows for key, v in row.metrics.items() if key.split("/")[-1] in SUCCESS]
    wanted = run.config.get("goal")
    metric = wanted.get("metric", "accuracy") if isinstance(wanted, dict) else None
    return any(rates) or metric is None or metric in SUCCESS


def goal(run: RunFolder) -> tuple[str, float] | None:
    """(metric, least value) that the configuration's `goal` asks of an evaluation."""
    values = run.config.get("goal")
    if not isinstance(values, dict) or not isinstance(values.get("at_least"), (int, float)):
        return None
    return str(values.get("metric", "accuracy")), float(values["at_least"])


def phase_times(run: RunFolder) -> list[StageTime]:
    """Seconds of each phase of an iteration (`time/rollout_s`) over the run; what no phase claims is `other`."""
    totals = {name: seconds for name, seconds in _time_totals(run).items() if not _is_operation(run, name)}
    if not totals:
        return []
    unclaimed = (run.seconds or 0.0) - sum(totals.values())
    if unclaimed > 0.01 * (run.seconds or 0.0):
        totals["other"] = totals.get("other", 0.0) + unclaimed
    whole = sum(totals.values()) or 1.0
    return _longest_first(totals, whole)


def operation_times(run: RunFolder) -> list[StageTime]:
    """Busy seconds of each operation of a stage's workers (`time/env_simulate_s`: stage env), as shares of the run.

    They lie inside the phases, and add up to more than the run where workers overlap.
    """
    totals = {name: seconds for name, seconds in _time_totals(run).items() if _is_operation(run, name)}
    return _longest_first(totals, run.seconds or sum(totals.values()) or 1.0)


def _is_operation(run: RunFolder, name: str) -> bool:
    stages = run.plan.get("stages")
    return isinstance(stages, dict) and any(name.startswith(f"{stage}_") for stage in stages)


def _time_totals(run: RunFolder) -> dict[str, float]:
    totals: dict[str, float] = {}
    for row in run.rows:
        for key, value in row.metrics.items():
            name = key.removeprefix("time/").removesuffix("_s")
            if key.startswith("time/") and key.endswith("_s") and name not in _TOTALS and math.isfinite(value):
                totals[name] = totals.get(name, 0.0) + value
    return totals


def _longest_first(totals: dict[str, float], whole: float) -> list[StageTime]:
    ordered = sorted(totals.items(), key=lambda item: (item[0] == "other", -item[1]))
    return [StageTime(name.replace("_", " "), seconds, seconds / whole) for name, seconds in ordered]


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
