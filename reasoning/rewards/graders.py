"""Graders: functions of (response, problem) that say how right the answer is. They run in the grading processes.

Nothing here imports torch: a grading process starts in a second and is small.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from embodied.config import config, parse
from embodied.errors import ConfigurationError, suggest
from reasoning.problems.record import Problem
from reasoning.rewards import equality
from reasoning.rewards.extraction import Extracted, Found, after_thinking, extract_answer, last_boxed, last_stated
from reasoning.rewards.shaping import FormatConfig, format_score


@dataclasses.dataclass(frozen=True)
class Grade:
    """score: 1 right, 0 wrong, between for partly right. answer: what was taken to be the answer, and where from."""

    score: float
    answer: str = ""
    how: Found = Found.NOTHING


Grader = Callable[[str, Problem], Grade]


@config
class NoOptions:
    """A grader without options."""


@config
class NumericConfig:
    """tolerance: largest difference of numbers written with a decimal point; below 0.1, ten times it, relative."""

    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        if self.tolerance < 0:
            raise ValueError(f"tolerance is {self.tolerance}; it must be at least 0")


def math_grader(options: NoOptions) -> Grader:
    """Equality of mathematical expressions; see `equality` for the rules."""
    del options
    return lambda response, problem: _any_of(extract_answer(response), problem, equality.same_answer)


def numeric_grader(options: NumericConfig) -> Grader:
    """Numbers only: any other answer is wrong, and costs no algebra."""
    tolerance = Fraction(options.tolerance)

    def same(answer: str, right: str) -> bool:
        given = equality.read_number(equality.clean(answer))
        expected = equality.read_number(equality.clean(right))
        if expected is None:
            raise ValueError(f"the expected answer {right!r} is no number; use the math reward")
        return given is not None and equality.same_number(given, expected, tolerance)

    return lambda response, problem: _any_of(extract_answer(response), problem, same)


def exact_grader(options: NoOptions) -> Grader:
    """The same text but for typesetting; the last number is not taken for an answer."""
    del options
    return lambda response, problem: _any_of(_said(response), problem, equality.same_text)


def multiple_choice_grader(options: NoOptions) -> Grader:
    """The letter of an option, boxed or stated, else the last letter that stands alone in brackets or on its line. An
    article ("a mixture") or a pronoun ("I think") is no letter."""
    del options
    return lambda response, problem: _any_of(
        _letter(response), problem, lambda answer, right: answer == right.strip("() .").upper()
    )


def reasoning_gym_grader(options: NoOptions) -> Grader:
    """The scorer of the problem's own family; partly right answers earn a part."""
    del options
    from reasoning_gym import get_score_answer_fn

    def grade(response: str, problem: Problem) -> Grade:
        found = _said(response)
        if found.how is Found.NOTHING:
            found = extract_answer(response)
        if not found.text:
            return Grade(0.0)
        if "entry" not in problem.metadata:
            raise ValueError(f"problem {problem.origin} is not of a reasoning-gym family; use the math reward")
        score = get_score_answer_fn(problem.metadata["family"])(found.text, problem.metadata["entry"])
        return Grade(float(score), found.text, found.how)

    return grade


def format_grader(options: FormatConfig) -> Grader:
    """Whether the whole response matches. It is done where it can be killed: a pattern may take for ever."""
    pattern = re.compile(options.pattern, re.DOTALL)
    return lambda response, problem: Grade(format_score(pattern, response))


def _any_of(found: Extracted, problem: Problem, same: Callable[[str, str], bool]) -> Grade:
    right = bool(found.text) and any(same(found.text, answer) for answer in problem.answers)
    return Grade(float(right), found.text, found.how)


def _said(response: str) -> Extracted:
    text = after_thinking(response)
    if boxed := last_boxed(text):
        return Extracted(boxed, Found.BOXED)
    if stated := last_stated(text):
        return Extracted(stated, Found.STATED)
    return Extracted("", Found.NOTHING)


_NAMED = r"^(?:(?i:the )?(?i:option|choice|letter|answer):? )?"
# the whole answer, in brackets, or a capital with what follows a letter and not an article or a pronoun
_LETTER = re.compile(
    _NAMED + r"(?:\(\s*([A-Za-z])\s*\)|([A-Za-z])\s*[).:]?$|"
    r"([A-Z])(?:[).:]|\s+[-\u2013\u2014]\s|\s*\(|\s+(?:is|because|since|as|for)\s)|([A-HJ-Z]),)"
)
_ALONE = re.compile(r"\(([A-Z])\)|^\s*\**([A-Z])\**[.):]?\s*$", re.MULTILINE)


def _letter(response: str) -> Extracted:
    found = _said(response)
    if match := _LETTER.match(equality.clean(found.text)):
        return Extracted(match.group(match.lastindex or 0).upper(), found.how)
    alone = _ALONE.findall(after_thinking(response))
    return Extracted("".join(alone[-1]), Found.STATED) if alone else Extracted("", Found.NOTHING)


GRADERS: dict[str, tuple[type, Callable[[Any], Grader]]] = {
    "math": (NoOptions, math_grader),
    "numeric": (NumericConfig, numeric_grader),
    "exact": (NoOptions, exact_grader),
    "multiple_choice": (NoOptions, multiple_choice_grader),
    "reasoning_gym": (NoOptions, reasoning_gym_grader),
    "format": (FormatConfig, format_grader),
}


def build_grader(kind: str, options: dict[str, Any], *, at: str = "options") -> Grader:
    """A grader by name, or a user's own function by import path, `package.module:function`.

    A user's function takes (response, problem) and returns a number, or a Grade. Options become its keyword arguments.
    Raises ConfigurationError for unknown names, options of the wrong type, and functions that cannot be imported.
    """
    if ":" in kind:
        return wrap_function(import_function(kind), options)
    check_grader(kind, options, at=at)
    record, build = GRADERS[kind]
    return build(parse(record, options, at=at))


def check_grader(kind: str, options: dict[str, Any], *, at: str = "options") -> None:
    """Raise ConfigurationError for an unknown name or wrong options; a user's function is not imported."""
    if ":" in kind:
        if not all(part.isidentifier() for part in kind.replace(".", ":").split(":")) or kind.count(":") > 1:
            raise ConfigurationError(f"the reward {kind!r} is no import path; write package.module:function")
        return
    if kind not in GRADERS:
        names = [*GRADERS, "package.module:function"]
        raise ConfigurationError(f"Unknown reward {kind!r}. " + suggest(kind, names, noun="rewards"))
    parse(GRADERS[kind][0], options, at=at)


def check_problem(kind: str, problem: Problem) -> None:
    """Raise ConfigurationError for a problem whose expected answers this grader cannot compare with anything: every
    response would be wrong, or ungraded."""
    expected, where = problem.answers, f"the reward {kind} does not suit problem {problem.origin}:"
    if kind == "reasoning_gym" and "entry" not in problem.metadata:
        raise ConfigurationError(f"{where} it is not of a reasoning-gym family; use the math reward")
    if kind == "numeric":
        for answer in expected:
            if equality.read_number(equality.clean(answer)) is None:
                raise ConfigurationError(f"{where} its answer {answer!r} is no number; use the math reward")
    if kind == "multiple_choice" and not any(re.fullmatch(r"[A-Za-z]", answer.strip("() .")) for answer in expected):
        raise ConfigurationError(
            f"{where} its answer {' or '.join(map(repr, expected))} is not the letter of a choice; name the columns of "
            "the wrong choices, or use the math reward"
        )


def import_function(path: str) -> Callable[..., Any]:
    """The function at `package.module:function`. Raises ConfigurationError when there is none."""
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:  # a module of the user's may raise anything while it is imported
        raise ConfigurationError(
            f"the reward function {path!r} cannot be imported: {type(error).__name__}: {error}. Write "
            "package.module:function, and run where Python finds the module (its folder on PYTHONPATH, or the current "
            "one)."
        ) from None
    if not callable(function):
        raise ConfigurationError(f"the reward {path!r} is a {type(function).__name__}, not a function")
    return function


def wrap_function(function: Callable[..., Any], options: dict[str, Any]) -> Grader:
    """A user's function as a grader; what it returns must be a finite number or a Grade.

    Raises ConfigurationError for a function that cannot be called with (response, problem) and these options.
    """
    try:
        inspect.signature(function).bind("", None, **options)
    except TypeError as error:
        raise ConfigurationError(
            f"the reward function {getattr(function, '__qualname__', function)} cannot be called with (response, "
            f"problem{''.join(f', {name}=...' for name in options)}): {error}"
        ) from None
    except ValueError:  # written in C: how it is called is not known
        pass

    def grade(response: str, problem: Problem) -> Grade:
        value = function(response, problem, **options)
        result = value if isinstance(value, Grade) else None
        if result is None:
            if isinstance(value, str | bytes) or not hasattr(type(value), "__float__"):
                raise TypeError(f"the reward function returned a {type(value).__name__}; expected a number or a Grade")
            found = extract_answer(response)
            result = Grade(float(value), found.text, found.how)
        if not math.isfinite(result.score):
            raise ValueError(f"the reward function returned {result.score}; expected a finite number")
        return result

    return grade
