"""Training: collect, learn, publish, until the goal or a limit is reached.

This file is the run's order of events; what each event does is in `training_run` and in the workers.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import yaml

from embodied.errors import CheckpointError, EmbodiedError, WorkerDied
from embodied.runs.folder import RunFolder
from embodied.runs.metrics import MetricsLog
from embodied.runs.progress import RunProgress
from embodied.runs.versions import versions
from embodied.scheduler.busy import busy_shares, stage_times
from embodied.scheduler.launch import make_launcher
from embodied.scheduler.overlap import Iteration, iterations
from embodied.scheduler.plan import Plan
from reasoning.models.loading import without_progress_bars
from reasoning.problems.record import Problem
from reasoning.training.flow import reasoning_flow
from reasoning.training.learner_worker import Update
from reasoning.training.placement import make_plan
from reasoning.training.problems import gather
from reasoning.training.recipe import Recipe
from reasoning.training.training_run import Collected, Progress, TrainingRun


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended: status "reached" (the goal) or "limit", the reason in words, and result.json's contents."""

    folder: RunFolder
    status: str
    reason: str
    result: dict[str, Any]


def train(
    recipe: Recipe,
    folder: RunFolder,
    *,
    command: str,
    resume: bool = False,
    problems: Sequence[Problem] | None = None,
    reward: Callable[..., Any] | None = None,
) -> Outcome:
    """Train `recipe` in `folder`, from the start or from its latest checkpoint; returns when it is over.

    problems, reward: to train on and to reward with instead of the recipe's; a resumed run must be given them again.

    Raises KeyboardInterrupt on Ctrl-C and EmbodiedError on failure, both after result.json says so.
    """
    torch.set_num_threads(recipe.cluster.threads)
    without_progress_bars()
    sets = gather(recipe, problems)
    flow = reasoning_flow(recipe, sets, recipe.device(), folder.path / "alarms", reward)
    plan = Plan.from_json(folder.plan.read_text()) if resume else make_plan(recipe, flow)
    if not resume:
        folder.config.write_text(yaml.safe_dump(recipe.as_dict(), sort_keys=False))
        folder.plan.write_text(plan.to_json())
    result: dict[str, Any] = {"recipe": recipe.name, "seed": recipe.seed, "command": command, "versions": versions()}
    state = Progress()

    async def attempt(screen: RunProgress, going_on: bool) -> tuple[str, str]:
        nonlocal state
        async with make_launcher(flow, plan, seed=recipe.seed, cluster=recipe.cluster) as system:
            run = TrainingRun(recipe, sets, folder, system, screen)
            try:
                await run.start()
                checkpoint = run.store.latest() if going_on else None
                if checkpoint is not None:
                    await run.restore(checkpoint)
                    screen.say(f"resumed after iteration {checkpoint.step} ({run.progress.responses:,} responses)")
                state = run.progress
                tensorboard = folder.tensorboard if recipe.logger.tensorboard else None
                after = state.iteration if going_on else None
                with MetricsLog(folder.metrics, tensorboard, after=after) as metrics_log:
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
        with RunProgress(folder.log, total=recipe.goal.responses, unit="responses") as screen:
            screen.say(f"run folder: {folder.path}")
            screen.say(f"plan: {plan.launcher} launcher, {plan.why}")
            screen.say(f"problems: {sets.summary}")
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
            responses=state.responses,
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


async def _loop(run: TrainingRun, metrics_log: MetricsLog, resumed: bool) -> tuple[str, str]:
    """The order of events. Returns status and reason."""
    recipe, progress = run.recipe, run.progress
    # with extra prompts the staleness is that of responses that go on after an update, not of whole rollouts
    ahead = 0 if recipe.rollout.extra_prompts else recipe.algorithm.max_staleness
    if not resumed:
        run.note_evaluation(await run.evaluate())
        metrics_log.write(0, 0, run.seconds(), progress.last)
    while (end := run.over()) is None:
        metrics: dict[str, float] = {}
        run.lap()
        await run.system.take_times()
        steps = iterations(progress.iteration, run.due(), ahead, run.collect, run.learn, run.publish)
        async for step in steps:
            if metrics:
                metrics_log.write(progress.iteration, progress.responses, run.seconds(), metrics)
            metrics = await _account(run, step)
        began = time.perf_counter()
        due = recipe.evaluation.every and progress.iteration % recipe.evaluation.every == 0
        if due or run.over() is not None:
            run.note_evaluation(await run.evaluate())
            metrics |= progress.last | {"time/evaluate_s": time.perf_counter() - began}
        metrics_log.write(progress.iteration, progress.responses, run.seconds(), metrics)
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
    progress.responses += step.collected.responses
    run.warn((*step.collected.warnings, *step.learnt.warnings))
    metrics = step.collected.metrics | step.learnt.metrics
    metrics |= {"time/rollout_s": step.rollout_seconds, "time/learn_s": step.learn_seconds}
    spent = await run.system.take_times()
    metrics |= stage_times(spent)
    wall = run.lap()
    busy = busy_shares(spent, wall, run.system.plan)
    bottleneck = max(busy, key=busy.__getitem__)
    metrics |= {
        "time/iteration_s": wall,
        "time/idle_share": 1 - busy[bottleneck],
        "rollout/tokens_per_second": metrics["rollout/tokens"] / step.rollout_seconds,
    }
    status = f"{metrics.get('reward/right', 0.0):.0%} of training answers right; bottleneck {bottleneck}"
    run.screen.update(progress.responses, status)
    return metrics
