"""Recording demonstrations with real simulators, from state alone: fast, and needs no graphics driver."""

import itertools
import shlex
import types

import pytest
import torch

from embodied.commands.main import main
from embodied.datasets import open_dataset
from embodied.datasets.layout import INDEX, read_index
from embodied.errors import ConfigurationError, RefusedInput, SimulatorError
from embodied.interaction import demonstrate, experts
from embodied.interaction.demonstrate import DemonstrationConfig, assignment_of, record
from embodied.interaction.experts import StateExpert, expert_config, make_expert_env, plain_spec, split_advice
from embodied.runs.progress import RunProgress
from envs import registry
from envs.api import Assignments
from envs.maniskill.experts import EXPERTS

PUSH = {"id": "maniskill/PushCube-v1", "sim_backend": "cpu"}


def play(folder, values=PUSH, num_envs=2, processes=0, **options):
    config = expert_config({**values, "num_envs": num_envs, "processes": processes})
    folder.mkdir(parents=True, exist_ok=True)
    with RunProgress(folder / "log.txt", total=options.get("episodes", 50), unit="episodes") as screen:
        return record(config, DemonstrationConfig(**options), folder, screen, values)


def swing(config, batch):
    """An expert for a pendulum: brakes, and says so from what is shown alone."""
    return StateExpert(lambda state: (-state[:, 2:3]).clamp(-2, 2))


PENDULUM = {"id": "gym/Pendulum-v1", "episode_steps": 20}


@pytest.fixture
def pendulum(monkeypatch):
    """A simulator that forgets its past to the bit (PhysX keeps a little of its contacts), given an expert."""
    kind = experts.ExpertKind(f"{__name__}:swing", {}, (0,))
    monkeypatch.setitem(experts._KINDS, "gym", kind)
    return {"values": PENDULUM, "keep": "all", "noise": 0.2, "wander": 6, "pace": 0.5}


def assert_equal_datasets(first, second):
    first, second = open_dataset(first), open_dataset(second)
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert a.assignment == b.assignment
        for name, tensor in a.tensors().items():
            torch.testing.assert_close(tensor, b.tensors()[name], rtol=0, atol=0)


def test_what_an_expert_does_is_recorded_with_what_it_saw(tmp_path):
    recorded = play(tmp_path, episodes=2)
    assert (recorded.episodes, recorded.attempts, recorded.unknown) == (2, 2, ())
    dataset = open_dataset(tmp_path)
    assert dataset.spec == plain_spec(make_spec())
    assert dataset.origin["env"] == PUSH
    for number, episode in enumerate(dataset):
        assert episode.succeeded
        assert episode.success.tolist() == [False] * (len(episode) - 1) + [True]
        assert episode.assignment == assignment_of(number, 0, dataset.spec)
        assert torch.equal(episode.actions, EXPERTS["PushCube-v1"](episode.state))
        assert torch.equal(episode.actions, episode.labels)


def make_spec():
    with make_expert_env(expert_config({**PUSH, "num_envs": 1, "processes": 0})) as env:
        return env.spec


def test_a_recording_played_again_gives_the_same_rewards(tmp_path):
    play(tmp_path, episodes=1, noise=0.2)
    episode = open_dataset(tmp_path)[0]
    config = expert_config({**PUSH, "num_envs": 1, "processes": 0})
    with registry.make(config) as env:
        shown = env.reset(Assignments.unstack(torch.tensor([episode.assignment])))
        for step in range(len(episode)):
            assert torch.equal(shown.state[0], episode.state[step])
            result = env.step(episode.actions[step][None, None])
            assert result.reward[0, 0] == episode.rewards[step]
            shown = result.observation


def test_noise_disturbs_what_is_done_and_leaves_the_labels_alone(tmp_path):
    play(tmp_path, episodes=2, noise=0.3)
    for episode in open_dataset(tmp_path):
        assert torch.equal(episode.labels, EXPERTS["PushCube-v1"](episode.state))
        difference = episode.actions - episode.labels
        assert (difference[:, :3].abs() > 0).float().mean() > 0.5
        assert difference[:, 3:].abs().max() == 0  # rotation and gripper
        assert episode.actions.abs().max() <= 1


def test_wandering_begins_an_attempt_and_leaves_the_labels_alone(tmp_path):
    play(tmp_path, episodes=6, wander=5)
    lengths = []
    for episode in open_dataset(tmp_path):
        assert torch.equal(episode.labels, EXPERTS["PushCube-v1"](episode.state))
        wanders = (episode.actions != episode.labels).any(dim=1)
        lengths.append(int(wanders.sum()))
        assert lengths[-1] <= 5
        assert wanders[: lengths[-1]].all()  # they come first
        assert (episode.actions[: lengths[-1], :3] == episode.actions[0, :3]).all()  # in one direction
        assert torch.equal(episode.actions[:, 3:], episode.labels[:, 3:])
        assert episode.actions[:, 2].min() >= -1
    assert len(set(lengths)) > 1


def test_each_demonstrator_makes_a_share_of_the_experts_motions_and_labels_say_so(tmp_path):
    play(tmp_path, episodes=6, pace=0.7, noise=0.1, seed=3)
    shares = []
    for episode in open_dataset(tmp_path):
        expert = EXPERTS["PushCube-v1"](episode.state)
        moves = expert[:, :3].abs() > 1e-3
        share = (episode.labels[:, :3] / expert[:, :3])[moves]
        assert torch.allclose(share, share[0].expand_as(share), atol=1e-4)  # one demonstrator an attempt
        assert torch.equal(episode.labels[:, 3:], expert[:, 3:])  # rotation and gripper
        assert (episode.actions[:, :3] != episode.labels[:, :3]).any()
        shares.append(share[0].item())
    assert all(0.7 <= share <= 1 for share in shares)
    assert max(shares) - min(shares) > 0.1


@pytest.mark.parametrize("pace", [0.0, -0.5, 1.1])
def test_a_pace_that_is_no_share_is_refused(pace):
    with pytest.raises(ValueError, match="more than 0, and 1 at most"):
        DemonstrationConfig(pace=pace)


def test_the_dataset_does_not_depend_on_how_many_environments_play(tmp_path, pendulum):
    for count in (1, 3, 8):
        play(tmp_path / str(count), num_envs=count, episodes=7, seed=5, **pendulum)
    assert_equal_datasets(tmp_path / "1", tmp_path / "3")
    assert_equal_datasets(tmp_path / "1", tmp_path / "8")


def test_simulators_in_processes_record_the_same(tmp_path):
    play(tmp_path / "here", num_envs=4, episodes=4, noise=0.2, seed=7)
    play(tmp_path / "there", num_envs=4, processes=2, episodes=4, noise=0.2, seed=7)
    assert_equal_datasets(tmp_path / "here", tmp_path / "there")


def test_a_recording_goes_on_to_the_same_end(tmp_path, pendulum):
    play(tmp_path / "whole", episodes=5, **pendulum)
    play(tmp_path / "parts", episodes=2, **pendulum)
    # what a kill leaves: an episode whose line is missing
    index = tmp_path / "parts" / INDEX
    index.write_text(index.read_text().splitlines(keepends=True)[0])
    assert play(tmp_path / "parts", episodes=5, **pendulum).episodes == 5
    assert_equal_datasets(tmp_path / "whole", tmp_path / "parts")
    assert play(tmp_path / "parts", episodes=5, **pendulum).episodes == 5  # nothing left to do
    with pytest.raises(RefusedInput, match=r"origin\.noise"):
        play(tmp_path / "parts", episodes=6, **{**pendulum, "noise": 0.1})


# with so little time some worlds are solved and others are not
SHORT = {**PUSH, "episode_steps": 8}


def test_failures_are_noted_and_left_out_or_kept(tmp_path):
    recorded = play(tmp_path / "some", SHORT, episodes=3, attempts=5)
    entries = read_index(tmp_path / "some")
    assert recorded.attempts == len(entries) > 3
    assert sum(entry.success for entry in entries) == 3
    assert [entry.kept for entry in entries] == [entry.success for entry in entries]
    assert all(episode.succeeded for episode in open_dataset(tmp_path / "some"))
    play(tmp_path / "all", SHORT, episodes=recorded.attempts, keep="all")
    assert [episode.succeeded for episode in open_dataset(tmp_path / "all")] == [entry.success for entry in entries]


def test_an_expert_that_hardly_ever_succeeds_is_given_up(tmp_path):
    with pytest.raises(SimulatorError, match="succeeded in 0 of 10 attempts, too rarely for 1 episodes"):
        play(tmp_path, {**PUSH, "episode_steps": 2}, num_envs=5, episodes=1, attempts=1)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"id": "gym/CartPole-v1"}, ["no scripted expert", "maniskill/..."]),
        ({"id": "maniskill/PushCube-v1", "control_mode": "pd_joint_pos"}, ["pd_joint_pos", "'pd_ee_delta_pose'"]),
        ({"id": "maniskill/PushCube-v1", "auto_reset": "same_step"}, ["auto_reset", "'disabled'"]),
        ({"id": "maniskill/PushCube-v1", "imagesize": 3}, ["env.imagesize", "image_size"]),
    ],
)
def test_environments_that_the_expert_cannot_play_are_refused(values, words):
    with pytest.raises(ConfigurationError) as caught:
        expert_config(values)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_task_without_expert_is_refused_before_a_simulator_starts():
    with pytest.raises(ConfigurationError, match="no scripted expert for maniskill/RollBall-v1"):
        expert_config({"id": "maniskill/RollBall-v1", "num_envs": 1, "processes": 0})


LIBERO = {"id": "libero/libero_object", "cameras": [], "mode": "fast"}


@pytest.mark.slow
def test_libero_experts_play_beside_their_simulators(tmp_path):
    recorded = play(tmp_path, LIBERO, num_envs=2, processes=2, episodes=2)
    assert recorded.episodes == 2
    assert [episode.assignment[0] for episode in open_dataset(tmp_path)] == [0, 1]


@pytest.mark.parametrize(("tasks", "known"), [(10, 1), (90, 16), (3, 3)])
def test_what_is_left_out_does_not_count_as_an_attempt(tasks, known):
    recording = demonstrate._Recording.__new__(demonstrate._Recording)
    recording.options = demonstrate.DemonstrationConfig(episodes=50)
    recording.spec = types.SimpleNamespace(tasks=tasks, id="x")
    recording.unknown, recording._done = set(range(known, tasks)), set()
    recording._numbers, recording._made = itertools.count(), 0
    recording.writer = types.SimpleNamespace(kept=0, folder="f")
    for _ in range(50):
        assert recording._next_attempt().assignment[0] < known
    assert recording._made == 50
    recording._made = recording.options.attempts * 50
    with pytest.raises(SimulatorError, match=f"in 0 of {recording.options.attempts * 50} attempts"):
        recording._next_attempt()


@pytest.mark.slow
def test_tasks_that_no_expert_can_do_are_left_out_and_named(tmp_path):
    values = {**LIBERO, "id": "libero/libero_goal"}
    config = expert_config({**values, "num_envs": 10, "processes": 0})
    with make_expert_env(config) as env:
        spec = plain_spec(env.spec)
        shown = env.reset(Assignments.unstack(torch.tensor([assignment_of(task, 0, spec) for task in range(10)])))
        able = split_advice(shown, spec)[2]
    assert 3 <= int(able.sum()) < 10
    first_unable = able.tolist().index(False)
    recorded = play(tmp_path, values, num_envs=1, episodes=int(able[: first_unable + 2].sum()))
    assert set(recorded.unknown) <= set((~able).nonzero().flatten().tolist())
    assert all(able[episode.assignment[0]] for episode in open_dataset(tmp_path))


def test_from_demonstrations_to_an_evaluated_policy_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = ["--preview", "0", "--noise", "0.1", "env.processes=0", "env.sim_backend=cpu", "--lerobot", "lerobot"]
    assert main(["demos", "maniskill/PushCube-v1", "-n", "3", *options]) == 0
    assert "embodied sft mlp data/maniskill_PushCube-v1" in capsys.readouterr().out
    assert len(open_dataset("lerobot")) == 3
    assert main(["sft", "mlp", "data/maniskill_PushCube-v1", "--dry-run", "learner.epochs=2"]) == 0
    assert "epochs: 2" in capsys.readouterr().out
    assert main(["sft", "mlp", "data/maniskill_PushCube-v1", "learner.epochs=2", "run.folder=run"]) == 0
    said = capsys.readouterr().out
    command = next(line for line in said.splitlines() if line.startswith("  embodied eval "))
    assert main([*shlex.split(command)[1:], "env.num_envs=2", "env.processes=0", "--episodes", "2"]) == 0
    assert "2 episodes of maniskill/PushCube-v1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["demos", "maniskill/PushCube-v1", "image_size=64"], "only env"),
        (["demos", "gym/CartPole-v1"], "no scripted expert"),
        (["demos", "maniskill/PushCube-v1", "-n", "0"], "episodes is 0"),
        (["demos", "maniskill/PushCube-v1", "--noise", "2"], "noise is 2"),
        (["demos", "maniskill/PushCube-v1", "--lerobot", "taken"], "taken is not empty"),
        (["sft", "mlp"], "name a policy and a dataset folder"),
        (["sft", "mlp", "nowhere", "run.root=runs"], "there is no dataset folder nowhere"),
        (["sft", "--resume", "nowhere"], "no run of `embodied sft`"),
    ],
)
def test_refusals_name_the_reason_and_exit_with_2(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "of_mine").write_text("")
    assert main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["maniskill/NoSuch-v1"], "There is no scripted expert for maniskill/NoSuch-v1"),
        (["maniskill/StackCube-v1", "env.control_mode=pd_ee_delta_pos"], "turns the hand"),
        (["maniskill/PushCube-v1", "--preview", "-1"], "--preview is -1"),
        (["maniskill/PushCube-v1", "-n", "0"], "episodes is 0"),
        (["maniskill/PushCube-v1", "--noise", "nan"], "noise is nan"),
        (["maniskill/PushCube-v1", "--wander", "-1"], "wander is -1"),
    ],
)
def test_what_has_no_expert_is_refused_before_a_folder_is_made(tmp_path, capsys, words, said):
    assert main(["demos", *words, "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_environment_is_refused_and_left_alone(tmp_path, capsys, pendulum):
    play(tmp_path, episodes=1, **pendulum)
    (tmp_path / "log.txt").unlink()
    assert main(["demos", "maniskill/PushCube-v1", "--out", str(tmp_path)]) == 2
    assert "holds a dataset of gym/Pendulum-v1, not of maniskill/PushCube-v1" in capsys.readouterr().err
    assert not (tmp_path / "log.txt").exists()


def test_other_options_for_a_recording_that_was_begun_are_refused_before_anything_starts(tmp_path, capsys, monkeypatch):
    words = ["demos", "maniskill/PushCube-v1", "--out", str(tmp_path), "--preview", "0", "env.processes=0"]
    assert main([*words, "-n", "1", "env.sim_backend=cpu"]) == 0
    (tmp_path / "log.txt").unlink()
    monkeypatch.setattr(demonstrate, "make_expert_env", lambda *_: pytest.fail("a simulator was started"))
    for more, said in (
        (["--noise", "0.1", "env.sim_backend=cpu"], "origin.noise is 0.0 there, 0.1 here"),
        (["env.sim_backend=cpu", "env.episode_steps=9"], "origin.env is"),
    ):
        assert main([*words, "-n", "2", *more]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "log.txt").exists()


def ignorant(config, batch):
    """An expert that knows no task."""
    expert = StateExpert(lambda state: torch.zeros(len(state), 1))
    expert.advise = lambda shown, rows: (torch.zeros(len(rows), 1), torch.zeros(len(rows), dtype=torch.bool))
    return expert


def test_an_environment_none_of_whose_tasks_has_an_expert_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(experts._KINDS, "gym", experts.ExpertKind(f"{__name__}:ignorant", {}, (0,)))
    with pytest.raises(ConfigurationError, match="no scripted expert for any of the 1 tasks"):
        play(tmp_path, PENDULUM, episodes=2)
