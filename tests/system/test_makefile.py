"""The Makefile: every target sets up first, arguments are passed on, and the second call is quick."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from embodied.system import bootstrap

HOME = Path(__file__).resolve().parents[2]


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    # Without MAKEFLAGS: under `make test` these would be calls of that make.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    environment |= {"PYTHON": sys.executable, "TEST_ARGS": ""}
    return subprocess.run(
        ["make", *arguments], cwd=HOME, env=environment, capture_output=True, text=True, timeout=60, check=True
    )


@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("train", ".venv/bin/embodied train maniskill_pushcube_ppo_mlp"),
        ("train-math", ".venv/bin/reasoning train math_grpo_tiny"),
        ("test", ".venv/bin/pytest"),
        ("test-all", ".venv/bin/pytest"),
        ("lint", ".venv/bin/lint-imports"),
        ("bench", ".venv/bin/python"),
        ("docs", ".venv/bin/pytest"),
        ("wheel", ".venv/bin/python -m build"),
    ],
)
def test_target_sets_up_before_its_work(target: str, command: str) -> None:
    plan = make("--dry-run", target).stdout
    assert "bootstrap.py" in plan
    assert plan.index("bootstrap.py") < plan.rindex(command)


def test_style_and_import_rules_are_part_of_the_tests() -> None:
    plan = make("--dry-run", "test").stdout
    steps = [plan.index(step) for step in ("ruff format --check", "ruff check", "lint-imports", "pytest")]
    assert steps == sorted(steps)


def test_arguments_are_passed_on() -> None:
    plan = make("--dry-run", "test", "TEST_ARGS=-k doctor").stdout
    assert '-n logical --maxprocesses 4 --dist loadfile -m "(not slow or sample)' in plan
    assert plan.rstrip().endswith("-k doctor")
    assert 'pytest  -m "(not slow' in make("--dry-run", "test", "PARALLEL=").stdout
    plan = make("--dry-run", "train", "RECIPE=gym_cartpole_ppo_mlp", "TRAIN_ARGS=seed=3").stdout
    assert "embodied train gym_cartpole_ppo_mlp seed=3" in plan


@pytest.mark.alone
def test_second_set_up_takes_under_two_seconds() -> None:
    key = bootstrap.installation_key(HOME, ".".join(str(part) for part in sys.version_info[:3]))
    if not bootstrap.is_set_up(HOME / ".venv", key):
        pytest.skip("this checkout's environment was not made by `make setup` with this Python")
    times = [float("inf")]
    while min(times) >= 2 and len(times) <= 5:  # one try is a busy machine's to spoil
        began = time.perf_counter()
        make("setup")
        times.append(time.perf_counter() - began)
    assert min(times) < 2


def test_ci_entry_has_no_syntax_error_and_runs_the_tests() -> None:
    script = HOME / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run([shutil.which("bash") or "bash", "-n", str(script)], check=True)
    assert "make test" in script.read_text()


def test_training_the_example_ends_by_naming_the_recipe_that_learns_from_pictures():
    following = "embodied train maniskill_ppo_openvla_oft_tiny"
    assert following in make("-n", "train").stdout.splitlines()[-1]
    assert (HOME / "configs" / "maniskill_ppo_openvla_oft_tiny.yaml").is_file()
    assert following not in make("-n", "train", "RECIPE=gym_cartpole_ppo_mlp").stdout
