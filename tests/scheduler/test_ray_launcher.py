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

from embodied.errors import DeadlineExceeded, WorkerDied, WorkerError
from embodied.scheduler import Flow, Plan, Route, StagePlan, ray_launcher
from embodied.scheduler.ray_launcher import RayGroup, RayLauncher
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
    allowed = os.sched_getaffinity(0)

    async def scenario():
        async with launcher(producers=2, devices=("cpu:0", "cpu:1"), threads=64) as system:
            return await system.group("producer").call("cores_and_threads")

    (first, threads), (second, _) = asyncio.run(scenario())
    assert set(first) | set(second) <= allowed
    assert len(allowed) == 1 or not set(first) & set(second)
    assert threads == len(first) == max(1, len(allowed) // 2)


@pytest.mark.slow
def test_a_pinned_worker_stays_within_the_cores_that_the_run_may_use():
    allowed = os.sched_getaffinity(0)
    last = max(allowed)

    async def scenario():
        async with launcher(producers=2, devices=("cpu:0", "cpu:1")) as system:
            return await system.group("producer").call("cores_and_threads")

    os.sched_setaffinity(0, {last})
    try:
        assert asyncio.run(scenario()) == [([last], 1)] * 2
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.slow
def test_a_stopped_process_counts_as_dead_and_one_that_only_computes_does_not(monkeypatch, caplog):
    monkeypatch.setattr(ray_launcher, "_PULSE_SECONDS", 10.0)
    monkeypatch.setattr(ray_launcher, "_CLOSE_SECONDS", 4.0)

    stopped = []

    async def scenario():
        async with launcher(deadline=5.0) as system:
            assert await system.group("producer").call("compute", 12.0) == [0, 1]
            assert await system.dead() == []
            stopped.append(await system.group("producer").call_one(1, "process_id"))
            os.kill(stopped[0], signal.SIGSTOP)
            assert await system.dead() == ["producer[1]"]
            await system.group("producer").call("compute", 0.0)

    with pytest.raises(WorkerDied, match=r"producer\[1\] has been at compute .* not answer"):
        asyncio.run(scenario())
    assert "producer[0] has been at compute for 5 s; still alive" in caplog.text
    assert not psutil.pid_exists(stopped[0]) or psutil.Process(stopped[0]).status() == psutil.STATUS_ZOMBIE


class Unclosing(RayGroup):
    """Workers without Ray that never close."""

    async def host(self, rank, method, *arguments):
        await asyncio.sleep(3600)


def test_workers_that_do_not_close_are_waited_for_together_and_then_killed(monkeypatch, caplog):
    monkeypatch.setattr(ray_launcher, "_CLOSE_SECONDS", 0.5)
    killed = []
    monkeypatch.setattr(ray_launcher.ray, "kill", killed.append)
    system = launcher()
    system.groups = {"x": Unclosing("x", [f"x[{i}]" for i in range(20)], list(range(20)), 60.0)}
    started = time.monotonic()
    asyncio.run(system.stop(None))
    assert time.monotonic() - started < 5
    assert killed == list(range(20))
    assert "x[19] has not closed within 0.5 s" in caplog.text


class FailsToClose(RayGroup):
    async def host(self, rank, method, *arguments):
        raise WorkerError(f"x[{rank}] cannot finish")


def test_workers_that_fail_to_close_are_told(monkeypatch, caplog):
    killed = []
    monkeypatch.setattr(ray_launcher.ray, "kill", killed.append)
    system = launcher()
    system.groups = {"x": FailsToClose("x", ["x[0]", "x[1]"], [0, 1], 60.0)}
    asyncio.run(system.stop(ValueError("why the run ends")))
    assert killed == [0, 1]
    assert "x[0] cannot finish" in caplog.text
    assert "x[1] cannot finish" in caplog.text


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
