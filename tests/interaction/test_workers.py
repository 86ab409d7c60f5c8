"""Environment and policy workers together, over real channels, on a simulator whose answers are known."""

import asyncio

import pytest
import torch

import embodied
import embodied.interaction.env_worker as env_worker_module
import embodied.interaction.policy_worker as policy_worker_module
from embodied.errors import CheckpointError
from embodied.interaction.assignments import evaluation_assignments, left_out
from embodied.interaction.env_worker import EnvWorker, EnvWorkerOptions, environments_of
from embodied.interaction.messages import Rollout
from embodied.interaction.policy_worker import PolicyWorker, PolicyWorkerOptions
from embodied.interaction.trajectory import Trajectory, join
from embodied.runs.metrics import read_metrics
from embodied.scheduler import Flow, Input, Route, Worker
from embodied.scheduler.plan import StagePlan, single_device_plan
from envs.api import ActionSpec, Bounds, EnvConfig, EnvSpec
from policies.api import PolicyConfig, Sampling
from tests.interaction.counting import CountingPolicy, launch, scripted_env


class Collector(Worker):
    trajectories = Input(Trajectory)

    async def take(self):
        parts = sorted([part async for part in self.trajectories], key=lambda part: part[0])
        return join([item for _, item in parts])


def collect(monkeypatch, config, *, decisions, chunk=3, rounds=1, values=1, group_size=1, fresh=False):
    """The trajectories and finished episodes of `rounds` rollouts."""
    monkeypatch.setattr(env_worker_module.registry, "make", scripted_env)
    monkeypatch.setattr(
        policy_worker_module.registry, "build", lambda *arguments, **options: CountingPolicy(chunk, values)
    )
    flow = Flow("test")
    env = flow.stage("env", EnvWorker, EnvWorkerOptions(config, group_size, fresh), scales_with="environments")
    policy = flow.stage(
        "policy", PolicyWorker, PolicyWorkerOptions(PolicyConfig(name="counting"), None), scales_with="items"
    )
    collector = flow.stage("collector", Collector, scales_with="items")
    flow.edge(env.questions, policy.questions)
    flow.edge(policy.decisions, env.decisions, route=Route.OWNER)
    flow.edge(env.trajectories, collector.trajectories)

    async def scenario():
        async with launch(flow, single_device_plan(flow, "cpu", config.slots), seed=4) as system:
            records = []
            for iteration in range(rounds):
                rollout = Rollout(iteration, decisions, "act", Sampling())
                episodes, _, taken = await system.together(
                    system.group("env").call("collect", rollout),
                    system.group("policy").call("act", rollout),
                    system.group("collector").call("take"),
                )
                records.append((taken[0], episodes[0]))
            return records

    return asyncio.run(scenario())


def differences(first, second):
    """Names of the fields that are not equal to the bit."""
    a, b = (record.to_tensordict().flatten_keys() for record in (first, second))
    assert len(a.keys()) == 14
    return [name for name in a.keys() if not torch.equal(a[name], b[name])]  # noqa: SIM118 - a TensorDict


def config(num_envs=4, slots=1, processes=0, **options):
    return EnvConfig(id="test/scripted", num_envs=num_envs, slots=slots, processes=processes, **options)


def test_a_trajectory_holds_what_happened(monkeypatch):
    ((record, episodes),) = collect(monkeypatch, config(), decisions=9)
    assert record.rewards.shape == (9, 4, 3)
    for env in range(4):
        count, assignment = 0, record.assignments[0, env]
        for t in range(9):
            assert record.inputs["state"][t, env, 0] == count
            assert record.state_values[t, env, 0] == count
            for c in range(3):
                if not record.valid[t, env, c]:
                    assert record.rewards[t, env, c] == 0
                    continue
                count += 1
                assert record.rewards[t, env, c] == pytest.approx(count + float(record.tokens[t, env, c, 0]) / 4)
                terminated = count == int(assignment[2]) % 100
                assert bool(record.terminated[t, env, c]) == terminated
                assert bool(record.truncated[t, env, c]) == (count == 20 and not terminated)
            ended = bool((record.terminated | record.truncated)[t, env].any())
            assert record.final_values[t, env, 0] == (count if ended else 0)
            if ended:
                count = 0
                assert (
                    not bool((record.terminated | record.truncated)[t, env, :-1].any()) or not record.valid[t, env, -1]
                )
                if t + 1 < 9:
                    assignment = record.assignments[t + 1, env]
        assert record.state_values[9, env, 0] == count
    assert len(episodes.episodes) == int((record.terminated | record.truncated).sum())


@pytest.mark.parametrize(("slots", "processes"), [(2, 0), (4, 0), (1, 2), (2, 2)])
def test_slots_and_processes_change_nothing_about_what_happens(monkeypatch, slots, processes):
    reference = collect(monkeypatch, config(num_envs=8), decisions=5, rounds=2)
    other = collect(monkeypatch, config(num_envs=8, slots=slots, processes=processes), decisions=5, rounds=2)
    for (first, _), (second, _) in zip(reference, other, strict=True):
        assert differences(first, second) == []


def test_environments_of_a_group_share_their_world_and_differ_in_noise(monkeypatch):
    options = {"auto_reset": "disabled"}
    records = collect(monkeypatch, config(**options), decisions=4, rounds=2, group_size=2, fresh=True, values=0)
    for record, _ in records:
        assert torch.equal(record.assignments[:, 0], record.assignments[:, 1])
        assert not torch.equal(record.assignments[0, 0], record.assignments[0, 2])
        assert record.group_ids[0, 0] == record.group_ids[0, 1] != record.group_ids[0, 2]
        assert not torch.equal(record.tokens[:, 0], record.tokens[:, 1])
    assert not torch.equal(records[0][0].assignments[0, 0], records[1][0].assignments[0, 0])
    assert not set(records[0][0].group_ids[0].tolist()) & set(records[1][0].group_ids[0].tolist())


def test_ignored_terminations_end_nothing_and_are_no_ends_to_the_learner(monkeypatch):
    ((record, episodes),) = collect(monkeypatch, config(ignore_terminations=True), decisions=8)
    assert not bool(record.terminated.any())
    assert bool(record.valid[:6].all())
    assert all(episode.length == 20 for episode in episodes.episodes)


def evaluate(monkeypatch, num_envs, episodes, slots=1):
    monkeypatch.setattr(env_worker_module.registry, "make", scripted_env)
    monkeypatch.setattr(policy_worker_module.registry, "build", lambda *arguments, **options: CountingPolicy(3, 1))
    flow = Flow("test")
    env_options = EnvWorkerOptions(config(num_envs=num_envs, slots=slots))
    env = flow.stage("env", EnvWorker, env_options, scales_with="environments")
    policy = flow.stage(
        "policy", PolicyWorker, PolicyWorkerOptions(PolicyConfig(name="counting"), None), scales_with="items"
    )
    flow.edge(env.questions, policy.questions)
    flow.edge(policy.decisions, env.decisions, route=Route.OWNER)

    async def scenario():
        async with launch(flow, single_device_plan(flow, "cpu", slots)) as system:
            assignments = evaluation_assignments(5, episodes, system.group("env").workers[0].env.spec)
            rollout = Rollout(0, 0, "evaluate", Sampling())
            results, _ = await system.together(
                system.group("env").call("evaluate", assignments),
                system.group("policy").call("act", rollout),
            )
            return results[0], assignments

    return asyncio.run(scenario())


def test_every_assignment_is_played_once_with_the_same_answer_for_any_number_of_environments(monkeypatch):
    reference, assignments = evaluate(monkeypatch, num_envs=1, episodes=11)
    assert [e.seed for e in reference] == assignments.seed.tolist()
    assert [e.task for e in reference] == assignments.task.tolist()
    expected = [min(seed % 100 or 20, 20) for seed in assignments.seed.tolist()]
    assert [e.length for e in reference] == expected
    for num_envs, slots in ((3, 1), (8, 2), (16, 4)):
        assert evaluate(monkeypatch, num_envs, 11, slots)[0] == reference


@pytest.mark.parametrize("slots", [1, 2])
def test_how_often_is_evaluated_changes_nothing_that_is_learnt(tmp_path, slots):
    options = ["env.num_envs=8", f"env.slots={slots}", "rollout.decisions=16", "learner.global_batch=64"]
    options += ["goal.at_least=null", "goal.env_steps=384", "record.episodes=0", "logger.tensorboard=false"]
    options += ["learner.epochs=1", "env.episode_steps=50"]
    found = []
    for every in (0, 1):
        run = embodied.train(
            "gym_cartpole_ppo_mlp",
            [*options, f"evaluation.every={every}", "evaluation.episodes=5", f"run.folder={tmp_path / str(every)}"],
        )
        metrics = read_metrics(run.folder / "metrics.jsonl")
        kept = ("train/", "rollout/", "policy/", "learner/", "value/")
        found.append(
            [{k: v for k, v in r["metrics"].items() if k.startswith(kept) and "second" not in k} for r in metrics]
        )
    # attempts last longer than a rollout, so that most are under way when an evaluation comes
    assert max(m["train/length"] for m in found[0] if "train/length" in m) > 16
    assert found[0] == found[1]


def test_an_evaluation_says_what_it_leaves_out():
    spec = EnvSpec(
        id="x",
        action=ActionSpec(Bounds.CONTINUOUS, 1, (-1.0,), (1.0,)),
        state_dim=1,
        tasks=10,
        initial_states=(0,) * 10,
    )
    assert left_out(20, spec) is None
    assert "tasks 0 to 3 only, of 10" in left_out(4, spec)
    assert "play 4 of 10 tasks 3 times and the others 2 times" in left_out(24, spec)


def test_environments_change_hands_between_episodes_and_not_within():
    options = EnvWorkerOptions(EnvConfig(id="gym/CartPole-v1", num_envs=12), group_size=2, fresh=True)
    parts = [{"rounds": torch.arange(6)}, {"rounds": torch.arange(6, 12)}]
    same = StagePlan(devices=("cpu:0", "cpu:1"))
    assert EnvWorker.divide_state(parts, same, options) == parts
    # two slots of whole groups: three units of four environments
    uneven = EnvWorker.divide_state(parts, StagePlan(devices=("cpu:0", "cpu:1"), slots=2), options)
    assert [part["rounds"].tolist() for part in uneven] == [list(range(4)), list(range(4, 12))]
    assert [environments_of(options, rank, 2, 2) for rank in (0, 1)] == [range(4), range(4, 12)]
    (whole,) = EnvWorker.divide_state(parts, StagePlan(devices=("cpu",)), options)
    assert whole["rounds"].tolist() == list(range(12))
    under_way = [{**part, "env": {}} for part in parts]
    with pytest.raises(CheckpointError, match=r"2 env worker\(s\) with 6, 6 environments, and cannot go on in 1"):
        EnvWorker.divide_state(under_way, StagePlan(devices=("cpu",)), options)
