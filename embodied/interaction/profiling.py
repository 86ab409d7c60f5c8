"""What a recipe's stages cost here: short real runs of its flow at a few sizes; `cost_profile` fits a profile to them.

Every run is the training loop without evaluations: collect, learn, publish, with all workers in this process. Sizes are
the recipe's number of environments and halves of it, with simulators in this process, in one of their own and in as
many as there are cores. An iteration's time divides into what is spent waiting for simulators (`env`), the rest of the
rollout (`policy`: forward passes and what surrounds them) and learning (`learner`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from embodied.errors import ConfigurationError
from embodied.interaction.flow import embodied_flow
from embodied.interaction.messages import Rollout
from embodied.interaction.recipe import Recipe, check
from embodied.scheduler.inline import InlineLauncher
from embodied.scheduler.plan import single_device_plan
from embodied.training.measuring import REPEATS, MemoryWatch, busy, cores, in_this_process, unloading, wait_for
from envs import registry as env_registry

MOST_DECISIONS = 64  # of a measured rollout: every decision costs the same, so a long rollout is not needed
MOST_SLOTS = 4
_SETUP_SPANS = ("start simulators", "build policy", "build learner")


@dataclasses.dataclass(frozen=True)
class Setting:
    """One measured size. processes: of simulators; 0: they run in this process."""

    num_envs: int
    processes: int


@dataclasses.dataclass(frozen=True)
class Bytes:
    """Memory of one accelerator. policy, learner: state of the stage. acting, learning: the most that a rollout, an
    update allocated on top of what was there before."""

    policy: int
    learner: int
    acting: int
    learning: int


@dataclasses.dataclass(frozen=True)
class Timing:
    """What one size took, a value an iteration. env, policy: seconds of a decision round. learner: of an update.

    acting, learning: seconds of an iteration that the trace of policy and learner shows. starting: seconds to start all
    workers. switch: seconds to unload the learner and load it again, and the bytes that moved; None on CPUs."""

    setting: Setting
    env: list[float]
    policy: list[float]
    learner: list[float]
    acting: list[float]
    learning: list[float]
    starting: float = 0.0
    memory: Bytes | None = None
    switch: tuple[float, int] | None = None


def measure(recipe: Recipe, say: Callable[[str], None], repeats: int = REPEATS) -> list[Timing]:
    """Run every size. say: told what is measured. Raises ConfigurationError when no size can be.

    Must not be called from inside an event loop; it runs its own.
    """
    torch.set_num_threads(recipe.cluster.threads)
    timings = []
    for setting in settings(recipe):
        variant = variant_of(recipe, setting)
        assert variant is not None
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="embodied-profile-") as alarms:
            timing = asyncio.run(_measure(variant, setting, repeats, Path(alarms)))
        timings.append(timing)
        where = f"{setting.processes} simulator process(es)" if setting.processes else "simulators in this process"
        say(
            f"{setting.num_envs} environments, {where}: env {statistics.median(timing.env) * 1e3:.2f} ms and policy "
            f"{statistics.median(timing.policy) * 1e3:.2f} ms a decision, learner "
            f"{statistics.median(timing.learner):.2f} s an update ({time.perf_counter() - began:.1f} s)"
        )
    return timings


def settings(recipe: Recipe) -> list[Setting]:
    """The sizes to measure: fewer environments where the recipe's batch allows, several simulator processes."""
    whole = recipe.env.num_envs
    sizes = [n for n in (whole, whole // 2, whole // 4) if n and variant_of(recipe, Setting(n, 0)) is not None]
    if not sizes:
        raise ConfigurationError(
            f"the recipe cannot be measured with env.num_envs={whole} and one slot; see `embodied train --dry-run`"
        )
    found = [Setting(n, 0) for n in sizes]
    if env_registry.in_process(recipe.env):
        return found
    found += [Setting(n, 1) for n in sizes[:2]]
    many = sorted({min(cores(), size) for size in (2, cores())} - {1})
    found += [Setting(n, p) for p in many for n in sizes[:2] if p <= n]
    return found


def variant_of(recipe: Recipe, setting: Setting) -> Recipe | None:
    """The recipe at another size, with all workers in this process; None where it would be refused."""
    env = dataclasses.replace(recipe.env, num_envs=setting.num_envs, slots=1, processes=setting.processes)
    # what a filter drops, and an actor that waits for its critic, do not learn: learning would look cheap
    algorithm = dataclasses.replace(recipe.algorithm, filter_rewards=None, critic_warmup=0)
    found = dataclasses.replace(recipe, env=env, cluster=in_this_process(recipe.cluster), algorithm=algorithm)
    for decisions in _decisions(recipe):
        variant = dataclasses.replace(found, rollout=dataclasses.replace(recipe.rollout, decisions=decisions))
        try:
            check(variant)
        except ConfigurationError:
            continue
        return variant
    return None


def _decisions(recipe: Recipe) -> list[int]:
    """Lengths of a measured rollout, the preferred one first: the recipe's own or a part of it that is short enough;
    longer ones where fewer environments would not fill a batch."""
    wanted = recipe.rollout.decisions
    parts = [wanted >> shift for shift in range(wanted.bit_length()) if wanted % (1 << shift) == 0]
    short = [d for d in parts if d <= MOST_DECISIONS]
    more = [d for d in (2 * wanted, 4 * wanted) if d <= MOST_DECISIONS]
    return [*short, *more, *sorted(set(parts) - set(short))]


async def _measure(recipe: Recipe, setting: Setting, repeats: int, alarms: Path) -> Timing:
    flow = embodied_flow(recipe, alarms)
    device = recipe.device()
    plan = single_device_plan(flow, device, slots=1)
    timing = Timing(setting, [], [], [], [], [])
    starting = time.perf_counter()
    memory = MemoryWatch(device)
    async with InlineLauncher(flow, plan, seed=recipe.seed, deadline=recipe.cluster.deadline_seconds) as system:
        timing = dataclasses.replace(timing, starting=time.perf_counter() - starting)
        env, policy, learner = (system.group(name) for name in ("env", "policy", "learner"))
        await system.sync_weights(0)
        for iteration in range(repeats + 1):
            await system.take_times()
            memory.begin()
            began = time.perf_counter()
            rollout = Rollout(iteration, recipe.rollout.decisions, "act", recipe.algorithm.sampling)
            await system.together(env.call("collect", rollout), policy.call("act", rollout))
            wait_for(device)
            collected = time.perf_counter()
            acting = memory.end()
            memory.begin()
            await learner.call("learn", iteration)
            await system.sync_weights(iteration + 1)
            wait_for(device)
            ended = time.perf_counter()
            learning = memory.end()
            if iteration == 0:
                continue  # compiles, allocates, fills caches
            spent = await system.take_times()
            waited, acted, learnt = (busy(spent, stage, _SETUP_SPANS) for stage in ("env", "policy", "learner"))
            rounds = recipe.rollout.decisions
            timing.env.append(waited / rounds)
            timing.policy.append(max(collected - began - waited, acted) / rounds)
            timing.learner.append(ended - collected)
            timing.acting.append(acted)
            timing.learning.append(learnt)
        if device == "cpu":
            return timing
        states = [(await group.call("memory"))[0] for group in (policy, learner)]
        used = Bytes(states[0], states[1], acting, learning)
        # policy and learner share weights here, so the learner's state is all there is
        return dataclasses.replace(timing, memory=used, switch=await unloading(learner, device))


def measured_decisions(recipe: Recipe, setting: Setting) -> int:
    """Decisions of a measured rollout of that size."""
    variant = variant_of(recipe, setting)
    assert variant is not None
    return variant.rollout.decisions
