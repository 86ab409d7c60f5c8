"""What `embodied eval` leaves behind: numbers, a page with films of the failures, a dataset to learn from."""

import contextlib
import dataclasses
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import policies
from embodied.commands import eval as eval_command
from embodied.commands.common import env_overrides
from embodied.commands.main import main
from embodied.datasets import FolderDataset, open_dataset
from embodied.errors import RefusedInput
from embodied.interaction import outcome_films
from embodied.interaction.evaluate import evaluate_policy, find_run, results_record, weight_hashes
from embodied.interaction.playback import play, playback_env
from embodied.interaction.recipe import EvaluationConfig
from embodied.report import build_evaluation_page
from envs import registry as env_registry
from envs.gym import GymConfig
from envs.registry import describe
from envs.video import video_info
from policies import registry
from policies.api import Sampling
from sim_assets.trained import CHECKPOINTS, bundled_checkpoints

CARTPOLE = GymConfig(id="gym/CartPole-v1", num_envs=3, processes=0, episode_steps=12)
SAMPLED = EvaluationConfig(episodes=7, seed=4, sampling=Sampling())


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A policy of chunks of three that nobody trained."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("policy")
    interface = registry.interface_of(describe(CARTPOLE))
    policies.save(policies.build("mlp", interface, seed=1, hidden=(8,), chunk=3), folder)
    return folder


@pytest.fixture(scope="module")
def evaluated(saved):
    return evaluate_policy(saved, CARTPOLE, SAMPLED)


@pytest.mark.parametrize("num_envs", [1, 8])
def test_the_same_numbers_to_the_bit_for_any_number_of_environments(saved, evaluated, num_envs):
    result, _ = evaluate_policy(saved, dataclasses.replace(CARTPOLE, num_envs=num_envs), SAMPLED)
    assert result == evaluated[0]


@pytest.mark.parametrize("num_envs", [1, 3])
def test_episodes_played_again_action_by_action_are_those_of_the_evaluation(saved, evaluated, num_envs):
    result, _ = evaluated
    chosen = [5, 0, 3]
    steps = {}
    with playback_env(CARTPOLE, num_envs, pictures=False) as env:
        for step in play(registry.load(saved), env, SAMPLED, chosen, device="cpu", pictures=False):
            steps.setdefault(step.episode, []).append(step)
    assert sorted(steps) == sorted(chosen)
    for number, played in steps.items():
        expected = result.episodes[number]
        assert [step.step for step in played] == list(range(expected.length))
        assert [step.ended for step in played] == [False] * (expected.length - 1) + [True]
        assert sum(step.reward for step in played) == expected.returns
        assert played[0].assignment == (expected.task, expected.initial_state, expected.seed)


def test_results_tell_protocol_hashes_versions_and_counts(saved, evaluated):
    result, spec = evaluated
    record = results_record(
        result, spec, policy=saved, env=CARTPOLE, options=SAMPLED, versions={"embodied": "x"}, device="cpu"
    )
    json.dumps(record)
    assert record["protocol"]["sampling"]["decode"] == "sample"
    assert record["versions"]["embodied"] == "x"
    assert "gymnasium" in record["versions"]
    assert record["device"] == "cpu"
    assert record["policy"]["sha256"] == weight_hashes(saved)
    assert re.fullmatch("[0-9a-f]{64}", record["policy"]["sha256"]["model.safetensors"])
    assert [task["episodes"] for task in record["tasks"]] == [7]
    assert len(record["episodes"]) == 7


def test_sharded_weights_are_hashed_file_by_file(tmp_path):
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "config.json"):
        (tmp_path / name).write_text(name)
    assert len(weight_hashes(tmp_path)) == 2


def test_the_command_records_a_dataset_and_goes_on_with_it(saved, evaluated, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["eval", str(saved), "gym/CartPole-v1", "env.num_envs=3", "env.processes=0", "env.episode_steps=12"]
    words += ["--episodes", "7", "--seed", "4", "--decode", "sample", "--out", "results.json"]
    assert main([*words, "--dataset", "data", "--keep", "all"]) == 0
    assert "7 episodes kept" in capsys.readouterr().out
    dataset = FolderDataset(tmp_path / "data")
    assert [len(episode) for episode in dataset] == [e.length for e in evaluated[0].episodes]
    assert [float(episode.rewards.sum()) for episode in dataset] == [e.returns for e in evaluated[0].episodes]
    assert dataset.origin["env"]["id"] == "gym/CartPole-v1"
    before = (tmp_path / "data" / "episodes.jsonl").read_text()
    # how many play at once decides nothing
    assert main([*words, "env.num_envs=2", "--dataset", "data", "--keep", "all"]) == 0
    assert (tmp_path / "data" / "episodes.jsonl").read_text() == before
    capsys.readouterr()
    assert main([*words, "--dataset", "data", "--keep", "all", "--decode", "greedy"]) == 2  # would be others
    said = capsys.readouterr()
    assert "holds another recording" in said.err
    assert "episodes of" not in said.out  # before anything is played
    assert main(["demos", "data"]) == 2
    capsys.readouterr()
    assert main(["demos", "data", "--lerobot", "lerobot", "-n", "3", "--keep", "all"]) == 2
    assert "leave --episodes, --keep out" in capsys.readouterr().err
    assert main(["demos", "data", "--lerobot", "lerobot"]) == 0
    for ours, theirs in zip(dataset, open_dataset(tmp_path / "lerobot"), strict=True):
        assert torch.equal(ours.labels, theirs.labels)
        assert torch.equal(ours.state, theirs.state)
    page = (tmp_path / "results.html").read_text()
    assert "Return" in page


def test_episodes_are_filmed_separately(saved, evaluated, tmp_path, capsys):
    words = ["record", str(saved), "gym/CartPole-v1", "env.num_envs=2", "env.processes=0", "env.episode_steps=12"]
    words += ["--seed", "4", "--decode", "sample", "--out", str(tmp_path), "--separate"]
    assert main([*words, "--episodes", "3"]) == 0
    assert "filmed 3 episodes" in capsys.readouterr().out
    frames = {path.name: video_info(path).frames for path in tmp_path.glob("*.mp4")}
    assert frames == {f"episode_{i:04d}.mp4": evaluated[0].episodes[i].length for i in range(3)}
    assert main([*words, "--episodes", "0"]) == 2


def test_bad_options_are_refused(saved, capsys):
    assert main(["eval", str(saved), "gym/CartPole-v1", "--films", "-1"]) == 2
    assert "--films is -1" in capsys.readouterr().err
    assert main(["eval", str(saved), "gym/CartPole-v1", "--every", "0"]) == 2
    assert "--every 0; expected" in capsys.readouterr().err


def test_options_are_written_as_in_yaml_or_as_in_recipes():
    words = ["env.perturb={camera:2,light:1}", "env.num_envs=3", "env.cameras=[a, b]", "env.options={path: a:b}"]
    assert env_overrides(words) == {
        "perturb": {"camera": 2, "light": 1},
        "num_envs": 3,
        "cameras": ["a", "b"],
        "options": {"path": "a:b"},
    }
    with pytest.raises(RefusedInput, match="YAML"):
        env_overrides(["env.cameras=[a"])


def outcome(successes):
    return {"task": 0, "initial_state": -1, "seed": 5, "length": 9, "returns": 1.5, "success_at_end": False} | {
        "success_once": successes
    }


def test_the_page_shows_the_rate_tasks_and_a_film_of_every_failure(tmp_path):
    (tmp_path / "results_films").mkdir()
    from envs.video import VideoRecorder

    with VideoRecorder(tmp_path / "results_films") as recorder:
        recorder.add(0, np.zeros((32, 32, 3), np.uint8))
        film = recorder.end_episode(0, False, "episode_0001")
    record = {
        "policy": {"folder": "p", "sha256": {"model.safetensors": "ab"}},
        "environment": {"id": "test/World"},
        "protocol": {"sampling": {"decode": "greedy"}, "seed": 3},
        "device": "cuda:0 (an accelerator)",
        "versions": {"embodied": "0.1.0"},
        "metrics": {
            "eval/success_once": 0.5,
            "eval/success_once_low": 0.1,
            "eval/success_once_high": 0.9,
            "eval/success_at_end": 0.0,
            "eval/return": 1.5,
            "eval/length": 9.0,
            "eval/episodes": 2.0,
        },
        "tasks_named": {"0": "push <it>"},
        "tasks": [{"task": 0, "instruction": "push <it>", "episodes": 2, "successes": 1, "interval": [0.1, 0.9]}],
        "episodes": [outcome(True), outcome(False)],
        "films": {"episodes": [{"episode": 1, "path": f"results_films/{film.name}", "same": False}], "missing": ""},
    }
    page = build_evaluation_page(record, tmp_path / "results.html", command="embodied eval p").read_text()
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert "50% of 2 episodes succeeded." in text
    assert "10% to 90%" in text
    assert "push &lt;it&gt;" in page
    assert f'src="results_films/{film.name}"' in page
    assert "came out differently" in page
    assert "SHA-256 of model.safetensors" in page
    assert "embodied eval p" in text


@pytest.mark.parametrize(
    ("of", "every", "most", "filmed", "missing"),
    [
        ("failures", 1, 16, [0, 2, 3, 5], ""),
        ("failures", 1, 3, [0, 2, 3], "The first 3 of 4 failures; --films 4 films all."),
        ("successes", 1, 16, [1, 4], ""),
        ("all", 2, 16, [0, 2, 4], "3 of 6 episodes."),
        ("all", 2, 2, [0, 2], "2 of 6 episodes; --films 3 films all of these."),
        ("failures", 1, 0, [], "4 failures were not filmed."),
    ],
)
def test_films_are_chosen_by_outcome_and_spacing(of, every, most, filmed, missing, tmp_path, monkeypatch):
    def film(policy, env, options, chosen, folder, *, fps, device):
        return {number: SimpleNamespace(path=folder / f"{number}.mp4", success=True) for number in chosen}

    monkeypatch.setattr(outcome_films, "film_episodes", film)
    monkeypatch.setattr(outcome_films, "playback_env", lambda env, count, pictures: contextlib.nullcontext())
    monkeypatch.setattr(outcome_films.registry, "load", lambda folder: None)
    result = SimpleNamespace(episodes=[SimpleNamespace(success_once=number in (1, 4)) for number in range(6)])
    env, folder = SimpleNamespace(num_envs=4), tmp_path / "films"
    films = outcome_films.film_outcomes(
        result, tmp_path, env, None, folder, of=of, every=every, most=most, fps=20, device="cpu"
    )
    assert [film["episode"] for film in films["episodes"]] == filmed
    assert [film["same"] for film in films["episodes"]] == [number in (1, 4) for number in filmed]
    assert films["missing"] == missing


@pytest.mark.slow
def test_failures_of_a_simulator_are_filmed_for_the_page(tmp_path, monkeypatch):
    """PushCube by a policy that nobody trained: every episode fails."""
    monkeypatch.chdir(tmp_path)
    from envs.maniskill.config import ManiSkillConfig

    env = ManiSkillConfig(id="maniskill/PushCube-v1", num_envs=2, processes=1, episode_steps=6)
    interface = registry.interface_of(describe(env))
    policies.save(policies.build("mlp", interface, seed=1, hidden=(8,), chunk=2), tmp_path / "policy")
    words = ["env.num_envs=2", "env.processes=1", "env.episode_steps=6", "--episodes", "4", "--films", "3"]
    assert main(["eval", "policy", "maniskill/PushCube-v1", *words, "--out", "results.json"]) == 0
    record = json.loads((tmp_path / "results.json").read_text())
    films = record["films"]["episodes"]
    assert [film["episode"] for film in films] == [0, 1, 2]
    assert all(film["same"] for film in films)
    assert "3 of 4 failures" in record["films"]["missing"]
    page = (tmp_path / "results.html").read_text()
    for film in films:
        assert video_info(tmp_path / film["path"]).frames == 6
        assert film["path"] in page


def test_a_policy_that_does_not_fit_is_refused_before_anything_starts_or_is_written(
    saved, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(env_registry, "make", lambda *_: pytest.fail("a simulator was started"))
    out = tmp_path / "out"
    for words in (["eval", "--out", str(out / "results.json")], ["record", "--out", str(out)]):
        assert main([words[0], str(saved), "gym/Pendulum-v1", *words[1:]]) == 2
        assert "state_dim 4 (policy) against 3 (environment)" in capsys.readouterr().err
    assert not out.exists()


def test_an_evaluation_that_fails_leaves_no_empty_results(saved, tmp_path, capsys, monkeypatch):
    def refuse(*_):
        raise RefusedInput("no simulator today")

    monkeypatch.setattr(env_registry, "make", refuse)
    out = tmp_path / "results.json"
    words = ["eval", str(saved), "gym/CartPole-v1", "env.processes=0", "--out", str(out)]
    assert main(words) == 2
    assert not out.exists()
    out.write_text("of earlier")
    assert main(words) == 2
    assert out.read_text() == "of earlier"


def test_where_results_or_a_dataset_cannot_go_is_refused_at_once(saved, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(env_registry, "make", lambda *_: pytest.fail("a simulator was started"))
    (tmp_path / "file").write_text("")
    for words, said in (
        (["--out", str(tmp_path / "page.html")], "page.json"),
        (["--dataset", str(tmp_path / "file")], "no folder to record a dataset in"),
        (["--dataset", str(tmp_path / "data")], "gym/CartPole-v1 does not say what a success is. Use --keep all"),
    ):
        assert main(["eval", str(saved), "gym/CartPole-v1", *words]) == 2
        assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_environments_that_slots_do_not_divide_are_refused_instead_of_left_out(saved, capsys):
    assert main(["eval", str(saved), "gym/CartPole-v1", "env.num_envs=3", "env.slots=2"]) == 2
    assert "num_envs=3 is not divisible by slots=2" in capsys.readouterr().err


def test_results_of_a_policy_that_ships_are_not_written_into_the_package():
    ships = CHECKPOINTS / bundled_checkpoints()[0]
    assert eval_command._home(None, ships) == Path("runs/evaluations") / ships.name
    assert eval_command._home(None, Path("/tmp/mine")) == Path("/tmp/mine")
    assert eval_command._home(Path("/tmp/run"), ships) == Path("/tmp/run")


def test_a_folder_for_videos_that_cannot_be_is_refused(saved, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["record", str(saved), "gym/CartPole-v1", "--out", str(tmp_path / "file")]) == 2
    assert "choose another with --out" in capsys.readouterr().err


def test_earlier_films_go_and_files_of_others_stay(saved, evaluated, tmp_path):
    folder = tmp_path / "results_films"
    folder.mkdir()
    (folder / "old.mp4").write_text("")
    (folder / "notes.txt").write_text("mine")
    chosen = {"of": "successes", "every": 1, "most": 0, "fps": 5, "device": "cpu"}
    outcome_films.film_outcomes(evaluated[0], saved, CARTPOLE, SAMPLED, folder, **chosen)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_config_of_another_program_above_a_policy_is_not_taken_for_a_runs(tmp_path, monkeypatch):
    policy = tmp_path / "project" / "policy"
    policy.mkdir(parents=True)
    (tmp_path / "project" / "config.yaml").write_text("defaults: [db]\n")
    monkeypatch.chdir(tmp_path / "project")
    assert find_run(policy) is None
    assert find_run("pushcube_openvla_oft_tiny") is None  # a name, not a path from here
    (tmp_path / "project" / "metrics.jsonl").write_text("")
    assert find_run(policy) == (tmp_path / "project").resolve()
    assert find_run("pushcube_openvla_oft_tiny") is None


def test_a_damaged_description_is_one_sentence_and_no_traceback(saved, tmp_path, capfd):
    folder = shutil.copytree(saved, tmp_path / "policy")
    (folder / "policy.json").write_text("{")
    assert main(["eval", str(folder), "gym/CartPole-v1", "--episodes", "1"]) == 2
    said = capfd.readouterr().err
    assert "policy.json is not valid JSON" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--temperature", "0.5"], "greedy actions are not drawn; add --decode sample"),
        (["--decode", "sample", "--temperature", "0"], "expected a number above 0"),
    ],
)
def test_a_temperature_needs_something_to_draw(saved, capsys, given, words):
    assert main(["eval", str(saved), "gym/CartPole-v1", "--episodes", "1", *given]) == 2
    assert words in capsys.readouterr().err


def test_a_temperature_is_that_of_the_recorded_evaluation(saved, tmp_path):
    words = ["--episodes", "1", "--decode", "sample", "--temperature", "0.5", "--out", str(tmp_path / "cool.json")]
    assert main(["eval", str(saved), "gym/CartPole-v1", "env.processes=0", *words]) == 0
    assert json.loads((tmp_path / "cool.json").read_text())["protocol"]["sampling"]["temperature"] == 0.5


def test_a_second_evaluation_leaves_the_results_of_the_first(saved, tmp_path):
    policy = shutil.copytree(saved, tmp_path / "policy")
    words = [
        "eval",
        str(policy),
        "gym/CartPole-v1",
        "env.num_envs=2",
        "env.processes=0",
        "--episodes",
        "2",
        "--films",
        "0",
    ]
    assert [main([*words, "--seed", str(seed)]) for seed in (3, 4, 5)] == [0, 0, 0]
    seeds = {path.name: json.loads(path.read_text())["protocol"]["seed"] for path in policy.glob("results*.json")}
    assert seeds == {"results.json": 3, "results-2.json": 4, "results-3.json": 5}
    assert {path.name for path in policy.glob("*.html")} == {"results.html", "results-2.html", "results-3.html"}
