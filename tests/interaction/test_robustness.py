"""Evaluation under other conditions: which there are, what is compared, and the table of a policy."""

import argparse
import json

import pytest

from embodied.commands.main import main
from embodied.config import parse
from embodied.errors import ConfigurationError, RefusedInput
from embodied.interaction.evaluation import EvaluationResult
from embodied.interaction.messages import FinishedEpisode
from embodied.interaction.robustness import Condition, as_text, conditions, table_of, take_robustness
from envs import registry as envs_registry
from envs.libero.config import LiberoConfig
from envs.libero.magnitudes import KINDS
from envs.maniskill.config import ManiSkillConfig
from envs.maniskill.rl4vla.variants import VARIANTS
from envs.maniskill.splits import splits_of
from policies import registry


def asked(*words: str):
    args = argparse.Namespace(rest=["libero/libero_goal", *words, "env.num_envs=2"])
    return take_robustness(args), args.rest


def result(outcomes: list[bool]) -> EvaluationResult:
    return EvaluationResult(
        tuple(FinishedEpisode(0, -1, seed, 10, float(won), won, won) for seed, won in enumerate(outcomes))
    )


def test_words_become_lists_and_are_taken_out():
    options, rest = asked("eval.perturb=[camera, light]", "eval.severity=2")
    assert (options.perturb, options.severity) == (("camera", "light"), (2,))
    assert rest == ["libero/libero_goal", "env.num_envs=2"]
    assert asked("eval.perturb=all")[0].perturb == KINDS
    assert asked("eval.splits=all")[0].splits == ("all",)  # which there are depends on the environment
    assert asked()[0].perturb == ()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("eval.perturb=[camra]", "Did you mean 'camera'"),
        ("eval.perturb=[light, light]", "names one twice"),
        ("eval.splits=out_objects", "Did you mean 'out_object'"),
        ("eval.severity=[0]", "between 1 and 5"),
        ("eval.severity=[]", "is empty"),
        ("eval.severity=high", "eval.severity"),
        ("eval.perturbs=camera", "perturb"),
    ],
)
def test_what_cannot_be_is_refused(word, said):
    with pytest.raises(ConfigurationError, match=said):
        asked(word)
    with pytest.raises(RefusedInput, match="YAML"):
        asked("eval.perturb=[camera")
    with pytest.raises(RefusedInput, match="names nothing"):
        asked("eval.perturb=")


def test_perturbations_come_one_at_a_time_on_top_of_what_the_environment_has():
    env = LiberoConfig(id="libero/libero_goal", perturb={"noise": 1})
    usual, others = conditions(env, asked("eval.perturb=[camera,light]", "eval.severity=[1,4]")[0])
    assert (usual.name, usual.env) == ("none", env)
    assert [(c.name, c.severity, c.env.perturb) for c in others] == [
        ("camera", 1, {"noise": 1, "camera": 1}),
        ("camera", 4, {"noise": 1, "camera": 4}),
        ("light", 1, {"noise": 1, "light": 1}),
        ("light", 4, {"noise": 1, "light": 4}),
    ]


def test_splits_are_compared_with_training():
    env = ManiSkillConfig(id="maniskill/PutOnPlate-v1", split="out_plate")
    usual, others = conditions(env, asked("eval.splits=[in, out_object]")[0])
    assert (usual.name, usual.env.split) == ("in", "in")
    assert [(c.name, c.severity, c.env.split) for c in others] == [("out_object", None, "out_object")]
    assert conditions(env, asked()[0])[0].env == env


def test_all_splits_are_those_of_the_environment():
    everything = asked("eval.splits=all")[0]
    for name in ("PutOnPlate-v1", next(iter(VARIANTS))):
        usual, others = conditions(ManiSkillConfig(id=f"maniskill/{name}"), everything)
        assert (usual.name, *(c.name for c in others)) == splits_of(name)
        assert len(others) > 1


def test_an_environment_without_such_conditions_is_refused():
    with pytest.raises(ConfigurationError, match=r"no option env.perturb; libero"):
        conditions(ManiSkillConfig(id="maniskill/PushCube-v1"), asked("eval.perturb=camera")[0])
    with pytest.raises(ConfigurationError, match=r"no option env.split"):
        conditions(LiberoConfig(id="libero/libero_goal"), asked("eval.splits=all")[0])


def test_the_table_counts_and_compares():
    env = LiberoConfig(id="libero/libero_goal")
    usual = (Condition("none", None, env), result([True] * 9 + [False]))
    rows = table_of(usual, [(Condition("camera", 3, env), result([True] * 5 + [False] * 5))])
    assert [(row["successes"], row["episodes"], row["severity"]) for row in rows] == [(9, 10, None), (5, 10, 3)]
    assert rows[1]["change"] == pytest.approx(-0.4)
    assert rows[1]["interval"] == pytest.approx((0.2366, 0.7634), abs=1e-4)  # Wilson's, worked out by hand
    assert len(rows[1]["played"]) == 10
    lines = as_text(rows).splitlines()
    assert lines[1].split() == ["none", "-", "9/10", "90.0%", "59.6%", "to", "98.2%"]
    assert lines[2].split() == ["camera", "3", "5/10", "50.0%", "23.7%", "to", "76.3%", "-40.0%"]


def saved_policy(env, folder):
    interface = registry.interface_of(envs_registry.describe(env))
    policy = registry.build(parse(registry.config_class("mlp"), {"name": "mlp"}, at="policy"), interface, seed=0)
    registry.save(policy, folder)
    return folder


@pytest.mark.slow
def test_one_command_gives_a_policys_table(tmp_path, capsys):
    env = ManiSkillConfig(id="maniskill/PutOnPlate-v1", num_envs=2, control_mode="pd_ee_delta_pose", episode_steps=3)
    folder = saved_policy(env, tmp_path / "policy")
    words = ["eval.splits=[in,out_object,out_instruction]", "env.num_envs=2", "env.episode_steps=3"]
    options = ["--episodes", "4", "--films", "0", "--out", str(tmp_path / "results.json")]
    words.append("env.control_mode=pd_ee_delta_pose")
    assert main(["eval", str(folder), "maniskill/PutOnPlate-v1", *words, *options]) == 0
    printed = capsys.readouterr().out
    assert "out_object" in printed
    rows = json.loads((tmp_path / "results.json").read_text())["robustness"]
    assert [row["condition"] for row in rows] == ["in", "out_object", "out_instruction"]
    assert all(row["episodes"] == 4 for row in rows)
    seeds = [[episode["seed"] for episode in row["played"]] for row in rows]
    assert seeds[0] == seeds[1] == seeds[2]
    # a policy that reads nothing does the same whatever it is told
    assert rows[0]["played"] == rows[2]["played"]
    assert rows[0]["played"] != rows[1]["played"]
    assert "out_instruction" in (tmp_path / "results.html").read_text()


@pytest.mark.slow
def test_liberos_perturbations_are_played_from_the_same_initial_states(tmp_path):
    env = LiberoConfig(id="libero/libero_goal:0", num_envs=2, cameras=(), episode_steps=4, mode="fast")
    folder = saved_policy(env, tmp_path / "policy")
    words = ["eval.perturb=[robot_start,light]", "eval.severity=[5]", "env.cameras=[]", "env.num_envs=2"]
    options = ["--episodes", "2", "--films", "0", "--out", str(tmp_path / "results.json")]
    words += ["env.episode_steps=4", "env.mode=fast", "env.processes=1"]
    assert main(["eval", str(folder), "libero/libero_goal:0", *words, *options]) == 0
    rows = json.loads((tmp_path / "results.json").read_text())["robustness"]
    assert [(row["condition"], row["severity"]) for row in rows] == [("none", None), ("robot_start", 5), ("light", 5)]
    states = [[episode["initial_state"] for episode in row["played"]] for row in rows]
    assert states[0] == states[1] == states[2] == [0, 1]
