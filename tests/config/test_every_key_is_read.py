"""No option exists that nothing reads: every field of every configuration record is used somewhere in the code."""

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
SOURCES = "\n".join(
    path.read_text() for package in ("embodied", "envs", "policies") for path in sorted((ROOT / package).rglob("*.py"))
)
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


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_is_read_as_an_attribute(record):
    unread = [
        field.name
        for field in dataclasses.fields(record)
        if not re.search(rf"\w(\(\))?\.{field.name}\b(?!\()", SOURCES)
    ]
    assert unread == []


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_is_explained_in_the_records_docstring(record):
    own = [name for name in record.__annotations__ if not re.search(rf"\b{name}\b", record.__doc__ or "")]
    assert own == []
