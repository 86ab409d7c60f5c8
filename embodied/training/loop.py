"""Training: collect, learn, publish, until the goal or a limit is reached.

This file is the run's order of events; what each event does is in `run`, in the workload and in its workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from embodied.errors import CheckpointError, ConfigurationError, EmbodiedError, RefusedInput, WorkerDied
from embodied.learner.update import Update
from embodied.runs.checkpoint import CheckpointStore, verify
from embodied.runs.files import OF_DISKS, anchored
from embodied.runs.folder import RunFolder, create_run_folder
from embodied.runs.lock import writing_alone
from embodied.runs.metrics import MetricsLog, read_metrics
from embodied.runs.progress import RunProgress
from embodied.runs.versions import versions
from embodied.scheduler.busy import busy_shares, stage_times
from embodied.scheduler.launch import make_launcher
from embodied.scheduler.overlap import Iteration, iterations
from embodied.scheduler.plan import Plan
from embodied.scheduler.planner.follow import Following, Verdict
from embodied.system.termination import interruption
from embodied.training.given import check_given, write_given
from embodied.training.planning import beside_prediction, check_plan, find_plan, follow, keep_profile, load_plan
from embodied.training.run import Collection, TrainingRun
from embodied.training.workload import Outcome, Workload


def new_folder(workload: Workload) -> RunFolder:
    """A folder for a run that can be carried out. Raises RefusedInput if it cannot, before there is one."""
    check_plan(workload)
    workload.admit()
    run = workload.recipe.run
    exact = Path(run.folder).expanduser() if run.folder else None
    return create_run_folder(Path(run.root).expanduser(), workload.recipe.name, exact)


def started_with(workload: Workload, folder: RunFolder) -> str:
    """The command that began the run in `folder`. Raises RefusedInput where it cannot go on.

    A run that was stopped before its first checkpoint begins again.
    """
    check_given(folder.path, workload.given, workload.program)
    command = _command(workload, folder)
    latest = CheckpointStore(folder.checkpoints, keep=1).latest()
    if latest is None:
        check_plan(workload)
    else:
        if not folder.plan.is_file():
            raise RefusedInput(f"{folder.path} has no plan.json; without it the run cannot go on as it was")
        load_plan(folder)
        try:
            verify(latest.folder)  # once more when it is read; here nothing has been started or written yet
        except CheckpointError as error:
            raise RefusedInput(
                f"{error}; remove that folder to go on from the one before, or start again in another: {command}"
            ) from None
    workload.admit()
    return command


def _command(workload: Workload, folder: RunFolder) -> str:
    fallback = f"{workload.program} train {shlex.quote(str(folder.config))}"  # complete, if not what was typed
    try:
        return folder.read_command() or str(folder.read_result().get("command", fallback))
    except (json.JSONDecodeError, AttributeError):
        return fallback  # result.json only tells how the run ended before


def train(workload: Workload, folder: RunFolder, *, command: str, resume: bool = False) -> Outcome:
    """Train in `folder`, from the start or from its latest checkpoint; returns when it is over.

    Raises KeyboardInterrupt on Ctrl-C (or SIGTERM, see `embodied.system.termination`) and EmbodiedError on failure,
    both after result.json says so. What is refused before a first iteration leaves no folder behind.
    """
    with writing_alone(folder.path):
        try:
            return _train(workload, folder, command=command, resume=resume)
        except (ConfigurationError, RefusedInput):
            if not resume and not _has_begun(folder):
                folder.discard()
            raise


def _has_begun(folder: RunFolder) -> bool:
    return folder.metrics.is_file() and any(row["iteration"] for row in read_metrics(folder.metrics))


def _train(workload: Workload, folder: RunFolder, *, command: str, resume: bool) -> Outcome:
    recipe = workload.recipe
    torch.set_num_threads(recipe.cluster.threads)
    before = folder.read_result() if resume else None  # stands until it is known how far the run is
    if not resume:
        folder.command.write_text(f"{command}\n")
        values = anchored(recipe.as_dict(), workload.places, workload.names, workload.writes)
        folder.config.write_text(yaml.safe_dump(values, sort_keys=False))
        write_given(folder.path, workload.given)
    result: dict[str, Any] = {"recipe": recipe.name, "seed": recipe.seed, "command": command, "versions": versions()}
    state = workload.progress()

    async def attempt(
        screen: RunProgress, plan: Plan, following: Following | None, going_on: bool
    ) -> tuple[str, str] | Plan:
        nonlocal state, before
        began = time.perf_counter()
        flow = workload.flow(plan, folder)
        async with make_launcher(flow, plan, seed=recipe.seed, cluster=recipe.cluster) as system:
            run = workload.begin(folder, system, screen)
            try:
                await run.start()
                checkpoint = run.store.latest() if going_on else None
                if checkpoint is not None:
                    await run.restore(checkpoint)
                    done = f"{run.progress.amount:,} {run.progress.unit}"
                    screen.say(f"resumed after iteration {checkpoint.step} ({done})")
                elif going_on:
                    screen.say("there is no checkpoint yet; starting from the beginning")
                # only now: whoever resumes goes by it, so it has to be one that this run can go on with
                folder.write_plan(system.plan.to_json())
                state, before = run.progress, None
                if following is not None:
                    following.start_seconds = time.perf_counter() - began
                tensorboard = folder.tensorboard if recipe.logger.tensorboard else None
                after = None
                if going_on:  # without a checkpoint everything is logged anew
                    after = state.iteration if checkpoint is not None else -1
                with MetricsLog(folder.metrics, tensorboard, after=after) as metrics_log:
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

    async def main(opening: str, plan: Plan, following: Following | None) -> tuple[str, str]:
        with RunProgress(folder.log, total=recipe.goal.limit, unit=workload.progress.unit) as screen:
            screen.say(f"run folder: {folder.path}")
            screen.say(f"plan: {plan.launcher} launcher, {plan.why}")
            screen.say(opening)
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
        if before is not None:
            folder.write_result({**before, "status": status, "reason": reason})
            return
        result.update(
            {
                "status": status,
                "reason": reason,
                "iterations": state.iteration,
                state.counted: state.amount,
                "seconds": round(state.seconds, 1),
                "before": state.before,
                "after": state.last,
                "best": state.best,
            }
        )
        folder.write_result(result)

    try:
        opening = workload.prepare()
        known = resume and CheckpointStore(folder.checkpoints, keep=1).latest() is not None
        plan, profile = load_plan(folder) if known else find_plan(workload, print)
        following = follow(workload, folder, plan, profile, print)
        status, reason = asyncio.run(main(opening, plan, following))
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):  # a disk that is full must not turn a stop into a failure
            conclude("interrupted", interruption())
        raise
    except EmbodiedError as error:
        with contextlib.suppress(OSError):  # a disk that is full must not hide why
            conclude("failed", str(error))
        raise
    except OSError as error:
        if error.errno not in OF_DISKS:
            raise  # of a connection, say, or of whoever read our output
        reason = (
            f"the run folder {folder.path} cannot be written: {error}. Free space; a run that has a checkpoint goes on "
            f"with: {workload.program} resume {shlex.quote(str(folder.path))}"
        )
        with contextlib.suppress(OSError):
            conclude("failed", reason)
        raise EmbodiedError(reason) from error
    conclude(status, reason)
    return Outcome(folder, status, reason, result)


async def _loop(
    run: TrainingRun, metrics_log: MetricsLog, following: Following | None, resumed: bool
) -> tuple[str, str] | Plan:
    """The order of events. Returns status and reason, or the plan to go on with from the checkpoint just written."""
    recipe, progress = run.workload.recipe, run.progress
    if not resumed:
        run.note(await run.evaluate())
        metrics_log.write(0, 0, run.seconds(), progress.last)
    run.screen.count_from(progress.amount)
    end = run.over()
    while end is None:
        metrics: dict[str, float] = {}
        run.lap()
        await run.system.take_times()
        count = run.due() if following is None else 1  # one at a time: a switch comes between two iterations
        steps = iterations(progress.iteration, count, run.workload.ahead, run.collect, run.learn, run.publish)
        verdict: Verdict | None = None
        async for step in steps:
            if metrics:
                metrics_log.write(progress.iteration, progress.amount, run.seconds(), metrics)
            metrics, verdict = await _account(run, step, following)
        began = time.perf_counter()
        due = recipe.evaluation.every and progress.iteration % recipe.evaluation.every == 0
        if due or run.over() is not None:
            run.note(await run.evaluate())
            metrics |= progress.last | {"time/evaluate_s": time.perf_counter() - began}
            end = run.over()  # and only here: a limit that passes later has its evaluation first
        metrics_log.write(progress.iteration, progress.amount, run.seconds(), metrics)
        if run.checkpoint_due():
            try:
                await run.save()
            except CheckpointError as error:
                run.screen.say(f"  warning: {error} Training goes on.")
        if verdict is not None:
            run.screen.say(f"  plan: {verdict.message}")
            if verdict.plan is not None and end is None:
                if (reason := await run.in_the_way_of(verdict.plan)) is not None:
                    run.screen.say(f"  plan: the run stays with the old one: {reason}")
                    continue
                try:
                    await run.save()
                except CheckpointError as error:
                    run.screen.say(f"  warning: {error} Training goes on under the old plan.")
                    continue
                return verdict.plan
    return end


async def _account(
    run: TrainingRun, step: Iteration[Collection, Update], following: Following | None
) -> tuple[dict[str, float], Verdict | None]:
    """Count the iteration, say how it went, and return its metrics and what following the plan came to."""
    run.progress.add(step.collected.amount)
    run.note_time()
    memory, warnings = run.memory.note(run.progress.iteration, run.left())
    run.warn((*step.collected.warnings, *step.learnt.warnings, *warnings))
    metrics = step.collected.metrics | step.learnt.metrics | memory
    metrics |= {"time/rollout_s": step.rollout_seconds, "time/learn_s": step.learn_seconds}
    spent = await run.system.take_times()
    metrics |= stage_times(spent)
    wall = run.lap()
    busy = busy_shares(spent, wall, run.system.plan)
    bottleneck = max(busy, key=busy.__getitem__)
    metrics |= {"time/iteration_s": wall, "time/idle_share": 1 - busy[bottleneck]}
    status = f"{run.status(metrics)}; bottleneck {bottleneck}, busy {busy[bottleneck]:.0%}"
    run.screen.update(run.progress.amount, status)
    if following is None:
        return metrics, None
    metrics["time/predicted_s"] = following.predicted.seconds
    return metrics, following.note(spent, wall, run.left())
