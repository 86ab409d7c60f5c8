"""Training from Python, on problems and with a reward of one's own; and the commands around a run."""

from __future__ import annotations

import json

import pytest

import reasoning
from embodied.errors import ConfigurationError, RefusedInput
from reasoning.commands.main import main
from tests.reasoning.small_runs import save_small_model, share_of_low_bytes

SMALL = [
    "rollout.prompts=4",
    "rollout.sampling.max_new_tokens=6",
    "evaluation.sampling.max_new_tokens=6",
    "evaluation.size=3",
    "learner.global_batch=16",
    "goal.responses=32",
    "reward.processes=1",
    "logger.tensorboard=false",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_small_model(tmp_path_factory.mktemp("model"))


def test_ten_lines_train_on_ones_own_problems_with_ones_own_reward(model, tmp_path):
    problems = [(f"{a}+{b}=", str(a + b)) for a in range(5) for b in range(5)]

    def low(response, problem):
        assert problem.answers[0].isdigit()
        return share_of_low_bytes(response, problem)

    overrides = [*SMALL, f"model.source={model}", f"run.folder={tmp_path / 'run'}"]
    run = reasoning.train("math_grpo_tiny", problems, low, overrides=overrides)
    responses, rewards = run.metric("reward/term_low")
    assert responses.tolist() == [32]
    assert 0 < rewards[0] < 1
    assert run.metric("eval/problems")[1].tolist() == [3, 3]
    assert (run.model / "model.safetensors").is_file()
    assert (run.folder / "report.html").is_file()
    with pytest.raises(RefusedInput, match=r"reasoning\.resume"):
        reasoning.resume(run.folder)
    assert main(["resume", str(run.folder)]) == 2
    again = reasoning.resume(run.folder, problems, low)
    assert again.status == "limit"


def test_problems_of_another_kind_are_refused_with_their_place():
    with pytest.raises(ConfigurationError, match=r"problems\[1\]"):
        reasoning.train("math_grpo_tiny", [("1+1=", "2"), "2+2="])
    with pytest.raises(ConfigurationError, match="at least 2"):
        reasoning.train("math_grpo_tiny", [("1+1=", "2")])


@pytest.mark.slow
def test_train_eval_resume_by_command(model, tmp_path, capsys):
    folder = tmp_path / "run"
    words = [*SMALL, f"model.source={model}", f"run.folder={folder}"]
    assert main(["train", "math_grpo_tiny", *words]) == 0
    shown = capsys.readouterr().out
    assert "held-out problems:" in shown
    assert f"reasoning eval {folder}" in shown
    assert main(["eval", str(folder), "--size", "5"]) == 2
    assert "--size would have no effect: without problems of yours" in capsys.readouterr().err
    assert main(["eval", str(folder), "--attempts", "2", "--temperature", "1"]) == 0
    assert "pass@2" in capsys.readouterr().out
    results = json.loads((folder / "evaluation" / "results.json").read_text())
    assert results["reward"] == "numeric"
    assert main(["resume", str(folder)]) == 0
    assert main(["train", "math_grpo_tiny", *words]) == 2  # the folder is not empty


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "math_grpo_tin"], ["Unknown recipe", "math_grpo_tiny"]),
        (["train", "gym_cartpole_ppo_mlp"], ["robot policies", "embodied train"]),
        (["train", "math_grpo_tiny", "algorithm.group_size=1"], ["at least 2"]),
        (["train", "math_grpo_tiny", "cluster.workers.critic=2", "--dry-run"], ["critic", "lacks"]),
        (["resume", "/nowhere"], ["/nowhere"]),
    ],
)
def test_bad_input_gets_one_clear_paragraph_and_exit_code_2(arguments, words, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words), said


@pytest.mark.parametrize("verb", ["train", "resume", "eval", "sft", "data", "plan", "profile"])
def test_every_verb_has_help_with_examples(verb, capsys):
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    assert f"reasoning {verb}" in capsys.readouterr().out.split("examples:")[1]
