"""Films and datasets of training: complete, named by outcome, true to what was learnt from, and without influence."""

import dataclasses

import numpy as np
import pytest
import torch

from embodied.config.compose import compose_recipe
from embodied.datasets import FolderDataset
from embodied.errors import ConfigurationError, DeadlineExceeded, RefusedInput, WorkerError
from embodied.interaction.flow import recording_origin
from embodied.interaction.recipe import parse_recipe
from embodied.interaction.rollout_recorder import RecordConfig, RecorderPlan, RolloutRecorder, changed_options, prepared
from embodied.interaction.train import train
from embodied.interaction.workload import parse_workload
from embodied.runs.folder import create_run_folder
from embodied.runs.metrics import read_metrics
from envs.api import Assignments
from envs.gym import GymConfig
from envs.local import LocalVectorEnv
from envs.maniskill.config import ManiSkillConfig
from envs.video import VideoRecorder, read_frames, video_info
from policies.api import PolicyOutput
from tests.envs import scripted_env as world

SMALL = [
    "env.num_envs=4",
    "env.processes=0",
    "env.episode_steps=12",
    "rollout.decisions=16",
    "learner.global_batch=32",
    "learner.epochs=1",
    "policy.hidden=[8]",
    "evaluation.every=2",
    "evaluation.episodes=2",
    "goal.at_least=null",
    "goal.env_steps=256",  # four iterations
    "record.episodes=0",
    "logger.tensorboard=false",
]


def trained(tmp_path, *overrides):
    recipe = parse_recipe("test", compose_recipe("gym_cartpole_ppo_mlp", [*SMALL, *overrides]))
    folder = create_run_folder(tmp_path, "test")
    train(recipe, folder, command="test")
    return folder


def numbers(folder):
    return [
        {name: value for name, value in record["metrics"].items() if not name.startswith(("time/", "host/"))}
        for record in read_metrics(folder.metrics)
    ]


def test_a_run_is_filmed_and_recorded_and_learns_the_same(tmp_path):
    dataset = tmp_path / "data"
    recorded = trained(tmp_path / "a", "record.every=2", "record.envs=2", f"record.dataset={dataset}")
    assert numbers(recorded) == numbers(trained(tmp_path / "b"))
    episodes = FolderDataset(dataset)
    finished = sum(n["train/episodes"] for n in numbers(recorded) if "train/episodes" in n)
    assert len(episodes) == finished
    for episode, entry in zip(episodes, episodes.entries, strict=True):
        assert len(episode) <= 12
        assert float(episode.rewards.sum()) == len(episode)  # CartPole pays one a step
        assert set(episode.actions.flatten().tolist()) <= {0.0, 1.0}
        assert entry.assignment[2] >= 0
    assert len({entry.assignment for entry in episodes.entries}) == len(episodes)
    with pytest.raises(RefusedInput, match=r"origin\.seed is"):  # before anything is started
        parse_workload(
            "gym_cartpole_ppo_mlp", compose_recipe("gym_cartpole_ppo_mlp", ["seed=9", f"record.dataset={dataset}"])
        ).admit()
    assert episodes.origin["env"] == {"id": "gym/CartPole-v1", "num_envs": 4, "processes": 0, "episode_steps": 12}
    films = sorted((recorded.videos / "training").glob("*.mp4"))
    complete = [film for film in films if "unfinished" not in film.name]
    assert complete
    assert {film.name[:7] for film in complete} == {"env0000", "env0001"}
    lengths = {entry.attempt: entry.steps for entry in episodes.entries}
    for film in complete:
        env, number = int(film.name[3:7]), int(film.name[15:20])
        if number * 4 + env in lengths:  # else it was abandoned for an evaluation
            assert video_info(film).frames == lengths[number * 4 + env]


def scripted(habits, **options):
    options = {"num_envs": 2, "auto_reset": "disabled"} | options
    return LocalVectorEnv(lambda n: world.make_batch(habits, n), world.config(processes=0, **options))


def played(recorder, env, chunks, chunk=1, seeds=(3, 5)):
    """Play chunks of zeros, everything recorded."""
    rounds = np.zeros(env.num_envs, dtype=np.int64)
    observation = env.reset(Assignments.from_seeds(seeds))
    for _ in range(chunks):
        actions = torch.zeros(env.num_envs, chunk, 2)
        output = PolicyOutput(actions, actions, actions, torch.full((env.num_envs, 1), 0.5))
        recorder.before(slice(0, env.num_envs), observation, output)
        result = env.step(actions)
        recorder.after(slice(0, env.num_envs), result, rounds)
        observation = result.observation


def recorder_of(tmp_path, env, *, chunk=1, **options):
    plan = RecorderPlan(RecordConfig(**options), tmp_path / "videos", {"env": {"id": "test/scripted"}})
    return RolloutRecorder(plan, env, np.arange(env.num_envs), env.num_envs, rank=0, world=1, chunk=chunk)


def test_outcomes_that_nobody_tells_cannot_choose_what_is_kept(tmp_path):
    with scripted(world.Habits()) as env:
        env.spec = dataclasses.replace(env.spec, has_success=False)
        with pytest.raises(ConfigurationError, match="does not say what a success is"):
            recorder_of(tmp_path, env, keep="failures", every=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("keep", "left"), [("all", [3, 5]), ("successes", [3, 5]), ("failures", [])])
def test_a_dataset_keeps_what_it_was_told_to(tmp_path, keep, left):
    """The scripted world succeeds where it ends: at step `seed`."""
    with scripted(world.Habits(images=True, privileged=True)) as env:
        recorder = recorder_of(tmp_path, env, keep=keep, dataset=str(tmp_path / "data"))
        played(recorder, env, chunks=7)
        recorder.close()
    entries = FolderDataset(tmp_path / "data").entries if left else []
    assert [entry.steps for entry in entries] == left
    if left:
        first = FolderDataset(tmp_path / "data")[0]
        assert first.state[:, 0].tolist() == [0, 1, 2]  # what was shown before each action
        assert first.images[:, 0, 0, 0, 0].tolist() == [0, 1, 2]
        assert first.success.tolist() == [False, False, True]
        assert first.rewards.tolist() == [1, 2, 3]
        assert first.privileged[:, 0].tolist() == [0, 10, 20]


def test_the_cameras_are_filmed_side_by_side_with_the_last_picture(tmp_path):
    with scripted(world.Habits(images=True)) as env:
        recorder = recorder_of(tmp_path, env, every=1, fps=6, chunk=2)
        played(recorder, env, chunks=4, chunk=2)
        recorder.close()
    films = {film.name: video_info(film) for film in (tmp_path / "videos").glob("*.mp4")}
    # 3 and 5 steps are 2 and 3 decisions; the end is shown too
    assert {name: info.frames for name, info in films.items()} == {
        "env0000_episode00000_success.mp4": 3,
        "env0001_episode00000_success.mp4": 4,
    }
    assert all(info.fps == 3 for info in films.values())
    assert all(info.width > info.height for info in films.values())  # two cameras of 4 x 6


def test_a_tiled_film_shows_all_and_an_unfinished_episode_is_kept(tmp_path):
    with scripted(world.Habits(), num_envs=3) as env:
        recorder = recorder_of(tmp_path, env, every=1, envs=2, tiled=True)
        played(recorder, env, chunks=6, seeds=(3, 5, 9))
        recorder.close()
    (film,) = (tmp_path / "videos").glob("*.mp4")
    assert film.name == "grid_round0000_2of2.mp4"
    assert len(list(read_frames(film))) == 5
    with scripted(world.Habits()) as env:
        recorder = recorder_of(tmp_path / "cut", env, every=1)
        played(recorder, env, chunks=2)
        recorder.close()
    assert sorted(film.name for film in (tmp_path / "cut" / "videos").glob("*.mp4")) == [
        "env000_episode0000_unfinished.mp4",
        "env001_episode0000_unfinished.mp4",
    ]


def test_what_cannot_be_recorded_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"policy.chunk is 3 .* embodied eval RUN --dataset"):
        parse_recipe("test", compose_recipe("gym_cartpole_ppo_mlp", ["policy.chunk=3", "record.dataset=data"]))
    with pytest.raises(ConfigurationError, match="tiled"):
        parse_recipe("test", compose_recipe("gym_cartpole_ppo_mlp", ["record.tiled=true", "record.keep=failures"]))
    with scripted(world.Habits()) as env:
        recorder = recorder_of(tmp_path, env, dataset=str(tmp_path / "data"))
        with pytest.raises(ConfigurationError, match="decides 2 at once"):
            played(recorder, env, chunks=1, chunk=2)
        recorder.close()


def test_pictures_for_people_are_prepared_only_where_films_need_them():
    state, rgb = ManiSkillConfig(id="maniskill/PushCube-v1"), ManiSkillConfig(id="maniskill/PushCube-v1", obs="rgb")
    filmed = RecordConfig(every=3)
    assert prepared(state, filmed) == dataclasses.replace(state, rendering="on_demand")
    assert prepared(state, RecordConfig()) == state
    assert prepared(rgb, filmed) == rgb
    assert changed_options(GymConfig(id="gym/CartPole-v1", num_envs=2)) == {"id": "gym/CartPole-v1", "num_envs": 2}


@pytest.mark.parametrize("fault", [WorkerError("the encoder is dead"), DeadlineExceeded("the encoder is slow")])
@pytest.mark.parametrize("call", ["add", "end_episode", "close"])
def test_films_that_cannot_be_made_do_not_end_the_run(tmp_path, monkeypatch, caplog, fault, call):
    asked = []

    def failing(self, *_, **__):
        asked.append(call)
        raise fault

    monkeypatch.setattr(VideoRecorder, call, failing)
    with scripted(world.Habits(images=True, privileged=True)) as env:
        recorder = recorder_of(tmp_path, env, every=1, dataset=str(tmp_path / "data"))
        played(recorder, env, chunks=7)
        recorder.abandon(np.zeros(2, dtype=np.int64))
        recorder.close()
    assert asked == [call]
    assert caplog.text.count(str(fault)) == 1
    assert [entry.steps for entry in FolderDataset(tmp_path / "data").entries] == [3, 5]


def test_a_recorder_whose_process_was_killed_lets_the_run_go_on(tmp_path, caplog):
    with scripted(world.Habits(images=True)) as env:
        recorder = recorder_of(tmp_path, env, every=1)
        recorder._recorder._process.kill()
        recorder._recorder._process.wait()
        played(recorder, env, chunks=7)
        recorder.close()
    assert caplog.text.count("The recording process") == 1


def test_a_dataset_belongs_to_one_way_of_learning_and_to_one_recording_at_a_time(tmp_path):
    where = f"record.dataset={tmp_path / 'data'}"

    def origin(*words):
        return recording_origin(parse_recipe("test", compose_recipe("gym_cartpole_ppo_mlp", [where, *words])))

    for words in ("learner.lr=0.1", "policy.hidden=[8]", "algorithm.gamma=0.5", "rollout.decisions=16"):
        assert origin(words) != origin(), words
    assert origin("goal.env_steps=9", "checkpoint.every=3") == origin()  # how long it goes on does not decide it
    with scripted(world.Habits()) as env:
        first = recorder_of(tmp_path, env, dataset=str(tmp_path / "data"))
        with pytest.raises(RefusedInput, match="another process is writing"):
            recorder_of(tmp_path, env, dataset=str(tmp_path / "data"))
        first.close()
        recorder_of(tmp_path, env, dataset=str(tmp_path / "data")).close()
