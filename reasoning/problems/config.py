"""What problems are read from and which of them are kept, as typed records."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from embodied.config import config

AnswerForm = Literal["plain", "boxed", "after_hashes"]


@config
class ColumnsConfig:
    """Which column holds what. A dot reaches into a nested value: `reward_model.ground_truth`.

    prompt: text, or a list of chat messages with `role` and `content`.
    answer: text, a number, or a list of them, each of which is right.
    answer_form: how the answer column is written: `plain` is the answer itself, `boxed` a text whose last `\\boxed{}`
    holds it, `after_hashes` a text with the answer behind its last `####`.
    solution: a worked solution; None when there is none.
    wrong_choices: columns with the wrong options of a multiple-choice question. The options are listed below the
    prompt in an order drawn from the question itself, and the answer becomes the letter of the right one.
    """

    prompt: str = "prompt"
    answer: str = "answer"
    answer_form: AnswerForm = "plain"
    solution: str | None = None
    wrong_choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.wrong_choices) > 25:
            raise ValueError(f"wrong_choices has {len(self.wrong_choices)} columns; letters end at Z, so at most 25")


@config
class ProblemsConfig:
    """Problems from files or from a procedural family.

    files: JSONL, Parquet or CSV files, folders of them, or `hub:OWNER/NAME` of the Hugging Face hub.
    split: of folders and hub data sets: only files with this word in their name, e.g. train. Empty takes all.
    columns: see ColumnsConfig; for files only.
    family: a procedural generator, ours (`arithmetic`, `linear_equation`) or one of reasoning-gym's, instead of files.
    family_options: the generator's own options. size: how many problems of a family. seed: which ones.
    bad_rows: `refuse` stops at rows that cannot be used, naming each; `skip` leaves them out and counts them.
    duplicates: `drop` keeps the first of equal questions, `keep` keeps all.
    max_prompt_tokens: longer prompts are dropped and counted; None keeps all.
    limit: only the first so many; None takes all.
    """

    files: tuple[str, ...] = ()
    split: str = ""
    columns: ColumnsConfig = dataclasses.field(default_factory=ColumnsConfig)
    family: str | None = None
    family_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    size: int = 1000
    seed: int = 0
    bad_rows: Literal["refuse", "skip"] = "refuse"
    duplicates: Literal["drop", "keep"] = "drop"
    max_prompt_tokens: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if bool(self.files) == (self.family is not None):
            raise ValueError("give either files or a family of problems, not both and not neither")
        for name in ("size", "max_prompt_tokens", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
