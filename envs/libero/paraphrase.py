"""Rewordings of LIBERO's instructions, from mild to far, made by rule: they need no model and are always the same."""

from __future__ import annotations

import re

_SYNONYMS = (
    ("pick up", "grab"),
    ("turn on", "switch on"),
    ("place it", "set it down"),
    ("black bowl", "dark bowl"),
    ("put ", "set "),
    ("open ", "pull open "),
    ("close ", "shut "),
    ("push ", "slide "),
)


def paraphrases(instruction: str, severity: int) -> tuple[str, ...]:
    """The rewordings of levels 1 to `severity`, one each.

    1 politeness around the known words; 2 other words for actions and things; 3 the same inside a sentence of its own;
    4 with advice that changes nothing; 5 other words, another order and an aside at once.
    """
    other = _with_synonyms(instruction)
    levels = (
        f"please {instruction}",
        other,
        f"your next job in this kitchen is to {instruction}",
        f"{instruction}, gently, and leave everything else where it is",
        f"once you are ready, and there is no hurry, could you {other} for me",
    )
    return levels[:severity]


def _with_synonyms(instruction: str) -> str:
    for known, other in _SYNONYMS:
        instruction = re.sub(rf"\b{known}", other, instruction)
    return instruction
