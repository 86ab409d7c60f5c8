"""`embodied VERB ...`: the robot side of the platform on the command line; `program` has the exit codes."""

from __future__ import annotations

import argparse
import sys

from embodied.commands.program import run_program, verbs_parser

VERBS = (
    "train",
    "resume",
    "eval",
    "record",
    "demos",
    "sft",
    "plan",
    "profile",
    "report",
    "recipes",
    "policies",
    "assets",
    "doctor",
)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    return verbs_parser(
        "embodied",
        VERBS,
        "Train, evaluate and film robot policies with reinforcement learning.",
        "embodied train gym_cartpole_ppo_mlp",
    )


def parse_words(argv: list[str] | None = None) -> argparse.Namespace:
    """The arguments; `key=value` words may stand anywhere after the verb, also behind options."""
    parser = build_parser()
    args, left = parser.parse_known_args(argv)
    # argparse closes a verb's open-ended list of words at the first option that follows it
    words = next((getattr(args, name) for name in ("overrides", "rest") if hasattr(args, name)), None)
    if left and (words is None or any(word.startswith("-") for word in left)):
        parser.error(f"unrecognized arguments: {' '.join(left)}")
    if left:
        words.extend(left)
    return args


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return run_program("embodied", lambda: parse_words(argv))


if __name__ == "__main__":
    sys.exit(main())
