"""A note in the run folder on what a run was given from Python, beside its recipe: without it, it cannot go on."""

from __future__ import annotations

import json
from pathlib import Path

from embodied.errors import RefusedInput

_NOTE = "given.json"


def write(folder: Path, *, problems: bool, reward: bool) -> None:
    """Note whether problems and a reward function were given."""
    if problems or reward:
        (folder / _NOTE).write_text(json.dumps({"problems": problems, "reward": reward}))


def check(folder: Path, *, problems: bool = False, reward: bool = False) -> None:
    """Raise RefusedInput unless exactly what the run was started with is given again."""
    path = folder / _NOTE
    noted = json.loads(path.read_text()) if path.is_file() else {"problems": False, "reward": False}
    given = {"problems": problems, "reward": reward}
    wrong = [name for name, there in noted.items() if there != given[name]]
    if wrong:
        verb = "had" if noted[wrong[0]] else "had not"
        raise RefusedInput(
            f"{folder} was started from Python and {verb} {' and '.join(wrong)} of its own; go on with "
            "reasoning.resume(folder, problems, reward), giving the same"
        )
