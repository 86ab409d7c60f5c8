"""What a policy's recipe needs and this machine has not is refused before there is a run folder."""

import importlib.util

from embodied.commands.main import main
from embodied.config.compose import compose_recipe
from embodied.interaction.recipe import parse_recipe
from embodied.interaction.workload import EmbodiedWorkload


def test_flash_attention_without_its_package_is_refused_before_there_is_a_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "flash_attn" else found(name))
    words = ["policy.attention=flash", "policy.precision=bfloat16", "policy.lora={rank: 4}"]
    assert main(["train", "maniskill_ppo_openvla_oft_tiny", *words]) == 2
    assert "needs the package flash-attn" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_is_nowhere_is_refused_before_there_is_a_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "maniskill_ppo_openvla_oft_tiny", "policy.checkpoint=/nowhere/at/all"]) == 2
    said = capsys.readouterr().err
    assert "'/nowhere/at/all' is neither an existing folder" in said
    assert "pushcube_openvla_oft_tiny" in said  # one that ships
    assert not list(tmp_path.iterdir())


def test_fresh_weights_of_a_vla_are_said_before_a_run():
    recipe = parse_recipe("test", compose_recipe("libero_10_grpo_openvla_oft_tiny", []))
    assert "begins with fresh weights" in EmbodiedWorkload(recipe).prepare()
    recipe = parse_recipe("test", compose_recipe("libero_object_grpo_openvla_oft_tiny", []))
    assert "fresh" not in EmbodiedWorkload(recipe).prepare()


def test_a_learner_that_would_get_nothing_to_learn_from_is_refused_with_what_would_do(capsys):
    words = ["env.num_envs=3", "cluster.launcher=inline", "learner.global_batch=null", "cluster.workers.learner=4"]
    assert main(["train", "gym_cartpole_ppo_mlp", "--dry-run", *words]) == 2
    said = capsys.readouterr().err
    assert "4 learner workers share the 3 group(s)" in said
    assert "cluster.workers.learner=3 or env.num_envs=4" in said
    for better in ("cluster.workers.learner=3", "env.num_envs=4"):
        assert main(["train", "gym_cartpole_ppo_mlp", "--dry-run", *words, better]) == 0
