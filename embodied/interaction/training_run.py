"""One training run under a launcher: what each event of it asks of which workers, and how far it is."""

from __future__ import annotations

import dataclasses
import time

from embodied.errors import CheckpointError, ConfigurationError
from embodied.interaction.assignments import evaluation_assignments
from embodied.interaction.evaluation import EvaluationResult
from embodied.interaction.learner_worker import Update
from embodied.interaction.messages import Collected, Rollout
from embodied.interaction.recipe import Recipe
from embodied.runs.checkpoint import Checkpoint, CheckpointStore
from embodied.runs.folder import RunFolder
from embodied.runs.progress import RunProgress
from embodied.scheduler.launcher import Launcher
from envs.api import EnvSpec

_WARNING_REST = 25


@dataclasses.dataclass
class Progress:
    """How far a run is: what a checkpoint keeps beside the workers' state."""

    iteration: int = 0  # completed iterations
    env_steps: int = 0
    seconds: float = 0.0
    goals_in_a_row: int = 0
    before: dict[str, float] = dataclasses.field(default_factory=dict)
    best: dict[str, float] = dataclasses.field(default_factory=dict)
    last: dict[str, float] = dataclasses.field(default_factory=dict)


class TrainingRun:
    """One run under a launcher."""

    def __init__(self, recipe: Recipe, folder: RunFolder, system: Launcher, screen: RunProgress) -> None:
        self.recipe, self.folder, self.system, self.screen = recipe, folder, system, screen
        self.spec: EnvSpec = system.announced["env"]
        self.env = system.group("env")
        self.policy = system.group("policy")
        self.learner = system.group("learner")
        self.store = CheckpointStore(folder.checkpoints, keep=recipe.checkpoint.keep)
        self.progress = Progress()
        self._clock = time.monotonic()
        self._lap = self._clock
        self._warned: dict[str, int] = {}
        self.version = 0  # of the learner's weights

    async def start(self) -> None:
        """Refuse a goal that this environment cannot have, fit the devices' memory, and share the first weights."""
        if not self.spec.has_success and self.recipe.goal.metric != "return":
            raise ConfigurationError(
                f"{self.spec.id} knows no success, so goal.metric={self.recipe.goal.metric} never comes; "
                "use goal.metric=return"
            )
        memory = self.recipe.cluster.memory_mib
        swapping = await self.system.set_residency(None if memory is None else int(memory * 2**20))
        if swapping:
            self.screen.say(f"memory: {', '.join(swapping)} leave their device between turns")
        self.folder.plan.write_text(self.system.plan.to_json())
        await self.publish()

    async def collect(self, iteration: int) -> Collected:
        """Let the policy act for one rollout."""
        recipe = self.recipe
        rollout = Rollout(iteration, recipe.rollout.decisions, "act", recipe.algorithm.sampling)
        async with self.system.turn("env", "policy"):
            finished, _ = await self.system.together(
                self.env.call("collect", rollout), self.policy.call("act", rollout)
            )
        episodes = tuple(episode for part in finished for episode in part.episodes)
        return Collected(episodes, sum(part.steps for part in finished))

    async def learn(self, iteration: int) -> Update:
        """Improve the policy with what was collected."""
        async with self.system.turn("learner"):
            update: Update = (await self.learner.call("learn", iteration))[0]
        self.version = update.version
        return update

    async def publish(self) -> None:
        """Let the policy act with the learner's weights."""
        async with self.system.turn("policy", "learner"):
            await self.system.sync_weights(self.version)

    def due(self) -> int:
        """How many iterations may pass before the next evaluation, checkpoint or limit has its turn."""
        done, recipe = self.progress.iteration, self.recipe
        ahead = [every - done % every for every in (recipe.evaluation.every, recipe.checkpoint.every) if every]
        left = recipe.goal.env_steps - self.progress.env_steps
        return max(1, min([*ahead, -(-left // recipe.steps_per_iteration)]))

    async def evaluate(self) -> EvaluationResult:
        """Play the evaluation episodes with the current weights."""
        options = self.recipe.evaluation
        assignments = evaluation_assignments(options.seed, options.episodes, self.spec)
        rollout = Rollout(0, 0, "evaluate", options.sampling)
        async with self.system.turn("env", "policy"):
            episodes, _ = await self.system.together(
                self.env.call("evaluate", assignments), self.policy.call("act", rollout)
            )
        return EvaluationResult(tuple(episode for part in episodes for episode in part))

    async def save(self) -> Checkpoint:
        """Write a checkpoint of everything."""
        self._tick()
        async with self.system.turn("learner"):
            workers = {name: await group.call("state_dict") for name, group in self.system.groups.items()}
            state = {"progress": dataclasses.asdict(self.progress), "workers": workers}
            with self.store.writing(self.progress.iteration, state) as folder:
                await self.learner.call("export", folder / "policy")
        return Checkpoint(self.store.path(self.progress.iteration), self.progress.iteration)

    async def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        state = checkpoint.state()
        self.progress = Progress(**state["progress"])
        for name, parts in state["workers"].items():
            group = self.system.group(name)
            if len(parts) != group.size:
                raise CheckpointError(
                    f"the checkpoint was written by {len(parts)} {name} worker(s), the plan has {group.size}; "
                    "resume with the run's own plan"
                )
            async with self.system.turn(name):
                await group.scatter("load_state_dict", parts)
        self.version = state["workers"]["learner"][0]["version"]
        await self.publish()

    def note_evaluation(self, result: EvaluationResult) -> None:
        """Remember the best, the last, and how often in a row the goal was met."""
        metrics = result.metrics(self.spec.has_success)
        goal = self.recipe.goal
        value = metrics[f"eval/{goal.metric}"]
        progress = self.progress
        progress.last = metrics
        progress.before = progress.before or metrics
        if not progress.best or value > progress.best[f"eval/{goal.metric}"]:
            progress.best = metrics | {"iteration": float(progress.iteration), "env_steps": float(progress.env_steps)}
        met = goal.at_least is not None and value >= goal.at_least
        progress.goals_in_a_row = progress.goals_in_a_row + 1 if met else 0
        rate = ""
        if self.spec.has_success:
            low, high = metrics["eval/success_once_low"], metrics["eval/success_once_high"]
            rate = f"success {result.success_once:.0%} (95 % interval {low:.0%} to {high:.0%}), "
        self.screen.say(
            f"  evaluation after {progress.env_steps:,} steps: {rate}return {result.mean_return:.2f}, "
            f"{len(result.episodes)} episodes" + ("  <- goal met" if met else "")
        )

    def warn(self, warnings: tuple[str, ...]) -> None:
        """Say each warning, but one of the same beginning at most every `_WARNING_REST` iterations."""
        for warning in warnings:
            key = warning[:20]
            last = self._warned.get(key)
            if last is None or self.progress.iteration - last >= _WARNING_REST:
                self._warned[key] = self.progress.iteration
                self.screen.say(f"  warning: {warning}")

    def over(self) -> tuple[str, str] | None:
        """Status and reason if training is over."""
        goal, progress = self.recipe.goal, self.progress
        if goal.at_least is not None and progress.goals_in_a_row >= goal.in_a_row:
            times = "evaluation" if goal.in_a_row == 1 else f"{goal.in_a_row} evaluations in a row"
            return "reached", f"{goal.metric} was at least {goal.at_least:g} in {times}"
        wanted = ""
        if goal.at_least is not None:
            wanted = f" without {goal.metric} of at least {goal.at_least:g} in {goal.in_a_row} evaluations in a row"
        if progress.env_steps >= goal.env_steps:
            return "limit", f"the limit of {goal.env_steps:,} environment steps was reached{wanted}"
        if goal.minutes is not None and self.seconds() >= goal.minutes * 60:
            return "limit", f"the limit of {goal.minutes:g} minutes was reached{wanted}"
        return None

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.monotonic()
        seconds, self._lap = now - self._lap, now
        return max(seconds, 1e-9)

    def seconds(self) -> float:
        """Wall seconds this run has taken, stops left out."""
        return self.progress.seconds + time.monotonic() - self._clock

    def _tick(self) -> None:
        self.progress.seconds, self._clock = self.seconds(), time.monotonic()
