"""Acting and learning on an accelerator that is pretended: tensors of two devices never meet."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from embodied.algorithms import statistics

SCRIPT = Path(__file__).with_name("pretend_accelerator.py")


def measured(folder, recipe, *overrides):
    """The last line of metrics of the recipe's run; None where it was refused or failed."""
    words = [*overrides, f"run.folder={folder}", "logger.tensorboard=false"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), recipe, *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["metrics"]


CARTPOLE = ["rollout.decisions=16", "evaluation.episodes=4", "record.episodes=0", "goal.env_steps=250"]
DECOUPLED = [
    "algorithm.loss=decoupled_ppo",
    "algorithm.max_staleness=1",
    "learner.target_kl=0.05",
    "policy.scale=running",
]
SUMS = ["rollout.prompts=4", "learner.global_batch=8", "goal.responses=8", "evaluation.every=0", "goal.at_least=null"]
PIXELS = ["env.num_envs=4", "env.processes=0", "rollout.decisions=3", "learner.global_batch=4", "learner.micro_batch=2"]


@pytest.mark.parametrize(
    ("recipe", "overrides"),
    [
        ("gym_cartpole_ppo_mlp", CARTPOLE),
        ("gym_cartpole_ppo_mlp", [*CARTPOLE, *DECOUPLED]),
        ("math_grpo_tiny", [*SUMS, "algorithm.group_size=8", "goal.responses=32"]),
    ],
    ids=["ppo", "decoupled", "math grpo"],
)
def test_a_run_brings_nothing_of_two_devices_together(tmp_path, recipe, overrides):
    found = measured(tmp_path / "run", recipe, *overrides)
    assert found["learner/steps"] >= 1
    assert found["learner/gradient_norm"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "overrides"),
    [
        (
            "maniskill_ppo_openvla_oft_tiny",
            [*PIXELS, "learner.epochs=1", "evaluation.episodes=2", "record.episodes=0", "goal.env_steps=100"],
        ),
        (
            "math_ppo_tiny",
            [*SUMS, "algorithm.group_size=2", "critic.learner.global_batch=8", "algorithm.critic_warmup=0"],
        ),
    ],
    ids=["vla", "math ppo"],
)
def test_larger_runs_bring_nothing_of_two_devices_together(tmp_path, recipe, overrides):
    assert measured(tmp_path / "run", recipe, *overrides)["learner/steps"] >= 1


def test_what_is_pretended_refuses_what_cuda_refuses():
    code = (
        "import torch, pretend_accelerator as pretend\n"
        "with pretend.pretended():\n"
        "    far = torch.ones(2).to('meta')\n"
        "    assert (far * 3).sum().item() == 6.0\n"
        "    torch.cat([far, torch.ones(2)])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=SCRIPT.parent, check=False)
    assert "tensors of two devices" in done.stderr


def test_a_record_of_two_devices_is_reported_in_its_own_order():
    record = {name: statistics.Mean(torch.tensor([total, 2.0]).double()) for name, total in (("b", 4.0), ("a", 6.0))}
    record["c"] = statistics.Maximum(torch.tensor([5.0]).double())
    assert list(statistics.report(record).items()) == [("b", 2.0), ("a", 3.0), ("c", 5.0)]
    assert statistics.report(statistics.all_reduce(record)) == {"a": 3.0, "b": 2.0, "c": 5.0}
