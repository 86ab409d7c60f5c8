"""The adapter that `envs.registry` names for the prefix `libero/`."""

from __future__ import annotations

from envs.api import EnvSpec
from envs.batch import BatchEnv
from envs.libero.config import LiberoConfig

Config = LiberoConfig
describes_at_once = True  # from files alone


def make_batch(config: LiberoConfig, num_envs: int) -> BatchEnv:
    """`num_envs` environments of `config` in this process.

    Raises AssetError for missing or unfitting files and SimulatorError where the simulator cannot be built.
    """
    # imported here: MuJoCo reads which GL backend to use when it is imported, and only who steps needs it
    from envs.pool.shared import process_count
    from envs.rendering import egl

    if config.cameras:
        egl.prepare_mujoco(processes=max(1, process_count(config)))
    from envs.libero.batch import LiberoBatch

    return LiberoBatch(config, num_envs)


def describe(config: LiberoConfig) -> EnvSpec:
    """The spec of `config`, from its files, without building a simulator."""
    from envs.libero.spec import describe_tasks

    return describe_tasks(config)
