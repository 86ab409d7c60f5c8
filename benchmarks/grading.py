"""Gradings a second of the `math` reward in its processes, by kind of answer, beside math-verify called directly.

    OMP_NUM_THREADS=1 python benchmarks/grading.py

The pool has 2 processes; math-verify runs in this one, so twice its rate is what 2 cores could give.
"""

from __future__ import annotations

import random
import time

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from reasoning.problems import Problem, ask
from reasoning.rewards.pool import GraderSpec, GradingPool, Outcome

PROCESSES = 2


def plain(draw: random.Random) -> tuple[str, str]:
    """A number, right half of the time."""
    right = draw.randint(-(10**6), 10**6)
    return str(right + draw.randint(0, 1)), str(right)


def latex(draw: random.Random) -> tuple[str, str]:
    """Fractions, roots, polynomials, sets and intervals, written otherwise than expected."""
    a, b, c = (draw.randint(2, 99) for _ in range(3))
    return draw.choice(
        [
            (f"\\dfrac{{{a}}}{{{b}}}", f"\\frac{{{2 * a}}}{{{2 * b}}}"),
            (f"{a}\\sqrt{{{b}}}", f"\\sqrt{{{a * a * b}}}"),
            (f"x^2+{a + b}x+{a * b}", f"(x+{a})(x+{b})"),
            (f"\\{{{a}, {b}, {c}\\}}", f"\\{{{c}, {a}, {b}\\}}"),
            (f"\\left({a}, {a + b}\\right]", f"({a}, {a + b}]"),
            (f"\\frac{{\\pi}}{{{a}}}", f"\\frac{{2\\pi}}{{{2 * a}}}"),
        ]
    )


def measure(name: str, make, count: int, pool: GradingPool) -> None:
    """One line: the pool, and math-verify alone on the first of the same answers."""
    draw = random.Random(0)
    pairs = [make(draw) for _ in range(count)]
    attempts: list[tuple[int, str, Problem]] = [
        (0, f"Some steps, and then\nthe answer is \\boxed{{{answer}}}.", ask("q", right)) for answer, right in pairs
    ]
    pool.grade(attempts[:64])
    start = time.perf_counter()
    verdicts = pool.grade(attempts)
    ours = count / (time.perf_counter() - start)
    graded = sum(v.outcome is Outcome.GRADED for v in verdicts)
    right = sum(v.grade is not None and v.grade.score == 1.0 for v in verdicts)
    some = pairs[: min(count, 300)]
    configs = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    start = time.perf_counter()
    for answer, expected in some:
        gold = parse(f"\\boxed{{{expected}}}", configs, parsing_timeout=None)
        verify(gold, parse(f"\\boxed{{{answer}}}", configs, parsing_timeout=None), timeout_seconds=None)
    theirs = len(some) / (time.perf_counter() - start)
    print(f"| {name} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.1f} | {graded} of {count} graded, {right} right |")


def main() -> None:
    """Print the table."""
    print(f"| answers | pool of {PROCESSES}, a second | math-verify in one process, a second | ratio | |")
    print("|---|---|---|---|---|")
    with GradingPool([GraderSpec("math")], processes=PROCESSES, deadline_seconds=5.0) as pool:
        measure("plain numbers", plain, 20_000, pool)
        measure("LaTeX", latex, 1_500, pool)


if __name__ == "__main__":
    main()
