"""A SIGTERM, as a job manager sends it, ends a run in order: told in result.json, nothing left over, gone on with."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from embodied.system.termination import exit_code, interruption, signals_as_interrupt, sigterm_kept

pytestmark = pytest.mark.alone

RECIPE = ["gym_cartpole_ppo_mlp", "checkpoint.every=1", "record.episodes=0", "logger.tensorboard=false"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "embodied.commands.main", *arguments]


def ignore_ctrl_c() -> None:
    """As `nohup` and a shell's `&` do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def heed_sighup() -> None:
    """These tests may run under `nohup`, which a run respects."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def start(folder: Path, *overrides: str, before: Callable[[], None] | None = None) -> subprocess.Popen:
    """A run that has written its first checkpoint, in a process group of its own."""
    process = subprocess.Popen(
        command("train", *RECIPE, *overrides, f"run.folder={folder}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=before,
    )
    wait_for(folder / "checkpoints" / "step_1", process)
    return process


def wait_for(path: Path, process: subprocess.Popen) -> None:
    end = time.monotonic() + 500
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def assert_ended_in_order(process: subprocess.Popen, folder: Path, children: list[psutil.Process]) -> None:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    assert "embodied resume" in out
    assert "ended by SIGTERM" in err
    assert "Traceback" not in err
    result = json.loads((folder / "result.json").read_text())
    assert (result["status"], result["reason"]) == ("interrupted", "ended by SIGTERM")
    assert result["iterations"] >= 1
    _, left = psutil.wait_procs(children, timeout=15)
    assert left == []


def shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "embodied" in name}


def test_sigterm_to_the_whole_group_ends_a_run_in_order_even_in_the_background(tmp_path):
    before = shared_memory()
    process = start(tmp_path / "run", "env.processes=1", before=ignore_ctrl_c)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    os.killpg(process.pid, signal.SIGTERM)
    assert_ended_in_order(process, tmp_path / "run", children)
    assert shared_memory() - before == set()


def test_a_run_whose_terminal_is_closed_ends_in_order(tmp_path):
    folder, (ours, theirs) = tmp_path / "run", pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", *command("train", *RECIPE, "env.processes=1", f"run.folder={folder}")],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=heed_sighup,
    )
    os.close(theirs)
    wait_for(folder / "checkpoints" / "step_1", process)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    os.close(ours)  # the kernel tells the terminal's foreground processes
    assert process.wait(120) == 129
    _, left = psutil.wait_procs(children, timeout=15)
    assert left == []
    result = json.loads((folder / "result.json").read_text())
    assert (result["status"], result["reason"]) == ("interrupted", "ended by SIGHUP")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_under_ray_ends_in_order_and_goes_on(tmp_path):
    folder = tmp_path / "run"
    before = shared_memory()
    process = start(folder, "cluster.launcher=ray", "goal.env_steps=20000", "goal.at_least=null")
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    assert_ended_in_order(process, folder, children)
    assert shared_memory() - before == set()
    resumed = subprocess.run(command("resume", str(folder)), capture_output=True, text=True, timeout=500)
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed after iteration" in resumed.stdout
    assert json.loads((folder / "result.json").read_text())["status"] == "limit"


def end_oneself() -> None:
    with signals_as_interrupt():
        with sigterm_kept():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as a library does
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)


def test_sigterm_interrupts_also_where_ctrl_c_is_ignored_and_leaves_its_handler_as_it_was():
    ctrl_c, term = signal.signal(signal.SIGINT, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(KeyboardInterrupt):
            end_oneself()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert exit_code() == 143
        assert interruption() == "ended by SIGTERM"
    finally:
        signal.signal(signal.SIGINT, ctrl_c)
    assert signal.getsignal(signal.SIGTERM) is term
    with signals_as_interrupt():
        assert (interruption(), exit_code()) == ("interrupted by the user", 130)
