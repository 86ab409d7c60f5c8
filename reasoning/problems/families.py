"""Procedural families: endless problems from a seed, without any file.

Ours come with worked solutions, so that a model can first be fitted to them; those of `reasoning-gym` (105 generators)
come with their own scorers, which the `reasoning_gym` reward uses.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from embodied.config import config, parse
from embodied.errors import ConfigurationError, suggest
from reasoning.problems.record import Message, Problem, ask


@config
class ArithmeticConfig:
    """Sums and differences of several numbers, worked out from left to right.

    terms: how many numbers, from and to. largest: the largest of the numbers. worked: share of the problems whose
    solution is worked out; the others have the bare answer, as a teacher in a hurry gives it.
    """

    terms: tuple[int, int] = (3, 4)
    largest: int = 9
    worked: float = 1.0

    def __post_init__(self) -> None:
        if not 2 <= self.terms[0] <= self.terms[1]:
            raise ValueError(f"terms is {self.terms}; expected two numbers, 2 or more, the smaller first")
        if self.largest < 1:
            raise ValueError(f"largest is {self.largest}; it must be at least 1")
        if not 0 <= self.worked <= 1:
            raise ValueError(f"worked is {self.worked}; it is a share, from 0 to 1")

    def problem(self, draw: random.Random, origin: str) -> Problem:
        """One problem with its solution."""
        numbers = [draw.randint(0, self.largest) for _ in range(draw.randint(*self.terms))]
        total, question, steps = numbers[0], str(numbers[0]), []
        for number in numbers[1:]:
            sign = draw.choice("+-")
            result = total + number if sign == "+" else total - number
            question += f"{sign}{number}"
            steps.append(f"{total}{sign}{number}={result}")
            total = result
        worked = [*steps, ""] if draw.random() < self.worked else []
        return ask(f"{question}=", str(total), origin=origin, solution=f"{' '.join(worked)}\\boxed{{{total}}}")


@config
class LinearEquationConfig:
    """a x + b = c with whole solutions, worked out by moving b and dividing by a.

    largest_factor: the largest |a|. largest_solution: the largest |x|. largest_offset: the largest |b|.
    """

    largest_factor: int = 9
    largest_solution: int = 12
    largest_offset: int = 50

    def __post_init__(self) -> None:
        if self.largest_factor < 2 or self.largest_solution < 1 or self.largest_offset < 1:
            raise ValueError(
                f"largest_factor is {self.largest_factor}, largest_solution {self.largest_solution}, largest_offset "
                f"{self.largest_offset}; expected at least 2, 1 and 1"
            )

    def problem(self, draw: random.Random, origin: str) -> Problem:
        """One problem with its worked solution."""
        factor = draw.randint(2, self.largest_factor) * draw.choice((1, -1))
        solution = draw.randint(-self.largest_solution, self.largest_solution)
        offset = draw.randint(1, self.largest_offset) * draw.choice((1, -1))
        right = factor * solution + offset
        steps = f"{factor}x={right}{-offset:+d}={right - offset} x={right - offset}/{factor}={solution}"
        question = f"Solve {factor}x{offset:+d}={right} for x."
        return ask(question, str(solution), origin=origin, solution=f"{steps} \\boxed{{{solution}}}")


_OURS: dict[str, type[ArithmeticConfig] | type[LinearEquationConfig]] = {
    "arithmetic": ArithmeticConfig,
    "linear_equation": LinearEquationConfig,
}


def family_names() -> list[str]:
    """Every family there is."""
    from reasoning_gym.factory import DATASETS

    return sorted([*_OURS, *(name for name in DATASETS if name != "composite")])


def generate_problems(family: str, size: int, seed: int, options: dict[str, Any]) -> list[Problem]:
    """`size` problems of a family; the same for the same arguments.

    Raises ConfigurationError for an unknown family or option, or a value its generator refuses.
    """
    from embodied.random import derive_seed  # loads torch, which grading processes do without

    if family in _OURS:
        return _ours(parse(_OURS[family], options, at="problems.family_options").problem, family, size, seed)
    import reasoning_gym

    if family not in family_names():
        raise ConfigurationError(
            f"Unknown family of problems {family!r}. " + suggest(family, family_names(), noun="families")
        )
    try:
        # reasoning-gym wants a seed of 32 bits
        generated = reasoning_gym.create_dataset(family, size=size, seed=derive_seed(seed, family) >> 32, **options)
        entries = [generated[i] for i in range(size)]
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigurationError(f"reasoning-gym's {family!r} refuses the options {options}: {error}") from None
    return [
        Problem(
            messages=(Message("user", entry["question"]),),
            answers=(str(entry["answer"]),),
            origin=f"{family}:{index}",
            metadata={"family": family, "entry": entry},
        )
        for index, entry in enumerate(entries)
    ]


def _ours(make: Callable[[random.Random, str], Problem], family: str, size: int, seed: int) -> list[Problem]:
    from embodied.random import derive_seed

    # a generator of its own per problem: the first hundred are the same however many are asked for
    return [make(random.Random(derive_seed(seed, family, i)), f"{family}:{i}") for i in range(size)]
