"""One iteration gives the same trajectories and the same parameters wherever its workers are."""

import asyncio
import collections
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

SMALL = [
    "env.num_envs=12",
    "rollout.decisions=10",
    "learner.global_batch=40",
    "learner.micro_batch=10",
    "learner.epochs=2",
    "policy.hidden=[16,16]",
    "cluster.deadline_seconds=60",
]


def one_iteration(tmp_path, *overrides, granularity=None):
    """The trajectory, the learner's state afterwards, and the acting policy's weights. granularity: by stage."""
    recipe = parse_recipe("test", compose_recipe("gym_cartpole_ppo_mlp", [*SMALL, *overrides]))
    flow = embodied_flow(recipe, tmp_path)
    plan = make_plan(recipe, flow)
    tap = flow.stage("tap", Tap, scales_with="items")
    flow.edge(flow.stages["env"].trajectories, tap.trajectories)
    stages = {n: dataclasses.replace(s, granularity=(granularity or {}).get(n)) for n, s in plan.stages.items()}
    plan = dataclasses.replace(plan, stages={**stages, "tap": StagePlan(devices=("cpu",))})

    async def scenario():
        async with make_launcher(flow, plan, seed=recipe.seed, cluster=recipe.cluster) as system:
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
                states = await system.group("learner").call("state_dict")
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
    ray.init(include_dashboard=False, log_to_driver=False, object_store_memory=128 << 20)
    yield
    ray.shutdown()


PLACEMENTS = {"shared": 0.0, "split": 0.0, "mixed": 1e-6}
MATRIX = [
    pytest.param(
        [f"cluster.placement={placement}", f"cluster.workers.env={workers}", f"env.slots={slots}"],
        tolerance,
        None,
        # the one that differs most from coroutines is always tested
        marks=[] if (placement, workers, slots) == ("mixed", 2, 2) else pytest.mark.slow,
        id=f"{placement} {workers} env workers {slots} slots",
    )
    for (placement, tolerance), workers, slots in itertools.product(PLACEMENTS.items(), (1, 2, 3), (1, 2))
]
OTHERS = [
    pytest.param(options, tolerance, granularity, marks=pytest.mark.slow, id=" ".join(options) or "pieces")
    for options, tolerance, granularity in [
        (["cluster.memory_mib=0.012"], 0.0, None),
        (["cluster.placement=split", "cluster.workers.policy=2", "cluster.workers.env=2", "env.slots=2"], 0.0, None),
        (["cluster.placement=mixed", "cluster.workers.env=2"], 1e-6, {"env": 2, "learner": 30}),
        ([], 0.0, {"env": 1, "learner": 30}),
    ]
]


@pytest.mark.parametrize(("overrides", "tolerance", "granularity"), [*MATRIX, *OTHERS])
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
        if stage in ("env", "policy", "learner"):
            assert {BUSY, WAIT} <= found, worker
        if swapping and stage in ("policy", "learner"):
            assert {LOAD, "load", "unload"} <= found, worker
    assert any(TRANSFER in found for found in seen.values())
    assert {worker.split("[")[0] for worker in seen} == {"env", "policy", "learner", "tap"}
