"""Which workload a recipe or a run is of, and what the commands that train do alike for all of them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied.commands.common import command_line, kind_of, relative
from embodied.errors import EXIT_DONE, ConfigurationError

if TYPE_CHECKING:
    from embodied.runs.folder import RunFolder
    from embodied.training.workload import Workload

_KINDS = {"embodied": "robot policies", "reasoning": "language models"}
_MODULES = {"embodied": "embodied.interaction.workload", "reasoning": "reasoning.training.workload"}


def recipe_workload(recipe: str, overrides: list[str], only: str | None = None) -> Workload:
    """The workload of a recipe by name or by file, with overrides. only: the kind that is wanted here.

    Raises ConfigurationError for a recipe that cannot be, or of another kind.
    """
    from embodied.config.compose import compose_recipe, find_recipe

    name, values = find_recipe(recipe).stem, compose_recipe(recipe, overrides)
    kind = kind_of(values)
    if only not in (None, kind):
        raise ConfigurationError(f"{name} is a recipe for {_KINDS[kind]}; train it with: {kind} train {name}")
    return _make(kind, name, values)


def run_workload(folder: Path) -> Workload:
    """The workload of an existing run. Raises ConfigurationError for what is not the folder of one."""
    from embodied.training.recipe import read_run_config

    name, values = read_run_config(folder)
    return _make(kind_of(values), name, values)


def _make(kind: str, name: str, values: dict[str, Any]) -> Workload:
    # by name: only the packages of one workload are loaded
    return importlib.import_module(_MODULES[kind]).parse_workload(name, values)


def start(workload: Workload, *, dry_run: bool) -> int:
    """Carry a recipe out, or print it with its plan."""
    from embodied.training.loop import new_folder
    from embodied.training.planning import check_plan, describe_plan

    if dry_run:
        import yaml

        check_plan(workload)
        print(yaml.safe_dump(workload.recipe.as_dict(), sort_keys=False), end="")
        print("\n".join(f"# {line}" for line in describe_plan(workload).splitlines()))
        return EXIT_DONE
    return carry_out(workload, new_folder(workload), command=command_line(workload.program), resume=False)


def carry_out(workload: Workload, folder: RunFolder, *, command: str, resume: bool) -> int:
    """Train and report; says at the end where everything is and what to do next."""
    from embodied.commands import report
    from embodied.runs.checkpoint import CheckpointStore
    from embodied.training.loop import train

    try:
        outcome = train(workload, folder, command=command, resume=resume)
    except KeyboardInterrupt:
        early = CheckpointStore(folder.checkpoints, keep=1).latest() is None
        how = "stopped before the first checkpoint; begin again with" if early else "stopped; go on with"
        print(f"{how}: {workload.program} resume {relative(folder.path)}")
        raise
    workload.finish(outcome, print)
    farewell = workload.farewell(outcome)
    page = report.write(folder.path)
    print()
    print(f"{'Goal reached' if outcome.status == 'reached' else 'Stopped'}: {outcome.reason}.")
    for sentence in farewell.sentences:
        print(sentence)
    for label, path in {"report": page, **farewell.files}.items():
        if path is not None:
            print(f"  {label:<11}{relative(path)}")
    print("next:")
    for pieces in farewell.commands:
        print("  " + "".join(relative(piece) if isinstance(piece, Path) else piece for piece in pieces))
    return EXIT_DONE


def go_on(folder: Path) -> int:
    """Carry a stopped run on, by its own recipe and plan."""
    from embodied.runs.folder import RunFolder
    from embodied.training.loop import started_with

    run = RunFolder(folder.resolve())
    workload = run_workload(run.path)
    return carry_out(workload, run, command=started_with(workload, run), resume=True)
