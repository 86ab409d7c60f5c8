"""How a shared-memory link ends: deadlines, closing, dead peers, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from link_processes import Child, both_ends, listener, reading_from, writer

from embodied.errors import ChannelClosed, DeadlineExceeded, WorkerError
from embodied.scheduler.transport import Incoming, Outgoing, PeerDied, ring
from embodied.scheduler.transport.ring import ENTRIES

pytestmark = pytest.mark.alone

LARGE = 2048  # float32 numbers: more than fits in an entry


def test_deadline_names_both_sides_and_the_operation() -> None:
    outgoing, incoming = both_ends(deadline=0.05)
    message = (
        r"reader\[0\] waited 0.05 s for an item from writer\[0\] on link numbers; "
        rf"the other end is writer\[0\] \(pid {os.getpid()}, 0 of {ENTRIES} items under way\)"
    )
    with pytest.raises(DeadlineExceeded, match=message):
        incoming.recv()
    with pytest.raises(DeadlineExceeded, match=message):
        asyncio.run(incoming.recv_async())
    with pytest.raises(DeadlineExceeded, match=r"reader\[0\] waited 0.05 s for the other end to connect"):
        listener(deadline=0.05).accept()
    outgoing.close()


def test_a_closed_link_gives_what_was_sent_and_then_says_who_closed_it() -> None:
    outgoing, incoming = both_ends()
    outgoing.send("last")
    outgoing.close()
    outgoing.close()
    assert incoming.recv() == (0, "last")
    with pytest.raises(ChannelClosed, match=r"closed by writer\[0\]"):
        incoming.recv()
    with pytest.raises(ChannelClosed, match=r"closed by writer\[0\]"):
        outgoing.send(1)
    outgoing, incoming = both_ends()
    incoming.close()
    with pytest.raises(ChannelClosed, match=r"closed by reader\[0\]"):
        outgoing.send(1)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_closing_wakes_a_wait_at_this_very_end(asynchronous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "RECHECK_SECONDS", 20.0)
    outgoing, incoming = both_ends(deadline=20.0)
    gc.collect()
    before = traces_left()["fds"]
    threading.Timer(0.1, incoming.close).start()
    begin = time.perf_counter()
    with pytest.raises(ChannelClosed, match=r"closed by reader\[0\]"):
        asyncio.run(incoming.recv_async()) if asynchronous else incoming.recv()
    assert time.perf_counter() - begin < 10  # and not when it would have looked again by itself
    outgoing.close()
    assert traces_left()["fds"] < before


def test_views_that_outlive_the_process_end_without_noise() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import torch\n"
        "from link_processes import both_ends\n"
        "outgoing, incoming = both_ends()\n"
        "outgoing.send([torch.zeros(5000), {'x': torch.ones(5000)}])\n"
        "kept = incoming.recv()\n"
    )
    here = str(Path(__file__).parent)
    ended = subprocess.run([sys.executable, "-c", script, here], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


def write_and_hang(address: str, count: int) -> None:
    outgoing = writer(address)
    for i in range(count):
        outgoing.send(torch.full((LARGE,), float(i)))
    time.sleep(60)


def read_and_hang(address: str, count: int) -> None:
    waiting = writer(address)  # a child that reads needs its own listener; it sends us its address
    mine = listener(link="numbers")
    waiting.send(mine.address)
    incoming = mine.accept()
    for _ in range(count):
        incoming.recv()
    waiting.send("done")
    time.sleep(60)


def test_a_killed_writer_is_noticed_at_once_after_what_it_sent() -> None:
    with reading_from(write_and_hang, 3) as (incoming, child):
        first = incoming.recv()[1]
        time.sleep(0.1)
        child.kill()
        assert [incoming.recv()[1][0].item() for _ in range(2)] == [1, 2]
        begin = time.perf_counter()
        with pytest.raises(
            PeerDied, match=rf"writer\[0\] \(pid {child.pid}.*died while reader\[0\] waited for an item"
        ):
            incoming.recv()
        assert time.perf_counter() - begin < 2
        assert first.eq(0).all()  # its memory outlives it


def write_until_killed(address: str) -> None:
    outgoing = writer(address, capacity=1 << 18)
    for i in itertools.count():
        outgoing.send(torch.full((1 + 997 * i % 20_000,), i, dtype=torch.int32), i)


@pytest.mark.parametrize("milliseconds", [1, 3, 7, 15, 30])
def test_a_writer_killed_at_any_moment_leaves_whole_items_in_order(milliseconds: int) -> None:
    with reading_from(write_until_killed) as (incoming, child):
        entries = [incoming.recv()]
        threading.Timer(milliseconds / 1000, child.kill).start()
        with pytest.raises(PeerDied):
            read_all(incoming, entries)
        for i, (key, item) in enumerate(entries):
            assert (key, len(item)) == (i, 1 + 997 * i % 20_000)
            assert item.eq(i).all()


def read_all(incoming: Incoming, entries: list[tuple[Any, Any]]) -> None:
    while True:
        key, item = incoming.recv()
        entries.append((key, item if key % 10 == 0 else item.clone()))  # some stay views until the end


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_killed_writer_wakes_a_waiting_reader(asynchronous: bool) -> None:
    with reading_from(write_and_hang, 0) as (incoming, child):
        threading.Timer(0.2, child.kill).start()
        begin = time.perf_counter()
        with pytest.raises(PeerDied):
            asyncio.run(incoming.recv_async()) if asynchronous else incoming.recv()
        assert time.perf_counter() - begin < 2


def fill(outgoing: Outgoing) -> None:
    for _ in range(ENTRIES + 1):
        outgoing.send(torch.zeros(LARGE))


def test_a_killed_reader_is_noticed_by_its_writer() -> None:
    with reading_from(read_and_hang, 1) as (control, child):
        outgoing = writer(control.recv()[1])
        outgoing.send(torch.zeros(LARGE))
        assert control.recv() == (0, "done")
        child.kill()
        child.ended()
        with pytest.raises(PeerDied, match=rf"reader\[0\] \(pid {child.pid}.*died while writer\[0\] waited to send"):
            fill(outgoing)


def test_a_child_that_the_writer_forked_does_not_hide_its_death() -> None:
    def write_fork_and_hang(address: str) -> None:
        outgoing = writer(address)
        grandchild = os.fork()
        if grandchild == 0:
            time.sleep(1.5)
            os._exit(0)
        outgoing.send("forked")
        time.sleep(60)

    with reading_from(write_fork_and_hang) as (incoming, child):
        assert incoming.recv() == (0, "forked")
        child.kill()
        begin = time.perf_counter()
        with pytest.raises(PeerDied):
            incoming.recv()
        assert time.perf_counter() - begin < 1


def test_a_forked_child_does_not_release_its_parents_views() -> None:
    outgoing, incoming = both_ends()
    outgoing.send(torch.ones(LARGE))
    items = [incoming.recv()[1]]

    def drop() -> None:
        items.clear()
        gc.collect()

    assert Child(drop).ended() == 0
    assert incoming.held == 1
    outgoing.send(torch.zeros(LARGE))
    assert items[0].eq(1).all()


def traces_left() -> dict[str, Any]:
    """Everything this link could leave behind: files, socket addresses, mappings and descriptors of this process."""
    return {
        "files": sorted(p.name for p in Path("/dev/shm").iterdir() if p.name.startswith(("embodied", "numbers"))),
        "sockets": [
            line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "embodied-" in line
        ],
        "maps": Path("/proc/self/maps").read_text().count("memfd:numbers"),
        "fds": len(os.listdir("/proc/self/fd")),
    }


def end_normally(address: str) -> None:
    with writer(address) as outgoing:
        outgoing.send(torch.zeros(LARGE))


def end_by_exception(address: str) -> None:
    writer(address).send(torch.zeros(LARGE))
    os.close(2)  # its traceback is meant to be
    raise ValueError("on purpose")


@pytest.mark.parametrize(
    ("work", "signal_number"),
    [(end_normally, None), (end_by_exception, None), (write_and_hang, signal.SIGINT), (write_and_hang, signal.SIGKILL)],
)
def test_nothing_is_left_however_the_writer_ends(work: Any, signal_number: int | None) -> None:
    gc.collect()
    before = traces_left()
    with reading_from(work, *([1] if work is write_and_hang else [])) as (incoming, child):
        item = incoming.recv()[1]
        if signal_number is not None:
            child.kill(signal_number)
        child.ended()
        with pytest.raises((PeerDied, ChannelClosed)):
            incoming.recv()
        assert item.eq(0).all()
    del item, incoming, child
    gc.collect()
    assert traces_left() == before


def test_nothing_is_left_when_the_reader_is_killed() -> None:
    gc.collect()
    before = traces_left()
    with reading_from(read_and_hang, 1) as (control, child):
        outgoing = writer(control.recv()[1])
        outgoing.send(torch.zeros(LARGE))
        control.recv()
        child.kill()
        child.ended()
        outgoing.close()
    del outgoing, control, child
    gc.collect()
    assert traces_left() == before


def test_a_stranger_on_the_address_is_turned_away_with_both_sides_named() -> None:
    waiting = listener()
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stranger.connect("\0" + waiting.address)
    stranger.send(b'{"version": 999}')
    with pytest.raises(WorkerError, match=r"reader\[0\] expected link numbers.*from writer\[0\].*999"):
        waiting.accept()
    stranger.close()


def test_connecting_to_nobody_names_the_address() -> None:
    with pytest.raises(PeerDied, match="nobody listens at embodied-0-nowhere"):
        writer("embodied-0-nowhere")
