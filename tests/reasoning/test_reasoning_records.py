"""What travels between processes comes back as it was: records of the edges, and options of the stages."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import pytest
import torch

from embodied.scheduler.transport import Codec
from reasoning.problems import ask
from reasoning.training.flow import reasoning_flow
from reasoning.training.messages import Group, Question
from reasoning.training.problems import ProblemSets
from tests.reasoning.small_runs import small_recipe

GROUP = Group(
    number=3,
    problem=1,
    prompt=torch.tensor([5, 6]),
    tokens=torch.tensor([[7, 8], [9, 0]]),
    logprobs=torch.tensor([[-0.5, -1.0], [-2.0, 0.0]]),
    versions=torch.tensor([[0, 1], [1, 0]]),
    lengths=torch.tensor([2, 1]),
    truncated=torch.tensor([True, False]),
)


def travelled(item):
    codec = Codec(type(item))
    return codec.unpack(memoryview(codec.pack(item).to_bytes()))


@pytest.mark.parametrize(
    "item",
    [
        Question(4, 2, torch.tensor([1, 2, 3]), (2**62 + 1, 7)),
        GROUP,
        dataclasses.replace(
            GROUP,
            scores=torch.tensor([1.0, float("nan")]),
            reference=torch.zeros(2, 2),
            values=torch.ones(2, 2),
        ),
    ],
    ids=["question", "answered", "judged"],
)
def test_records_come_back_as_they_were(item):
    back = travelled(item)
    assert type(back) is type(item)
    for field in dataclasses.fields(item):
        sent, received = getattr(item, field.name), getattr(back, field.name)
        if isinstance(sent, torch.Tensor):
            torch.testing.assert_close(received, sent, rtol=0, atol=0, equal_nan=True)
        else:
            assert received == sent


def test_options_of_every_stage_can_be_sent_to_another_process():
    problems = (ask("1+1=", "2"), ask("1+2=", "3"))
    recipe = small_recipe("tiny", algorithm={"advantage": "gae", "kl_coefficient": 0.1})
    flow = reasoning_flow(recipe, ProblemSets(problems[:1], problems[1:], ""), "cpu", Path("alarms"))
    flow.validate()
    assert list(flow.stages) == ["prompts", "generate", "reward", "reference", "critic", "learner"]
    for stage in flow.stages.values():
        assert pickle.loads(pickle.dumps(stage.options)) == stage.options
    assert [(edge.source, edge.target) for edge in flow.weight_edges] == [("learner", "generate")]


def test_stages_are_there_only_when_the_algorithm_needs_them():
    problems = (ask("1+1=", "2"), ask("1+2=", "3"))
    sets = ProblemSets(problems[:1], problems[1:], "")
    plain = reasoning_flow(small_recipe("tiny"), sets, "cpu", Path("alarms"))
    assert list(plain.stages) == ["prompts", "generate", "reward", "learner"]
    plain.validate()
