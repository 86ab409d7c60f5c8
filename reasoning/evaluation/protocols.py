"""Named evaluation protocols: which file with which columns, how often, how sampled, with which instruction.

The sampling of the competition sets is that of DeepSeek-R1's published numbers (temperature 0.6, top-p 0.95, 32768
tokens). A protocol reads the hub's data set, or a local file of the same columns.
"""

from __future__ import annotations

from embodied.config import config
from reasoning.evaluation.run import EvaluationConfig
from reasoning.generation.api import Sampling
from reasoning.problems.config import ColumnsConfig
from reasoning.prompts import BOXED

_LONG = Sampling(temperature=0.6, top_p=0.95, max_new_tokens=32768)
_CHOICE = "Please reason step by step, and put the letter of your choice within \\boxed{}."


@config
class Protocol:
    """data: where the problems are by default. split: of it. columns: of its rows. reward: the grader.
    instruction: added below each question. evaluation: tries and sampling.
    """

    data: str
    split: str
    columns: ColumnsConfig
    reward: str
    instruction: str
    evaluation: EvaluationConfig


PROTOCOLS: dict[str, Protocol] = {
    "aime24": Protocol(
        data="hub:HuggingFaceH4/aime_2024",
        split="train",
        columns=ColumnsConfig(prompt="problem", answer="answer"),
        reward="math",
        instruction=BOXED,
        evaluation=EvaluationConfig(attempts=32, sampling=_LONG),
    ),
    "aime25": Protocol(
        data="hub:math-ai/aime25",
        split="test",
        columns=ColumnsConfig(prompt="problem", answer="answer"),
        reward="math",
        instruction=BOXED,
        evaluation=EvaluationConfig(attempts=32, sampling=_LONG),
    ),
    "math500": Protocol(
        data="hub:HuggingFaceH4/MATH-500",
        split="test",
        columns=ColumnsConfig(prompt="problem", answer="answer"),
        reward="math",
        instruction=BOXED,
        evaluation=EvaluationConfig(attempts=4, sampling=_LONG),
    ),
    "gpqa_diamond": Protocol(
        data="hub:Idavidrein/gpqa",
        split="gpqa_diamond",
        columns=ColumnsConfig(
            prompt="Question",
            answer="Correct Answer",
            wrong_choices=("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"),
        ),
        reward="multiple_choice",
        instruction=_CHOICE,
        evaluation=EvaluationConfig(attempts=8, sampling=_LONG),
    ),
    "gsm8k": Protocol(
        data="hub:openai/gsm8k",
        split="main/test",
        columns=ColumnsConfig(prompt="question", answer="answer", answer_form="after_hashes"),
        reward="math",
        instruction=BOXED,
        evaluation=EvaluationConfig(attempts=1, sampling=Sampling(decode="greedy", max_new_tokens=2048)),
    ),
}
