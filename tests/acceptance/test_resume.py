"""A killed run that is resumed ends with the same bits as one that was never stopped."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import safetensors.torch
import torch

from embodied.runs.metrics import read_metrics

CARTPOLE = [
    "gym_cartpole_ppo_mlp",
    "rollout.decisions=16",
    "learner.global_batch=32",
    "learner.epochs=2",
    "evaluation.every=3",
    "evaluation.episodes=4",
    "checkpoint.every=2",
    "checkpoint.keep=20",
    "goal.at_least=null",
    "goal.env_steps=1280",  # ten iterations
    "record.episodes=0",
    "logger.tensorboard=false",
]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "embodied.commands.main", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=240)


def wait_for(path: Path, process: subprocess.Popen) -> None:
    end = time.monotonic() + 200
    while not path.exists():
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < end
        time.sleep(0.002)


def learnt(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "state.safetensors")


def progress(folder: Path) -> dict:
    state = json.loads((folder / "state.json").read_text())
    state["progress"].pop("seconds")
    return state


def logged(folder: Path) -> list[dict]:
    records = read_metrics(folder / "metrics.jsonl")
    for record in records:
        record.pop("seconds")
        record["metrics"] = {k: v for k, v in record["metrics"].items() if not k.startswith(("time/", "host/"))}
    return records


def assert_same_run(first: Path, second: Path, last: str) -> None:
    a, b = (folder / "checkpoints" / last for folder in (first, second))
    tensors_a, tensors_b = learnt(a), learnt(b)
    assert tensors_a.keys() == tensors_b.keys()
    assert [name for name in tensors_a if not torch.equal(tensors_a[name], tensors_b[name])] == []
    assert progress(a) == progress(b)
    assert logged(first) == logged(second)


@pytest.mark.parametrize("start", ["continue", pytest.param("fresh", marks=pytest.mark.slow)])
def test_a_killed_and_resumed_run_has_the_bits_of_an_unbroken_one(tmp_path, start):
    recipe = [*CARTPOLE, f"rollout.start={start}"]
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    assert run("train", *recipe, f"run.folder={unbroken}").returncode == 0
    process = subprocess.Popen(command("train", *recipe, f"run.folder={broken}"), stdout=subprocess.DEVNULL)
    wait_for(broken / "checkpoints" / "step_4", process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    resumed = run("resume", str(broken))
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed after iteration" in resumed.stdout
    assert_same_run(unbroken, broken, "step_10")


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits_twice_and_another_seed_does_not(tmp_path):
    folders = [tmp_path / name for name in ("first", "second", "other")]
    for folder, seed in zip(folders, (5, 5, 6), strict=True):
        assert run("train", *CARTPOLE, f"seed={seed}", f"run.folder={folder}").returncode == 0
    assert_same_run(folders[0], folders[1], "step_10")
    weights = [learnt(folder / "checkpoints" / "step_10") for folder in folders]
    assert not all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])


@pytest.mark.slow
def test_a_run_goes_on_after_the_process_of_a_worker_has_died_with_the_bits_of_an_unbroken_one(tmp_path):
    recipe = [*CARTPOLE, "cluster.launcher=ray"]
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    assert run("train", *CARTPOLE, f"run.folder={unbroken}").returncode == 0
    process = subprocess.Popen(
        command("train", *recipe, f"run.folder={broken}"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wait_for(broken / "checkpoints" / "step_2", process)
    victim = next(p for p in psutil.Process(process.pid).children(recursive=True) if p.name().startswith("ray::_Host"))
    victim.kill()
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    assert "starting all workers again" in out
    assert_same_run(unbroken, broken, "step_10")


@pytest.mark.sample
@pytest.mark.slow
def test_a_killed_maniskill_run_resumes_to_the_bit_in_the_middle_of_episodes(tmp_path):
    recipe = [
        "maniskill_pushcube_ppo_mlp",
        "env.num_envs=8",
        "rollout.decisions=7",
        "learner.global_batch=28",
        "evaluation.every=3",
        "evaluation.episodes=4",
        "checkpoint.every=2",
        "checkpoint.keep=20",
        "goal.at_least=null",
        "goal.env_steps=560",  # ten iterations
        "record.episodes=0",
        "logger.tensorboard=false",
    ]
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    assert run("train", *recipe, f"run.folder={unbroken}").returncode == 0
    process = subprocess.Popen(command("train", *recipe, f"run.folder={broken}"), stdout=subprocess.DEVNULL)
    wait_for(broken / "checkpoints" / "step_2", process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    resumed = run("resume", str(broken))
    assert resumed.returncode == 0, resumed.stderr
    assert_same_run(unbroken, broken, "step_10")


@pytest.mark.slow
def test_a_run_of_two_learner_ranks_goes_on_with_one(tmp_path):
    """Its checkpoints hold one whole copy of the state, whoever wrote them."""
    folder = tmp_path / "run"
    ranks = ["cluster.launcher=ray", "cluster.workers.learner=2", "cluster.deadline_seconds=200"]
    done = run("train", *CARTPOLE, *ranks, "goal.env_steps=512", f"run.folder={folder}")
    assert done.returncode == 0, done.stderr
    expected = read_metrics(folder / "metrics.jsonl")[-1]
    shutil.rmtree(folder / "checkpoints" / "step_4")
    assert len(json.loads((folder / "checkpoints" / "step_2" / "state.json").read_text())["workers"]["learner"]) == 1
    plan = json.loads((folder / "plan.json").read_text())
    plan["launcher"], plan["stages"]["learner"]["devices"] = "inline", ["cpu"]
    (folder / "plan.json").write_text(json.dumps(plan))
    done = run("resume", str(folder))
    assert done.returncode == 0, done.stderr
    assert "inline launcher" in done.stdout
    found = read_metrics(folder / "metrics.jsonl")[-1]
    assert found["iteration"] == expected["iteration"] == 4
    for name in ("train/return", "policy/loss", "value/loss", "learner/gradient_norm"):
        assert found["metrics"][name] == pytest.approx(expected["metrics"][name], rel=1e-3), name
