import pytest

from embodied.config.compose import compose_recipe
from embodied.errors import ConfigurationError
from embodied.interaction.flow import embodied_flow
from embodied.interaction.placement import make_plan
from embodied.interaction.recipe import parse_recipe
from embodied.scheduler import Flow, Plan, StagePlan, Worker
from embodied.scheduler.cluster import Node, place, share_of_cores
from embodied.scheduler.plan import fit_memory

NODES = [Node("a", "10.0.0.1", cores=8, gpus=2), Node("b", "10.0.0.2", cores=4, gpus=0)]


def flow(*stages):
    made = Flow("test")
    for name in stages:
        made.stage(name, Worker, scales_with="items")
    return made


def plan(**devices):
    return Plan(flow="test", launcher="ray", stages={name: StagePlan(devices=d) for name, d in devices.items()})


def test_workers_get_nodes_devices_and_shares_of_the_cores():
    placed = place(flow("x", "y"), plan(x=("cuda:1", "node1/cpu"), y=("cpu:0", "cpu:1", "cpu:2")), NODES)
    assert [(p.node.id, p.device, p.share) for p in placed["x"]] == [("a", "cuda:1", None), ("b", "cpu", None)]
    assert [p.share for p in placed["y"]] == [(0, 3), (1, 3), (2, 3)]


def test_shares_divide_the_cores_that_a_process_may_use():
    assert [share_of_cores(range(8), i, 3) for i in range(3)] == [(0, 1), (2, 3, 4), (5, 6, 7)]
    assert [share_of_cores({12, 5, 4, 13}, i, 2) for i in range(2)] == [(4, 5), (12, 13)]
    assert [share_of_cores({7, 9}, i, 3) for i in range(3)] == [(7,), (9,), (7,)]


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        (("cuda:2",), ["cuda:2", "8 cores, 2 GPUs"]),
        (("node2/cpu",), ["node2/cpu", "node1 (10.0.0.2): 4 cores, 0 GPUs"]),
        (("gpu0",), ["'gpu0' is no device"]),
        (tuple(f"cpu:{i}" for i in range(9)), ["9 shares", "8 cores"]),
    ],
)
def test_an_impossible_placement_is_refused_with_what_the_cluster_has(devices, words):
    with pytest.raises(ConfigurationError) as caught:
        place(flow("x"), plan(x=devices), NODES)
    assert all(word in str(caught.value) for word in words)


def test_stages_swap_where_their_state_does_not_fit_together():
    wanted = plan(policy=("cuda:0",), learner=("cuda:0", "cuda:1"), env=("cpu",))
    sizes = {"policy": [30], "learner": [60, 60], "env": [0]}
    assert all(s.resident for s in fit_memory(wanted, sizes, budget=90).stages.values())
    fitted = fit_memory(wanted, sizes, budget=80)
    assert {n: s.resident for n, s in fitted.stages.items()} == {"policy": False, "learner": False, "env": True}
    with pytest.raises(ConfigurationError, match="stage learner alone"):
        fit_memory(wanted, sizes, budget=50)


def planned(*overrides):
    recipe = parse_recipe("test", compose_recipe("gym_cartpole_ppo_mlp", list(overrides)))
    from pathlib import Path

    return make_plan(recipe, embodied_flow(recipe, Path("unused")))


def devices(made):
    return {name: stage.devices for name, stage in made.stages.items()}


def test_named_placements_on_a_machine_without_gpus():
    shared = planned()
    assert shared.launcher == "inline"
    assert devices(shared) == {"env": ("cpu",), "policy": ("cpu",), "learner": ("cpu",)}
    split = planned("cluster.placement=split")
    assert split.launcher == "ray"
    assert devices(split) == {"env": ("cpu",), "policy": ("cpu:0",), "learner": ("cpu:1",)}
    mixed = planned("cluster.placement=mixed", "cluster.workers.env=3")
    assert devices(mixed) == {"env": ("cpu",) * 3, "policy": ("cpu:0",), "learner": ("cpu:0", "cpu:1")}
    table = planned("cluster.devices.policy=[cpu:0,cpu:1]")
    assert devices(table)["policy"] == ("cpu:0", "cpu:1")
    assert table.launcher == "ray"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["cluster.workers.envs=2"], ["'envs'", "Did you mean 'env'"]),
        (["cluster.workers.env=0"], ["at least one worker"]),
        (["cluster.workers.env=9"], ["at most 8", "env.num_envs=9"]),
        (["cluster.launcher=inline", "cluster.address=auto"], ["cannot use cluster.address"]),
    ],
)
def test_placements_that_cannot_be_are_refused(overrides, words):
    with pytest.raises(ConfigurationError) as caught:
        planned(*overrides)
    assert all(word in str(caught.value) for word in words), str(caught.value)
