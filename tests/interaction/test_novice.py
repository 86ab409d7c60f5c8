"""Demonstrations in which a policy plays first and the expert says what it should have done."""

import pytest
import torch

from embodied.commands.main import main
from embodied.datasets import open_dataset
from embodied.errors import ConfigurationError, RefusedInput
from embodied.interaction import experts
from embodied.interaction.demonstrate import DemonstrationConfig, record
from embodied.interaction.experts import StateExpert, expert_config, make_expert_env, plain_spec
from embodied.interaction.novice import Novice
from embodied.runs.progress import RunProgress
from envs.api import Observation
from policies import registry
from policies.api import Sampling

PENDULUM = {"id": "gym/Pendulum-v1", "episode_steps": 20}
CHUNK = 3


def advise(state):
    return (-state[:, 2:3]).clamp(-2, 2)


def swing(config, batch):
    return StateExpert(advise)


@pytest.fixture(autouse=True)
def pendulum(monkeypatch):
    monkeypatch.setitem(experts._KINDS, "gym", experts.ExpertKind(f"{__name__}:swing", {}, (0,)))


def save(folder, values=PENDULUM, chunk=CHUNK, seed=0):
    with make_expert_env(expert_config({**values, "num_envs": 1, "processes": 0})) as env:
        interface = registry.interface_of(plain_spec(env.spec))
    registry.save(registry.build("mlp", interface, seed=seed, chunk=chunk), folder)
    return folder


def play(folder, num_envs=2, **options):
    config = expert_config({**PENDULUM, "num_envs": num_envs, "processes": 0})
    folder.mkdir(parents=True, exist_ok=True)
    with RunProgress(folder / "log.txt", total=options["episodes"], unit="episodes") as screen:
        return record(config, DemonstrationConfig(keep="all", **options), folder, screen, PENDULUM)


def test_a_policy_plays_first_and_every_label_is_the_experts(tmp_path):
    policy = registry.load(save(tmp_path / "policy"))
    play(tmp_path / "data", episodes=12, policy=str(tmp_path / "policy"), policy_steps=9)
    lengths = []
    for episode in open_dataset(tmp_path / "data"):
        assert torch.equal(episode.labels, advise(episode.state))
        novice = int((episode.actions != episode.labels).any(dim=1).sum())
        assert (episode.actions[:novice] != episode.labels[:novice]).all()  # it plays first, the expert to the end
        for step in range(novice):
            shown = open_observation(episode, step - step % CHUNK)
            with torch.no_grad():
                chunk = policy.act(policy.prepare(shown), Sampling(decode="greedy"), None).actions[0]
            torch.testing.assert_close(episode.actions[step], chunk[step % CHUNK])
        lengths.append(novice)
    assert len(set(lengths)) > 3
    assert max(lengths) <= 9


def open_observation(episode, step):
    """What the episode showed at `step`, as an observation of one row."""
    return Observation(
        state=episode.state[step : step + 1],
        instruction_ids=torch.zeros(1, dtype=torch.int64),
        instruction=[episode.instruction],
        images=None,
        privileged=None,
    )


def test_the_dataset_does_not_depend_on_how_many_environments_play(tmp_path):
    policy = str(save(tmp_path / "policy"))
    for count in (1, 5):
        play(tmp_path / str(count), num_envs=count, episodes=7, policy=policy, wander=3, noise=0.1, seed=4)
    for a, b in zip(open_dataset(tmp_path / "1"), open_dataset(tmp_path / "5"), strict=True):
        assert a.assignment == b.assignment
        assert torch.equal(a.actions, b.actions)
        assert torch.equal(a.state, b.state)


def test_an_expert_none_of_whose_actions_may_be_disturbed_can_be_helped_too(tmp_path, monkeypatch):
    monkeypatch.setitem(experts._KINDS, "gym", experts.ExpertKind(f"{__name__}:swing", {}, ()))
    assert play(tmp_path / "data", episodes=2, policy=str(save(tmp_path / "policy"))).episodes == 2


def test_a_recording_is_not_gone_on_with_by_another_policy(tmp_path):
    first, second = save(tmp_path / "first"), save(tmp_path / "second", seed=1)
    play(tmp_path / "data", episodes=2, policy=str(first))
    with pytest.raises(RefusedInput, match=r"origin\.policy"):
        play(tmp_path / "data", episodes=3, policy=str(second))


def test_a_policy_for_another_environment_is_refused(tmp_path):
    policy = save(tmp_path / "policy")
    with make_expert_env(expert_config({"id": "maniskill/PushCube-v1", "num_envs": 1, "processes": 0})) as env:
        spec = plain_spec(env.spec)
    with pytest.raises(ConfigurationError, match="made for another environment"):
        Novice(policy, spec)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy-steps", "5"], "say which with policy"),
        (["--policy", "nowhere"], "there is no folder nowhere"),
        (["--policy", "{policy}", "--policy-steps", "0"], "policy_steps is 0"),
    ],
)
def test_refusals_come_before_a_folder_is_made(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    policy = save(tmp_path / "policy")
    words = [word.format(policy=policy) for word in words]
    assert main(["demos", "gym/Pendulum-v1", "--out", "data", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_the_command_records_with_a_policy(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "policy")
    words = ["--policy", "policy", "--policy-steps", "6", "--keep", "all", "-n", "3", "--out", "data", "--preview", "0"]
    assert main(["demos", "gym/Pendulum-v1", *words, "env.episode_steps=12", "env.processes=0"]) == 0
    assert open_dataset(tmp_path / "data").origin["policy_steps"] == 6
