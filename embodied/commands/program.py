"""A program of verbs: finds the verb, runs it, and turns every known fault into one paragraph and an exit code.

Exit codes: 0 done, 1 failed, 2 refused input, 130 interrupted by Ctrl-C, 143 ended by SIGTERM, 129 by SIGHUP.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from embodied import __version__
from embodied.errors import (
    EXIT_FAILED,
    AssetError,
    CheckpointError,
    EmbodiedError,
)
from embodied.system.termination import exit_code, interruption, signals_as_interrupt


def verbs_parser(package: str, verbs: Sequence[str], description: str, start_with: str) -> argparse.ArgumentParser:
    """The parser of all verbs, whose modules are in `<package>.commands`."""
    parser = argparse.ArgumentParser(
        prog=package,
        description=description,
        epilog=f"Start with:\n  {start_with}\nEvery verb has examples:\n  {package} VERB --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"{package} {__version__}")
    subparsers = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in verbs:
        importlib.import_module(f"{package}.commands.{verb}").add_parser(subparsers)
    return parser


def parse_words(parser: argparse.ArgumentParser, argv: list[str] | None = None) -> argparse.Namespace:
    """The arguments; the words of a verb's open-ended list may stand anywhere after it, also behind options."""
    args, left = parser.parse_known_args(argv)
    # argparse closes a verb's open-ended list of words at the first option that follows it
    lists = ("overrides", "rest", "names", "given")
    words = next((getattr(args, name) for name in lists if hasattr(args, name)), None)
    if left and (words is None or any(word.startswith("-") for word in left)):
        parser.error(f"unrecognized arguments: {' '.join(left)}")
    if left:
        words.extend(left)
    return args


def run_program(package: str, parse: Callable[[], argparse.Namespace]) -> int:
    """Parse, run the verb's module, and return the exit code."""
    from embodied.system.shadowing import check_shadowing

    # many small tensors: one thread is faster, and simulators need the other cores; set before torch is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    said = package
    with signals_as_interrupt():
        try:
            check_shadowing()  # before any verb is imported: what it warns of would break the import
            args = parse()
            said = f"{package} {args.verb}"
            return importlib.import_module(f"{package}.commands.{args.verb}").run(args)
        except EmbodiedError as error:
            kind = "refused" if error.exit_code != EXIT_FAILED else "failed"
            _print_cause(error)
            print(f"{said} {kind}: {error}", file=sys.stderr)
            return error.exit_code
        except KeyboardInterrupt:
            print(interruption(), file=sys.stderr)
            return exit_code()
        except BrokenPipeError:
            # the reader of our output went away (`embodied recipes | head`)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_FAILED


def _print_cause(error: EmbodiedError) -> None:
    """An unexpected exception behind the error is a fault of ours or of a plug-in: show where it came from. One behind
    a file that could not be read is the file's, and the error says what is wrong with it."""
    if isinstance(error, AssetError | CheckpointError):
        return
    if error.__cause__ is not None and not isinstance(error.__cause__, EmbodiedError | OSError):
        traceback.print_exception(error.__cause__)
