"""When two written answers are the same: our rules for numbers, percent and units, math-verify for everything else.

- Whole numbers and fractions are compared exactly; as soon as one side is written with a decimal point, to 6 decimals
  (below 0.1, to 5 significant digits).
- `10%` equals 10% and 0.1, and also a bare 10: problems that ask "what percent" are answered either way.
- A unit is dropped when one side leaves it out; when both sides name one, it must be the same. Nothing is converted:
  60 degrees is not pi/3, 100 cm is not 1 m.
- Sets, intervals, tuples, equations and expressions: math-verify (sympy), without its timeouts, which need signals;
  callers run in processes that can be killed.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
from fractions import Fraction
from typing import Any

DIGITS = Fraction(1, 10**6)

_SPACES = re.compile(r"\\[,;:! ]|\\quad|\\qquad|~|\s+")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textrm|mbox|operatorname)\s*\{([^{}]*)\}")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|°")
_THOUSANDS = re.compile(r"(?<![\d./])\d{1,3}(?: \d{3})+(?![\d/])")
_BETWEEN_DIGITS = re.compile(r"(?<=\d) (?=\d)")
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_FRACTION = re.compile(r"(-?)\\frac\{(-?\d+)\}\{(-?\d+)\}")
_SHORT_FRACTION = re.compile(r"\\frac\s*(\d)\s*(\d)")
_PLAIN = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.IGNORECASE)
_RATIO = re.compile(r"[-+]?\d+/\d+")
_MIXED = re.compile(r"([-+]?)(\d+) (\d+)/(\d+)")
_NUMERIC_HEAD = re.compile(
    r"[-+]?(?:\\frac\{-?\d+\}\{-?\d+\}|\d+ \d+/\d+|\d[\d,]*/\d+|\d[\d,]*\.?\d*(?:e[-+]?\d+)?|\.\d+)", re.IGNORECASE
)
_UNIT = re.compile(r"(?:[a-z]+\.?(?:\^\{?\d\}?)?(?:[/ ]|$))+", re.IGNORECASE)
_UNIT_BEHIND = re.compile(r"(?<=[\d})])\s+[a-zA-Z]{2,}\.?(?:\s*\^\{?\d\}?)?$")
# as algebra, a word would equal its anagrams
_WORDS = re.compile(r"[a-zA-Z'-]{4,}(?:\s[a-zA-Z'-]+)*")
_SHORT_WORDS = frozenset(("yes", "no", "odd", "all", "any", "one", "two", "six", "ten", "red"))
_ASSIGNED = re.compile(r"^[a-zA-Z]\s*=\s*")
# without a space before them, or as one letter, other words are algebra: 2ab, 3 x
_TIGHT_UNITS = frozenset(
    ("mm", "cm", "km", "kg", "mg", "ml", "mph", "kph", "ft", "hr", "hrs", "min", "mins", "sec", "secs", "degrees")
)
_LETTER_UNITS = frozenset("mgshl")
_LONGEST = 400

# it says once a process that its timeouts are off, which is what we want
logging.getLogger("math_verify").setLevel(logging.ERROR)


@dataclasses.dataclass(frozen=True)
class Number:
    """value: a percent is not yet divided. exact: written without a decimal point. unit: "" when none is written."""

    value: Fraction
    exact: bool
    percent: bool
    unit: str


def clean(text: str) -> str:
    """The answer without what only typesets it: dollar signs, spacing, sizes, text boxes, a final full stop."""
    text = text.strip().replace("−", "-").replace("{,}", ",").replace("\\!", "")
    text = re.sub(r"^\\[(\[](.*)\\[)\]]$", r"\1", text, flags=re.DOTALL)
    text = re.sub(r"\\(?:left|right|displaystyle|bigl|bigr)(?![a-zA-Z])", "", text)
    text = text.replace("\\$", "").strip("$").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", _DEGREES.sub(" degrees", text)).replace("\\%", "%")
    text = _TEXT.sub(r" \1 ", text)
    return " ".join(_SPACES.sub(" ", text).split()).rstrip(".").strip()


@functools.lru_cache(maxsize=4096)
def read_number(text: str) -> Number | None:
    """The number that a cleaned answer is, alone or with a percent sign, a unit, or `x =` before it; None if none."""
    text = _ASSIGNED.sub("", text.strip().removeprefix("$"))
    head = _NUMERIC_HEAD.match(text)
    if head is None:
        return None
    tail = text[head.end() :].lower()
    rest = tail.strip()
    percent = rest in ("%", "percent", "per cent")
    if percent:
        rest = ""
    if rest and not _is_unit(rest, spaced=tail[0] == " "):
        return None
    value = _value(_GROUPED.sub("", head.group()))
    if value is None:
        return None
    decimal = re.search(r"\.\d|e", head.group().replace("\\frac", ""), re.IGNORECASE) is not None
    return Number(value, not decimal, percent, _one_unit(rest))


def _is_unit(text: str, *, spaced: bool) -> bool:
    first = text.split()[0].rstrip(".")
    if not _UNIT.fullmatch(text):
        return False
    if len(first) == 1:
        return spaced and first in _LETTER_UNITS
    return first != "pi" and (spaced or first in _TIGHT_UNITS)


def _value(digits: str) -> Fraction | None:
    if "," in digits or len(digits) > _LONGEST:
        return None
    fraction = _FRACTION.fullmatch(digits.removeprefix("+"))
    try:
        if fraction:
            sign, above, below = fraction.groups()
            return Fraction(int(above), int(below)) * (-1 if sign else 1)
        if _RATIO.fullmatch(digits):
            return Fraction(digits)
        if mixed := _MIXED.fullmatch(digits):
            sign, whole, above, below = mixed.groups()
            return (int(whole) + Fraction(int(above), int(below))) * (-1 if sign == "-" else 1)
        if _PLAIN.fullmatch(digits):
            exponent = digits.lower().partition("e")[2]
            # 10**(10**9) would not end
            return None if exponent and abs(int(exponent)) > _LONGEST else Fraction(digits)
    except ZeroDivisionError:
        return None
    return None


def _one_unit(text: str) -> str:
    """Units to compare: singular, without full stops and spaces."""
    words = [w.rstrip(".") for w in text.split()]
    return " ".join(w[:-1] if len(w) > 3 and w.endswith("s") and not w.endswith("ss") else w for w in words)


def same_number(answer: Number, right: Number, tolerance: Fraction = DIGITS) -> bool:
    """Whether two numbers are the same by the module's rules."""
    if answer.unit and right.unit and answer.unit != right.unit:
        return False
    pairs = [(answer.value, right.value)]
    if answer.percent != right.percent:
        pairs.append((answer.value / 100, right.value) if answer.percent else (answer.value, right.value / 100))
    if answer.exact and right.exact:
        return any(a == b for a, b in pairs)
    return any(abs(a - b) <= tolerance * min(1, 10 * abs(b)) for a, b in pairs)


def same_text(answer: str, right: str) -> bool:
    """Equal but for typesetting, spaces and capitals of words."""
    return _compact(answer) == _compact(right)


def _compact(text: str) -> str:
    text = _THOUSANDS.sub(lambda match: match.group().replace(" ", ""), clean(text))
    text = _BETWEEN_DIGITS.sub("_", text).replace(" ", "")  # 1 1/2 is not 11/2
    # x and X may be different things, a word is the same in any case
    return text.casefold() if re.fullmatch(r"[a-zA-Z'-]{2,}", text) else text


def same_answer(answer: str, right: str) -> bool:
    """Whether an answer is the right one by the module's rules. May take long: run it where it can be killed."""
    if same_text(answer, right):
        return True
    given, expected = read_number(clean(answer)), read_number(clean(right))
    if given is not None and expected is not None:
        return same_number(given, expected)
    if _WORDS.fullmatch(clean(right)) or {clean(answer).casefold(), clean(right).casefold()} & _SHORT_WORDS:
        return False
    return _same_expression(clean(answer), clean(right))


def canonical(answer: str) -> str:
    """One spelling for answers that are the same number or text; votes are counted by it."""
    number = read_number(clean(answer))
    if number is None:
        return _compact(answer)
    value = number.value / 100 if number.percent else number.value
    return str(value if number.exact else round(value, 6))


def is_readable(answer: str) -> bool:
    """Whether an expected answer can be compared by value and not only letter by letter."""
    text = clean(answer)
    return read_number(text) is not None or (_WORDS.fullmatch(text) is None and bool(_parsed(text)))


def _same_expression(answer: str, right: str) -> bool:
    from math_verify import verify

    # answers come from models: their parse is not worth keeping
    return bool(verify(list(_parsed(right)), list(_parse(answer)), timeout_seconds=None))


def _parse(text: str) -> tuple[Any, ...]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse
    from math_verify.parser import NormalizationConfig

    # its own removal of units would take the m of 2m
    kept = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
    )
    configs = [LatexExtractionConfig(boxed_match_priority=0, normalization_config=kept), ExprExtractionConfig()]
    return tuple(parse(f"\\boxed{{{_UNIT_BEHIND.sub('', text)}}}", configs, parsing_timeout=None))


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[Any, ...]:
    """Expected answers are compared with many responses."""
    return _parse(text)
