"""The run folder: `<root>/<recipe>/<time>/` with everything a run writes."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import json
import logging
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

from embodied.errors import RefusedInput
from embodied.runs.files import made, replace

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:_(\d+))?")

COMMAND = "command.txt"
"""The file with the command that began a run, written before anything else happens."""


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """Paths inside one run's folder."""

    path: Path

    config = property(lambda self: self.path / "config.yaml")
    command = property(lambda self: self.path / COMMAND)
    plan = property(lambda self: self.path / "plan.json")
    profile = property(lambda self: self.path / "profile.json")
    plan_picture = property(lambda self: self.path / "plan.svg")
    metrics = property(lambda self: self.path / "metrics.jsonl")
    tensorboard = property(lambda self: self.path / "tensorboard")
    videos = property(lambda self: self.path / "videos")
    checkpoints = property(lambda self: self.path / "checkpoints")
    trace = property(lambda self: self.path / "trace.json")
    log = property(lambda self: self.path / "log.txt")
    result = property(lambda self: self.path / "result.json")
    evaluation = property(lambda self: self.path / "evaluation.json")
    report = property(lambda self: self.path / "report.html")

    def write_result(self, result: dict[str, Any]) -> None:
        """Replace result.json in one step."""
        replace(self.result, json.dumps(result, indent=2))

    def write_evaluation(self, episodes: list[dict[str, Any]]) -> None:
        """Replace evaluation.json, the latest evaluation's episodes, in one step."""
        replace(self.evaluation, json.dumps({"episodes": episodes}, indent=2))

    def write_plan(self, plan: str) -> None:
        """Replace plan.json in one step."""
        replace(self.plan, plan)

    def read_command(self) -> str | None:
        """The command that began the run, where it is known."""
        return self.command.read_text().strip() or None if self.command.is_file() else None

    def discard(self) -> None:
        """Remove the folder of a run that was refused before it did anything, with the link that leads to it."""
        shutil.rmtree(self.path, ignore_errors=True)
        link = self.path.parent / "latest"
        if not link.is_symlink() or link.exists():
            return
        try:
            if (before := _newest(self.path.parent)) is not None:
                _point_latest(before)
            else:
                link.unlink(missing_ok=True)
        except OSError as error:  # the refusal is what matters
            logger.warning("%s leads nowhere: %s", link, error.strerror or error)

    def read_result(self) -> dict[str, Any]:
        """result.json, or an empty dict before it was written."""
        return json.loads(self.result.read_text()) if self.result.exists() else {}


def create_run_folder(
    root: Path, recipe: str, exact: Path | None = None, *, go_on: str = "embodied resume"
) -> RunFolder:
    """A new folder for a run of `recipe` below `root`, or `exact` (which must be empty or absent).

    go_on: the command that carries on what is in a folder already. Raises RefusedInput when it cannot be written.
    """
    time = dt.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    path = exact if exact is not None else root / recipe / time
    try:
        if exact is not None and exact.is_dir() and any(exact.iterdir()):
            raise RefusedInput(
                f"run.folder {exact} is not empty. Name a new folder, or go on with that run: {go_on} "
                f"{shlex.quote(str(exact))}"
            )
        if exact is not None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path = _first_made(path)
        probe = path / ".writable"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise RefusedInput(
            f"the run folder {path} cannot be written: {error.strerror or error}. "
            "Choose another with run.root=FOLDER or run.folder=FOLDER."
        ) from None
    if exact is None:
        try:
            _point_latest(path)
        except OSError as error:  # some file systems have no links, some people a folder of that name
            logger.warning("%s does not lead to this run: %s", path.parent / "latest", error.strerror or error)
    return RunFolder(path)


def _first_made(path: Path) -> Path:
    """Make the folder, or the first of `name_2`, `name_3`, ... that is not there: another run may begin in the same
    second. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    others = (path.with_name(f"{path.name}_{number}") for number in itertools.count(2))
    return next(one for one in itertools.chain([path], others) if made(one, Path.mkdir))


def _newest(parent: Path) -> Path | None:
    """The run below `parent` that began last, by its name."""
    found = [(match[1], int(match[2] or 1), path) for path in parent.iterdir() if (match := _NAME.fullmatch(path.name))]
    return max(found)[2] if found else None


def _point_latest(path: Path) -> None:
    """Let `<recipe>/latest` lead to the newest run."""
    link = path.parent / "latest"
    partial = path.parent / f".latest_{os.getpid()}"
    partial.unlink(missing_ok=True)
    try:
        partial.symlink_to(path.name)
        partial.replace(link)
    finally:
        partial.unlink(missing_ok=True)
