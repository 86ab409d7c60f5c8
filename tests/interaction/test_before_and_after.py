"""The saved policy is tried within the run: the films after training are its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from embodied.config.compose import compose_recipe
from embodied.interaction.before_and_after import compare_with_run
from embodied.interaction.recording import Recording
from embodied.interaction.workload import parse_workload
from embodied.runs.folder import RunFolder, create_run_folder
from embodied.training.loop import train
from policies import registry


def evaluated(folder: Path, *episodes: tuple[bool, float]) -> RunFolder:
    run = RunFolder(folder)
    run.write_evaluation([{"success_once": success, "returns": total} for success, total in episodes])
    return run


@pytest.mark.parametrize(
    ("has_success", "saved", "alike", "warned"),
    [
        (True, [(True, 5.0), (True, 1.0), (False, 0.0)], 3, False),  # only the first three are filmed
        (True, [(True, 5.0), (False, 1.0), (False, 0.0)], 2, False),
        (True, [(False, 5.0), (False, 1.0), (False, 0.0)], 1, True),
        (False, [(False, 5.4), (False, 1.0), (False, 0.0)], 3, False),
        (False, [(False, 4.0), (False, 2.0), (False, 0.0)], 1, True),
    ],
)
def test_what_was_saved_is_compared_with_the_last_evaluation(tmp_path, has_success, saved, alike, warned):
    folder = evaluated(tmp_path, (True, 5.0), (True, 1.0), (False, 0.0), (True, 9.0))
    said = []
    found = compare_with_run(Recording(tmp_path / "after.mp4", tuple(saved)), folder, has_success, said.append)
    assert found == {"episodes": 3, "alike": alike}
    assert f"ended {alike} of these 3 episodes as the last evaluation did" in said[0]
    assert said[0].startswith("warning:") == warned


def test_a_run_films_the_policy_that_it_saved_and_says_how_it_did(tmp_path, monkeypatch):
    overrides = ["env.num_envs=4", "env.processes=0", "env.episode_steps=12", "rollout.decisions=4"]
    overrides += [
        "evaluation.episodes=4",
        "record.episodes=2",
        "goal.env_steps=32",
        "learner.global_batch=16",
        "logger.tensorboard=false",
    ]
    workload = parse_workload("gym_cartpole_ppo_mlp", compose_recipe("gym_cartpole_ppo_mlp", overrides))
    outcome = train(workload, create_run_folder(tmp_path, "run", tmp_path / "run"), command="test")
    said: list[str] = []
    workload.finish(outcome, said.append)
    assert outcome.result["saved_policy"] == {"episodes": 2, "alike": 2}
    # a checkpoint that holds something else
    load = registry.load

    def other(folder):
        policy = load(folder)
        for parameter in policy.parameters():
            parameter.data.neg_()
        return policy

    monkeypatch.setattr("embodied.interaction.before_and_after.policy_registry.load", other)
    outcome.folder.write_evaluation(
        [{**e, "returns": 2 * e["returns"]} for e in json.loads(outcome.folder.evaluation.read_text())["episodes"]]
    )
    workload.finish(outcome, said.append)
    assert any(text.startswith("warning: the saved policy, loaded anew, ended 0 of these 2") for text in said)
    assert yaml.safe_load(outcome.folder.config.read_text())["record"]["episodes"] == 2
