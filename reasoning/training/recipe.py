"""A recipe of the reasoning workload as typed records: parsed strictly, checked as a whole, before anything starts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import yaml

from embodied.config import config, parse
from embodied.errors import ConfigurationError, suggest
from embodied.learner.learner import LearnerConfig
from embodied.runs.options import CheckpointConfig, LoggerConfig, RunConfig
from embodied.scheduler.options import ClusterConfig, resolve_device
from reasoning.generation.api import Sampling
from reasoning.generation.engines import EngineConfig
from reasoning.problems.config import ProblemsConfig
from reasoning.prompts import PromptConfig
from reasoning.rewards.reward import RewardConfig
from reasoning.training.algorithm import AlgorithmConfig
from reasoning.training.critic_worker import CriticConfig
from reasoning.training.pieces import LayoutConfig

WORKLOAD = "reasoning"


@config
class ModelConfig:
    """source: `tiny` (made here), `bundled:NAME` (ships), a folder, or a hub id. reference: model that `kl` measures
    the distance from; null takes the source."""

    source: str
    reference: str | None = None


@config
class RolloutConfig:
    """prompts: problems of one iteration, each answered algorithm.group_size times. sampling: how tokens are drawn.
    slots: responses that one worker generates at once. engine: what generates. dtype: of generation; auto is float32
    on the CPU, bfloat16 on GPUs. extra_prompts: so many more are asked, and what is not finished once `prompts` are
    goes on in the next iteration; needs algorithm.max_staleness. max_waves: how often dynamic sampling asks again
    before it makes do."""

    prompts: int = 32
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    slots: int = 64
    engine: EngineConfig = dataclasses.field(default_factory=EngineConfig)
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    extra_prompts: int = 0
    max_waves: int = 4

    def __post_init__(self) -> None:
        for name in ("prompts", "slots", "max_waves"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.extra_prompts < 0:
            raise ValueError(f"extra_prompts is {self.extra_prompts}; it must be at least 0")
        sampling = self.sampling
        if sampling.decode != "sample" or sampling.top_p < 1 or sampling.top_k is not None:
            raise ValueError(
                "sampling for training must be decode: sample, top_p: 1 and top_k: null: with a filter, tokens that it "
                "left out by rounding have probability 0 and no importance ratio"
            )


@config
class EvaluationConfig:
    """every: iterations between evaluations; 0 evaluates only at the end. problems: held-out ones; null holds `size` of
    the training problems out (of a family: takes others). size: how many at most. attempts: tries at each.
    sampling: how tokens are drawn, independent of training's. seed: of the draws."""

    every: int = 10
    problems: ProblemsConfig | None = None
    size: int = 200
    attempts: int = 1
    sampling: Sampling = dataclasses.field(default_factory=lambda: Sampling(decode="greedy"))
    seed: int = 0

    def __post_init__(self) -> None:
        if self.every < 0 or self.size < 1 or self.attempts < 1:
            raise ValueError(
                f"every is {self.every}, size {self.size}, attempts {self.attempts}; expected at least 0, 1 and 1"
            )
        if self.sampling.decode == "greedy" and self.attempts > 1:
            raise ValueError(f"{self.attempts} attempts with decode: greedy are all the same; use decode: sample")


@config
class GoalConfig:
    """When training is over: the accuracy of `in_a_row` evaluations at least `at_least`, or one of the limits.

    at_least null trains to the limit. responses: generated in training. minutes: of wall time.
    """

    at_least: float | None = None
    in_a_row: int = 1
    responses: int = 100_000
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.in_a_row < 1 or self.responses < 1:
            raise ValueError(f"in_a_row is {self.in_a_row}, responses {self.responses}; both must be at least 1")
        if self.at_least is not None and not 0 < self.at_least <= 1:
            raise ValueError(f"at_least is {self.at_least}; it is a share of problems, above 0 and at most 1")
        if self.minutes is not None and self.minutes <= 0:
            raise ValueError(f"minutes is {self.minutes}; it must be above 0, or null for no limit")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One run, completely described."""

    name: str
    description: str
    seed: int
    model: ModelConfig
    problems: ProblemsConfig
    prompt: PromptConfig
    reward: RewardConfig
    algorithm: AlgorithmConfig
    learner: LearnerConfig
    critic: CriticConfig
    layout: LayoutConfig
    rollout: RolloutConfig
    evaluation: EvaluationConfig
    goal: GoalConfig
    checkpoint: CheckpointConfig
    cluster: ClusterConfig
    logger: LoggerConfig
    run: RunConfig

    @property
    def responses_per_iteration(self) -> int:
        """Of training, without dynamic sampling."""
        return self.rollout.prompts * self.algorithm.group_size

    def device(self) -> str:
        """The torch device that `cluster.device` means here. Raises ConfigurationError when it does not exist."""
        return resolve_device(self.cluster.device)

    def dtype(self, device: str) -> Literal["float32", "bfloat16"]:
        """Of generation on `device`."""
        if self.rollout.dtype != "auto":
            return self.rollout.dtype
        return "float32" if device.startswith("cpu") else "bfloat16"

    def as_dict(self) -> dict[str, Any]:
        """Plain nested values, complete with defaults; `parse_recipe` is its inverse."""
        return {"workload": WORKLOAD, **dataclasses.asdict(self)}


_SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "problems": ProblemsConfig,
    "prompt": PromptConfig,
    "reward": RewardConfig,
    "algorithm": AlgorithmConfig,
    "learner": LearnerConfig,
    "critic": CriticConfig,
    "layout": LayoutConfig,
    "rollout": RolloutConfig,
    "evaluation": EvaluationConfig,
    "goal": GoalConfig,
    "checkpoint": CheckpointConfig,
    "cluster": ClusterConfig,
    "logger": LoggerConfig,
    "run": RunConfig,
}


def parse_recipe(name: str, values: dict[str, Any]) -> Recipe:
    """Plain nested values, as composed, to a recipe. Raises ConfigurationError listing every fault found."""
    values = {"description": "", "seed": 0, **values}
    values.pop("name", None)
    workload = values.pop("workload", None)
    if workload != WORKLOAD:
        raise ConfigurationError(
            f"recipe {name!r} has workload {workload!r}; one for language models says workload: {WORKLOAD}"
        )
    known = ["description", "seed", "workload", *_SECTIONS]
    faults = [f"Unknown configuration key {k!r}. " + suggest(k, known, noun="keys") for k in values if k not in known]
    if not isinstance(values["seed"], int) or isinstance(values["seed"], bool) or values["seed"] < 0:
        faults.append(f"Configuration key 'seed' is {values['seed']!r}: it should be a whole number of at least 0.")
    parts: dict[str, Any] = {}
    for section, record in _SECTIONS.items():
        given = values.get(section)
        given = {} if given is None else given
        if not isinstance(given, dict):
            faults.append(f"Configuration key {section!r} is {given!r}: it should be a group of keys.")
            continue
        try:
            parts[section] = parse(record, given, at=section)
        except ConfigurationError as error:
            faults.append(str(error))
    if faults:
        raise ConfigurationError("\n".join(faults))
    recipe = Recipe(name=name, description=str(values["description"]), seed=values["seed"], **parts)
    check(recipe)
    return recipe


def check(recipe: Recipe) -> None:
    """Refuse impossible combinations, with the reason and the nearest thing that works. Raises ConfigurationError."""
    algorithm, rollout = recipe.algorithm, recipe.rollout
    faults: list[str] = []
    for where, options in (("learner", recipe.learner), ("critic.learner", recipe.critic.learner)):
        if options.micro_batch is not None:
            faults.append(
                f"{where}.micro_batch is {options.micro_batch}, but responses differ in length: forward passes are cut "
                "by tokens; use layout.micro_tokens"
            )
        batch = options.global_batch
        if batch is not None and batch > recipe.responses_per_iteration:
            faults.append(
                f"{where}.global_batch is {batch}, more than the {recipe.responses_per_iteration} responses of an "
                "iteration (rollout.prompts x algorithm.group_size); null takes all of them"
            )
    if rollout.extra_prompts and not algorithm.max_staleness:
        faults.append(
            f"rollout.extra_prompts is {rollout.extra_prompts}: their responses go on after an update, with newer "
            "weights; that needs algorithm.max_staleness of at least 1"
        )
    if recipe.goal.at_least is not None and recipe.evaluation.every == 0:
        faults.append(
            "goal.at_least is looked up in evaluations, but evaluation.every=0 makes none; set it to 1 or more"
        )
    limit = rollout.sampling.max_new_tokens
    for index, term in enumerate(recipe.reward.terms):
        if term.kind == "overlong" and term.options.get("limit") not in (None, limit):
            faults.append(
                f"reward.terms[{index}].options.limit is {term.options['limit']}, but responses end at "
                f"rollout.sampling.max_new_tokens={limit}; the penalty must end there too"
            )
    if recipe.model.reference is not None and not algorithm.needs_reference:
        faults.append("model.reference is given, but algorithm.kl_coefficient is 0, so nothing looks at it; remove it")
    try:
        recipe.device()
    except ConfigurationError as error:
        faults.append(str(error))
    if faults:
        raise ConfigurationError("\n".join(faults))


def load_run_recipe(folder: Path) -> Recipe:
    """The recipe of an existing run, from its config.yaml. Raises ConfigurationError when there is none."""
    path = folder / "config.yaml"
    try:
        values = yaml.safe_load(path.read_text())
        return parse_recipe(str(values["name"]), values)
    except (OSError, yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} is not the configuration of a run: {type(error).__name__}: {error}") from None
