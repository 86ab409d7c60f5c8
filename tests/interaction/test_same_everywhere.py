"""One iteration gives the same trajectories and the same parameters wherever its workers are."""

import asyncio
import collections
import copy
import dataclasses
import itertools
import json

import pytest
import torch

from embodied.config.compose import compose_recipe
from embodied.interaction.flow import embodied_flow
from embodied.interaction.messages import Rollout
from embodied.interaction.placement import make_plan
from embodied.interaction.recipe import parse_recipe
from embodied.scheduler import StagePlan
from embodied.scheduler.launch import make_launcher
from embodied.scheduler.trace import BUSY, LOAD, TRANSFER, WAIT
from tests.interaction.tap import Tap
from tests.scheduler.network import Hosted

SMALL = [
    "env.num_envs=12",
    "rollout.decisions=10",
    "learner.global_batch=40",
    "learner.micro_batch=10",
    "learner.epochs=2",
    "policy.hidden=[16,16]",
    "policy.scale=running",
    "cluster.deadline_seconds=60",
]


def one_iteration(tmp_path, *overrides, granularity=None, launcher=make_launcher):
    """The trajectory, the learner's state afterwards, and the acting policy's weights. granularity: by stage."""
    recipe = parse_recipe("test", compose_recipe("gym_cartpole_ppo_mlp", [*SMALL, *overrides]))
    flow = embodied_flow(recipe, tmp_path)
    plan = make_plan(recipe, flow)
    tap = flow.stage("tap", Tap, scales_with="items")
    flow.edge(flow.stages["env"].trajectories, tap.trajectories)
    stages = {n: dataclasses.replace(s, granularity=(granularity or {}).get(n)) for n, s in plan.stages.items()}
    plan = dataclasses.replace(plan, stages={**stages, "tap": StagePlan(devices=("cpu",))})

    async def scenario():
        async with launcher(flow, plan, seed=recipe.seed, cluster=recipe.cluster) as system:
            budget = recipe.cluster.memory_mib
            swapping = await system.set_residency(None if budget is None else int(budget * 2**20))
            assert (budget is None) == (swapping == [])
            async with system.turn("policy", "learner"):
                await system.sync_weights(0)
            for iteration in range(2):
                rollout = Rollout(iteration, recipe.rollout.decisions, "act", recipe.algorithm.sampling)
                async with system.turn("env", "policy"):
                    *_, record = await system.together(
                        system.group("env").call("collect", rollout),
                        system.group("policy").call("act", rollout),
                        system.group("tap").call("take"),
                    )
                async with system.turn("learner"):
                    await system.group("learner").call("learn", iteration)
                async with system.turn("policy", "learner"):
                    await system.sync_weights(iteration + 1)
            async with system.turn("learner"):
                # a copy: in this process these are the learner's own tensors, which may be unloaded
                states = copy.deepcopy(await system.group("learner").call("state_dict"))
            async with system.turn("policy"):
                acting = await system.group("policy").call("acting_weights")
            await system.write_trace(tmp_path / "trace.json")
            return record[0], states[0], acting[0]

    return asyncio.run(scenario())


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return one_iteration(tmp_path_factory.mktemp("reference"))


def assert_same(result, reference, tolerance=0.0):
    (record, state, acting), (expected_record, expected_state, _) = result, reference
    for name, expected in expected_record.items():
        if isinstance(expected, torch.Tensor) and expected.is_floating_point() and tolerance:
            assert torch.allclose(record[name], expected, rtol=0, atol=tolerance), name
        else:
            assert bool((record[name] == expected).all()), name
    for name, expected in expected_state["policy"].items():
        assert torch.allclose(state["policy"][name], expected, rtol=0, atol=tolerance), name
        assert torch.equal(acting[name], state["policy"][name]), f"{name} acts with other weights than were learnt"


@pytest.mark.parametrize(
    "overrides",
    [
        *([f"cluster.workers.env={n}", f"env.slots={k}"] for n in (1, 2, 3) for k in (1, 2) if (n, k) != (1, 1)),
        ["cluster.workers.policy=2", "cluster.workers.env=2"],
    ],
    ids=lambda o: " ".join(o),
)
def test_coroutines_in_any_number_give_the_same_bits(tmp_path, reference, overrides):
    assert_same(one_iteration(tmp_path, "cluster.launcher=inline", *overrides), reference)


@pytest.mark.parametrize("granularity", [{"env": 1}, {"env": 4, "learner": 30}, {"learner": 1}], ids=str)
def test_trajectories_in_pieces_change_no_bit(tmp_path, reference, granularity):
    options = ["cluster.launcher=inline", "cluster.workers.env=2"]
    assert_same(one_iteration(tmp_path, *options, granularity=granularity), reference)


@pytest.fixture(scope="module")
def one_ray():
    """A Ray that all tests here use, instead of one each."""
    ray = pytest.importorskip("ray")
    ray.init(address="local", include_dashboard=False, log_to_driver=False, object_store_memory=128 << 20)
    yield
    ray.shutdown()


def hosted(flow, plan, *, seed, cluster):
    """Hosts and links as under Ray, without its processes."""
    return Hosted(flow, plan, seed=seed, deadline=cluster.deadline_seconds)


def case(placement, workers, slots):
    return [f"cluster.placement={placement}", f"cluster.workers.env={workers}", f"env.slots={slots}"]


@pytest.mark.parametrize(
    ("overrides", "granularity"),
    [
        *((case(*chosen), None) for chosen in itertools.product(("shared", "split"), (1, 2, 3), (1, 2))),
        (["cluster.memory_mib=0.012"], None),
        ([*case("split", 2, 2), "cluster.workers.policy=2"], None),
        (case("split", 2, 1), {"env": 1, "learner": 30}),
    ],
    ids=str,
)
def test_hosts_and_links_give_the_same_bits(tmp_path, reference, overrides, granularity):
    result = one_iteration(tmp_path, "cluster.launcher=ray", *overrides, granularity=granularity, launcher=hosted)
    assert_same(result, reference)
    check_trace(tmp_path / "trace.json", swapping="cluster.memory_mib=0.012" in overrides)


@pytest.mark.parametrize(
    ("overrides", "tolerance", "granularity"),
    [
        (case("mixed", 2, 2), 1e-6, None),
        pytest.param(case("mixed", 3, 1), 1e-6, {"env": 2, "learner": 30}, marks=pytest.mark.slow),
        pytest.param(case("mixed", 1, 2), 1e-6, None, marks=pytest.mark.slow),
        pytest.param(case("shared", 2, 2), 0.0, None, marks=pytest.mark.slow),
        pytest.param([*case("split", 3, 2), "cluster.workers.policy=2"], 0.0, None, marks=pytest.mark.slow),
        pytest.param(["cluster.memory_mib=0.012"], 0.0, None, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_processes_give_what_coroutines_give(tmp_path, reference, one_ray, overrides, tolerance, granularity):
    """Bitwise with one learner; two learner ranks add their gradients in another order, hence 1e-6 (float32)."""
    result = one_iteration(tmp_path, "cluster.launcher=ray", *overrides, granularity=granularity)
    assert_same(result, reference, tolerance)
    check_trace(tmp_path / "trace.json", swapping="cluster.memory_mib=0.012" in overrides)


def check_trace(path, swapping):
    """Every rank's work, waits and transfers are in the trace, and its switching where it had to."""
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    seen = collections.defaultdict(set)
    for event in events:
        if event["ph"] == "X":
            seen[names[event["tid"]]] |= {event["cat"], event["name"]}
            assert event["dur"] >= 0
    for worker, found in seen.items():
        stage = worker.split("[")[0]
        if stage != "tap":
            assert BUSY in found, worker
        if stage in ("env", "policy"):  # the learner's data is there when it begins
            assert WAIT in found, worker
        if swapping and stage in ("policy", "learner"):
            assert {LOAD, "load", "unload"} <= found, worker
    assert any(TRANSFER in found for found in seen.values())
    assert {worker.split("[")[0] for worker in seen} == {"env", "policy", "learner", "tap"}
