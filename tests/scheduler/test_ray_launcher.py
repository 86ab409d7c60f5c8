"""The Ray launcher on this machine: results, failures, and that nothing is left behind."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from embodied.errors import DeadlineExceeded, WorkerError
from embodied.scheduler import Flow, Plan, Route, StagePlan
from embodied.scheduler.ray_launcher import RayLauncher
from tests.scheduler.ray_workers import Consumer, Producer

pytestmark = pytest.mark.alone


def launcher(producers=2, consumers=1, deadline=60.0, route=Route.SPREAD, devices=None, threads=1):
    flow = Flow("test")
    producer = flow.stage("producer", Producer, scales_with="items")
    consumer = flow.stage("consumer", Consumer, scales_with="items")
    flow.edge(producer.numbers, consumer.numbers, capacity=2, route=route)
    stages = {
        "producer": StagePlan(devices=devices or ("cpu",) * producers),
        "consumer": StagePlan(devices=("cpu",) * consumers),
    }
    plan = Plan(flow="test", launcher="ray", stages=stages)
    return RayLauncher(flow, plan, seed=0, deadline=deadline, threads=threads)


def ray_processes():
    found = []
    for process in psutil.process_iter(["cmdline", "name"]):
        text = " ".join(process.info["cmdline"] or [])
        if "raylet" in text or "ray::" in text or "gcs_server" in text:
            found.append(process.pid)
    return found


def shared_memory():
    """Names in the machine's shared memory; semaphores are other programs' (nothing here uses named ones)."""
    return {p.name for p in Path("/dev/shm").iterdir() if not p.name.startswith("sem.")}


async def scenario_of_everything():
    async with launcher() as system:
        pid = system.announced["producer"]
        assert pid != os.getpid()
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0)
        for count in (3, 10):
            _, results = await system.together(
                system.group("producer").call("run", count), system.group("consumer").call("run")
            )
            assert results == [(2 * sum(range(count)), pid)]
        with pytest.raises(
            WorkerError, match=r"producer\[1\] failed in raise_an_error: ValueError: a number"
        ) as caught:
            await system.group("producer").call_one(1, "raise_an_error")
        assert "ray_workers.py" in str(caught.value.__cause__)
        started = time.monotonic()
        # told by the launcher, or by the consumer that meets the closed channel first
        with pytest.raises(WorkerError, match=r"producer\[[01]\] (\(pid .*\) )?died"):
            await system.together(system.group("producer").call("die"), system.group("consumer").call("run"))
        assert time.monotonic() - started < 30


@contextlib.contextmanager
def nothing_left_behind():
    """No process of Ray and no name in shared memory is there afterwards that was not before."""
    before, memory = set(ray_processes()), shared_memory()
    yield
    end = time.monotonic() + 20
    while set(ray_processes()) - before and time.monotonic() < end:
        time.sleep(0.2)
    assert set(ray_processes()) - before == set()
    assert shared_memory() - memory == set()


def test_results_failures_and_a_dead_process_and_nothing_is_left_behind():
    with nothing_left_behind():
        asyncio.run(scenario_of_everything())


@pytest.mark.slow
@pytest.mark.parametrize("route", [Route.SPREAD, Route.READY])
def test_the_death_of_a_consumer_ends_the_producers_waits_and_names_it(route):
    async def scenario():
        async with launcher(consumers=2, route=route) as system:
            started = time.monotonic()
            with pytest.raises(WorkerError, match=r"consumer\[1\]"):
                await system.together(
                    system.group("producer").call("run", 100_000),
                    system.group("consumer").call_one(0, "run"),
                    system.group("consumer").call_one(1, "die_after", 20),
                )
            assert time.monotonic() - started < 30
            assert "consumer[1]" in await system.dead()

    asyncio.run(scenario())


@pytest.mark.slow
def test_workers_are_pinned_to_their_share_of_the_cores_and_have_no_more_threads():
    cores = os.cpu_count()

    async def scenario():
        async with launcher(producers=2, devices=("cpu:0", "cpu:1"), threads=64) as system:
            return await system.group("producer").call("cores_and_threads")

    (first, threads), (second, _) = asyncio.run(scenario())
    assert not set(first) & set(second)
    assert threads == len(first) == cores // 2


@pytest.mark.slow
def test_a_wait_past_its_deadline_names_who_waited_for_whom():
    async def scenario():
        async with launcher(deadline=10.0) as system:
            await system.together(system.group("producer").call("wait_for_ever"), system.group("consumer").call("run"))

    with (
        nothing_left_behind(),
        pytest.raises(DeadlineExceeded, match=r"consumer\[0\] waited 10 s .* producer\[0\], producer\[1\]"),
    ):
        asyncio.run(scenario())


@pytest.mark.slow
def test_ctrl_c_ends_every_process_and_leaves_no_memory(tmp_path):
    script = textwrap.dedent("""
        import asyncio
        from tests.scheduler.test_ray_launcher import launcher

        async def main():
            async with launcher() as system:
                print("up", flush=True)
                await system.group("producer").call("wait_for_ever")

        asyncio.run(main())
    """)
    with nothing_left_behind():
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) != 0
        process.stdout.close()
