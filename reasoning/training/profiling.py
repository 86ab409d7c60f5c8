"""What the stages of a reasoning recipe cost here: short real runs at a few sizes, and a cost profile fitted to them.

Every run is the training loop without evaluations, with all workers in this process and one stage after another, but
for grading, which goes on while others generate: its time is what it takes longer than they do. Handing weights to
generation counts as generation. Sizes are the recipe's number of prompts and halves of it.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from embodied.errors import ConfigurationError
from embodied.scheduler.flow import ACCELERATOR, Flow
from embodied.scheduler.inline import InlineLauncher
from embodied.scheduler.launcher import Launcher
from embodied.scheduler.plan import single_device_plan
from embodied.scheduler.planner.explain import spoken
from embodied.scheduler.planner.fit import fit_time
from embodied.scheduler.planner.profile import (
    EdgeProfile,
    FlowProfile,
    Kind,
    MemoryModel,
    StageCost,
    StageProfile,
    SwitchModel,
    WeightsProfile,
)
from embodied.training.measuring import (
    REPEATS,
    MemoryWatch,
    busy,
    in_this_process,
    measurement,
    share,
    this_machine,
    unloading,
    wait_for,
)
from reasoning.training.flow import reasoning_flow
from reasoning.training.messages import Answered, Round
from reasoning.training.problems import ProblemSets
from reasoning.training.recipe import Recipe, RolloutConfig, check

MOST_PROMPTS = 128  # of a measured rollout: more of them cost more of the same
_SETUP_SPANS = ("render prompts", "build engine", "start graders", "build reference", "build critic", "build learner")
_LEAST = 1e-6  # seconds: a stage that is never waited for

Reward = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Memory:
    """Of one stage on an accelerator. state: bytes that unloading frees; working: the most that a round allocates on
    top of it. switch: seconds to unload the state and load it again."""

    state: int
    working: int
    switch: float


@dataclasses.dataclass(frozen=True)
class Timing:
    """What one size took. seconds: of every stage, an entry an iteration. shown: those that its spans in the trace
    show. starting: seconds to start all workers. memory: by stage, on accelerators only."""

    prompts: int
    seconds: dict[str, list[float]]
    shown: dict[str, list[float]]
    starting: float
    memory: dict[str, Memory] = dataclasses.field(default_factory=dict)


def sizes(recipe: Recipe) -> list[int]:
    """Numbers of prompts to measure: fewer than the recipe's where its batch allows.

    Raises ConfigurationError when none can be."""
    whole = min(recipe.rollout.prompts, MOST_PROMPTS)
    found = [n for n in (whole, whole // 2, whole // 4) if n and variant_of(recipe, n) is not None]
    if not found and variant_of(recipe, recipe.rollout.prompts) is not None:
        return [recipe.rollout.prompts]
    if not found:
        raise ConfigurationError(f"the recipe cannot be measured with rollout.prompts={whole}; see its --dry-run")
    return found


def variant_of(recipe: Recipe, prompts: int) -> Recipe | None:
    """The recipe at another size, with all workers in this process and all models learning from every group; None where
    it would be refused."""
    found = dataclasses.replace(
        recipe,
        rollout=dataclasses.replace(recipe.rollout, prompts=prompts, max_waves=RolloutConfig().max_waves),
        algorithm=dataclasses.replace(recipe.algorithm, critic_warmup=0, uniform_groups="keep"),
        cluster=in_this_process(recipe.cluster),
    )
    try:
        check(found)
    except ConfigurationError:
        return None
    return found


def measure(
    recipe: Recipe, sets: ProblemSets, reward: Reward | None, say: Callable[[str], None], repeats: int = REPEATS
) -> list[Timing]:
    """Run every size. reward: the user's own. say: told what is measured.

    Raises ConfigurationError when no size can be. Must not be called from inside an event loop; it runs its own.
    """
    torch.set_num_threads(recipe.cluster.threads)
    timings = []
    for prompts in sizes(recipe):
        variant = variant_of(recipe, prompts)
        assert variant is not None
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="reasoning-profile-") as alarms:
            timing = asyncio.run(_Measured(variant, sets, reward, Path(alarms)).run(repeats))
        timings.append(timing)
        parts = ", ".join(f"{name} {spoken(statistics.median(spent))}" for name, spent in timing.seconds.items())
        took = time.perf_counter() - began
        say(f"{prompts} prompts, {variant.responses_per_iteration} responses: {parts} ({took:.1f} s)")
    return timings


class _Measured:
    """One size under way."""

    def __init__(self, recipe: Recipe, sets: ProblemSets, reward: Reward | None, alarms: Path) -> None:
        self.recipe, self.device = recipe, recipe.device()
        self.flow = reasoning_flow(recipe, sets, self.device, alarms, reward)
        self.watch = MemoryWatch(self.device)
        self.position = self.carried = 0
        self.seconds: dict[str, float] = collections.defaultdict(float)
        self.working: dict[str, int] = collections.defaultdict(int)

    async def run(self, repeats: int) -> Timing:
        """Start, warm up once, measure."""
        recipe, plan = self.recipe, single_device_plan(self.flow, self.device, slots=1)
        starting = time.perf_counter()
        deadline = recipe.cluster.deadline_seconds
        seconds: dict[str, list[float]] = {name: [] for name in self.flow.stages}
        shown: dict[str, list[float]] = {name: [] for name in self.flow.stages}
        async with InlineLauncher(self.flow, plan, seed=recipe.seed, deadline=deadline) as system:
            timing = Timing(recipe.rollout.prompts, seconds, shown, time.perf_counter() - starting)
            await system.sync_weights(0)
            for iteration in range(repeats + 1):
                self.seconds.clear()
                await system.take_times()
                await self._collect(system, iteration)
                await self._learn(system, iteration)
                if iteration == 0:
                    continue  # compiles, allocates, fills caches
                spent = await system.take_times()
                for name in self.flow.stages:
                    seconds[name].append(max(_LEAST, self.seconds[name]))
                    shown[name].append(busy(spent, name, _SETUP_SPANS))
            if self.device == "cpu":
                return timing
            return dataclasses.replace(timing, memory=await self._memory(system))

    async def _collect(self, system: Launcher, iteration: int) -> None:
        group, rollout = system.group, self.recipe.rollout
        count = max(0, rollout.prompts + rollout.extra_prompts - self.carried)
        round = Round(iteration, "train", self.position, count, max(0, count + self.carried - rollout.prompts))
        self.position += count
        began = time.perf_counter()
        await group("prompts").call("ask", round)
        asked = time.perf_counter()
        answered = asked

        async def answer() -> list[Answered]:
            nonlocal answered
            found = await group("generate").call("answer", round)
            wait_for(self.device)
            answered = time.perf_counter()
            return found

        self.watch.begin()
        answers, _ = await system.together(answer(), group("reward").call("grade", round))
        self._note("generate", asked, answered)
        self.carried = sum(part.carried for part in answers)
        self.seconds["prompts"] += asked - began
        self.seconds["reward"] += time.perf_counter() - answered
        if "reference" in system.groups:
            await self._timed(system, "reference", "refer")
        if "critic" in system.groups:
            await self._timed(system, "critic", "value", iteration)

    async def _learn(self, system: Launcher, iteration: int) -> None:
        if "critic" in system.groups:
            await self._timed(system, "critic", "learn", iteration)
        updates = await self._timed(system, "learner", "learn", iteration)
        began = time.perf_counter()
        await system.sync_weights(updates[0].version)
        wait_for(self.device)
        self.seconds["generate"] += time.perf_counter() - began

    async def _timed(self, system: Launcher, stage: str, operation: str, *arguments: Any) -> list[Any]:
        self.watch.begin()
        began = time.perf_counter()
        found = await system.group(stage).call(operation, *arguments)
        wait_for(self.device)
        self._note(stage, began, time.perf_counter())
        return found

    def _note(self, stage: str, began: float, ended: float) -> None:
        self.seconds[stage] += ended - began
        self.working[stage] = max(self.working[stage], self.watch.end())

    async def _memory(self, system: Launcher) -> dict[str, Memory]:
        found = {}
        for name in (name for name, stage in self.flow.stages.items() if stage.needs == ACCELERATOR):
            switch, state = await unloading(system.group(name), self.device)
            found[name] = Memory(state, self.working[name], switch)
        return found


def build_profile(recipe: Recipe, flow: Flow, timings: list[Timing]) -> FlowProfile:
    """Cost models of the flow's stages, fitted to `timings`; the first one is of the largest size."""
    on_gpu = recipe.device() != "cpu"
    stages = {}
    for name, stage in flow.stages.items():
        kind: Kind = "accelerator" if on_gpu and stage.needs == ACCELERATOR else "cpu"
        each = 1 if stage.scales_with == "prompts" else recipe.algorithm.group_size
        found = tuple(measurement(t.prompts * each, 1, t.seconds[name]) for t in timings)
        memory = timings[0].memory.get(name)
        stages[name] = StageProfile(
            items=recipe.rollout.prompts * each,
            on={
                kind: StageCost(
                    time=fit_time(found),
                    memory=MemoryModel() if memory is None else _memory_model(memory, stage.worker.collective),
                    switch=None if memory is None else SwitchModel(bytes_per_second=_speed(memory)),
                    max_replicas=None if kind == "accelerator" else 1,
                    measurements=found,
                )
            },
            traced=share([t.shown[name] for t in timings], [t.seconds[name] for t in timings]),
        )
    return FlowProfile(
        flow=flow.name,
        stages=stages,
        edges=tuple(EdgeProfile(source=edge.source.stage, target=edge.target.stage) for edge in flow.edges),
        weights=tuple(WeightsProfile(source=edge.source, target=edge.target) for edge in flow.weight_edges),
        cluster=this_machine(recipe.device(), every_gpu=recipe.cluster.device == "auto"),
        assumptions=_assumptions(recipe, on_gpu),
        unit="responses",
        amount=float(recipe.responses_per_iteration),
        start_seconds=max(t.starting for t in timings),
    )


def _memory_model(memory: Memory, sharded: bool) -> MemoryModel:
    return MemoryModel(
        state_bytes=float(memory.state),
        state="sharded" if sharded else "replicated",
        working_bytes=float(memory.working),
    )


def _speed(memory: Memory) -> float:
    return max(1.0, 2 * memory.state / max(memory.switch, 1e-9))


def _assumptions(recipe: Recipe, on_gpu: bool) -> tuple[str, ...]:
    found = ["responses are as long as at the start of training", "groups and weights are handed over in no time"]
    if recipe.algorithm.uniform_groups == "resample":
        found.append("dynamic sampling asks once")
    if on_gpu:
        found.append("models were measured on one accelerator: n of them do an n-th of the work each")
        found.append("prompts and reward have one worker each, and no stage begins before the one before it has ended")
    else:
        found.append("every stage has one worker, and none begins before the one before it has ended")
    return tuple(found)
