"""How a policy fares where it was not trained: one evaluation a condition, in one table beside the condition it knows.

A condition is a perturbation of LIBERO at a severity, or a split of a task that has them (PutOnPlate). All conditions
play the same assignments, so that a row differs from the first in what its name says and in nothing else.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from embodied.config import config, parse
from embodied.errors import ConfigurationError, RefusedInput, suggest
from embodied.interaction.evaluate import evaluate_policy
from embodied.interaction.evaluation import EvaluationResult
from embodied.interaction.recipe import EvaluationConfig
from embodied.runs.metrics import wilson_interval
from envs.api import EnvConfig
from envs.libero.magnitudes import KINDS, MAX_SEVERITY
from envs.maniskill.put_on_plate.things import SPLITS
from envs.maniskill.splits import RL4VLA as RL4VLA_SPLITS
from envs.maniskill.splits import splits_of

ALL = "all"
_USUAL_SPLIT = "in"
_SPLITS = (*SPLITS, *RL4VLA_SPLITS[1:])  # of every task that has some


@config
class RobustnessConfig:
    """perturb: kinds of perturbation, each applied by itself (environments with an option `perturb`). severity: at
    which severities, 1 to 5. splits: what may differ from training (environments with an option `split`); `all` alone
    means every one that the environment has."""

    perturb: tuple[str, ...] = ()
    severity: tuple[int, ...] = (1, 3, 5)
    splits: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, chosen, valid in (("perturb", self.perturb, KINDS), ("splits", self.splits, _SPLITS)):
            for item in () if name == "splits" and chosen == (ALL,) else chosen:
                if item not in valid:
                    raise ValueError(f"{name} has {item!r}. {suggest(item, (*valid, ALL), noun=name)}")
            if len(set(chosen)) != len(chosen):
                raise ValueError(f"{name} names one twice: {', '.join(chosen)}")
        for level in self.severity:
            if not 1 <= level <= MAX_SEVERITY:
                raise ValueError(f"severity has {level}; a severity is between 1 and {MAX_SEVERITY}")
        if not self.severity:
            raise ValueError(f"severity is empty; name some of 1 to {MAX_SEVERITY}")


@dataclasses.dataclass(frozen=True)
class Condition:
    """One row of the table. severity: None where the condition has none. env: the environment under it."""

    name: str
    severity: int | None
    env: EnvConfig


def take_robustness(args: argparse.Namespace) -> RobustnessConfig:
    """The `eval.key=value` words of `args.rest`, taken out of it: each value a list or a single one, `all` for every
    name there is. Raises ConfigurationError, and RefusedInput for a value that YAML cannot read."""
    words = [word for word in args.rest if word.startswith("eval.") and "=" in word]
    args.rest = [word for word in args.rest if word not in words]
    listed: dict[str, Any] = {}
    for word in words:
        key, text = word.removeprefix("eval.").split("=", 1)
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise RefusedInput(f"{word!r}: {text!r} is not a value that YAML can read") from None
        if value is None:
            raise RefusedInput(f"{word!r} names nothing; give a name or a list, e.g. eval.perturb=[camera,light]")
        items = value if isinstance(value, list) else [value]
        # what splits there are depends on the environment
        names = {"perturb": KINDS, "severity": range(1, MAX_SEVERITY + 1)}.get(key, ())
        listed[key] = list(names) if items == [ALL] and names else items
    return parse(RobustnessConfig, listed, at="eval")


def conditions(env: EnvConfig, options: RobustnessConfig) -> tuple[Condition, list[Condition]]:
    """What the others are compared with, and the others: perturbations by severity, then splits.

    Raises ConfigurationError for an environment that has no such conditions.
    """
    known, splits = {field.name for field in dataclasses.fields(env)}, ()
    for wanted, needed, who in (
        (options.perturb, "perturb", "libero/... environments have"),
        (options.splits, "split", "maniskill/PutOnPlate-v1 has"),
    ):
        if wanted and needed not in known:
            key = "perturb" if needed == "perturb" else "splits"
            raise ConfigurationError(f"eval.{key} is asked of {env.id}, which has no option env.{needed}; {who} it.")
    if options.splits:
        has = splits_of(env.id.removeprefix("maniskill/"))
        splits = has if options.splits == (ALL,) else options.splits
        unknown = [split for split in splits if split not in has]
        if unknown:
            raise ConfigurationError(
                f"eval.splits names {', '.join(unknown)}, which {env.id} has not; it has: {', '.join(has) or 'none'}."
            )
        env = dataclasses.replace(env, split=_USUAL_SPLIT)
    others = [
        Condition(kind, severity, dataclasses.replace(env, perturb={**env.perturb, kind: severity}))
        for kind in options.perturb
        for severity in options.severity
    ]
    others += [
        Condition(split, None, dataclasses.replace(env, split=split)) for split in splits if split != _USUAL_SPLIT
    ]
    return Condition(_USUAL_SPLIT if options.splits else "none", None, env), others


def evaluate_conditions(
    policy: Path,
    chosen: Sequence[Condition],
    options: EvaluationConfig,
    *,
    device: str = "cpu",
) -> Iterator[tuple[Condition, EvaluationResult]]:
    """Play every condition, one after the other. Raises EmbodiedError."""
    for condition in chosen:
        result, _ = evaluate_policy(policy, condition.env, options, device=device)
        yield condition, result


def table_of(
    usual: tuple[Condition, EvaluationResult], others: Sequence[tuple[Condition, EvaluationResult]]
) -> list[dict[str, Any]]:
    """One plain record a condition, the usual one first: successes, rate, Wilson's 95 % interval, change of the rate
    against the usual condition, mean length and return, and every episode."""
    base = usual[1].success_once
    rows = []
    for condition, result in (usual, *others):
        successes, episodes = sum(e.success_once for e in result.episodes), len(result.episodes)
        rows.append(
            {
                "condition": condition.name,
                "severity": condition.severity,
                "successes": successes,
                "episodes": episodes,
                "rate": successes / episodes,
                "interval": wilson_interval(successes, episodes),
                "change": successes / episodes - base,
                "length": result.mean_length,
                "return": result.mean_return,
                "played": result.table(),
            }
        )
    return rows


def as_text(rows: Sequence[dict[str, Any]]) -> str:
    """The table for a terminal: a line a condition."""
    lines = [("condition", "severity", "success", "rate", "95 % interval", "change")]
    for row in rows:
        low, high = row["interval"]
        lines.append(
            (
                row["condition"],
                "-" if row["severity"] is None else str(row["severity"]),
                f"{row['successes']}/{row['episodes']}",
                f"{row['rate']:.1%}",
                f"{low:.1%} to {high:.1%}",
                f"{row['change']:+.1%}" if row is not rows[0] else "",
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)).rstrip() for line in lines)
