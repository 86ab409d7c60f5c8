"""The reasoning workload: what the shared run loop has to know of a recipe for language models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import embodied
import reasoning
from embodied.errors import ConfigurationError
from embodied.runs.folder import RunFolder
from embodied.runs.progress import RunProgress
from embodied.scheduler.flow import Flow
from embodied.scheduler.launcher import Launcher
from embodied.scheduler.plan import Plan
from embodied.scheduler.planner.profile import FlowProfile
from embodied.training.placement import named_plan
from embodied.training.planning import check_suits
from embodied.training.progress import Progress
from embodied.training.workload import Farewell, Outcome, Workload
from reasoning.generation.engines import require_engine
from reasoning.models.loading import check_model, without_progress_bars
from reasoning.models.tiny import TINY
from reasoning.problems.record import Problem
from reasoning.rewards.reward import check_reward, try_functions
from reasoning.training.admission import check_room, check_suited
from reasoning.training.flow import reasoning_flow
from reasoning.training.problems import ProblemSets, gather
from reasoning.training.profiling import build_profile, measure
from reasoning.training.recipe import Recipe, parse_recipe
from reasoning.training.training_run import ReasoningRun, Responses

_NO_PROBLEMS = ProblemSets((), (), "")


class ReasoningWorkload(Workload):
    """A recipe for a language model. problems, reward: from Python, instead of the recipe's."""

    program: ClassVar[str] = "reasoning"
    progress: ClassVar[type[Progress]] = Responses
    places = ("model.source", "model.reference", "critic.source", "problems.files", "evaluation.problems.files")
    names = frozenset({TINY})
    # all of this package, and what it runs of the shared ones
    packages = (
        *(Path(embodied.__file__).parent / name for name in ("algorithms", "learner", "scheduler", "training")),
        Path(reasoning.__file__).parent,
    )

    def __init__(
        self, recipe: Recipe, problems: Sequence[Problem] | None = None, reward: Callable[..., Any] | None = None
    ) -> None:
        self.recipe: Recipe = recipe
        self.problems, self.reward = problems, reward
        self.given = frozenset(name for name in ("problems", "reward") if getattr(self, name) is not None)
        self.sets = _NO_PROBLEMS

    def placed(self) -> Plan:
        """See Workload; generation has the devices that act."""
        flow = reasoning_flow(self.recipe, _NO_PROBLEMS, self.recipe.device(), Path())
        plan = named_plan(flow, self.recipe.cluster, self.recipe.device(), acting="generate")
        _check_prompts(plan)
        return plan

    def flow(self, plan: Plan, folder: RunFolder | None = None) -> Flow:
        """See Workload."""
        alarms = Path() if folder is None else folder.path / "alarms"
        flow = reasoning_flow(self.recipe, self.sets, self.recipe.device(), alarms, self.reward)
        check_suits(plan, flow, self.recipe.cluster)
        _check_prompts(plan)
        return flow

    def costs(self) -> dict[str, Any]:
        """See Workload."""
        recipe, values = self.recipe, self.recipe.as_dict()
        names = ("model", "problems", "prompt", "reward", "algorithm", "learner", "critic", "layout", "rollout")
        given = {
            "problems": None if self.problems is None else [problem.key for problem in self.problems],
            "reward": getattr(self.reward, "__qualname__", type(self.reward).__qualname__),
        }
        cluster = {
            "device": recipe.device(),
            "threads": recipe.cluster.threads,
            "every_gpu": recipe.cluster.device == "auto",
        }
        return {"given": given, "cluster": cluster} | {name: values[name] for name in names}

    def measure(self, say: Callable[[str], None]) -> FlowProfile:
        """See Workload."""
        if self.sets is _NO_PROBLEMS:
            say(self.prepare())
        recipe = self.recipe
        timings = measure(recipe, self.sets, self.reward, say)
        flow = reasoning_flow(recipe, _NO_PROBLEMS, recipe.device(), Path())
        return build_profile(recipe, flow, timings)

    @property
    def per_iteration(self) -> int:
        """Responses, without dynamic sampling."""
        return self.recipe.responses_per_iteration

    @property
    def ahead(self) -> int:
        """See Workload. With extra prompts the staleness is that of responses that go on after an update, not of whole
        rollouts."""
        return 0 if self.recipe.rollout.extra_prompts else self.recipe.algorithm.max_staleness

    def admit(self) -> None:
        """See Workload: models, problems, rewards and the engine, without loading any weights."""
        recipe = self.recipe
        check_reward(recipe.reward, self.reward)
        require_engine(recipe.rollout.engine)
        without_progress_bars()
        model = check_model(recipe.model.source)
        others = (recipe.model.reference, recipe.critic.source if recipe.algorithm.needs_values else None)
        for source in others:
            if source is not None:
                check_model(source)
        self.prepare()
        check_room(recipe, model, self.sets)
        check_suited(recipe, self.sets, own_reward=self.reward is not None)
        try_functions(recipe.reward, self.reward)

    def prepare(self) -> str:
        """Load the problems, once."""
        without_progress_bars()
        if self.sets is _NO_PROBLEMS:
            self.sets = gather(self.recipe, self.problems)
        return f"problems: {self.sets.summary}"

    def begin(self, folder: RunFolder, system: Launcher, screen: RunProgress) -> ReasoningRun:
        """See Workload."""
        return ReasoningRun(self, self.recipe, self.sets, folder, system, screen)

    def finish(self, outcome: Outcome, say: Callable[[str], None]) -> None:
        """Nothing is left to do: every evaluation has written its page."""

    def farewell(self, outcome: Outcome) -> Farewell:
        """See Workload."""
        folder, result = outcome.folder, outcome.result
        before, after = result["before"]["eval/accuracy"], result["after"]["eval/accuracy"]
        problems = result["after"]["eval/problems"]
        model = Path(result["checkpoint"]) / "policy"
        files: dict[str, Path | None] = {
            "responses": folder.path / "evaluation" / "index.html",
            "model": model,
            "metrics": folder.metrics,
            "trace": folder.trace,
        }
        return Farewell(
            (f"Right answers to {problems:.0f} held-out problems: {before:.1%} -> {after:.1%}.",),
            files,
            (("reasoning eval ", folder.path), (f"reasoning train {self.recipe.name} model.source=", model)),
        )


def _check_prompts(plan: Plan) -> None:
    if len(plan.stages["prompts"].devices) > 1:
        raise ConfigurationError("one worker asks all problems, in one order; give stage prompts one device")


def parse_workload(name: str, values: dict[str, Any]) -> ReasoningWorkload:
    """Of a composed recipe. Raises ConfigurationError listing every fault found."""
    return ReasoningWorkload(parse_recipe(name, values))
