"""What training saved is what it measured: a new process that loads it finds the same successes in the same worlds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SHORT = [
    "env={id: maniskill/PushCube-v1, obs: rgb, image_size: 28, robot_visual: lowpoly, hidden: [ground], "
    "control_mode: pd_ee_delta_pos, episode_steps: 10, num_envs: 4, processes: 0}",
    "policy={name: openvla_oft/tiny, chunk: 5, value: action, critic: privileged, sizes: {image_size: 28, layers: 1, "
    "vision_layers: 2}}",
    "rollout={decisions: 2}",
    "learner={global_batch: 8}",
    "evaluation={every: 0, episodes: 6}",
    "goal={at_least: null, env_steps: 40}",
]


@pytest.mark.slow
def test_a_new_process_finds_what_the_run_found(tmp_path):
    recipe = tmp_path / "short.yaml"
    recipe.write_text("\n".join(["description: short", *(word.replace("=", ": ", 1) for word in SHORT)]))
    folder = tmp_path / "run"

    def command(*words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "embodied.commands.main", *words], capture_output=True, text=True, timeout=280
        )
        assert done.returncode == 0, done.stderr

    command("train", str(recipe), f"run.folder={folder}", "record.episodes=0", "logger.tensorboard=false")
    command("eval", str(folder), "--films", "0", "--out", str(tmp_path / "results.json"))
    trained = json.loads((folder / "result.json").read_text())
    found = json.loads(Path(tmp_path / "results.json").read_text())
    assert found["metrics"] == pytest.approx(trained["after"])
    assert len(found["episodes"]) == 6
    assert found["policy"]["folder"].startswith(trained["checkpoint"])
