"""Several nodes: what is checked before a run, how clocks are brought together, and a run over two real Ray nodes of
one machine, whose links are real torch.distributed links."""

import asyncio
import dataclasses
import json
import socket
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.errors import ConfigurationError
from embodied.scheduler import Flow, Plan, Route, StagePlan, clocks
from embodied.scheduler.clocks import ClockOffset, aligned, measure, offset_from
from embodied.scheduler.preflight import NodeAnswer, Probe, check_nodes, interface_of
from embodied.scheduler.ray_launcher import RayLauncher
from tests.scheduler.network import Putter, Script, Taker
from tests.scheduler.test_channel_networks import check

pytestmark = pytest.mark.alone

OWN = Probe("127.0.0.1").facts()


def test_nodes_that_fit_together_pass_and_every_fault_is_named_at_once():
    check_nodes(OWN, {"node0 (a)": NodeAnswer(OWN, {}), "node1 (b)": NodeAnswer(OWN, {})})
    old = dataclasses.replace(OWN, torch="2.0.1", project="0.0.9 abc", shared_memory=1 << 20)
    with pytest.raises(ConfigurationError) as caught:
        check_nodes(OWN, {"node0 (a)": NodeAnswer(OWN, {"node1 (b)": "10.0.0.2:4242: timed out"}),
                          "node1 (b)": NodeAnswer(old, {})})  # fmt: skip
    message = str(caught.value)
    assert f"node1 (b) runs torch 2.0.1, this process {OWN.torch}" in message
    assert "node1 (b) runs project 0.0.9 abc" in message
    assert "node1 (b) has 1 MiB free in /dev/shm, 64 are needed" in message
    assert "node0 (a) cannot connect to node1 (b) (10.0.0.2:4242: timed out); open all TCP ports" in message


def test_a_probe_is_reached_and_a_closed_or_foreign_port_is_not():
    probe = Probe("127.0.0.1")
    place = ("127.0.0.1", probe.listen())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        closed = socket.create_server(("127.0.0.1", 0))
        gone = closed.getsockname()
        closed.close()
        others = {"good": place, "gone": gone, "silent": silent.getsockname()}
        failed = Probe("127.0.0.1").reach(others, seconds=0.2)
    probe.close()
    assert sorted(failed) == ["gone", "silent"]
    assert "refused" in failed["gone"]
    assert "timed out" in failed["silent"]
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None


@given(st.floats(-1e5, 1e5), st.floats(-1e-4, 1e-4), st.floats(0, 1000))
def test_a_moment_of_a_drifting_clock_comes_back_to_ours(ahead, drift, moment):
    def theirs(ours):
        return ours + ahead + drift * ours

    first, last = (ClockOffset(theirs(at) - at, 0.0, at) for at in (0.0, 1000.0))
    assert abs(aligned(theirs(moment), first, last) - moment) < 1e-3


def test_the_quickest_exchange_gives_the_offset(monkeypatch):
    assert offset_from(10.0, 60.5, 11.0) == ClockOffset(50.0, 0.5, 10.5)
    ours = 0.0
    monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter=lambda: ours))
    # seconds there and back; theirs is 100 ahead, and the slow exchanges would have it 98.5 and 101 ahead
    ways = iter([(1.0, 4.0), (0.5, 0.5), (3.0, 1.0)])

    async def ask():
        nonlocal ours
        there, back = next(ways)
        ours += there
        theirs = ours + 100
        ours += back
        return theirs

    assert asyncio.run(measure(ask, exchanges=3)) == ClockOffset(100.0, 0.5, 5.5)


@pytest.fixture(scope="module")
def two_nodes():
    """A Ray cluster of two nodes, as two sets of processes of this machine; its address."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    yield cluster.address
    cluster.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("route", [Route.READY, Route.KEY])
def test_a_run_over_two_nodes_loses_nothing_and_its_trace_has_one_clock(tmp_path, two_nodes, route):
    items = [[[((0, n % 3), None, 1) for n in range(20)] for _ in range(2)] for _ in range(2)]
    script = Script(items, [0])
    flow = Flow("network")
    put = flow.stage("put", Putter, script, scales_with="items")
    take = flow.stage("take", Taker, script, scales_with="items")
    flow.edge(put.out, take.came, route=route)
    devices = ("node0/cpu", "node1/cpu")
    stages = {"put": StagePlan(devices=devices), "take": StagePlan(devices=devices)}
    plan = Plan(flow="network", launcher="ray", stages=stages)

    async def scenario():
        began = time.perf_counter()
        async with RayLauncher(flow, plan, seed=0, deadline=60.0, address=two_nodes) as system:
            facts = [await actor.facts.remote() for group in system.groups.values() for actor in group.actors]
            assert len(system._nodes()) == 2
            assert len({pid for *_, pid in facts}) == 4
            rounds = []
            for number in range(2):
                calls = (system.group("put").call("run", number), system.group("take").call("run"))
                rounds.append((await system.together(*calls))[1])
            await system.write_trace(tmp_path / "trace.json")
            return rounds, time.perf_counter() - began

    rounds, seconds = asyncio.run(scenario())
    check(rounds, script, 2, 2, {"route": route, "granularity": None})
    trace = json.loads((tmp_path / "trace.json").read_text())
    (clock,) = trace["otherData"]["clocks"].values()
    assert abs(clock["seconds"]) <= clock["error"] + 1e-3  # two nodes of one machine have one clock
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    named = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert {named[event["tid"]] for event in spans} >= {"take[0]", "take[1]"}  # both consumers have waited
    assert max(event["ts"] + event["dur"] for event in spans) < seconds * 1e6


@pytest.mark.slow
def test_training_over_two_nodes_gives_the_bits_of_one_process(tmp_path, two_nodes):
    from tests.interaction.test_same_everywhere import assert_same, one_iteration

    options = [
        "cluster.launcher=ray",
        f"cluster.address={two_nodes}",
        "cluster.devices.env=[node0/cpu,node1/cpu]",
        "cluster.devices.policy=[node1/cpu]",
        "cluster.devices.learner=[node0/cpu]",
    ]
    assert_same(one_iteration(tmp_path, *options), one_iteration(tmp_path))


@pytest.mark.slow
def test_a_node_that_has_other_code_is_refused(two_nodes, monkeypatch):
    flow = Flow("network")
    put = flow.stage("put", Putter, Script([], [0]), scales_with="items")
    take = flow.stage("take", Taker, Script([], [0]), scales_with="items")
    flow.edge(put.out, take.came)
    stages = {"put": StagePlan(devices=("node0/cpu",)), "take": StagePlan(devices=("node1/cpu",))}
    plan = Plan(flow="network", launcher="ray", stages=stages)
    monkeypatch.setattr("embodied.scheduler.preflight.code_version", lambda _: "9.9.9 feed torch 2")

    async def scenario():
        async with RayLauncher(flow, plan, seed=0, deadline=60.0, address=two_nodes):
            pass

    with pytest.raises(ConfigurationError, match=r"node1 \(.*\) runs project .*, this process 9.9.9 feed"):
        asyncio.run(scenario())
