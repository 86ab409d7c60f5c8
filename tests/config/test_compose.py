import pytest

from embodied.config.compose import compose_recipe, find_recipe, recipe_names
from embodied.errors import ConfigurationError
from embodied.interaction.recipe import parse_recipe


# those of LIBERO and of language models have tests of their own
@pytest.mark.parametrize("name", [name for name in recipe_names() if not name.startswith(("libero_", "math_"))])
def test_every_recipe_that_ships_composes_checks_and_is_short(name):
    recipe = parse_recipe(name, compose_recipe(name, []))
    assert recipe.description
    lines = [line for line in find_recipe(name).read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 30


def test_a_parsed_recipe_written_out_parses_to_the_same_recipe():
    recipe = parse_recipe("gym_cartpole_ppo_mlp", compose_recipe("gym_cartpole_ppo_mlp", ["seed=3", "learner.lr=1e-3"]))
    import json

    again = parse_recipe(recipe.name, json.loads(json.dumps(recipe.as_dict())))
    assert again == recipe
    assert (again.seed, again.learner.lr) == (3, 1e-3)


def test_overrides_reach_keys_that_the_yaml_does_not_mention():
    values = compose_recipe("gym_cartpole_ppo_mlp", ["algorithm.dual_clip=3.0", "env.num_envs=16"])
    assert values["algorithm"]["dual_clip"] == 3.0
    assert values["env"]["num_envs"] == 16


def test_a_recipe_file_anywhere_uses_the_groups_that_ship(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("defaults:\n  - gym_cartpole_ppo_mlp\n  - _self_\nseed: 7\n")
    values = compose_recipe(str(file), ["env.num_envs=4"])
    assert (values["seed"], values["env"]["num_envs"], values["env"]["id"]) == (7, 4, "gym/CartPole-v1")


def _refusal(recipe="gym_cartpole_ppo_mlp", *overrides):
    with pytest.raises(ConfigurationError) as caught:
        parse_recipe("test", compose_recipe(recipe, list(overrides)))
    return str(caught.value)


def test_unknown_recipe_suggests_the_nearest():
    assert "gym_cartpole_ppo_mlp" in _refusal("gym_cartpole_ppo")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("env.num_env=3", ["'env.num_env'", "Did you mean 'num_envs'"]),
        ("envs.num_envs=3", ["'envs'", "Did you mean 'env'"]),
        ("learner.lr=fast", ["'learner.lr' is 'fast'", "number"]),
        ("algorithm.loss=pp", ["Did you mean 'ppo'", "ppo_actor_critic"]),
        ("env.id=gum/CartPole-v1", ["gum/CartPole-v1", "gym"]),
        ("policy.name=mlpp", ["'mlpp'", "mlp"]),
        ("policy=cnnn", ["policy"]),
        ("learner.global_batch=100", ["512", "64", "128"]),
        ("env.slots=3", ["8", "6, 9"]),
        ("algorithm.advantage=grpo", ["group_size"]),
        ("policy.value=none", ["needs values"]),
        ("cluster.device=cuda:99", ["cuda:99", "cpu"]),
        ("seed=-1", ["seed"]),
        ("seed=x", ["seed"]),
        ("env", ["key=value"]),
        ("algorithm.sampling.temperature=0", ["temperature"]),
    ],
)
def test_bad_input_is_refused_with_the_reason(override, words):
    message = _refusal("gym_cartpole_ppo_mlp", override)
    assert all(word in message for word in words), message


def test_grpo_needs_fresh_episodes_without_auto_reset():
    message = _refusal(
        "gym_cartpole_ppo_mlp", "algorithm.advantage=grpo", "algorithm.loss=ppo", "algorithm.group_size=4"
    )
    assert "auto_reset=disabled" in message
    assert "rollout.start=fresh" in message


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["policy.lora={rank: 4, dropout: 0.1}"], "policy.lora.dropout=0"),
        (["policy.head=l1"], "head=tokens"),
        (["policy.chunk=null", "record.dataset=somewhere"], "policy.chunk is 8"),
    ],
)
def test_a_policy_that_cannot_be_trained_so_is_refused_before_anything_starts(overrides, words):
    assert words in _refusal("maniskill_ppo_openvla_oft_tiny", *overrides)


def test_a_text_is_no_list_of_overrides():
    with pytest.raises(ConfigurationError, match=r"expected a list of them: \['seed=3'\]"):
        compose_recipe("gym_cartpole_ppo_mlp", "seed=3")


@pytest.mark.parametrize("word", ["l\u00e4ufe/\u00fc", "~/x", "my (run)", "a&b", "a,b/r", "it's/r"])
def test_paths_with_letters_that_hydra_does_not_know_are_taken_as_they_are(word):
    assert compose_recipe("gym_cartpole_ppo_mlp", [f"run.folder={word}"])["run"]["folder"] == word


def test_a_plan_is_short_for_that_of_the_cluster():
    assert compose_recipe("gym_cartpole_ppo_mlp", ["plan=auto"])["cluster"]["plan"] == "auto"


@pytest.mark.parametrize("override", ["hydra.foo=1", "+hydra.foo=1"])
def test_keys_of_hydra_are_refused(override):
    assert "not a recipe's" in _refusal("gym_cartpole_ppo_mlp", override)
