"""Every recipe for language models composes, is valid, and says what its paper says."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import configs
from embodied.config.compose import compose_recipe, recipe_names
from embodied.scheduler.planner.profile import load_profile
from reasoning.generation.engines import EngineConfig
from reasoning.training import recipe as recipes
from reasoning.training.algorithm import AlgorithmConfig
from reasoning.training.critic_worker import CriticConfig
from reasoning.training.pieces import LayoutConfig, divide
from reasoning.training.recipe import parse_recipe
from reasoning.training.workload import ReasoningWorkload

ROOT = Path(configs.__file__).parent
MATH = [name for name in recipe_names() if name.startswith("math_")]
DATA = sorted(path.stem for path in (ROOT / "data").glob("*.yaml"))
FOLDERS = [ROOT.parent / "reasoning", ROOT.parent / "embodied" / "training"]
SOURCES = "\n".join(p.read_text() for folder in FOLDERS for p in sorted(folder.rglob("*.py")))
RECORDS = [
    AlgorithmConfig,
    CriticConfig,
    LayoutConfig,
    recipes.ModelConfig,
    recipes.RolloutConfig,
    EngineConfig,
    recipes.EvaluationConfig,
    recipes.GoalConfig,
]


def load(name, *overrides):
    return parse_recipe(name, compose_recipe(name, list(overrides)))


@pytest.mark.parametrize("name", MATH)
def test_recipe_is_valid_and_comes_back_from_its_own_record(name):
    recipe = load(name)
    assert ReasoningWorkload(recipe).placed().flow == "reasoning"
    assert parse_recipe(name, recipe.as_dict()) == recipe
    assert recipe.description


def test_the_names_that_users_rely_on_are_there():
    assert {
        "math_grpo_tiny",
        "math_ppo_tiny",
        "math_grpo_smollm2",
        *(f"math_grpo_qwen2_5_{size}" for size in ("1_5b", "7b", "32b")),
        *(f"math_ppo_qwen2_5_{size}" for size in ("1_5b", "7b", "14b")),
        "math_grpo_qwen3_30b_a3b",
    } <= set(MATH)


def test_real_sizes_have_the_values_of_the_paper():
    grpo = load("math_grpo_qwen2_5_7b")
    assert grpo.responses_per_iteration == 512 * 16
    assert grpo.responses_per_iteration // grpo.learner.global_batch == 4
    assert grpo.rollout.sampling.max_new_tokens + 1024 == 28672
    assert (grpo.reward.terms[0].best, grpo.reward.terms[0].worst) == (5.0, -5.0)
    assert not grpo.algorithm.needs_reference
    ppo = load("math_ppo_qwen2_5_14b")
    assert (ppo.learner.lr, ppo.critic.learner.lr) == (1e-6, 1e-5)
    assert ppo.algorithm.needs_values
    assert ppo.algorithm.needs_reference


@pytest.mark.parametrize("data", DATA)
def test_any_data_set_is_a_word_away_and_its_file_is_short(data):
    recipe = load("math_grpo_qwen2_5_1_5b", f"data={data}")
    assert recipe.problems.files[0].startswith("hub:")
    assert recipe.evaluation.problems is not None
    assert "\\boxed{}" in recipe.prompt.instruction
    lines = [line for line in (ROOT / "data" / f"{data}.yaml").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) <= 10
    if data == "gpqa":
        assert recipe.reward.terms[0].kind == "multiple_choice"


@pytest.mark.parametrize("path", sorted((ROOT / "profiles" / "paper").glob("*qwen*.json")), ids=lambda p: p.stem)
def test_profiles_that_ship_are_of_recipes_that_are_there(path):
    assert load_profile(path).recipe in MATH


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_is_read_and_explained(record):
    names = [field.name for field in dataclasses.fields(record)]
    assert [name for name in names if not re.search(rf"\w(\(\))?\.{name}\b(?!\()", SOURCES)] == []
    assert [name for name in names if not re.search(rf"\b{name}\b", record.__doc__ or "")] == []


@pytest.mark.parametrize("rows", ["padded", "packed"])
def test_pieces_hold_every_response_once_within_their_budget(rows):
    lengths = [5, 90, 30, 31, 4, 200, 60, 3]
    options = LayoutConfig(micro_tokens=100, rows=rows, row_tokens=50)
    pieces = divide(lengths, options)
    assert sorted(i for piece in pieces for i in piece) == list(range(len(lengths)))
    for piece in pieces:
        longest = max(lengths[i] for i in piece)
        cost = longest * len(piece) if rows == "padded" else sum(lengths[i] for i in piece)
        assert cost <= 100 or len(piece) == 1
    # of similar lengths: no response shares a pass with one that is longer than those of an earlier pass
    firsts = [lengths[piece[0]] for piece in pieces]
    assert firsts == sorted(firsts, reverse=True)
    assert divide([], options) == []
