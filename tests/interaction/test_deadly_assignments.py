"""An assignment that costs its simulator whenever it is played ends a run that would otherwise not end."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest
import torch

import embodied.interaction.env_worker as env_worker_module
import embodied.interaction.policy_worker as policy_worker_module
from embodied.errors import SimulatorError
from embodied.interaction import demonstrate, experts
from embodied.interaction.demonstrate import DemonstrationConfig, assignment_of, record
from embodied.interaction.env_worker import EnvWorker, EnvWorkerOptions
from embodied.interaction.experts import StateExpert, expert_config, with_expert
from embodied.interaction.messages import FinishedEpisode, Rollout
from embodied.interaction.policy_worker import PolicyWorker, PolicyWorkerOptions
from embodied.runs.progress import RunProgress
from embodied.scheduler import Flow, Route
from embodied.scheduler.plan import single_device_plan
from envs import gym
from envs.api import Assignments, EnvConfig, StepResult
from envs.batch import BatchEnv
from envs.local import LocalVectorEnv
from policies.api import PolicyConfig, Sampling
from tests.envs.scripted_env import Habits, ScriptedBatch
from tests.interaction.counting import CountingPolicy, launch
from tests.interaction.deadly_world import DEADLY_SEED, DIES_AT

_ENDLESS = 20


class LosingEnv(LocalVectorEnv):
    """Says that the simulator was lost at a later step of the first `times` plays of the worlds of one seed."""

    deadly, times = DEADLY_SEED, _ENDLESS
    lost = 0

    def recv(self, slot: int = 0) -> StepResult:
        result = super().recv(slot)
        episodes = result.episodes
        failed = (episodes.assignments.seed == self.deadly) & (episodes.length >= DIES_AT) & (self.lost < self.times)
        self.lost += int(failed.any())
        assert self.lost < _ENDLESS, "it is played again without end"
        return dataclasses.replace(result, failed=failed)


def evaluate(config: EnvConfig, *seeds: int) -> tuple[list[FinishedEpisode] | None, SimulatorError | None, int]:
    """The episodes or the error that came instead, and how often a process was started again."""
    flow = Flow("test")
    env = flow.stage("env", EnvWorker, EnvWorkerOptions(config), scales_with="environments")
    policy = flow.stage(
        "policy", PolicyWorker, PolicyWorkerOptions(PolicyConfig(name="counting"), None), scales_with="items"
    )
    flow.edge(env.questions, policy.questions)
    flow.edge(policy.decisions, env.decisions, route=Route.OWNER)

    async def scenario() -> tuple[list[FinishedEpisode] | None, SimulatorError | None, int]:
        async with launch(flow, single_device_plan(flow, "cpu", config.slots)) as system:
            worker = system.group("env").workers[0]
            deciding = asyncio.create_task(system.group("policy").call("act", Rollout(0, 0, "evaluate", Sampling())))
            episodes = error = None
            try:
                episodes = await worker.evaluate(Assignments.from_seeds(seeds))
                await deciding
            except SimulatorError as raised:
                error = raised
                deciding.cancel()
            return episodes, error, getattr(worker.env, "restarts", 0)

    return asyncio.run(scenario())


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_worker_module.registry, "build", lambda *arguments, **options: CountingPolicy(1, 1))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> EnvConfig:
    def make(config: EnvConfig) -> LosingEnv:
        return LosingEnv(lambda n: ScriptedBatch(Habits(), n), config)

    monkeypatch.setattr(env_worker_module.registry, "make", make)
    return EnvConfig(id="test/scripted", num_envs=2, processes=0)


def test_an_evaluation_ends_and_says_by_what(scripted: EnvConfig):
    _, error, _ = evaluate(scripted, 105, DEADLY_SEED, 107)
    assert error is not None
    assert f"3 times while it played task 0, initial state -1, seed {DEADLY_SEED}." in str(error)
    assert "leave out this task or seed" in str(error)


def test_an_evaluation_outlasts_a_few_losses(scripted: EnvConfig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(LosingEnv, "times", 2)
    episodes, error, _ = evaluate(scripted, 105, DEADLY_SEED, 107)
    assert error is None
    assert [episode.seed for episode in episodes] == [105, DEADLY_SEED, 107]
    assert [episode.length for episode in episodes] == [5, 20, 7]


@pytest.mark.slow
@pytest.mark.alone
def test_processes_that_end_over_one_world_end_the_evaluation():
    config = gym.GymConfig(id="gym/tests.interaction.deadly_world:Deadly-v0", num_envs=2, processes=2)
    _, error, restarts = evaluate(config, 1, DEADLY_SEED, 2)
    assert error is not None
    assert f"seed {DEADLY_SEED}" in str(error)
    assert restarts == 3


def still(config: EnvConfig, batch: BatchEnv) -> StateExpert:
    """An expert that does nothing."""
    return StateExpert(lambda state: torch.zeros(len(state), 1))


def demonstrations(folder: Path, monkeypatch: pytest.MonkeyPatch, deadly: int) -> demonstrate.Recorded:
    """Four pendulums recorded, of which the attempt `deadly` loses its simulator."""
    monkeypatch.setitem(experts._KINDS, "gym", experts.ExpertKind(f"{__name__}:still", {}, (0,)))
    values = {"id": "gym/Pendulum-v1", "episode_steps": 8, "num_envs": 2, "processes": 0}
    config = expert_config(values)

    def make(config: gym.GymConfig) -> LosingEnv:
        return LosingEnv(lambda n: with_expert(config, gym.make_batch(config, n)), config)

    monkeypatch.setattr(demonstrate, "make_expert_env", make)
    monkeypatch.setattr(LosingEnv, "deadly", assignment_of(deadly, 0, gym.describe(config))[2])
    with RunProgress(folder / "log.txt", total=4, unit="episodes") as screen:
        return record(config, DemonstrationConfig(episodes=4, keep="all"), folder, screen, values)


def test_a_recording_ends_and_says_by_which_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(SimulatorError) as caught:
        demonstrations(tmp_path, monkeypatch, 2)
    assert f"3 times while it played task 0, initial state -1, seed {LosingEnv.deadly}." in str(caught.value)


def test_a_recording_outlasts_a_few_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(LosingEnv, "times", 2)
    assert demonstrations(tmp_path, monkeypatch, 2).episodes == 4
