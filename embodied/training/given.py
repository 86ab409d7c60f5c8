"""A note in the run folder on what a run was given from Python, beside its recipe: without it, it cannot go on."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from embodied.errors import RefusedInput

_NOTE = "given.json"


def write_given(folder: Path, names: Collection[str]) -> None:
    """Note the names of what was given, if anything was."""
    if names:
        (folder / _NOTE).write_text(json.dumps(dict.fromkeys(sorted(names), True)))


def read_given(folder: Path) -> set[str]:
    """The names of what the run was given from Python. Raises RefusedInput where the note cannot be read."""
    path = folder / _NOTE
    try:
        return {name for name, there in json.loads(path.read_text()).items() if there} if path.is_file() else set()
    except (OSError, ValueError, AttributeError) as error:
        raise RefusedInput(f"{path} does not say what the run was given from Python, as it should: {error}") from None


def check_given(folder: Path, names: Collection[str], program: str) -> None:
    """Raise RefusedInput unless exactly what the run was started with is given again. program: whose package `resume`
    it can be given to."""
    noted = read_given(folder)
    wrong = sorted(noted ^ set(names))
    if wrong:
        verb = "had" if wrong[0] in noted else "had not"
        raise RefusedInput(
            f"{folder} was started from Python and {verb} {' and '.join(wrong)} of its own; go on with "
            f"{program}.resume(folder, ...), giving the same"
        )
