"""What `make` would run."""

import subprocess
from pathlib import Path

HOME = Path(__file__).parents[2]


def would_run(*words):
    return subprocess.run(["make", "-n", *words], cwd=HOME, capture_output=True, text=True, check=True).stdout


def test_training_the_example_ends_by_naming_the_recipe_that_learns_from_pictures():
    following = "embodied train maniskill_ppo_openvla_oft_tiny"
    assert following in would_run("train").splitlines()[-1]
    assert (HOME / "configs" / "maniskill_ppo_openvla_oft_tiny.yaml").is_file()
    assert following not in would_run("train", "RECIPE=gym_cartpole_ppo_mlp")
