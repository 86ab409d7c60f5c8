"""What a run of the embodied flow collects, and how it is evaluated."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from embodied.errors import ConfigurationError
from embodied.interaction.assignments import evaluation_assignments, left_out
from embodied.interaction.evaluation import EvaluationResult, episode_metrics
from embodied.interaction.messages import Rollout
from embodied.interaction.recipe import Recipe, cut_attempts
from embodied.runs.folder import RunFolder
from embodied.runs.progress import RunProgress
from embodied.scheduler.launcher import Launcher
from embodied.training.progress import Progress
from embodied.training.run import Collection, Evaluation, TrainingRun
from embodied.training.workload import Workload
from envs.api import EnvSpec
from policies.vla.prompt import prompts_of


@dataclasses.dataclass
class Steps(Progress):
    """env_steps: control steps within episodes, of all environments together."""

    counted: ClassVar[str] = "env_steps"
    unit: ClassVar[str] = "environment steps"

    env_steps: int = 0


class EmbodiedRun(TrainingRun):
    """One run under a launcher: the policy acts in simulators."""

    def __init__(
        self, workload: Workload, recipe: Recipe, folder: RunFolder, system: Launcher, screen: RunProgress
    ) -> None:
        super().__init__(workload, folder, system, screen)
        self.recipe = recipe
        self.spec: EnvSpec = system.announced["env"]
        self.env, self.policy = system.group("env"), system.group("policy")

    async def start(self) -> None:
        """As every run, but refuse a goal that this environment cannot have, and attempts that a rollout would cut."""
        if not self.spec.has_success and self.recipe.goal.metric != "return":
            raise ConfigurationError(
                f"{self.spec.id} knows no success, so goal.metric={self.recipe.goal.metric} never comes; "
                "use goal.metric=return"
            )
        longest = self.recipe.env.longest_episode
        if fault := cut_attempts(self.recipe, self.spec.episode_steps if longest is None else longest):
            raise ConfigurationError(fault)
        prompts = prompts_of(dataclasses.asdict(self.recipe.policy), self.spec.instructions)
        for prompt in prompts[:1]:
            self.screen.say(f"the policy reads {prompt!r}" + (f" and {len(prompts) - 1} more" if prompts[1:] else ""))
        await super().start()

    async def collect(self, iteration: int) -> Collection:
        """Let the policy act for one rollout."""
        recipe = self.recipe
        rollout = Rollout(iteration, recipe.rollout.decisions, "act", recipe.algorithm.sampling)
        async with self.system.turn("env", "policy"):
            finished, _ = await self.system.together(
                self.env.call("collect", rollout), self.policy.call("act", rollout)
            )
        episodes = tuple(episode for part in finished for episode in part.episodes)
        return Collection(sum(part.steps for part in finished), episode_metrics(episodes, self.spec.has_success))

    async def evaluate(self) -> Evaluation:
        """Play the evaluation episodes with the current weights; evaluation.json says how each of the latest ended."""
        options = self.recipe.evaluation
        assignments = evaluation_assignments(options.seed, options.episodes, self.spec)
        if uneven := left_out(options.episodes, self.spec):
            self.warn((f"evaluation.episodes: {uneven}",))
        rollout = Rollout(0, 0, "evaluate", options.sampling)
        async with self.system.turn("env", "policy"):
            episodes, _ = await self.system.together(
                self.env.call("evaluate", assignments), self.policy.call("act", rollout)
            )
        result = EvaluationResult(tuple(episode for part in episodes for episode in part))
        self.folder.write_evaluation(result.table())
        metrics = result.metrics(self.spec.has_success)
        rate = ""
        if self.spec.has_success:
            low, high = metrics["eval/success_once_low"], metrics["eval/success_once_high"]
            rate = f"success {result.success_once:.0%} (95 % interval {low:.0%} to {high:.0%}), "
        return Evaluation(metrics, f"{rate}return {result.mean_return:.2f}, {len(result.episodes)} episodes")

    def status(self, metrics: dict[str, float]) -> str:
        """How training episodes went, or what is known if none ended."""
        if self.spec.has_success and "train/success_once" in metrics:
            return f"training success {metrics['train/success_once']:.0%}"
        if "train/return" in metrics:
            return f"training return {metrics['train/return']:.2f}"
        return f"KL {metrics.get('policy/approx_kl', 0.0):.4f}"
