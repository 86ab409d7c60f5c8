"""A run's host memory is read, and what will not suffice is said in time."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from embodied.system.memory import GIB, MIB, HostMemory, MemoryWatch, container_limit, host_memory, machine_memory


def watch(readings: list[HostMemory]) -> MemoryWatch:
    """A watch that is never too early to look again."""
    left = iter(readings)
    clock = iter(range(0, 10**6, 10))
    return MemoryWatch(lambda: next(left), lambda: float(next(clock)))


def notes(used: list[float], free: float = 8 * GIB, left: int = 1000) -> list[str]:
    """The warnings of iterations that used so many bytes."""
    watching = watch([HostMemory(int(u), int(free), 16 * GIB) for u in used])
    return [warning for number in range(len(used)) for warning in watching.note(number + 1, left)[1]]


def test_what_this_process_and_its_children_take_is_counted():
    before = host_memory().used
    block = np.ones(200 * MIB, np.uint8)
    code = "import sys; b = b'1' * (150 << 20); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        during = host_memory()
        child.stdin.close()
    assert 330 * MIB < during.used - before < 450 * MIB
    assert 0 < during.free < during.total
    assert len(block) == 200 * MIB


def test_a_containers_limit_is_what_there_is(tmp_path):
    assert container_limit(tmp_path) is None
    whole = machine_memory(tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    assert machine_memory(tmp_path)[1] == whole[1]
    (tmp_path / "memory.max").write_text(f"{512 * MIB}\n")
    (tmp_path / "memory.current").write_text(f"{400 * MIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {100 * MIB}\n")
    assert machine_memory(tmp_path) == (212 * MIB, 512 * MIB)


def test_steady_growth_is_warned_of_with_the_iterations_that_are_left():
    # 20 MiB an iteration, up and down by 30 within it: 8 GiB last for 410 iterations
    used = [2 * GIB + 20 * MIB * n + 30 * MIB * (n % 2) for n in range(40)]
    said = notes(used, left=1000)
    assert said
    assert said[-1].startswith("host memory grows by 20.0 MiB an iteration")
    assert "after about 410 more, and 1,000 are to come" in said[-1]
    assert notes(used, left=300) == []  # it suffices


@pytest.mark.parametrize(
    "used",
    [
        [2 * GIB + 200 * MIB * (n % 4) for n in range(60)],  # up and down
        [GIB + min(n, 12) * 100 * MIB for n in range(60)],  # up, then level
        [2 * GIB + n * MIB for n in range(30)],  # too little to tell
        [GIB * (1 + n) for n in range(5)],  # start-up
    ],
)
def test_what_is_no_leak_is_not_warned_of(used):
    assert notes(used, left=10**6) == []


def test_a_machine_that_is_nearly_full_is_warned_of():
    (said,) = notes([3 * GIB], free=0.4 * GIB)
    assert said.startswith("host memory is short: 0.4 of 16.0 GiB are free, this run has 3.0")


def test_it_is_read_now_and_then_only():
    seconds = iter([0.0, 0.0, 1.0, 6.0, 6.0])
    watching = MemoryWatch(lambda: HostMemory(GIB, 4 * GIB, 16 * GIB), lambda: next(seconds))
    first = watching.note(1, 10)[0]
    assert first == {"host/memory_gib": 1.0, "host/memory_free_gib": 4.0}
    assert [watching.note(number, 10)[0] for number in (2, 3)] == [{}, first]
