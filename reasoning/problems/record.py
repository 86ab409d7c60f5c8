"""One problem: what the model is asked, and what counts as an answer. Where it came from travels with it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any


@dataclasses.dataclass(frozen=True)
class Message:
    """One turn of a conversation, as chat templates want it."""

    role: str
    content: str


@dataclasses.dataclass(frozen=True)
class Problem:
    """messages: the conversation up to the model's turn, usually one message of the user.
    answers: each of them is right; never empty.
    origin: `file:row` or `family:index`, for people.
    solution: a worked solution, where the source has one; supervised fitting needs it.
    metadata: what the problem's own scorer needs besides the answers.
    """

    messages: tuple[Message, ...]
    answers: tuple[str, ...]
    origin: str
    solution: str | None = None
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def text(self) -> str:
        """The last message: the question itself."""
        return self.messages[-1].content

    @property
    def key(self) -> str:
        """16 hex digits naming the question: the same question has the same key in any file, in any order."""
        turns = [[m.role, " ".join(m.content.split())] for m in self.messages]
        return hashlib.sha256(json.dumps(turns).encode()).hexdigest()[:16]


def ask(question: str, *answers: str, origin: str = "given", solution: str | None = None) -> Problem:
    """A problem of one question, for lists written in code."""
    if not answers:
        raise ValueError(f"the problem {question!r} has no answer; give at least one")
    return Problem((Message("user", question),), answers, origin, solution)
