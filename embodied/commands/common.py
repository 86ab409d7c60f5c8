"""What several verbs share: help texts with examples, the run's farewell."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any


def add_verb(subparsers: Any, name: str, summary: str, examples: list[str]) -> argparse.ArgumentParser:
    """A verb's parser, with its examples below the options."""
    epilog = "examples:\n" + "\n".join(f"  {example}" for example in examples)
    return subparsers.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def command_line() -> str:
    """The command as typed, for the record."""
    return shlex.join(["embodied", *sys.argv[1:]])


def relative(path: Path | str) -> str:
    """A path as short as it can be said from here, quoted for the shell where it needs to be."""
    path = Path(path)
    try:
        return shlex.quote(str(path.resolve().relative_to(Path.cwd())))
    except ValueError:
        return shlex.quote(str(path))


def is_reasoning(values: dict[str, Any]) -> bool:
    """Whether a composed recipe is one for language models."""
    return values.get("workload") == "reasoning"


def of_reasoning_run(folder: Path) -> bool:
    """Whether a run folder is of one; a damaged or missing configuration is for the verb itself to refuse."""
    import yaml

    try:
        values = yaml.safe_load((folder / "config.yaml").read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return False
    return isinstance(values, dict) and is_reasoning(values)


def with_plan(overrides: list[str]) -> list[str]:
    """Overrides with `plan=...` written out as the key it stands for, `cluster.plan`."""
    return [f"cluster.{text}" if text.startswith("plan=") else text for text in overrides]
