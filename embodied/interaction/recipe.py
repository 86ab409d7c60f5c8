"""A recipe as typed records: parsed strictly, checked as a whole, before anything is started."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from embodied.config import config
from embodied.errors import ConfigurationError
from embodied.interaction.algorithm import AlgorithmConfig, check_levels
from embodied.interaction.rollout_recorder import RecordConfig
from embodied.learner.learner import LearnerConfig
from embodied.runs.options import CheckpointConfig, LoggerConfig, RunConfig
from embodied.scheduler.options import ClusterConfig, resolve_device
from embodied.training.recipe import SHARED_SECTIONS, TrainingGoal, parse_sections, read_run_config, refuse
from envs import registry as env_registry
from envs.api import EnvConfig
from envs.slots import check_sizes
from policies import registry as policy_registry
from policies.api import PolicyConfig, Sampling


@config
class RolloutConfig:
    """decisions: per environment and iteration. start: whether a rollout goes on with the episodes under way or begins
    with fresh ones (groups and fixed-length recipes want fresh ones). forward_rows: rows of every acting forward pass;
    with a fixed number decisions are the same to the bit however environments are divided; None takes what comes."""

    decisions: int = 16
    forward_rows: int | None = 16
    start: Literal["continue", "fresh"] = "continue"

    def __post_init__(self) -> None:
        if self.decisions < 1:
            raise ValueError(f"decisions is {self.decisions}; it must be at least 1")
        if self.forward_rows is not None and self.forward_rows < 1:
            raise ValueError(f"forward_rows is {self.forward_rows}; it must be at least 1, or null")


@config
class EvaluationConfig:
    """every: iterations between evaluations; 0 evaluates only at the end. episodes: of one evaluation, always the same
    ones. sampling: how actions are drawn. seed: of the episodes' worlds, independent of the run's."""

    every: int = 10
    episodes: int = 64
    seed: int = 0
    sampling: Sampling = dataclasses.field(default_factory=lambda: Sampling(decode="greedy"))

    def __post_init__(self) -> None:
        if self.every < 0 or self.episodes < 1:
            raise ValueError(f"every is {self.every}, episodes {self.episodes}; expected every >= 0 and episodes >= 1")


@config
class GoalConfig(TrainingGoal):
    """When training is over: `metric` of `in_a_row` evaluations at least `at_least`, or one of the limits.

    at_least None trains to the limit. env_steps: control steps of all environments together. minutes: of wall time.
    """

    metric: Literal["success_once", "success_at_end", "return"] = "success_once"
    in_a_row: int = 2
    env_steps: int = 1_000_000

    def __post_init__(self) -> None:
        TrainingGoal.__post_init__(self)
        if self.env_steps < 1:
            raise ValueError(f"env_steps is {self.env_steps}; it must be at least 1")

    @property
    def limit(self) -> int:
        """Control steps."""
        return self.env_steps

    @property
    def measure(self) -> str:
        """The evaluations' name of `metric`."""
        return f"eval/{self.metric}"

    @property
    def wish(self) -> str:
        """A clause that says what has been reached."""
        return f"{self.metric} was at least {self.at_least:g}"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One run, completely described."""

    name: str
    description: str
    seed: int
    env: EnvConfig
    policy: PolicyConfig
    algorithm: AlgorithmConfig
    learner: LearnerConfig
    rollout: RolloutConfig
    evaluation: EvaluationConfig
    goal: GoalConfig
    record: RecordConfig
    checkpoint: CheckpointConfig
    cluster: ClusterConfig
    logger: LoggerConfig
    run: RunConfig

    @property
    def steps_per_iteration(self) -> int:
        """Control steps of one rollout, all environments together, if every action is executed."""
        return self.env.num_envs * self.rollout.decisions * self.policy.actions

    def device(self) -> str:
        """The torch device that `cluster.device` means here. Raises ConfigurationError when it does not exist."""
        return resolve_device(self.cluster.device)

    def as_dict(self) -> dict[str, Any]:
        """Plain nested values, complete with defaults; `parse_recipe` is its inverse."""
        return dataclasses.asdict(self)


def parse_recipe(name: str, values: dict[str, Any]) -> Recipe:
    """Plain nested values, as composed, to a recipe. Raises ConfigurationError listing every fault found."""
    recipe = Recipe(name=name, **parse_sections(values, _SECTIONS))
    check(recipe)
    return recipe


def _env_record(given: dict[str, Any]) -> type:
    return env_registry.config_class(_required(given, "env", "id", "e.g. maniskill/PushCube-v1"))


def _policy_record(given: dict[str, Any]) -> type:
    return policy_registry.config_class(_required(given, "policy", "name", "e.g. mlp"))


def _required(given: dict[str, Any], section: str, key: str, example: str) -> str:
    if not isinstance(given.get(key), str):
        raise ConfigurationError(f"Configuration key '{section}.{key}' must name the {section}, {example}.")
    return given[key]


_SECTIONS: dict[str, type | Callable[[dict[str, Any]], type]] = {
    "env": _env_record,
    "policy": _policy_record,
    "algorithm": AlgorithmConfig,
    "learner": LearnerConfig,
    "rollout": RolloutConfig,
    "evaluation": EvaluationConfig,
    "goal": GoalConfig,
    "record": RecordConfig,
    **SHARED_SECTIONS,
}


def rounded_away(policy: PolicyConfig) -> str | None:
    """Why the policy's weights would hardly learn, if so: updates are smaller than what bfloat16 rounds away."""
    if getattr(policy, "precision", "float32") != "bfloat16" or getattr(policy, "lora", None) is not None:
        return None
    return (
        "policy.precision is bfloat16 and policy.lora null: most updates would be rounded away. Use "
        "policy.precision=float32 with learner.precision=bfloat16, or adapters (policy.lora={rank: 32})"
    )


def cut_attempts(recipe: Recipe, longest: int) -> str | None:
    """What is wrong where rollouts end before the `longest` episodes (control steps) whose return is to be scored."""
    decisions, actions, advantage = recipe.rollout.decisions, recipe.policy.actions, recipe.algorithm.advantage
    if advantage == "gae" or decisions * actions >= longest:
        return None
    return (
        f"a rollout has {decisions} decisions of {actions} actions, {decisions * actions} steps, and an episode up to "
        f"{longest}: algorithm.advantage={advantage} would score attempts that did not end; "
        f"use rollout.decisions={-(-longest // actions)} or a shorter env.episode_steps"
    )


def check(recipe: Recipe) -> None:
    """Refuse impossible combinations, with the reason and the nearest thing that works. Raises ConfigurationError."""
    faults: list[str] = []
    try:
        check_levels(recipe.algorithm, recipe.policy.actions, recipe.policy.value)
    except ConfigurationError as error:
        faults.append(str(error))
    env, algorithm = recipe.env, recipe.algorithm
    try:
        check_sizes(env)
    except ConfigurationError as error:
        faults.append(f"env.{error}")
    else:
        size = env.num_envs // env.slots
        if size % algorithm.group_size:
            faults.append(_divide("env.num_envs / env.slots", size, "algorithm.group_size", algorithm.group_size))
    if algorithm.advantage != "gae" and (env.auto_reset != "disabled" or recipe.rollout.start != "fresh"):
        faults.append(
            f"algorithm.advantage={algorithm.advantage} scores one episode an environment and rollout; "
            "it needs env.auto_reset=disabled and rollout.start=fresh"
        )
    if algorithm.advantage == "gae" and env.auto_reset == "disabled" and recipe.rollout.start != "fresh":
        faults.append(
            "env.auto_reset=disabled leaves an environment that is done as it is, and with "
            f"rollout.start={recipe.rollout.start} nothing would ever start it again; use rollout.start=fresh"
        )
    if env.longest_episode is not None and (fault := cut_attempts(recipe, env.longest_episode)):
        faults.append(fault)
    if fault := rounded_away(recipe.policy):
        faults.append(fault)
    samples = recipe.env.num_envs * recipe.rollout.decisions
    batch = recipe.learner.global_batch
    if batch is not None and (batch > samples or samples % batch):
        faults.append(
            _divide(
                "env.num_envs * rollout.decisions", samples, "learner.global_batch", batch, vary="learner.global_batch"
            )
        )
    micro = recipe.learner.micro_batch
    if micro is not None and ((batch or samples) % micro or micro > (batch or samples)):
        faults.append(
            _divide("learner.global_batch", batch or samples, "learner.micro_batch", micro, vary="learner.micro_batch")
        )
    if recipe.record.dataset is not None and recipe.policy.actions > 1:
        faults.append(
            f"record.dataset needs every control step, but policy.chunk is {recipe.policy.actions} and the simulator "
            "shows the ends of chunks only; record afterwards instead: embodied eval RUN --dataset DIR"
        )
    if getattr(getattr(recipe.policy, "lora", None), "dropout", 0):
        faults.append(
            "policy.lora.dropout makes learning compute other probabilities than acting: the first update's ratio is "
            "not 1; set policy.lora.dropout=0 (it is for fitting to demonstrations)"
        )
    if getattr(recipe.policy, "head", "tokens") == "l1":
        faults.append("policy.head=l1 has no log-probabilities to learn from; train policy.head=tokens")
    refuse(recipe, faults)


def _divide(what: str, amount: int, by: str, divisor: int, vary: str | None = None) -> str:
    """A sentence on an indivisible amount, with the nearest values that work."""
    if vary is None:
        lower, upper = (
            amount // divisor * divisor if divisor > 0 else 0,
            (amount // divisor + 1) * divisor if divisor > 0 else 1,
        )
        near = ", ".join(str(v) for v in (lower, upper) if v > 0) or str(max(divisor, 1))
        return f"{what} is {amount}, which {by}={divisor} does not divide. Nearest valid values of {what}: {near}."
    if amount < 1 or divisor < 1:
        return f"{what} is {amount} and {vary} {divisor}; both must be at least 1."
    divisors = [d for d in range(1, amount + 1) if amount % d == 0]
    below = max((d for d in divisors if d <= divisor), default=None)
    above = min((d for d in divisors if d >= divisor), default=None)
    near = ", ".join(str(v) for v in dict.fromkeys([below, above]) if v is not None)
    return f"{what} is {amount}, which {by}={divisor} does not divide. Nearest valid values of {vary}: {near}."


def load_run_recipe(folder: Path) -> Recipe:
    """The recipe of an existing run, from its config.yaml. Raises ConfigurationError when there is none."""
    return parse_recipe(*read_run_config(folder))
