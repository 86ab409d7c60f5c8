"""No option exists that nothing reads: every field of every configuration record is used somewhere in the code."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from embodied.interaction import imitation_recipe as imitation
from embodied.interaction import recipe as recipes
from embodied.interaction.algorithm import AlgorithmConfig
from embodied.interaction.augmentation import AugmentationConfig
from embodied.interaction.demonstrate import DemonstrationConfig
from embodied.learner.learner import LearnerConfig
from envs.api import EnvConfig
from envs.gym import GymConfig
from envs.maniskill.config import ManiSkillConfig
from policies.api import PolicyConfig, Sampling
from policies.cnn import CNNConfig
from policies.mlp import MLPConfig

ROOT = Path(__file__).parents[2]
SOURCES = [path for package in ("embodied", "envs", "policies") for path in sorted((ROOT / package).rglob("*.py"))]
RECORDS = [
    AlgorithmConfig,
    LearnerConfig,
    EnvConfig,
    GymConfig,
    ManiSkillConfig,
    PolicyConfig,
    MLPConfig,
    CNNConfig,
    Sampling,
    recipes.RolloutConfig,
    recipes.EvaluationConfig,
    recipes.GoalConfig,
    recipes.RecordConfig,
    recipes.CheckpointConfig,
    recipes.ClusterConfig,
    recipes.LoggerConfig,
    recipes.RunConfig,
    AugmentationConfig,
    DemonstrationConfig,
    imitation.DataConfig,
    imitation.LabelConfig,
    imitation.ScheduleConfig,
    imitation.ValidationConfig,
    imitation.MachineConfig,
]


def _is_record(node: ast.ClassDef) -> bool:
    return any(ast.unparse(decorator) in ("config", "config_record") for decorator in node.decorator_list)


def attributes_read(tree: ast.AST) -> set[str]:
    """Names of the attributes whose value is taken, but for a record's checks of its own numbers: what is only checked
    is not followed."""
    read, left = set(), [tree]
    while left:
        node = left.pop()
        inner = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            read.add(node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            inner[0] = node.func.value  # a method's name is no field
        elif isinstance(node, ast.ClassDef) and _is_record(node):
            inner = [part for part in inner if not getattr(part, "name", "").startswith("_")]
        left += inner
    return read


@pytest.fixture(scope="module")
def read() -> set[str]:
    return set().union(*(attributes_read(ast.parse(path.read_text())) for path in SOURCES))


def test_what_a_record_only_checks_is_not_taken_for_read():
    source = """
@config
class Options:
    def __post_init__(self):
        self.checked
    def clip(self):
        return Clip(self.handed_on)
options.set = options.got
options.called()
"""
    assert attributes_read(ast.parse(source)) == {"handed_on", "got"}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_is_read_as_an_attribute(record, read):
    assert {field.name for field in dataclasses.fields(record)} - read == set()


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_is_explained_in_the_records_docstring(record):
    own = [name for name in record.__annotations__ if not re.search(rf"\b{name}\b", record.__doc__ or "")]
    assert own == []
