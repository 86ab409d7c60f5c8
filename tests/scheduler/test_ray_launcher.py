"""The Ray launcher on this machine: results, failures, and that nothing is left behind."""

import asyncio
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
from embodied.scheduler import Flow, Plan, StagePlan
from embodied.scheduler.ray_launcher import RayLauncher
from tests.scheduler.ray_workers import Consumer, Producer


def launcher(producers=2, deadline=60.0):
    flow = Flow("test")
    producer = flow.stage("producer", Producer, scales_with="items")
    consumer = flow.stage("consumer", Consumer, scales_with="items")
    flow.edge(producer.numbers, consumer.numbers, capacity=2)
    stages = {"producer": StagePlan(devices=("cpu",) * producers), "consumer": StagePlan(devices=("cpu",))}
    return RayLauncher(flow, Plan(flow="test", launcher="ray", stages=stages), seed=0, deadline=deadline)


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
        with pytest.raises(WorkerError, match=r"producer\[[01]\] died"):
            await system.together(system.group("producer").call("die"), system.group("consumer").call("run"))
        assert time.monotonic() - started < 30


def test_results_failures_and_a_dead_process_and_nothing_is_left_behind():
    before, memory = set(ray_processes()), shared_memory()
    asyncio.run(scenario_of_everything())
    end = time.monotonic() + 20
    while set(ray_processes()) - before and time.monotonic() < end:
        time.sleep(0.2)
    assert set(ray_processes()) - before == set()
    assert shared_memory() - memory == set()


@pytest.mark.slow
def test_a_wait_past_its_deadline_names_who_waited_for_whom():
    async def scenario():
        async with launcher(deadline=10.0) as system:
            await system.together(system.group("producer").call("wait_for_ever"), system.group("consumer").call("run"))

    with pytest.raises(DeadlineExceeded, match=r"consumer\[0\] waited 10 s .* producer\[0\], producer\[1\]"):
        asyncio.run(scenario())


@pytest.mark.slow
def test_ctrl_c_ends_every_process_and_leaves_no_memory(tmp_path):
    before, memory = set(ray_processes()), shared_memory()
    script = textwrap.dedent("""
        import asyncio
        from tests.scheduler.test_ray_launcher import launcher

        async def main():
            async with launcher() as system:
                print("up", flush=True)
                await system.group("producer").call("wait_for_ever")

        asyncio.run(main())
    """)
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
    end = time.monotonic() + 20
    while set(ray_processes()) - before and time.monotonic() < end:
        time.sleep(0.2)
    assert set(ray_processes()) - before == set()
    assert shared_memory() - memory == set()
