"""Training: collect, learn, publish, until the goal or a limit is reached.

This file is the run's order of events; what each event does is in `training_run` and in the workers.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Any

import torch
import yaml

from embodied.errors import CheckpointError, EmbodiedError, WorkerDied
from embodied.interaction.evaluation import episode_metrics
from embodied.interaction.flow import embodied_flow
from embodied.interaction.learner_worker import Update
from embodied.interaction.messages import Collected
from embodied.interaction.planning import (
    beside_prediction,
    find_plan,
    follow,
    keep_profile,
    load_plan,
    planned,
)
from embodied.interaction.recipe import Recipe
from embodied.interaction.training_run import Progress, TrainingRun
from embodied.runs.folder import RunFolder
from embodied.runs.metrics import MetricsLog
from embodied.runs.progress import RunProgress
from embodied.runs.versions import versions
from embodied.scheduler.busy import busy_shares, stage_times
from embodied.scheduler.launch import make_launcher
from embodied.scheduler.overlap import Iteration, iterations
from embodied.scheduler.plan import Plan
from embodied.scheduler.planner.follow import Following, Verdict
from embodied.system.termination import interruption


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended: status "reached" (the goal) or "limit", the reason in words, and result.json's contents."""

    folder: RunFolder
    status: str
    reason: str
    result: dict[str, Any]


def train(recipe: Recipe, folder: RunFolder, *, command: str, resume: bool = False) -> Outcome:
    """Train `recipe` in `folder`, from the start or from its latest checkpoint; returns when it is over.

    Raises KeyboardInterrupt on Ctrl-C (or SIGTERM, see `embodied.system.termination`) and EmbodiedError on failure,
    both after result.json says so.
    """
    torch.set_num_threads(recipe.cluster.threads)
    if not resume:
        folder.config.write_text(yaml.safe_dump(recipe.as_dict(), sort_keys=False))
    result: dict[str, Any] = {"recipe": recipe.name, "seed": recipe.seed, "command": command, "versions": versions()}
    state = Progress()

    async def attempt(
        screen: RunProgress, plan: Plan, following: Following | None, going_on: bool
    ) -> tuple[str, str] | Plan:
        nonlocal state
        began = time.perf_counter()
        placed = planned(recipe, plan)
        flow = embodied_flow(placed, folder.path / "alarms", folder.videos / "training")
        async with make_launcher(flow, plan, seed=recipe.seed, cluster=recipe.cluster) as system:
            run = TrainingRun(placed, folder, system, screen)
            try:
                await run.start()
                checkpoint = run.store.latest() if going_on else None
                if checkpoint is not None:
                    await run.restore(checkpoint)
                    screen.say(f"resumed after iteration {checkpoint.step} ({run.progress.env_steps:,} steps)")
                state = run.progress
                if following is not None:
                    following.start_seconds = time.perf_counter() - began
                tensorboard = folder.tensorboard if recipe.logger.tensorboard else None
                with MetricsLog(
                    folder.metrics, tensorboard, after=state.iteration if going_on else None
                ) as metrics_log:
                    end = await _loop(run, metrics_log, following, resumed=checkpoint is not None)
                if isinstance(end, Plan):
                    return end
                result["checkpoint"] = str((await run.save()).folder)
                await system.write_trace(folder.trace)
                if following is not None:
                    result["plan"] = beside_prediction(folder, following)
                return end
            except EmbodiedError as error:
                dead = await system.dead()
                if dead:
                    raise WorkerDied(f"{', '.join(dead)} died: {error}") from error
                raise

    async def main(plan: Plan, following: Following | None) -> tuple[str, str]:
        with RunProgress(folder.log, total=recipe.goal.env_steps, unit="steps") as screen:
            screen.say(f"run folder: {folder.path}")
            screen.say(f"plan: {plan.launcher} launcher, {plan.why}")
            screen.say(f"starting {recipe.env.num_envs} x {recipe.env.id} ...")
            going_on, restarts_left = resume, recipe.cluster.restarts
            while True:
                try:
                    end = await attempt(screen, plan, following, going_on)
                except WorkerDied as error:
                    if restarts_left == 0:
                        raise
                    restarts_left -= 1
                    screen.say(f"  warning: {error}")
                    screen.say("  starting all workers again, from the latest checkpoint")
                else:
                    if not isinstance(end, Plan):
                        return end
                    plan = end
                    assert following is not None
                    following.switch_to(plan)
                    keep_profile(folder, following)
                    screen.say(f"plan: {plan.launcher} launcher, {plan.why}")
                going_on = True

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
        plan, profile = load_plan(folder) if resume else find_plan(recipe, print)
        following = follow(recipe, folder, plan, profile, print)
        status, reason = asyncio.run(main(plan, following))
    except KeyboardInterrupt:
        conclude("interrupted", interruption())
        raise
    except EmbodiedError as error:
        conclude("failed", str(error))
        raise
    conclude(status, reason)
    return Outcome(folder, status, reason, result)


async def _loop(
    run: TrainingRun, metrics_log: MetricsLog, following: Following | None, resumed: bool
) -> tuple[str, str] | Plan:
    """The order of events. Returns status and reason, or the plan to go on with from the checkpoint just written."""
    recipe, progress = run.recipe, run.progress
    staleness = recipe.algorithm.max_staleness
    if not resumed:
        run.note_evaluation(await run.evaluate())
        metrics_log.write(0, 0, run.seconds(), progress.last)
    while (end := run.over()) is None:
        metrics: dict[str, float] = {}
        run.lap()
        await run.system.take_times()
        count = run.due() if following is None else 1  # one at a time: a switch comes between two iterations
        steps = iterations(progress.iteration, count, staleness, run.collect, run.learn, run.publish)
        verdict: Verdict | None = None
        async for step in steps:
            if metrics:
                metrics_log.write(progress.iteration, progress.env_steps, run.seconds(), metrics)
            metrics, verdict = await _account(run, step, following)
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
        if verdict is not None:
            run.screen.say(f"  plan: {verdict.message}")
            if verdict.plan is not None and run.over() is None:
                await run.save()
                return verdict.plan
    return end


async def _account(
    run: TrainingRun, step: Iteration[Collected, Update], following: Following | None
) -> tuple[dict[str, float], Verdict | None]:
    """Count the iteration, say how it went, and return its metrics and what following the plan came to."""
    progress = run.progress
    progress.iteration += 1
    progress.env_steps += step.collected.steps
    run.warn(step.learnt.warnings)
    metrics = episode_metrics(step.collected.episodes, run.spec.has_success) | step.learnt.metrics
    metrics |= {"time/rollout_s": step.rollout_seconds, "time/learn_s": step.learn_seconds}
    spent = await run.system.take_times()
    metrics |= stage_times(spent)
    wall = run.lap()
    busy = busy_shares(spent, wall, run.system.plan)
    bottleneck = max(busy, key=busy.__getitem__)
    metrics |= {"time/iteration_s": wall, "time/idle_share": 1 - busy[bottleneck]}
    status = f"{_status(metrics, run.spec.has_success)}; bottleneck {bottleneck}, busy {busy[bottleneck]:.0%}"
    run.screen.update(progress.env_steps, status)
    if following is None:
        return metrics, None
    metrics["time/predicted_s"] = following.predicted.seconds
    left = -(-(run.recipe.goal.env_steps - progress.env_steps) // run.recipe.steps_per_iteration)
    return metrics, following.note(spent, wall, left)


def _status(metrics: dict[str, float], has_success: bool) -> str:
    if has_success and "train/success_once" in metrics:
        return f"training success {metrics['train/success_once']:.0%}"
    if "train/return" in metrics:
        return f"training return {metrics['train/return']:.2f}"
    return f"KL {metrics.get('policy/approx_kl', 0.0):.4f}"
