"""From measured times of a recipe's stages to its cost profile: which time belongs to which stage, and the fits."""

from __future__ import annotations

import statistics

from embodied.interaction.profiling import MOST_SLOTS, Setting, Timing, measured_decisions
from embodied.interaction.recipe import Recipe
from embodied.scheduler.planner.fit import fit_time
from embodied.scheduler.planner.profile import (
    CycleProfile,
    EdgeProfile,
    FlowProfile,
    MemoryModel,
    StageCost,
    StageProfile,
    SwitchModel,
    WeightsProfile,
)
from embodied.training.measuring import measurement, share, this_machine
from envs import registry as env_registry


def build_profile(recipe: Recipe, timings: list[Timing]) -> FlowProfile:
    """Cost models of the three stages, fitted to `timings`; the first one is of the recipe's own size."""
    on_gpu = recipe.device() != "cpu"
    rounds = recipe.rollout.decisions
    whole = recipe.env.num_envs
    kind = "accelerator" if on_gpu else "cpu"
    # simulators: what the pool's hand-over costs lies between one process and none, see `_hop`
    simulating = [
        measurement(t.setting.num_envs, max(1, t.setting.processes), t.env) for t in timings if t.setting.processes != 1
    ]
    own = [t for t in timings if t.setting.processes == 0]
    deciding = [measurement(t.setting.num_envs, 1, t.policy) for t in own]
    decisions = {t.setting: measured_decisions(recipe, t.setting) for t in own}
    learning = [measurement(t.setting.num_envs * decisions[t.setting], 1, t.learner) for t in own]
    memory, switch = _memory(own) if on_gpu else ({}, None)
    one_worker = None if on_gpu else 1
    env_kind = kind if on_gpu and env_registry.in_process(recipe.env) else "cpu"
    stages = {
        "env": StageProfile(
            items=whole,
            on={env_kind: StageCost(time=fit_time(simulating), measurements=tuple(simulating))},
            pooled=env_kind == "cpu",
        ),
        "policy": StageProfile(
            items=whole,
            on={
                kind: StageCost(
                    time=fit_time(deciding),
                    memory=memory.get("policy", MemoryModel()),
                    switch=switch,
                    max_replicas=one_worker,
                    measurements=tuple(deciding),
                )
            },
            traced=share([t.acting for t in own], [[p * decisions[t.setting] for p in t.policy] for t in own]),
        ),
        "learner": StageProfile(
            items=whole * rounds,
            on={
                kind: StageCost(
                    time=fit_time(learning),
                    memory=memory.get("learner", MemoryModel()),
                    switch=switch,
                    max_replicas=one_worker,
                    measurements=tuple(learning),
                )
            },
            traced=share([t.learning for t in own], [t.learner for t in own]),
        ),
    }
    hop, per_item = _hop(timings)
    return FlowProfile(
        flow="embodied",
        stages=stages,
        edges=(
            EdgeProfile(source="policy", target="env", latency_seconds=hop, seconds_per_item=per_item),
            EdgeProfile(source="env", target="policy"),
            EdgeProfile(source="env", target="learner"),
        ),
        cluster=this_machine(recipe.device(), every_gpu=recipe.cluster.device == "auto"),
        cycles=(
            CycleProfile(
                stages=("policy", "env"), rounds=rounds, max_slots=MOST_SLOTS, slot_counts=_slot_counts(recipe)
            ),
        ),
        weights=(WeightsProfile(source="learner", target="policy"),),
        assumptions=_assumptions(on_gpu),
        unit="environment steps",
        amount=float(recipe.steps_per_iteration),
        start_seconds=max(t.starting for t in timings),
    )


def _assumptions(on_gpu: bool) -> tuple[str, ...]:
    common = ("a decision costs the same at every point of a rollout", "weights are handed over in no time")
    if not on_gpu:
        return (*common, "policy and learner have one worker each")
    return (*common, "policy and learner were measured on one accelerator: n of them do an n-th of the work each")


def _slot_counts(recipe: Recipe) -> tuple[int, ...]:
    """Numbers of slots into which whole groups of environments divide."""
    unit = recipe.algorithm.group_size
    return tuple(k for k in range(1, MOST_SLOTS + 1) if recipe.env.num_envs % (k * unit) == 0)


def _hop(timings: list[Timing]) -> tuple[float, float]:
    """(seconds, seconds an environment) that it costs in a round to have simulators in a process of their own: what a
    round with one process takes longer than one in this process."""
    by_setting = {t.setting: t for t in timings}
    more = []
    for setting, timing in by_setting.items():
        here = by_setting.get(Setting(setting.num_envs, 0))
        if setting.processes == 1 and here is not None:
            rounds = [statistics.median(t.env) + statistics.median(t.policy) for t in (timing, here)]
            more.append((setting.num_envs, max(0.0, rounds[0] - rounds[1])))
    if not more:
        return 0.0, 0.0
    if len(more) == 1:
        return more[0][1], 0.0
    (large, at_large), (small, at_small) = more[:2]
    per_item = max(0.0, (at_large - at_small) / (large - small))
    return max(0.0, at_large - per_item * large), per_item


def _memory(own: list[Timing]) -> tuple[dict[str, MemoryModel], SwitchModel]:
    """Memory of policy and learner on an accelerator, and what it costs to bring it away and back."""
    first, last = own[0], own[-1]
    assert first.memory is not None
    assert last.memory is not None
    assert first.switch is not None
    per_env = 0.0
    if first.setting.num_envs > last.setting.num_envs:
        grown = first.memory.acting - last.memory.acting
        per_env = max(0.0, grown / (first.setting.num_envs - last.setting.num_envs))
    acting = max(0.0, first.memory.acting - per_env * first.setting.num_envs)
    seconds, size = first.switch
    models = {
        "policy": MemoryModel(state_bytes=float(first.memory.policy), working_bytes=acting, item_bytes=per_env),
        "learner": MemoryModel(
            state_bytes=float(first.memory.learner), state="sharded", working_bytes=float(first.memory.learning)
        ),
    }
    return models, SwitchModel(bytes_per_second=max(1.0, 2 * size / max(seconds, 1e-9)))
