"""`embodied VERB ...`: finds the verb, runs it, and turns every known fault into one paragraph and an exit code.

Exit codes: 0 done, 1 failed, 2 refused input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from embodied import __version__
from embodied.errors import EXIT_FAILED, EXIT_INTERRUPTED, EmbodiedError

VERBS = ("train", "resume", "eval", "record", "demos", "sft", "plan", "report", "recipes", "doctor")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = argparse.ArgumentParser(
        prog="embodied",
        description="Train, evaluate and film robot policies with reinforcement learning.",
        epilog="Start with: embodied train gym_cartpole_ppo_mlp    Every verb has examples: embodied VERB --help",
    )
    parser.add_argument("--version", action="version", version=f"embodied {__version__}")
    subparsers = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in VERBS:
        importlib.import_module(f"embodied.commands.{verb}").add_parser(subparsers)
    return parser


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
    from embodied.system.shadowing import check_shadowing

    # many small tensors: one thread is faster, and simulators need the other cores; set before torch is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    verb = "embodied"
    try:
        check_shadowing()  # before any verb is imported: what it warns of would break the import
        args = parse_words(argv)
        verb = f"embodied {args.verb}"
        return importlib.import_module(f"embodied.commands.{args.verb}").run(args)
    except EmbodiedError as error:
        kind = "refused" if error.exit_code != EXIT_FAILED else "failed"
        _print_cause(error)
        print(f"{verb} {kind}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # the reader of our output went away (`embodied recipes | head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def _print_cause(error: EmbodiedError) -> None:
    """An unexpected exception behind the error is a fault of ours or of a plug-in: show where it came from."""
    import traceback

    if error.__cause__ is not None and not isinstance(error.__cause__, EmbodiedError | OSError):
        traceback.print_exception(error.__cause__)


if __name__ == "__main__":
    sys.exit(main())
