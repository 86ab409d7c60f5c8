"""What counts as a right answer, and what the terms of a reward are worth."""

from __future__ import annotations

import pytest

from embodied.errors import ConfigurationError
from reasoning.problems import ask
from reasoning.rewards.equality import canonical, same_answer
from reasoning.rewards.extraction import Extracted, Found, extract_answer
from reasoning.rewards.graders import build_grader, check_problem
from reasoning.rewards.reward import RewardConfig, TermConfig
from reasoning.rewards.shaping import OverlongConfig, overlong_score

EXTRACTED = [
    (r"so \boxed{3}, no: \boxed{\frac{1}{2}}. The answer is 9", r"\frac{1}{2}", Found.BOXED),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}", Found.BOXED),
    (r"\boxed{5} and cut off at \boxed{\frac{1}", "5", Found.BOXED),
    (r"The answer is 7. Checking: 3 + 4", "7", Found.STATED),
    ("**Final Answer**: 3.5 because 7/2", "3.5", Found.STATED),
    ("The answer is $x^2+1$.", "x^2+1", Found.STATED),
    ("so it is\n#### 1,234", "1,234", Found.STATED),
    ("<answer>\nabc\n</answer>", "abc", Found.STATED),
    ("10 - 4 = 6 and then 6-3", "3", Found.LAST_NUMBER),
    ("we get x = -12", "-12", Found.LAST_NUMBER),
    ("that is 1,250.50 in all.", "1,250.50", Found.LAST_NUMBER),
    ("three quarters, 3/4", "3/4", Found.LAST_NUMBER),
    (r"<think>\boxed{1}</think> The answer is 2", "2", Found.STATED),
    (r"<think>\boxed{1}</think> no idea", "", Found.NOTHING),
    (r"<think>a</think> \boxed{1} <think>b</think> The answer is 2", "2", Found.STATED),
    ("<answer>1</answer> no: <answer>2</answer>", "2", Found.STATED),
    ("", "", Found.NOTHING),
]


@pytest.mark.parametrize(("response", "text", "how"), EXTRACTED)
def test_answer_is_the_last_box_then_the_statement_then_the_last_number(response, text, how):
    assert extract_answer(response) == Extracted(text, how)


SAME = [
    ("4", "4"), ("4.0", "4"), ("1,234", "1234"), ("0.5", r"\frac{1}{2}"), (r"\dfrac12", "0.5"), ("1/3", "0.333333"),
    ("-3", "−3"), (r"10\%", "0.1"), (r"10\%", "10"), ("0.1", r"10\%"), ("$5", "5"), ("5 dollars", "5"),
    (r"60^\circ", "60"), (r"5\text{ cm}", "5 cm"), ("5 meters", "5 meter"), (r"\text{B}", "B"), ("x = 5", "5"),
    (r"\{1,2\}", r"\{2,1\}"), ("(1, 2]", r"\left(1,2\right]"), ("x^2+2x+1", "(x+1)^2"), (r"\sqrt{8}", r"2\sqrt{2}"),
    (r"\text{Evelyn}", "evelyn"), ("1e3", "1000"),
    ("1 1/2", "1.5"), ("-2 1/4 hours", "-9/4"), ("Yes", "yes"),
    ("10 000", "10000"), (r"12\,345", "12345"),
    ("0.0123456", "0.01234567"),
]  # fmt: skip
DIFFERENT = [
    ("4", "5"), ("1000000", "1000001"), ("1/3", "0.3333"), ("3", "-3"), ("5 cm", "5 m"), ("2m", "2"), ("2", "2 x"),
    (r"\frac{\pi}{3}", "60 degrees"), ("(1, 2)", "(2, 1)"), ("[1, 2]", "(1, 2]"), (r"10\%", "0.2"),
    ("1e999999999", "3"), ("1/0", "0"), ("no idea", "4"), ("12 or 13", "13"), ("Evenly", "Evelyn"),
    ("on", "no"), ("no", "on"), ("1 1/2", "11/2"), ("1 1/0", "1"),
    ("3 5", "35"), ("35", "3 5"),
    ("0.0000012", "0.000001"), ("0.012345", "0.0123456"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "right"), SAME)
def test_same_answers_in_other_writing(answer, right):
    assert same_answer(answer, right)


@pytest.mark.parametrize(("answer", "right"), DIFFERENT)
def test_different_answers(answer, right):
    assert not same_answer(answer, right)


def test_canonical_spelling_joins_equal_votes():
    assert canonical("0.50") == canonical("0.5")
    assert canonical("1,000") == canonical("1000") == "1000"
    assert canonical(r"\text{Yes}") == canonical("yes")
    assert canonical(r"\frac{2}{4}") == canonical("1/2")
    assert canonical(r"10\%") == canonical("0.1") != canonical("10")


def test_containing_the_right_number_earns_nothing():
    assert build_grader("math", {})("It might be 42, but the answer is 41", ask("q", "42")).score == 0.0


def test_any_of_several_answers_is_right():
    assert build_grader("math", {})(r"\boxed{3}", ask("q", "2", "3")).score == 1.0


def test_exact_does_not_take_the_last_number():
    grade = build_grader("exact", {})
    assert grade("the sky is 7", ask("q", "7")).score == 0.0
    assert grade(r"\boxed{ABBA}", ask("q", "abba")).score == 1.0


@pytest.mark.parametrize(
    ("response", "letter"),
    [(r"\boxed{B}", "B"), (r"\boxed{\text{(b)}}", "B"), ("The answer is (C) because (A) is not", "C"), ("...\nD", "D"),
     ("I think (A) or maybe (B)", "B"), ("A horse", ""), ("The answer is option C.", "C"), ("Answer: b", "B"),
     ("The correct answer is: choice B", "B"), ("Answer: B, the nucleus", "B"), ("Answer: E) none of them", "E"),
     ("The answer is a bit subtle, but the others are excluded.\n(C)", "C"), ("Answer: A mixture\n(B)", "B"),
     ("I think the answer is I would say (B).", "B"), ("Answer: a mixture of effects", "")],
)  # fmt: skip
def test_multiple_choice_takes_the_letter(response, letter):
    assert build_grader("multiple_choice", {})(response, ask("q", "A")).answer == letter


def test_numeric_tolerance_and_refusal_of_other_expected_answers():
    assert build_grader("numeric", {"tolerance": 0.01})("3.141", ask("q", "3.1415")).score == 1.0
    assert build_grader("numeric", {})("3.141", ask("q", "3.1415")).score == 0.0
    with pytest.raises(ValueError, match="no number"):
        build_grader("numeric", {})("3", ask("q", "x"))


@pytest.mark.parametrize(("kind", "message"), [("mathh", "math"), ("no_such:f", "imported"), ("math:f", "imported")])
def test_unknown_rewards_are_refused(kind, message):
    with pytest.raises(ConfigurationError, match=message):
        build_grader(kind, {})


def test_overlong_punishment_is_soft_then_full():
    options = OverlongConfig(limit=100, buffer=20)
    scores = [overlong_score(options, n, truncated=False) for n in (1, 80, 85, 100, 120)]
    assert scores == [0.0, 0.0, -0.25, -1.0, -1.0]
    assert overlong_score(options, 100, truncated=True) == -1.0


def test_a_choice_may_have_its_words_as_a_second_answer():
    check_problem("multiple_choice", ask("q", "B", "Paris"))
    with pytest.raises(ConfigurationError, match="'Paris' or 'Rome' is not the letter of a choice"):
        check_problem("multiple_choice", ask("q", "Paris", "Rome"))


def test_the_first_of_several_terms_may_add_nothing_and_say_what_is_right():
    counted, silent = TermConfig(kind="exact"), TermConfig(kind="math", best=0.0)
    assert RewardConfig(terms=(silent, counted)).terms[0].best == 0.0
    for terms in ((silent,), (counted, silent)):
        with pytest.raises(ValueError, match="would say nothing"):
            RewardConfig(terms=terms)
