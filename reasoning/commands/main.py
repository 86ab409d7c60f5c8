"""`reasoning VERB ...`: the language side of the platform on the command line.

Exit codes: 0 done, 1 failed, 2 refused input, 130 interrupted by Ctrl-C, 143 ended by SIGTERM, 129 by SIGHUP.
"""

from __future__ import annotations

import argparse
import sys

from embodied.commands.program import parse_words, run_program, verbs_parser

VERBS = ("train", "resume", "eval", "sft", "data", "plan", "profile")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    return verbs_parser(
        "reasoning",
        VERBS,
        "Train and evaluate language models on problems with checkable answers.",
        "reasoning train math_grpo_tiny",
    )


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return run_program("reasoning", lambda: parse_words(build_parser(), argv))


if __name__ == "__main__":
    sys.exit(main())
