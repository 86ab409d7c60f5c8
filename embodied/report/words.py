"""Numbers and outcomes in words: the sentences and formats that the report's pages share."""

from __future__ import annotations

import math
from typing import Any

from embodied.report.metrics import RETURN, SUCCESS, goal, has_success
from embodied.report.reader import RunFolder

STATUS_WORDS = {
    "reached": "Goal reached",
    "limit": "Stopped at its limit",
    "interrupted": "Interrupted",
    "failed": "Failed",
    "done": "Done",
    "open": "No result yet",
}


def count(number: float | None) -> str:
    """1234567 -> '1.23M'."""
    if number is None:
        return "–"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.0f}"


def duration(seconds: float | None) -> str:
    """151 -> '2 min 31 s'."""
    if seconds is None:
        return "–"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def percent(share: float | None) -> str:
    """0.953 -> '95%'; below 10% and above 99% with one more digit where it matters."""
    if share is None or not math.isfinite(share):
        return "–"
    value = 100 * share
    if 0 < value < 0.05:
        return "<0.1%"
    if 99.95 <= value < 100:
        return ">99.9%"
    digits = 1 if (0 < value < 10 or 99 < value < 100) and abs(value - round(value)) >= 0.05 else 0
    return f"{value:.{digits}f}%"


def number(value: float | None) -> str:
    """Four significant digits, without an exponent where that reads well."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}".replace("-", "−")
    return f"{value:.2e}".replace("-", "−")


def measured(results: Any, names: tuple[str, ...], suffix: str = "") -> float | None:
    """A number from an evaluation record whose keys may or may not begin with `eval/`."""
    if not isinstance(results, dict):
        return None
    for name in names:
        for key in (f"eval/{name}{suffix}", f"{name}{suffix}"):
            value = results.get(key)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return float(value)
    return None


def outcomes(run: RunFolder) -> dict[str, dict[str, Any]]:
    """The evaluations to tell of: before, after and best, or before and latest of a run without a result.

    What was not evaluated after training began has no `after`: the result of such a run repeats `before` there.
    """
    evaluated = [row for row in run.rows if any(key.startswith("eval/") for key in row.metrics)]
    trained = not evaluated or evaluated[-1].iteration > 0
    if run.status == "open":
        first = {"before": evaluated[0].metrics} if evaluated and evaluated[0].iteration == 0 else {}
        return first | ({"latest": evaluated[-1].metrics} if evaluated and trained else {})
    told = ("before", "after", "best") if trained else ("before",)
    return {when: found for when in told if isinstance(found := run.result.get(when), dict)}


def success_noun(run: RunFolder) -> str:
    """What a share of right outcomes is called."""
    return "Accuracy" if run.workload == "reasoning" else "Success"


def subject(run: RunFolder) -> str:
    """What was trained where, from the configuration: 'a mlp policy on maniskill/PushCube-v1 with ppo'."""

    def named(section: str, *keys: str) -> str | None:
        values = run.config.get(section)
        if isinstance(values, str):
            return values
        return next((str(values[k]) for k in keys if values.get(k)), None) if isinstance(values, dict) else None

    policy = named("policy", "name", "id", "kind")
    env = environment_id(run)
    algorithm = _algorithm(run.config.get("algorithm"))
    words = f"the {policy} policy" if policy else "a policy"
    if run.workload == "fit":
        data = run.config.get("data")
        folders = data.get("folders") if isinstance(data, dict) else None
        return f"{words} to " + (", ".join(map(str, folders)) if isinstance(folders, list) else "demonstrations")
    if model := named("model", "source"):
        words, env = f"the model {model}", named("problems", "family") or "the given problems"
    words += f" on {env}" if env else ""
    return words + (f" with {algorithm.upper()}" if algorithm else "")


def _algorithm(values: Any) -> str | None:
    """PPO, GRPO, ...: what the field calls the combination of an advantage and a loss."""
    if not isinstance(values, dict):
        return values if isinstance(values, str) else None
    if values.get("name"):
        return str(values["name"])
    advantage, loss = str(values.get("advantage") or ""), str(values.get("loss") or "")
    return (loss.split("_")[0] if advantage in ("", "gae") else advantage.replace("_", " ")) or None


def environment_id(run: RunFolder) -> str | None:
    env = run.config.get("env")
    if isinstance(env, dict):
        return next((str(env[key]) for key in ("id", "name") if env.get(key)), None)
    return env if isinstance(env, str) else None


def verdict(run: RunFolder) -> str:
    """Did it reach its goal, in one plain sentence."""
    took = f"after {duration(run.seconds)}" if run.seconds is not None else ""
    steps = f"{count(run.env_steps)} {run.unit}" if run.env_steps is not None else ""
    spent = " and ".join(filter(None, [took, steps]))
    match run.status:
        case "reached":
            return f"It reached its goal {spent}.".replace(" .", ".")
        case "limit":
            missed = " without reaching its goal" if goal(run) else ""
            return f"It stopped at its limit {spent}{missed}.".replace("  ", " ")
        case "interrupted":
            goes_on = "continues where it stopped" if run.checkpoints else "begins again, as no checkpoint was saved"
            return f"It was interrupted {spent}; resume {goes_on}.".replace(" ;", ";")
        case "done":
            return f"It is done {spent}.".replace(" .", ".")
        case "failed":
            return f"It failed {spent}.".replace(" .", ".")
        case "open":
            last = (
                f"The last record is iteration {run.rows[-1].iteration}, {spent}." if run.rows else "It has no records."
            )
            return f"It has not written a result: it is still running, or it was killed. {last}"
    return f"It ended with status {run.status!r} {spent}."


def change(run: RunFolder) -> str:
    """Before against after, in one sentence; empty if the run did not measure both."""
    found = outcomes(run)
    so_far = " so far" if "latest" in found else ""
    what, names, written = (success_noun(run), SUCCESS, percent) if has_success(run) else ("The return", RETURN, number)
    old, new = measured(found.get("before"), names), measured(found.get("latest") or found.get("after"), names)
    if old is None or new is None:
        return ""
    return f"{what} went from {written(old)} before training to {written(new)}{so_far}."


def as_sentence(text: str) -> str:
    """With a capital at its start, unless that is a name such as success_once, and a full stop at its end."""
    text = text.strip()
    is_name = "_" in text.partition(" ")[0]
    start = text[:1] if is_name else text[:1].upper()
    return start + text[1:] + ("" if not text or text.endswith((".", "!", "?", ")")) else ".")
