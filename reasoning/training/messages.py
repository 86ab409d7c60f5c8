"""What the stages of the reasoning flow say to each other."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch

from reasoning.evaluation.metrics import Try

Purpose = Literal["train", "evaluate"]


@dataclasses.dataclass(frozen=True)
class Round:
    """One round of asking and answering.

    iteration: of training. purpose: what the answers are for. first, count: places in the endless order of problems
    that are asked (training), or problems of the held-out set (evaluation). surplus: groups under way that the round
    need not finish.
    """

    iteration: int
    purpose: Purpose
    first: int
    count: int
    surplus: int = 0


@dataclasses.dataclass(frozen=True)
class Question:
    """One problem to be answered several times.

    number: its place in the order of the run, which is also its group's name. problem: index in its set.
    prompt: int64 [P]. seeds: one a member.
    """

    number: int
    problem: int
    prompt: torch.Tensor
    seeds: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Group:
    """All answers to one question; every stage adds what it knows. G members, L tokens of the longest.

    tokens int64, logprobs float32 (of generation), versions int64 (of the weights that drew): [G, L], 0 behind the end.
    lengths int64 [G]: tokens of each, its end of sequence included. truncated bool [G]: cut off at the length limit.
    scores float32 [G]: the reward; NaN where it could not be graded. reference float32 [G, L]: log-probabilities under
    the reference model. values float32 [G, L]: the critic's, before each token. None until their stage has been there.
    """

    number: int
    problem: int
    prompt: torch.Tensor
    tokens: torch.Tensor
    logprobs: torch.Tensor
    versions: torch.Tensor
    lengths: torch.Tensor
    truncated: torch.Tensor
    scores: torch.Tensor | None = None
    reference: torch.Tensor | None = None
    values: torch.Tensor | None = None

    @property
    def size(self) -> int:
        """Members."""
        return len(self.lengths)

    @property
    def weight(self) -> float:
        """What it costs a model to read it: tokens of all members, prompts included."""
        return float(self.lengths.sum() + self.size * len(self.prompt))


@dataclasses.dataclass(frozen=True)
class Asked:
    """What the prompt stage announces. longest: tokens of the longest prompt. problems, held_out: how many."""

    longest: int
    problems: int
    held_out: int


@dataclasses.dataclass(frozen=True)
class Answered:
    """One generation worker's account of a round. responses, tokens: that were finished and handed on; tokens of this
    round, whoever began them. carried: groups that are not finished and go on in the next round."""

    responses: int
    tokens: int
    carried: int


@dataclasses.dataclass(frozen=True)
class Graded:
    """One reward worker's account of a round: how many responses, of which truncated, and metrics that are means over
    them. held: groups kept back, by number, with whether their scores differ. warnings: in words."""

    responses: int
    metrics: dict[str, float]
    lengths: tuple[int, ...]
    held: dict[int, bool]
    warnings: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Judged:
    """One evaluated problem: its index in the held-out set and all tries, in order."""

    problem: int
    tries: tuple[Try, ...]
