"""Two slots against one: how much of the simulators' time and the policy's disappears behind the other.

    OMP_NUM_THREADS=1 python benchmarks/slots.py [--write]

ManiSkill PickCube, 256 environments in one simulator process, and an mlp policy whose width is chosen so that a
decision for all of them costs about what their control step does. Both run under the real launcher and workers.
Rollouts with one and with two slots alternate in one run; the times of simulators alone and policy alone, for the same
work, give the bound: no pipeline can be faster than the slower of the two.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import os
import platform
import statistics
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from embodied.interaction.env_worker import EnvWorker, EnvWorkerOptions
from embodied.interaction.messages import Rollout
from embodied.interaction.policy_worker import PolicyWorker, PolicyWorkerOptions
from embodied.interaction.trajectory import Trajectory
from embodied.random import RowNoise
from embodied.scheduler import ACCELERATOR, Flow, Input, Route, Worker
from embodied.scheduler.inline import InlineLauncher
from embodied.scheduler.plan import single_device_plan
from envs import registry as envs
from envs.api import Assignments, Observation
from envs.maniskill.config import ManiSkillConfig
from policies import registry as policies
from policies.api import Sampling
from policies.mlp import MLPConfig

ENVS, DECISIONS = 256, 12
RESULTS = Path(__file__).parent / "results" / "slots.md"


class Sink(Worker):
    """Takes trajectories away."""

    trajectories = Input(Trajectory)

    async def take(self) -> None:
        async for _ in self.trajectories:
            pass


def env_config(slots: int) -> ManiSkillConfig:
    return ManiSkillConfig(id="maniskill/PickCube-v1", num_envs=ENVS, slots=slots, processes=1)


def launcher(slots: int, policy: MLPConfig) -> InlineLauncher:
    flow = Flow("slots")
    env = flow.stage("env", EnvWorker, EnvWorkerOptions(env_config(slots)), scales_with="environments")
    acting = flow.stage(
        "policy", PolicyWorker, PolicyWorkerOptions(policy, None), scales_with="items", needs=ACCELERATOR
    )
    sink = flow.stage("sink", Sink, scales_with="items")
    flow.edge(env.questions, acting.questions)
    flow.edge(acting.decisions, env.decisions, route=Route.OWNER)
    flow.edge(env.trajectories, sink.trajectories, route=Route.SPLIT)
    return InlineLauncher(flow, single_device_plan(flow, "cpu", slots), seed=0, deadline=300.0)


async def rollout(system: InlineLauncher, iteration: int) -> float:
    """Seconds of one rollout."""
    task = Rollout(iteration, DECISIONS, "act", Sampling())
    began = time.perf_counter()
    await system.together(
        system.group("env").call("collect", task),
        system.group("policy").call("act", task),
        system.group("sink").call("take"),
    )
    return time.perf_counter() - began


def simulators_alone(env, actions: torch.Tensor, following: Assignments) -> float:
    """Seconds of the simulators for one rollout's steps, nothing else to do."""
    began = time.perf_counter()
    for _ in range(DECISIONS):
        env.step(actions, 0, following)
    return time.perf_counter() - began


@torch.no_grad()
def policy_alone(policy, observation: Observation) -> float:
    """Seconds of the policy for one rollout's decisions (and the value after the last)."""
    began = time.perf_counter()
    for step in range(DECISIONS + 1):
        noise = RowNoise(0, np.arange(len(observation)), np.full(len(observation), step))
        policy.act(policy.prepare(observation), Sampling(), noise)
    return time.perf_counter() - began


def matched_policy(interface, observation: Observation, target: float) -> MLPConfig:
    """An mlp whose rollout costs about `target` seconds."""
    torch.set_num_threads(1)
    best, gap = None, float("inf")
    for width in range(256, 3073, 128):
        config = MLPConfig(hidden=(width, width, width))
        policy = policies.build(config, interface, seed=0)
        policy_alone(policy, observation)
        seconds = min(policy_alone(policy, observation) for _ in range(2))
        if abs(seconds - target) < gap:
            best, gap = config, abs(seconds - target)
        if seconds > 1.5 * target:
            break
    assert best is not None
    return best


async def measure(rounds: int) -> dict[str, list[float]]:
    following = Assignments.from_seeds(range(1000, 1000 + ENVS))
    actions = torch.zeros(ENVS, 1, 8)
    times: dict[str, list[float]] = {"simulators": [], "policy": [], "one slot": [], "two slots": []}
    with envs.make(env_config(1)) as env:
        observation = env.reset(Assignments.from_seeds(range(ENVS))).clone()
        actions = torch.zeros(ENVS, 1, env.spec.action.dim)
        simulators_alone(env, actions, following)
        target = min(simulators_alone(env, actions, following) for _ in range(3))
        interface = policies.interface_of(env.spec)
        config = matched_policy(interface, observation, target)
        policy = policies.build(config, interface, seed=0)
        async with launcher(1, config) as one, launcher(2, config) as two:
            await rollout(one, 0)
            await rollout(two, 0)
            for index in range(1, rounds + 1):
                times["simulators"].append(simulators_alone(env, actions, following))
                times["policy"].append(policy_alone(policy, observation))
                times["one slot"].append(await rollout(one, index))
                times["two slots"].append(await rollout(two, index))
    return times


def report(times: dict[str, list[float]]) -> str:
    middle = {name: statistics.median(seconds) for name, seconds in times.items()}
    faster = statistics.median(a / b for a, b in zip(times["one slot"], times["two slots"], strict=True))
    bound = [max(s, p) for s, p in zip(times["simulators"], times["policy"], strict=True)]
    share = statistics.median(b / t for b, t in zip(bound, times["two slots"], strict=True))
    load = os.getloadavg()[0]
    lines = [
        "# Two slots against one",
        "",
        f"{dt.date.today()}, {platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, load {load:.1f}.",
        f"ManiSkill PickCube, {ENVS} environments in one process, {DECISIONS} decisions a rollout; medians of "
        f"{len(times['policy'])} alternating rounds.",
        "`OMP_NUM_THREADS=1 python benchmarks/slots.py --write`",
        "",
        "| what | seconds |",
        "|---|---|",
        *[f"| {name} | {seconds:.3f} |" for name, seconds in middle.items()],
        "",
        f"Two slots are **{faster:.2f}x** as fast as one, and reach **{share:.0%}** of the bound: the slower of",
        "simulators alone and policy alone.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--write", action="store_true", help="write the results file")
    args = parser.parse_args()
    text = report(asyncio.run(measure(args.rounds)))
    print(text)
    if args.write:
        RESULTS.write_text(text)
