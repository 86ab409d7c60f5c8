"""Training: collect, learn, publish, until the goal or a limit is reached.

This file is the run's order of events; what each event does is in the workers.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.metadata
import platform
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from embodied import __version__
from embodied.errors import CheckpointError, ConfigurationError, EmbodiedError, SimulatorError, WorkerDied
from embodied.interaction.assignments import evaluation_assignments
from embodied.interaction.evaluation import EvaluationResult, episode_metrics
from embodied.interaction.flow import embodied_flow
from embodied.interaction.learner_worker import Update
from embodied.interaction.messages import Collected, Rollout
from embodied.interaction.overlap import Iteration, iterations
from embodied.interaction.placement import make_plan
from embodied.interaction.recipe import Recipe
from embodied.interaction.recording import Recording, film, recording_env
from embodied.random import derive_seed
from embodied.runs.checkpoint import Checkpoint, CheckpointStore
from embodied.runs.folder import RunFolder
from embodied.runs.metrics import MetricsLog, read_metrics
from embodied.runs.progress import RunProgress, spoken_time
from embodied.scheduler.flow import Flow
from embodied.scheduler.inline import InlineLauncher
from embodied.scheduler.launcher import Launcher
from embodied.scheduler.plan import Plan
from embodied.scheduler.trace import BUSY
from envs.api import EnvSpec
from envs.video import side_by_side
from policies import registry as policy_registry

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


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended: status "reached" (the goal) or "limit", the reason in words, and result.json's contents."""

    folder: RunFolder
    status: str
    reason: str
    result: dict[str, Any]


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


async def _loop(run: TrainingRun, metrics_log: MetricsLog, resumed: bool) -> tuple[str, str]:
    """The order of events. Returns status and reason."""
    recipe, progress = run.recipe, run.progress
    staleness = recipe.algorithm.max_staleness
    if not resumed:
        run.note_evaluation(await run.evaluate())
        metrics_log.write(0, 0, run.seconds(), progress.last)
    while (end := run.over()) is None:
        metrics: dict[str, float] = {}
        run.lap()
        await run.system.take_times()
        steps = iterations(progress.iteration, run.due(), staleness, run.collect, run.learn, run.publish)
        async for step in steps:
            if metrics:
                metrics_log.write(progress.iteration, progress.env_steps, run.seconds(), metrics)
            metrics = await _account(run, step)
        began = time.perf_counter()
        due = recipe.evaluation.every and progress.iteration % recipe.evaluation.every == 0
        if due or run.over() is not None:
            run.note_evaluation(await run.evaluate())
            metrics |= progress.last | {"time/evaluate_s": time.perf_counter() - began}
        metrics_log.write(progress.iteration, progress.env_steps, run.seconds(), metrics)
        if progress.iteration % recipe.checkpoint.every == 0:
            try:
                await run.save()
            except CheckpointError as error:
                run.screen.say(f"  warning: {error} Training goes on.")
    return end


async def _account(run: TrainingRun, step: Iteration[Collected, Update]) -> dict[str, float]:
    """Count the iteration, say how it went, and return its metrics."""
    progress = run.progress
    progress.iteration += 1
    progress.env_steps += step.collected.steps
    run.warn(step.learnt.warnings)
    metrics = episode_metrics(step.collected.episodes, run.spec.has_success) | step.learnt.metrics
    metrics |= {"time/rollout_s": step.rollout_seconds, "time/learn_s": step.learn_seconds}
    spent = await run.system.take_times()
    metrics |= _stage_times(spent)
    wall = run.lap()
    busy = busy_shares(spent, wall, run.system.plan)
    bottleneck = max(busy, key=busy.__getitem__)
    metrics |= {"time/iteration_s": wall, "time/idle_share": 1 - busy[bottleneck]}
    status = f"{_status(metrics, run.spec.has_success)}; bottleneck {bottleneck}, busy {busy[bottleneck]:.0%}"
    run.screen.update(progress.env_steps, status)
    return metrics


def make_launcher(recipe: Recipe, flow: Flow, plan: Plan) -> Launcher:
    """The launcher that the plan names."""
    options: dict[str, Any] = {"seed": recipe.seed, "deadline": recipe.cluster.deadline_seconds}
    if plan.launcher == "inline":
        return InlineLauncher(flow, plan, **options)
    from embodied.scheduler.ray_launcher import RayLauncher

    return RayLauncher(flow, plan, address=recipe.cluster.address, **options)


def _stage_times(spent: dict[tuple[str, str, str], float]) -> dict[str, float]:
    """Busy seconds per stage and operation of the iteration that has just passed."""
    times: dict[str, float] = {}
    for (worker, name, category), seconds in spent.items():
        if category == BUSY:
            key = f"time/{worker.split('[')[0]}_{name.replace(' ', '_')}_s"
            times[key] = times.get(key, 0.0) + seconds
    return times


def busy_shares(spent: dict[tuple[str, str, str], float], wall: float, plan: Plan) -> dict[str, float]:
    """Per stage, the share of the iteration's wall time that its workers were busy, on average; the largest is the
    bottleneck, and what it lacks to 1 is idle time that a better plan could use."""
    busy = dict.fromkeys(plan.stages, 0.0)
    for (worker, _, category), seconds in spent.items():
        stage = worker.split("[")[0]
        if category == BUSY and stage in busy:
            busy[stage] += seconds / len(plan.stages[stage].devices)
    return {stage: min(1.0, seconds / wall) for stage, seconds in busy.items()}


def _status(metrics: dict[str, float], has_success: bool) -> str:
    if has_success and "train/success_once" in metrics:
        return f"training success {metrics['train/success_once']:.0%}"
    if "train/return" in metrics:
        return f"training return {metrics['train/return']:.2f}"
    return f"KL {metrics.get('policy/approx_kl', 0.0):.4f}"


def train(recipe: Recipe, folder: RunFolder, *, command: str, resume: bool = False) -> Outcome:
    """Train `recipe` in `folder`, from the start or from its latest checkpoint; returns when it is over.

    Raises KeyboardInterrupt on Ctrl-C and EmbodiedError on failure, both after result.json says so.
    """
    torch.set_num_threads(recipe.cluster.threads)
    flow = embodied_flow(recipe, folder.path / "alarms")
    plan = Plan.from_json(folder.plan.read_text()) if resume else make_plan(recipe, flow)
    if not resume:
        folder.config.write_text(yaml.safe_dump(recipe.as_dict(), sort_keys=False))
        folder.plan.write_text(plan.to_json())
    result: dict[str, Any] = {"recipe": recipe.name, "seed": recipe.seed, "command": command, "versions": versions()}
    state = Progress()

    async def attempt(screen: RunProgress, going_on: bool) -> tuple[str, str]:
        nonlocal state
        async with make_launcher(recipe, flow, plan) as system:
            run = TrainingRun(recipe, folder, system, screen)
            try:
                await run.start()
                checkpoint = run.store.latest() if going_on else None
                if checkpoint is not None:
                    await run.restore(checkpoint)
                    screen.say(f"resumed after iteration {checkpoint.step} ({run.progress.env_steps:,} steps)")
                state = run.progress
                tensorboard = folder.tensorboard if recipe.logger.tensorboard else None
                with MetricsLog(
                    folder.metrics, tensorboard, after=state.iteration if going_on else None
                ) as metrics_log:
                    end = await _loop(run, metrics_log, resumed=checkpoint is not None)
                result["checkpoint"] = str((await run.save()).folder)
                await system.write_trace(folder.trace)
                return end
            except EmbodiedError as error:
                dead = await system.dead()
                if dead:
                    raise WorkerDied(f"{', '.join(dead)} died: {error}") from error
                raise

    async def main() -> tuple[str, str]:
        with RunProgress(folder.log, total=recipe.goal.env_steps, unit="steps") as screen:
            screen.say(f"run folder: {folder.path}")
            screen.say(f"plan: {plan.launcher} launcher, {plan.why}")
            screen.say(f"starting {recipe.env.num_envs} x {recipe.env.id} ...")
            going_on = resume
            for restarts_left in range(recipe.cluster.restarts, -1, -1):
                try:
                    return await attempt(screen, going_on)
                except WorkerDied as error:
                    if restarts_left == 0:
                        raise
                    screen.say(f"  warning: {error}")
                    screen.say("  starting all workers again, from the latest checkpoint")
                    going_on = True
            raise AssertionError("the last attempt returns or raises")

    def conclude(status: str, reason: str) -> None:
        result.update(
            status=status,
            reason=reason,
            iterations=state.iteration,
            env_steps=state.env_steps,
            seconds=round(state.seconds, 1),
            before=state.before,
            after=state.last,
            best=state.best,
        )
        folder.write_result(result)

    try:
        status, reason = asyncio.run(main())
    except KeyboardInterrupt:
        conclude("interrupted", "interrupted by the user")
        raise
    except EmbodiedError as error:
        conclude("failed", str(error))
        raise
    conclude(status, reason)
    return Outcome(folder, status, reason, result)


def film_before_and_after(outcome: Outcome, recipe: Recipe, say: Any) -> None:
    """Film the untrained and the trained policy in the same episodes; adds the videos to result.json.

    Without a way to render, says why and leaves the videos out: the training stands.
    """
    if recipe.record.episodes == 0:
        return
    folder, result = outcome.folder, outcome.result
    say(f"filming {recipe.record.episodes} episodes before and after training ...")
    began = time.monotonic()
    try:
        with recording_env(recipe.env, recipe.record.episodes) as env:
            seed = derive_seed(recipe.seed, "policy")
            untrained = policy_registry.build(recipe.policy, policy_registry.interface_of(env.spec), seed=seed)
            trained = policy_registry.load(Path(result["checkpoint"]) / "policy")
            options = {"fps": recipe.record.fps, "device": recipe.device()}
            before = film(untrained, env, recipe.evaluation, folder.videos, "before", **options)
            after = film(trained, env, recipe.evaluation, folder.videos, "after", **options)
    except SimulatorError as error:
        say(f"warning: no videos: {error} `embodied doctor` shows what is missing.")
        result["videos_missing"] = str(error)
    else:
        titles = (_title("before training", before, env.spec), _title("after training", after, env.spec))
        both = side_by_side(before.path, after.path, folder.videos / "before_and_after.mp4", titles)
        result["videos"] = {"before": str(before.path), "after": str(after.path), "both": str(both)}
        say(f"filmed in {spoken_time(time.monotonic() - began)}")
    folder.write_result(result)


def _title(text: str, recording: Recording, spec: EnvSpec) -> str:
    return f"{text}: {recording.successes} of {recording.episodes}" if spec.has_success else text


def versions() -> dict[str, str]:
    """Of everything that decides what a run does."""
    names = ("torch", "mani-skill", "sapien", "mujoco", "gymnasium", "numpy", "transformers")
    own = {"embodied": __version__, "python": platform.python_version(), "machine": platform.machine()}
    return own | {name: importlib.metadata.version(name) for name in names}


def learning_curve(folder: RunFolder, metric: str) -> list[tuple[int, float]]:
    """(environment steps, value) of one metric over a run."""
    records = read_metrics(folder.metrics)
    return [(r["env_steps"], r["metrics"][metric]) for r in records if metric in r["metrics"]]
