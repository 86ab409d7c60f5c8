"""No option exists that nothing reads, and every option is explained where it is declared."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from reasoning.evaluation.protocols import PROTOCOLS, Protocol
from reasoning.evaluation.run import EvaluationConfig
from reasoning.generation import Sampling
from reasoning.problems import ColumnsConfig, ProblemsConfig
from reasoning.problems.families import ArithmeticConfig, LinearEquationConfig
from reasoning.prompts import PromptConfig
from reasoning.rewards.graders import NumericConfig
from reasoning.rewards.reward import RewardConfig, TermConfig
from reasoning.rewards.shaping import FormatConfig, OverlongConfig
from reasoning.sft import SFTConfig

SOURCES = "\n".join(p.read_text() for p in sorted((Path(__file__).parents[2] / "reasoning").rglob("*.py")))
RECORDS = [
    ArithmeticConfig,
    ColumnsConfig,
    EvaluationConfig,
    FormatConfig,
    LinearEquationConfig,
    NumericConfig,
    OverlongConfig,
    ProblemsConfig,
    PromptConfig,
    Protocol,
    RewardConfig,
    SFTConfig,
    Sampling,
    TermConfig,
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_is_read_as_an_attribute(record):
    names = [field.name for field in dataclasses.fields(record)]
    assert [name for name in names if not re.search(rf"\w(\(\))?\.{name}\b(?!\()", SOURCES)] == []


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_is_explained_in_the_records_docstring(record):
    names = [field.name for field in dataclasses.fields(record)]
    assert [name for name in names if not re.search(rf"\b{name}\b", record.__doc__ or "")] == []


@pytest.mark.parametrize("name", PROTOCOLS)
def test_protocols_leave_room_for_long_answers_and_ask_for_a_box(name):
    protocol = PROTOCOLS[name]
    assert "\\boxed{}" in protocol.instruction
    assert protocol.evaluation.sampling.max_new_tokens >= 2048
