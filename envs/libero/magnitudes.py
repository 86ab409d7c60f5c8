"""The kinds of perturbation and what their severities mean, in numbers; imports no simulator."""

from __future__ import annotations

from collections.abc import Mapping

from embodied.errors import ConfigurationError, suggest

MAX_SEVERITY = 5
KINDS = ("camera", "light", "texture", "noise", "robot_start", "layout", "distractors", "instruction")

LEVELS: dict[str, tuple[float, ...]] = {
    "camera": (0.02, 0.04, 0.07, 0.10, 0.15),  # metres of displacement; radians of turn are as many
    "light": (0.15, 0.3, 0.45, 0.6, 0.75),  # relative change of brightness
    "texture": (0.1, 0.2, 0.35, 0.5, 0.7),  # strength of the tint of table, floor and walls
    "noise": (4.0, 8.0, 16.0, 24.0, 40.0),  # standard deviation in grey levels of 255
    "robot_start": (0.02, 0.04, 0.07, 0.1, 0.14),  # radians, standard deviation of each arm joint
    "layout": (0.02, 0.04, 0.06, 0.08, 0.1),  # metres that everything on the table is moved by at most, in x and in y
    "distractors": (1, 2, 3, 4, 6),  # how many things that do not belong
}


def validate(perturb: Mapping[str, int]) -> None:
    """Raises ConfigurationError for an unknown kind or a severity outside 1 to 5."""
    for kind, severity in perturb.items():
        if kind not in KINDS:
            raise ConfigurationError(f"perturb has {kind!r}. {suggest(kind, KINDS, noun='perturbations')}")
        if not 1 <= severity <= MAX_SEVERITY:
            raise ConfigurationError(f"perturb.{kind} is {severity}; a severity is between 1 and {MAX_SEVERITY}.")
