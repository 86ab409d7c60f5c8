"""What several verbs share: help texts with examples, the run's farewell."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from embodied.errors import RefusedInput


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


def command_line(program: str = "embodied") -> str:
    """The command as typed, for the record."""
    return shlex.join([program, *sys.argv[1:]])


def relative(path: Path | str) -> str:
    """A path as short as it can be said from here, quoted for the shell where it needs to be."""
    path = Path(path)
    try:
        return shlex.quote(str(path.resolve().relative_to(Path.cwd())))
    except ValueError:
        return shlex.quote(str(path))


def kind_of(values: dict[str, Any]) -> str:
    """The workload of a composed recipe; an unknown one is for its parser to refuse."""
    return "reasoning" if "workload" in values else "embodied"


def of_reasoning_run(folder: Path) -> bool:
    """Whether a run folder is of a language model; a damaged or missing configuration is for the verb to refuse."""
    import yaml

    try:
        values = yaml.safe_load((folder / "config.yaml").read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return False
    return isinstance(values, dict) and kind_of(values) == "reasoning"


def env_overrides(words: list[str]) -> dict[str, Any]:
    """`env.key=value` words as plain values, written as in YAML; `{camera:2}` may do without the space, as in recipes.

    Raises RefusedInput for others.
    """
    import yaml

    values = {}
    for word in words:
        key, sign, text = word.partition("=")
        if not sign or not key.startswith("env."):
            raise RefusedInput(f"{word!r}: only env.* options can be changed here, e.g. env.num_envs=32")
        if text.startswith("{"):
            text = re.sub(r"([{,]\s*\w+):(?=\S)", r"\1: ", text)
        try:
            values[key.removeprefix("env.")] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise RefusedInput(f"{word!r}: {text!r} is not a value that YAML can read") from None
    return values


def require_own_dataset(folder: Path, env_id: str) -> None:
    """Refuse a folder that cannot take a dataset of the environment, because it is a file or holds one of another,
    before anything is started or written there. Raises RefusedInput."""
    from embodied.datasets.layout import DESCRIPTION, read_description

    if folder.exists() and not folder.is_dir():
        raise RefusedInput(f"{folder} is no folder to record a dataset in. Choose another.")
    if (folder / DESCRIPTION).is_file():
        there = (read_description(folder).get("spec") or {}).get("id")
        if there != env_id:
            raise RefusedInput(f"{folder} holds a dataset of {there}, not of {env_id}. Choose another.")
