"""`embodied VERB ...`: the robot side of the platform on the command line; `program` has the exit codes."""

from __future__ import annotations

import argparse
import sys

from embodied.commands.program import parse_words, run_program, verbs_parser

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


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return run_program("embodied", lambda: parse_words(build_parser(), argv))


if __name__ == "__main__":
    sys.exit(main())
