"""What an evaluation reports, from episodes that are known, and that dividing it over workers changes none of them."""

import asyncio
import dataclasses
import json

import pytest

import embodied.interaction.env_worker as env_worker_module
import embodied.interaction.policy_worker as policy_worker_module
from embodied.interaction.assignments import evaluation_assignments
from embodied.interaction.env_worker import EnvWorker, EnvWorkerOptions
from embodied.interaction.evaluate import results_record
from embodied.interaction.evaluation import EvaluationResult, episode_metrics
from embodied.interaction.messages import FinishedEpisode, Rollout
from embodied.interaction.policy_worker import PolicyWorker, PolicyWorkerOptions
from embodied.interaction.recipe import EvaluationConfig
from embodied.scheduler import Flow, Route
from embodied.scheduler.plan import single_device_plan
from envs.api import ActionSpec, Bounds, EnvConfig, EnvSpec
from policies.api import PolicyConfig, Sampling
from tests.interaction.counting import CountingPolicy, launch, scripted_env

SPEC = EnvSpec(
    id="test/Arm",
    action=ActionSpec(Bounds.CONTINUOUS, 1, (-1.0,), (1.0,)),
    state_dim=1,
    instructions=("push the cube", "pull the cube"),
    tasks=2,
    initial_states=(0, 0),
)
# three of four succeed, but only one still does at its end
EPISODES = (
    FinishedEpisode(1, -1, 10, length=4, returns=1.0, success_once=True, success_at_end=False),
    FinishedEpisode(0, -1, 11, length=6, returns=2.0, success_once=True, success_at_end=True),
    FinishedEpisode(0, -1, 12, length=9, returns=0.5, success_once=False, success_at_end=False),
    FinishedEpisode(0, -1, 13, length=5, returns=4.5, success_once=True, success_at_end=False),
)


@pytest.fixture
def record(tmp_path):
    (tmp_path / "policy.json").write_text(
        json.dumps({"kind": "openvla_oft", "options": {"prompt": "openvla"}, "interface": {}})
    )
    return results_record(
        EvaluationResult(EPISODES),
        SPEC,
        policy=tmp_path,
        env=EnvConfig(id=SPEC.id),
        options=EvaluationConfig(episodes=4),
        versions={},
        device="cpu",
    )


def test_the_prompts_are_told_that_the_policy_reads(record):
    assert record["prompts"] == [
        "In: What action should the robot take to push the cube?\nOut:",
        "In: What action should the robot take to pull the cube?\nOut:",
    ]


def test_rates_are_shares_of_the_episodes_and_the_interval_is_that_of_success_at_any_step(record):
    assert record["metrics"] == {
        "eval/success_once": 0.75,
        "eval/success_once_low": pytest.approx(0.3006, abs=1e-4),  # Wilson's interval of 3 in 4
        "eval/success_once_high": pytest.approx(0.9544, abs=1e-4),
        "eval/success_at_end": 0.25,
        "eval/return": 2.0,
        "eval/length": 6.0,
        "eval/episodes": 4.0,
    }


def test_each_task_has_its_own_episodes_successes_and_interval(record):
    push, pull = record["tasks"]
    assert (push["task"], push["instruction"], push["episodes"], push["successes"]) == (0, "push the cube", 3, 2)
    assert push["interval"] == pytest.approx((0.2077, 0.9385), abs=1e-4)
    assert (pull["task"], pull["instruction"], pull["episodes"], pull["successes"]) == (1, "pull the cube", 1, 1)
    assert pull["interval"] == pytest.approx((0.2065, 1.0), abs=1e-4)


def test_episodes_are_told_one_by_one_in_their_order(record):
    assert [FinishedEpisode(**episode) for episode in record["episodes"]] == list(EPISODES)


def test_episodes_that_finish_in_training_are_told_alike_without_intervals():
    assert episode_metrics(EPISODES, has_success=True) == {
        "train/success_once": 0.75,
        "train/success_at_end": 0.25,
        "train/return": 2.0,
        "train/length": 6.0,
        "train/episodes": 4.0,
    }
    assert "train/success_once" not in episode_metrics(EPISODES, has_success=False)


def evaluated_by(monkeypatch, workers):
    """Seven episodes with drawn actions, played by env workers that have six environments together."""
    monkeypatch.setattr(env_worker_module.registry, "make", scripted_env)
    monkeypatch.setattr(policy_worker_module.registry, "build", lambda *arguments, **options: CountingPolicy(3, 1))
    flow = Flow("test")
    options = EnvWorkerOptions(EnvConfig(id="test/scripted", num_envs=6, processes=0))
    env = flow.stage("env", EnvWorker, options, scales_with="environments")
    acting = PolicyWorkerOptions(PolicyConfig(name="counting"), None)
    policy = flow.stage("policy", PolicyWorker, acting, scales_with="items")
    flow.edge(env.questions, policy.questions)
    flow.edge(policy.decisions, env.decisions, route=Route.OWNER)
    plan = single_device_plan(flow, "cpu", 1)
    placed = dataclasses.replace(plan.stages["env"], devices=("cpu",) * workers)
    plan = dataclasses.replace(plan, stages={**plan.stages, "env": placed})

    async def scenario():
        async with launch(flow, plan) as system:
            assignments = evaluation_assignments(5, 7, system.announced["env"])
            rollout = Rollout(0, 0, "evaluate", Sampling())
            parts, _ = await system.together(
                system.group("env").call("evaluate", assignments), system.group("policy").call("act", rollout)
            )
            assert len(parts) == workers
            return [episode for part in parts for episode in part]

    return asyncio.run(scenario())


def test_drawn_actions_of_an_evaluation_do_not_depend_on_the_number_of_env_workers(monkeypatch):
    alone = evaluated_by(monkeypatch, 1)
    assert len({episode.returns for episode in alone}) == 7  # each episode has noise of its own
    assert evaluated_by(monkeypatch, 2) == alone
    assert evaluated_by(monkeypatch, 3) == alone
