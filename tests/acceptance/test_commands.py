"""The command line as a user meets it: help, refusals and exit codes, a small run from start to end."""

import json
import signal
import subprocess
import sys
import time

import pytest

from embodied.commands.main import main
from embodied.interaction import before_and_after

VERBS = (
    "train",
    "resume",
    "eval",
    "record",
    "demos",
    "sft",
    "plan",
    "profile",
    "report",
    "recipes",
    "policies",
    "assets",
    "doctor",
)


def run(*arguments: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "embodied.commands.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, **options)


def run_here(capsys, *arguments: str) -> subprocess.CompletedProcess:
    """The command in this process, where nothing has to be imported anew."""
    try:
        code = main(list(arguments))
    except SystemExit as end:
        code = end.code
    shown = capsys.readouterr()
    return subprocess.CompletedProcess(arguments, code, shown.out, shown.err)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_examples(verb, capsys):
    shown = run_here(capsys, verb, "--help")
    assert shown.returncode == 0
    assert "examples:" in shown.stdout
    assert f"embodied {verb}" in shown.stdout.split("examples:")[1]


def test_recipes_are_listed_with_a_description_each():
    shown = run("recipes")
    lines = dict(line.split(maxsplit=1) for line in shown.stdout.splitlines())
    assert {"gym_cartpole_ppo_mlp", "maniskill_pushcube_ppo_mlp", "maniskill_pickcube_ppo_mlp"} <= lines.keys()
    assert all(len(description) > 10 for description in lines.values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "gym_cartpole_ppo"], ["Unknown recipe", "gym_cartpole_ppo_mlp"]),
        (["train", "gym_cartpole_ppo_mlp", "env.num_env=2"], ["env.num_env", "num_envs"]),
        (["train", "gym_cartpole_ppo_mlp", "env.num_envs=two"], ["env.num_envs", "'two'", "integer"]),
        (["train", "gym_cartpole_ppo_mlp", "env.id=gym/CartPoel-v1"], ["CartPoel-v1", "CartPole-v1"]),
        (["train", "gym_cartpole_ppo_mlp", "cluster.device=cuda:7"], ["cuda:7", "cpu"]),
        (["train", "gym_cartpole_ppo_mlp", "run.root=/proc/nowhere"], ["/proc/nowhere", "cannot be written"]),
        (["train", "gym_cartpole_ppo_mlp", "learner.global_batch=100"], ["100", "Nearest valid values"]),
        (["train", "maniskill_pushcube_ppo_mlp", "env.id=maniskill/PushCub-v1"], ["PushCub-v1", "PushCube-v1"]),
        (["train", "gym_cartpole_ppo_mlp", "record.fps=0"], ["fps 0"]),
        (
            ["train", "gym_cartpole_ppo_mlp", "cluster.threads=0", "cluster.restarts=-1"],
            ["threads is 0", "restarts -1"],
        ),
        (["train", "gym_cartpole_ppo_mlp", "goal.in_a_row=0"], ["in_a_row is 0"]),
        (["train", "gym_cartpole_ppo_mlp", "learner.lr=nan"], ["lr is nan"]),
        (["train", "gym_cartpole_ppo_mlp", "cluster.workers.foo=2", "--dry-run"], ["'foo'", "env, policy, learner"]),
        (["train", "gym_cartpole_ppo_mlp", "=3"], ["no key"]),
        (["train", "gym_cartpole_ppo_mlp", "env=5"], ["must be a string"]),
        (["resume", "/nowhere"], ["/nowhere", "not a run folder"]),
        (["eval", "/nowhere"], ["there is no folder /nowhere"]),
        (["record", "/nowhere"], ["there is no folder /nowhere"]),
    ],
)
def test_bad_input_gets_one_clear_paragraph_and_exit_code_2(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    in_process = "maniskill" not in arguments[1]
    refused = run_here(capsys, *arguments) if in_process else run(*arguments)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "Traceback" not in refused.stderr
    assert "refused" in refused.stderr
    assert all(word in refused.stderr for word in words), refused.stderr


def test_a_dry_run_prints_the_complete_recipe_and_starts_nothing(tmp_path):
    shown = run("train", "maniskill_pushcube_ppo_mlp", "env.num_envs=32", "--dry-run", cwd=tmp_path)
    assert shown.returncode == 0
    assert "num_envs: 32" in shown.stdout
    assert "gae_lambda: 0.9" in shown.stdout
    assert list(tmp_path.iterdir()) == []


SMALL = [
    "rollout.decisions=8",
    "learner.global_batch=32",
    "evaluation.episodes=4",
    "goal.env_steps=128",
    "record.episodes=2",
]


def test_train_eval_record_report_from_start_to_end(tmp_path):
    folder = tmp_path / "run"
    trained = run("train", "gym_cartpole_ppo_mlp", *SMALL, f"run.folder={folder}")
    assert trained.returncode == 0, trained.stderr
    for name in ("config.yaml", "plan.json", "metrics.jsonl", "result.json", "report.html", "trace.json", "log.txt"):
        assert (folder / name).stat().st_size > 0, name
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "limit"
    assert "report" in trained.stdout
    assert "next:" in trained.stdout
    assert (folder / "videos" / "before_and_after.mp4").exists()
    evaluated = run("eval", str(folder), "--episodes", "6", "--out", str(tmp_path / "results.json"))
    assert evaluated.returncode == 0, evaluated.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(results["episodes"]) == 6
    assert len({episode["seed"] for episode in results["episodes"]}) == 6
    assert run("eval", str(folder), "--episodes", "2").returncode == 0  # leaves its results outside the checkpoint
    assert run("resume", str(folder)).returncode == 0
    for arguments in (["--episodes", "0"], ["--out", str(tmp_path)], ["env.num_envs=["], ["gym/A-v1", "gym/B-v1"]):
        refused = run("eval", str(folder), *arguments)
        assert refused.returncode == 2, refused.stderr
        assert "Traceback" not in refused.stderr
    recorded = run("record", str(folder), "--episodes", "1", "--out", str(tmp_path / "videos"))
    assert recorded.returncode == 0, recorded.stderr
    assert len(list((tmp_path / "videos").glob("*.mp4"))) == 1
    assert run("train", "gym_cartpole_ppo_mlp", f"run.folder={folder}").returncode == 2


def test_interrupting_a_run_says_how_to_go_on_and_exits_130(tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "embodied.commands.main", "train", "gym_cartpole_ppo_mlp", "checkpoint.every=1"]
    process = subprocess.Popen(
        [*command, "record.episodes=0", f"run.folder={folder}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 120
    while not (folder / "checkpoints" / "step_1").exists() and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "embodied resume" in out
    assert json.loads((folder / "result.json").read_text())["status"] == "interrupted"


def test_a_damaged_run_folder_is_refused_with_the_reason(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("seed: [")
    refused = run("resume", str(folder))
    assert refused.returncode == 2
    assert "config.yaml is not the configuration of a run" in refused.stderr


def test_a_film_that_fails_does_not_undo_a_training(tmp_path, monkeypatch, capsys):
    def broken(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(before_and_after, "side_by_side", broken)
    words = [
        "goal.env_steps=64",
        "goal.at_least=null",
        "env.num_envs=8",
        "rollout.decisions=8",
        "learner.global_batch=32",
    ]
    words += [
        "evaluation.episodes=2",
        "record.episodes=1",
        f"run.folder={tmp_path / 'run'}",
        "logger.tensorboard=false",
    ]
    shown = run_here(capsys, "train", "gym_cartpole_ppo_mlp", *words)
    assert shown.returncode == 0
    assert "warning: no videos" in shown.stdout
    assert (tmp_path / "run" / "report.html").is_file()
    assert "No space left" in json.loads((tmp_path / "run" / "result.json").read_text())["videos_missing"]


def test_options_that_nothing_would_follow_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("mine: 1\n")
    plan = ["plan", "paper/grpo_qwen2_5_7b"]
    assert run_here(capsys, *plan, "--output", "a.json").returncode == 0
    for words, said in (
        ([*plan, "plan=a.json", "--output", "b.json"], "leave --output and --compare out"),
        (["report", ".", ".", "--output", "all.html"], "named more than once"),
        (["eval", "pushcube_openvla_oft_tiny", "maniskill/PushCube-v1", "--seed", "-1"], "--seed is -1"),
        (["eval", "pushcube_openvla_oft_tiny", "maniskill/PushCube-v1", "--out", "config.yaml"], "would be lost"),
        (["report", ".", "--png", "curve.xyz"], "name a file that ends in"),
    ):
        shown = run_here(capsys, *words)
        assert shown.returncode == 2
        assert said in shown.stderr
    assert (tmp_path / "config.yaml").read_text() == "mine: 1\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "config.yaml"]
