"""A recipe of the reasoning workload as typed records: parsed strictly, checked as a whole, before anything starts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from embodied.config import config
from embodied.errors import ConfigurationError
from embodied.learner.learner import LearnerConfig
from embodied.runs.options import CheckpointConfig, LoggerConfig, RunConfig
from embodied.scheduler.options import ClusterConfig, resolve_device
from embodied.training.recipe import SHARED_SECTIONS, TrainingGoal, parse_sections, read_run_config, refuse
from reasoning.generation.api import Sampling
from reasoning.generation.engines import EngineConfig
from reasoning.problems.config import ProblemsConfig
from reasoning.prompts import PromptConfig
from reasoning.rewards.reward import RewardConfig, check_reward
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
class GoalConfig(TrainingGoal):
    """When training is over: the accuracy of `in_a_row` evaluations at least `at_least`, or one of the limits.

    at_least null trains to the limit. responses: generated in training. minutes: of wall time.
    """

    responses: int = 100_000

    def __post_init__(self) -> None:
        TrainingGoal.__post_init__(self)
        if self.responses < 1:
            raise ValueError(f"responses is {self.responses}; it must be at least 1")
        if self.at_least is not None and not 0 < self.at_least <= 1:
            raise ValueError(f"at_least is {self.at_least}; it is a share of problems, above 0 and at most 1")

    @property
    def limit(self) -> int:
        """Responses."""
        return self.responses

    @property
    def measure(self) -> str:
        """Right answers to the held-out problems."""
        return "eval/accuracy"

    @property
    def wish(self) -> str:
        """A clause that says what has been reached."""
        return f"at least {self.at_least:.0%} of the held-out problems were right"


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
    **SHARED_SECTIONS,
}


def parse_recipe(name: str, values: dict[str, Any]) -> Recipe:
    """Plain nested values, as composed, to a recipe. Raises ConfigurationError listing every fault found."""
    workload = values.get("workload")
    if workload != WORKLOAD:
        raise ConfigurationError(
            f"recipe {name!r} has workload {workload!r}; one for language models says workload: {WORKLOAD}"
        )
    recipe = Recipe(name=name, **parse_sections(values, _SECTIONS, "workload"))
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
    limit = rollout.sampling.max_new_tokens
    for index, term in enumerate(recipe.reward.terms):
        if term.kind == "overlong" and term.options.get("limit") not in (None, limit):
            faults.append(
                f"reward.terms[{index}].options.limit is {term.options['limit']}, but responses end at "
                f"rollout.sampling.max_new_tokens={limit}; the penalty must end there too"
            )
    try:
        check_reward(recipe.reward)
    except ConfigurationError as error:
        faults.append(str(error))
    if recipe.critic.source is not None and not algorithm.needs_values:
        faults.append(
            f"critic.source is given, but algorithm.advantage={algorithm.advantage} has no critic; remove it, or take "
            "algorithm.advantage=gae"
        )
    if recipe.model.reference is not None and not algorithm.needs_reference:
        faults.append("model.reference is given, but algorithm.kl_coefficient is 0, so nothing looks at it; remove it")
    faults += _without_effect(recipe)
    refuse(recipe, faults)


def _without_effect(recipe: Recipe) -> list[str]:
    """Options that were given though nothing would follow them."""
    algorithm, critic, plain = recipe.algorithm, recipe.critic, AlgorithmConfig()
    rollout, layout = recipe.rollout, recipe.layout
    advantage = f"algorithm.advantage is {algorithm.advantage}"
    no_values = not algorithm.needs_values
    # option, what it is, what it is where nobody gave it, whether nothing follows it, why
    rules: list[tuple[str, object, object, bool, str]] = [
        ("learner.value_lr", recipe.learner.value_lr, None, True, "a critic has its own critic.learner.lr"),
        ("critic.learner.target_kl", critic.learner.target_kl, None, True, "that is learner.target_kl"),
        (
            "critic",
            dataclasses.replace(critic, source=None),
            CriticConfig(),
            no_values,
            f"{advantage}, without a critic",
        ),
        ("algorithm.gamma", algorithm.gamma, plain.gamma, algorithm.advantage in ("grpo", "rloo"), advantage),
        ("algorithm.gae_lambda", algorithm.gae_lambda, plain.gae_lambda, no_values, advantage),
        ("algorithm.normalize_advantages", algorithm.normalize_advantages, True, no_values, advantage),
        ("algorithm.deviation", algorithm.deviation, plain.deviation, algorithm.advantage != "grpo", advantage),
        (
            "algorithm.correction_cap",
            algorithm.correction_cap,
            plain.correction_cap,
            algorithm.engine_correction == "none",
            "algorithm.engine_correction is none",
        ),
        (
            "algorithm.truncated_penalty",
            algorithm.truncated_penalty,
            plain.truncated_penalty,
            algorithm.truncated != "penalise",
            "algorithm.truncated is not penalise",
        ),
        (
            "rollout.max_waves",
            rollout.max_waves,
            RolloutConfig().max_waves,
            algorithm.uniform_groups != "resample",
            "algorithm.uniform_groups is not resample",
        ),
        (
            "layout.row_tokens",
            layout.row_tokens,
            LayoutConfig().row_tokens,
            layout.rows != "packed",
            "layout.rows is not packed",
        ),
    ]
    return [
        f"{option} is given, but nothing would follow it: {why}; remove it"
        for option, value, default, ignored, why in rules
        if ignored and value != default
    ]


def load_run_recipe(folder: Path) -> Recipe:
    """The recipe of an existing run, from its config.yaml. Raises ConfigurationError when there is none."""
    return parse_recipe(*read_run_config(folder))
