"""What training saved is what it measured: a new process that loads it finds the same successes in the same worlds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SHORT = ["env.num_envs=16", "env.processes=0", "rollout.decisions=4", "evaluation.episodes=16", "goal.env_steps=300"]


@pytest.mark.sample
@pytest.mark.slow
def test_a_new_process_finds_what_the_run_found_to_the_episode(tmp_path):
    folder = tmp_path / "run"

    def command(*words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "embodied.commands.main", *words], capture_output=True, text=True, timeout=280
        )
        assert done.returncode == 0, done.stderr

    command("train", "maniskill_ppo_openvla_oft_tiny", f"run.folder={folder}", "record.episodes=0", *SHORT)
    command("eval", str(folder), "--episodes", "16", "--films", "0", "--out", str(tmp_path / "results.json"))
    trained = json.loads((folder / "result.json").read_text())
    found = json.loads(Path(tmp_path / "results.json").read_text())
    assert found["metrics"] == pytest.approx(trained["after"])
    assert 0 < found["metrics"]["eval/success_once"] < 1
    assert found["episodes"] == json.loads((folder / "evaluation.json").read_text())["episodes"]
    assert found["policy"]["folder"].startswith(trained["checkpoint"])
