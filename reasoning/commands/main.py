"""`reasoning VERB ...`: finds the verb, runs it, and turns every known fault into one paragraph and an exit code.

Exit codes: 0 done, 1 failed, 2 refused input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback

from embodied import __version__
from embodied.errors import EXIT_FAILED, EXIT_INTERRUPTED, EmbodiedError

VERBS = ("data", "sft", "eval")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = argparse.ArgumentParser(
        prog="reasoning",
        description="Train and evaluate language models on problems with checkable answers.",
        epilog="Start with: reasoning data check FILE    Every verb has examples: reasoning VERB --help",
    )
    parser.add_argument("--version", action="version", version=f"reasoning {__version__}")
    subparsers = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in VERBS:
        importlib.import_module(f"reasoning.commands.{verb}").add_parser(subparsers)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    from embodied.system.shadowing import check_shadowing

    # set before torch is imported: the grading processes need the other cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    args = build_parser().parse_args(argv)
    try:
        check_shadowing()
        return importlib.import_module(f"reasoning.commands.{args.verb}").run(args)
    except EmbodiedError as error:
        kind = "refused" if error.exit_code != EXIT_FAILED else "failed"
        if error.__cause__ is not None and not isinstance(error.__cause__, EmbodiedError | OSError):
            traceback.print_exception(error.__cause__)
        print(f"reasoning {args.verb} {kind}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # the reader of our output went away (`reasoning data check ... | head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
