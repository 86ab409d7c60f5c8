"""Grading in real processes: killed when late, replaced when dead, counted, and never silently wrong."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
import time
from pathlib import Path

import pytest

from embodied.errors import ConfigurationError, WorkerError
from reasoning.problems import ask
from reasoning.rewards.pool import GraderSpec, GradingPool, Outcome
from reasoning.rewards.reward import Attempt, RewardConfig, RewardFunction, TermConfig, reward_metrics
from reasoning.rewards.reward import warn_constant_reward as warn
from tests.reasoning import grading_functions

PROBLEM = ask("1+1?", "2")


@pytest.fixture(scope="module")
def pool():
    specs = [GraderSpec("function", function=grading_functions.misbehave), GraderSpec("math")]
    with GradingPool(specs, processes=2, deadline_seconds=1.0, memory_gib=1.0) as pool:
        yield pool


def attempt(response: str, tokens: int = 5, *, truncated: bool = False) -> Attempt:
    return Attempt(PROBLEM, response, tokens, truncated)


def test_late_and_dying_answers_are_reported_and_all_others_graded(pool):
    said = ["good", "hang", "bad", "die", "good", "raise", "exit", "nan", "spin", "eat", "good"]
    verdicts = pool.grade([(0, response, PROBLEM) for response in said])
    outcomes = [v.outcome for v in verdicts]
    assert outcomes == [
        Outcome.GRADED, Outcome.TIMEOUT, Outcome.GRADED, Outcome.CRASH, Outcome.GRADED, Outcome.ERROR,
        Outcome.CRASH, Outcome.ERROR, Outcome.TIMEOUT, Outcome.ERROR, Outcome.GRADED,
    ]  # fmt: skip
    assert [v.grade.score for v in verdicts if v.grade] == [1.0, 0.0, 1.0, 1.0]
    assert "longer than 1 s" in verdicts[1].detail
    assert "SIGSEGV" in verdicts[3].detail
    assert "KeyError" in verdicts[5].detail
    assert "exit code 3" in verdicts[6].detail
    assert "memory" in verdicts[9].detail
    counts = pool.counts()
    assert (counts["timeout"], counts["crash"], counts["error"]) == (2, 2, 3)
    assert counts["restarts"] >= 3  # the last is replaced when there is more to grade


def test_verdicts_keep_their_order(pool):
    verdicts = pool.grade([(1, f"\\boxed{{{i % 3}}}", PROBLEM) for i in range(300)])
    assert [v.grade.score for v in verdicts] == [float(i % 3 == 2) for i in range(300)]


def test_grades_from_several_threads_at_once(pool):
    results: dict[int, list[float]] = {}

    def grade(thread: int) -> None:
        verdicts = pool.grade([(1, f"\\boxed{{{2 if i == thread else 0}}}", PROBLEM) for i in range(8)])
        results[thread] = [v.grade.score for v in verdicts]

    threads = [threading.Thread(target=grade, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {t: [float(i == t) for i in range(8)] for t in range(8)}


@pytest.mark.alone
def test_an_answer_that_hangs_a_symbolic_verifier_costs_its_deadline_only(pool):
    start = time.monotonic()
    (late, fine) = pool.grade([(1, r"\boxed{(((9^{9})^{9})^{9})^{9}}", PROBLEM), (1, r"\boxed{2}", PROBLEM)])
    assert fine.grade.score == 1.0
    assert late.grade is None or late.grade.score == 0.0
    assert time.monotonic() - start < 15


def test_functions_of_a_script_need_no_import_path():
    base = 3

    with GradingPool([GraderSpec("function", function=lambda response, problem: base * len(response))]) as own:
        assert own.grade([(0, "ab", PROBLEM)])[0].grade.score == 6.0


def test_processes_end_with_the_pool():
    def children() -> set[str]:
        found: set[str] = set()
        for task in Path(f"/proc/{os.getpid()}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
                found |= set((task / "children").read_text().split())
        return found

    before = children()
    own = GradingPool([GraderSpec("exact")], processes=2)
    assert len(children() - before) == 2
    own.close()
    assert children() - before == set()
    with pytest.raises(WorkerError, match="closed"):
        own.submit([(0, "x", PROBLEM)])


def test_closing_waits_for_nothing_that_is_still_to_be_graded():
    own = GradingPool([GraderSpec("function", function=grading_functions.misbehave)], processes=2, deadline_seconds=60)
    under_way = [own.submit([(0, "hang", PROBLEM)] * 4) for _ in range(3)]
    time.sleep(0.2)
    began = time.monotonic()
    own.close()
    assert time.monotonic() - began < 20
    for future in under_way:
        with pytest.raises(WorkerError, match="closed"):
            future.result(timeout=1)


def test_a_grade_that_cannot_be_read_costs_that_answer_only():
    with GradingPool([GraderSpec("function", function=grading_functions.unreadable)], processes=1) as own:
        first, second = own.grade([(0, "odd", PROBLEM), (0, "good", PROBLEM)])
    assert (first.outcome, second.outcome) == (Outcome.ERROR, Outcome.GRADED)
    assert "cannot be read" in first.detail


def test_a_function_that_cannot_be_imported_is_refused_at_the_start():
    options = RewardConfig(terms=(TermConfig(kind="tests.reasoning.grading_functions:absent"),), processes=1)
    with pytest.raises(ConfigurationError, match="absent"):
        RewardFunction(options)


def test_terms_add_up_with_their_best_and_worst():
    terms = (
        TermConfig(kind="math", best=5.0, worst=-5.0),
        TermConfig(kind="format", best=0.5, options={"pattern": ".*boxed.*"}),
        TermConfig(kind="overlong", options={"limit": 10, "buffer": 4}),
        TermConfig(kind="tests.reasoning.grading_functions:length", best=0.1),
    )
    with RewardFunction(RewardConfig(terms=terms, processes=1)) as reward:
        right, wrong = asyncio.run(reward.score_async([attempt(r"\boxed{2}", tokens=8), attempt("3333333333")]))
    assert right.value == pytest.approx(5.0 + 0.5 - 0.5 + 0.09)
    assert wrong.value == pytest.approx(-5.0 + 0.0 + 0.0 + 0.1)
    assert (right.right, wrong.right) == (True, False)
    assert right.terms["overlong"] == pytest.approx(-0.5)


def test_ungraded_responses_are_excluded_or_worst_and_counted():
    for ungraded, value in (("exclude", math.nan), ("worst", -1.0)):
        terms = (TermConfig(kind="math", worst=-1.0),)
        options = RewardConfig(terms=terms, processes=1, deadline_seconds=0.5, ungraded=ungraded)
        with RewardFunction(options, grading_functions.misbehave) as reward:
            rewards = reward.score([attempt("good"), attempt("hang"), attempt("bad")])
        assert rewards[1].value == pytest.approx(value, nan_ok=True)
        assert rewards[1].excluded == (ungraded == "exclude")
        metrics = reward_metrics(rewards)
        assert metrics["reward/timeout"] == pytest.approx(1 / 3)
        assert metrics["reward/mean"] == pytest.approx(0.0 if ungraded == "exclude" else -1 / 3)


def test_a_constant_reward_is_explained():
    with RewardFunction(RewardConfig(processes=1)) as reward:
        attempts = [attempt("three", truncated=True), attempt("dunno"), attempt("5")]
        text = warn(reward.score(attempts), attempts)
        assert text is not None
        assert "1 were cut off at the length limit, 2 gave no answer, 1 answered wrongly" in text
        mixed = [attempt("2"), attempt("5")]
        assert warn(reward.score(mixed), mixed) is None


def test_a_text_is_no_score_even_if_it_reads_like_one():
    with GradingPool([GraderSpec("function", function=grading_functions.says_text)], processes=1) as pool:
        (verdict,) = pool.grade([(0, "x", PROBLEM)])
    assert verdict.outcome is Outcome.ERROR
    assert "returned a str" in verdict.detail


def test_a_function_in_the_current_folder_is_found(tmp_path, monkeypatch):
    (tmp_path / "reward_of_mine.py").write_text("def score(response, problem):\n    return 0.5\n")
    (tmp_path / "broken_reward.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    with RewardFunction(RewardConfig(terms=(TermConfig(kind="reward_of_mine:score"),), processes=1)) as reward:
        assert reward.score([attempt("x")])[0].value == 0.5
    with pytest.raises(ConfigurationError, match=r"cannot be imported: ZeroDivisionError"):
        RewardFunction(RewardConfig(terms=(TermConfig(kind="broken_reward:score"),), processes=1))


def test_the_mean_of_rewards_is_absent_when_nothing_could_be_graded():
    terms = (TermConfig(kind="tests.reasoning.grading_functions:always_raises"),)
    with RewardFunction(RewardConfig(terms=terms, processes=1)) as reward:
        metrics = reward_metrics(reward.score([attempt("a"), attempt("b")]))
    assert (metrics["reward/excluded"], metrics["reward/error"]) == (1.0, 1.0)
    assert "reward/mean" not in metrics


def test_a_pattern_that_takes_for_ever_is_ended_like_any_grader():
    terms = (TermConfig(kind="exact"), TermConfig(kind="format", options={"pattern": r"(a+)+b"}))
    options = RewardConfig(terms=terms, processes=1, deadline_seconds=1.0)
    with RewardFunction(options) as reward:
        late, matched = reward.score([attempt("a" * 60), attempt("aab")])
    assert (late.outcome, late.excluded) == (Outcome.TIMEOUT, True)
    assert (matched.outcome, matched.terms["format"]) == (Outcome.GRADED, 1.0)
