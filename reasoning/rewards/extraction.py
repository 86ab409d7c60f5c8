"""Finding the answer in a response: the last box, else what is stated to be the answer, else the last number.

A response never earns anything for merely containing the right number somewhere. Of a response that thinks aloud, only
what follows the last `</think>` is looked at.
"""

from __future__ import annotations

import dataclasses
import enum
import re


class Found(enum.StrEnum):
    """Where the answer was found."""

    BOXED = "boxed"
    STATED = "stated"
    LAST_NUMBER = "last_number"
    NOTHING = "nothing"


@dataclasses.dataclass(frozen=True)
class Extracted:
    """The answer as written, "" where there is none."""

    text: str
    how: Found


# a minus belongs to the number unless something precedes that it may be subtracted from
NUMBER = r"(?:(?<![\w)\]}])[-−])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+|(?<=\d))(?:/\d+(?![\d.]))?(?:\s?\\?%)?"
_NUMBER = re.compile(NUMBER)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_STATED = re.compile(r"(?:\banswer[*_]*\s*(?:is|:|=)|####)[\s*_:]*", re.IGNORECASE)
# a statement ends with its line, its sentence, or where a reason begins
_END = re.compile(r"\n|[.!;](?=\s|$|\*)|,?\s+(?:because|since|as|so|which|where|and so)\s", re.IGNORECASE)
_MATHS = re.compile(r"\$\$?(.+?)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)


def after_thinking(response: str) -> str:
    """The part of a response behind its last `</think>`; all of it when there is none."""
    return response.rpartition("</think>")[2]


def last_boxed(text: str) -> str:
    """What the last complete, non-empty `\\boxed{...}` holds, braces balanced; "" when there is none."""
    for match in reversed(list(_BOX.finditer(text))):
        rest = text[match.end() :]
        if not rest.startswith("{"):
            bare = re.match(r"[^\s$.,;]+", rest)
            if bare:
                return bare.group()
            continue
        depth = 0
        for place, character in enumerate(rest):
            escaped = place > 0 and rest[place - 1] == "\\"
            depth += 0 if escaped else (character == "{") - (character == "}")
            if depth == 0:
                inside = rest[1:place].strip()
                if inside:
                    return inside
                break
    return ""


def last_stated(text: str) -> str:
    """What the last "answer is ...", "answer: ...", "#### ..." or `<answer>` states; "" when there is none."""
    tagged = _TAG.findall(text)
    if tagged and tagged[-1].strip():
        return tagged[-1].strip()
    for match in reversed(list(_STATED.finditer(text))):
        rest = text[match.end() :].lstrip(" \t*_:\n")
        maths = _MATHS.match(rest)
        if maths:
            return next(group for group in maths.groups() if group is not None).strip()
        stated = _END.split(rest, maxsplit=1)[0].strip(" \t*_`\"'")
        if stated:
            return stated
    return ""


def last_number(text: str) -> str:
    """The last number of the text, with its sign, fraction and percent sign; "" when there is none."""
    numbers = [m.group() for m in _NUMBER.finditer(text) if m.group()]
    return numbers[-1] if numbers else ""


def extract_answer(response: str) -> Extracted:
    """The answer of a response, in the order of the module's docstring."""
    text = after_thinking(response)
    for how, find in ((Found.BOXED, last_boxed), (Found.STATED, last_stated), (Found.LAST_NUMBER, last_number)):
        found = find(text)
        if found:
            return Extracted(found, how)
    return Extracted("", Found.NOTHING)
